"""Tables in files: CSV (also gzipped, also on standard input and output) and Parquet, to and from pandas.

A file that cannot be read as it stands is refused with its name, the place in it and what to do; nothing is guessed,
skipped or filled in. pyarrow does the parsing: it is strict where pandas is lenient, about short rows above all.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.csv_text import GZIP, PARQUET, read_cells, read_csv
from deepbasis.tables.naming import ENDINGS as ENDINGS
from deepbasis.tables.naming import STANDARD as STANDARD
from deepbasis.tables.naming import check_present, choose, either, ending, one_line
from deepbasis.tables.naming import display_name as display_name

if TYPE_CHECKING:
    import pandas as pd


def read_table(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    drop: Collection[str] = (),
    text: Collection[str] = (),
) -> pd.DataFrame:
    """The table at `path` (.csv, .csv.gz or .parquet; "-" is CSV on standard input), with its `columns` in that order.

    By default all columns but those in `drop`. In a CSV a column of numbers, of true and false, or of ISO 8601 dates is
    read as such; the rest is text, and so is a column in `text`, whatever stands in it. Empty fields, NA, NaN, null and
    their like are missing values.
    """
    return load(path).table(columns, drop=drop, text=text)


def load(path: str | os.PathLike[str]) -> Loaded:
    """What `read_table` takes, for several looks at it: standard input can be read only once."""
    name = display_name(path)
    if os.fspath(path) == STANDARD:
        return Loaded(name, sys.stdin.buffer.read(), is_csv=True)
    place = Path(path)
    kind = _ending_of_one_that_is_there(place, name)
    content = _content(place)
    return Loaded(name, _unzipped(content, name) if kind == ".csv.gz" else content, is_csv=kind != ".parquet")


@dataclass(frozen=True)
class Loaded:
    """One file's content in memory, of which columns are still to be read."""

    name: str
    """How messages call it."""
    content: bytes
    is_csv: bool

    def table(
        self, columns: Sequence[str] | None = None, *, drop: Collection[str] = (), text: Collection[str] = ()
    ) -> pd.DataFrame:
        """As `read_table` has it."""
        if self.is_csv:
            table = read_csv(self.content, self.name, columns, drop, text)
        else:
            table = _read_parquet(self.content, self.name, columns, drop)
        if table.num_rows == 0:
            raise InputError(f"{self.name} has a header but no rows: it needs at least one")
        return to_pandas(table)

    def copied(self, columns: Sequence[str]) -> pd.DataFrame:
        """Columns to be handed on: of a CSV the text of their cells, of Parquet what they are, to the last digit."""
        import pandas as pd
        import pyarrow as pa

        if not columns:
            return pd.DataFrame()
        if self.is_csv:
            table = read_cells(self.content, self.name, columns)
        else:
            table = _read_parquet(self.content, self.name, columns, ())
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        for k, field in enumerate(table.schema):
            if pa.types.is_integer(field.type) and table.column(k).null_count:  # a gap would make floats of them all
                nullable = str(field.type).replace("int", "Int").replace("u", "U")  # in pandas' words
                frame[field.name] = pd.array(table.column(k).to_pylist(), dtype=nullable)
        return frame


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write `table`, without its index, to `path` by its ending, atomically; "-" is CSV on standard output."""
    if os.fspath(path) == STANDARD:
        _write_csv(table, getattr(sys.stdout, "buffer", sys.stdout))
        sys.stdout.flush()
        return
    kind = ending(Path(path))
    data = io.BytesIO()
    if kind == ".parquet":
        table.to_parquet(data, engine="pyarrow", index=False)
    else:
        _write_csv(table, data)
    content = data.getvalue()
    write_bytes(path, gzip.compress(content, mtime=0) if kind == ".csv.gz" else content)


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
        raise InputError(f"cannot write '{place}': its name must end in {either(endings)}")
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


def check_out_folder(out: str | os.PathLike[str]) -> None:
    """A folder that can be written to, or the name of one that can be made."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out '{out}' is a file: predictions of many tables go to a folder")
    check_output(folder / "part.parquet" if folder.exists() else folder)


def check_folder(path: str | os.PathLike[str]) -> None:
    """The folder that is to hold `path` must exist."""
    folder = Path(path).parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"cannot write '{Path(path)}': the folder '{folder}' {what}; create it or choose another place"
        )


def check_columns(table: pd.DataFrame, wanted: Iterable[str], name: str) -> None:
    check_present(list(table.columns), wanted, name)


def cannot_write(path: str | os.PathLike[str], error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"cannot write '{os.fspath(path)}': {reason}; make room, or choose a place that you may write to"


# ---- bytes ---------------------------------------------------------------------------------------------------------


def _ending_of_one_that_is_there(place: Path, name: str) -> str:
    """Of a mistyped name one wants to hear that there is no such file, not how it should end."""
    try:
        return ending(place)
    except InputError:
        if place.exists():
            raise
        raise InputError(f"{name} does not exist: check the path") from None


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
    if not content.startswith(GZIP):
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


# ---- Parquet -------------------------------------------------------------------------------------------------------


def _read_parquet(content: bytes, name: str, columns: Sequence[str] | None, drop: Collection[str]) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    if not content.startswith(PARQUET):
        raise FileFormatError(f"{name} is not a Parquet file: write it as Parquet, or name it after what it is (.csv)")
    if not content.endswith(PARQUET):
        raise FileFormatError(f"{name} is truncated: its end is missing; copy or write it again")
    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        schema = file.schema_arrow
        names = [column for column in schema.names if not column.startswith("__index_level_")]
        chosen = choose(names, columns, drop, name)
        for column in chosen:
            check_type(schema.field(column).type, column, name)
        table = file.read(columns=chosen).select(chosen)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeError) as error:
        raise damaged(name, error) from None
    return table


def damaged(name: str, error: Exception) -> FileFormatError:
    return FileFormatError(f"{name} is damaged ({one_line(error)}): copy or write it again")


def check_type(kind: Any, column: str, name: str) -> None:
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


def to_pandas(table: Any) -> pd.DataFrame:
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


def _write_csv(table: pd.DataFrame, to: Any) -> None:
    table.to_csv(to, index=False, lineterminator="\n", mode="wb", encoding="utf-8")
