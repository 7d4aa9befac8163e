"""What is written, and what is checked before any work is done: the place of an output, its ending, its folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from deepbasis.errors import InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.places import STANDARD, either, ending

if TYPE_CHECKING:
    import pandas as pd

_SPOOLED_BYTES = 16 << 20  # in memory; more is in a temporary file until it is complete


def write_tables(tables: Iterable[pd.DataFrame], path: str | os.PathLike[str]) -> None:
    """Write tables one below the other, without their index, to `path` by its ending; "-" is CSV on standard output.

    What fails half-way leaves nothing behind: neither a file nor a line.
    """
    if os.fspath(path) == STANDARD:
        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as kept:
            FORMATS[".csv"].write(tables, cast(BinaryIO, kept))
            kept.seek(0)
            shutil.copyfileobj(kept, sys.stdout.buffer)
        sys.stdout.flush()
    else:
        format_ = FORMATS[ending(path)]
        with writing(path) as to:
            format_.write(tables, to)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that is moved into place once complete; a system error becomes an `InputError` with the file's name."""
    from deepbasis.storage import writing_atomically  # brings torch

    _check_folder(path)
    try:
        with writing_atomically(path) as to:
            yield to
    except OSError as error:
        raise cannot_write(path, error) from None


def check_output(path: str | os.PathLike[str], *, endings: Sequence[str] = (), inputs: Iterable[Any] = ()) -> None:
    """Refuse a `path` that could not be written in the end, or that is one of the `inputs`.

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
    _check_folder(place)
    try:
        with tempfile.TemporaryFile(dir=place.parent):  # the honest test: permissions alone do not show it
            pass
    except OSError as error:
        raise cannot_write(path, error) from None


def check_out_folder(out: str | os.PathLike[str]) -> None:
    """A folder that can be written to, or the name of one that can be made."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out '{out}' is a file: predictions of many tables go to a folder")
    check_output(folder / "part.parquet" if folder.exists() else folder)


def cannot_write(path: str | os.PathLike[str], error: OSError) -> InputError:
    reason = (error.strerror or str(error)).lower()
    return InputError(f"cannot write '{os.fspath(path)}': {reason}; make room, or choose a place that you may write to")


def _check_folder(path: str | os.PathLike[str]) -> None:
    """The folder that is to hold `path` must exist."""
    folder = Path(path).parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"cannot write '{Path(path)}': the folder '{folder}' {what}; create it or choose another place"
        )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False
