"""The files that UCI's regression sets come in, found in a folder and read into one array with the target last.

Three layouts: arrays `X` and `y` in `<name>.npz`; tables of numbers in `<name>.csv`, also gzipped, or as the public
`uci_datasets` package has them, `<name>/data.csv.gz`; and, for four sets, the files that UCI itself delivers.

NOTE[GAP]: the paper names the sets and their sizes, not their columns. Its (n, d) are those of `uci_datasets` on all
ten, so UCI's own files are read to match: `slice` keeps its patient's number and `3droad` its road's, which makes 385
and 3 inputs. `buzz` is log(1 + y), as that package's `protein` is: an MAE of 0.17 beside an NLL of -0.02 under constant
noise, as the paper has them, comes of errors that are nearly normal, and those of raw counts are not.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from deepbasis.errors import FileFormatError
from deepbasis.paper.splits import Floats

SHAPES = {
    "pol": (15000, 26),
    "elevators": (16599, 18),
    "kin40k": (40000, 8),
    "protein": (45730, 9),
    "keggdirected": (48827, 20),
    "slice": (53500, 385),
    "keggundirected": (63608, 27),
    "3droad": (434874, 3),
    "song": (515345, 90),
    "buzz": (583250, 77),
}
"""Rows and inputs of each set, in the paper's order; 8 in 10 of the rows are its n."""


def _as_it_is(data: Floats) -> Floats:
    return data


def _target_from_the_front(data: Floats) -> Floats:
    return np.roll(data, -1, axis=1)


def _log_target(data: Floats) -> Floats:
    if (data[:, -1] < 0).any():
        raise ValueError("its last column, a number of discussions, is negative somewhere")
    return np.column_stack([data[:, :-1], np.log1p(data[:, -1])])


class Original(NamedTuple):
    """A file as UCI delivers it: alone, in a .zip, or in UCI's .tar.gz."""

    file: str
    tarball: str | None
    arrange: Callable[[Floats], Floats]
    """Its columns -> inputs, then the target."""


ORIGINALS = {
    "slice": Original("slice_localization_data.csv", None, _as_it_is),  # patientId, 384 values, reference
    "3droad": Original("3D_spatial_network.txt", None, _as_it_is),  # OSM id, longitude, latitude, altitude
    "song": Original("YearPredictionMSD.txt", None, _target_from_the_front),  # year, 90 values
    "buzz": Original("Twitter.data", "regression.tar.gz", _log_target),  # 77 values, mean number of discussions
}


class Found(NamedTuple):
    data: Floats
    """Inputs, then the target."""
    place: Path


def read(name: str, folder: Path) -> Found | None:
    """Set `name` from the first of its files in `folder`; nothing if there is none."""
    for base in (folder / "uci", folder, folder / "uci_datasets"):
        if (arrays := base / f"{name}.npz").is_file():
            return Found(_read_arrays(arrays), arrays)
        for file in (f"{name}.csv", f"{name}.csv.gz", f"{name}/data.csv", f"{name}/data.csv.gz"):
            if (table := base / file).is_file():
                return Found(_read_tables(name, table), table)
        for place in (base, base / name):
            if name in ORIGINALS and (found := _read_original(ORIGINALS[name], place)) is not None:
                return found
    return None


def wanted(name: str, folder: Path) -> str:
    """What `read` looks for, in words for a message."""
    words = (
        f"{name}.npz (arrays X and y), {name}.csv or {name}.csv.gz (the target last), or {name}/data.csv.gz (as the "
        f"package uci_datasets has it)"
    )
    if name in ORIGINALS:
        words += f", or UCI's own {ORIGINALS[name].file}, as it is or in UCI's archive,"
    return f"put {words} into {folder / 'uci'}"


def _read_original(original: Original, folder: Path) -> Found | None:
    for place in [folder / original.file, folder / str(original.tarball), *sorted(folder.glob("*.zip"))]:
        content = _open(place, original) if place.is_file() else None
        if content is not None:
            with io.TextIOWrapper(content, encoding="utf-8") as lines:
                data = _parse(lines, place)
            try:
                return Found(original.arrange(data), place)
            except ValueError as error:
                raise FileFormatError(f"{place}: {error}") from None
    return None


def _open(place: Path, original: Original) -> BinaryIO | None:
    """The original's bytes, if `place` is it or an archive that holds it; UCI's newer .zip holds its older .tar.gz."""
    try:
        if place.name == original.file:
            return place.open("rb")
        if place.suffix != ".zip":
            return _open_in_tarball(place.read_bytes(), original.file)
        with zipfile.ZipFile(place) as archive:
            for member in archive.namelist():
                if PurePosixPath(member).name == original.file:
                    return io.BytesIO(archive.read(member))
                if PurePosixPath(member).name == original.tarball:
                    return _open_in_tarball(archive.read(member), original.file)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FileFormatError(f"{place} is damaged ({error}): download it again") from None
    return None


def _open_in_tarball(content: bytes, file: str) -> BinaryIO | None:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tarball:
        for member in tarball:
            if PurePosixPath(member.name).name == file and (found := tarball.extractfile(member)) is not None:
                return io.BytesIO(found.read())
    return None


def _read_arrays(place: Path) -> Floats:
    try:
        with np.load(place, allow_pickle=False) as arrays:
            X, y = arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
        return np.column_stack([X, y])
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"{place} cannot be read as arrays X [n, d] and y [n]: {error}") from None


def _read_tables(name: str, place: Path) -> Floats:
    """One table, and for `song` of `uci_datasets` the other half of it, data1 beside data."""
    second = place.with_name(place.name.replace("data.", "data1.", 1))
    places = [place, second] if name == "song" and place.parent.name == name and second.is_file() else [place]
    tables = []
    for part in places:
        with gzip.open(part, "rt", encoding="utf-8") if part.suffix == ".gz" else part.open(encoding="utf-8") as lines:
            tables.append(_parse(lines, part))
    try:
        return np.concatenate(tables)
    except ValueError as error:
        raise FileFormatError(f"{place} and {second.name} do not fit together: {error}") from None


def _parse(lines: Iterable[str], place: Path) -> Floats:
    """Numbers between commas; a first line of names is left out."""
    try:
        return np.loadtxt(_without_header(iter(lines)), delimiter=",", dtype=np.float64, ndmin=2, comments=None)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{place} cannot be read as a table of numbers: {error}") from None


def _without_header(lines: Iterator[str]) -> Iterator[str]:
    first = next(lines, "")
    try:
        [float(field) for field in first.split(",")]
    except ValueError:
        pass
    else:
        yield first
    yield from lines
