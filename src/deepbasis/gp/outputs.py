"""Several outputs: m numbers for each row, from m functions on one basis.

Each output has a q(w) and a noise of its own, so its distribution is that of a model of it alone. What is left of them
is joined by a Gaussian copula: with z_k = Phi^-1(F_k(y_k)), F_k the distribution of output k, z ~ N(0, R) and

    log p(y) = sum_k log p_k(y_k) - 1/2 log |R| - 1/2 z^T (R^-1 - I) z.

If all F_k are Gaussian, y is Gaussian with the covariance D R D, D = diag(std). R is found on rows that were held out.
It is not trained: with the same basis for all outputs their means would be the same (Zellner, 1962).

NOTE[DIFF]: the paper has one output.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from deepbasis.errors import InputError, check_number, check_positive_int, check_same_length
from deepbasis.gp.calibration import STEPS, Calibration, calibrate
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.predictive import (
    Gaussian,
    GaussianMixture,
    Levels,
    Predictive,
    Rows,
    Targets,
    Weight,
    as_mixture,
    gaussian_nll,
    ndtr,
)
from deepbasis.gp.quantiles import quantiles_by_row
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import normal_rule

MOST_OUTPUTS = 64
"""Of one model."""

_SHRINKING_ROWS = 10.0  # pseudo-rows of outputs that have nothing to do with each other
_LEAST_SHARE = 1e-4  # of them, at least: R has an inverse
_FARTHEST = 8.0  # a score z: a cdf has no digits beyond
_TERMS = 24  # of the series of a covariance
_NODES = 8.0  # to a unit, of the quadrature of its coefficients
_MOST_NUMBERS = 1 << 22  # held at a time


class OutputsLikelihood(GaussianLikelihood):
    """y_k ~ N(f_k, s_k) for each of m outputs; y, means and variances are [b, m]."""

    own_covariances = True
    """Each function has a q(w) of its own, covariance and all."""
    separable = True
    """The density is a product over the functions: each can learn on by itself."""

    def __init__(self, noise: float | None = 1e-2, *, outputs: int = 0) -> None:
        super().__init__(noise)
        if not 1 <= outputs <= MOST_OUTPUTS:
            raise InputError(
                f'likelihood "outputs" is for 1 to {MOST_OUTPUTS} outputs, got {outputs}: give y as [n, m]'
            )
        self.latents = outputs
        self.raw = nn.Parameter(self.raw.detach().repeat(outputs))

    def noises(self) -> Float[Tensor, " m"]:
        """s_k = floor + exp(raw_k)"""
        return self.floor + self.raw.exp()

    def noise(self) -> Float[Tensor, ""]:
        """1 / sum_k 1 / s_k: in units of it, the trace regulariser is the sum of those of all outputs."""
        return self.noises().reciprocal().sum().reciprocal()

    def log_density(
        self, y: Float[Tensor, "b m"], mean: Float[Tensor, "b m"], var: Float[Tensor, "b m"]
    ) -> Float[Tensor, " b"]:
        """sum_k log N(y_k; mean_k, var_k + s_k)"""
        return -gaussian_nll(y, mean, var + self.noises()).sum(-1)

    def expected_log_density(
        self, y: Float[Tensor, "b m"], mean: Float[Tensor, "b m"], var: Float[Tensor, "b m"]
    ) -> Float[Tensor, " b"]:
        s = self.noises()
        return (-gaussian_nll(y, mean, s) - var / (2.0 * s)).sum(-1)

    def curvature(self, var: Float[Tensor, "b m"]) -> Float[Tensor, "b m"]:
        """1 / (var_k + s_k): of -`log_density` in the mean of each function."""
        return 1.0 / (var + self.noises())

    def predictive(self, mean: Float[Tensor, "b m"], var: Float[Tensor, "b m"]) -> tuple[Tensor, Tensor]:
        return mean, var + self.noises()

    @staticmethod
    def distribution(*parts: Tensor) -> "Outputs":
        each = zip(*(part.unbind(-1) for part in parts), strict=True)
        return Outputs(tuple(GaussianLikelihood.distribution(*of_one) for of_one in each))


@dataclass(frozen=True)
class Outputs(Predictive):
    """The distribution of m numbers for each of n rows. Where a `Predictive` has [n], this has [n, m].

    `log_prob` is that of all outputs together, [n], and `sample` draws them together.
    """

    each: tuple[Predictive, ...]
    """The distribution of each output."""
    correlation: Float[Tensor, "m m"] | None = None
    """R; None: the outputs of a row are independent."""

    def __len__(self) -> int:
        return len(self.each[0])

    def __getitem__(self, rows: Rows) -> "Outputs":
        return replace(self, each=tuple(one[rows] for one in self.each))

    def double(self) -> "Outputs":
        return replace(self, each=tuple(one.double() for one in self.each))

    def followed_by(self, others: Sequence[Predictive]) -> "Outputs":
        alike = [other for other in others if isinstance(other, Outputs) and len(other.each) == len(self.each)]
        if len(alike) < len(others):
            raise InputError("rows can only be followed by rows of one kind: some of these have other outputs")
        parts = zip(self.each, *(other.each for other in alike), strict=True)
        return replace(self, each=tuple(first.followed_by(more) for first, *more in parts))

    @property
    def mean(self) -> Float[Tensor, "n m"]:
        return torch.stack([one.mean for one in self.each], 1)

    @property
    def variance(self) -> Float[Tensor, "n m"]:
        return torch.stack([one.variance for one in self.each], 1)

    def cdf(self, y: Targets) -> Float[Tensor, "n m"]:
        return torch.stack([one.cdf(column) for one, column in self._columns(y)], 1)

    def crps(self, y: Targets) -> Float[Tensor, "n m"]:
        return torch.stack([one.crps(column) for one, column in self._columns(y)], 1)

    def quantile(self, q: Levels) -> Float[Tensor, "n m"] | Float[Tensor, "n m k"]:
        return torch.stack([one.quantile(q) for one in self.each], 1)

    def log_prob_of_each(self, y: Targets) -> Float[Tensor, "n m"]:
        return torch.stack([one.log_prob(column) for one, column in self._columns(y)], 1)

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        """Of all outputs together."""
        found = self.log_prob_of_each(y).sum(1)
        if self.correlation is None:
            return found
        z = self.scores(y)
        L = torch.linalg.cholesky(self.correlation.to(z))
        e = torch.linalg.solve_triangular(L, z.mT, upper=False)  # R^-1 = L^-T L^-1
        return found - L.diagonal().log().sum() - 0.5 * (e.square().sum(0) - z.square().sum(1)).to(found.dtype)

    def scores(self, y: Targets) -> Float[Tensor, "n m"]:
        """z_k = Phi^-1(F_k(y_k)), at most 8: of a Gaussian the distance from its mean in standard deviations."""
        z = [_score(one, column) for one, column in self._columns(y)]
        return torch.stack(z, 1).clamp(-_FARTHEST, _FARTHEST)

    def covariance(self) -> Float[Tensor, "n m m"]:
        """Between the outputs of each row.

        Of y_j = F_j^-1(Phi(z_j)) and y_k it is sum_p R_jk^p c_jp c_kp, where c_kp = E[y_k He_p(z)] / sqrt(p!) are the
        coefficients of y_k in Hermite polynomials (Mehler's formula). Of a Gaussian only c_k1 is not zero.
        """
        nodes, shares = normal_rule(torch.zeros((), dtype=torch.float64), _NODES)
        y = self.quantile(ndtr(nodes)).double()
        before, polynomial = torch.zeros_like(nodes), torch.ones_like(nodes)
        total = torch.zeros(*y.shape[:2], y.shape[1], dtype=y.dtype)
        R = torch.eye(y.shape[1], dtype=y.dtype) if self.correlation is None else self.correlation.to(y)
        for p in range(1, _TERMS + 1):  # sqrt(p) h_p = z h_(p-1) - sqrt(p - 1) h_(p-2)
            before, polynomial = polynomial, (nodes * polynomial - math.sqrt(p - 1) * before) / math.sqrt(p)
            c = y @ (shares * polynomial).to(y)
            total += R.pow(p) * c[:, :, None] * c[:, None, :]
        total.diagonal(dim1=1, dim2=2).copy_(self.variance)  # the whole series
        return total

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n m"]:
        """Draws of all outputs together, independent between rows."""
        m, n = len(self.each), len(self)
        z = torch.randn(check_positive_int("count", count), n, m, dtype=torch.float64, generator=generator)
        if self.correlation is not None:
            z = z @ torch.linalg.cholesky(self.correlation.to(z)).mT
        return torch.stack([_at_scores(one, z[:, :, k]) for k, one in enumerate(self.each)], 2)

    def _columns(self, y: Targets) -> list[tuple[Predictive, Tensor]]:
        """Each output with its targets."""
        found = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y, dtype=np.float64))
        if found.shape != (len(self), len(self.each)):
            raise InputError(
                f"y must have {len(self.each)} numbers for each of {len(self)} rows, got shape {list(found.shape)}"
            )
        return list(zip(self.each, found.unbind(1), strict=True))


def _score(predicted: Predictive, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """From the nearer tail of a mixture, where the cdf has its digits."""
    if isinstance(predicted, Warped):
        return _score(predicted.base, predicted.warp.forward(y))
    if isinstance(predicted, Gaussian):
        return (y - predicted.mean) / predicted.std
    one = as_mixture(predicted).double()
    mirrored = GaussianMixture(-one.means, one.variances, one.weights)
    below, above = one.cdf(y.double()), mirrored.cdf(-y.double())
    return torch.where(below < above, torch.special.ndtri(below), -torch.special.ndtri(above))


def _at_scores(predicted: Predictive, z: Float[Tensor, "s n"]) -> Float[Tensor, "s n"]:
    """F^-1(Phi(z)) of each row, for s scores of it."""
    if isinstance(predicted, Warped):
        return predicted.warp.inverse(_at_scores(predicted.base, z))
    if isinstance(predicted, Gaussian):
        return predicted.mean + predicted.std * z.to(predicted.mean.dtype)
    one = as_mixture(predicted).double()
    at_a_time = max(1, _MOST_NUMBERS // max(1, one.means.numel()))
    return torch.cat([quantiles_by_row(one.means, one.variances, one.shares, some) for some in z.split(at_a_time)])


@dataclass(frozen=True)
class OutputsCalibration:
    """What held-out rows say of several outputs: how each is calibrated, and how what is left of them correlates."""

    each: tuple[Calibration, ...]
    """Of every output; none if they are not calibrated."""
    correlation: tuple[tuple[float, ...], ...]
    rows: float = 0.0
    """That the correlation rests on, by their weight."""

    def __post_init__(self) -> None:
        check_number("the rows of a correlation", self.rows, at_least=0.0)
        m = len(self.correlation)
        R = torch.tensor(self.correlation, dtype=torch.float64)
        if not 1 <= m <= MOST_OUTPUTS or R.shape != (m, m) or len(self.each) not in (0, m):
            raise InputError(f"a correlation of outputs is a square of up to {MOST_OUTPUTS}, with as many calibrations")
        for number in R.flatten().tolist():
            check_number("a correlation", number)
        symmetric = torch.allclose(R, R.mT, atol=1e-12) and torch.allclose(R.diagonal(), R.new_ones(()))
        if not symmetric or int(torch.linalg.cholesky_ex(R).info):
            raise InputError("a correlation of outputs must be symmetric and positive definite, with a diagonal of 1")

    @classmethod
    def from_state(cls, found: Any) -> "OutputsCalibration":
        """What `asdict` gave, as JSON has it. Anything else is a `ValueError`."""
        if not isinstance(found, dict) or found.keys() != {"each", "correlation", "rows"}:
            raise ValueError("its calibration of several outputs has other parts")
        lists = (found["each"], found["correlation"])
        if not all(isinstance(part, list) and len(part) <= MOST_OUTPUTS for part in lists):
            raise ValueError("its calibration of several outputs is not of lists")
        each = [Calibration.from_state(one) for one in found["each"]]
        rows = found["correlation"]
        if None in each or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
            raise ValueError("its calibration of several outputs has gaps")
        if not all(type(number) is float for row in (*rows, [found["rows"]]) for number in row):
            raise ValueError("its correlation of outputs is not of numbers")
        return cls(tuple(one for one in each if one is not None), tuple(tuple(row) for row in rows), found["rows"])

    @property
    def scales(self) -> tuple[float, ...]:
        return max((one.scales for one in self.each), key=len, default=(1.0,))

    @property
    def mean_scale(self) -> float:
        """In mean over the outputs."""
        return math.fsum(one.mean_scale for one in self.each) / len(self.each) if self.each else 1.0

    def apply(self, predicted: Predictive) -> Outputs:
        assert isinstance(predicted, Outputs)  # its likelihood gives nothing else
        R = torch.tensor(self.correlation, dtype=torch.float64)
        each = predicted.each
        if self.each:
            each = tuple(how.apply(one) for how, one in zip(self.each, each, strict=True))
        return Outputs(each, R)


def calibrate_outputs(
    predicted: Predictive,
    y: Float[Tensor, "n m"],
    weight: Weight = None,
    *,
    scales: bool = True,
    steps: int = STEPS,
    before: OutputsCalibration | None = None,
) -> OutputsCalibration:
    """From rows that the model was not trained on: with `scales`, the calibration of each output; and R.

    R = (sum_i w_i z_i z_i^T + c I) / (sum_i w_i + c), made to have a diagonal of 1: c = 10 pseudo-rows of outputs that
    are independent. `before` is a calibration by other rows: as many as it rests on, with its R, take the place of c I.
    """
    assert isinstance(predicted, Outputs)
    check_same_length("y", y, "the prediction", predicted.mean)
    each: tuple[Calibration, ...] = ()
    if scales:
        known = before.each if before is not None else [None] * len(predicted.each)
        parts = zip(predicted.each, y.unbind(1), known, strict=True)
        each = tuple(calibrate(one, column, weight, steps=steps, before=was) for one, column, was in parts)
    m = len(predicted.each)
    alone = OutputsCalibration(each, tuple(map(tuple, torch.eye(m, dtype=torch.float64).tolist())))
    z = replace(alone.apply(predicted.double()), correlation=None).scores(y.double())
    w = torch.ones_like(z[:, 0]) if weight is None else weight.double()
    if before is None:
        pseudo = float(torch.maximum(w.new_tensor(_SHRINKING_ROWS), _LEAST_SHARE * w.sum()))
        known_squares = pseudo * torch.eye(m, dtype=z.dtype)
    else:
        pseudo = before.rows
        known_squares = pseudo * torch.tensor(before.correlation, dtype=z.dtype)
    squares = z.mT @ (w[:, None] * z) + known_squares
    size = squares.diagonal().sqrt()
    R = squares / size / size[:, None]
    R = (0.5 * (R + R.mT)).fill_diagonal_(1.0)
    return OutputsCalibration(each, tuple(map(tuple, R.tolist())), pseudo + float(w.sum()))
