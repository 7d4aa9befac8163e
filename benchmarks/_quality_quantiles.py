"""Peers that answer with quantiles at the levels of `crps_40`, which is what they are trained by; and TabM's mean.

They stop on the validation rows, by that same loss. Nothing else is calibrated: the loss has done that.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from _quality_data import Fold
from _quality_model import LEVELS, Effort, Model, Points, Quantiles, Trained

HGB: Mapping[str, Any] = MappingProxyType({"learning_rate": 0.05, "trees": 500, "early_stopping_rounds": 25})
CATBOOST_QUANTILES: Mapping[str, Any] = MappingProxyType(
    {"loss_function": "MultiQuantile", "depth": 8, "iterations": 2_000, "early_stopping_rounds": 100}
)
REALMLP: Mapping[str, Any] = MappingProxyType({"epochs": 256, "batch_size": 256})
BAGS = 4
TABM: Mapping[str, Any] = MappingProxyType({"batch_size": 256})

_LISTED = ",".join(f"{level:g}" for level in LEVELS)


def fit_hgb(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    """scikit-learn's: one model for each level."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    (seed,) = seeds
    X, y, X_val, y_val = _arrays(fold)
    models = []
    for level in LEVELS:
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            learning_rate=HGB["learning_rate"],
            max_iter=effort.at_most(HGB["trees"]),
            early_stopping=True,
            n_iter_no_change=HGB["early_stopping_rounds"],
            random_state=seed,
        )
        models.append(model.fit(X, y, X_val=X_val, y_val=y_val))

    def predict(x: Float[Tensor, "n d"]) -> Quantiles:
        return Quantiles(torch.from_numpy(np.column_stack([model.predict(x.numpy()) for model in models])))

    return [Trained(predict, float(np.mean([model.n_iter_ for model in models])))]


def fit_catboost_quantiles(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    from catboost import CatBoostRegressor

    (seed,) = seeds
    X, y, X_val, y_val = _arrays(fold)
    model = CatBoostRegressor(
        loss_function=f"MultiQuantile:alpha={_LISTED}",
        depth=CATBOOST_QUANTILES["depth"],
        iterations=effort.at_most(CATBOOST_QUANTILES["iterations"]),
        early_stopping_rounds=CATBOOST_QUANTILES["early_stopping_rounds"],
        random_seed=seed,
        thread_count=effort.threads,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(X, y, eval_set=(X_val, y_val), use_best_model=True)
    return [Trained(lambda x: Quantiles(torch.from_numpy(model.predict(x.numpy()))), model.tree_count_)]


def fit_realmlp(fold: Fold, seeds: Sequence[int], effort: Effort, bags: int = 1) -> list[Trained]:
    """`bags` of them see all rows but one part each, on which they stop: the mean of their quantiles."""
    from pytabkit import RealMLP_TD_Regressor

    (seed,) = seeds
    model = RealMLP_TD_Regressor(
        device=str(effort.device),
        random_state=seed,
        n_cv=bags,
        n_refit=0,
        n_threads=effort.threads,
        train_metric_name=f"multi_pinball({_LISTED})",
        val_metric_name=f"multi_pinball({_LISTED})",
        n_epochs=effort.at_most(REALMLP["epochs"]),
        batch_size=REALMLP["batch_size"],
    )
    _fit_quietly(model, fold, own_validation=bags > 1)
    return [Trained(lambda x: Quantiles(torch.from_numpy(np.asarray(model.predict(x.numpy())))), None)]


def fit_tabm(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    from pytabkit import TabM_D_Regressor

    (seed,) = seeds
    model = TabM_D_Regressor(
        device=str(effort.device),
        random_state=seed,
        n_cv=1,
        n_refit=0,
        n_threads=effort.threads,
        batch_size=TABM["batch_size"],
        n_epochs=effort.limit,
    )
    _fit_quietly(model, fold)
    return [Trained(lambda x: Points(torch.from_numpy(np.asarray(model.predict(x.numpy())))), None)]


def _fit_quietly(model: Any, fold: Fold, own_validation: bool = False) -> None:
    X, y, X_val, y_val = _arrays(fold)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if own_validation:
            model.fit(np.concatenate([X, X_val]), np.concatenate([y, y_val]))
        else:
            model.fit(X, y, X_val=X_val, y_val=y_val)


def _arrays(fold: Fold) -> tuple[Any, Any, Any, Any]:
    return fold.train.x.numpy(), fold.train.y.numpy(), fold.validation.x.numpy(), fold.validation.y.numpy()


QUANTILE_MODELS = (
    Model(
        "hgb",
        "scikit-learn's HistGradientBoostingRegressor for each of 40 quantiles, learning rate 0.05, up to 500 trees, "
        "stopped after 25 without progress on the validation rows",
        fit_hgb,
        HGB,
        "sklearn",
        on_gpu=False,
    ),
    Model(
        "catboost-quantiles",
        "CatBoost, MultiQuantile at 40 levels, depth 8, its default learning rate, up to 2,000 trees, stopped after "
        "100 without progress on the validation rows and cut back to the best",
        fit_catboost_quantiles,
        CATBOOST_QUANTILES,
        "catboost",
        on_gpu=False,
    ),
    Model(
        "realmlp",
        "RealMLP-TD (pytabkit), multi-pinball loss at 40 levels, its defaults (256 epochs, batches of 256), best epoch "
        "by the same loss on the validation rows",
        fit_realmlp,
        REALMLP,
        "pytabkit",
    ),
    Model(
        "realmlp-bagged",
        "four of `realmlp`, each without another quarter of training and validation rows, on which it stops; the mean "
        "of their quantiles",
        partial(fit_realmlp, bags=BAGS),
        {**REALMLP, "bags": BAGS},
        "pytabkit",
    ),
    Model(
        "tabm",
        "TabM (pytabkit's TabM-D), its defaults, stopped on the validation rows: a mean and no distribution",
        fit_tabm,
        TABM,
        "pytabkit",
    ),
)
