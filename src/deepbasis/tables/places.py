"""The files of a table that is spread over many: a folder, a pattern, a list of files or a pyarrow data set.

Their order is that of their names, the same on every machine: a row is known by its file's place in it.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepbasis.errors import InputError
from deepbasis.tables.naming import ENDINGS, STANDARD, either, ending, listed

_WILD = re.compile(r"[*?]|\[[^]]+\]")  # what makes a name a pattern


@dataclass(frozen=True)
class Place:
    """One file."""

    path: str
    relative: str
    """Below the folder that was given; what its output is named after."""
    filesystem: Any = None
    """Of pyarrow; None is this machine's."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the folders' names hold: year=2021/part.parquet."""

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"'{self.path}'"

    @property
    def ending(self) -> str:
        return ending(Path(self.path))

    def open(self) -> Any:
        """A pyarrow file for reading at random."""
        import pyarrow as pa

        with self.refusals():
            return pa.OSFile(self.path) if self.filesystem is None else self.filesystem.open_input_file(self.path)

    def identity(self) -> tuple[int, int]:
        """Size, and time of the last change in nanoseconds: another content has another identity."""
        with self.refusals():
            if self.filesystem is None:
                status = os.stat(self.path)
                return status.st_size, status.st_mtime_ns
            info = self.filesystem.get_file_info(self.path)
            return int(info.size or 0), int(info.mtime_ns or 0)

    def refusals(self) -> Refusals:
        return Refusals(self)


@dataclass(frozen=True)
class Refusals:
    """What the system refuses, as an `InputError` with the file's name."""

    place: Place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{self.place.name} does not exist: check the path") from None
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
            raise InputError(f"{self.place.name} cannot be read: {reason}") from None


def is_many(path: str | os.PathLike[str]) -> bool:
    """Whether this names a folder, or is a pattern, rather than one file."""
    text = os.fspath(path)
    return text != STANDARD and (os.path.isdir(text) or (_is_pattern(text) and not os.path.exists(text)))


def find_places(data: Any) -> list[Place]:
    """The tables of a folder (and of those below it), a pattern such as "sales/*.parquet", a list of files, or a
    pyarrow data set, in the order of their names; at least one, and all of one kind."""
    if hasattr(data, "get_fragments"):
        places = _of_dataset(data)
    elif isinstance(data, str | os.PathLike):
        places = _of_path(os.fspath(data))
    elif isinstance(data, Sequence) and data and all(isinstance(one, str | os.PathLike) for one in data):
        places = [place for one in data for place in _of_path(os.fspath(one))]
    else:
        raise InputError(
            f"a data set must be a folder, a pattern, a list of files or a pyarrow data set, got {data!r:.80}"
        )
    places = sorted(places, key=lambda place: (place.relative, place.path))
    kinds = sorted({place.ending for place in places})
    if ".parquet" in kinds and len(kinds) > 1:
        raise InputError(
            f"{_called(data)} holds tables of several kinds ({listed(kinds)}): choose one by a pattern such as "
            "'*.parquet'"
        )
    return places


def _of_path(path: str) -> list[Place]:
    if os.path.isdir(path):
        return _of_folder(path)
    if _is_pattern(path) and not os.path.exists(path):
        return _of_pattern(path)
    if not os.path.exists(path):
        raise InputError(f"'{path}' does not exist: check the path")
    ending(Path(path))  # a name that says what it is
    return [Place(path, os.path.basename(path))]


def _of_folder(folder: str) -> list[Place]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        found += [os.path.join(place, name) for name in names if _is_table(name)]
    if not found:
        raise InputError(f"'{folder}' holds no table: no file in it, or below, ends in {either(ENDINGS)}")
    relatives = [Path(os.path.relpath(path, folder)).as_posix() for path in found]
    return _with_constants(found, relatives)


def _of_pattern(pattern: str) -> list[Place]:
    found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not found:
        raise InputError(f"no file matches '{pattern}': check the pattern")
    for path in found:
        ending(Path(path))
    wild = _WILD.search(pattern)
    fixed = os.path.dirname(pattern[: wild.start() if wild else None])
    relatives = [Path(os.path.relpath(path, fixed or ".")).as_posix() for path in found]
    return _with_constants(found, relatives)


def _with_constants(paths: Sequence[str], relatives: Sequence[str]) -> list[Place]:
    """year=2021/part.parquet has a column `year`, of numbers if every file's is one."""
    words = [dict(part.split("=", 1) for part in Path(one).parts[:-1] if "=" in part) for one in relatives]
    numeric = {key for one in words for key in one if all(_is_integer(other.get(key, "0")) for other in words)}
    constants = [{key: int(value) if key in numeric else value for key, value in one.items()} for one in words]
    return [
        Place(path, relative, constants=own) for path, relative, own in zip(paths, relatives, constants, strict=True)
    ]


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
    local = isinstance(dataset.filesystem, LocalFileSystem)
    return [
        Place(
            fragment.path,
            Path(os.path.relpath(fragment.path, folder)).as_posix(),
            None if local else dataset.filesystem,
            get_partition_keys(fragment.partition_expression),
        )
        for fragment in fragments
    ]


def _is_pattern(path: str) -> bool:
    return _WILD.search(path) is not None


def _is_table(name: str) -> bool:
    return not name.startswith((".", "_")) and name.lower().endswith(ENDINGS)


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def _called(data: Any) -> str:
    return f"'{os.fspath(data)}'" if isinstance(data, str | os.PathLike) else "the data set"
