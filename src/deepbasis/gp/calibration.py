"""Calibration: a mixture of scales of the predictive variance, fitted to rows that the model was not trained on.

Residuals have heavier tails than a Gaussian: most are smaller than the model says, a few far larger. One factor for all
variances cannot describe this; a few weighted factors can.

Of classes the same factors are temperatures of the latent numbers: a small share of a large one leaves room for labels
that are wrong.

NOTE[DIFF]: the paper predicts with the Gaussian itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError, NumericalError, check_number, check_same_length, check_tensor
from deepbasis.gp.classes import Classes
from deepbasis.gp.predictive import GaussianMixture, Predictive, Weight, as_mixture

PRIOR_SCALES = (0.25, 1.0, 16.0)
PRIOR_WEIGHTS = (0.1, 0.88, 0.02)
"""Where the fit starts; with few rows it ends nearby."""
CLASS_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 64.0)
"""Of classes, whose scales are given and whose weights are fitted."""
MOST_ROWS = 20_000
"""Rows that a calibration uses at most."""
MOST_SCALES = 8
"""Scales that a `Calibration` may have at most."""

_SCALE_ROWS = 10.0  # pseudo-rows that support each prior scale
_WEIGHT_ROWS = 6.0  # pseudo-rows that support the prior weights, in total
STEPS = 100  # always: the result is then a smooth function of the rows and their weights
_LEAST_WEIGHT, _SMALLEST = 5e-3, 1e-300  # of a scale of classes
_LARGEST_SCALE = 1e16  # a `Calibration` may have: far beyond any that is found
_LARGEST_SQUARE = 1e12  # of a standardised residual: scaled variances stay finite, in float32 too


@dataclass(frozen=True)
class Calibration:
    """Every predicted N(mean, variance) becomes the mixture sum_k weights_k N(mean, scales_k variance)."""

    scales: tuple[float, ...]
    weights: tuple[float, ...]
    rows: float = 0.0
    """That it was fitted to, by their weight."""

    def __post_init__(self) -> None:
        check_number("the rows of a calibration", self.rows, at_least=0.0)
        if not 0 < len(self.scales) == len(self.weights) <= MOST_SCALES:
            raise InputError(
                f"a calibration has from 1 to {MOST_SCALES} scales and as many weights, "
                f"got {len(self.scales)} and {len(self.weights)}"
            )
        for scale, weight in zip(self.scales, self.weights, strict=True):
            if check_number("a scale", scale, above=0.0) > _LARGEST_SCALE or scale < 1.0 / _LARGEST_SCALE:
                raise InputError(
                    f"a scale must lie between {1.0 / _LARGEST_SCALE:g} and {_LARGEST_SCALE:g}, got {scale!r}"
                )
            check_number("a scale's weight", weight, at_least=0.0)
        if abs(sum(self.weights) - 1.0) > 1e-9:
            raise InputError(f"the weights of the scales must sum to 1, got {self.weights}")

    @classmethod
    def from_state(cls, found: Any) -> "Calibration | None":
        """What `asdict` gave, as JSON has it; None stays None. Anything else is a `ValueError`."""
        if found is None:
            return None
        if not isinstance(found, Mapping) or found.keys() != {one.name for one in fields(cls)}:
            raise ValueError("its calibration has no scales and weights, or has more")
        scales, weights = found["scales"], found["weights"]
        if not isinstance(scales, list) or not isinstance(weights, list):
            raise ValueError("its calibration is not of lists")
        others = [number for name, number in found.items() if name not in ("scales", "weights")]
        if not all(type(number) is float for number in (*scales, *weights, *others)):
            raise ValueError("its calibration is not of numbers")
        return cls(**{**found, "scales": tuple(scales), "weights": tuple(weights)})

    @property
    def mean_scale(self) -> float:
        """What the variance of a Gaussian is multiplied by."""
        return sum(weight * scale for scale, weight in zip(self.scales, self.weights, strict=True))

    def apply(self, predicted: Predictive) -> GaussianMixture | Classes:
        """All components with the first scale, then all with the second, ..."""
        members = predicted if isinstance(predicted, Classes) else as_mixture(predicted)
        scales, weights = _tensor((self.scales, self.weights), members.means)[:, :, None]
        variances = (scales.to(members.variances.dtype)[..., None] * members.variances).flatten(0, 1)
        means = torch.cat([members.means] * len(self.scales))
        return type(members)(means, variances, (weights * members.shares).flatten())


def calibrate(
    predicted: Predictive,
    y: Float[Tensor, " n"],
    weight: Weight = None,
    *,
    steps: int = STEPS,
    before: Calibration | None = None,
) -> Calibration:
    """The scales s_k and weights pi_k that fit the targets y of rows that the model was not trained on.

    EM for the largest penalised likelihood, with z_ie^2 = (y_i - mean_ie)^2 / variance_ie:

        sum_i w_i log sum_k pi_k mean_e N(y_i; mean_ie, s_k variance_ie)
            + sum_k a_k log pi_k - n0 / 2 sum_k (log s_k + start_k / s_k)

    The second line is a prior: n0 = 10 pseudo-rows for each starting scale, and 6 for the starting weights. A row
    of weight k counts as k rows. Of more than `MOST_ROWS` rows every m-th is used.

    `before` is a calibration by other rows, which stand beside these as what they are in EM: pi_k of them for scale k.
    """
    check_tensor("y", y, 1)
    if isinstance(predicted, Classes):
        return _calibrate_classes(predicted, y, weight, steps)
    check_same_length("y", y, "the prediction", predicted.mean)
    members, every = as_mixture(predicted), -(-len(y) // MOST_ROWS)
    means, variances = members.means[:, ::every].double(), members.variances[:, ::every].double()
    if not bool((means + variances.log()).isfinite().all()):
        raise NumericalError("there are predictions that are not finite: their variance cannot be calibrated")
    squares = ((y[::every].double() - means) / variances.sqrt()).square().clamp_max(_LARGEST_SQUARE)
    w = torch.ones_like(squares[0]) if weight is None else weight[::every].double()
    counted = torch.stack([w.expand_as(squares), w * squares], -1).flatten(0, 1)  # [e n, 2]
    log_shares = members.shares.log()[:, None] - 0.5 * variances.log()
    known = before or Calibration(PRIOR_SCALES, PRIOR_WEIGHTS)
    start, prior = _tensor(known.scales, squares), _tensor(known.weights, squares)
    scale_rows, weight_rows = _SCALE_ROWS + known.rows * prior, (_WEIGHT_ROWS + known.rows) * prior
    scales, weights = start, prior
    for _ in range(steps):
        log_scaled = (weights.log() - 0.5 * scales.log())[:, None, None] + log_shares
        exponents = log_scaled - (0.5 / scales)[:, None, None] * squares
        r = torch.softmax(exponents.flatten(0, 1), 0).reshape(len(scales), -1)  # [k, e n]
        rows, sums = (r @ counted).unbind(-1)
        scales = (sums + scale_rows * start) / (rows + scale_rows)
        weights = (rows + weight_rows) / (rows + weight_rows).sum()
    return Calibration(tuple(scales.tolist()), tuple(weights.tolist()), known.rows + math.fsum(w.tolist()))


def _calibrate_classes(
    predicted: Classes, y: Float[Tensor, " n"], weight: Float[Tensor, " n"] | None, steps: int
) -> Calibration:
    """EM for the weights of `CLASS_SCALES`; pseudo-rows support the scale 1. Scales that hardly count are left out."""
    every = -(-len(y) // MOST_ROWS)
    some = predicted[::every].double()
    y = y[::every].double()
    scaled = [Calibration((scale,), (1.0,)).apply(some).log_prob(y) for scale in CLASS_SCALES]
    logs = torch.stack(scaled)  # [k, n]
    if not bool(logs.isfinite().all()):
        raise NumericalError("there are predictions that are not finite: they cannot be calibrated")
    w = torch.ones_like(y) if weight is None else weight[::every].double()
    prior = _WEIGHT_ROWS * _tensor(tuple(float(scale == 1.0) for scale in CLASS_SCALES), y)
    weights = torch.full_like(prior, 1.0 / len(prior))
    for _ in range(steps):
        rows = torch.softmax(weights.clamp_min(_SMALLEST).log()[:, None] + logs, 0) @ w
        weights = (rows + prior) / (w.sum() + _WEIGHT_ROWS)
    kept = weights >= _LEAST_WEIGHT
    weights = weights[kept] / weights[kept].sum()
    scales = [scale for scale, keep in zip(CLASS_SCALES, kept.tolist(), strict=True) if keep]
    shares = (weights / math.fsum(weights.tolist())).tolist()
    return Calibration(tuple(scales), tuple(shares), math.fsum(w.tolist()))


def _tensor(values: tuple[Any, ...], like: Tensor) -> Float[Tensor, "*k"]:
    return torch.tensor(values, dtype=torch.float64, device=like.device)
