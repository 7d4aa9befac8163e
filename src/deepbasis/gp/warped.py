"""`Warped`: the predictive distribution of a target y, of which g(y) has a distribution that is known (`gp/warps.py`).

Quantiles, intervals and draws are those of g(y), mapped back; the density has the slope of g as a factor. Mean,
variance and CRPS are those of y itself, by quadrature.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.predictive import (
    Gaussian,
    GaussianMixture,
    Levels,
    Predictive,
    Rows,
    Targets,
    as_mixture,
    as_targets,
    ndtr,
)
from deepbasis.gp.warps import Warp, normal_rule

_NUMBERS_AT_A_TIME = 2**19  # of the quadratures
# Standard deviations: ends of panels around a Gaussian.
_REACH = (-8.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
_MOST_ENDS = 96
_LEGENDRE = np.polynomial.legendre.leggauss(4)  # in each panel


@dataclass(frozen=True)
class Warped(Predictive):
    """y for each of n rows, where g(y) is distributed as `base`."""

    base: Predictive
    warp: Warp

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Rows) -> "Warped":
        return Warped(self.base[rows], self.warp)

    def double(self) -> "Warped":
        return Warped(self.base.double(), self.warp)

    def followed_by(self, others: Sequence[Predictive]) -> "Warped":
        warped = [other for other in others if isinstance(other, Warped) and other.warp == self.warp]
        if len(warped) < len(others):
            raise InputError("rows can only be followed by rows of one kind: some of these have another warp")
        return Warped(self.base.followed_by([other.base for other in warped]), self.warp)

    @property
    def mean(self) -> Float[Tensor, " n"]:
        return self._moments[0]

    @property
    def variance(self) -> Float[Tensor, " n"]:
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        mean, variance = _by_rows(lambda some: some._moments_of_rows(), self, 64)
        return mean, variance

    def _moments_of_rows(self) -> Float[Tensor, "2 n"]:
        if isinstance(self.base, Gaussian | GaussianMixture):
            members = as_mixture(self.base)
            moments = [self.warp.moments(m, v.sqrt()) for m, v in zip(members.means, members.variances, strict=True)]
            means, variances = (torch.stack(one) for one in zip(*moments, strict=True))
            within = GaussianMixture(means, variances, members.weights)
            return torch.stack([within.mean, within.variance])
        nodes, shares = normal_rule(self.base.mean)
        y = self.warp.inverse(self.base.quantile(ndtr(nodes)))  # [n, q]
        mean = y @ shares
        return torch.stack([mean, (y - mean[:, None]).square() @ shares])

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        values, u = self._placed(y)
        inside = torch.where(values <= self.warp.low, 0.0, self.base.cdf(u))
        return torch.where(values.isnan(), math.nan, torch.where(values >= self.warp.high, 1.0, inside))

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        """log p(g(y)) + log g'(y); nothing lies outside of the warp's bounds."""
        values, u = self._placed(y)
        outside = (values <= self.warp.low) | (values >= self.warp.high)
        found = torch.where(outside, -math.inf, self.base.log_prob(u) - self.warp.log_slope(u))
        return torch.where(values.isnan(), math.nan, found)

    def quantile(self, q: Levels) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        return self.warp.inverse(self.base.quantile(q))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        return self.warp.inverse(self.base.sample(count, generator))

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """The integral of (F(v) - 1[v >= y])^2 dv, with v = h(u), in panels that no bend of F or h crosses.

        Where F is 0 or 1 to the last digit, what is left between y and there counts in full.
        """
        values, u = self._placed(y)
        numbers = (len(self.warp.knots) + _MOST_ENDS) * len(_LEGENDRE[0])
        return _by_rows(lambda some, v, at: some._crps_of_rows(v, at), self, numbers, values, u)[0]

    def _crps_of_rows(self, y: Float[Tensor, " n"], u: Float[Tensor, " n"]) -> Float[Tensor, "1 n"]:
        ends = self._ends()
        low, high = ends.amin(0), ends.amax(0)
        knots = torch.tensor(self.warp.knots, dtype=u.dtype, device=u.device)[:, None].expand(-1, len(u))
        at = u.clamp(low, high)
        edges = torch.cat([ends, knots.clamp(low, high), at[None]]).sort(0).values
        nodes, shares = (torch.from_numpy(one).to(u) for one in _LEGENDRE)
        half = 0.5 * edges.diff(dim=0)
        points = (edges[:-1] + half)[:, None] + half[:, None] * nodes[:, None]  # [panels, nodes, n]
        squares = self._tail(points, points < at).square()
        inside = (squares * self.warp.log_slope(points).exp() * half[:, None] * shares[:, None]).sum((0, 1))
        return (inside + (y - self.warp.inverse(at)).abs())[None]

    def _ends(self) -> Float[Tensor, "k n"]:
        """Ends of panels in which the cdf of u is smooth."""
        reach = torch.tensor(_REACH, dtype=torch.float64)
        if isinstance(self.base, Gaussian | GaussianMixture):
            members = as_mixture(self.base)
            steps = reach.to(members.means)[:, None, None] * members.variances.sqrt()
            ends = (members.means + steps).flatten(0, 1).sort(0).values
            some = ends[:: -(-len(ends) // _MOST_ENDS)]
            return torch.cat([some, ends[-1:]])
        return self.base.quantile(ndtr(reach)).T

    def _tail(self, u: Float[Tensor, "p q n"], lower: Bool[Tensor, "p q n"]) -> Float[Tensor, "p q n"]:
        """cdf(u) for the lower tail and 1 - cdf(u) for the upper one, each with the digits of a small number."""
        if not isinstance(self.base, Gaussian | GaussianMixture):
            below = torch.stack([self.base.cdf(one) for one in u.flatten(0, 1)]).view_as(u)
            return torch.where(lower, below, 1.0 - below)
        members, found = as_mixture(self.base), torch.zeros_like(u)
        sign = torch.where(lower, -math.sqrt(0.5), math.sqrt(0.5)).to(u)
        for share, mean, variance in zip(members.shares.tolist(), members.means, members.variances, strict=True):
            found += 0.5 * share * torch.erfc(sign * (u - mean) / variance.sqrt())
        return found

    def _placed(self, y: Targets) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """y as a tensor, and g(y); that of a number in place of NaN, which has no place among the knots."""
        values = as_targets(y, self.base.mean)
        return values, self.warp.forward(torch.where(values.isnan(), 1.0, values))


def _by_rows(
    work: Callable[..., Float[Tensor, "k n"]], rows: Warped, numbers: int, *more: Float[Tensor, " n"]
) -> Float[Tensor, "k n"]:
    """Some rows after the others: a row takes `numbers` of memory."""
    some = max(1, _NUMBERS_AT_A_TIME // numbers)
    parts = [slice(first, first + some) for first in range(0, len(rows), some)]
    return torch.cat([work(rows[part], *(one[part] for one in more)) for part in parts], 1)
