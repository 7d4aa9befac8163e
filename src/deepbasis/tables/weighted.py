"""Statistics of weighted values: one of weight k counts as k of them, to the last bit, and order does not matter."""

from __future__ import annotations

import math

import numpy as np

from deepbasis.tables.columns import Array

_NORMAL_IQR = 1.3489795003921634  # of a standard normal: the scale is the standard deviation of what is normal


def masses(values: Array, weight: Array | None) -> tuple[Array, Array]:
    """The distinct values in ascending order, and the weight of each. Every statistic starts here.

    Equal values are summed in order of weight, so that the order of the rows does not change the last bit.
    """
    if weight is None:
        distinct, counts = np.unique(values, return_counts=True)
        return distinct, counts.astype(np.float64)
    order = np.lexsort((weight, values))
    values, weight = values[order], weight[order]
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return values[starts], np.add.reduceat(weight, starts)


def quantile(distinct: Array, mass: Array, q: float) -> float:
    """The smallest value with at least a fraction q of the mass at or below it (inverted CDF)."""
    below = np.cumsum(mass)
    return float(distinct[np.searchsorted(below, q * below[-1] * (1 - 1e-12))]) + 0.0  # -0.0 is 0.0


def mean_and_std(distinct: Array, mass: Array) -> tuple[float, float]:
    if len(distinct) == 1:
        return float(distinct[0]), 0.0
    unit = math.ldexp(1.0, math.frexp(float(np.abs(distinct).max()))[1] - 1)  # a power of two: squares of 1e300
    scaled = distinct / unit
    mean = float(np.sum(mass * scaled) / np.sum(mass))
    variance = float(np.sum(mass * (scaled - mean) ** 2) / np.sum(mass))
    return mean * unit, math.sqrt(variance) * unit


def median_and_scale(distinct: Array, mass: Array) -> tuple[float, float]:
    """The median, and the interquartile range over a normal's."""
    low, center, high = (quantile(distinct, mass, q) for q in (0.25, 0.5, 0.75))
    return center, high / _NORMAL_IQR - low / _NORMAL_IQR
