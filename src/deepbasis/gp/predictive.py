"""Predictive distributions of the target, row by row: `Gaussian`, and `GaussianMixture` for an ensemble."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis.errors import InputError, NumericalError, check_number, check_positive_int
from deepbasis.gp.model import Terms
from deepbasis.gp.objectives import gaussian_nll

Targets = Float[Tensor, " n"] | ArrayLike
"""A number for each of n rows."""


@dataclass(frozen=True)
class Gaussian:
    """N(mean, variance) for each of n rows; the variance is that of the target, noise included."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    @property
    def std(self) -> Float[Tensor, " n"]:
        return self.variance.sqrt()

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        return _ndtr((_targets(y, self.mean) - self.mean) / self.std)

    def quantile(self, q: float) -> Float[Tensor, " n"]:
        return self.mean + self.std * _normal_quantile(_level(q), self.mean)

    def interval(self, coverage: float = 0.95) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """The central interval: as much probability below it as above it."""
        return _central_interval(self, coverage)

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        return -gaussian_nll(_targets(y, self.mean), self.mean, self.variance)

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """Continuous ranked probability score, in the target's units: E|Y - y| - 1/2 E|Y - Y'|."""
        return _mean_absolute(_targets(y, self.mean) - self.mean, self.std) - self.std / math.sqrt(math.pi)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        return self.mean + self.std * _standard_normal(check_positive_int("count", count), self.mean, generator)

    def affine(self, scale: float, shift: float) -> "Gaussian":
        """The distribution of scale * Y + shift: from standardised units back to the target's own."""
        return Gaussian(self.mean * scale + shift, self.variance * scale**2)


@dataclass(frozen=True)
class GaussianMixture:
    """An ensemble's prediction: for each of n rows a mixture of E Gaussians, equal or with weights that sum to 1."""

    means: Float[Tensor, "e n"]
    variances: Float[Tensor, "e n"]
    weights: Float[Tensor, " e"] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        if self.weights.shape != self.means.shape[:1]:
            raise InputError(f"{len(self.means)} components need as many weights, got {list(self.weights.shape)}")
        if not bool((self.weights >= 0).all()) or not abs(float(self.weights.double().sum()) - 1.0) < _WEIGHT_ERROR:
            raise InputError(f"weights must not be negative and must sum to 1, got {self.weights.tolist()}")

    def _average(self, values: Float[Tensor, "e n"]) -> Float[Tensor, " n"]:
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

    @property
    def std(self) -> Float[Tensor, " n"]:
        return self.variance.sqrt()

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        return self._average(_ndtr((_targets(y, self.means[0]) - self.means) / self.variances.sqrt()))

    def quantile(self, q: float) -> Float[Tensor, " n"]:
        """The inverse of `cdf`, by Newton steps kept inside a shrinking bracket.

        The mixture's quantile lies between the smallest and the largest of its components'. The equation is solved from
        the nearer tail, where the cdf has its digits. Rows that are done are left out of the next step.
        """
        level = _level(q)
        sign = 1.0 if level <= 0.5 else -1.0  # the upper tail of Y is the lower tail of -Y
        level, mirrored = min(level, 1.0 - level), self.affine(sign, 0.0)
        ends = mirrored.means + mirrored.variances.sqrt() * _normal_quantile(level, self.means)
        low, high = ends.amin(0), ends.amax(0)
        x = 0.5 * (low + high)
        found, rows = x.clone(), torch.arange(len(x), device=x.device)
        for _ in range(_MOST_STEPS):
            excess, density = mirrored._excess(x, level)
            low, high = torch.where(excess < 0, x, low), torch.where(excess > 0, x, high)
            finest = torch.finfo(x.dtype).eps * (x.abs() + mirrored.variances.amin(0).sqrt())
            step = excess / density
            step = torch.where(step.abs() < finest, finest.copysign(excess), step)  # to close the bracket's other end
            newton = x - step
            inside = (newton > low) & (newton < high)  # else it might go to and fro between the ends
            x = torch.where(excess == 0, x, torch.where(inside, newton, 0.5 * (low + high)))
            found[rows] = x
            going = ((high - low > 2.0 * finest) & (excess != 0)).nonzero()[:, 0]
            if len(going) == 0:
                break
            rows, x, low, high = rows[going], x[going], low[going], high[going]
            mirrored = GaussianMixture(mirrored.means[:, going], mirrored.variances[:, going], self.weights)
        return sign * found

    def _excess(self, x: Float[Tensor, " n"], level: float) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """cdf(x) - level, and its derivative."""
        stds = self.variances.sqrt()
        z = (x - self.means) / stds
        density = torch.exp(-0.5 * z.square()) / (stds * math.sqrt(2.0 * math.pi))
        return self._average(_ndtr(z)) - level, self._average(density)

    def interval(self, coverage: float = 0.95) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """The central interval: as much probability below it as above it."""
        return _central_interval(self, coverage)

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        members = -gaussian_nll(_targets(y, self.means[0]), self.means, self.variances)
        if self.weights is None:
            return torch.logsumexp(members, 0) - math.log(len(self.means))
        return torch.logsumexp(members + self.weights.to(members.dtype).log()[:, None], 0)

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """E|Y - y| - 1/2 E|Y - Y'|, each expectation a mean over members or pairs of members."""
        shares = self.means.new_ones(len(self.means)) if self.weights is None else self.weights.to(self.means.dtype)
        y = _targets(y, self.means[0])
        spread = torch.zeros_like(y)
        for share, mean, variance in zip(shares, self.means, self.variances, strict=True):  # in memory: E n, not E^2 n
            spread += share * self._average(_mean_absolute(self.means - mean, (self.variances + variance).sqrt()))
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
        """The distribution of scale * Y + shift: from standardised units back to the target's own."""
        return GaussianMixture(self.means * scale + shift, self.variances * scale**2, self.weights)


Predictive = Gaussian | GaussianMixture

_MOST_STEPS = 200  # bisection alone would need about 60 in float64; Newton's usual number is 9
_WEIGHT_ERROR = 1e-5  # of their sum: what float32 may round


def predict(terms: Terms, *, corrected: bool) -> Gaussian:
    """Algorithms 2 and 4: N(mean, var + noise), with the correction of Eq. 4 where the method predicts with it."""
    if int(terms.info):
        raise NumericalError(
            f"the kernel matrix of the inducing points could not be factorised (pivot {int(terms.info)}); "
            "their locations or lengthscales are not finite or too large: train again with a larger jitter"
        )
    var = terms.var + terms.correction if corrected else terms.var
    return Gaussian(terms.mean, var + terms.noise)


def mixture(members: list[Gaussian]) -> GaussianMixture:
    if not members:
        raise InputError("a mixture needs at least one member, got an empty list")
    return GaussianMixture(torch.stack([g.mean for g in members]), torch.stack([g.variance for g in members]))


def _targets(y: Targets, like: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """As a tensor, one for each row: [n, 1] would be taken for n targets of every row."""
    try:
        found = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y, dtype=np.float64)).to(like)
    except ValueError as error:
        raise InputError(f"y must be numbers: {error}") from None
    if found.shape != like.shape:
        raise InputError(f"y must be one number for each of {len(like)} rows, got shape {list(found.shape)}")
    return found


def _central_interval(predictive: Predictive, coverage: float) -> tuple[Tensor, Tensor]:
    if not 0.0 < check_number("coverage", coverage) < 1.0:
        raise InputError(f"coverage must lie strictly between 0 and 1, got {coverage!r}")
    tail = 0.5 * (1.0 - coverage)
    return predictive.quantile(tail), predictive.quantile(1.0 - tail)


def _normal_quantile(q: float, like: Tensor) -> Float[Tensor, ""]:
    """In float64 first: q = 1 - 1e-9 is 1 in float32."""
    return torch.special.ndtri(torch.tensor(q, dtype=torch.float64, device=like.device)).to(like.dtype)


def _ndtr(z: Tensor) -> Tensor:
    """The normal cdf with the digits of its lower tail; torch.special.ndtr is 1/2 (1 + erf), which cancels there."""
    return 0.5 * torch.erfc(-z / math.sqrt(2.0))


def _level(q: float) -> float:
    if not 0.0 < check_number("q", q) < 1.0:
        raise InputError(f"a quantile's level must lie strictly between 0 and 1, got {q!r}")
    return float(q)


def _mean_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, std^2)."""
    z = mean / std
    return std * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z / math.sqrt(2.0))


def _standard_normal(count: int, like: Float[Tensor, " n"], generator: torch.Generator | None) -> Float[Tensor, "s n"]:
    return torch.randn(count, len(like), dtype=like.dtype, device=like.device, generator=generator)
