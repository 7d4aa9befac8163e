"""Values of a column at which an effect is shown: from end to end, and few enough to predict."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from deepbasis.tables.columns import Column
from deepbasis.tables.encoders import Encoding

Floats = NDArray[np.float64]

_POINTS, _MOMENTS, _CATEGORIES = 21, 150, 8
_MOST = (0.02, 0.98)  # of the values: not to the ends, where few rows are
_WEEK, _DAY = 604_800.0, 86_400.0  # seconds


def grid(column: Column, encoding: Encoding) -> tuple[Floats, tuple[str, ...]]:
    """Values, and the labels of categories and truth values, of which the values are the places."""
    known = column.values[~column.missing]
    if encoding.kind == "categorical":
        codes, counts = np.unique(known, return_counts=True)
        most = np.sort(codes[np.argsort(-counts, kind="stable")[:_CATEGORIES]])
        return np.arange(len(most), dtype=np.float64), tuple(column.categories[int(code)] for code in most)
    if encoding.kind == "boolean":
        return np.array([0.0, 1.0]), ("false", "true")
    distinct = np.unique(known)
    if encoding.kind == "datetime" and len(distinct) > _POINTS:
        return _moments(*np.quantile(distinct, _MOST, method="nearest").tolist()), ()
    if len(distinct) > _POINTS:
        distinct = np.unique(np.quantile(known, np.linspace(*_MOST, _POINTS)))
    return distinct.astype(np.float64), ()


def _moments(first: float, last: float) -> Floats:
    """Evenly spaced, by whole weeks over months and by whole days over weeks.

    A prediction may have waves of the year, the week and the day. A few quantiles would turn them into a zigzag; steps
    of whole weeks show the year's alone.
    """
    step = (last - first) / _MOMENTS
    unit = _WEEK if step > _DAY else _DAY if step > _DAY / 20 else step
    return np.arange(first, last, unit * math.ceil(step / unit))
