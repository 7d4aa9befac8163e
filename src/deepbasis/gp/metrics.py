"""Accuracy and calibration of predictions, and the spectrum of a kernel (Appendix B, "Evaluation protocol").

With `weight` a row of weight k counts as k equal rows.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import check_positive_int, check_same_length, check_tensor
from deepbasis.gp.objectives import Weight, weighted_mean
from deepbasis.gp.predictive import Predictive


def mae(predictive: Predictive, y: Float[Tensor, " n"], weight: Weight = None) -> Float[Tensor, ""]:
    return weighted_mean((y - predictive.mean).abs(), weight)


def rmse(predictive: Predictive, y: Float[Tensor, " n"], weight: Weight = None) -> Float[Tensor, ""]:
    return weighted_mean((y - predictive.mean).square(), weight).sqrt()


def nll(predictive: Predictive, y: Float[Tensor, " n"], weight: Weight = None) -> Float[Tensor, ""]:
    return -weighted_mean(predictive.log_prob(y), weight)


def crps(predictive: Predictive, y: Float[Tensor, " n"], weight: Weight = None) -> Float[Tensor, ""]:
    return weighted_mean(predictive.crps(y), weight)


def coverage(
    predictive: Predictive, y: Float[Tensor, " n"], level: float = 0.95, weight: Weight = None
) -> Float[Tensor, ""]:
    """The fraction of targets inside the central interval that should hold `level` of them."""
    lower, upper = predictive.interval(level)
    return weighted_mean(((lower <= y) & (y <= upper)).to(y.dtype), weight)


def width(predictive: Predictive, level: float = 0.95, weight: Weight = None) -> Float[Tensor, ""]:
    lower, upper = predictive.interval(level)
    return weighted_mean(upper - lower, weight)


def calibration_error(
    predictive: Predictive, y: Float[Tensor, " n"], levels: int = 19, weight: Weight = None
) -> Float[Tensor, ""]:
    """Expected calibration error: the mean over levels p of |share of targets below their p-quantile - p|.

    The levels are evenly spaced, 0.05 ... 0.95 by default. 0 is perfect; 0.5 means that all targets lie on one side.
    """
    check_positive_int("levels", levels)
    p = torch.arange(1, levels + 1, dtype=y.dtype, device=y.device) / (levels + 1)
    below = (predictive.cdf(y)[:, None] <= p).to(y.dtype)
    share = torch.stack([weighted_mean(column, weight) for column in below.T])
    return (share - p).abs().mean()


def evaluate(predictive: Predictive, y: Float[Tensor, " n"], weight: Weight = None) -> dict[str, float]:
    """Every metric by its name. Lower is better, except for `coverage_95`, which should be 0.95."""
    check_tensor("y", y, 1)
    check_same_length("y", y, "the prediction", predictive.mean)
    return {
        "mae": float(mae(predictive, y, weight)),
        "rmse": float(rmse(predictive, y, weight)),
        "nll": float(nll(predictive, y, weight)),
        "crps": float(crps(predictive, y, weight)),
        "coverage_95": float(coverage(predictive, y, weight=weight)),
        "width_95": float(width(predictive, weight=weight)),
        "calibration_error": float(calibration_error(predictive, y, weight=weight)),
    }


def spectrum(K: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """Eigenvalues of a kernel matrix, the largest first; those that rounding made negative are zero."""
    return torch.linalg.eigvalsh(K).flip(0).clamp_min(0.0)


def basis_spectrum(phi: Float[Tensor, "n r"]) -> Float[Tensor, " k"]:
    """The min(n, r) nonzero eigenvalues of K = Phi Phi^T, the largest first, without forming K."""
    return torch.linalg.svdvals(phi).square()


def effective_rank(eigenvalues: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """exp(entropy) of the normalised eigenvalues: 1 for a collapsed kernel, r for r equal directions.

    A zero kernel has no directions: 0.
    """
    total = eigenvalues.sum()
    if not bool(total > 0):
        return torch.zeros_like(total)
    p = eigenvalues / total
    return torch.special.entr(p).sum().exp()
