"""CSV as bytes: is it UTF-8 text, what are its columns, which line is wrong; and Arrow tables from it."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.naming import check_unique, choose, count, one_line

GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
"""What such a file begins with."""

_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_PIECE = 1 << 24  # bytes decoded at a time


def read_csv(
    content: bytes, name: str, columns: Sequence[str] | None, drop: Collection[str], text: Collection[str] = ()
) -> Any:
    """A whole file, or what came from standard input, as an Arrow table with its `columns` in that order."""
    check_text(content, name)
    header = header_of(content, name)
    return parse(without_end(content), choose(header, columns, drop, name), header, name, text=text)


def read_cells(content: bytes, name: str, columns: Sequence[str]) -> Any:
    """`columns` of a whole file as the text of their cells; see `parse_cells`."""
    check_text(content, name)
    header = header_of(content, name)
    return parse_cells(without_end(content), choose(header, columns, (), name), header, name)


def without_end(content: bytes) -> bytes:
    """Without the empty lines at its end, which are no rows even of a single column."""
    kept = len(content.rstrip(b"\r\n"))
    line_end = 2 if content[kept : kept + 2] == b"\r\n" else 1
    return content[: kept + line_end] if content[:kept].removeprefix(codecs.BOM_UTF8) else b""


def parse(
    content: bytes,
    chosen: Sequence[str],
    header: Sequence[str],
    name: str,
    types: Mapping[str, Any] | None = None,
    first_line: int = 1,
    text: Collection[str] = (),
    missing: Sequence[str] | None = None,
) -> Any:
    """The `chosen` columns as an Arrow table; those without a given type have the type of what stands in them.

    Those in `text` are text, whatever stands in them. `missing` are the cells that hold no value, by default Arrow's
    and None, in every column. `content` begins with the header where `first_line` is 1, and holds rows alone elsewhere.
    An empty line is no row; but of a single column it is how a missing value is written.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    given = {**(types or {}), **dict.fromkeys(text, pa.string())}
    nulls = [*arrow_csv.ConvertOptions().null_values, "None"] if missing is None else list(missing)
    whole = content if content.endswith((b"\n", b"\r")) else content + b"\n"
    single = len(header) == 1
    if single and first_line == 1:
        whole = whole.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")  # what is before the header is nothing

    def read(types: Mapping[str, Any]) -> pa.Table:
        return arrow_csv.read_csv(
            io.BytesIO(whole),
            read_options=arrow_csv.ReadOptions(column_names=None if first_line == 1 else list(header)),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not single),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(chosen), null_values=nulls, strings_can_be_null=True, column_types=dict(types)
            ),
        )

    try:
        table = read(given)
        times = [field.name for field in table.schema if pa.types.is_time(field.type)]
        if times:  # 12:30 is not a date: it stays the text that it was
            table = read({**given, **dict.fromkeys(times, pa.string())})
    except pa.ArrowException as error:
        raise _parse_error(content, len(header), name, error, first_line) from None
    return table.select(list(chosen))  # Arrow takes no column for all of them


def parse_cells(content: bytes, chosen: Sequence[str], header: Sequence[str], name: str, first_line: int = 1) -> Any:
    """The `chosen` columns as the text of their cells, for a copy: 00123, 1.10 and NA are that; empty is missing."""
    return parse(content, chosen, header, name, first_line=first_line, text=chosen, missing=[""])


def check_text(content: bytes, name: str, first_byte: int = 0, first_line: int = 1) -> None:
    """UTF-8, and not some other kind of file. `content` may be a piece of it, from that byte and line on."""
    if first_byte == 0:
        _check_beginning(content, name)
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(content), _PIECE):
        piece = content[start : start + _PIECE]
        before = len(decoder.getstate()[0])  # bytes of a character that the last piece began
        try:
            decoder.decode(piece, final=start + _PIECE >= len(content))
        except UnicodeDecodeError as error:
            position = start - before + error.start
            line = content.count(b"\n", 0, position) + first_line
            raise FileFormatError(
                f"{name} is not UTF-8 text: byte {first_byte + position} (line {line}) is 0x{content[position]:02x}; "
                "save it as UTF-8"
            ) from None
    zero = content.find(b"\0")
    if zero >= 0:
        raise FileFormatError(f"{name} is not a text file: byte {first_byte + zero} is zero; export it as CSV in UTF-8")


def _check_beginning(content: bytes, name: str) -> None:
    if not content.strip():
        raise InputError(f"{name} is empty: it has no header and no rows")
    if content.startswith(GZIP):
        raise FileFormatError(f"{name} is gzipped: let its name end in .csv.gz, or unpack it first (gunzip)")
    if content.startswith(PARQUET):
        raise FileFormatError(f"{name} is a Parquet file: give it as a file whose name ends in .parquet")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            raise FileFormatError(f"{name} is {encoding} text: save it as UTF-8")


def header_of(content: bytes, name: str) -> list[str]:
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    try:
        header = next((row for row in csv.reader(text) if row), [])
    except csv.Error as problem:
        raise FileFormatError(
            f"{name}: its header cannot be read ({problem}); is there a quote never closed?"
        ) from None
    if len(header) == 1:
        for separator, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if separator in header[0]:
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
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    rows = csv.reader(text)
    start = first_line
    try:
        for row in rows:
            if row and len(row) != width:
                return FileFormatError(
                    f"{name}, line {start}: {count(len(row), 'field')} where the header has {width}; "
                    "mend that line (a comma inside a field needs quotes around it)"
                )
            start = rows.line_num + first_line
    except csv.Error as problem:  # a field of more than 128 KiB: mostly a quote that is never closed
        return FileFormatError(f"{name}, line {start}: {problem}; is there a quote that is never closed?")
    return FileFormatError(f"{name} cannot be read as CSV: {one_line(error)}")
