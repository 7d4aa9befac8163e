"""Which rows of a table in files are held out: by a hash of where they stand, or of the group that they belong to, so
that every run, and every number of workers, holds out the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from deepbasis.tables.columns import Array, Column, Mask

MOST_ROWS = 100_000
"""Held out at most (on average): they are kept in memory."""

_MOST_CELLS = 10_000_000  # of them, whatever the number of columns
_LEAST_ROWS = 1_000  # that a score of many columns can be told from
_FEW = 10_000  # up to these the number is exact, beyond it is left to chance (to a few in a hundred)
_PIECE = 1 << 20  # rows hashed at a time
_EVERYTHING = 2**64


@dataclass(frozen=True)
class HeldOut:
    """The rows whose hash is below `threshold`, an integer up to 2^64."""

    threshold: int

    @classmethod
    def none(cls) -> HeldOut:
        return cls(0)

    @classmethod
    def choose(cls, fraction: float, file_rows: Sequence[int], most: int = MOST_ROWS) -> HeldOut:
        """`fraction` of the rows of files with so many rows each, at most `most`; at least 1, and never all."""
        rows = sum(file_rows)
        wanted = min(max(1, round(fraction * rows)), most, rows - 1)
        if wanted <= 0:
            return cls.none()
        if wanted > _FEW:
            return cls(int(wanted / rows * _EVERYTHING))
        smallest = np.empty(0, dtype=np.uint64)
        for file, count in enumerate(file_rows):
            for start in range(0, count, _PIECE):
                hashes = position_hashes(file, start, min(_PIECE, count - start))
                smallest = np.sort(np.concatenate([smallest, hashes]))[:wanted]
        return cls(int(smallest[-1]) + 1)

    @classmethod
    def groups(cls, fraction: float, rows: int, most: int = MOST_ROWS) -> HeldOut:
        """As many of the groups; they hold `fraction` of the rows, at most `most`, on average."""
        return cls(int(min(fraction, most / rows) * _EVERYTHING))

    def of_groups(self, column: Column) -> Mask:
        """Whether each row's group is held out."""
        if self.threshold == 0:
            return np.zeros(len(column.values), dtype=bool)
        text = column if column.kind == "categorical" else column.as_text()
        hashes = name_hashes(text.categories)
        return (hashes <= np.uint64(self.threshold - 1))[text.values]

    def of(self, file: int, first_row: int, rows: int) -> Mask:
        """Whether each of these rows is held out."""
        if self.threshold == 0:
            return np.zeros(rows, dtype=bool)
        return position_hashes(file, first_row, rows) <= np.uint64(self.threshold - 1)


def most_rows(columns: int) -> int:
    """Rows to hold out at most: fewer where they are long. A property of the table, not of the machine."""
    return max(_LEAST_ROWS, min(MOST_ROWS, _MOST_CELLS // columns))


def position_hashes(file: int, first_row: int, rows: int) -> Array:
    """64 bits for each of some rows of a file, both counted from 0: SplitMix64 of the row's number, from a start that
    the file's number gives."""
    golden = 0x9E3779B97F4A7C15
    start = int(_mix(np.array([file * golden % _EVERYTHING], dtype=np.uint64))[0])
    row = np.arange(first_row, first_row + rows, dtype=np.uint64)
    return _mix(row * np.uint64(golden) + np.uint64(start))


def name_hashes(names: Iterable[str]) -> Array:
    """64 bits for each text."""
    digests = b"".join(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _mix(z: Array) -> Array:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
