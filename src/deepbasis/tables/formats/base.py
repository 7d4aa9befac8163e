"""What a file format must give, so that `Source` can read its files and `write_table` can write them.

A format is registered under the ending of its files' names: `deepbasis.register("format", ".jsonl", ...)`. Where a file
is always read at once, `WholeFileFormat` makes a format of two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.places import ColumnSelection, Place, one_line

if TYPE_CHECKING:
    import pandas as pd


class TableFile(Protocol):
    """One file that was surveyed: its columns, and units of rows that can each be read alone."""

    @property
    def place(self) -> Place: ...

    @property
    def names(self) -> Sequence[str]:
        """All of its columns."""

    @property
    def types(self) -> Mapping[str, Any]:
        """The Arrow types of those that were selected."""

    @property
    def unit_rows(self) -> Sequence[int]:
        """How many rows each unit has, in the order of the file."""

    @property
    def is_text(self) -> bool:
        """Whether it holds text alone: files then agree on types, and columns are copied as the text of their cells."""

    def read(
        self, unit: int, columns: Sequence[str], copied: Sequence[str], rows: int, types: Mapping[str, Any]
    ) -> Iterator[tuple[Any, Any]]:
        """The rows of a unit in pieces, two Arrow tables each: `columns`, and those that are `copied`.

        A piece should have about `rows` rows where the format allows it. In text `columns` have the given `types`.
        """


class Format(Protocol):
    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        """Find out what a file holds; `selection.inside(names, place)` are the columns that will be asked for."""

    def write(self, table: pd.DataFrame, to: BinaryIO) -> None:
        """Write `table`, without its index, to a file."""


@dataclass(frozen=True)
class WholeFileFormat:
    """A format whose files are read at once: a function from their bytes to an Arrow table, and one to bytes."""

    from_bytes: Callable[[bytes], Any]
    to_bytes: Callable[[pd.DataFrame], bytes]

    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        table = self.table(place)
        types = {name: table.schema.field(name).type for name in selection.inside(table.schema.names, place)}
        return _WholeFile(place, table.schema.names, types, [table.num_rows], self)

    def write(self, table: pd.DataFrame, to: BinaryIO) -> None:
        to.write(self.to_bytes(table))

    def table(self, place: Place) -> Any:
        import pyarrow as pa

        content = place.loaded().content
        if not content:
            raise empty(place)
        try:
            return self.from_bytes(content)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise damaged(place, error) from None


@dataclass(frozen=True)
class _WholeFile:
    place: Place
    names: Sequence[str]
    types: Mapping[str, Any]
    unit_rows: Sequence[int]
    format: WholeFileFormat
    is_text: bool = False

    def read(
        self, unit: int, columns: Sequence[str], copied: Sequence[str], rows: int, types: Mapping[str, Any]
    ) -> Iterator[tuple[Any, Any]]:
        table = self.format.table(self.place)
        if table.num_rows != self.unit_rows[0]:
            raise changed(self.place)
        yield table.select(list(columns)), table.select(list(copied))


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
