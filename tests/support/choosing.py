"""Regressors that choose a method, and what they choose from."""

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor
from deepbasis.recipes import RECIPES

Floats = NDArray[np.float64]


Workers = Callable[..., subprocess.CompletedProcess[str]]


DEFAULT = RECIPES["default"]


DEEP = {"method": "dbk-silu"}


SHALLOW = {
    "method": "sv-rbf-linear",
    "objective": "mml",
    "members": 1,
    "learning_rate": "auto",
    "epochs": "auto",
    "patience": "auto",
    "compile": False,
    "calibrate": False,
}


KERNELS = [{**SHALLOW, "method": "sv-rbf"}, SHALLOW]


def small(**changes: Any) -> DeepBasisRegressor:
    """A regressor that fits in a fraction of a second, as a network or as a shallow kernel.

    Its members hold out the same rows; those that do not are in test_folds.py.
    """
    settings = {"members": 2, "epochs": 8, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, "validation_fraction": 0.1, **changes})


def easy(rows: int = 100, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=rows)


def assert_same(model: DeepBasisRegressor, other: DeepBasisRegressor, X: Any) -> None:
    np.testing.assert_array_equal(model.predict(X, return_std=True), other.predict(X, return_std=True))
    np.testing.assert_array_equal(model.noise_, other.noise_)
    assert (model.method_, model.calibration_, model.validation_) == (
        other.method_,
        other.calibration_,
        other.validation_,
    )
    assert [list(history["validation"]) for history in model.history_] == [
        list(history["validation"]) for history in other.history_
    ]
