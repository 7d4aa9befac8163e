"""`Discrete`: the predictive distribution of a count or a rating, whose latent number has a known distribution."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.intervals import log_mass
from deepbasis.gp.predictive import (
    Gaussian,
    GaussianMixture,
    Levels,
    Predictive,
    Rows,
    Targets,
    as_targets,
    ndtr,
)

KINDS = ("count", "ordinal")
MOST_VALUES = 256
_OUTERMOST = 30.0  # of the edges, which are normal scores


@dataclass(frozen=True)
class Steps:
    """y takes the k-th of `values` where its latent number u lies between the edges k - 1 and k."""

    kind: str
    """"count" or "ordinal"."""
    values: tuple[float, ...]
    edges: tuple[float, ...]
    """One fewer than values: below the first edge y takes the first value, above the last edge the last."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not 2 <= len(self.values) == len(self.edges) + 1 <= MOST_VALUES:
            raise InputError(f"steps are for 2 to {MOST_VALUES} values, with an edge between each two")
        bounds = (-_OUTERMOST, *self.edges, _OUTERMOST)
        if not all(one < other for numbers in (self.values, bounds) for one, other in pairwise(numbers)):
            raise InputError("values and edges of steps must increase")

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, record: Mapping[str, Any]) -> "Steps":
        return cls(record["kind"], *(tuple(float(one) for one in record[name]) for name in ("values", "edges")))

    def check(self, y: NDArray[np.float64]) -> None:
        """Refuse what is no value. A count may be larger than any that was seen: it is taken for the largest."""
        known = np.isin(y, self.values)
        if self.kind == "count":
            known |= (y > self.values[-1]) & (y == np.floor(y))
        if not known.all():
            row = int(np.argmin(known))
            what = "a count is a whole number from 0" if self.kind == "count" else "no row to fit has this rating"
            raise InputError(f"y is {y[row]:g} in row {row}: {what}")

    @cached_property
    def scores(self) -> Float[Tensor, " k"]:
        """A latent number for each value: the median of a normal variable between its edges."""
        ends = torch.tensor([-math.inf, *self.edges, math.inf], dtype=torch.float64)
        low, high = ends[:-1], ends[1:]
        upper = low + high.clamp_max(_OUTERMOST) > 0  # from the nearer tail, where levels have digits
        low, high = torch.where(upper, -high, low), torch.where(upper, -low, high)
        middle = torch.special.ndtri(0.5 * (ndtr(low) + ndtr(high)))
        return torch.where(upper, -middle, middle)

    def forward(self, y: Tensor) -> Tensor:
        """The score of y, or of the value next to it."""
        values = self._tensor(self.values, y)
        between = 0.5 * (values[1:] + values[:-1])
        return self.scores.to(y)[torch.searchsorted(between, y.contiguous())]

    def inverse(self, u: Tensor) -> Tensor:
        return self._tensor(self.values, u)[torch.searchsorted(self._tensor(self.edges, u), u.contiguous())]

    def contains(self, y: Tensor) -> Tensor:
        return torch.isin(y, self._tensor(self.values, y))

    def _tensor(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class Discrete(Predictive):
    """y for each of n rows, where u is distributed as `base`. `log_prob` is the log of a probability."""

    base: Predictive
    steps: Steps

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Rows) -> "Discrete":
        return Discrete(self.base[rows], self.steps)

    def double(self) -> "Discrete":
        return Discrete(self.base.double(), self.steps)

    def followed_by(self, others: Sequence[Predictive]) -> "Discrete":
        alike = [other for other in others if isinstance(other, Discrete) and other.steps == self.steps]
        if len(alike) < len(others):
            raise InputError("rows can only be followed by rows of one kind: some of these have other values")
        return Discrete(self.base.followed_by([other.base for other in alike]), self.steps)

    @property
    def values(self) -> Float[Tensor, " k"]:
        """All that y can be."""
        return torch.tensor(self.steps.values, dtype=self.base.mean.dtype, device=self.base.mean.device)

    @cached_property
    def _up_to(self) -> Float[Tensor, "n k"]:
        """P(y <= value), for every value."""
        here = self.base.mean
        below = [self.base.cdf(torch.full_like(here, edge)) for edge in self.steps.edges]
        return torch.stack([*below, torch.ones_like(here)], 1)

    @property
    def pmf(self) -> Float[Tensor, "n k"]:
        """The probability of every value; `values` names them."""
        return self._up_to.diff(dim=1, prepend=torch.zeros_like(self._up_to[:, :1])).clamp_min(0.0)

    @property
    def mean(self) -> Float[Tensor, " n"]:
        return self.pmf @ self.values

    @property
    def variance(self) -> Float[Tensor, " n"]:
        return (self.pmf * (self.values - self.mean[:, None]).square()).sum(1)

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        return self._up_to_value(y, right=True)

    def below(self, y: Targets) -> Float[Tensor, " n"]:
        return self._up_to_value(y, right=False)

    def _up_to_value(self, y: Targets, right: bool) -> Float[Tensor, " n"]:
        known = torch.cat([torch.zeros_like(self._up_to[:, :1]), self._up_to], 1)
        y = as_targets(y, self.base.mean).contiguous()
        count = torch.searchsorted(self.values, y, right=right)
        return torch.where(y.isnan(), math.nan, known.gather(1, count[:, None])[:, 0])

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        """The log of the probability of y; what is no value has none."""
        y = as_targets(y, self.base.mean)
        ends = torch.tensor([-math.inf, *self.steps.edges, math.inf], dtype=y.dtype, device=y.device)
        k = torch.searchsorted(self.values, y.contiguous()).clamp_max(len(self.steps.edges))
        low, high = ends[k], ends[k + 1]
        if isinstance(self.base, Gaussian | GaussianMixture):
            found = log_mass(self.base, low, high)
        else:
            found = self.pmf.gather(1, k[:, None])[:, 0].log()
        return torch.where(self.steps.contains(y), found, -math.inf)

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """The sum of (P(Y <= v) - 1[v >= y])^2 over the gaps between values: the ranked probability score."""
        y, values = as_targets(y, self.base.mean), self.values
        gaps, known = values.diff(), self._up_to[:, :-1]
        below = (y[:, None] - values[:-1]).clamp_min(0.0).minimum(gaps)
        inside = known.square() * below + (1.0 - known).square() * (gaps - below)
        return inside.sum(1) + (values[0] - y).clamp_min(0.0) + (y - values[-1]).clamp_min(0.0)

    def quantile(self, q: Levels) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        """The smallest value that y does not exceed with probability q."""
        return self.steps.inverse(self.base.quantile(q))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        return self.steps.inverse(self.base.sample(count, generator))
