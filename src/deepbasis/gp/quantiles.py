"""Quantiles of Gaussian mixtures, for many rows and levels together.

Each is solved from the nearer tail, where the cdf has its digits: the upper tail of Y is the lower tail of -Y. The
logarithm of a tail's mass is nearly a parabola, so that Halley's method needs three steps from the quantile of one
Gaussian of the same mean and variance: two in float32, and one in float64 that leaves an error of the third order.
Where that last step was not a small one, the quantile is found once more between two ends that are known.

All of it is done from the first component's mean, which is added last. So targets near the grid of their numbers, such
as 1e15 with a spread of 0.5, have quantiles in order: a sum is rounded in the order of what is added.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_COARSE_STEPS = 2  # in float32
_NEAR, _FAR_STEPS = 0.01, 5  # below such a level one Gaussian is no good start
_CLOSE = 1e-5  # of the smallest standard deviation: what is left after such a step is of its third power
_MOST_STEPS = 200  # bisection alone would need about 60 in float64; Newton's usual number is 9
_NUMBERS_AT_A_TIME = {"cpu": 2**17, "cuda": 2**24}  # a megabyte stays in a processor's cache
_FEW_NUMBERS = 2**11  # numpy takes a fifth of torch's time to begin with an operation

Array = Any
"""Of numpy or torch: the functions that take one use what both have."""


def mixture_quantiles(
    means: Float[Tensor, "e n"],
    variances: Float[Tensor, "e n"],
    shares: Float[Tensor, " e"],
    levels: Float[Tensor, " k"],
) -> Float[Tensor, "n k"]:
    """The inverse of the cdf of sum_e shares_e N(means_e, variances_e), at every level; all in float64."""
    device, each = means.device, len(means) * len(levels)
    upper = (levels > 0.5).numpy()[:, None]
    q, start = levels.numpy()[:, None], torch.special.ndtri(levels).numpy()[:, None]
    of_levels = np.where(upper, -1.0, 1.0), np.where(upper, 1.0 - q, q), start
    if device.type == "cpu" and each * means.shape[1] <= _FEW_NUMBERS:
        with np.errstate(all="ignore"):  # a tail without mass: found below in another way
            return torch.from_numpy(_of_block(means.numpy(), variances.numpy(), shares.numpy(), *of_levels)).T
    on_device = [torch.from_numpy(one).to(device) for one in of_levels]
    rows = max(1, _NUMBERS_AT_A_TIME.get(device.type, _NUMBERS_AT_A_TIME["cuda"]) // each)
    blocks = zip(means.split(rows, 1), variances.split(rows, 1), strict=True)
    return torch.cat([_of_block(m, v, shares, *on_device) for m, v in blocks], 1).T


def quantiles_by_row(
    means: Float[Tensor, "e n"],
    variances: Float[Tensor, "e n"],
    shares: Float[Tensor, " e"],
    scores: Float[Tensor, "s n"],
) -> Float[Tensor, "s n"]:
    """The same at levels Phi(z), for s scores z of each row."""
    sign = torch.where(scores > 0.0, -1.0, 1.0).to(scores).flatten()
    level = 0.5 * torch.erfc(scores.abs().flatten() * math.sqrt(0.5))
    m, stds = (part.repeat(1, len(scores)) for part in (means - means[:1], variances.sqrt()))
    return means[:1] + (sign * _bracketed(sign * m, stds, shares, level)).view(scores.shape)


def _of_block(means: Array, variances: Array, shares: Array, sign: Array, level: Array, start: Array) -> Array:
    """[k, n], for components [e, n] and levels [k, 1] of the tails that `sign` says."""
    tensors = isinstance(means, Tensor)
    origin, stds = means[:1], variances**0.5
    means = means - origin
    center = shares @ means
    away = means - center
    unit = (shares @ (away * away + variances)) ** 0.5
    x, *in_units = (one.float() if tensors else one for one in (start, away / unit, unit / stds, shares, sign, level))
    coarse = _Tails(*in_units)
    for _ in range(_COARSE_STEPS if float(level.min()) >= _NEAR else _FAR_STEPS):
        x = x - coarse.step(x)
    x = center + unit * x
    step = _Tails(means, 1.0 / stds, shares, sign, level).step(x)
    found = x - step
    unsure = ~(abs(step) <= _CLOSE * (stds.amin(0) if tensors else stds.min(0)))  # NaN too
    if bool(unsure.any()):
        exact, parts = torch.as_tensor(found), (unsure, means, stds, shares, sign, level)  # share memory with numpy's
        unsure, means, stds, shares, sign, level = map(torch.as_tensor, parts)
        k, row = unsure.nonzero(as_tuple=True)
        sign, level = sign[k, 0], level[k, 0]
        exact[k, row] = sign * _bracketed(sign * means[:, row], stds[:, row], shares, level)
    return origin + found


class _Tails:
    """T(x): of n mixtures the mass of the lower tail (sign 1) or of the upper one (sign -1), for each of k levels."""

    def __init__(self, means: Array, precision: Array, shares: Array, sign: Array, level: Array) -> None:
        self.of = torch if isinstance(means, Tensor) else np
        self.means, self.precision, self.shares, self.sign = means[:, None], precision[:, None], shares, sign
        self.scale = self.precision * (math.sqrt(0.5) * sign)  # [e, k, n]
        self.log_twice = self.of.log(level) + math.log(2.0)

    def step(self, x: Array) -> Array:
        """Halley's for h(x) = log T(x) - log level = 0.

        With T' and T'' the density and its derivative, in the direction of `sign`, it is d / (1 - d/2 (T''/T' - T'/T)),
        d = h T / T'. Where the denominator is small, it is at most twice Newton's.
        """
        u = self.means - x
        u *= self.scale  # -z / sqrt(2)
        twice_T = self._sum(torch.erfc(u) if self.of is torch else torch.erfc(torch.from_numpy(u)).numpy())
        density = u * u
        density *= -1.0
        self.of.exp(density, out=density)
        density *= self.precision
        first = self._sum(density)
        density *= u
        density *= self.precision
        second = self._sum(density)
        ratio = twice_T / first * math.sqrt(0.5 * math.pi)  # T / T'
        d = (self.of.log(twice_T) - self.log_twice) * ratio
        bend = math.sqrt(2.0) * second / first - 1.0 / ratio
        return self.sign * d / self.of.clip(1.0 - 0.5 * d * bend, 0.5, None)

    def _sum(self, of_components: Array) -> Array:
        e, k, n = of_components.shape
        return (self.shares @ of_components.reshape(e, -1)).reshape(k, n)


def _bracketed(means: Tensor, stds: Tensor, shares: Tensor, level: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """By Newton steps kept inside a shrinking bracket, of mixtures [e, m] that have a level each.

    A mixture's quantile lies between the smallest and the largest of its components'. What is done is left out of
    the next step.
    """
    ends = means + stds * torch.special.ndtri(level)
    low, high = ends.amin(0), ends.amax(0)
    x = 0.5 * (low + high)
    found, going = x.clone(), torch.arange(len(x), device=x.device)
    for _ in range(_MOST_STEPS):
        z = (x - means) / stds
        excess = shares @ (0.5 * torch.erfc(-z * math.sqrt(0.5))) - level
        density = shares @ (torch.exp(-0.5 * z.square()) / (stds * math.sqrt(2.0 * math.pi)))
        low, high = torch.where(excess < 0, x, low), torch.where(excess > 0, x, high)
        finest = torch.finfo(x.dtype).eps * (x.abs() + stds.amin(0))
        step = excess / density
        step = torch.where(step.abs() < finest, finest.copysign(excess), step)  # to close the bracket's other end
        newton = x - step
        inside = (newton > low) & (newton < high)  # otherwise it might jump back and forth between the ends
        x = torch.where(excess == 0, x, torch.where(inside, newton, 0.5 * (low + high)))
        found[going] = x
        left = ((high - low > 2.0 * finest) & (excess != 0)).nonzero()[:, 0]
        if len(left) == 0:
            break
        going, x, low, high, level = going[left], x[left], low[left], high[left], level[left]
        means, stds = means[:, left], stds[:, left]
    return found
