"""Accuracy and calibration of predictions, and the spectrum of a kernel (Appendix B, "Evaluation protocol").

With `weight` a row of weight k counts as k equal rows.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import check_positive_int, check_same_length, check_tensor
from deepbasis.gp.classes import Classes
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.outputs import Outputs
from deepbasis.gp.predictive import Predictive, Weight


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
    return _inside(*predictive.interval(level), y, weight)


def width(predictive: Predictive, level: float = 0.95, weight: Weight = None) -> Float[Tensor, ""]:
    lower, upper = predictive.interval(level)
    return weighted_mean(upper - lower, weight)


def _inside(lower: Tensor, upper: Tensor, y: Tensor, weight: Weight) -> Tensor:
    return weighted_mean(((lower <= y) & (y <= upper)).to(y.dtype), weight)


def calibration_error(
    predictive: Predictive, y: Float[Tensor, " n"], levels: int = 19, weight: Weight = None
) -> Float[Tensor, ""]:
    """Expected calibration error: the mean over levels p of |share of targets below their p-quantile - p|.

    The levels are evenly spaced, 0.05 ... 0.95 by default. 0 is perfect; 0.5 means that all targets lie on one side.
    """
    return distance_from_diagonal(*pit(predictive, y), levels, weight)


def pit(predictive: Predictive, y: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The ends, P(Y < y) and P(Y <= y), of what the probability integral transform of y is spread over evenly.

    They are one number unless y has a probability itself. Over many rows it is uniform, if predictions are right, of
    counts and ratings too (Czado, Gneiting and Held, 2009).
    """
    high = predictive.cdf(y)
    return predictive.below(y).minimum(high), high


def pit_shares(
    low: Float[Tensor, " n"], high: Float[Tensor, " n"], levels: Float[Tensor, " k"], weight: Weight = None
) -> Float[Tensor, " k"]:
    """How much of what `pit` gave is at most each level, in mean over the rows."""
    width = high - low
    step = torch.where(width > 0, width, 1.0)

    def share(p: Tensor) -> Tensor:
        return weighted_mean(torch.where(width > 0, ((p - low) / step).clamp(0.0, 1.0), (high <= p).to(low)), weight)

    return torch.stack([share(p) for p in levels])


def distance_from_diagonal(
    low: Float[Tensor, " n"], high: Float[Tensor, " n"], levels: int = 19, weight: Weight = None
) -> Float[Tensor, ""]:
    """The calibration error of what `pit` gave."""
    check_positive_int("levels", levels)
    p = torch.arange(1, levels + 1, dtype=low.dtype, device=low.device) / (levels + 1)
    return (pit_shares(low, high, p, weight) - p).abs().mean()


def evaluate(predictive: Predictive, y: Float[Tensor, " n"], weight: Weight = None) -> dict[str, float]:
    """Every metric by its name. Lower is better, except for `coverage_95`, which should be 0.95.

    Of classes, `auc` and `accuracy` are better if higher, and `auc` is NaN where all rows are of one class.
    """
    check_tensor("y", y, 1)
    if isinstance(predictive, Classes):
        return _evaluate_classes(predictive, y, weight)
    check_same_length("y", y, "the prediction", predictive.mean)
    lower, upper = predictive.interval(0.95)
    return {
        "mae": float(mae(predictive, y, weight)),
        "rmse": float(rmse(predictive, y, weight)),
        "nll": float(nll(predictive, y, weight)),
        "crps": float(crps(predictive, y, weight)),
        "coverage_95": float(_inside(lower, upper, y, weight)),
        "width_95": float(weighted_mean(upper - lower, weight)),
        "calibration_error": float(calibration_error(predictive, y, weight=weight)),
    }


def evaluate_outputs(
    predicted: Outputs, y: Float[Tensor, "n m"], names: Sequence[str], weight: Weight = None
) -> dict[str, float]:
    """The metrics of `evaluate`: their means over outputs, then those of each, as "mae_" and its name.

    The NLL without a name is that of all outputs together.
    """
    of_each = [evaluate(one, column, weight) for one, column in zip(predicted.each, y.unbind(1), strict=True)]
    means = {metric: math.fsum(one[metric] for one in of_each) / len(of_each) for metric in of_each[0]}
    means["nll"] = -float(weighted_mean(predicted.log_prob(y), weight))
    named = zip(names, of_each, strict=True)
    return means | {f"{metric}_{name}": value for name, one in named for metric, value in one.items()}


def _evaluate_classes(predicted: Classes, y: Float[Tensor, " n"], weight: Weight) -> dict[str, float]:
    check_same_length("y", y, "the prediction", predicted.variances[0])
    p = predicted.probabilities
    is_class = (torch.arange(p.shape[1], device=y.device) == y[:, None]).double()
    w = None if weight is None else weight.double()
    return {
        "log_loss": float(nll(predicted, y, w)),
        "brier": float(weighted_mean((p - is_class).square().sum(1), w)),
        "ece": float(confidence_error(p, y, weight=w)),
        "auc": float(auc(p, is_class, w)),
        "accuracy": float(weighted_mean((p.argmax(1) == y).double(), w)),
    }


def confidence_error(
    p: Float[Tensor, "n k"], y: Float[Tensor, " n"], bins: int = 15, weight: Weight = None
) -> Float[Tensor, ""]:
    """Expected calibration error of the likeliest class: in bins of equal mass, |share that is right - probability|."""
    sure, likeliest = p.max(1)
    w = torch.ones_like(sure) if weight is None else weight
    order = sure.argsort(stable=True)
    mass = w[order].cumsum(0) - 0.5 * w[order]
    of_bin = torch.empty_like(order)
    of_bin[order] = (bins * mass / w.sum()).long().clamp_max(bins - 1)
    gap = w * ((likeliest == y).to(sure.dtype) - sure)
    return torch.zeros(bins, dtype=sure.dtype, device=sure.device).index_add_(0, of_bin, gap).abs().sum() / w.sum()


def auc(p: Float[Tensor, "n k"], is_class: Float[Tensor, "n k"], weight: Weight = None) -> Float[Tensor, ""]:
    """The area under the ROC curve of each class against the others: the mean over the classes that are there."""
    w = torch.ones_like(p[:, 0]) if weight is None else weight
    areas = []
    for score, inside in zip(p.T, is_class.T, strict=True):
        values, place = score.unique(return_inverse=True)
        yes, no = (torch.zeros_like(values).index_add_(0, place, w * some) for some in (inside, 1.0 - inside))
        areas.append((yes * (no.cumsum(0) - 0.5 * no)).sum() / (yes.sum() * no.sum()))
    return torch.stack(areas).nanmean()


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
