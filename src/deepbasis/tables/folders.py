"""Folders of predictions: a part for each input file, where parts may be written, and parts whose input is gone.

A file beside the parts records which of them belong to which table: the part of an input that is no longer there is
removed.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepbasis.errors import InputError
from deepbasis.tables.output import writing
from deepbasis.tables.places import Place, find_places, fixed_part, is_many

RECORD = b"deepbasis"
"""Where a part says what it was made from, in its metadata."""
_MANIFEST = "_parts.json"  # files whose names begin so are no tables


def part_paths(places: Sequence[Place], out: str | os.PathLike[str]) -> list[Path]:
    """Where each file's predictions go: its name below `out`, ending in .parquet."""
    read = {_inode(Path(place.path)) for place in places if place.filesystem is None}
    paths: dict[Path, None] = {}
    for place in places:
        if ".." in Path(place.stem).parts:
            raise InputError(
                f"{place.name} lies outside the folder that the pattern begins with, and so would its "
                "predictions: give a pattern without '..' behind a wildcard"
            )
        path = Path(out) / f"{place.stem}.parquet"
        if path in paths:
            raise InputError(f"two tables would both be predicted to '{path}': rename {place.name}")
        if path.exists() and _inode(path) in read:
            raise InputError(f"cannot write '{path}': it is also read; choose another folder for the output")
        paths[path] = None
    return list(paths)


def check_not_read_again(data: Any, out: str | os.PathLike[str], paths: Sequence[Path]) -> None:
    """Refuse parts that would be rows of the same table when it is read the next time."""
    folder = Path(out).resolve()
    if hasattr(data, "get_fragments"):
        again = _is_among([Path(place.path) for place in find_places(data) if place.filesystem is None], folder)
    elif isinstance(data, str | os.PathLike):
        again = _reads(os.fspath(data), folder, [folder / path.relative_to(out) for path in paths])
    elif isinstance(data, Sequence):
        for one in data:
            check_not_read_again(one, out, paths)
        return
    else:
        return
    if again:
        called = f"'{os.fspath(data)}'" if isinstance(data, str | os.PathLike) else "the data set"
        raise InputError(
            f"cannot write to '{os.fspath(out)}': predictions in it would be read as rows of {called} the next time; "
            "choose a folder outside"
        )


def _is_among(files: Sequence[Path], folder: Path) -> bool:
    """Whether a folder holds files of the data set, or lies below the folder that all of them are in."""
    own = {file.resolve().parent for file in files}
    common = Path(os.path.commonpath(own)) if own else Path("/")
    return folder in own or (common != common.parent and folder.is_relative_to(common))


def _reads(table: str, folder: Path, paths: Sequence[Path]) -> bool:
    """Whether a table's name, a folder's or a pattern, is that of some of these paths in a folder too."""
    if os.path.isdir(table):
        return folder.is_relative_to(Path(table).resolve())
    if not is_many(table):
        return False
    fixed = fixed_part(table)  # it may go through links, and up again: the wildcards do not
    pattern = os.path.join(glob.escape(str(Path(fixed).resolve())), os.path.relpath(table, fixed))
    parts = Path(pattern).parts
    if "**" in parts:  # any number of folders, which `match` does not know
        before = str(Path(*parts[: parts.index("**")]))
        return any(one.match(before) for one in (folder, *folder.parents))
    return any(path.match(pattern) for path in paths)


def remove_stale_parts(data: Any, out: str | os.PathLike[str], paths: Sequence[Path]) -> None:
    """Remove parts of inputs that were there the last time this table was predicted, and record those of this time.

    What another table was predicted to stays, and so does every file that is not a part.
    """
    if not isinstance(data, str | os.PathLike):
        return
    table, folder = str(Path(data).resolve()), Path(out)
    known = _read_manifest(folder)
    before, now = known.get(table, []), [path.relative_to(folder).as_posix() for path in paths]
    others = {name for one, names in known.items() if one != table for name in names}
    for name in {*before} - {*now} - others:
        path = folder / name
        if path.resolve().is_relative_to(folder.resolve()) and record_of(path) is not None:
            path.unlink()
    if before != now:
        folder.mkdir(parents=True, exist_ok=True)
        with writing(folder / _MANIFEST) as to:
            to.write(json.dumps({**known, table: now}, indent=1).encode())


def _read_manifest(folder: Path) -> dict[str, list[str]]:
    """The parts of each table; nothing where there is no such record, or a damaged one."""
    try:
        known = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    names = known.values() if isinstance(known, dict) else [None]
    are_names = all(isinstance(some, list) and all(isinstance(one, str) for one in some) for some in names)
    return known if are_names else {}


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def record_of(path: Path) -> Any:
    """What an earlier run recorded in a part; None if there is no part, or not one of ours."""
    import pyarrow as pa
    from pyarrow import parquet

    if not path.is_file():
        return None
    try:
        metadata = parquet.read_schema(path).metadata or {}
        return json.loads(metadata.get(RECORD, b"null"))
    except (pa.ArrowException, OSError, ValueError):
        return None
