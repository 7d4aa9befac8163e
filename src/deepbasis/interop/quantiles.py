"""Quantiles of Gaussian mixtures as a graph for other runtimes: no shape depends on a value, and no float64 `erfc`.

Halley's method on the logarithm of the nearer tail's mass, as in `gp/quantiles.py`, kept inside a bracket: in float32
until it is near, then in float64, where one step is mostly enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_CLOSE = 1e-3  # of the smallest standard deviation: what is left after such a step is of its third power
_MOST_STEPS = 200
_PATIENCE = 12
_NEAR, _FEW_STEPS = 1e-2, 12  # in float32, which may not get that near
_DEGREE = 10  # of the polynomial: the relative error of erfc is then 2e-8


class MixtureQuantiles(nn.Module):
    """[n, k] at fixed levels, of sum_e shares_e N(means_e, variances_e) with means and variances [e, n], in float64."""

    shares: Tensor
    sign: Tensor
    level: Tensor
    start: Tensor

    def __init__(self, shares: Tensor, levels: Sequence[float]) -> None:
        super().__init__()
        q = torch.tensor(levels, dtype=torch.float64)[:, None]  # [k, 1]
        self.register_buffer("shares", shares.double())
        self.register_buffer("sign", torch.where(q > 0.5, -1.0, 1.0).double())  # the upper tail of Y is the lower of -Y
        self.register_buffer("level", torch.where(q > 0.5, 1.0 - q, q))
        self.register_buffer("start", torch.special.ndtri(self.level))

    def forward(self, means: Tensor, variances: Tensor) -> Tensor:
        stds = variances.sqrt()
        center = (self.shares[:, None] * means).sum(0)
        away = means - center
        unit = (self.shares[:, None] * (away * away + variances)).sum(0).sqrt()
        # In these units, and with the upper tails turned into lower ones: [e, k, n] and [e, 1, n].
        mixtures = (away / unit)[:, None] * self.sign, (stds / unit)[:, None], self.shares, self.level
        x = self.start.expand(-1, means.shape[1])
        x = _solved(x.float(), [one.float() for one in mixtures], self.start.float(), _NEAR, _FEW_STEPS)
        x = _solved(x.double(), mixtures, self.start, _CLOSE, _MOST_STEPS)
        return (center + unit * self.sign * x).T


def _solved(x: Tensor, mixtures: Sequence[Tensor], score: Tensor, close: float, most: int) -> Tensor:
    """x [k, n] after steps inside a shrinking bracket, until the last was a small one everywhere, or so many."""
    means, stds, shares, level = mixtures

    def going(count: Tensor, moved: Tensor, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return (count < most) & (moved > close * stds.amin(0)).any()

    def step(count: Tensor, moved: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
        by, excess = _step(x, means, stds, shares, level)
        low, high = torch.where(excess < 0.0, x, low), torch.where(excess > 0.0, x, high)
        halve = (count >= _PATIENCE) & (count % 2 == 0) & (moved > close * stds.amin(0))  # where steps only creep
        there = _inside(torch.where(halve, math.nan, x - by), low, high)
        return count + 1, (there - x).abs(), there, low, high

    ends = means + stds * score
    low, high = ends.amin(0), ends.amax(0)  # a mixture's quantile lies between its components'
    x = _inside(x, low, high)
    count = torch.zeros((), dtype=torch.int64)
    found = torch.while_loop(going, step, (count, torch.full_like(x, math.inf), x, low, high))
    return found[2]


def _inside(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x between two ends, or their middle; that of NaN too."""
    return torch.where((x >= low) & (x <= high), x, 0.5 * (low + high))


def _step(x: Tensor, means: Tensor, stds: Tensor, shares: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Halley's for h(x) = log T(x) - log level = 0, T the mass below x (`gp/quantiles.py`); and 2 (T - level).

    Where there is no density at all the step is NaN.
    """
    u = (means - x) / (stds * math.sqrt(2.0))
    tails, densities = _erfc_and_exp(u)
    densities = densities / stds
    weights = shares[:, None, None]
    twice_T, first = (weights * tails).sum(0), (weights * densities).sum(0)
    second = (weights * (densities * u / stds)).sum(0)
    ratio = twice_T / first * math.sqrt(0.5 * math.pi)  # T / T'
    d = (twice_T / (2.0 * level)).log() * ratio
    bend = math.sqrt(2.0) * second / first - 1.0 / ratio
    return d / (1.0 - 0.5 * d * bend).clamp(0.5, 2.0), twice_T - 2.0 * level


def _erfc_and_exp(u: Tensor) -> tuple[Tensor, Tensor]:
    """erfc(u), and exp(-u^2). In float64 erfc is t p(s) exp(-u^2), t = 1 / (1 + u / 2), s = 2 t - 1, for u >= 0."""
    exp = torch.exp(-u * u)
    if u.dtype == torch.float32:
        return torch.erfc(u), exp
    t = 1.0 / (1.0 + 0.5 * u.abs())
    s = 2.0 * t - 1.0
    p = s * _ERFCX[0] + _ERFCX[1]
    for coefficient in _ERFCX[2:]:
        p = p * s + coefficient
    tail = t * p * exp
    return torch.where(u < 0.0, 2.0 - tail, tail), exp


def _erfcx_polynomial() -> list[float]:
    """The coefficients of p, highest power first: Chebyshev's interpolation of erfcx(u) / t."""

    def values(s: NDArray[np.float64]) -> Any:
        t = 0.5 * (s + 1.0)
        return torch.special.erfcx(torch.from_numpy(2.0 / t - 2.0)).numpy() / t

    chebyshev = np.polynomial.chebyshev
    return chebyshev.cheb2poly(chebyshev.chebinterpolate(values, _DEGREE))[::-1].tolist()


_ERFCX = _erfcx_polynomial()
