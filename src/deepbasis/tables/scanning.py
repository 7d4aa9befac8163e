"""One pass over a table in files: its statistics, and the rows that are held out.

A second look at the same rows, with what the first has found, makes numbers of them (`Encoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepbasis.errors import InputError
from deepbasis.tables.arrow import Block
from deepbasis.tables.columns import MISSING, Array, Column, Mask
from deepbasis.tables.encoders import reads_as
from deepbasis.tables.naming import check_present
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import numbers
from deepbasis.tables.sources import Source
from deepbasis.tables.statistics import Statistics
from deepbasis.tables.table import HeldOut
from deepbasis.tables.targets import TargetScaler, check_target, check_weights

_NUMBERS = ("numeric", "boolean", MISSING)
_SEARCH_ROWS = 65_536


@dataclass(frozen=True)
class Roles:
    """Which part each column plays."""

    features: list[str]
    target: str
    weight: str | None = None
    groups: str | None = None
    """Rows of one group are never both trained on and held out."""

    @classmethod
    def of(cls, source: Source, target: str, weight: str | None = None, groups: str | None = None) -> Roles:
        name = source.files[0].place.name
        beside = [column for column in (target, weight, groups) if column is not None]
        check_present(source.names, beside, name)
        for role, column in (("target", target), ("weight", weight)):
            if column is not None:
                _check_numbers(source, role, column)
        features = [column for column in source.names if column not in beside]
        if not features:
            raise InputError(f"{name} has no column left to predict '{target}' from: it needs one at least")
        return cls(features, target, weight, groups)

    def check_target(self, source: Source) -> None:
        """Of another table than the one that is trained on."""
        _check_numbers(source, "target", self.target)

    @property
    def columns(self) -> list[str]:
        return [*self.features, self.target, *(column for column in (self.weight, self.groups) if column is not None)]

    def target_of(self, block: Block) -> Array:
        with block.located():
            return check_target(self._numbers(block, self.target), f"target column '{self.target}' of {block.name}")

    def weight_of(self, block: Block) -> Array | None:
        if self.weight is None:
            return None
        with block.located():
            return check_weights(self._numbers(block, self.weight), f"weight column '{self.weight}' of {block.name}")

    def features_of(self, block: Block) -> list[Column]:
        with block.located():
            return [block.column(name) for name in self.features]

    def out_of(self, block: Block, file: int, held_out: HeldOut) -> Mask:
        """Whether each row is held out."""
        if self.groups is None:
            return held_out.of(file, block.first_row, len(block))
        with block.located():
            column = block.column(self.groups)
            if column.missing.any():
                raise InputError(
                    f"X: {column.label} names groups and has {int(column.missing.sum())} missing value(s), the first "
                    f"in row {int(np.argmax(column.missing))}; give each of those rows a group of its own"
                )
            return held_out.of_groups(column)

    @staticmethod
    def _numbers(block: Block, column: str) -> Array:
        return numbers(block.table.column(column))


def _check_numbers(source: Source, role: str, column: str) -> None:
    """Refuse a column of anything else, with the first value that is no number: one cell makes a CSV column text."""
    if source.kinds[column] in _NUMBERS:
        return
    remedy = "or choose another column"
    for unit in range(len(source.units)):
        for block in source.blocks(unit, [column], _SEARCH_ROWS):
            with block.located():
                found = _first_that_is_no_number(block.column(column))
                if found:
                    named = f"{role} column '{column}' of {block.name}"
                    raise InputError(f"{named} must hold numbers, got {found}; mend that, {remedy}")
    named = f"{role} column '{column}' of {source.name}"
    raise InputError(f"{named} must hold numbers, and holds them as text; convert it, {remedy}")


def _first_that_is_no_number(column: Column) -> str:
    """As 'red' in row 0; nothing where all are numbers, or missing."""
    if column.kind != "categorical":
        return "" if column.kind in _NUMBERS else column.example()
    words = [position for position, text in enumerate(column.categories) if not reads_as("numeric", text)]
    rows = np.flatnonzero(np.isin(column.values, words))
    return f"{column.categories[int(column.values[rows[0]])]!r} in row {rows[0]}" if len(rows) else ""


@dataclass(frozen=True)
class Held:
    """Rows of one unit that were held out, as they stand in the file."""

    unit: int
    first_row: int
    table: Any

    def to_bytes(self) -> bytes:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write(self.table)
        return bytes(sink.getvalue())

    @staticmethod
    def table_of(content: bytes) -> Any:
        import pyarrow as pa

        return pa.ipc.open_stream(content).read_all()


def scan(
    source: Source,
    roles: Roles,
    held_out: HeldOut,
    units: Iterable[int],
    block_rows: int,
    tell: Callable[[int], None] = lambda rows: None,
) -> tuple[Statistics, list[Held]]:
    """What the training rows of these units say, and their held-out rows. `tell` hears how many rows were read."""
    statistics = Statistics.empty(roles.features, len(source.units))
    held: list[Held] = []
    for unit in units:
        file = source.units[unit].file
        for block in source.blocks(unit, roles.columns, block_rows):
            y, weight = roles.target_of(block), roles.weight_of(block)
            out = roles.out_of(block, file, held_out)
            keep = ~out if weight is None else ~out & (weight > 0)
            columns = roles.features_of(block)
            if not keep.all():
                columns = [column.rows(keep) for column in columns]
            statistics.add(unit, columns, y[keep], None if weight is None else weight[keep])
            if out.any():
                held.append(Held(unit, block.first_row, _filtered(block.table, out)))
            tell(len(block))
    return statistics, held


def _filtered(table: Any, keep: Mask) -> Any:
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    return table.filter(pa.array(keep)).combine_chunks()  # copies: what is kept must not hold the block


@dataclass(frozen=True)
class Encoder:
    """From blocks to rows of numbers: inputs, target in units of its spread, and the weight where there is one."""

    roles: Roles
    preprocessor: Preprocessor
    target: TargetScaler
    dtype: np.dtype[Any]

    def without_weight(self) -> Encoder:
        return replace(self, roles=replace(self.roles, weight=None, groups=None))

    @property
    def width(self) -> int:
        return self.preprocessor.width + 1 + (self.roles.weight is not None)

    def rows(self, block: Block) -> Array:
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
            keep = ~self.roles.out_of(block, file, held_out) & self.present(rows)
            yield rows if keep.all() else rows[keep]

    def held_rows(self, tables: Sequence[Any], name: str) -> Array:
        """Of held-out rows; those of weight 0 are none."""
        parts = [self.rows(Block(name, 0, table)) for table in tables]
        rows = np.concatenate([np.empty((0, self.width), dtype=self.dtype), *parts])
        return rows[self.present(rows)]
