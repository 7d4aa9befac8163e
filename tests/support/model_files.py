"""Small models to save, and what must be equal after loading them."""

import copy
import os
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor
from support import regressors

Floats = NDArray[np.float64]


Metadata = dict[str, Any]


MUTATIONS = 10_000 if os.environ.get("DEEPBASIS_FULL_FUZZ") == "1" else 1_000


def small(**changes: Any) -> DeepBasisRegressor:
    """The smallest: its files are mutated byte by byte."""
    return regressors.small(**{"rank": 4, "width": 4, **changes})


def numbers(rows: int = 60) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows)


def mixed(rows: int = 60) -> tuple[pd.DataFrame, Floats]:
    rng = np.random.default_rng(1)
    size = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows))
    color = np.where(rng.random(rows) < 0.1, "", rng.choice(["rød", "blue", "green"], rows))
    day = rng.integers(0, 700, rows)
    sold = rng.random(rows) < 0.5
    when = np.datetime64("2023-01-01") + day.astype("timedelta64[D]")
    text = pd.Series([str(name) or None for name in color], dtype=object)
    table = pd.DataFrame({"size": size, "color": text, "when": when.astype("datetime64[s]"), "sold": sold})
    return table, np.nan_to_num(size) + (color == "rød") + 0.1 * rng.normal(size=rows)


def forged(metadata: Metadata, **changes: Any) -> Metadata:
    """The architecture changed where it was planned and where it was chosen."""
    made = copy.deepcopy(metadata)
    made["architecture"].update(changes)
    made["plan"]["candidates"][made["chosen"]]["architecture"].update(changes)
    return made


def assert_same(model: DeepBasisRegressor, other: DeepBasisRegressor, X: Any) -> None:
    """To the last bit."""
    np.testing.assert_array_equal(model.predict(X, return_std=True), other.predict(X, return_std=True))
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.1, 0.9]), other.predict_quantiles(X, [0.1, 0.9]))
    np.testing.assert_array_equal(model.sample_y(X, 3, random_state=0), other.sample_y(X, 3, random_state=0))
    np.testing.assert_array_equal(
        model.sample_functions(3, random_state=0)(X), other.sample_functions(3, random_state=0)(X)
    )
    np.testing.assert_array_equal(model.noise_, other.noise_)
    assert model.get_params() == other.get_params()
    assert (model.method_, model.embedding_, model.trend_) == (other.method_, other.embedding_, other.trend_)
    assert model.jitter_ == other.jitter_
    assert (model.alpha_, model.beta_, model.validation_) == (other.alpha_, other.beta_, other.validation_)
    assert model.calibration_ == other.calibration_
    assert model.fitted_.fingerprint == other.fitted_.fingerprint
    assert model.plan_ == other.plan_
    assert model.n_features_in_ == other.n_features_in_
    assert len(model.history_) == len(other.history_)
    for history, again in zip(model.history_, other.history_, strict=True):
        assert history.keys() == again.keys()
        for name in history:
            np.testing.assert_array_equal(history[name], again[name])
