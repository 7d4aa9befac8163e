"""What a file format must provide, so that `Source` can read its files and `write_tables` can write them.

A format is registered under the ending of its files' names: `deepbasis.register("format", ".jsonl", ...)`. For files
that are always read at once, `WholeFileFormat` makes a format from two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.places import ColumnSelection, Place, one_line

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Request:
    """What is wanted of a unit of a file."""

    unit: int
    columns: list[str]
    copied: list[str]
    """To be handed on as they are; of text the cells."""
    rows: int
    """At a time, where the format can do that."""
    types: Mapping[str, Any]
    """Of the `columns`, where the file is text."""


@dataclass(frozen=True)
class TableFile:
    """One surveyed file: its columns, and units of rows that can be read independently."""

    place: Place
    names: Sequence[str]
    """All of its columns."""
    types: Mapping[str, Any]
    """The Arrow types of those that were selected."""
    unit_rows: Sequence[int]
    """How many rows each unit has, in the order of the file."""
    read: Callable[[Request], Iterator[tuple[Any, Any]]]
    """The rows of a unit, some at a time: an Arrow table of the columns, and one of those that are copied."""
    is_text: bool = False
    """Files of text agree on types, and their columns are copied as the text of the cells."""
    row_bytes: int = 0
    """About how much memory a row of the selected columns takes as it is read."""
    open_bytes: int = 0
    """What is held beside the rows while a unit is read."""
    decimal: str = "."
    """The decimal separator, where the file is text."""
    note: str = ""
    """What was found out about the file and may be wrong."""
    codes: frozenset[str] = frozenset()
    """Columns of a file of text that would be numbers but for leading zeros."""


class Format(Protocol):
    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        """Find out what a file contains; `selection.inside(names, place)` are the columns that will be asked for."""

    def write(self, tables: Iterable[pd.DataFrame], to: BinaryIO) -> None:
        """Write the tables one below the other, without their index, to a file."""


@dataclass(frozen=True)
class WholeFileFormat:
    """A format whose files are read at once: a function from their bytes to an Arrow table, and one to bytes."""

    from_bytes: Callable[[bytes], Any]
    to_bytes: Callable[[pd.DataFrame], bytes]

    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        table = self._table(place)
        schema, rows, size = table.schema, table.num_rows, table.nbytes
        types = {name: schema.field(name).type for name in selection.inside(schema.names, place)}
        del table  # it is read again, when it is needed

        def read(request: Request) -> Iterator[tuple[Any, Any]]:
            again = self._table(place)
            if again.num_rows != rows:
                raise changed(place)
            yield again.select(request.columns), again.select(request.copied)

        row_bytes = size // max(rows, 1)
        return TableFile(place, schema.names, types, [rows], read, row_bytes=row_bytes, open_bytes=2 * size)

    def write(self, tables: Iterable[pd.DataFrame], to: BinaryIO) -> None:
        to.write(self.to_bytes(whole(tables)))

    def _table(self, place: Place) -> Any:
        import pyarrow as pa

        content = place.loaded().content
        if not content:
            raise empty(place)
        try:
            return self.from_bytes(content)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise damaged(place, error) from None


def whole(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One below the other."""
    import pandas as pd

    parts = list(tables)
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def agreed(one: Any, other: Any) -> Any:
    """The narrowest type that holds what both hold: whole numbers and fractions are numbers, anything else is text."""
    import pyarrow as pa

    if one is None or pa.types.is_null(one):
        return other
    if one == other or pa.types.is_null(other):
        return one
    if {one, other} <= {pa.int64(), pa.float64()}:
        return pa.float64()
    if all(pa.types.is_date(type_) or pa.types.is_timestamp(type_) for type_ in (one, other)):
        zones = {getattr(type_, "tz", None) for type_ in (one, other)}
        units = {getattr(type_, "unit", "s") for type_ in (one, other)}
        if len(zones) == 1:
            return pa.timestamp("ns" if "ns" in units else "s", zones.pop())
    return pa.string()


# ---- messages --------------------------------------------------------------------------------------------------------


def empty(place: Place) -> InputError:
    return InputError(f"{place.name} is empty: it has no header and no rows")


def damaged(place: Place, error: Exception) -> FileFormatError:
    return FileFormatError(f"{place.name} is damaged ({one_line(error)}): copy or write it again")


def changed(place: Place) -> FileFormatError:
    return FileFormatError(f"{place.name} has changed while it was read; start again")
