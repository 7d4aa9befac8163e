"""Parquet: its units are row groups, which are read in pieces. A file in memory is one unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from deepbasis.errors import DeepBasisError, FileFormatError
from deepbasis.tables.formats.base import changed, damaged, empty
from deepbasis.tables.places import ColumnSelection, Place

if TYPE_CHECKING:
    import pandas as pd

_MARK = b"PAR1"  # such a file begins and ends with it
_BUFFER_BYTES = 1 << 20
"""Read of each column at a time, so that a row group of any size takes little memory."""


class Parquet:
    def survey(self, place: Place, selection: ColumnSelection) -> ParquetFile:
        with _opened(place) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]  # pandas'
            types = {name: file.schema_arrow.field(name).type for name in selection.inside(names, place)}
            return ParquetFile(place, names, types, _unit_rows(file, place))

    def write(self, table: pd.DataFrame, to: BinaryIO) -> None:
        table.to_parquet(to, engine="pyarrow", index=False)


PARQUET = Parquet()


@dataclass(frozen=True)
class ParquetFile:
    """What the footer says."""

    place: Place
    names: list[str]
    types: dict[str, Any]
    unit_rows: list[int]
    is_text: bool = False

    def read(
        self, unit: int, columns: Sequence[str], copied: Sequence[str], rows: int, types: Mapping[str, Any]
    ) -> Iterator[tuple[Any, Any]]:
        import pyarrow as pa

        wanted = list(dict.fromkeys([*columns, *copied]))
        with _opened(self.place) as file:
            if _unit_rows(file, self.place) != self.unit_rows:
                raise changed(self.place)
            if self.place.in_memory:
                tables = iter([file.read(columns=wanted)])
            else:
                batches = file.iter_batches(rows, row_groups=[unit], columns=wanted, use_threads=False)
                tables = (pa.Table.from_batches([batch]) for batch in batches)
            for table in tables:
                yield table.select(list(columns)), table.select(list(copied))


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
