"""How a warp of the target, or its steps, are found: from the quantiles of y, or from a scikit-learn transformer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis.errors import InputError
from deepbasis.gp.discrete import MOST_VALUES, Steps
from deepbasis.gp.warps import Spline
from deepbasis.tables.weighted import masses

Floats = NDArray[np.float64]

_BEYOND = 5.0  # rows beyond the first knot, and beyond the last
_MOST_BEYOND = 0.25  # of the rows
_FEWEST_KNOTS, _MOST_KNOTS = 4, 40
_FLATTEST = 1e-12  # a step from knot to knot, relative to an average one: the slope stays bounded
_PARTS = 4  # of the mass of a count, spread out
_FARTHEST_SCORE = 8.0  # of a count
_TABULATED = 257  # knots for a transformer
_INVERTS = 1e-6  # of the range: how well a transformer's inverse must undo it


def quantile_warp(y: Floats, weight: Floats | None = None, ends: tuple[float, float] | None = None) -> Spline | None:
    """The warp that makes y about normal, or None if y has fewer than three values.

    At its knots, which are evenly spaced normal scores, y is the quantile of that score. An atom has the score of its
    middle. More rows give more knots, further out. `ends` are the smallest and the largest y of more rows, if y is a
    sample. See `bounds` for what the warp keeps y within.
    """
    distinct, mass = masses(y, weight)
    if len(distinct) < 3:
        return None
    total = float(mass.sum())
    return _through(distinct, (np.cumsum(mass) - 0.5 * mass) / total, total, ends)


def _through(
    y: Floats, levels: Floats, total: float, ends: tuple[float, float] | None, least: float | None = None
) -> Spline | None:
    """The spline through quantiles of these levels, from so many rows; `least` is a lower bound that is known."""
    scores = _normal_scores(levels)
    outermost = float(_normal_scores(np.array([min(_MOST_BEYOND, _BEYOND / total)]))[0])
    low, high = max(outermost, scores[0]), min(-outermost, scores[-1])
    if not high - low > 1e-3:  # nearly all rows have one value
        return None
    count = int(np.clip(round(2.0 * total ** (1 / 3)), _FEWEST_KNOTS, _MOST_KNOTS))
    knots = np.linspace(low, high, count)
    found = _spline(knots, np.interp(knots, scores, y), ends or (float(y[0]), float(y[-1])))
    return found if found is None or least is None else replace(found, low=least, high=math.inf)


def count_steps(y: Floats, weight: Floats | None, every_y: Floats) -> Steps | None:
    """Whole numbers from 0: the warp of counts that are spread out evenly, by half to either side, cut at the halves.

    So counts that no row has get a probability too, up to twice the largest.
    """
    largest = int(every_y.max())
    if largest >= MOST_VALUES - 1:
        raise InputError(
            f"target='count' is for counts below {MOST_VALUES - 1}, and there is {largest}; use target='warp', which "
            "hardly differs for counts so large"
        )
    distinct, mass = masses(y, weight)
    parts = (np.arange(_PARTS) + 1.0) / _PARTS
    total = float(mass.sum())
    positions = (distinct[:, None] - 0.5 + parts).reshape(-1)
    levels = ((np.cumsum(mass) - mass)[:, None] + mass[:, None] * parts).reshape(-1) / total
    warp = _through(positions[:-1], levels[:-1], total, None, least=-0.5) if len(distinct) > 1 else None
    if warp is None:
        return None
    values = np.arange(min(2 * largest + 10, MOST_VALUES))
    edges = warp.forward(torch.from_numpy(values[:-1] + 0.5)).numpy()
    edges = edges[edges < _FARTHEST_SCORE]
    return Steps("count", tuple(values[: len(edges) + 1].astype(float).tolist()), tuple(edges.tolist()))


def ordinal_steps(y: Floats, weight: Floats | None, every_y: Floats) -> Steps | None:
    """The values that there are; between two of them lies the normal score of the share of rows below."""
    values = np.unique(every_y)
    if len(values) > MOST_VALUES:
        raise InputError(
            f"target='ordinal' is for up to {MOST_VALUES} values, and there are {len(values)}; use target='warp'"
        )
    distinct, mass = masses(y, weight)
    if len(values) < 2:
        return None
    counted = np.full(len(values), 0.5)  # of a row, so that none has no probability
    counted[np.searchsorted(values, distinct)] += mass
    edges = _normal_scores(np.cumsum(counted)[:-1] / counted.sum())
    return Steps("ordinal", tuple(values.tolist()), tuple(edges.tolist()))


def transformer_warp(
    transformer: Any, y: Floats, weight: Floats | None = None, ends: tuple[float, float] | None = None
) -> Spline | None:
    """What a scikit-learn transformer, fitted to y, does between the smallest and the largest y: tabulated."""
    from sklearn.base import clone

    if weight is not None:
        y = y[weight > 0]
    if not np.ptp(y) > 0:
        return None
    name = type(transformer).__name__
    ordered = np.unique(y)
    try:
        fitted = clone(transformer).fit(y[:, None])
        images = _column(fitted.transform(ordered[:, None]))
        grid = np.linspace(images[0], images[-1], _TABULATED)
        values = _column(fitted.inverse_transform(grid[:, None]))
        errors = np.abs(_column(fitted.transform(values[:, None])) - grid)
    except Exception as error:
        raise InputError(f"target: {name} cannot transform y and back: {error}") from error
    rises = np.sign(images[-1] - images[0])
    monotone = (rises * np.diff(images) >= 0).all() and (np.diff(values) > 0).all()
    if not monotone or not (errors <= _INVERTS * np.ptp(images)).all():
        raise InputError(
            f"target: {name} is not strictly monotone with an inverse on the range of y, from {ordered[0]:g} to "
            f"{ordered[-1]:g}; give a transformer that is, such as PowerTransformer, or target='warp'"
        )
    return _spline(rises * grid, values, ends or (float(ordered[0]), float(ordered[-1])))


def bounds(values: Floats, ends: tuple[float, float]) -> tuple[float, float]:
    """What y is kept within, given its values at the knots, and its smallest and largest value.

    A y that is never negative has the lower bound 0, one that is never positive the upper bound 0, and a share, from 0
    to 1, both 0 and 1. If y reaches a bound, it is moved out by half of a step between knots. A bound far from y hardly
    changes anything.
    """
    low, high = ends
    first, last = 0.5 * (values[1] - values[0]), 0.5 * (values[-1] - values[-2])
    below = -math.inf if low < 0 else 0.0 if low > 0 else -first
    above = math.inf
    if high <= 0:
        above = 0.0 if high < 0 else last
    elif low >= 0 and high <= 1:
        above = 1.0 if high < 1 else 1.0 + last
    return float(below), float(above)


def _spline(knots: Floats, values: Floats, ends: tuple[float, float]) -> Spline | None:
    """None if the values are too close to each other, for their size, to be told apart."""
    steps = np.diff(values)
    span = values[-1] - values[0]
    floor = _FLATTEST * span / len(steps)
    if (steps < floor).any():
        moved = np.cumsum(np.maximum(steps, floor))
        values = np.concatenate([values[:1], values[0] + moved[:-1] * (span / moved[-1]), values[-1:]])
    if not (np.diff(values) > 0).all():
        return None
    below, above = bounds(values, ends)
    return Spline(float(knots[0]), float(knots[1] - knots[0]), tuple(values.tolist()), below, above)


def _normal_scores(p: Floats) -> Floats:
    return torch.special.ndtri(torch.from_numpy(p)).numpy()


def _column(found: Any) -> Floats:
    return np.asarray(found, dtype=np.float64).reshape(-1)
