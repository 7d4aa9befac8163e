"""Held-out rows: how much each counts, and how a model scores on them.

NOTE[DIFF]: in the paper, and with `recipe="paper"`, all members hold out the same rows, and each counts once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.gp import censored, metrics
from deepbasis.gp.counts import Counts
from deepbasis.gp.likelihoods import NOISE_FLOOR
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.outputs import Outputs
from deepbasis.gp.predictive import Gaussian, Predictive
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.table import row_labels

_FEWEST_ROWS = 30  # fewer held-out rows say nothing about a model


@dataclass(frozen=True)
class Fold:
    """Rows that some members are fitted to, and the rows that they hold out: plain, and weighted for selection."""

    data: Rows
    held_out: Rows
    selecting: Rows
    number: int = 0


def limit_copies(rows: Rows, limit: float | None) -> Rows:
    """The rows, weighted so that no input counts for more than `limit` average ones, however many copies it has.

    A model is right or wrong about all copies of an input at once: together they are about one observation. Half of a
    validation set may be copies of one input, and would then choose and calibrate a model for that input alone. None
    changes nothing. A row of weight k is as good as k copies.
    """
    if limit is None:
        return rows
    input_of = torch.from_numpy(row_labels(rows.x.numpy()))
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    of_input = torch.zeros(int(input_of.max()) + 1, dtype=torch.float64).index_add_(0, input_of, weight)
    # With the k largest cut down to a bound, the average is (k bound + rest) / inputs, and the bound `limit` times
    # that. Of all k the right one gives the lowest bound.
    largest = of_input[of_input > 0].sort(descending=True).values
    k = torch.arange(len(largest), dtype=torch.float64)
    rest = largest.flip(0).cumsum(0).flip(0)
    bound = (limit * rest / (len(largest) - limit * k))[limit * k < len(largest)].min()
    share = (bound / of_input[input_of]).clamp_max(1.0)
    if bool((share == 1.0).all()):
        return rows
    return replace(rows, weight=(weight * share).to(rows.y.dtype))


def join_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    weights = [rows.weight for rows in parts if rows.weight is not None]  # all have one, or none
    return Rows(
        torch.cat([rows.x for rows in parts]),
        torch.cat([rows.y for rows in parts]),
        torch.cat(weights) if weights else None,
    )


def baseline(rows: Rows, outputs: int = 0) -> Gaussian | Outputs:
    """The constant Gaussian that a model should be better than: mean and variance of the targets it was fitted to."""
    if outputs:
        return Outputs(tuple(baseline(replace(rows, y=column)) for column in rows.y.unbind(1)))
    mean = weighted_mean(rows.number, rows.weight)
    return Gaussian(mean[None], weighted_mean((rows.number - mean).square(), rows.weight)[None])


def class_shares(rows: Rows, classes: int) -> Tensor:
    """What the same prediction for all rows should be: the share of each class, with half a row more of each."""
    weight = torch.ones_like(rows.y) if rows.weight is None else rows.weight
    mass = torch.full((classes,), 0.5, dtype=torch.float64).index_add_(0, rows.y.long(), weight.double())
    return mass / mass.sum()


def mean_and_error(values: Tensor, weight: Tensor | None) -> tuple[float, float]:
    """The weighted mean, and its standard error."""
    shares = _shares(values, weight)
    mean = (shares * values).sum()
    return float(mean), float((shares * (values - mean)).square().sum().sqrt())


def _shares(values: Tensor, weight: Tensor | None) -> Tensor:
    return torch.full_like(values, 1.0 / len(values)) if weight is None else (weight / weight.sum()).to(values.dtype)


def scores_and_doubt(
    predicted: Predictive, rows: Rows, constant: Gaussian | Outputs | Tensor, target: TargetScaler
) -> tuple[dict[str, float], str]:
    """The metrics of held-out rows, in the target's units, and a warning if a constant Gaussian predicts better.

    `constant` is in the units that the target is trained in: with a warp, Gaussian once the target is warped. Of
    classes it is their shares.
    """
    if isinstance(constant, Tensor):
        return _class_scores_and_doubt(predicted, rows, constant)
    if isinstance(constant, Outputs):
        return _output_scores_and_doubt(predicted, rows, constant, target)
    if isinstance(predicted, Counts):
        return _count_scores_and_doubt(predicted, rows)
    y, weight = rows.number.double(), None if rows.weight is None else rows.weight.double()
    ours, own_y = target.distribution(predicted.double()), target.inverse(y)
    variance = constant.variance.double().clamp_min(NOISE_FLOOR)
    simple = target.distribution(Gaussian(constant.mean.double().expand_as(y), variance.expand_as(y)))
    if rows.y.dim() == 1:
        scores, theirs, own = metrics.evaluate(ours, own_y, weight), simple.log_prob(own_y), ours.log_prob(own_y)
    else:
        bounds = target.bounds_of(rows.y.double())
        scores = censored.evaluate(ours, own_y, *bounds, weight)
        theirs, own = (censored.log_observed(one, own_y, *bounds) for one in (simple, ours))
    scores["nll_constant"] = float(-weighted_mean(theirs, weight))
    # For a constant target nothing is better than the constant.
    if float(constant.variance) <= NOISE_FLOOR:
        return scores, ""
    return scores, _doubt(theirs - own, weight, "constant Gaussian")


def _output_scores_and_doubt(
    predicted: Predictive, rows: Rows, constant: Outputs, target: TargetScaler
) -> tuple[dict[str, float], str]:
    """The constant has independent outputs."""
    z, weight = rows.y.double(), None if rows.weight is None else rows.weight.double()
    ours, y, everyone = (
        target.distribution(predicted.double()),
        target.inverse(z),
        torch.zeros(len(z), dtype=torch.long),
    )
    assert isinstance(ours, Outputs)
    least = [Gaussian(one.mean, one.variance.clamp_min(NOISE_FLOOR)) for one in constant.double().each]
    simple = target.distribution(Outputs(tuple(one[everyone] for one in least)))
    theirs, own = simple.log_prob(y), ours.log_prob(y)
    scores = {
        **metrics.evaluate_outputs(ours, y, target.outputs, weight),
        "nll_constant": -float(weighted_mean(theirs, weight)),
    }
    return scores, _doubt(theirs - own, weight, "constant Gaussian")


def _count_scores_and_doubt(predicted: Counts, rows: Rows) -> tuple[dict[str, float], str]:
    """The constant is a rate of 1, in units of that of all rows, with the dispersion that these have."""
    _, y, offset = rows.y.double().unbind(1)
    weight = None if rows.weight is None else rows.weight.double()
    ours, rate = predicted.double().exposed(offset), offset.exp()
    excess = weighted_mean((y - rate).square() - rate, weight) / weighted_mean(rate.square(), weight)
    one = torch.ones_like(offset)[None]
    simple = Counts(offset[None], NOISE_FLOOR * one, excess.clamp_min(0.0) * one)
    theirs, own = simple.log_prob(y), ours.log_prob(y)
    scores = {**metrics.evaluate(ours, y, weight), "nll_constant": float(-weighted_mean(theirs, weight))}
    return scores, _doubt(theirs - own, weight, "constant rate")


def _class_scores_and_doubt(predicted: Predictive, rows: Rows, shares: Tensor) -> tuple[dict[str, float], str]:
    y, weight = rows.y.double(), None if rows.weight is None else rows.weight.double()
    ours = predicted.double()
    simple = shares.log()[rows.y.long()]
    scores = {**metrics.evaluate(ours, y, weight), "log_loss_constant": -float(weighted_mean(simple, weight))}
    found = {name: value for name, value in scores.items() if math.isfinite(value)}  # one class alone has no AUC
    return found, _doubt(simple - ours.log_prob(y), weight, "constant, the shares of the classes")


def _doubt(loss: Tensor, weight: Tensor | None, constant: str) -> str:
    """A warning, if a model loses more than a constant does, and not by chance."""
    worse, error = mean_and_error(loss, weight)
    shares = _shares(loss, weight)
    enough = float(1.0 / shares.square().sum()) >= _FEWEST_ROWS - 0.5  # as many rows of equal weight
    if not enough or not worse > 2.0 * error:
        return ""
    return (
        f"on the {len(loss)} validation rows this model's NLL is {worse:.3g} nats worse than that of a {constant}: "
        "the inputs may say nothing about the target, or the fit went wrong; try more rows, a smaller "
        "learning_rate, a larger alpha, or another method"
    )
