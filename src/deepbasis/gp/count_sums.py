"""Sums over the values of a count of mean r and variance r + a r^2, without a walk through them; a is 0 of Poissons."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepbasis.gp.predictive import ndtr

_SWITCH, _SWITCH_WIDTH = 72.0, 7.0
FIRST_SMOOTH, LAST_SINGLE = 20.0, 130.0
"""Up to the first no value, and from the second on every value, is part of what `smooth_share` gives."""
LARGEST_VALUE = 2.0**52
_SWITCH_STEP = 0.04  # of log v, that follows the switch
_PER_SCALE = 2.0  # points of a trapezoidal rule to a scale of a Gaussian: exp(-4 pi^2) is lost


def probability_up_to(v: Tensor, rate: Tensor, a: Tensor) -> Tensor:
    """P(Y <= v): of a Poisson Q(v + 1, r), and I(k, v + 1) at k / (k + r), k = 1 / a. In v >= 0 it is smooth."""
    return _incomplete(v + 1.0, rate, a, 0.0)


def mean_up_to(v: Tensor, rate: Tensor, a: Tensor) -> Tensor:
    """E[Y 1(Y <= v)] = r P(Y' <= v - 1); Y' is a count with k + 1 in place of k, and a Poisson is itself."""
    return torch.where(v >= 1.0, rate * _incomplete(v.clamp_min(1.0), rate, a, 1.0), 0.0)


def _incomplete(above: Tensor, rate: Tensor, a: Tensor, more: float) -> Tensor:
    """By scipy: torch has no incomplete beta function, and its gamma function is right to 1e-9 only."""
    special: Any = import_module("scipy.special")
    v, r, spread = (one.double().cpu().numpy() for one in torch.broadcast_tensors(above, rate, a))
    found = special.gammaincc(v, r)
    if (spread > 0).any():
        k = 1.0 / np.where(spread > 0, spread, 1.0)
        found = np.where(spread > 0, special.betainc(k + more, v, k / (k + r)), found)
    return torch.from_numpy(found).to(rate)


def smooth_share(v: Tensor) -> Tensor:
    """How much of a value is summed up by an integral, and not by itself: nothing of 20, and all of 130."""
    return ndtr((v - _SWITCH) / _SWITCH_WIDTH)


def smooth_sum(of: Callable[[Tensor], Tensor], first: Tensor, last: Tensor, spread: Tensor) -> Tensor:
    """The sum of smooth_share(v) of(v) over the values from the first to the last, of each row [n].

    Beyond small values `of` is as smooth as counts are: what varies there varies over sqrt(1 / v + spread^2) of log v
    or more. So the sum is the integral over log v, but for exp(-v), and the trapezoidal rule has all of its digits.
    """
    low = first.clamp_min(FIRST_SMOOTH).log()
    high = last.clamp_min(FIRST_SMOOTH).log().maximum(low)
    scale = (1.0 / last.clamp_min(1.0) + spread.square()).sqrt() / _PER_SCALE
    scale = torch.where(first < LAST_SINGLE, scale.clamp_max(_SWITCH_STEP), scale)
    points = 1 + math.ceil(float(((high - low) / scale).max()))
    width, total = (high - low) / points, torch.zeros_like(low)
    for point in range(points + 1):
        v = (low + width * point).exp()
        total += (0.5 if point in (0, points) else 1.0) * of(v) * smooth_share(v) * v
    return total * width


def smallest_value(cdf: Callable[[Tensor], Tensor], level: Tensor, guess: Tensor) -> Tensor:
    """The smallest values from 0 whose cdf is at least the level: between two that are brought together."""
    low, high = torch.full_like(guess, -1.0), guess.clamp(1.0, LARGEST_VALUE).ceil()
    while bool((short := (cdf(high) < level) & (high < LARGEST_VALUE)).any()):
        low, high = torch.where(short, high, low), torch.where(short, 2.0 * high, high)
    while bool((high - low > 1.0).any()):
        middle = (0.5 * (low + high)).floor()
        enough = cdf(middle) >= level
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
