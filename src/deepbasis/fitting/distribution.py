"""`PredictiveDistribution`: what `predict_dist` gives, numpy in and numpy out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from deepbasis.errors import InputError, check_positive_int
from deepbasis.fitting.kinds import SHARE, check_seed
from deepbasis.gp.predictive import Predictive

Floats = NDArray[np.float64]


class PredictiveDistribution:
    """The predictive distribution of every row, noise included, in the target's units.

    `len(dist)` is the number of rows, and `dist[10:20]` is the distribution of some of them. `tensors` holds the
    same in torch.
    """

    def __init__(self, tensors: Predictive) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, rows: Any) -> PredictiveDistribution:
        """The distribution of a slice, a mask or a list of rows; a single index gives a distribution of one row."""
        if isinstance(rows, int | np.integer):
            return PredictiveDistribution(self.tensors[int(rows)])
        return PredictiveDistribution(self.tensors[rows if isinstance(rows, slice) else np.asarray(rows)])

    def __repr__(self) -> str:
        return f"PredictiveDistribution({len(self)} rows)"

    @property
    def mean(self) -> Floats:
        return self.tensors.mean.numpy()

    @property
    def variance(self) -> Floats:
        return self.tensors.variance.numpy()

    @property
    def std(self) -> Floats:
        return self.tensors.std.numpy()

    def quantile(self, q: ArrayLike) -> Floats:
        """[n] at one level between 0 and 1, or [n, k] at k levels."""
        levels = np.asarray(q, dtype=object)
        if levels.ndim > 1 or levels.size == 0:
            raise InputError(f"q must be a level or a list of levels, got {q!r} of shape {levels.shape}")
        checked = [SHARE.check("a quantile's level q", level) for level in levels.reshape(-1)]
        return self.tensors.quantile(checked if levels.ndim else checked[0]).numpy()

    def interval(self, coverage: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper end of the central interval: as much probability below it as above it."""
        lower, upper = self.tensors.interval(SHARE.check("coverage", coverage))
        return lower.numpy(), upper.numpy()

    def cdf(self, y: ArrayLike) -> Floats:
        return self.tensors.cdf(y).numpy()

    def pdf(self, y: ArrayLike) -> Floats:
        return self.tensors.pdf(y).numpy()

    def log_prob(self, y: ArrayLike) -> Floats:
        return self.tensors.log_prob(y).numpy()

    def crps(self, y: ArrayLike) -> Floats:
        """Continuous ranked probability score, in the target's units."""
        return self.tensors.crps(y).numpy()

    def sample(self, n: int = 1, random_state: int | np.random.RandomState | None = None) -> Floats:
        """Draws [rows, n], independent between rows."""
        return self.tensors.sample(check_positive_int("n", n), generator(random_state)).T.numpy()


def generator(random_state: int | np.random.RandomState | None) -> torch.Generator:
    made = torch.Generator()
    seed = check_seed("random_state", random_state)
    if seed is None:
        made.seed()
    else:
        made.manual_seed(int(seed.randint(2**31 - 1)) if isinstance(seed, np.random.RandomState) else seed)
    return made
