"""Mobile internet quality (Sec. 4.3): Ookla's quarterly tiles of a state, prepared as arrays or from its own Parquet.

Ookla's files are those of its open data, `YYYY-MM-01_performance_mobile_tiles.parquet`: one a quarter, for the world.
What is made from them carries ATTRIBUTION.
"""

from __future__ import annotations

import logging
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import FileFormatError, InputError, check_choice
from deepbasis.paper.data_download import FOLDER, data_folder
from deepbasis.paper.geography import (
    Region,
    contains,
    load_areas,
    load_state,
    quadkey_centre,
    scale_coordinates,
)
from deepbasis.paper.splits import Floats

__all__ = [
    "ATTRIBUTION",
    "NAMES",
    "PREPARED",
    "Region",
    "Tiles",
    "contains",
    "load",
    "load_areas",
    "load_state",
    "quadkey_centre",
    "read_parquet",
    "scale_coordinates",
    "state",
    "strata",
]

log = logging.getLogger("deepbasis")

ATTRIBUTION = (
    "Contains data of Speedtest® by Ookla® Global Fixed and Mobile Network Performance Maps, provided by Ookla, "
    "filtered by state and transformed; licensed under CC BY-NC-SA 4.0 "
    "(https://creativecommons.org/licenses/by-nc-sa/4.0/)."
)

Integers = NDArray[np.int64]

PREPARED = {
    "mobile-puerto-rico": "mobile_puerto_rico.npz",
    "fixed-georgia": "fixed_2023Q2_georgia.npz",
    "fixed-new-mexico": "fixed_2023Q2_new_mexico.npz",
}
"""Data sets that are read from one file of arrays in the folder ookla/."""

_STATES = {
    "mobile-puerto-rico": "Puerto Rico",
    "fixed-georgia": "Georgia",
    "fixed-new-mexico": "New Mexico",
    "mobile-georgia": "Georgia",
    "mobile-new-mexico": "New Mexico",
}
NAMES = tuple(_STATES)
"""The prepared ones, and the paper's two, which are read from Ookla's own files in the folder ookla/."""

_COLUMNS = {"quadkey": "quadkey", "download": "avg_d_kbps", "upload": "avg_u_kbps", "latency": "avg_lat_ms"}
_ARRAYS = {"quadkey": "quadkey", "download": "d_kbps", "upload": "u_kbps", "latency": "lat_ms"}
_BATCH = 1 << 18  # rows of a Parquet file at a time: it holds the world


class Tiles(NamedTuple):
    """One row for each tile and quarter."""

    X: Floats
    """[n, 2]: longitude and latitude of the tile's centre."""
    download: Floats
    """log10 of kbit/s, the mean over the tile's tests; as is `upload`."""
    upload: Floats
    latency: Floats
    """log10 of milliseconds."""
    urban: NDArray[np.bool_] | None
    """None where nothing says which tiles are urban."""
    year: Integers
    quarter: Integers
    quadkey: Integers
    dropped: int
    """Rows left out because a value was zero, which has no logarithm."""


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Tiles:
    """Set `name` of NAMES from the folder given, or from that of DEEPBASIS_DATA."""
    place = _folder(name, folder)
    if name in PREPARED:
        return _read_arrays(place / "ookla" / PREPARED[name])
    urban = place / "geo" / "urban_areas.geojson"
    files = sorted((place / "ookla").rglob(f"*_performance_{name.partition('-')[0]}_tiles.parquet"))
    if not files:
        raise InputError(
            f"there is no file of {name} in {place / 'ookla'}: put Ookla's own Parquet files there, under their names "
            "(YYYY-MM-01_performance_mobile_tiles.parquet, https://github.com/teamookla/ookla-open-data), and, to tell "
            f"urban tiles from rural ones, the Census's urban areas as {urban}"
        )
    return read_parquet(files, state(name, place), load_areas(urban) if urban.is_file() else None)


def state(name: str, folder: str | os.PathLike[str] | None = None) -> Region:
    """The boundary of the state that set `name` is about, from geo/states.geojson in the data folder."""
    boundaries = _folder(name, folder) / "geo" / "states.geojson"
    if not boundaries.is_file():
        raise InputError(
            f"{boundaries} is missing: make it from the US Census's cartographic boundaries of states, with their NAME"
        )
    return load_state(boundaries, _STATES[name])


def strata(tiles: Tiles) -> dict[str, NDArray[np.bool_]]:
    """Which tiles are urban, and which rural."""
    if tiles.urban is None:
        raise InputError("nothing says which of these tiles are urban: give read_parquet the urban areas")
    return {"urban": tiles.urban, "rural": ~tiles.urban}


def read_parquet(
    path: str | os.PathLike[str] | list[Path], state_polygon: Region, urban_areas: Region | None = None
) -> Tiles:
    """The tiles whose centre is in the state, of one or more of Ookla's own Parquet files, in their order.

    A file's columns `year` and `quarter` count if it has them, else the date that its name begins with.
    """
    files = [Path(file) for file in path] if isinstance(path, list) else [Path(path)]
    pieces = [piece for file in files for piece in _pieces(file, state_polygon)]
    if not any(len(piece["quadkey"]) for piece in pieces):
        raise InputError(f"{', '.join(map(str, files))}: no tile is in {state_polygon.name}")
    values = {column: np.concatenate([piece[column] for piece in pieces]) for column in pieces[0]}
    tiles = _tiles(values, None, ", ".join(file.name for file in files))
    return tiles if urban_areas is None else tiles._replace(urban=contains(urban_areas, tiles.X))


def _folder(name: str, folder: str | os.PathLike[str] | None) -> Path:
    check_choice("name", name, NAMES)
    place = data_folder(folder)
    if place is None:
        raise InputError(f"{name} needs a folder of data sets: name it, or set the environment variable {FOLDER} to it")
    return place


def _read_arrays(file: Path) -> Tiles:
    if not file.is_file():
        raise InputError(f"there is no {file}: put it there, or read Ookla's own files with read_parquet")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            values = {ours: arrays[theirs] for ours, theirs in _ARRAYS.items()}
            values |= {"year": arrays["year"], "quarter": arrays["quarter"]}
            urban = arrays["urban"].astype(np.bool_)
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"{file} cannot be read as arrays of tiles: {error}") from None
    return _tiles(values, urban, str(file))


def _tiles(values: dict[str, NDArray[Any]], urban: NDArray[np.bool_] | None, where: str) -> Tiles:
    speeds = np.column_stack([values["download"], values["upload"], values["latency"]]).astype(np.float64)
    kept = np.flatnonzero((speeds > 0).all(axis=1))
    dropped = len(speeds) - len(kept)
    if dropped:
        log.warning("%s: %d of %d rows left out, where a speed or a latency is 0", where, dropped, len(speeds))
    logarithms = np.log10(speeds[kept])
    quadkey = values["quadkey"][kept].astype(np.int64)
    return Tiles(
        X=quadkey_centre(quadkey),
        download=logarithms[:, 0].copy(),
        upload=logarithms[:, 1].copy(),
        latency=logarithms[:, 2].copy(),
        urban=None if urban is None else urban[kept],
        year=values["year"][kept].astype(np.int64),
        quarter=values["quarter"][kept].astype(np.int64),
        quadkey=quadkey,
        dropped=dropped,
    )


def _pieces(file: Path, region: Region) -> Iterator[dict[str, NDArray[Any]]]:
    """The file's rows inside the region, a batch of rows at a time; the tiles' shapes (WKT) are not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        missing = sorted(set(_COLUMNS.values()) - set(parquet.schema_arrow.names))
        if missing:
            raise FileFormatError(f"{file} has no column {', '.join(missing)}: it is not a file of Ookla's tiles")
        dated = {"year", "quarter"} <= set(parquet.schema_arrow.names)
        year, quarter = (None, None) if dated else _date(file)
        for batch in parquet.iter_batches(
            _BATCH, columns=[*_COLUMNS.values(), *(("year", "quarter") if dated else ())]
        ):
            values = {ours: batch.column(theirs) for ours, theirs in _COLUMNS.items()}
            arrays = {name: column.cast(pa.int64()).to_numpy(zero_copy_only=False) for name, column in values.items()}
            for name, given in (("year", year), ("quarter", quarter)):
                arrays[name] = np.full(batch.num_rows, given) if given else batch.column(name).to_numpy()
            inside = contains(region, quadkey_centre(arrays["quadkey"]))
            yield {name: array[inside] for name, array in arrays.items()}
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(f"{file} cannot be read as a Parquet file of tiles: {error}") from None


def _date(file: Path) -> tuple[int, int]:
    match = re.match(r"(\d{4})-(01|04|07|10)-01_", file.name)
    if match is None:
        raise InputError(
            f"{file} does not say its quarter: it has no columns year and quarter, and its name does not begin with "
            "the quarter's first day, as Ookla's do (2023-04-01_performance_mobile_tiles.parquet); rename it"
        )
    return int(match[1]), (int(match[2]) + 2) // 3
