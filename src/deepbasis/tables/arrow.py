"""Columns of an Arrow table, without the way through pandas: what a table in pieces is read by.

Each becomes the same `Column` that `reading.py` makes of it in a DataFrame; texts are told apart by Arrow, not one by
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepbasis.errors import InputError
from deepbasis.tables.columns import MISSING, Array, Column, categorical_column, category, missing_column, typed_column
from deepbasis.tables.reading import refuse_infinite

FROM_0 = "(counting from 0)"


@dataclass(frozen=True)
class Block:
    """Some rows of a file that lie together."""

    name: str
    """How messages call the file: "'sales/2021.parquet'"."""
    first_row: int
    """In the file, counting from 0."""
    table: Any
    """A pyarrow Table or RecordBatch."""
    copied: Any = None
    """Columns of the same rows that are handed on and not looked at, as another; None where there are none."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, column: str) -> Column:
        return arrow_column(f"column {column!r}", self.table.column(column))

    @contextmanager
    def located(self) -> Iterator[None]:
        """What is wrong with "X" in "row 3" is wrong with the file, in that row of it."""
        try:
            yield
        except InputError as error:
            text = re.sub(r"^X(?=[: ])", self.name, str(error))
            text = re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + self.first_row} {FROM_0}", text, count=1)
            raise type(error)(text) from None


def kind_of(type_: Any) -> str:
    """The kind of column that values of this Arrow type make; "" for what makes none."""
    import pyarrow.types as types

    if types.is_dictionary(type_) or types.is_time(type_):
        return "categorical"
    for kind, tests in {
        MISSING: [types.is_null],
        "numeric": [types.is_integer, types.is_floating, types.is_decimal],
        "boolean": [types.is_boolean],
        "datetime": [types.is_date, types.is_timestamp],
        "duration": [types.is_duration],
        "categorical": [types.is_string, types.is_large_string, types.is_string_view],
    }.items():
        if any(test(type_) for test in tests):
            return kind
    return ""


def arrow_column(label: str, values: Any) -> Column:
    """A pyarrow Array or ChunkedArray as a column."""
    values = _one_array(values)
    kind = kind_of(values.type)
    if values.null_count == len(values):
        return missing_column(label, len(values))
    if kind == "categorical":
        return _text(label, values)
    if kind in ("datetime", "duration"):
        return typed_column(label, _times(values))
    if kind not in ("numeric", "boolean"):
        raise InputError(f"X: {label} is of type {values.type}, which is not supported; convert it or drop it")
    column = Column(label, kind, numbers(values))
    refuse_infinite(column)
    return missing_column(label, len(values)) if np.isnan(column.values).all() else column


def numbers(values: Any) -> Array:
    """Numbers or truth values as float64, NaN where there is no value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _one_array(values)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    values = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False))  # a hole is NaN here


def _one_array(values: Any) -> Any:
    import pyarrow as pa

    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def _times(values: Any) -> Array:
    """datetime64 (UTC) or timedelta64, NaT where there is no value."""
    import pyarrow as pa

    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s" if pa.types.is_date32(values.type) else "ms"))
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _text(label: str, values: Any) -> Column:
    import pyarrow as pa

    if pa.types.is_time(values.type):
        values = values.cast(pa.string())
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    names = encoded.dictionary.to_pylist()
    if None in names:  # a dictionary may hold a hole as a value
        hole = names.index(None)
        codes[codes == hole] = -1
        names[hole] = ""
    return categorical_column(label, codes, [name if isinstance(name, str) else category(name) for name in names])
