"""Predictive distributions of the target, row by row: `Gaussian`, and `GaussianMixture` for an ensemble."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis.errors import InputError, check_number, check_positive_int, check_share
from deepbasis.gp.quantiles import mixture_quantiles

Targets = Float[Tensor, " n"] | ArrayLike
"""A number for each of n rows."""
Weight = Float[Tensor, " n"] | None
"""How much each row counts; None is all the same."""
Levels = float | Sequence[float] | np.ndarray | Tensor
"""One level of a quantile, or k of them."""
Rows = int | slice | Sequence[int] | np.ndarray | Tensor
"""The number of a row, a slice, or the numbers or a mask of rows."""

_WEIGHT_ERROR = 1e-5  # of their sum: what float32 may round


def gaussian_nll(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """-log N(y; mean, var), element by element; the arguments may be broadcast against each other."""
    return 0.5 * (math.log(2.0 * math.pi) + var.log() + (y - mean).square() / var)


class Predictive:
    """The distribution of a number for each of n rows; what follows from its mean, variance, density and quantiles."""

    if TYPE_CHECKING:  # a field, or a property

        @property
        def mean(self) -> Float[Tensor, " n"]: ...

        @property
        def variance(self) -> Float[Tensor, " n"]: ...

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        raise NotImplementedError

    def below(self, y: Targets) -> Float[Tensor, " n"]:
        """P(Y < y): the cdf, unless y has a probability itself."""
        return self.cdf(y)

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        raise NotImplementedError

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """Continuous ranked probability score, in the target's units: E|Y - y| - 1/2 E|Y - Y'|."""
        raise NotImplementedError

    def quantile(self, q: Levels) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        """The inverse of `cdf`: [n] for one level, [n, k] for k of them. It never falls as the level rises."""
        raise NotImplementedError

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        raise NotImplementedError

    def affine(self, scale: float, shift: float) -> "Predictive":
        """The distribution of scale * Y + shift: from standardised units back to the target's own."""
        raise NotImplementedError

    def double(self) -> "Predictive":
        """In float64: beside a large mean float32 has no digits left for what varies."""
        raise NotImplementedError

    def followed_by(self, others: "Sequence[Predictive]") -> "Predictive":
        """The distribution of these rows, then those of others of one kind with it."""
        raise NotImplementedError

    def __getitem__(self, rows: Rows) -> "Predictive":
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def std(self) -> Float[Tensor, "n *m"]:
        return self.variance.sqrt()

    def pdf(self, y: Targets) -> Float[Tensor, " n"]:
        return self.log_prob(y).exp()

    def interval(self, coverage: float = 0.95) -> tuple[Float[Tensor, "n *m"], Float[Tensor, "n *m"]]:
        """The central interval: as much probability below it as above it."""
        check_share("coverage", coverage)
        tail = 0.5 * (1.0 - coverage)
        lower, upper = self.quantile([tail, 1.0 - tail]).unbind(-1)
        return lower, upper


@dataclass(frozen=True)
class Gaussian(Predictive):
    """N(mean, variance) for each of n rows; the variance is that of the target, noise included."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    def __getitem__(self, rows: Rows) -> "Gaussian":
        at = at_rows(rows, len(self))
        return Gaussian(self.mean[at], self.variance[at])

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        return ndtr((as_targets(y, self.mean) - self.mean) / self.std)

    def quantile(self, q: Levels) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        levels = as_levels(q)
        found = self.mean[:, None] + self.std[:, None] * _normal_quantile(levels, self.mean)
        return found if levels.dim() else found[:, 0]

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        return -gaussian_nll(as_targets(y, self.mean), self.mean, self.variance)

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        return _mean_absolute(as_targets(y, self.mean) - self.mean, self.std) - self.std / math.sqrt(math.pi)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        return self.mean + self.std * _standard_normal(check_positive_int("count", count), self.mean, generator)

    def affine(self, scale: float, shift: float) -> "Gaussian":
        return Gaussian(self.mean * scale + shift, self.variance * scale**2)

    def double(self) -> "Gaussian":
        return Gaussian(self.mean.double(), self.variance.double())

    def followed_by(self, others: Sequence[Predictive]) -> "Gaussian":
        all_rows = [self, *(other for other in others if isinstance(other, Gaussian))]
        if len(all_rows) <= len(others):
            raise InputError("rows can only be followed by rows of one kind: some of these are not Gaussian")
        return Gaussian(torch.cat([one.mean for one in all_rows]), torch.cat([one.variance for one in all_rows]))


@dataclass(frozen=True)
class GaussianMixture(Predictive):
    """An ensemble's prediction: for each of n rows a mixture of E Gaussians, equal or with weights that sum to 1."""

    means: Float[Tensor, "e n"]
    variances: Float[Tensor, "e n"]
    weights: Float[Tensor, " e"] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        if self.weights.shape != self.means.shape[:1]:
            raise InputError(f"{len(self.means)} components need as many weights, got {list(self.weights.shape)}")
        weights = self.weights.tolist()
        if not all(weight >= 0 for weight in weights) or not abs(sum(weights) - 1.0) < _WEIGHT_ERROR:
            raise InputError(f"weights must not be negative and must sum to 1, got {weights}")

    def __getitem__(self, rows: Rows) -> "GaussianMixture":
        at = at_rows(rows, len(self))
        return GaussianMixture(self.means[:, at], self.variances[:, at], self.weights)

    @property
    def shares(self) -> Float[Tensor, " e"]:
        """The weight of each component, in float64."""
        return shares_of(self.weights, self.means)

    def _average(self, values: Float[Tensor, "e m"]) -> Float[Tensor, " m"]:
        """Over the components."""
        if self.weights is None:
            return values.mean(0)
        return (self.weights.to(values.dtype)[:, None] * values).sum(0)

    @property
    def mean(self) -> Float[Tensor, " n"]:
        return self._average(self.means)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """The mean of the variances and the variance of the means."""
        if self.weights is None:
            return self.variances.mean(0) + self.means.var(0, unbiased=False)
        return self._average(self.variances + (self.means - self.mean).square())

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        return self._average(ndtr((as_targets(y, self.means[0]) - self.means) / self.variances.sqrt()))

    def quantile(self, q: Levels) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        levels = as_levels(q)
        means, variances = self.means.double(), self.variances.double()
        quantiles = mixture_quantiles(means, variances, self.shares, levels.reshape(-1)).to(self.means.dtype)
        if not levels.dim():
            return quantiles[:, 0]
        order = levels.argsort()  # rounding must not make a quantile fall as its level rises
        return quantiles[:, order].cummax(1).values[:, order.argsort()]

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        members = -gaussian_nll(as_targets(y, self.means[0]), self.means, self.variances)
        if self.weights is None:
            return torch.logsumexp(members, 0) - math.log(len(self.means))
        return torch.logsumexp(members + self.weights.to(members.dtype).log()[:, None], 0)

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """Each expectation of E|Y - y| - 1/2 E|Y - Y'| is a mean over members or pairs of members."""
        shares = self.means.new_ones(len(self.means)) if self.weights is None else self.weights.to(self.means.dtype)
        y = as_targets(y, self.means[0])
        spread = torch.zeros_like(y)
        for share, mean, variance in zip(shares, self.means, self.variances, strict=True):  # in memory: E n, not E^2 n
            spread = spread + share * self._average(
                _mean_absolute(self.means - mean, (self.variances + variance).sqrt())
            )
        error = self._average(_mean_absolute(y - self.means, self.variances.sqrt()))
        return error - 0.5 * spread / shares.sum()

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        check_positive_int("count", count)
        members, n = self.means.shape
        if self.weights is None:
            pick = torch.randint(members, (count, n), device=self.means.device, generator=generator)
        else:
            pick = torch.multinomial(self.weights, count * n, replacement=True, generator=generator).view(count, n)
        normal = _standard_normal(count, self.means[0], generator)
        return self.means.gather(0, pick) + self.variances.sqrt().gather(0, pick) * normal

    def affine(self, scale: float, shift: float) -> "GaussianMixture":
        return GaussianMixture((self.means * scale).add_(shift), self.variances * scale**2, self.weights)

    def double(self) -> "GaussianMixture":
        return GaussianMixture(self.means.double(), self.variances.double(), self.weights)

    def followed_by(self, others: Sequence[Predictive]) -> "GaussianMixture":
        mixtures = [self, *(other for other in others if isinstance(other, GaussianMixture))]
        if len(mixtures) <= len(others) or not all(torch.equal(one.shares, self.shares) for one in mixtures):
            raise InputError("rows can only be followed by mixtures of as many components, with the same weights")
        means, variances = zip(*((one.means, one.variances) for one in mixtures), strict=True)
        return GaussianMixture(torch.cat(means, 1), torch.cat(variances, 1), self.weights)


def mixture(members: list[Gaussian]) -> GaussianMixture:
    if not members:
        raise InputError("a mixture needs at least one member, got an empty list")
    return GaussianMixture(torch.stack([g.mean for g in members]), torch.stack([g.variance for g in members]))


def as_mixture(predicted: Predictive) -> GaussianMixture:
    """A mixture itself, or one Gaussian of the same mean and variance."""
    if isinstance(predicted, GaussianMixture):
        return predicted
    return GaussianMixture(predicted.mean[None], predicted.variance[None])


def shares_of(weights: Float[Tensor, " e"] | None, means: Float[Tensor, "e ..."]) -> Float[Tensor, " e"]:
    """The weight of each of e components, in float64: the same where none are given."""
    count = len(means)
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64, device=means.device)
    return weights.double()


def at_rows(rows: Rows, count: int) -> slice | Tensor:
    """One row by its number is a distribution of one."""
    if isinstance(rows, slice | Tensor):
        return rows
    if isinstance(rows, int) and not isinstance(rows, bool):
        rows = [range(count)[rows]]
    found = np.array(rows)  # a copy: torch warns of what cannot be written to
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "biu":
        raise InputError(f"rows are taken by their numbers, a mask or a slice, and at least one; got {rows!r}")
    if found.dtype.kind == "b":
        if len(found) != count:
            raise InputError(f"a mask must say yes or no to each of {count} rows, got {len(found)}")
        return torch.from_numpy(found)
    beyond = ~((-count <= found) & (found < count))
    if beyond.any():
        raise InputError(f"there is no row {found[beyond][0]}: there are {count}, counted from 0")
    return torch.from_numpy(found.astype(np.int64))


def as_targets(y: Targets, like: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """As a tensor with one target per row: [n, 1] would be broadcast to n targets for every row."""
    try:
        found = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y, dtype=np.float64)).to(like)
    except ValueError as error:
        raise InputError(f"y must be numbers: {error}") from None
    if found.shape != like.shape:
        raise InputError(f"y must be one number for each of {len(like)} rows, got shape {list(found.shape)}")
    return found


def as_levels(q: Levels) -> Float[Tensor, ""] | Float[Tensor, " k"]:
    """In float64: q = 1 - 1e-9 is 1 in float32."""
    found = np.asarray(q.detach().cpu().numpy() if isinstance(q, Tensor) else q)
    for level in found.ravel().tolist() or [None]:
        if not 0.0 < check_number("q", level) < 1.0:
            raise InputError(f"a quantile's level must lie strictly between 0 and 1, got {level!r}")
    if found.ndim > 1:
        raise InputError(f"q must be a level or a list of levels, got shape {list(found.shape)}")
    return torch.from_numpy(found.astype(np.float64))


def _normal_quantile(level: Tensor, like: Tensor) -> Tensor:
    return torch.special.ndtri(level.to(like.device)).to(like.dtype)


def ndtr(z: Tensor) -> Tensor:
    """The normal cdf with the digits of its lower tail; torch.special.ndtr is 1/2 (1 + erf), which cancels there."""
    return 0.5 * torch.erfc(-z / math.sqrt(2.0))


def _mean_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, std^2)."""
    z = mean / std
    return std * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z / math.sqrt(2.0))


def _standard_normal(count: int, like: Float[Tensor, " n"], generator: torch.Generator | None) -> Float[Tensor, "s n"]:
    return torch.randn(count, len(like), dtype=like.dtype, device=like.device, generator=generator)
