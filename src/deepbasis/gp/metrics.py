"""Accuracy and calibration of predictions, and the spectrum of a kernel (Appendix B, "Evaluation protocol")."""

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import check_positive_int, check_same_length, check_tensor
from deepbasis.gp.predictive import Predictive


def mae(predictive: Predictive, y: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return (y - predictive.mean).abs().mean()


def rmse(predictive: Predictive, y: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return (y - predictive.mean).square().mean().sqrt()


def nll(predictive: Predictive, y: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return -predictive.log_prob(y).mean()


def crps(predictive: Predictive, y: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return predictive.crps(y).mean()


def coverage(predictive: Predictive, y: Float[Tensor, " n"], level: float = 0.95) -> Float[Tensor, ""]:
    """The fraction of targets inside the central interval that should hold `level` of them."""
    lower, upper = predictive.interval(level)
    return ((lower <= y) & (y <= upper)).to(y.dtype).mean()


def width(predictive: Predictive, level: float = 0.95) -> Float[Tensor, ""]:
    lower, upper = predictive.interval(level)
    return (upper - lower).mean()


def calibration_error(predictive: Predictive, y: Float[Tensor, " n"], levels: int = 19) -> Float[Tensor, ""]:
    """Expected calibration error: the mean over levels p of |share of targets below their p-quantile - p|.

    The levels are evenly spaced, 0.05 ... 0.95 by default. 0 is perfect; 0.5 is what misses on one side alone have.
    """
    check_positive_int("levels", levels)
    p = torch.arange(1, levels + 1, dtype=y.dtype, device=y.device) / (levels + 1)
    share = torch.searchsorted(predictive.cdf(y).sort().values, p, right=True).to(y.dtype) / len(y)
    return (share - p).abs().mean()


def evaluate(predictive: Predictive, y: Float[Tensor, " n"]) -> dict[str, float]:
    """Every metric by its name. Lower is better, but for `coverage_95`, which should be 0.95."""
    check_tensor("y", y, 1)
    check_same_length("y", y, "the prediction", predictive.mean)
    return {
        "mae": float(mae(predictive, y)),
        "rmse": float(rmse(predictive, y)),
        "nll": float(nll(predictive, y)),
        "crps": float(crps(predictive, y)),
        "coverage_95": float(coverage(predictive, y)),
        "width_95": float(width(predictive)),
        "calibration_error": float(calibration_error(predictive, y)),
    }


def spectrum(K: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """Eigenvalues of a kernel matrix, the largest first; those that rounding made negative are zero."""
    return torch.linalg.eigvalsh(K).flip(0).clamp_min(0.0)


def basis_spectrum(phi: Float[Tensor, "n r"]) -> Float[Tensor, " k"]:
    """The min(n, r) nonzero eigenvalues of K = Phi Phi^T, the largest first, without forming K."""
    return torch.linalg.svdvals(phi).square()


def effective_rank(eigenvalues: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """exp(entropy) of the normalised eigenvalues: 1 for a collapsed kernel, r for r equal directions.

    A kernel that is zero has no directions: 0.
    """
    total = eigenvalues.sum()
    if not bool(total > 0):
        return torch.zeros_like(total)
    p = eigenvalues / total
    return torch.special.entr(p).sum().exp()
