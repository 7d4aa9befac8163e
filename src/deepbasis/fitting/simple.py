"""Simple models that predict rows which they have not seen: "auto" asks them what the noise of a target looks like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST_ROWS = 200
"""Of fewer rows "auto" learns nothing about the target."""

_MOST_COLUMNS, _WAVES = 256, 192
_NEIGHBOURS, _ROWS_AT_A_TIME = 8, 500
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class SimpleModels:
    """A ridge regression on the columns and some waves across them, and nearest neighbours."""

    x: Floats
    """Encoded."""
    weight: Floats

    def left_by_ridge(self, z: Floats) -> Floats:
        """What a ridge regression on all other rows leaves of each z, with the best of some penalties."""
        weight = self.weight
        root, eigenvalues, rotated = self._rotated
        onto = rotated.T @ (root * z)
        best, smallest = z, np.inf
        for ridge in _RIDGES:
            inverse = 1.0 / (np.maximum(eigenvalues, 0.0) + ridge)
            residual = root * z - rotated @ (inverse * onto)
            leverage = np.minimum((np.square(rotated) @ inverse), 1.0 - 1e-6)
            left = residual / (1.0 - leverage) / root
            loss = float(weight @ np.square(left))
            if loss < smallest:
                best, smallest = left, loss
        return best

    def left_by_neighbours(self, z: Floats) -> Floats:
        near = self._neighbours
        return z - np.asarray(np.average(z[near], 1, self.weight[near]))

    @cached_property
    def _rotated(self) -> tuple[Floats, Floats, Floats]:
        root = np.sqrt(self.weight / self.weight.mean())
        scaled = self._features * root[:, None]
        eigenvalues, vectors = np.linalg.eigh(scaled.T @ scaled)
        return root, eigenvalues, scaled @ vectors

    @property
    def _features(self) -> Floats:
        """A constant, the columns, and waves across all of them, of two lengths."""
        x, rng = self.x, np.random.default_rng(0)
        columns = x.shape[1]
        frequencies = rng.normal(size=(columns, _WAVES)) / np.sqrt(max(columns, 1))
        frequencies[:, ::2] *= 3.0
        waves = np.cos(x @ frequencies + rng.uniform(0.0, 2.0 * np.pi, _WAVES))
        return np.concatenate([np.ones((len(x), 1)), x[:, :_MOST_COLUMNS], waves], 1)

    @cached_property
    def _neighbours(self) -> NDArray[np.int64]:
        """The numbers of the rows that are nearest to each."""
        x, found = self.x, []
        squares = np.square(x).sum(1)
        for first in range(0, len(x), _ROWS_AT_A_TIME):
            some = slice(first, first + _ROWS_AT_A_TIME)
            distances = squares - 2.0 * (x[some] @ x.T)
            distances[np.arange(len(distances)), np.arange(first, first + len(distances))] = np.inf
            found.append(np.argpartition(distances, _NEIGHBOURS, 1)[:, :_NEIGHBOURS])
        return np.concatenate(found)


def mean_and_error(values: Floats, shares: Floats) -> tuple[float, float]:
    """The mean with these shares of all rows, and its standard error."""
    mean = float(shares @ values)
    return mean, float(np.sqrt(np.sum((shares * (values - mean)) ** 2)))
