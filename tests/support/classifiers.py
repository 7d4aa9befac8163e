"""Small tables of classes, and a classifier that fits them in a fraction of a second."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis import DeepBasisClassifier

SMALL = {
    "method": "dbk-silu",
    "members": 2,
    "validation_fraction": 0.2,
    "epochs": 5,
    "rank": 8,
    "width": 8,
    "blocks": 1,
    "alpha": 0.1,
    "beta": 0.1,
    "random_state": 0,
    "device": "cpu",
}


def small_classifier(**changes: Any) -> DeepBasisClassifier:
    return DeepBasisClassifier(**{**SMALL, **changes})


def three(rows: int = 150, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Three classes, called by words, that overlap a little."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    scores = np.stack([X[:, 0], X[:, 1], -X[:, 0] - X[:, 1]], 1) + 0.3 * rng.gumbel(size=(rows, 3))
    return X, np.array(["ham", "egg", "oat"])[scores.argmax(1)]


def two(rows: int = 150, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, (X[:, 0] + 0.5 * rng.normal(size=rows) > 0.5).astype(int)
