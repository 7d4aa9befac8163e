"""Tables in files: CSV (also gzipped, also on standard input and output) and Parquet, to and from pandas.

A file that cannot be read as it stands is refused with its name, the place in it and what to do; nothing is guessed,
skipped or filled in. pyarrow does the parsing: it is strict where pandas is lenient, about short rows above all.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbasis.errors import FileFormatError, InputError

if TYPE_CHECKING:
    import pandas as pd

STANDARD = "-"
"""The name that stands for standard input or standard output, as in most commands."""

ENDINGS = (".csv", ".csv.gz", ".parquet")

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"  # what such a file begins with
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_PIECE = 1 << 24  # bytes decoded at a time


def read_table(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, *, drop: Collection[str] = ()
) -> pd.DataFrame:
    """The table at `path` (.csv, .csv.gz or .parquet; "-" is CSV on standard input), with its `columns` in that order.

    By default all columns but those in `drop`. In a CSV a column of numbers, of true and false, or of ISO 8601 dates is
    read as such; the rest is text. Empty fields, NA, NaN, null and their like are missing values.
    """
    name = display_name(path)
    if os.fspath(path) == STANDARD:
        table = _read_csv(sys.stdin.buffer.read(), name, columns, drop)
    else:
        place = Path(path)
        ending = _ending(place)
        content = _content(place)
        if ending == ".parquet":
            table = _read_parquet(content, name, columns, drop)
        else:
            table = _read_csv(_unzipped(content, name) if ending == ".csv.gz" else content, name, columns, drop)
    if len(table) == 0:
        raise InputError(f"{name} has a header but no rows: it needs at least one")
    return table


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write `table`, without its index, to `path` by its ending, atomically; "-" is CSV on standard output."""
    if os.fspath(path) == STANDARD:
        _write_csv(table, getattr(sys.stdout, "buffer", sys.stdout))
        sys.stdout.flush()
        return
    ending = _ending(Path(path))
    data = io.BytesIO()
    if ending == ".parquet":
        table.to_parquet(data, engine="pyarrow", index=False)
    else:
        _write_csv(table, data)
    content = data.getvalue()
    write_bytes(path, gzip.compress(content, mtime=0) if ending == ".csv.gz" else content)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically; what the system refuses becomes an `InputError` with the file's name."""
    from deepbasis.storage import write_atomically  # brings torch

    check_folder(path)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise InputError(cannot_write(path, error)) from None


def check_output(path: str | os.PathLike[str], *, endings: Sequence[str] = (), inputs: Iterable[Any] = ()) -> None:
    """Refuse, before any work is done, a `path` that could not be written in the end, or that is one of the `inputs`.

    With `endings`, it must have one of them.
    """
    place = Path(path)
    if endings and not place.name.lower().endswith(tuple(endings)):
        raise InputError(f"cannot write '{place}': its name must end in {_either(endings)}")
    if place.is_dir():
        raise InputError(f"cannot write '{place}': it is a folder; give the name of a file in it")
    for other in inputs:
        if other is not None and os.fspath(other) != STANDARD and _same_file(place, Path(other)):
            raise InputError(f"cannot write '{place}': it is also read; choose another name for the output")
    check_folder(place)
    try:
        with tempfile.TemporaryFile(dir=place.parent):  # the honest test: permissions alone do not tell
            pass
    except OSError as error:
        raise InputError(cannot_write(path, error)) from None


def check_folder(path: str | os.PathLike[str]) -> None:
    """The folder that is to hold `path` must exist."""
    folder = Path(path).parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"cannot write '{Path(path)}': the folder '{folder}' {what}; create it or choose another place"
        )


def check_columns(table: pd.DataFrame, wanted: Iterable[str], name: str) -> None:
    _check_present(list(table.columns), wanted, name)


def display_name(path: str | os.PathLike[str]) -> str:
    """How messages speak of a file."""
    return "standard input" if os.fspath(path) == STANDARD else f"'{os.fspath(path)}'"


def cannot_write(path: str | os.PathLike[str], error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"cannot write '{os.fspath(path)}': {reason}; make room, or choose a place that you may write to"


# ---- bytes ---------------------------------------------------------------------------------------------------------


def _ending(path: Path) -> str:
    name = path.name.lower()
    for ending in ENDINGS:
        if name.endswith(ending):
            return ending
    raise InputError(f"'{path}': the name of a table must end in {_either(ENDINGS)}; rename or convert the file")


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"'{path}' does not exist: check the path") from None
    except IsADirectoryError:
        raise InputError(f"'{path}' is a folder: give the name of one file in it") from None
    except PermissionError:
        raise InputError(f"'{path}' cannot be read: permission denied; ask for the right to read it") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {(error.strerror or str(error)).lower()}") from None
    if not content:
        raise InputError(f"'{path}' is empty: it has no header and no rows")
    return content


def _unzipped(content: bytes, name: str) -> bytes:
    if not content.startswith(_GZIP):
        raise FileFormatError(f"{name} is not gzipped, as its name says: name it .csv, or compress it with gzip")
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{name} is truncated or damaged ({error}): copy or compress it again") from None


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False


# ---- CSV -----------------------------------------------------------------------------------------------------------


def _read_csv(content: bytes, name: str, columns: Sequence[str] | None, drop: Collection[str]) -> pd.DataFrame:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    _check_text(content, name)
    header = _header(content, name)
    chosen = _choose(header, columns, drop, name)
    missing = [*arrow_csv.ConvertOptions().null_values, "None"]

    def parse(as_text: Iterable[str]) -> pa.Table:
        return arrow_csv.read_csv(
            io.BytesIO(content if content.endswith((b"\n", b"\r")) else content + b"\n"),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=chosen,
                null_values=missing,
                strings_can_be_null=True,
                column_types={column: pa.string() for column in as_text},
            ),
        )

    try:
        table = parse([])
        times = [field.name for field in table.schema if pa.types.is_time(field.type)]
        if times:  # 12:30 is not a date: it stays the text that it was
            table = parse(times)
    except pa.ArrowException as error:
        raise _parse_error(content, len(header), name, error) from None
    return _to_pandas(table)


def _check_text(content: bytes, name: str) -> None:
    """UTF-8, and not some other kind of file."""
    if not content.strip():
        raise InputError(f"{name} is empty: it has no header and no rows")
    if content.startswith(_GZIP):
        raise FileFormatError(f"{name} is gzipped: let its name end in .csv.gz, or unpack it first (gunzip)")
    if content.startswith(_PARQUET):
        raise FileFormatError(f"{name} is a Parquet file: give it as a file whose name ends in .parquet")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            raise FileFormatError(f"{name} is {encoding} text: save it as UTF-8")
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(content), _PIECE):
        piece = content[start : start + _PIECE]
        before = len(decoder.getstate()[0])  # bytes of a character that the last piece began
        try:
            decoder.decode(piece, final=start + _PIECE >= len(content))
        except UnicodeDecodeError as error:
            position = start - before + error.start
            line = content.count(b"\n", 0, position) + 1
            raise FileFormatError(
                f"{name} is not UTF-8 text: byte {position} (line {line}) is 0x{content[position]:02x}; "
                "save it as UTF-8"
            ) from None
    zero = content.find(b"\0")
    if zero >= 0:
        raise FileFormatError(f"{name} is not a text file: byte {zero} is zero; export it as CSV in UTF-8")


def _header(content: bytes, name: str) -> list[str]:
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
    _check_unique(header, name)
    return header


def _parse_error(content: bytes, width: int, name: str, error: Exception) -> FileFormatError:
    """pyarrow knows what is wrong, but not always in which line."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    rows = csv.reader(text)
    start = 1
    try:
        for row in rows:
            if row and len(row) != width:
                return FileFormatError(
                    f"{name}, line {start}: {_count(len(row), 'field')} where the header has {width}; "
                    "mend that line (a comma inside a field needs quotes around it)"
                )
            start = rows.line_num + 1
    except csv.Error as problem:  # a field of more than 128 KiB: mostly a quote that is never closed
        return FileFormatError(f"{name}, line {start}: {problem}; is there a quote that is never closed?")
    return FileFormatError(f"{name} cannot be read as CSV: {_one_line(error)}")


# ---- Parquet -------------------------------------------------------------------------------------------------------


def _read_parquet(content: bytes, name: str, columns: Sequence[str] | None, drop: Collection[str]) -> pd.DataFrame:
    import pyarrow as pa
    from pyarrow import parquet

    if not content.startswith(_PARQUET):
        raise FileFormatError(f"{name} is not a Parquet file: write it as Parquet, or name it after what it is (.csv)")
    if not content.endswith(_PARQUET):
        raise FileFormatError(f"{name} is truncated: its end is missing; copy or write it again")
    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        schema = file.schema_arrow
        names = [column for column in schema.names if not column.startswith("__index_level_")]
        chosen = _choose(names, columns, drop, name)
        for column in chosen:
            _check_type(schema.field(column).type, column, name)
        table = file.read(columns=chosen).select(chosen)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeError) as error:
        raise FileFormatError(f"{name} is damaged ({_one_line(error)}): copy or write it again") from None
    return _to_pandas(table)


def _check_type(kind: Any, column: str, name: str) -> None:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_nested(kind):
        raise InputError(
            f"{name}: column '{column}' is nested ({kind}); spread it over columns of plain values, or drop it"
        )
    for is_odd in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary):
        if is_odd(kind):
            raise InputError(f"{name}: column '{column}' holds raw bytes; convert it to text or numbers, or drop it")


# ---- both ----------------------------------------------------------------------------------------------------------


def _to_pandas(table: Any) -> pd.DataFrame:
    """Arrow's types to those that the preprocessing knows: numbers, booleans, dates, categories, text."""
    import pyarrow as pa

    for k, field in enumerate(table.schema):
        if pa.types.is_null(field.type) or pa.types.is_decimal(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.float64()))
        elif pa.types.is_time(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.string()))
    frame: pd.DataFrame = table.to_pandas(date_as_object=False, ignore_metadata=True)
    for k, field in enumerate(table.schema):
        if pa.types.is_boolean(field.type) and table.column(k).null_count:
            frame[field.name] = frame[field.name].astype("boolean")
    return frame


def _choose(have: list[str], columns: Sequence[str] | None, drop: Collection[str], name: str) -> list[str]:
    if columns is None:
        _check_unique(have, name)
        _check_present(have, drop, name)
        return [column for column in have if column not in drop]
    _check_present(have, columns, name)
    _check_unique([column for column in have if column in columns], name)
    return list(columns)


def _check_unique(names: Sequence[str], name: str) -> None:
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{name} has more than one column named '{twice[0]}': give each a name of its own")


def _check_present(have: Sequence[str], wanted: Iterable[str], name: str) -> None:
    for column in wanted:
        if column not in have:
            near = get_close_matches(column, [str(one) for one in have], n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {_listed(have)}"
            raise InputError(f"{name} has no column '{column}'; {hint}")


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _write_csv(table: pd.DataFrame, to: Any) -> None:
    table.to_csv(to, index=False, lineterminator="\n", mode="wb", encoding="utf-8")


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _one_line(error: BaseException) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split())[:200]
