"""The rows to validate on: who holds out which, how much each has to say, and what they say in the end.

NOTE[DIFF]: in the paper, and with `recipe="paper"`, all members hold out the same rows, and each counts once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.gp import metrics
from deepbasis.gp.model import NOISE_FLOOR
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.predictive import Gaussian, GaussianMixture
from deepbasis.tables.table import row_labels
from deepbasis.tables.targets import TargetScaler

_HEALTH_ROWS = 30  # fewer validation rows say nothing


def fair_say(rows: Rows, most: float | None) -> Rows:
    """The rows, weighted so that no input counts for more than `most` average ones, however many copies it has.

    A model is right or wrong about all copies of an input at once: they tell of one place. Half of a validation set may
    be copies of one input, and would then choose and calibrate a model for that input alone. None changes nothing. A
    row of weight k is as good as k copies.
    """
    if most is None:
        return rows
    input_of = torch.from_numpy(row_labels(rows.x.numpy()))
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    of_input = torch.zeros(int(input_of.max()) + 1, dtype=torch.float64).index_add_(0, input_of, weight)
    # With the k largest cut down to a limit, the average is (k limit + rest) / inputs, and the limit `most` times that.
    # Of all k the right one gives the lowest limit.
    largest = of_input[of_input > 0].sort(descending=True).values
    k = torch.arange(len(largest), dtype=torch.float64)
    rest = largest.flip(0).cumsum(0).flip(0)
    limit = (most * rest / (len(largest) - most * k))[most * k < len(largest)].min()
    share = (limit / of_input[input_of]).clamp_max(1.0)
    if bool((share == 1.0).all()):
        return rows
    return replace(rows, weight=(weight * share).to(rows.y.dtype))


class Fold(NamedTuple):
    """Rows to fit some members to, and the rows that these hold out: as they are, and as they select."""

    data: Rows
    held_out: Rows
    judges: Rows


def joined(lots: Sequence[Rows]) -> Rows:
    """The rows of one after another."""
    if len(lots) == 1:
        return lots[0]
    weights = [rows.weight for rows in lots if rows.weight is not None]  # all have one, or none
    return Rows(
        torch.cat([rows.x for rows in lots]),
        torch.cat([rows.y for rows in lots]),
        torch.cat(weights) if weights else None,
    )


def joined_predictions(lots: Sequence[GaussianMixture]) -> GaussianMixture:
    """The same of what is predicted for them by equal mixtures, of as many components each as all have."""
    count = min(len(mixture.means) for mixture in lots)
    return GaussianMixture(
        torch.cat([mixture.means[:count] for mixture in lots], 1),
        torch.cat([mixture.variances[:count] for mixture in lots], 1),
    )


def looked_at(
    predicted: GaussianMixture, rows: Rows, mean: Tensor, variance: Tensor, target: TargetScaler
) -> tuple[dict[str, float], str]:
    """The metrics of rows held out, in the target's units, and what there is to doubt, if anything.

    The health check: are these rows predicted better than by one Gaussian, that of the training rows, whose `mean` and
    `variance` are in the units that the target is trained in?
    """
    y, weight = rows.y.double(), None if rows.weight is None else rows.weight.double()
    # In double precision: beside a large mean float32 has no digits left for what varies.
    exactly = GaussianMixture(predicted.means.double(), predicted.variances.double(), predicted.weights)
    found = metrics.evaluate(exactly.affine(target.scale, target.mean), y * target.scale + target.mean, weight)
    constant = Gaussian(*(value.double().expand_as(y) for value in (mean, variance.clamp_min(NOISE_FLOOR))))
    found["nll_constant"] = float(metrics.nll(constant, y, weight)) + math.log(target.scale)
    loss = constant.log_prob(y) - exactly.log_prob(y)
    worse = weighted_mean(loss, weight)
    shares = torch.full_like(loss, 1.0 / len(loss)) if weight is None else weight / weight.sum()
    error = (shares * (loss - worse)).square().sum().sqrt()
    enough = float(1.0 / shares.square().sum()) >= _HEALTH_ROWS - 0.5  # as many rows of one weight
    # Of a constant target there is nothing better than the constant.
    if not enough or not worse > 2.0 * error or variance <= NOISE_FLOOR:
        return found, ""
    return found, (
        f"on the {len(loss)} validation rows this model's NLL is {float(worse):.3g} nats worse than that of a constant "
        "Gaussian: the inputs may say nothing about the target, or the fit went wrong; try more rows, a smaller "
        "learning_rate, a larger alpha, or another method"
    )
