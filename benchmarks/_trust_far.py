"""Rows where there were none: splits of a table that leave out a region of it, and small made-up tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

ORDINARY, GAP, SHELL, BLOCK = "ordinary", "gap", "shell", "time block"
_FEWEST_VALUES = 10  # of a column that has a gap cut into it


@dataclass(frozen=True)
class Split:
    kind: str
    column: str
    fit: np.ndarray
    """Numbers of rows."""
    test: np.ndarray


def splits(X: pd.DataFrame, rows: int, gaps: int, in_time: bool, seed: int = 0) -> Iterator[Split]:
    """An ordinary one; of some columns the middle third of their values; the outer tenth; a tenth of the time."""
    rng = np.random.default_rng(seed)
    some = np.sort(rng.permutation(len(X))[:rows])
    numbers = X.iloc[some].select_dtypes("number")
    mixed = rng.permutation(some)
    cut = len(some) // 10
    yield Split(ORDINARY, "", mixed[cut:], mixed[:cut])
    wide = [name for name in numbers if numbers[name].nunique() >= _FEWEST_VALUES]
    for name in rng.permutation(wide)[:gaps]:
        values = np.unique(numbers[name])
        low, high = values[len(values) // 3], values[-(-2 * len(values) // 3) - 1]
        inside = numbers[name].between(low, high).to_numpy()
        yield Split(GAP, str(name), some[~inside], some[inside])
    z = (numbers - numbers.mean()) / numbers.std().replace(0.0, 1.0)
    far = np.argsort((z**2).sum(axis=1).to_numpy())[-cut:]
    away = np.isin(np.arange(len(some)), far)
    yield Split(SHELL, "", some[~away], some[away])
    if in_time:
        for start in (4 * cut, 9 * cut):
            away = (np.arange(len(some)) >= start) & (np.arange(len(some)) < start + cut)
            yield Split(BLOCK, f"from row {start}", some[~away], some[away])


@dataclass(frozen=True)
class Case:
    """A made-up table: rows to fit, and rows elsewhere with the truth there, which has no noise."""

    kind: str
    X: pd.DataFrame
    y: np.ndarray
    new: pd.DataFrame
    truth: np.ndarray


CASES = ("1-D gap", "line", "daily trend", "new category", "scaled column")
NOISE = 0.1


def case(kind: str, rows: int, seed: int) -> Case:
    rng = np.random.default_rng([CASES.index(kind), seed])
    x, u = rng.uniform(-3.0, 3.0, rows), rng.normal(size=rows)
    noise = NOISE * rng.normal(size=rows)
    beyond = np.linspace(3.0, 6.0, 40)  # half of the range beyond its end
    if kind == "1-D gap":
        speed, phase = rng.uniform(1.0, 2.5), rng.uniform(0.0, 2.0 * np.pi)
        x = np.where(np.abs(x) < 1.0, np.sign(x) + 2.0 * x, x)
        inside = np.linspace(-0.9, 0.9, 40)
        X, new = pd.DataFrame({"x": x}), pd.DataFrame({"x": inside})
        return Case(kind, X, np.sin(speed * x + phase) + noise, new, np.sin(speed * inside + phase))
    if kind == "line":
        slopes = rng.normal(size=2)
        X, new = pd.DataFrame({"x": x, "u": u}), pd.DataFrame({"x": beyond, "u": rng.normal(size=40)})
        return Case(kind, X, X.to_numpy() @ slopes + noise, new, new.to_numpy() @ slopes)
    if kind == "daily trend":
        slope, size, phase = rng.normal(), rng.uniform(0.1, 0.5), rng.uniform(0.0, 2.0 * np.pi)
        days = np.arange(rows)

        def value(day: np.ndarray) -> np.ndarray:
            return slope * day / 365.25 + size * np.sin(2.0 * np.pi * day / 365.25 + phase)

        later = rows + np.arange(0, rows // 2, max(1, rows // 80))
        first = pd.Timestamp("2015-01-01")
        X, new = (pd.DataFrame({"day": first + pd.to_timedelta(some, unit="D")}) for some in (days, later))
        return Case(kind, X, value(days) + noise, new, value(later))
    if kind == "new category":
        effect = rng.normal(size=60)
        level = rng.integers(0, 20, rows)
        X = pd.DataFrame({"x": x, "shop": [f"shop {k}" for k in level]})
        new = pd.DataFrame({"x": rng.uniform(-3.0, 3.0, 40), "shop": [f"shop {k}" for k in range(20, 60)]})
        return Case(kind, X, np.sin(x) + effect[level] + noise, new, np.sin(new["x"].to_numpy()) + effect[20:])
    speed = rng.uniform(0.5, 1.5, 2)
    X, new = pd.DataFrame({"x": x, "u": u}), pd.DataFrame({"x": rng.uniform(-3, 3, 40), "u": rng.normal(size=40)})
    y, truth = (np.sin(speed[0] * one["x"]) + np.sin(speed[1] * one["u"]) for one in (X, new))
    return Case(kind, X, y.to_numpy() + noise, new.assign(x=10_000.0 * new["x"]), truth.to_numpy())
