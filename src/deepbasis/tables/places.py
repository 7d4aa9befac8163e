"""Files and columns by their names: which files hold a table, which columns are meant, and their names in messages.

A table may be one file, a folder, a pattern, a list of files or a pyarrow data set. The order of its files is that of
their names, the same on every machine: a row is known by its file's place in it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from deepbasis.errors import InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.dialect import Dialect, TablePath

STANDARD = "-"
"""The name that stands for standard input or standard output, as in most commands; both are CSV."""

KINDS = {
    "numeric": "number",
    "boolean": "true or false",
    "duration": "duration",
    "datetime": "date",
    "categorical": "category",
}
"""The kinds of columns in users' words."""
MEANINGS = ("number", "category", "date", "text", "drop")
"""What a user may say that a column is. Of text the model sees how long it is."""

_WILD = re.compile(r"[*?]|\[[^]]+\]")  # what makes a name a pattern


@dataclass(frozen=True)
class Place:
    """One file."""

    path: str
    relative: str
    """Relative to the given folder; its output is named after it."""
    filesystem: Any = None
    """Of pyarrow; None is this machine's."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the folders' names hold: year=2021/part.parquet."""
    content: bytes | None = field(default=None, repr=False)
    """Its whole content, if it was already read."""
    dialect: Dialect = Dialect()
    """How it is written, where it is text; what was not given is found out."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return display_name(self.path)

    @property
    def ending(self) -> str:
        return ".csv" if self.path == STANDARD else ending(self.path)

    @property
    def stem(self) -> str:
        """Its relative name without the ending."""
        return self.relative[: -len(self.ending)]

    @property
    def in_memory(self) -> bool:
        return self.content is not None

    def open(self) -> Any:
        """A pyarrow file for reading at random."""
        import pyarrow as pa

        if self.content is not None:
            return pa.BufferReader(self.content)
        with _refusals(self.name):
            return pa.OSFile(self.path) if self.filesystem is None else self.filesystem.open_input_file(self.path)

    def loaded(self) -> Place:
        """The same in memory."""
        with self.open() as file, _refusals(self.name):
            return replace(self, content=file.read())

    def size(self) -> int:
        with self.open() as file:
            return int(file.size())

    def fingerprint(self) -> str:
        """A digest of the content: a file may be changed and keep its size and its time. Of a file elsewhere, which
        would have to be fetched for that, its size and time."""
        with _refusals(self.name):
            if self.content is not None:
                return hashlib.sha256(self.content).hexdigest()
            if self.filesystem is None:
                with open(self.path, "rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            info = self.filesystem.get_file_info(self.path)
            return f"{info.size}, {info.mtime_ns}"


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """A system error becomes an `InputError` with the file's name."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{name} does not exist: check the path") from None
    except PermissionError:
        raise InputError(f"{name} cannot be read: permission denied; ask for the right to read it") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {(error.strerror or str(error)).lower()}") from None


# ---- files -----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], dialect: Dialect | None = None) -> Place:
    """One file, or standard input, in memory: for several looks at it, since standard input can be read only once."""
    text = os.fspath(path)
    if text == STANDARD:
        return Place(STANDARD, STANDARD, content=sys.stdin.buffer.read(), dialect=dialect or Dialect())
    if os.path.isdir(text):
        raise InputError(f"{display_name(path)} is a folder: give the name of one file in it")
    return _file(text).loaded()


def is_many(path: str | os.PathLike[str]) -> bool:
    """Whether this names a folder, or is a pattern, rather than one file."""
    text = os.fspath(path)
    return text != STANDARD and (os.path.isdir(text) or bool(_WILD.search(text) and not os.path.exists(text)))


def fixed_part(pattern: str) -> str:
    """The folder that all of its files are in, or below."""
    wild = _WILD.search(pattern)
    return os.path.dirname(pattern[: wild.start() if wild else None]) or "."


def find_places(data: Any) -> list[Place]:
    """The files of a folder (and of those below it), a pattern such as "sales/*.parquet", a list of files, a pyarrow
    data set, or a place, in the order of their names; at least one, and all of one kind."""
    if hasattr(data, "get_fragments"):
        places = _of_dataset(data)
    elif isinstance(data, Place | str | os.PathLike):
        places = _of_path(data)
    elif isinstance(data, Sequence) and data and all(isinstance(one, Place | str | os.PathLike) for one in data):
        places = [place for one in data for place in _of_path(one)]
    else:
        raise InputError(
            f"a data set must be a folder, a pattern, a list of files or a pyarrow data set, got {data!r:.80}"
        )
    if isinstance(data, TablePath):
        places = [replace(place, dialect=data.dialect) for place in places]
    places = sorted(places, key=lambda place: (place.relative, place.path))
    if len({place.ending.removesuffix(".gz") for place in places}) > 1:
        called = display_name(data) if isinstance(data, str | os.PathLike) else "the data set"
        raise InputError(
            f"{called} holds tables of several kinds ({listed(sorted({place.ending for place in places}))}): choose "
            "one by a pattern such as '*.parquet'"
        )
    return places


def ending(path: str | os.PathLike[str]) -> str:
    """The one of `FORMATS` that a file's name has."""
    name = os.path.basename(os.fspath(path)).lower()
    found = [one for one in FORMATS if name.endswith(one)]
    if not found:
        remedy = "rename or convert the file"
        raise InputError(f"'{os.fspath(path)}': the name of a table must end in {either(list(FORMATS))}; {remedy}")
    return max(found, key=len)


def _of_path(data: Place | str | os.PathLike[str]) -> list[Place]:
    if isinstance(data, Place):
        return [data]
    path = os.fspath(data)
    if os.path.isdir(path):
        return _of_folder(path)
    if is_many(path):
        return _of_pattern(path)
    return [_file(path)]


def _file(path: str) -> Place:
    if not os.path.exists(path):
        raise InputError(f"'{path}' does not exist: check the path")
    ending(path)  # a name that says what it is
    return Place(path, os.path.basename(path))


def _of_folder(folder: str) -> list[Place]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        found += [
            os.path.join(place, name)
            for name in names
            if not name.startswith((".", "_")) and name.lower().endswith(tuple(FORMATS))
        ]
    if not found:
        raise InputError(f"'{folder}' holds no table: no file in it, or below, ends in {either(list(FORMATS))}")
    return _with_constants(found, folder)


def _of_pattern(pattern: str) -> list[Place]:
    found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not found:
        raise InputError(f"no file matches '{pattern}': check the pattern")
    for path in found:
        ending(path)
    return _with_constants(found, fixed_part(pattern))


def _with_constants(paths: Sequence[str], folder: str) -> list[Place]:
    """year=2021/part.parquet has a column `year`, of numbers if every file's is one."""
    relatives = [Path(os.path.relpath(path, folder)).as_posix() for path in paths]
    words = [dict(part.split("=", 1) for part in Path(one).parts[:-1] if "=" in part) for one in relatives]
    keys = {key for one in words for key in one}
    numeric = {key for key in keys if all(re.fullmatch(r"-?\d+", one.get(key, "0")) for one in words)}
    constants = [{key: int(value) if key in numeric else value for key, value in one.items()} for one in words]
    for path, own in zip(paths, constants, strict=True):
        for key, value in own.items():
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise InputError(f"'{path}': its folder {key}={value} is beyond a number of 64 bits; rename the folder")
    found = zip(paths, relatives, constants, strict=True)
    return [Place(path, relative, constants=own) for path, relative, own in found]


def _of_dataset(dataset: Any) -> list[Place]:
    from pyarrow.dataset import get_partition_keys
    from pyarrow.fs import LocalFileSystem

    if not hasattr(dataset, "files"):
        raise InputError(
            f"a pyarrow {type(dataset).__name__} has no files; write it to files (pyarrow.dataset.write_dataset) first"
        )
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:  # pyarrow's, of a data set with a filter
        raise InputError(
            "a filtered pyarrow data set cannot be read by its files; write the rows to files of their own "
            "(pyarrow.dataset.write_dataset) first"
        ) from None
    if not fragments:
        raise InputError("the pyarrow data set has no files")
    folder = os.path.commonpath([os.path.dirname(fragment.path) for fragment in fragments])
    filesystem = None if isinstance(dataset.filesystem, LocalFileSystem) else dataset.filesystem
    return [
        Place(
            fragment.path,
            Path(os.path.relpath(fragment.path, folder)).as_posix(),
            filesystem,
            get_partition_keys(fragment.partition_expression),
        )
        for fragment in fragments
    ]


# ---- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that are wanted: `columns` in that order, or all but those in `drop`."""

    columns: Sequence[str] | None = None
    drop: Collection[str] = ()
    text: Collection[str] = ()
    """Columns that are text whatever they contain, for formats without types of their own."""
    numbers: Collection[str] | None = None
    """Of the same formats: columns that may be numbers with leading zeros; in others 00501 is text. None: all may."""

    def of(self, names: Sequence[str], place: Place) -> list[str]:
        """Of a file with these columns, and of the constants of its place."""
        have = [*names, *(name for name in place.constants if name not in names)]
        if self.columns is None:
            check_unique(have, place.name)
            drop = split_names(self.drop, have)
            check_present(have, drop, place.name)
            return [name for name in have if name not in drop]
        check_present(have, self.columns, place.name)
        check_unique([name for name in have if name in self.columns], place.name)
        return list(self.columns)

    def inside(self, names: Sequence[str], place: Place) -> list[str]:
        """Those of them that the file itself must give."""
        return [name for name in self.of(names, place) if name not in place.constants]


def split_names(names: Iterable[str], have: Sequence[str]) -> list[str]:
    """a,b is two columns where no column has a comma in its name."""
    if any("," in name for name in have):
        return list(names)
    return [part.strip() for name in names for part in name.split(",")]


def check_unique(names: Sequence[str], name: str) -> None:
    twice = [column for column, number in Counter(names).items() if number > 1]
    if twice:
        raise InputError(f"{name} has more than one column named '{twice[0]}': give each a name of its own")


def check_present(have: Sequence[str], wanted: Iterable[str], name: str) -> None:
    for column in wanted:
        if column not in have:
            near = get_close_matches(column, [str(one) for one in have], n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {listed(have)}"
            if len(have) == 1 and column in have[0]:
                hint = f"its one column is '{have[0]}': name what separates columns (--separator)"
            raise InputError(f"{name} has no column '{column}'; {hint}")


def unknown_column(column: str, have: Sequence[str]) -> InputError:
    """Of what a user has said that columns are meant as."""
    return InputError(
        f"columns says what '{column}' is meant as, which is not among the columns to predict from: these are "
        f"{listed(have)}"
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def display_name(path: str | os.PathLike[str]) -> str:
    """A file's name in messages."""
    return "standard input" if os.fspath(path) == STANDARD else f"'{os.fspath(path)}'"


def listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def one_line(error: BaseException) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split())[:200]
