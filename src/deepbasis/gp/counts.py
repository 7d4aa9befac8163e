"""Counts whose rate has a logarithm that is Gaussian: the Poisson and the negative binomial likelihood.

Given f, a count has the mean r = exp(f + offset), where the offset is the log of the exposure, and the variance
r + a r^2; a is 0 for a Poisson. A target is (score, count, offset): the score is for those who want one number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from deepbasis.errors import InputError, check_number, check_positive_int
from deepbasis.gp import count_sums as sums
from deepbasis.gp.likelihoods import NOISE_FLOOR, GaussianLikelihood, Moments, Target
from deepbasis.gp.predictive import Levels, Predictive, Rows, Targets, as_levels, as_targets, at_rows
from deepbasis.gp.warps import normal_rule

_NODES, _SHARES = (torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(32))
_LOG_SHARES = (_SHARES / _SHARES.sum()).log() + 0.5 * (_NODES.square() + math.log(2.0 * math.pi))
_LARGEST = 80.0  # log of a rate: in float32 exp(88) is the last
_LAMBERT_STEPS, _NEWTON_STEPS = 6, 6
_MANY = 20.0  # from here on Stirling's series has all digits
_FARTHEST, _MOST_NODES = 7.0, 1_001  # of f: nodes to a standard deviation, and in all
_MOST, _LEFT = 100_000, 1e-7  # values that are listed, unless less than this is left
_TAIL = 1e-13  # below and above the values that a score adds up
_NUMBERS_AT_A_TIME = 2**18


class NegativeBinomialLikelihood(nn.Module):
    """A count of mean r and variance r + a r^2. The dispersion a is trained, and is what a noise is for a number."""

    target = "number"
    nodes: Tensor
    log_shares: Tensor

    def __init__(self, noise: float | None = 1e-2, *, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        self.floor = check_number("noise floor", floor, at_least=0.0)
        start = math.nan if noise is None else math.log(check_number("noise", noise, above=floor) - floor)
        self.raw = nn.Parameter(torch.tensor(start))
        self.register_buffer("nodes", _NODES.float(), persistent=False)  # on the device: a step copies nothing to it
        self.register_buffer("log_shares", _LOG_SHARES.float(), persistent=False)

    starting_noise = staticmethod(GaussianLikelihood.starting_noise)

    def noise(self) -> Float[Tensor, ""]:
        return self.dispersion()

    def dispersion(self) -> Float[Tensor, ""]:
        return self.floor + self.raw.exp()

    def log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """By Gauss-Hermite quadrature over f."""
        count, offset = _parts(y)
        return log_expected(count, mean + offset, var, self.dispersion(), (self.nodes, self.log_shares))

    def expected_log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        count, offset = _parts(y)
        nodes, shares = normal_rule(mean)
        f = mean + offset + var.sqrt() * nodes[:, None]
        return shares @ log_probability(count, f, self.dispersion())

    def predictive(self, mean: Moments, var: Moments) -> tuple[Moments, ...]:
        return mean, var, self.dispersion().expand_as(mean)

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        return Counts(*(part if part.dim() == 2 else part[None] for part in parts))


class PoissonLikelihood(NegativeBinomialLikelihood):
    """A count of mean and variance r. The trace regulariser is measured in a variance of 1 of the log of r."""

    def noise(self) -> Float[Tensor, ""]:
        return torch.ones_like(self.raw)

    def dispersion(self) -> Float[Tensor, ""]:
        return torch.zeros_like(self.raw)


def _parts(y: Target) -> tuple[Tensor, Tensor]:
    """The count, and the log of its exposure."""
    return (y, torch.zeros_like(y)) if y.dim() == 1 else (y[..., 1], y[..., 2])


def log_probability(count: Tensor, f: Tensor, a: Tensor) -> Tensor:
    """log p(count | r = exp(f)); the arguments may be broadcast against each other."""
    poisson = count * f - f.clamp_max(_LARGEST).exp()
    k = 1.0 / torch.where(a > 0, a, 1.0)
    odds = f - k.log()  # log r / k
    spread = _log_rising(count, k) - k * softplus(odds) - count * softplus(-odds)
    return torch.where(a > 0, spread, poisson) - torch.lgamma(count + 1.0)


def _log_rising(count: Tensor, k: Tensor) -> Tensor:
    """log Gamma(count + k) / Gamma(k); of a large k by Stirling's series, since in float32 it has no digits left."""
    small, large = k.clamp_max(_MANY), k.clamp_min(_MANY)

    def rest(x: Tensor) -> Tensor:
        return (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / (1260.0 * x * x)) / (x * x)) / x

    series = (large + count - 0.5) * torch.log1p(count / large) + count * (large.log() - 1.0)
    series = series + rest(large + count) - rest(large)
    return torch.where(k > _MANY, series, torch.lgamma(count + small) - torch.lgamma(small))


def log_expected(
    count: Tensor, mean: Tensor, var: Tensor, a: Tensor, rule: tuple[Tensor, Tensor] = (_NODES, _LOG_SHARES)
) -> Tensor:
    """log E p(count | r = exp(f)), f ~ N(mean, var), by nodes about the mode of p N, whose place needs no gradient."""
    with torch.no_grad():
        mode, width = _mode(count, mean, var, a)
    nodes, log_shares = (one.to(mean).view(-1, *(1,) * mode.dim()) for one in rule)
    f = mode + width * nodes
    log_normal = -0.5 * ((f - mean).square() / var + (2.0 * math.pi * var).log())
    return torch.logsumexp(log_probability(count, f, a) + log_normal + log_shares, 0) + width.log()


def _mode(count: Tensor, mean: Tensor, var: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Where p(count | f) N(f; mean, var) is largest, and how wide it is there, as a standard deviation.

    For a Poisson w + log w = log(var) + c there, with w = var exp(f) and c = mean + var count. Newton's steps go on
    from that for a negative binomial; the logarithm is concave.
    """
    c, log_v = mean + var * count, var.log()
    total = (log_v + c).clamp_min(-_LARGEST)
    w = torch.where(total > 1.0, total - total.clamp_min(1.0).log(), total.clamp_max(1.0).exp())
    for _ in range(_LAMBERT_STEPS):
        w = w * (1.0 + total - w.log()) / (1.0 + w)
    poisson = torch.where(w > 0.5, w.log() - log_v, c - w)
    k, f = 1.0 / torch.where(a > 0, a, 1.0), poisson
    for _ in range(_NEWTON_STEPS):
        share = torch.sigmoid(f - k.log())  # r / (k + r)
        curvature = (count + k) * share * (1.0 - share) + 1.0 / var
        f = f + (count - (count + k) * share - (f - mean) / var) / curvature
    share = torch.sigmoid(f - k.log())
    width = ((count + k) * share * (1.0 - share) + 1.0 / var).rsqrt()
    return torch.where(a > 0, f, poisson), torch.where(a > 0, width, (var / (1.0 + w)).sqrt())


@dataclass(frozen=True)
class Counts(Predictive):
    """For each of n rows a mixture of E counts, of equal weights. `log_prob` is the log of a probability.

    Its values have no end: what is summed up over them ends where hardly anything is left.
    """

    means: Float[Tensor, "e n"]
    """Of the log of the rate."""
    variances: Float[Tensor, "e n"]
    dispersions: Float[Tensor, "e n"]

    def __len__(self) -> int:
        return self.means.shape[1]

    def __getitem__(self, rows: Rows) -> "Counts":
        at = at_rows(rows, len(self))
        return Counts(*(part[:, at] for part in self._parts()))

    def _parts(self) -> list[Tensor]:
        return [getattr(self, one.name) for one in fields(self)]

    def double(self) -> "Counts":
        return Counts(*(part.double() for part in self._parts()))

    def exposed(self, offset: float | Float[Tensor, " n"]) -> "Counts":
        """With an exposure whose log is larger by the offset."""
        return Counts(self.means + offset, self.variances, self.dispersions)

    def followed_by(self, others: Sequence[Predictive]) -> "Counts":
        alike = [self, *(other for other in others if isinstance(other, Counts))]
        if len(alike) <= len(others) or len({len(one.means) for one in alike}) > 1:
            raise InputError("rows can only be followed by rows of one kind: some of these are not such counts")
        return Counts(*(torch.cat(parts, 1) for parts in zip(*(one._parts() for one in alike), strict=True)))

    @property
    def mean(self) -> Float[Tensor, " n"]:
        return (self.means + 0.5 * self.variances).exp().mean(0)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """The mean of r + (1 + a) r^2, less the square of the mean."""
        rate = (self.means + 0.5 * self.variances).exp()
        square = rate.square() * self.variances.exp()
        return (rate + (1.0 + self.dispersions) * square).mean(0) - self.mean.square()

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        """Of what is no count, minus infinity."""
        y = as_targets(y, self.means[0])
        known = (y >= 0) & (y == y.floor())
        each = log_expected(torch.where(known, y, 0.0), self.means, self.variances, self.dispersions)
        return torch.where(known, torch.logsumexp(each, 0) - math.log(len(each)), -math.inf)

    def _rule(self) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
        """Nodes of f so dense that the probability of a count changes little between two of them."""
        rate = (self.means + 2.0 * self.variances.sqrt()).exp()
        narrowest = (rate / (1.0 + self.dispersions * rate)).sqrt()  # 1 / standard deviation of p(count | f)
        density = max(2.0, 1.5 * float((self.variances.sqrt() * narrowest).max()))
        each_side = min(math.ceil(_FARTHEST * density), _MOST_NODES // 2)
        nodes = torch.linspace(-_FARTHEST, _FARTHEST, 2 * each_side + 1, dtype=self.means.dtype)
        shares = torch.exp(-0.5 * nodes.square())
        return nodes, shares / shares.sum()

    def _nodes(self) -> tuple[Float[Tensor, "q E n"], Float[Tensor, " q"]]:
        nodes, shares = self._rule()
        return self.means + self.variances.sqrt() * nodes[:, None, None], shares

    def probabilities(self) -> Iterator[Float[Tensor, " n"]]:
        """Of 0, 1, 2, ... until hardly anything is left."""
        left = torch.ones_like(self.means[0])
        for _, here in zip(range(1, _MOST), self._from(torch.zeros_like(left)), strict=False):
            left = left - here
            yield here
            if bool((left < _LEFT).all()):
                return

    def _from(self, value: Float[Tensor, " n"]) -> Iterator[Float[Tensor, " n"]]:
        """The probabilities of a value and of all after it: each is ((v - 1) a + 1) / v r / (1 + a r) of the last."""
        f, shares = self._nodes()
        a, log_p = self.dispersions, log_probability(value, f, self.dispersions)
        factor = f - torch.log1p(a * f.exp())
        while True:
            yield torch.tensordot(shares, log_p.exp(), 1).mean(0)
            value = value + 1.0
            log_p += factor + (((value - 1.0) * a + 1.0) / value).log()

    def _by_rows(self, work: Callable[..., Tensor], *more: Tensor) -> Tensor:
        """Some rows after the others; rows of one size need about as many values."""
        order = self.mean.argsort()
        some = max(1, _NUMBERS_AT_A_TIME // (len(self._rule()[0]) * len(self.means)))
        found = [work(self[part], *(one[part] for one in more)) for part in order.split(some)]
        return torch.cat(found)[order.argsort()]

    @property
    def pmf(self) -> Float[Tensor, "n k"]:
        """The probability of 0, 1, 2, ..., up to where hardly anything is left in any row."""
        return torch.stack(list(self.probabilities()), 1)

    @property
    def values(self) -> Float[Tensor, " k"]:
        return torch.arange(self.pmf.shape[1], dtype=self.means.dtype)

    def cdf(self, y: Targets) -> Float[Tensor, " n"]:
        def work(rows: Counts, y: Tensor) -> Tensor:
            found = rows._expected(sums.probability_up_to, y.floor().clamp(0.0, sums.LARGEST_VALUE)).clamp_max(1.0)
            return torch.where(y < 0.0, 0.0, found)

        return self._by_rows(work, as_targets(y, self.means[0]))

    def _expected(self, of: Callable[[Tensor, Tensor, Tensor], Tensor], v: Tensor) -> Tensor:
        """The mean over f and the members of a function of (v, rate, dispersion)."""
        f, shares = self._nodes()
        return torch.tensordot(shares, of(v, f.exp(), self.dispersions), 1).mean(0)

    def below(self, y: Targets) -> Float[Tensor, " n"]:
        return self.cdf(as_targets(y, self.means[0]).ceil() - 1.0)

    def crps(self, y: Targets) -> Float[Tensor, " n"]:
        """E|Y - y| - 1/2 E|Y - Y'|: by sums up to y, and the sum of P(Y <= v) P(Y > v) over all values."""

        def distance(y: Tensor, rate: Tensor, a: Tensor) -> Tensor:
            whole = y.floor().clamp_min(0.0)
            up_to, mean = (
                torch.where(y < 0.0, 0.0, of(whole, rate, a)) for of in (sums.probability_up_to, sums.mean_up_to)
            )
            return rate - 2.0 * mean + y * (2.0 * up_to - 1.0)

        def work(rows: Counts, y: Tensor) -> Tensor:
            return rows._expected(distance, y) - rows._half_spread()

        return self._by_rows(work, as_targets(y, self.means[0]))

    def _half_spread(self) -> Float[Tensor, " n"]:
        """1/2 E|Y - Y'|: small values one by one, and from some on by an integral."""
        first, last = self.quantile([_TAIL, 1.0 - _TAIL]).unbind(1)
        total, below = torch.zeros_like(first), self.below(first)
        steps = (last.clamp_max(sums.LAST_SINGLE) - first).max()
        for step, here in zip(range(int(steps) + 1), self._from(first), strict=False):
            value, below = first + step, (below + here).clamp_max(1.0)
            total = total + (1.0 - sums.smooth_share(value)) * below * (1.0 - below)

        def both(v: Tensor) -> Tensor:
            up_to = self._expected(sums.probability_up_to, v)
            return up_to * (1.0 - up_to)

        return total + sums.smooth_sum(both, first, last, self.variances.amin(0).sqrt())

    def quantile(self, q: Levels) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        """The smallest count that y does not exceed with probability q."""
        levels = as_levels(q)
        found = torch.stack([self._by_rows(lambda rows, level=q: rows._at(level)) for q in levels.reshape(-1)], 1)
        return found if levels.dim() else found[:, 0]

    def _at(self, level: Tensor) -> Float[Tensor, " n"]:
        level = level.to(self.means)
        return sums.smallest_value(self.cdf, level, self.mean + self.std * torch.special.ndtri(level))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s n"]:
        shape = (check_positive_int("count", count), len(self))
        pick = torch.randint(len(self.means), shape, generator=generator)
        mean, variance, a = (part.gather(0, pick) for part in self._parts())
        rate = (mean + variance.sqrt() * torch.randn(shape, dtype=mean.dtype, generator=generator)).exp()
        k = 1.0 / torch.where(a > 0, a, 1.0)
        spread = torch.where(a > 0, torch._standard_gamma(k, generator=generator) / k, 1.0)
        return torch.poisson(rate * spread, generator=generator)
