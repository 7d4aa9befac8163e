"""A Parquet file that is not read at once: its row groups, and pieces of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.csv_text import PARQUET
from deepbasis.tables.files import check_type, damaged
from deepbasis.tables.places import Place

_BUFFER_BYTES = 1 << 20
"""Read of each column at a time, so that a row group of any size takes little memory."""


@dataclass(frozen=True)
class ParquetFile:
    """What the footer says."""

    place: Place
    names: list[str]
    types: dict[str, Any]
    group_rows: list[int]

    @classmethod
    def survey(cls, place: Place) -> ParquetFile:
        with _opened(place) as file:
            footer = file.metadata
            rows = [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]
            fields = [field for field in file.schema_arrow if not field.name.startswith("__index_level_")]
            return cls(place, [field.name for field in fields], {field.name: field.type for field in fields}, rows)

    def check_types(self, columns: Sequence[str]) -> None:
        for column in columns:
            check_type(self.types[column], column, self.place.name)

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """A row group as record batches of at most `rows` rows."""
        with _opened(self.place) as file:
            if (
                file.metadata.num_row_groups <= group
                or file.metadata.row_group(group).num_rows != self.group_rows[group]
            ):
                raise FileFormatError(f"{self.place.name} has changed while it was read; start again")
            yield from file.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False)


@contextmanager
def _opened(place: Place) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    with place.open() as source:
        size = source.size()
        if size == 0:
            raise InputError(f"{place.name} is empty: it has no header and no rows")
        if size < 3 * len(PARQUET) or source.read_at(len(PARQUET), 0) != PARQUET:
            raise FileFormatError(
                f"{place.name} is not a Parquet file: write it as Parquet, or name it after what it is (.csv)"
            )
        if source.read_at(len(PARQUET), size - len(PARQUET)) != PARQUET:
            raise FileFormatError(f"{place.name} is truncated: its end is missing; copy or write it again")
        try:
            yield parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (InputError, FileFormatError):
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeError) as error:
            raise damaged(place.name, error) from None
