"""Parquet: its units are row groups, which are read in pieces. A file in memory is one unit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from deepbasis.errors import DeepBasisError, FileFormatError
from deepbasis.tables.formats.base import Request, TableFile, changed, damaged, empty
from deepbasis.tables.places import ColumnSelection, Place

if TYPE_CHECKING:
    import pandas as pd

_MARK = b"PAR1"  # such a file begins and ends with it
_BUFFER_BYTES = 1 << 20
"""Read of each column at a time, so that a row group of any size takes little memory."""


class Parquet:
    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        """What the footer says."""
        with _opened(place) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]  # pandas'
            types = {name: file.schema_arrow.field(name).type for name in selection.inside(names, place)}
            unit_rows = _unit_rows(file, place)

        def read(request: Request) -> Iterator[tuple[Any, Any]]:
            with _opened(place) as file:
                if _unit_rows(file, place) != unit_rows:
                    raise changed(place)
                for table in _tables(file, place, request):
                    yield table.select(request.columns), table.select(request.copied)

        return TableFile(place, names, types, unit_rows, read)

    def write(self, table: pd.DataFrame, to: BinaryIO) -> None:
        table.to_parquet(to, engine="pyarrow", index=False)


PARQUET = Parquet()


def _tables(file: Any, place: Place, request: Request) -> Iterator[Any]:
    import pyarrow as pa

    columns = list(dict.fromkeys([*request.columns, *request.copied]))
    if place.in_memory:
        yield file.read(columns=columns)
        return
    for batch in file.iter_batches(request.rows, row_groups=[request.unit], columns=columns, use_threads=False):
        yield pa.Table.from_batches([batch])


def _unit_rows(file: Any, place: Place) -> list[int]:
    footer = file.metadata
    if place.in_memory:
        return [footer.num_rows]
    return [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]


@contextmanager
def _opened(place: Place) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    with place.open() as source:
        size = source.size()
        if size == 0:
            raise empty(place)
        if source.read_at(len(_MARK), 0) != _MARK:
            raise FileFormatError(
                f"{place.name} is not a Parquet file: write it as Parquet, or name it after what it is (.csv)"
            )
        if source.read_at(len(_MARK), max(0, size - len(_MARK))) != _MARK:
            raise FileFormatError(f"{place.name} is truncated: its end is missing; copy or write it again")
        try:
            buffer_size = 0 if place.in_memory else _BUFFER_BYTES
            yield parquet.ParquetFile(source, buffer_size=buffer_size, pre_buffer=False)
        except DeepBasisError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeError) as error:
            raise damaged(place, error) from None
