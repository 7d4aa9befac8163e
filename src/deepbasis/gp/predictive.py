"""Predictive distributions of the target, row by row: `Gaussian`, and `GaussianMixture` for an ensemble."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError, NumericalError, check_number, check_positive_int
from deepbasis.gp.model import Terms
from deepbasis.gp.objectives import gaussian_nll


@dataclass(frozen=True)
class Gaussian:
    """N(mean, variance) for each of n rows; the variance is that of the target, noise included."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    @property
    def std(self) -> Float[Tensor, " n"]:
        return self.variance.sqrt()

    def cdf(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return _ndtr((y - self.mean) / self.std)

    def quantile(self, q: float) -> Float[Tensor, " n"]:
        return self.mean + self.std * _normal_quantile(_level(q), self.mean)

    def interval(self, coverage: float = 0.95) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """The central interval: as much probability below it as above it."""
        return _central_interval(self, coverage)

    def log_prob(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return -gaussian_nll(y, self.mean, self.variance)

    def crps(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Continuous ranked probability score, in the target's units: E|Y - y| - 1/2 E|Y - Y'|."""
        return _mean_absolute(y - self.mean, self.std) - self.std / math.sqrt(math.pi)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        return self.mean + self.std * _standard_normal(check_positive_int("count", count), self.mean, generator)

    def affine(self, scale: float, shift: float) -> "Gaussian":
        """The distribution of scale * Y + shift: from standardised units back to the target's own."""
        return Gaussian(self.mean * scale + shift, self.variance * scale**2)


@dataclass(frozen=True)
class GaussianMixture:
    """An ensemble's prediction: for each of n rows the equal mixture of E Gaussians."""

    means: Float[Tensor, "e n"]
    variances: Float[Tensor, "e n"]

    @property
    def mean(self) -> Float[Tensor, " n"]:
        return self.means.mean(0)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """The mean of the variances and the variance of the means."""
        return self.variances.mean(0) + self.means.var(0, unbiased=False)

    @property
    def std(self) -> Float[Tensor, " n"]:
        return self.variance.sqrt()

    def cdf(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return _ndtr((y - self.means) / self.variances.sqrt()).mean(0)

    def quantile(self, q: float) -> Float[Tensor, " n"]:
        """The inverse of `cdf`, by Newton steps kept inside a shrinking bracket.

        The mixture's quantile lies between the smallest and the largest of its components'. The equation is solved from
        the nearer tail, where the cdf has its digits.
        """
        level = _level(q)
        stds = self.variances.sqrt()
        sign = 1.0 if level <= 0.5 else -1.0  # the upper tail of Y is the lower tail of -Y
        level, centres = min(level, 1.0 - level), sign * self.means
        ends = centres + stds * _normal_quantile(level, self.means)
        low, high = ends.amin(0), ends.amax(0)
        x = 0.5 * (low + high)
        for _ in range(_MOST_STEPS):
            z = (x - centres) / stds
            excess = _ndtr(z).mean(0) - level
            density = (torch.exp(-0.5 * z.square()) / (stds * math.sqrt(2.0 * math.pi))).mean(0)
            low, high = torch.where(excess < 0, x, low), torch.where(excess > 0, x, high)
            newton = x - excess / density
            inside = (newton > low) & (newton < high)
            new = torch.where(inside, newton, 0.5 * (low + high))
            if bool((new == x).all()):
                break
            x = new
        return sign * x

    def interval(self, coverage: float = 0.95) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """The central interval: as much probability below it as above it."""
        return _central_interval(self, coverage)

    def log_prob(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        members = -gaussian_nll(y, self.means, self.variances)
        return torch.logsumexp(members, 0) - math.log(len(self.means))

    def crps(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """E|Y - y| - 1/2 E|Y - Y'|, each expectation a mean over members or pairs of members."""
        spread = torch.zeros_like(y)
        for mean, variance in zip(self.means, self.variances, strict=True):  # E n numbers in memory, not E^2 n
            spread += _mean_absolute(self.means - mean, (self.variances + variance).sqrt()).mean(0)
        return _mean_absolute(y - self.means, self.variances.sqrt()).mean(0) - 0.5 * spread / len(self.means)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        check_positive_int("count", count)
        members, n = self.means.shape
        pick = torch.randint(members, (count, n), device=self.means.device, generator=generator)
        normal = _standard_normal(count, self.means[0], generator)
        return self.means.gather(0, pick) + self.variances.sqrt().gather(0, pick) * normal

    def affine(self, scale: float, shift: float) -> "GaussianMixture":
        """The distribution of scale * Y + shift: from standardised units back to the target's own."""
        return GaussianMixture(self.means * scale + shift, self.variances * scale**2)


Predictive = Gaussian | GaussianMixture

_MOST_STEPS = 200  # bisection alone would need about 60 in float64; Newton's usual number is 6


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
