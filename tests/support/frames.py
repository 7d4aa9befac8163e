"""Tables in files as DataFrames: what is read, to be compared with what pandas reads."""

from collections.abc import Collection, Sequence
from os import PathLike
from typing import Any

import pandas as pd
import pyarrow as pa

from deepbasis.tables.places import load
from deepbasis.tables.source import Source


def read_table(
    path: str | PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    drop: Collection[str] = (),
    text: Collection[str] = (),
) -> pd.DataFrame:
    """One file, or with "-" standard input."""
    return frame_of(Source.open(load(path), columns, drop, text))


def frame_of(source: Source) -> pd.DataFrame:
    source.check_rows()
    tables = [pa.table(block.table) for block in source.all_blocks(source.names)]
    if len({table.schema.remove_metadata() for table in tables}) > 1:
        tables = [_without_dictionaries(table) for table in tables]  # the only types that do not widen
    return to_pandas(pa.concat_tables(tables, promote_options="permissive"))


def to_pandas(table: Any) -> pd.DataFrame:
    for k, field in enumerate(table.schema):
        if pa.types.is_null(field.type) or pa.types.is_decimal(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.float64()))
        elif pa.types.is_time(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.string()))
    frame: pd.DataFrame = table.to_pandas(date_as_object=False, ignore_metadata=True)
    for k, field in enumerate(table.schema):
        if pa.types.is_boolean(field.type) and table.column(k).null_count:
            frame[field.name] = frame[field.name].astype("boolean")
    return frame


def _without_dictionaries(table: Any) -> Any:
    for k, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(field.type.value_type))
    return table
