"""CSV, plain or gzipped: text, cut into blocks of whole records, each of which can be read alone.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.dialect import Dialect
from deepbasis.tables.formats.base import Request, TableFile, agreed, changed, empty
from deepbasis.tables.formats.records import codes_among, has_leading_zeros, last_end_of_record, without_end
from deepbasis.tables.places import ColumnSelection, Place, check_unique, one_line

if TYPE_CHECKING:
    import pandas as pd

_GZIP = b"\x1f\x8b"  # such a file begins with it
_OTHERS = {
    _GZIP: "is gzipped: let its name end in .csv.gz, or unpack it first (gunzip)",
    b"PAR1": "is a Parquet file: give it as a file whose name ends in .parquet",
}
"""Other kinds of files, by their first bytes."""

_BLOCK_COPIES = (
    8  # of a block's bytes while it is read: as text, cut and joined, and as up to four times as many numbers
)

_HEAD = 1 << 18  # bytes that tell how a file is written


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
    longest_record: int = 64 << 20
    dialect: Dialect = Dialect()
    """What is not found out: a .tsv has tabs."""

    def survey(self, place: Place, selection: ColumnSelection) -> TableFile:
        """With what its beginning tells about how it is written."""
        asked = place.dialect
        asked = replace(asked, separator=asked.separator or self.dialect.separator)
        found = asked.found(next(replace(self, block_bytes=_HEAD).bytes_of(place), b""))
        return replace(self, dialect=found).surveyed(place, selection, found.note(place.name, asked))

    @property
    def in_order(self) -> bool:
        """Whether it can only be read from its beginning."""
        return self.gzipped or not self.dialect.is_utf8

    def surveyed(self, place: Place, selection: ColumnSelection, note: str) -> TableFile:
        """Read all of it: types are in the text. A gzipped file is one unit: it has no other beginning."""
        import pyarrow as pa

        header: list[str] = []
        types: dict[str, Any] = {}
        cuts: list[Cut] = []
        codes: set[str] = set()
        table: Any = None
        text = dict.fromkeys(selection.text, pa.string())
        for start, line, content in self._blocks(place):
            check_text(content, place, start, line)
            if not header:
                header = _header(content, place.name, self.dialect)
                types = dict.fromkeys(selection.inside(header, place))
            table = _parse(content, list(types), header, place, line, self.dialect, text)
            types = {name: agreed(type_, table.schema.field(name).type) for name, type_ in types.items()}
            if selection.numbers is not None and has_leading_zeros(content, self.dialect.separator):
                numbers = [name for name in types if _is_number(table, name) and name not in selection.numbers]
                codes.update(codes_among(_cells(content, numbers, header, place, line, self.dialect)))
            cuts.append(Cut(start, start + len(content), line, table.num_rows))
        types |= dict.fromkeys(codes, pa.string())
        whole = table if place.in_memory and len(cuts) == 1 and not codes else None

        def read(request: Request) -> Iterator[tuple[Any, Any]]:
            own = {name: request.types[name] for name in request.columns}
            if whole is not None and not request.copied and own.items() <= types.items():
                yield whole.select(request.columns), whole.select([])
                return
            for cut, content in self._contents(place, cuts, request.unit):
                cells = _cells(content, request.copied, header, place, cut.first_line, self.dialect)
                table = _parse(content, request.columns, header, place, cut.first_line, self.dialect, own)
                if table.num_rows != cut.rows:
                    raise changed(place)
                yield table, cells

        rows = [cut.rows for cut in cuts]
        any_text = any(type_ == pa.string() for type_ in types.values())
        return TableFile(
            place,
            header,
            types,
            [sum(rows)] if self.in_order else rows,
            read,
            is_text=True,
            row_bytes=8 * len(types) + any_text * cuts[-1].stop // max(sum(rows), 1),
            open_bytes=_BLOCK_COPIES * self.block_bytes,
            decimal=self.dialect.decimal,
            note=note,
            codes=frozenset(codes),
        )

    def write(self, tables: Iterable[pd.DataFrame], to: BinaryIO) -> None:
        if self.gzipped:
            with gzip.GzipFile("", "wb", fileobj=to, mtime=0) as zipped:
                replace(self, gzipped=False).write(tables, cast(BinaryIO, zipped))
            return
        for k, table in enumerate(tables):
            table.to_csv(
                to,
                sep=self.dialect.separator or ",",
                index=False,
                header=k == 0,
                lineterminator="\n",
                mode="wb",
                encoding="utf-8",
            )

    def _blocks(self, place: Place) -> Iterator[tuple[int, int, bytes]]:
        """(first byte, first line, content): whole records, about `block_bytes` of them at a time."""
        start, line = 0, 1
        rest = b""
        for piece in self._pieces(place):
            rest += piece
            # Empty lines go to the next block; at the end of the file they are ignored.
            cut = len(without_end(rest[: last_end_of_record(rest, self.dialect.separator)]))
            if cut:
                yield start, line, rest[:cut]
                start, line, rest = start + cut, line + rest.count(b"\n", 0, cut), rest[cut:]
            elif len(rest) > self.longest_record:
                raise FileFormatError(
                    f"{place.name}, line {line}: a record of more than {self.longest_record:,} bytes; is there a quote "
                    "that is never closed?"
                )
        if rest.strip() or start == 0:
            yield start, line, rest

    def _contents(self, place: Place, cuts: list[Cut], unit: int) -> Iterator[tuple[Cut, bytes]]:
        if self.in_order:
            yield from zip(cuts, (content for _, _, content in self._blocks(place)), strict=False)
            return
        with place.open() as file:
            yield cuts[unit], file.read_at(cuts[unit].stop - cuts[unit].start, cuts[unit].start)

    def _pieces(self, place: Place) -> Iterator[bytes]:
        """As UTF-8."""
        if self.dialect.is_utf8:
            yield from self.bytes_of(place)
            return
        decoder = codecs.getincrementaldecoder(self.dialect.encoding)()
        try:
            for piece in self.bytes_of(place):
                yield decoder.decode(piece).encode()
            yield decoder.decode(b"", final=True).encode()
        except UnicodeError as error:
            raise FileFormatError(
                f"{place.name} is not {self.dialect.encoding} text ({one_line(error)}); name its encoding "
                "(--encoding), or save it as UTF-8"
            ) from None

    def bytes_of(self, place: Place) -> Iterator[bytes]:
        with place.open() as file:
            if file.size() == 0:
                raise empty(place)
            if not self.gzipped:
                while piece := file.read(self.block_bytes):
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
TSV = Csv(dialect=Dialect("\t"))
TSV_GZ = Csv(gzipped=True, dialect=Dialect("\t"))


# ---- parsing ---------------------------------------------------------------------------------------------------------


def _parse(
    content: bytes,
    chosen: Sequence[str],
    header: Sequence[str],
    place: Place,
    first_line: int,
    dialect: Dialect,
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

    # A copy that is Arrow's own. Its threads let go of what they have read a little later, and a Python object, such as
    # these bytes, only under Python's lock: a process that ends in between would be aborted.
    sink = pa.BufferOutputStream()
    sink.write(whole)
    native = sink.getvalue()

    def read(types: Mapping[str, Any]) -> pa.Table:
        return arrow_csv.read_csv(
            pa.BufferReader(native),
            read_options=arrow_csv.ReadOptions(column_names=None if first_line == 1 else list(header)),
            parse_options=arrow_csv.ParseOptions(
                delimiter=dialect.separator, newlines_in_values=True, ignore_empty_lines=not single
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(chosen or header[:1]),
                null_values=nulls,
                strings_can_be_null=True,
                column_types=dict(types),
                decimal_point=dialect.decimal,
            ),
        )

    try:
        table = read(types)
        times = [field.name for field in table.schema if pa.types.is_time(field.type)]
        if times:  # 12:30 is not a date: it stays the text that it was
            table = read({**types, **dict.fromkeys(times, pa.string())})
    except pa.ArrowException as error:
        raise _parse_error(content, len(header), place.name, error, first_line, dialect) from None
    return table.select(list(chosen))


def _is_number(table: Any, column: str) -> bool:
    import pyarrow as pa

    return table.schema.field(column).type in (pa.int64(), pa.float64())


def _cells(
    content: bytes, chosen: Sequence[str], header: Sequence[str], place: Place, first_line: int, dialect: Dialect
) -> Any:
    """The `chosen` columns as the text of their cells, for a copy: 00123, 1.10 and NA are that; empty is missing."""
    import pyarrow as pa

    if not chosen:
        return pa.table({})
    types = dict.fromkeys(chosen, pa.string())
    return _parse(content, chosen, header, place, first_line, dialect, types, missing=[""])


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
            f"0x{content[error.start]:02x}; save it as UTF-8, or name its encoding (--encoding)"
        ) from None
    zero = content.find(b"\0")
    if zero >= 0:
        raise FileFormatError(
            f"{place.name} is not a text file: byte {first_byte + zero} is zero; export it as CSV in UTF-8"
        )


def _records(content: bytes, dialect: Dialect) -> Any:
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    return csv.reader(text, delimiter=dialect.separator)


def _header(content: bytes, name: str, dialect: Dialect) -> list[str]:
    try:
        header: list[str] = next((row for row in _records(content, dialect) if row), [])
    except csv.Error as problem:
        raise FileFormatError(
            f"{name}: its header cannot be read ({problem}); is there a quote never closed?"
        ) from None
    unnamed = [k for k, column in enumerate(header, 1) if not column.strip()]
    if unnamed:
        raise InputError(
            f"{name}: column {unnamed[0]} has no name; give it one, or, if it is a row number that pandas wrote, "
            "write the table with index=False"
        )
    check_unique(header, name)
    return header


def _parse_error(
    content: bytes, width: int, name: str, error: Exception, first_line: int, dialect: Dialect
) -> FileFormatError:
    """pyarrow knows what is wrong, but not always in which line."""
    rows = _records(content, dialect)
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
