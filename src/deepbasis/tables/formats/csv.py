"""CSV, plain or gzipped: UTF-8 text, cut into blocks of whole records, each of which can be read alone.

A block ends at a line's end outside of quotes. As in Arrow, a quotation mark opens quotes only at the start of a field:
in `5" pipe` it is an ordinary character. The types of the columns are those that all blocks agree on, as they would be
if the file were read at once. pyarrow does the parsing: it is strict about short rows. Anything else is refused, with
its line and what to do; nothing is guessed, skipped or filled in.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.columns import Array
from deepbasis.tables.formats.base import Request, TableFile, agreed, changed, empty
from deepbasis.tables.places import ColumnSelection, Place, check_unique, one_line

if TYPE_CHECKING:
    import pandas as pd

_GZIP = b"\x1f\x8b"  # such a file begins with it
_OTHERS = {
    _GZIP: "is gzipped: let its name end in .csv.gz, or unpack it first (gunzip)",
    b"PAR1": "is a Parquet file: give it as a file whose name ends in .parquet",
    codecs.BOM_UTF16_LE: "is UTF-16 text: save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16 text: save it as UTF-8",
}
"""Other kinds of files, by their first bytes."""

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_ENDS_A_FIELD = np.isin(np.arange(256), list(b",\n\r"))


class Cut(NamedTuple):
    """Where a block lies in its file."""

    start: int
    stop: int
    first_line: int
    rows: int


@dataclass(frozen=True)
class Csv:
    gzipped: bool = False
    block_bytes: int = 4 << 20

    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        """Read all of it: types are in the text. A gzipped file is one unit: it has no other beginning."""
        import pyarrow as pa

        header: list[str] = []
        types: dict[str, Any] = {}
        cuts: list[Cut] = []
        table: Any = None
        text = dict.fromkeys(selection.text, pa.string())
        for start, line, content in self._blocks(place):
            check_text(content, place, start, line)
            if not header:
                header = _header(content, place.name)
                types = dict.fromkeys(selection.inside(header, place))
            table = _parse(content, list(types), header, place, line, text)
            types = {name: agreed(type_, table.schema.field(name).type) for name, type_ in types.items()}
            cuts.append(Cut(start, start + len(content), line, table.num_rows))
        whole = table if place.in_memory else None

        def read(request: Request) -> Iterator[tuple[Any, Any]]:
            own = {name: request.types[name] for name in request.columns}
            if whole is not None and not request.copied and own.items() <= types.items():
                yield whole.select(request.columns), whole.select([])
                return
            for cut, content in self._contents(place, cuts, request.unit):
                cells = _cells(content, request.copied, header, place, cut.first_line)
                table = _parse(content, request.columns, header, place, cut.first_line, own)
                if table.num_rows != cut.rows:
                    raise changed(place)
                yield table, cells

        rows = [cut.rows for cut in cuts]
        return TableFile(place, header, types, [sum(rows)] if self.gzipped else rows, read, is_text=True)

    def write(self, table: pd.DataFrame, to: BinaryIO) -> None:
        if not self.gzipped:
            table.to_csv(to, index=False, lineterminator="\n", mode="wb", encoding="utf-8")
            return
        with gzip.GzipFile("", "wb", fileobj=to, mtime=0) as zipped:
            CSV.write(table, cast(BinaryIO, zipped))

    def _blocks(self, place: Place) -> Iterator[tuple[int, int, bytes]]:
        """(first byte, first line, content): whole records, about `block_bytes` of them at a time, or all in memory."""
        if place.in_memory:
            yield 0, 1, _without_end(b"".join(self._pieces(place)))
            return
        start, line = 0, 1
        rest = b""
        for piece in self._pieces(place):
            rest += piece
            # Empty lines go to the next block; at the end of the file they are ignored.
            cut = len(_without_end(rest[: _last_end_of_record(rest)]))
            if cut:
                yield start, line, rest[:cut]
                start, line, rest = start + cut, line + rest.count(b"\n", 0, cut), rest[cut:]
        if rest.strip() or start == 0:
            yield start, line, rest

    def _contents(self, place: Place, cuts: list[Cut], unit: int) -> Iterator[tuple[Cut, bytes]]:
        if self.gzipped or place.in_memory:
            yield from zip(cuts, (content for _, _, content in self._blocks(place)), strict=False)
            return
        with place.open() as file:
            yield cuts[unit], file.read_at(cuts[unit].stop - cuts[unit].start, cuts[unit].start)

    def _pieces(self, place: Place) -> Iterator[bytes]:
        with place.open() as file:
            if file.size() == 0:
                raise empty(place)
            if not self.gzipped:
                while piece := file.read(None if place.in_memory else self.block_bytes):
                    yield piece
                return
            if file.read_at(len(_GZIP), 0) != _GZIP:
                raise FileFormatError(
                    f"{place.name} is not gzipped, as its name says: name it .csv, or compress it with gzip"
                )
            file.seek(0)
            try:
                with gzip.GzipFile(fileobj=file) as unzipped:
                    while piece := unzipped.read(self.block_bytes):
                        yield piece
            except (OSError, EOFError, zlib.error) as error:
                raise FileFormatError(
                    f"{place.name} is truncated or damaged ({error}): copy or compress it again"
                ) from None


CSV = Csv()
CSV_GZ = Csv(gzipped=True)


# ---- parsing ---------------------------------------------------------------------------------------------------------


def _parse(
    content: bytes,
    chosen: Sequence[str],
    header: Sequence[str],
    place: Place,
    first_line: int,
    types: Mapping[str, Any],
    missing: Sequence[str] | None = None,
) -> Any:
    """The `chosen` columns as an Arrow table; those without a given type have the type of what stands in them.

    `missing` are the cells that hold no value, by default Arrow's and None, in every column. `content` begins with the
    header where `first_line` is 1, and holds rows alone elsewhere. An empty line is not a row, except in a single
    column, where it is a missing value.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    nulls = [*arrow_csv.ConvertOptions().null_values, "None"] if missing is None else list(missing)
    whole = content if content.endswith((b"\n", b"\r")) else content + b"\n"
    single = len(header) == 1
    if single and first_line == 1:
        whole = whole.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")  # empty lines before the header are ignored

    def read(types: Mapping[str, Any]) -> pa.Table:
        return arrow_csv.read_csv(
            io.BytesIO(whole),
            read_options=arrow_csv.ReadOptions(column_names=None if first_line == 1 else list(header)),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not single),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(chosen or header[:1]),
                null_values=nulls,
                strings_can_be_null=True,
                column_types=dict(types),
            ),
        )

    try:
        table = read(types)
        times = [field.name for field in table.schema if pa.types.is_time(field.type)]
        if times:  # 12:30 is not a date: it stays the text that it was
            table = read({**types, **dict.fromkeys(times, pa.string())})
    except pa.ArrowException as error:
        raise _parse_error(content, len(header), place.name, error, first_line) from None
    return table.select(list(chosen))


def _cells(content: bytes, chosen: Sequence[str], header: Sequence[str], place: Place, first_line: int) -> Any:
    """The `chosen` columns as the text of their cells, for a copy: 00123, 1.10 and NA are that; empty is missing."""
    import pyarrow as pa

    if not chosen:
        return pa.table({})
    return _parse(content, chosen, header, place, first_line, dict.fromkeys(chosen, pa.string()), missing=[""])


def check_text(content: bytes, place: Place, first_byte: int = 0, first_line: int = 1) -> None:
    """UTF-8, and not some other kind of file. `content` may be a piece of it, from that byte and line on."""
    if first_byte == 0:
        if not content.strip():
            raise empty(place)
        for mark, what in _OTHERS.items():
            if content.startswith(mark):
                raise FileFormatError(f"{place.name} {what}")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + first_line
        raise FileFormatError(
            f"{place.name} is not UTF-8 text: byte {first_byte + error.start} (line {line}) is "
            f"0x{content[error.start]:02x}; save it as UTF-8"
        ) from None
    zero = content.find(b"\0")
    if zero >= 0:
        raise FileFormatError(
            f"{place.name} is not a text file: byte {first_byte + zero} is zero; export it as CSV in UTF-8"
        )


def _records(content: bytes) -> Any:
    return csv.reader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""))


def _header(content: bytes, name: str) -> list[str]:
    try:
        header: list[str] = next((row for row in _records(content) if row), [])
    except csv.Error as problem:
        raise FileFormatError(
            f"{name}: its header cannot be read ({problem}); is there a quote never closed?"
        ) from None
    for separator, word in _SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise FileFormatError(f"{name} seems to be separated by {word}: save it with commas between the fields")
    unnamed = [k for k, column in enumerate(header, 1) if not column.strip()]
    if unnamed:
        raise InputError(
            f"{name}: column {unnamed[0]} has no name; give it one, or, if it is a row number that pandas wrote, "
            "write the table with index=False"
        )
    check_unique(header, name)
    return header


def _parse_error(content: bytes, width: int, name: str, error: Exception, first_line: int) -> FileFormatError:
    """pyarrow knows what is wrong, but not always in which line."""
    rows = _records(content)
    start = first_line
    try:
        for row in rows:
            if row and len(row) != width:
                return FileFormatError(
                    f"{name}, line {start}: {len(row)} field{'s' * (len(row) != 1)} where the header has {width}; "
                    "correct that line (a comma inside a field needs quotes around it)"
                )
            start = rows.line_num + first_line
    except csv.Error as problem:  # a field of more than 128 KiB: mostly a quote that is never closed
        return FileFormatError(f"{name}, line {start}: {problem}; is there a quote that is never closed?")
    return FileFormatError(f"{name} cannot be read as CSV: {one_line(error)}")


# ---- cutting ---------------------------------------------------------------------------------------------------------


def _without_end(content: bytes) -> bytes:
    """Without the empty lines at its end, which are never rows."""
    kept = len(content.rstrip(b"\r\n"))
    line_end = 2 if content[kept : kept + 2] == b"\r\n" else 1
    return content[: kept + line_end] if content[:kept].removeprefix(codecs.BOM_UTF8) else b""


def _last_end_of_record(content: bytes) -> int:
    """The number of bytes up to and with the last line's end that is not inside quotes."""
    marks = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(marks == ord("\n"))
    quotes = _quotes_that_count(marks, np.flatnonzero(marks == ord('"')))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _quotes_that_count(marks: Array, quotes: Array) -> Array:
    """The positions of quotation marks that open or close quotes, alternately. A doubled one closes and opens."""
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
