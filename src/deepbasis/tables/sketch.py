"""Quantiles of a column that is seen piece by piece: a small summary that can be added to and merged.

A summary is a list of values with the weight that each stands for. While there are at most `POINTS` different values it
is exact. Beyond, it is cut down to the values at `POINTS` equally spaced ranks (the "collapse" of Munro and Paterson,
and of Manku, Rajagopalan and Lindsay, for weights): a collapse moves no rank by more than half of a 1 / `POINTS` of the
weight that it covers. Pieces are merged in the manner of a binary counter, so that a row goes through log2(pieces)
collapses at most. Every sketch counts what it may have lost: `rank_error` is a bound, not an estimate.

No random numbers: the same pieces in the same order give the same sketch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepbasis.tables.columns import Array

POINTS = 4096


@dataclass(frozen=True)
class Summary:
    """Different values in ascending order, the weight of each, and by how much weight a rank may be wrong."""

    values: Array
    mass: Array
    error: float = 0.0

    @classmethod
    def of(cls, values: Array, weight: Array | None) -> Summary:
        if weight is not None:
            return cls(*_grouped(values, weight)).collapsed()
        ordered = np.sort(values)
        starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        if np.count_nonzero(starts) > POINTS:  # most columns of numbers: the ranks are there to be read
            ranks = ((np.arange(POINTS) + 0.5) * (len(values) / POINTS)).astype(np.int64)
            return cls(*_grouped(ordered[ranks], np.full(POINTS, len(values) / POINTS)), len(values) / POINTS / 2)
        first = np.flatnonzero(starts)
        return cls(ordered[first], np.diff(first, append=len(values)).astype(np.float64))

    def merged(self, other: Summary) -> Summary:
        values = np.concatenate([self.values, other.values])
        mass = np.concatenate([self.mass, other.mass])
        return Summary(*_grouped(values, mass), self.error + other.error).collapsed()

    def collapsed(self) -> Summary:
        if len(self.values) <= POINTS:
            return self
        below = np.cumsum(self.mass)
        share = float(below[-1]) / POINTS
        at = np.searchsorted(below, (np.arange(POINTS) + 0.5) * share)
        return Summary(*_grouped(self.values[at], np.full(POINTS, share)), self.error + share / 2)


def _grouped(values: Array, mass: Array) -> tuple[Array, Array]:
    """Equal values as one, in ascending order. Fast where `values` is two runs that ascend, one after the other."""
    order = np.argsort(values, kind="stable")
    values, mass = values[order], mass[order]
    first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return values[first], np.add.reduceat(mass, first)


@dataclass
class QuantileSketch:
    """The distribution of a column's values. `levels[k]` holds about 2^k pieces, or nothing."""

    levels: list[Summary | None] = field(default_factory=list)

    def add(self, values: Array, weight: Array | None = None) -> None:
        """Values without holes; weights are positive."""
        if len(values):
            self._put(Summary.of(values, weight), 0)

    def merge(self, other: QuantileSketch) -> None:
        for level, summary in enumerate(other.levels):
            if summary is not None:
                self._put(summary, level)

    def _put(self, summary: Summary, level: int) -> None:
        while True:
            while len(self.levels) <= level:
                self.levels.append(None)
            there = self.levels[level]
            if there is None:
                self.levels[level] = summary
                return
            self.levels[level] = None
            summary = there.merged(summary)
            level += 1

    @property
    def exact(self) -> bool:
        return self.rank_error == 0.0

    @property
    def rank_error(self) -> float:
        """By how much weight a rank may be wrong, at most."""
        return sum(summary.error for summary in self.levels if summary is not None)

    def distribution(self) -> tuple[Array, Array]:
        """Distinct values in ascending order and the weight of each, as `masses` of all values would give them."""
        present = [summary for summary in self.levels if summary is not None]
        values = np.concatenate([np.empty(0), *(summary.values for summary in present)])
        mass = np.concatenate([np.empty(0), *(summary.mass for summary in present)])
        return _grouped(values, mass) if len(values) else (values, mass)
