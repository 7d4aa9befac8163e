"""What a user would take instead, for counts and for skewed numbers; those that are not installed are left out.

A peer of counts answers with the mean of a Poisson for each test row, a peer of numbers with the quantiles at `LEVELS`.
All have their own defaults; none may look at a test row.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Floats = NDArray[np.float64]
Peer = Callable[[pd.DataFrame, Floats, pd.DataFrame, int], Floats]
"""Training rows, their targets, test rows and a seed -> predictions of the test rows."""

LEVELS = (np.arange(20) + 0.5) / 20
_SMALLEST = 1e-6  # a rate of 0 has no logarithm


def texts(X: pd.DataFrame) -> list[str]:
    return [column for column in X.columns if X[column].dtype.kind not in "biuf"]


def numbers() -> Any:
    """One-hot categories and scaled numbers, for models that take nothing else."""
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    scaled = (StandardScaler(), make_column_selector(dtype_include="number"))
    return make_column_transformer((hot, make_column_selector(dtype_exclude="number")), scaled)


def with_categories(X: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    kinds = {column: pd.CategoricalDtype(X[column].dropna().unique()) for column in texts(X)}
    return X.astype(kinds), test.astype(kinds)


def constant(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    return np.full(len(test), y.mean())


def poisson_regressor(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    return np.asarray(make_pipeline(numbers(), PoissonRegressor(max_iter=1_000)).fit(X, y).predict(test))


def boosting(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int, **loss: Any) -> Floats:
    X, test = with_categories(X, test)
    return np.asarray(HistGradientBoostingRegressor(random_state=seed, **loss).fit(X, y).predict(test))


def boosted_quantiles(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    each = [boosting(X, y, test, seed, loss="quantile", quantile=level) for level in LEVELS]
    return np.sort(np.stack(each, 1), axis=1)


def _catboost(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int, loss: str) -> Floats:
    from catboost import CatBoostRegressor

    words = texts(X)
    X, test = (one.astype(dict.fromkeys(words, str)) for one in (X, test))
    options = {"random_seed": seed, "verbose": False, "allow_writing_files": False, "thread_count": 1}
    model = CatBoostRegressor(loss_function=loss, **options).fit(X, y, cat_features=words)
    kind = {"prediction_type": "Exponent"} if loss == "Poisson" else {}
    return np.asarray(model.predict(test, **kind))


def catboost_quantiles(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    levels = ",".join(f"{level:g}" for level in LEVELS)
    return np.sort(_catboost(X, y, test, seed, f"MultiQuantile:alpha={levels}"), axis=1)


def realmlp_quantiles(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    """RealMLP by the loss of these quantiles, and the best epoch by it on a tenth of the rows."""
    from pytabkit import RealMLP_TD_Regressor

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    loss = f"multi_pinball({','.join(f'{level:g}' for level in LEVELS)})"
    metrics = {"train_metric_name": loss, "val_metric_name": loss}
    X, test = with_categories(X, test)
    model = RealMLP_TD_Regressor(device="cpu", random_state=seed, val_fraction=0.1, n_threads=1, **metrics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.sort(np.asarray(model.fit(X, y).predict(test), np.float64), axis=1)


def _ngboost(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int, distribution: str) -> Any:
    import ngboost
    from ngboost import distns

    encoder = numbers().fit(X)
    model = ngboost.NGBRegressor(Dist=getattr(distns, distribution), verbose=False, random_state=seed)
    return model.fit(encoder.transform(X), y).pred_dist(encoder.transform(test))


def ngboost_poisson(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    return np.asarray(_ngboost(X, y, test, seed, "Poisson").mean())


def ngboost_lognormal(X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> Floats:
    """Of y + 1 where there is a 0, which has no logarithm."""
    more = 1.0 if y.min() <= 0 else 0.0
    found = _ngboost(X, y + more, test, seed, "LogNormal")
    return np.stack([found.ppf(np.full(len(test), level)) for level in LEVELS], 1) - more


_COUNTS: dict[str, tuple[str, Peer]] = {
    "constant": ("sklearn", constant),
    "poisson-regressor": ("sklearn", poisson_regressor),
    "hist-gradient-boosting": ("sklearn", partial(boosting, loss="poisson")),
    "catboost-poisson": ("catboost", partial(_catboost, loss="Poisson")),
    "ngboost-poisson": ("ngboost", ngboost_poisson),
}
_NUMBERS: dict[str, tuple[str, Peer]] = {
    "boosted-quantiles": ("sklearn", boosted_quantiles),
    "catboost-multiquantile": ("catboost", catboost_quantiles),
    "ngboost-lognormal": ("ngboost", ngboost_lognormal),
    "realmlp-multi-pinball": ("pytabkit", realmlp_quantiles),
}


def installed(counts: bool) -> dict[str, Peer]:
    peers = _COUNTS if counts else _NUMBERS
    return {name: peer for name, (package, peer) in peers.items() if find_spec(package) is not None}
