"""What is remembered of one column that is seen piece by piece: enough for its encoding, little, and mergeable.

Exact: counts, missing values, smallest and largest value, mean and standard deviation (to rounding, and while at most
`FARTHEST` values on a side are far out), which cycles of a date vary, and the weights of up to `MOST_NAMES` categories.
Quantiles are a sketch's (see `sketch.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deepbasis.hashing import name_hashes
from deepbasis.tables.columns import MISSING, Array, Column
from deepbasis.tables.encoders import (
    PHASES,
    STANDARD,
    Encoding,
    category_encoding,
    check_identifier,
    mean_and_std,
    no_values,
    number_encoding,
    ordinary_range,
    phase_ranges,
    phases_that_vary,
)
from deepbasis.tables.sketch import QuantileSketch

MOST_NAMES = 100_000
"""Categories that are counted at a time. Beyond, the rarer half is let go; see `Categories`."""

FARTHEST = 1024
"""So many of the smallest values of a column, and of the largest, are kept as they are."""

_HASHES = 1024

_NO_RANGE = np.tile(np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min]), (len(PHASES), 1))


@dataclass
class Moments:
    """Weight, mean and standard deviation, smallest and largest value of numbers without holes."""

    mass: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Array, weight: Array | None) -> None:
        if len(values):
            mass = np.ones(len(values)) if weight is None else weight
            mean, std = mean_and_std(values, mass)
            self.merge(Moments(float(mass.sum()), mean, std, float(values.min()), float(values.max())))

    def merge(self, other: Moments) -> None:
        """Chan, Golub and LeVeque's update, by `hypot`: squares of 1e300 do not overflow."""
        total = self.mass + other.mass
        if other.mass == 0.0:
            return
        mine, theirs = self.mass / total, other.mass / total
        between = (other.mean / 2 - self.mean / 2) * (2 * math.sqrt(mine * theirs))
        self.std = math.hypot(self.std * math.sqrt(mine), other.std * math.sqrt(theirs), between)
        self.mean = self.mean * mine + other.mean * theirs if self.mass else other.mean
        self.mass = total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


@dataclass
class TrimmedMoments:
    """Mean and standard deviation without the values that turn out, in the end, to be far out.

    The smallest and largest values are kept apart, so that a 1e30 never enters a sum that it could not leave again.
    """

    values: Array = field(default_factory=lambda: np.empty(0))
    """The `FARTHEST` smallest, then the `FARTHEST` largest; all while there are no more than that."""
    mass: Array = field(default_factory=lambda: np.empty(0))
    rest: Moments = field(default_factory=Moments)

    def add(self, values: Array, weight: Array | None) -> None:
        mass = np.ones(len(values)) if weight is None else weight
        if self.rest.mass:  # most values of most blocks go the short way
            near = (values >= self.values[:FARTHEST].max()) & (values <= self.values[FARTHEST:].min())
            self.rest.add(values[near], mass[near])
            values, mass = values[~near], mass[~near]
        values, mass = np.concatenate([self.values, values]), np.concatenate([self.mass, mass])
        if len(values) > 2 * FARTHEST:
            order = np.argpartition(values, (FARTHEST, len(values) - FARTHEST - 1))
            middle, ends = order[FARTHEST:-FARTHEST], np.concatenate([order[:FARTHEST], order[-FARTHEST:]])
            self.rest.add(values[middle], mass[middle])
            values, mass = values[ends], mass[ends]
        self.values, self.mass = values, mass

    def merge(self, other: TrimmedMoments) -> None:
        self.add(other.values, other.mass)
        self.rest.merge(other.rest)

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return float(self.values.min()), float(self.values.max())

    def within(self, low: float, high: float) -> tuple[float, float] | None:
        """Mean and standard deviation of the values from low to high; None where too many are beyond to tell."""
        if self.rest.mass and not low <= self.rest.low <= self.rest.high <= high:
            return None
        inside = (self.values >= low) & (self.values <= high)
        whole = replace(self.rest)
        whole.add(self.values[inside], self.mass[inside])
        return whole.mean, whole.std


@dataclass
class Numbers:
    """Of a column of numbers, truth values, durations or dates."""

    moments: TrimmedMoments = field(default_factory=TrimmedMoments)
    sketch: QuantileSketch = field(default_factory=QuantileSketch)
    ranges: Array = field(default_factory=_NO_RANGE.copy)
    """[phases, 2]: first and last step of each cycle of a date."""

    def add(self, column: Column, weight: Array | None) -> None:
        present = ~column.missing
        if not present.all():
            column, weight = column.rows(present), None if weight is None else weight[present]
        values = column.values
        self.moments.add(values, weight)
        self.sketch.add(values, weight)
        if column.kind == "datetime" and len(values):
            self._widen(phase_ranges(values))

    def merge(self, other: Numbers) -> None:
        self.moments.merge(other.moments)
        self.sketch.merge(other.sketch)
        self._widen(other.ranges)

    def _widen(self, ranges: Array) -> None:
        self.ranges[:, 0] = np.minimum(self.ranges[:, 0], ranges[:, 0])
        self.ranges[:, 1] = np.maximum(self.ranges[:, 1], ranges[:, 1])

    def encoding(self, kind: str, missing: bool, scaling: str = STANDARD) -> Encoding:
        distinct, mass = self.sketch.distribution()
        phases = phases_that_vary(self.ranges) if kind == "datetime" else ()
        if self.sketch.exact:
            return number_encoding(kind, distinct, mass, missing, phases, scaling=scaling)
        moments = self.moments.within(*ordinary_range(kind, distinct, mass))
        return number_encoding(kind, distinct, mass, missing, phases, self.moments.ends, moments, scaling)


@dataclass
class Categories:
    """Of a column of text: the weight of each category.

    Above `most_names` of them the rarer half is let go. A count is then too small by at most `error`, the sum of the
    largest counts that were let go at a time; a category more frequent than that is never lost.
    """

    most_names: int = MOST_NAMES
    counts: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    hashes: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """The smallest hashes of all names up to the last letting go: they tell how many different ones there were."""

    def add(self, column: Column, weight: Array | None) -> None:
        present = ~column.missing
        weights = None if weight is None else weight[present]
        mass = np.bincount(column.values[present], weights, minlength=len(column.categories))
        for position in np.flatnonzero(mass):
            self._count(column.categories[position], float(mass[position]))
        self._let_go()

    def merge(self, other: Categories) -> None:
        for name, mass in other.counts.items():
            self._count(name, mass)
        self.error += other.error
        self.hashes = _smallest(self.hashes, other.hashes)
        self._let_go()

    def _count(self, name: str, mass: float) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + mass

    def _let_go(self) -> None:
        if len(self.counts) <= self.most_names:
            return
        self.hashes = _smallest(self.hashes, name_hashes(self.counts))
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        self.counts = dict(ranked[: self.most_names // 2])
        self.error += ranked[self.most_names // 2][1]

    @property
    def distinct(self) -> int:
        """How many different texts there are: exact, or, once some were let go, to about 3 %."""
        if self.error == 0.0:
            return len(self.counts)
        smallest = _smallest(self.hashes, name_hashes(self.counts))
        return round((len(smallest) - 1) / (float(smallest[-1]) / 2.0**64))

    def encoding(self, label: str, missing: bool, rows: int, mass: float) -> Encoding:
        check_identifier(label, self.distinct, rows, mass, f"such as {next(iter(self.counts))!r}")
        return category_encoding(self.counts, missing, more=self.error > 0.0)


def _smallest(one: Array, other: Array) -> Array:
    """K minimum values (Bar-Yossef et al.): the k-th smallest of n hashes in [0, 1) is about k / n."""
    return np.unique(np.concatenate([one, other]))[:_HASHES]


@dataclass
class ColumnSummary:
    """Of a column of any kind. It is `missing` until its first value is seen."""

    label: str
    kind: str = MISSING
    rows: int = 0
    mass: float = 0.0
    """The weight of the rows that have a value."""
    missing: int = 0
    values: Numbers | Categories | None = None

    def add(self, column: Column, weight: Array | None) -> None:
        self.rows += len(column.values)
        missing = column.missing
        self.missing += int(missing.sum())
        self.mass += float(len(missing) - missing.sum() if weight is None else weight[~missing].sum())
        if column.kind != MISSING:
            self._of_kind(column.kind).add(column, weight)

    def merge(self, other: ColumnSummary) -> None:
        self.rows += other.rows
        self.mass += other.mass
        self.missing += other.missing
        if other.values is not None:
            self._of_kind(other.kind).merge(other.values)

    def _of_kind(self, kind: str) -> Any:
        if self.values is None:
            self.kind, self.values = kind, Categories() if kind == "categorical" else Numbers()
        assert kind == self.kind, f"{self.label} was {self.kind} and is {kind}: the source checks this"
        return self.values

    def encoding(self, scaling: str = STANDARD) -> Encoding:
        if self.values is None:
            raise no_values(self.label)
        if isinstance(self.values, Categories):
            return self.values.encoding(self.label, self.missing > 0, self.rows - self.missing, self.mass)
        return self.values.encoding(self.kind, self.missing > 0, scaling)
