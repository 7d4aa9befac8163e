"""What the maps of the Ookla experiment show: measurements in cells, a grid over a state, slices of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from deepbasis.gp.model import DeepBasisGP
from deepbasis.paper.data_ookla import Region, contains
from deepbasis.paper.records import to_draw
from deepbasis.paper.splits import Floats

CELL = 0.05
"""Degrees: the side of the cells in which the paper aggregates measurements (caption of its map of uncertainty)."""


class NamedPlace(NamedTuple):
    kind: str
    name: str
    lon: float
    lat: float


PLACES: MappingProxyType[str, tuple[NamedPlace, NamedPlace, NamedPlace]] = MappingProxyType(
    {
        "Georgia": (
            NamedPlace("urban", "Atlanta", -84.39, 33.76),
            NamedPlace("rural", "Vidalia", -82.41, 32.22),
            NamedPlace("remote", "Okefenokee Swamp", -82.30, 30.75),
        ),
        "New Mexico": (
            NamedPlace("urban", "Albuquerque", -106.62, 35.10),
            NamedPlace("rural", "Estancia", -106.06, 34.76),
            NamedPlace("remote", "Gila Wilderness", -108.35, 33.25),
        ),
        "Puerto Rico": (
            NamedPlace("urban", "San Juan", -66.06, 18.41),
            NamedPlace("rural", "Adjuntas", -66.72, 18.16),
            NamedPlace("remote", "El Yunque", -65.79, 18.29),
        ),
    }
)
"""x_ref of the kernel slices. NOTE[GAP]: the paper calls its own "representative urban, rural, and wildland locations"
and names none."""


Corners = NDArray[np.int32]
"""[k, 2]: the west and south sides of cells, counted in cells from longitude and latitude 0."""


@dataclass(frozen=True)
class Cells:
    """Squares of so many degrees that hold enough points."""

    corner: Corners
    count: NDArray[np.int64]
    """[k]: points in the cell."""
    index: NDArray[np.int64]
    """[n]: the cell of each point; -1 for a point whose cell holds too few."""

    def mean(self, values: ArrayLike) -> Floats:
        """Of the points' values, in each cell."""
        inside = self.index >= 0
        sums = np.bincount(self.index[inside], np.asarray(values, dtype=np.float64)[inside], len(self.count))
        return sums / self.count

    def std(self, values: ArrayLike) -> Floats:
        """Of the points' values, in each cell, with n - 1 in the denominator."""
        values = np.asarray(values, dtype=np.float64)
        residual = values - np.append(self.mean(values), np.nan)[self.index]
        return np.sqrt(self.mean(residual**2) * self.count / (self.count - 1))


def gather(X: ArrayLike, fewest: int = 1, cell: float = CELL) -> Cells:
    """The cells of points [n, 2] of longitude and latitude that hold at least `fewest` of them."""
    square = np.floor(np.asarray(X, dtype=np.float64) / cell).astype(np.int32)
    corner, index, count = np.unique(square, axis=0, return_inverse=True, return_counts=True)
    kept = count >= fewest
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
    return Cells(corner[kept], count[kept], number[index.reshape(-1)])


def in_common(first: Corners, second: Corners) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which cells of the one, and which of the other, are the same squares, in the same order."""
    places = {tuple(corner): k for k, corner in enumerate(first.tolist())}
    pairs = [(places[tuple(corner)], k) for k, corner in enumerate(second.tolist()) if tuple(corner) in places]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@dataclass(frozen=True)
class ComparedCells:
    """Cells with enough training rows for a standard deviation, and a test row."""

    corner: Corners
    empirical: Floats
    """[k]: the standard deviation of the training rows."""
    predicted: Floats
    """[k]: the root of the test rows' mean variance."""

    def agreement(self) -> float | None:
        """The correlation of the two."""
        if len(self.corner) < 3 or np.ptp(self.predicted) == 0.0:
            return None
        return float(np.corrcoef(self.empirical, self.predicted)[0, 1])

    def arrays(self) -> dict[str, Tensor]:
        drawn = {"cell_std": self.empirical, "cell_predicted": self.predicted}
        return {"cells": torch.from_numpy(self.corner)} | {k: to_draw(torch.from_numpy(v)) for k, v in drawn.items()}


def compare(
    train: ArrayLike, y: ArrayLike, test: ArrayLike, std: Tensor, fewest: int, cell: float = CELL
) -> ComparedCells:
    """The rows [n, 2] of longitude and latitude and their target; the test rows, and their predicted std."""
    known, tested = gather(train, fewest, cell), gather(test, cell=cell)
    variance = tested.mean(std.square())
    one, other = in_common(known.corner, tested.corner)
    return ComparedCells(known.corner[one], known.std(y)[one], np.sqrt(variance[other]))


class Grid(NamedTuple):
    """Points over a region's bounding box, rows from south to north."""

    lon: Floats
    lat: Floats
    inside: NDArray[np.bool_]
    """[rows, columns]: whether the point is in the region."""

    @property
    def points(self) -> Floats:
        """[k, 2]: those inside."""
        lon, lat = np.meshgrid(self.lon, self.lat)
        return np.column_stack([lon[self.inside], lat[self.inside]])

    def spread(self, values: Tensor) -> Tensor:
        """Values [..., k] at the points inside, as pictures [..., rows, columns]: NaN outside."""
        picture = torch.full((*values.shape[:-1], *self.inside.shape), torch.nan, dtype=values.dtype)
        picture[..., torch.from_numpy(self.inside)] = values
        return picture


def grid_over(region: Region, points: int) -> Grid:
    """`points` along the longer side of the region's bounding box, as far apart in degrees along the other."""
    low, high = region.bounds
    step = float((high - low).max()) / points
    lon, lat = (np.arange(a + 0.5 * step, b, step) for a, b in zip(low, high, strict=True))
    every = np.column_stack([axis.ravel() for axis in np.meshgrid(lon, lat)])
    return Grid(lon, lat, contains(region, every).reshape(len(lat), len(lon)))


def outline(region: Region) -> Tensor:
    """[k, 2]: the rings of a region one after another, a NaN between them, so that one line draws them all."""
    gap = np.full((1, 2), np.nan)
    pieces = [piece for ring in region.rings for piece in (ring, gap)]
    return torch.from_numpy(np.concatenate(pieces[:-1])).float()


def rings(outline: ArrayLike) -> list[Floats]:
    """The rings of an outline, again one by one."""
    line = np.asarray(outline, dtype=np.float64)
    gaps = np.flatnonzero(np.isnan(line).all(axis=1))
    return [piece[np.isfinite(piece).all(axis=1)] for piece in np.split(line, gaps)]


def frame(outline: ArrayLike, points: ArrayLike) -> tuple[Floats, Floats]:
    """Lower and upper corner of the rings that have points: islands without any need no room on a map."""
    X = np.asarray(points, dtype=np.float64)
    boxes = [(ring.min(axis=0), ring.max(axis=0)) for ring in rings(outline)]
    settled = [(low, high) for low, high in boxes if ((low <= X) & (high >= X)).all(axis=1).any()]
    low, high = zip(*(settled or boxes), strict=True)
    return np.min(low, axis=0), np.max(high, axis=0)


@torch.no_grad()
def kernel_slices(model: DeepBasisGP, x: Tensor, at: Tensor, chunk: int = 8_192) -> Tensor:
    """[len(at), len(x)]: k(., x_ref) at the points `x`, so many at once, for every x_ref of `at` (Eq. 8)."""
    return torch.cat([model.kernel(at, some) for some in x.split(chunk)], dim=1)
