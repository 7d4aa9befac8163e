"""A CSV file that is not read at once: cut into blocks of whole records, each of which can be read alone.

A block ends at a line's end outside of quotes. As Arrow has it, a quotation mark opens them at the start of a field
only: in `5" pipe` it is a character like any other. The types of the columns are those that all blocks agree on, as
they would be if the file were read at once.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.columns import Array
from deepbasis.tables.csv_text import GZIP, check_text, header_of, parse, parse_cells, without_end
from deepbasis.tables.places import Place

BLOCK_BYTES = 4 << 20

Parsed: TypeAlias = tuple[Any, Any]
"""Of one block: what is read, and what is copied."""

_ENDS_A_FIELD = np.isin(np.arange(256), list(b",\n\r"))


@dataclass(frozen=True)
class Cut:
    """Where a block lies in its file."""

    start: int
    stop: int
    first_line: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class CsvFile:
    """What a first reading found out: the header, a type for each column, and where the blocks lie."""

    place: Place
    header: list[str]
    types: dict[str, Any]
    cuts: list[Cut]

    @classmethod
    def survey(cls, place: Place, text: Collection[str] = ()) -> CsvFile:
        """Columns in `text` are text, whatever stands in them."""
        header: list[str] = []
        types: dict[str, Any] = {}
        cuts: list[Cut] = []
        row = 0
        for start, line, content in _blocks(place):
            check_text(content, place.name, start, line)
            if not header:
                header = header_of(content, place.name)
            table = parse(content, header, header, place.name, first_line=line, text=text)
            types = {name: agreed(types.get(name), table.schema.field(name).type) for name in header}
            cuts.append(Cut(start, start + len(content), line, row, table.num_rows))
            row += table.num_rows
        if not header:
            raise InputError(f"{place.name} is empty: it has no header and no rows")
        return cls(place, header, types, cuts)

    def read(self, cut: Cut, columns: Sequence[str], types: dict[str, Any], copied: Sequence[str] = ()) -> Parsed:
        """A block as an Arrow table; and its columns that are to be copied, the text of their cells, as another."""
        with self.place.open() as file:
            content = file.read_at(cut.stop - cut.start, cut.start)
        return self._parsed(content, cut, columns, types, copied)

    def read_in_order(
        self, columns: Sequence[str], types: dict[str, Any], copied: Sequence[str] = ()
    ) -> Iterator[Parsed]:
        """Every block, one after another: the only way through a gzipped file."""
        for cut, (_, _, content) in zip(self.cuts, _blocks(self.place), strict=False):
            yield self._parsed(content, cut, columns, types, copied)

    def _parsed(
        self, content: bytes, cut: Cut, columns: Sequence[str], types: dict[str, Any], copied: Sequence[str]
    ) -> Parsed:
        own = {name: types[name] for name in columns}
        table = parse(content, columns, self.header, self.place.name, own, cut.first_line)
        if table.num_rows != cut.rows:
            raise FileFormatError(f"{self.place.name} has changed while it was read; start again")
        if not copied:
            return table, table
        return table, parse_cells(content, copied, self.header, self.place.name, cut.first_line)


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


def _blocks(place: Place) -> Iterator[tuple[int, int, bytes]]:
    """(first byte, first line, content): whole records, about `BLOCK_BYTES` of them at a time."""
    start, line = 0, 1
    rest = b""
    for piece in _pieces(place):
        rest += piece
        # Empty lines go to the next block: at the end of the file there is none, and they are nothing.
        cut = len(without_end(rest[: _last_end_of_record(rest)]))
        if cut:
            yield start, line, rest[:cut]
            start, line, rest = start + cut, line + rest.count(b"\n", 0, cut), rest[cut:]
    if rest.strip() or start == 0:
        yield start, line, rest


def _pieces(place: Place) -> Iterator[bytes]:
    with place.open() as file:
        if place.ending != ".csv.gz":
            while piece := file.read(BLOCK_BYTES):
                yield piece
            return
        if file.read_at(len(GZIP), 0) != GZIP:
            raise FileFormatError(
                f"{place.name} is not gzipped, as its name says: name it .csv, or compress it with gzip"
            )
        file.seek(0)
        try:
            with gzip.GzipFile(fileobj=file) as unzipped:
                while piece := unzipped.read(BLOCK_BYTES):
                    yield piece
        except (OSError, EOFError, zlib.error) as error:
            raise FileFormatError(
                f"{place.name} is truncated or damaged ({error}): copy or compress it again"
            ) from None


def _last_end_of_record(content: bytes) -> int:
    """The number of bytes up to and with the last line's end that is not inside quotes."""
    marks = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(marks == ord("\n"))
    quotes = _quotes_that_count(marks, np.flatnonzero(marks == ord('"')))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _quotes_that_count(marks: Array, quotes: Array) -> Array:
    """Of the places of quotation marks those that open or close quotes, by turns. A doubled one closes and opens."""
    first = 3 if marks[:3].tobytes() == codecs.BOM_UTF8 else 0
    starts = _ENDS_A_FIELD[marks[quotes - 1]] | (quotes == first)
    doubled = np.diff(quotes, prepend=-2) == 1
    if (starts | doubled)[::2].all():  # nearly always: every other one can open, so each is what its turn says
        return quotes
    counting: list[int] = []
    for k, (start, double) in enumerate(zip(starts.tolist(), doubled.tolist(), strict=True)):
        closes = len(counting) % 2 == 1
        if closes or start or (double and counting and counting[-1] == k - 1):
            counting.append(k)
    return quotes[counting]
