"""Places on the map: the tiles of Ookla's maps, the polygons of states, and coordinates scaled to them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deepbasis.errors import FileFormatError, InputError
from deepbasis.paper.splits import Floats

ZOOM = 16
"""Of Ookla's tiles: 2^16 by 2^16 cover the world, each about 600 m wide at the equator."""


class Region(NamedTuple):
    """Polygons of longitudes and latitudes. A point is inside when it is inside an odd number of rings, so that a hole
    is one more ring, and an island too."""

    name: str
    rings: tuple[Floats, ...]
    """Each [k, 2], its last point the first again."""

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """The corners of the bounding box: (west, south) and (east, north)."""
        points = np.concatenate(self.rings)
        return points.min(axis=0), points.max(axis=0)


def quadkey_centre(quadkey: ArrayLike) -> Floats:
    """[n, 2]: longitude and latitude of the centres of tiles, in the Web Mercator map that they are squares of.

    A quadkey has a digit per zoom level, each a bit of the column plus twice a bit of the row. Text or integers; an
    integer has lost its leading zeros.
    """
    keys = np.asarray(quadkey).astype(np.int64).reshape(-1)
    digits = keys[:, None] // 10 ** np.arange(ZOOM - 1, -1, -1, dtype=np.int64)
    digits[:, 1:] -= 10 * digits[:, :-1]
    if ((digits < 0) | (digits > 3)).any():
        wrong = keys[((digits < 0) | (digits > 3)).any(axis=1)][0]
        raise InputError(f"quadkey {wrong} is no tile of zoom level {ZOOM}: it has digits 0 to 3 alone, at most {ZOOM}")
    bits = 2 ** np.arange(ZOOM - 1, -1, -1, dtype=np.int64)
    column, row = (digits & 1) @ bits, (digits >> 1) @ bits
    longitude = 360.0 * (column + 0.5) / 2**ZOOM - 180.0
    latitude = np.degrees(np.arctan(np.sinh(np.pi * (1.0 - 2.0 * (row + 0.5) / 2**ZOOM))))
    return np.column_stack([longitude, latitude])


def contains(region: Region, X: Floats) -> NDArray[np.bool_]:
    """Which points [n, 2] lie inside: those with an odd number of edges to their east."""
    order = np.argsort(X[:, 1], kind="stable")
    longitude, latitude = X[order, 0], X[order, 1]
    inside = np.zeros(len(X), dtype=np.bool_)
    for ring in region.rings:
        low, high = np.minimum(ring[:-1, 1], ring[1:, 1]), np.maximum(ring[:-1, 1], ring[1:, 1])
        # An edge meets the points of low <= latitude < high: a corner belongs to one of its two edges, never to both.
        starts, ends = np.searchsorted(latitude, low), np.searchsorted(latitude, high)
        for k in np.flatnonzero(ends > starts):
            (x1, y1), (x2, y2) = ring[k], ring[k + 1]
            at = slice(starts[k], ends[k])
            inside[at] ^= longitude[at] < x1 + (latitude[at] - y1) * (x2 - x1) / (y2 - y1)
    result = np.empty_like(inside)
    result[order] = inside
    return result


def scale_coordinates(X: Floats, region: Region) -> Floats:
    """App. B: longitude and latitude to [-1, 1]^2 by the bounding box of the state's polygon."""
    low, high = region.bounds
    return 2.0 * (X - low) / (high - low) - 1.0


def load_state(path: str | os.PathLike[str], name: str) -> Region:
    """The state of this NAME in a GeoJSON file of boundaries, as the US Census has them."""
    named = {str((feature.get("properties") or {}).get("NAME")): feature for feature in _features(Path(path))}
    if name not in named:
        raise InputError(f"{path} has no state {name!r}; it has {', '.join(sorted(named))}")
    return Region(name, _rings(Path(path), named[name]))


def load_areas(path: str | os.PathLike[str]) -> Region:
    """All polygons of a GeoJSON file as one region, such as the Census's urban areas; they must not overlap."""
    return Region(Path(path).stem, tuple(ring for f in _features(Path(path)) for ring in _rings(Path(path), f)))


def _features(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        features = content["features"]
        if not features or not all(isinstance(feature, dict) for feature in features):
            raise KeyError("features")
    except (ValueError, KeyError, TypeError):
        raise FileFormatError(f"{path} is not a GeoJSON collection of features") from None
    return list(features)


def _rings(path: Path, feature: dict[str, Any]) -> tuple[Floats, ...]:
    try:
        geometry = feature["geometry"]
        polygons = {"Polygon": [geometry["coordinates"]], "MultiPolygon": geometry["coordinates"]}[geometry["type"]]
        rings = tuple(np.asarray(ring, dtype=np.float64)[:, :2] for polygon in polygons for ring in polygon)
        if not rings or not all(len(ring) >= 4 and np.array_equal(ring[0], ring[-1]) for ring in rings):
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError):
        what = feature.get("properties")
        raise FileFormatError(f"{path}: {what} is no polygon, or one that is not closed") from None
    return rings
