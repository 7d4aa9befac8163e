"""One pass over a table in files, by any number of workers: everything that preprocessing needs, and the held-out rows.

    statistics, held = scan(source, roles, held_out, units, block_rows)     # of this worker's units
    whole = TableStatistics.merged([...])                                   # of all workers
    whole.preprocessor(), whole.target()

With what the pass has found an `Encoder` makes numbers of rows, when they are read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import MISSING, Array, Column, Mask, joined, missing_column
from deepbasis.tables.encoders import STANDARD, Encoding, fit_encoding, mean_and_std, no_values
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from deepbasis.tables.table import HeldOut, position_hashes
from deepbasis.tables.targets import TargetScaler

_FEWEST_ROWS, _MOST_ROWS = 4_096, 65_536  # of the sample
_MOST_CELLS = 10_000_000  # of it, whatever the number of columns


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
class TableStatistics:
    """What one pass finds out. Exact: counts, the target's moments, gaps and ends of columns. The rest of an encoding
    (quantiles, moments, frequent categories) comes from a sample of the rows, or from all of them in a small table.

    The sample holds the rows of the smallest hashes: the same rows, whichever worker reads which piece, and in
    whichever order.
    """

    names: list[str]
    kept: Array
    """Training rows in each unit of the source: those of positive weight that are not held out. 0 in units not seen."""
    most: int
    """Rows of the sample."""
    target_moments: Moments = field(default_factory=Moments)
    hashes: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    sample: list[Column] = field(default_factory=list)
    weight: Array | None = None
    missing: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    ends: Array = field(default_factory=lambda: np.zeros((0, 2)))

    @classmethod
    def empty(cls, names: Sequence[str], units: int, most: int | None = None) -> TableStatistics:
        most = max(_FEWEST_ROWS, min(_MOST_ROWS, _MOST_CELLS // len(names))) if most is None else most
        nothing = [missing_column(f"column {name!r}", 0) for name in names]
        ends = np.tile([math.inf, -math.inf], (len(names), 1))
        missing = np.zeros(len(names), dtype=bool)
        return cls(list(names), np.zeros(units, dtype=np.int64), most, sample=nothing, missing=missing, ends=ends)

    @property
    def rows(self) -> int:
        return int(self.kept.sum())

    @property
    def mass(self) -> float:
        """The sum of the weights, or the number of rows without weights."""
        return self.target_moments.mass

    def add(self, unit: int, hashes: Array, columns: Sequence[Column], y: Array, weight: Array | None) -> None:
        """Rows of one unit, each of positive weight."""
        self.target_moments.add(y, weight)
        self.kept[unit] += len(y)
        for k, column in enumerate(columns):
            gaps = column.missing
            self.missing[k] |= bool(gaps.any())
            if column.kind != "categorical" and not gaps.all():
                low, high = np.nanmin(column.values), np.nanmax(column.values)
                self.ends[k] = min(self.ends[k, 0], low), max(self.ends[k, 1], high)
        self._sample(hashes, columns, weight)

    def _sample(self, hashes: Array, columns: Sequence[Column], weight: Array | None) -> None:
        if len(self.hashes) == self.most:
            near = hashes < self.hashes.max()
            hashes, columns = hashes[near], [column.rows(near) for column in columns]
            weight = None if weight is None else weight[near]
        if not len(hashes):
            return
        hashes = np.concatenate([self.hashes, hashes])
        columns = [joined([mine, theirs]) for mine, theirs in zip(self.sample, columns, strict=True)]
        weight = weight if self.weight is None or weight is None else np.concatenate([self.weight, weight])
        if len(hashes) > self.most:
            keep = np.argpartition(hashes, self.most)[: self.most]
            hashes, columns = hashes[keep], [column.rows(keep) for column in columns]
            weight = None if weight is None else weight[keep]
        self.hashes, self.sample, self.weight = hashes, columns, weight

    @classmethod
    def merged(cls, parts: Sequence[TableStatistics]) -> TableStatistics:
        whole = cls.empty(parts[0].names, len(parts[0].kept), parts[0].most)
        for part in parts:
            whole.target_moments.merge(part.target_moments)
            whole.kept += part.kept
            whole.missing |= part.missing
            whole.ends = np.stack(
                [np.minimum(whole.ends[:, 0], part.ends[:, 0]), np.maximum(whole.ends[:, 1], part.ends[:, 1])], 1
            )
            whole._sample(part.hashes, part.sample, part.weight)
        return whole

    def preprocessor(self, scaling: str = STANDARD) -> Preprocessor:
        encodings = []
        for column, missing, (low, high) in zip(self.sample, self.missing.tolist(), self.ends.tolist(), strict=True):
            if not column.missing.all():
                ends = None if column.kind == "categorical" else (low, high)
                encodings.append(fit_encoding(column, self.weight, scaling, missing, ends))
            elif column.kind == MISSING and low > high:
                raise no_values(column.label)
            else:  # too rare to be in the sample: that it is there is all that is said
                encodings.append(Encoding("numeric" if column.kind == MISSING else column.kind, missing, varies=False))
        return Preprocessor(self.names, tuple(encodings))

    def target(self) -> TargetScaler:
        moments = self.target_moments
        return TargetScaler.of(moments.mean, moments.std, max(abs(moments.low), abs(moments.high)))


@dataclass(frozen=True)
class HeldRows:
    """Rows of one unit that were held out, as they stand in the file."""

    unit: int
    first_row: int
    table: Any


def scan(
    source: Source,
    roles: Roles,
    held_out: HeldOut,
    units: Iterable[int],
    block_rows: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> tuple[TableStatistics, list[HeldRows]]:
    """Statistics of these units' training rows, and their held-out rows. `progress` gets each number of rows read."""
    import pyarrow as pa

    statistics = TableStatistics.empty(roles.features, len(source.units))
    held: list[HeldRows] = []
    for unit in units:
        file = source.units[unit].file
        for block in source.blocks(unit, roles.columns, block_rows):
            y, weight = roles.target_of(block), roles.weight_of(block)
            out = roles.held_out_of(block, file, held_out)
            keep = ~out if weight is None else ~out & (weight > 0)
            columns = roles.features_of(block)
            if not keep.all():
                columns = [column.rows(keep) for column in columns]
            hashes = position_hashes(file, block.first_row, len(block))[keep]
            statistics.add(unit, hashes, columns, y[keep], None if weight is None else weight[keep])
            if out.any():
                copied = block.table.filter(pa.array(out)).combine_chunks()  # it must not keep the block alive
                held.append(HeldRows(unit, block.first_row, copied))
            progress(len(block))
    return statistics, held


@dataclass(frozen=True)
class Encoder:
    """From blocks to rows of numbers: inputs, target in units of its spread, and the weight where there is one."""

    roles: Roles
    preprocessor: Preprocessor
    target: TargetScaler
    dtype: np.dtype[Any]

    def for_validation(self) -> Encoder:
        return replace(self, roles=self.roles.for_validation())

    @property
    def width(self) -> int:
        return self.preprocessor.width + 1 + (self.roles.weight is not None)

    def rows(self, block: FileBlock) -> Array:
        """[n, width]."""
        inputs = self.preprocessor.width
        out = np.zeros((len(block), self.width), dtype=self.dtype)
        with block.located():
            self.preprocessor.encode(self.roles.features_of(block), out[:, :inputs])
        out[:, inputs] = (self.roles.target_of(block) - self.target.mean) / self.target.scale
        weight = self.roles.weight_of(block)
        if weight is not None:
            out[:, inputs + 1] = weight
        return out

    def present(self, rows: Array) -> Mask:
        """Rows of positive weight."""
        return np.ones(len(rows), dtype=bool) if self.roles.weight is None else rows[:, -1] > 0

    def training_rows(self, source: Source, held_out: HeldOut, unit: int, block_rows: int) -> Iterator[Array]:
        """The rows of a unit that are trained on, in their order."""
        file = source.units[unit].file
        for block in source.blocks(unit, self.roles.columns, block_rows):
            rows = self.rows(block)
            keep = ~self.roles.held_out_of(block, file, held_out) & self.present(rows)
            yield rows if keep.all() else rows[keep]

    def held_rows(self, tables: Sequence[Any], name: str) -> Array:
        """Of held-out rows of positive weight."""
        parts = [self.rows(FileBlock(name, 0, table)) for table in tables]
        rows = np.concatenate([np.empty((0, self.width), dtype=self.dtype), *parts])
        return rows[self.present(rows)]
