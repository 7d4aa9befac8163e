"""One pass over a table in files, by any number of workers: all that preprocessing needs, and the rows held out.

    statistics, held = scan(source, roles, held_out, units, block_rows)     # of this worker's units
    whole = TableStatistics.merged([...])                                   # of all workers
    whole.preprocessor(), whole.target()

With what the pass has found an `Encoder` makes numbers of rows, when they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import Array, Column, Mask
from deepbasis.tables.encoders import STANDARD
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from deepbasis.tables.summaries import ColumnSummary, Moments, Numbers
from deepbasis.tables.table import HeldOut
from deepbasis.tables.targets import TargetScaler


@dataclass
class TableStatistics:
    names: list[str]
    columns: list[ColumnSummary]
    kept: Array
    """Training rows in each unit of the source: those of positive weight that are not held out. 0 in units not seen."""
    target_moments: Moments = field(default_factory=Moments)

    @classmethod
    def empty(cls, names: Sequence[str], units: int) -> TableStatistics:
        summaries = [ColumnSummary(f"column {name!r}") for name in names]
        return cls(list(names), summaries, np.zeros(units, dtype=np.int64))

    @property
    def rows(self) -> int:
        return int(self.kept.sum())

    @property
    def mass(self) -> float:
        """The sum of the weights: the number of rows where there are none."""
        return self.target_moments.mass

    def add(self, unit: int, columns: Iterable[Column], y: Array, weight: Array | None) -> None:
        """Rows of one unit, each of positive weight."""
        for summary, column in zip(self.columns, columns, strict=True):
            summary.add(column, weight)
        self.target_moments.add(y, weight)
        self.kept[unit] += len(y)

    @classmethod
    def merged(cls, parts: Sequence[TableStatistics]) -> TableStatistics:
        whole = cls.empty(parts[0].names, len(parts[0].kept))
        for part in parts:
            for mine, theirs in zip(whole.columns, part.columns, strict=True):
                mine.merge(theirs)
            whole.target_moments.merge(part.target_moments)
            whole.kept += part.kept
        return whole

    def preprocessor(self, scaling: str = STANDARD) -> Preprocessor:
        return Preprocessor(self.names, tuple(summary.encoding(scaling) for summary in self.columns))

    def target(self) -> TargetScaler:
        moments = self.target_moments
        return TargetScaler.of(moments.mean, moments.std, max(abs(moments.low), abs(moments.high)))

    def rank_error(self) -> float:
        """The share of the weight by which a quantile of any column may be off, at most."""
        sketches = [summary.values.sketch for summary in self.columns if isinstance(summary.values, Numbers)]
        return max((sketch.rank_error / self.mass for sketch in sketches), default=0.0)


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
    """What the training rows of these units say, and their held-out rows. `progress` gets each number of rows read."""
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
            statistics.add(unit, columns, y[keep], None if weight is None else weight[keep])
            if out.any():
                copied = block.table.filter(pa.array(out)).combine_chunks()  # it must not hold the block
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
        """Of held-out rows; those of weight 0 are none."""
        parts = [self.rows(FileBlock(name, 0, table)) for table in tables]
        rows = np.concatenate([np.empty((0, self.width), dtype=self.dtype), *parts])
        return rows[self.present(rows)]
