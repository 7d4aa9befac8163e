"""Parquet: its units are row groups, which are read in pieces. Text is read as a dictionary: a text that stands in many
rows is held once, as it is in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from deepbasis.errors import DeepBasisError, FileFormatError
from deepbasis.tables.formats.base import Request, TableFile, changed, damaged, empty, whole
from deepbasis.tables.places import ColumnSelection, Place

if TYPE_CHECKING:
    import pandas as pd

_MARK = b"PAR1"  # such a file begins and ends with it
_BUFFER_BYTES, _ALL_BUFFERS = 1 << 20, 64 << 20
"""Read of each column at a time, and of all of them, so that a row group of any size takes little memory."""
_PAGE_BYTES = 1 << 20  # of values that belong together, as writers cut them; each column has one in memory
_COPIED_BYTES = 16 << 20  # of text that is copied, at a time


class Parquet:
    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        """What the footer says."""
        import pyarrow as pa

        with _opened(place) as file:
            schema = file.schema_arrow  # made anew each time it is asked for
            names = [name for name in schema.names if not name.startswith("__index_level_")]  # pandas'
            types = {name: schema.field(name).type for name in selection.inside(names, place)}
            unit_rows = _unit_rows(file)
            row_bytes, open_bytes = _sizes(file.metadata, types)
        text = [name for name, type_ in types.items() if _is_text(type_)]

        def read(request: Request) -> Iterator[tuple[Any, Any]]:
            wanted = dict.fromkeys([*request.columns, *request.copied])
            buffer_bytes = min(_BUFFER_BYTES, _ALL_BUFFERS // max(len(wanted), 1))
            with _opened(place, [name for name in text if name in wanted], buffer_bytes) as file:
                if _unit_rows(file) != unit_rows:
                    raise changed(place)
                for batch in file.iter_batches(
                    request.rows, row_groups=[request.unit], columns=list(wanted), use_threads=False
                ):
                    batch.validate(full=True)  # text may not be UTF-8, a dictionary too short
                    table = pa.Table.from_batches([batch])
                    step = _rows_to_copy(table.select(request.copied))
                    for some in (table.slice(start, step) for start in range(0, len(table), step)):
                        cells = [some.column(name).cast(types[name]) for name in request.copied]
                        yield some.select(request.columns), pa.table(cells, names=request.copied)

        return TableFile(place, names, types, unit_rows, read, row_bytes=row_bytes, open_bytes=open_bytes)

    def write(self, tables: Iterable[pd.DataFrame], to: BinaryIO) -> None:
        whole(tables).to_parquet(to, engine="pyarrow", index=False)


PARQUET = Parquet()


def _is_text(type_: Any) -> bool:
    from pyarrow import types

    type_ = type_.value_type if types.is_dictionary(type_) else type_
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def _rows_to_copy(table: Any) -> int:
    """How many rows at a time take little memory with their texts written out."""
    from pyarrow import compute, types

    dictionaries = [
        part.dictionary for column in table.columns if types.is_dictionary(column.type) for part in column.chunks
    ]
    texts = [one for one in dictionaries if _is_text(one.type)]
    longest = sum(compute.max(compute.binary_length(one)).as_py() or 0 for one in texts)
    return max(1, _COPIED_BYTES // max(longest, 1))


def _unit_rows(file: Any) -> list[int]:
    return [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]


def _sizes(footer: Any, types: Mapping[str, Any]) -> tuple[int, int]:
    """About how many bytes a row takes in memory, and what is held beside the rows while a row group is read.

    A dictionary counts among the rows: one that does not pay for itself is as long as what it stands for. What the
    footer says of a single column is not looked at: pyarrow aborts the process where that is damaged.
    """
    groups = [footer.row_group(k) for k in range(footer.num_row_groups)]
    unpacked, rows = max(((max(0, group.total_byte_size), group.num_rows) for group in groups), default=(0, 0))
    texts = unpacked // max(rows, 1) if any(_is_text(type_) for type_ in types.values()) else 0
    pages = min(2 * unpacked, 2 * _PAGE_BYTES * len(types))  # as they are in the file, and unpacked
    return 8 * len(types) + texts, pages + min(len(types) * _BUFFER_BYTES, _ALL_BUFFERS)


@contextmanager
def _opened(place: Place, text: list[str] | None = None, buffer_bytes: int = 0) -> Iterator[Any]:
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
            yield parquet.ParquetFile(source, read_dictionary=text, buffer_size=buffer_bytes, pre_buffer=False)
        except DeepBasisError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeError) as error:
            raise damaged(place, error) from None
