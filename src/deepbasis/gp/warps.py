"""Warps: strictly increasing maps u = g(y) that make a skewed, positive or bounded target look like a Gaussian one.

A warp knows both directions and its slope, so that a distribution of u is a distribution of y (`gp/warped.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError

Numbers = Float[Tensor, "*n"]

MOST_KNOTS = 1_024
_CLOSEST = 1e-12  # to a bound, as a share of the room beside it: what lies on it gets a finite u
_NEWTON_STEPS = 100  # five or so, unless the slope changes a thousandfold between two knots
_FARTHEST, _DENSEST = 6.5, 8.0  # nodes of a quadrature, in standard deviations
_DENSITY = 4.0  # nodes to a standard deviation, of moments: the same for all rows, so that none depends on the others
_LARGEST = 1e150  # of a target
_LARGEST_LOG = math.log(_LARGEST)


@dataclass(frozen=True)
class Log:
    """u = log y; above `top`, the log of the largest target that was seen, y goes on as a line.

    So the mean of y does not depend on a tail that nobody has seen.
    """

    top: float

    low = 0.0
    high = math.inf
    """Every y lies between them."""

    def __post_init__(self) -> None:
        if not abs(self.top) <= _LARGEST_LOG:
            raise InputError(f"the log of the largest target must be a number up to {_LARGEST_LOG:g}, got {self.top!r}")

    @property
    def knots(self) -> list[float]:
        """Values of u between which `inverse` is smooth."""
        return [self.top]

    def forward(self, y: Numbers) -> Numbers:
        """u = g(y), finite also for a y outside of the bounds."""
        largest = math.exp(self.top)
        below = y.clamp(math.exp(-_LARGEST_LOG), largest).log()
        return below + (y / largest - 1.0).clamp_min(0.0)

    def inverse(self, u: Numbers) -> Numbers:
        return u.clamp_max(self.top).exp() * (1.0 + (u - self.top).clamp_min(0.0))

    def log_slope(self, u: Numbers) -> Numbers:
        """log dy/du."""
        return u.clamp_max(self.top)

    def moments(self, mean: Numbers, std: Numbers) -> tuple[Numbers, Numbers]:
        """Mean and variance of y if u ~ N(mean, std^2)."""
        return _moments(self, mean, std)

    def state(self) -> dict[str, Any]:
        return {"kind": "log", "top": self.top}


@dataclass(frozen=True)
class Spline:
    """y = h(u), a cubic B-spline with increasing coefficients at evenly spaced knots; g is its inverse.

    Beyond the knots y goes on as a line, or, where there is a bound, towards it as an exponential function. h has two
    continuous derivatives, and one where an exponential tail begins.
    """

    start: float
    """The first knot."""
    step: float
    """From knot to knot."""
    values: tuple[float, ...]
    """The coefficients; h takes the first at the first knot, and the last at the last."""
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if not 2 <= len(self.values) <= MOST_KNOTS:
            raise InputError(f"a spline has from 2 to {MOST_KNOTS} knots, got {len(self.values)}")
        numbers = (self.start, self.step, *self.values)
        if not all(abs(one) <= _LARGEST for one in numbers) or not self.step >= 1.0 / _LARGEST:
            raise InputError(f"the numbers of a spline must be at most {_LARGEST:g}, and its step positive")
        ends = (self.low, *self.values, self.high)
        if not all(one < other for one, other in pairwise(ends)):
            raise InputError("the values of a spline must increase, from its lower to its upper bound")

    @property
    def knots(self) -> list[float]:
        return [self.start + self.step * k for k in range(len(self.values))]

    @cached_property
    def pieces(self) -> Float[Tensor, "k 4"]:
        """Coefficients of s^0 ... s^3 between two knots, where s goes from 0 to 1."""
        c = torch.tensor(self.values, dtype=torch.float64)
        c = torch.cat([2 * c[:1] - c[1:2], c, 2 * c[-1:] - c[-2:-1]])  # no curvature at the ends
        a, b, c, d = c[:-3], c[1:-2], c[2:-1], c[3:]
        return torch.stack(
            [b + ((a - b) + (c - b)) / 6, (c - a) / 2, ((a - b) + (c - b)) / 2, ((d - a) + 3 * (b - c)) / 6], 1
        )

    def _place(self, u: Numbers) -> tuple[Float[Tensor, "*n 4"], Numbers, Numbers, Numbers]:
        """The piece of each u, where in it, and how far u lies below the first and above the last knot, in steps."""
        t = (u.double() - self.start) / self.step
        last = len(self.values) - 1
        inside = t.clamp(0.0, float(last))
        k = inside.floor().clamp_max(last - 1.0)
        return self.pieces.to(u.device)[k.long()], inside - k, inside - t.clamp_max(last), t.clamp_min(0.0) - inside

    def _rooms(self) -> tuple[float, float]:
        """What is left beyond the knots, in units of the slope there."""
        first, last = self.values[1] - self.values[0], self.values[-1] - self.values[-2]
        return (self.values[0] - self.low) / first, (self.high - self.values[-1]) / last

    def inverse(self, u: Numbers) -> Numbers:
        coefficients, s, below, above = self._place(u)
        a, b, c, d = coefficients.unbind(-1)
        room_below, room_above = self._rooms()
        first, last = self.values[1] - self.values[0], self.values[-1] - self.values[-2]
        y = a + s * (b + s * (c + s * d))
        return (y - first * _towards(below, room_below) + last * _towards(above, room_above)).to(u.dtype)

    def log_slope(self, u: Numbers) -> Numbers:
        coefficients, s, below, above = self._place(u)
        _, b, c, d = coefficients.unbind(-1)
        room_below, room_above = self._rooms()
        slope = (b + s * (2 * c + 3 * s * d)) / self.step
        return (slope.log() - below / room_below - above / room_above).to(u.dtype)

    def forward(self, y: Numbers) -> Numbers:
        """Of a cubic that increases from 0 to 1 the one root, by Newton steps kept inside a shrinking bracket."""
        first, last = self.values[1] - self.values[0], self.values[-1] - self.values[-2]
        room_below, room_above = self._rooms()
        exact = y.double()
        below = _back((self.values[0] - exact).clamp_min(0.0) / first, room_below)
        above = _back((exact - self.values[-1]).clamp_min(0.0) / last, room_above)
        inside = exact.clamp(self.values[0], self.values[-1]).reshape(-1)
        pieces = self.pieces.to(y.device)
        k = (torch.searchsorted(pieces[:, 0].contiguous(), inside, right=True) - 1).clamp_min(0)
        a, b, c, d = pieces[k].unbind(-1)
        a = a - inside
        low, high = torch.zeros_like(a), torch.ones_like(a)
        s = (-a / (b + c + d)).clamp(0.0, 1.0)
        for _ in range(_NEWTON_STEPS):
            excess = a + s * (b + s * (c + s * d))
            low, high = torch.where(excess < 0, s, low), torch.where(excess > 0, s, high)
            newton = s - excess / (b + s * (2 * c + 3 * s * d))
            newton = torch.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
            newton = torch.where(excess == 0, s, newton)
            done = bool(((newton - s).abs() <= 4e-16).all())
            s = newton
            if done:
                break
        return (self.start + self.step * ((k + s).reshape(y.shape) - below + above)).to(y.dtype)

    def moments(self, mean: Numbers, std: Numbers) -> tuple[Numbers, Numbers]:
        return _moments(self, mean, std)

    def state(self) -> dict[str, Any]:
        bounds = {name: one for name in ("low", "high") if math.isfinite(one := getattr(self, name))}
        return {"kind": "spline", **asdict(self), "low": None, "high": None, **bounds}


Warp = Log | Spline


def warp_from_state(record: Mapping[str, Any]) -> Warp:
    """What `state` gave. A wrong record is a KeyError, a TypeError or an `InputError`."""
    if record["kind"] == "log":
        return Log(float(record["top"]))
    if record["kind"] != "spline":
        raise InputError(f"there is no warp of the kind {record['kind']!r}")
    low, high = (None if record[name] is None else float(record[name]) for name in ("low", "high"))
    return Spline(
        float(record["start"]),
        float(record["step"]),
        tuple(float(one) for one in record["values"]),
        -math.inf if low is None else low,
        math.inf if high is None else high,
    )


def _moments(warp: Warp, mean: Numbers, std: Numbers) -> tuple[Numbers, Numbers]:
    nodes, shares = normal_rule(mean, _DENSITY)
    y = warp.inverse(mean + std * nodes.reshape(-1, *(1,) * mean.dim()))
    found = torch.tensordot(shares, y, 1)
    return found, torch.tensordot(shares, (y - found).square(), 1)


def normal_rule(like: Tensor, density: float = 2.0) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Nodes and weights whose weighted sum is the mean of a function of a standard normal variable.

    The trapezoidal rule, which for a Gaussian is as good as any, with `density` nodes to a standard deviation or more.
    """
    each_side = math.ceil(_FARTHEST * min(max(density, 2.0), _DENSEST))
    nodes = torch.linspace(-_FARTHEST, _FARTHEST, 2 * each_side + 1, dtype=like.dtype, device=like.device)
    shares = torch.exp(-0.5 * nodes.square())
    return nodes, shares / shares.sum()


def _towards(x: Numbers, room: float) -> Numbers:
    """x itself, or something between 0 and a finite room that begins like x."""
    return x if math.isinf(room) else -room * torch.expm1(-x / room)


def _back(x: Numbers, room: float) -> Numbers:
    """The inverse of `_towards`."""
    return x if math.isinf(room) else -room * torch.log1p(-(x / room).clamp_max(1.0 - _CLOSEST))
