"""Held-out rows: how much each counts, and how a model scores on them.

NOTE[DIFF]: in the paper, and with `recipe="paper"`, all members hold out the same rows, and each counts once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from deepbasis.engine.batches import Rows
from deepbasis.gp import metrics
from deepbasis.gp.likelihoods import NOISE_FLOOR
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.predictive import Gaussian, Predictive
from deepbasis.tables.table import row_labels
from deepbasis.tables.targets import TargetScaler

_FEWEST_ROWS = 30  # fewer held-out rows say nothing about a model


@dataclass(frozen=True)
class Fold:
    """Rows that some members are fitted to, and the rows that they hold out: plain, and weighted for selection."""

    data: Rows
    held_out: Rows
    selecting: Rows


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


def baseline(rows: Rows) -> Gaussian:
    """The constant Gaussian that a model should be better than: mean and variance of the targets it was fitted to."""
    mean = weighted_mean(rows.y, rows.weight)
    return Gaussian(mean[None], weighted_mean((rows.y - mean).square(), rows.weight)[None])


def scores_and_doubt(
    predicted: Predictive, rows: Rows, constant: Gaussian, target: TargetScaler
) -> tuple[dict[str, float], str]:
    """The metrics of held-out rows, in the target's units, and a warning if a constant Gaussian predicts better.

    `constant` is in the units that the target is trained in.
    """
    y, weight = rows.y.double(), None if rows.weight is None else rows.weight.double()
    exactly = predicted.double()
    scores = metrics.evaluate(exactly.affine(target.scale, target.mean), y * target.scale + target.mean, weight)
    variance = constant.variance.double().clamp_min(NOISE_FLOOR)
    simple = Gaussian(constant.mean.double().expand_as(y), variance.expand_as(y))
    scores["nll_constant"] = float(metrics.nll(simple, y, weight)) + math.log(target.scale)
    loss = simple.log_prob(y) - exactly.log_prob(y)
    worse = weighted_mean(loss, weight)
    shares = torch.full_like(loss, 1.0 / len(loss)) if weight is None else weight / weight.sum()
    error = (shares * (loss - worse)).square().sum().sqrt()
    enough = float(1.0 / shares.square().sum()) >= _FEWEST_ROWS - 0.5  # as many rows of equal weight
    # For a constant target nothing is better than the constant.
    if not enough or not worse > 2.0 * error or float(constant.variance) <= NOISE_FLOOR:
        return scores, ""
    return scores, (
        f"on the {len(loss)} validation rows this model's NLL is {float(worse):.3g} nats worse than that of a constant "
        "Gaussian: the inputs may say nothing about the target, or the fit went wrong; try more rows, a smaller "
        "learning_rate, a larger alpha, or another method"
    )
