"""Censored times beside the models of lifelines and scikit-survival, on a table that scikit-survival ships.

    pip install lifelines scikit-survival
    python benchmarks/survival.py --out results/targets   # five folds -> survival.csv

GBSG2: 686 women with breast cancer, the days until it came back; 56 % of the times are right-censored. "concordance" is
Harrell's, "brier" the integrated Brier score between the first and the ninth decile of the times, by scikit-survival's
own functions. Both are means over the folds, with the standard error of their difference from ours. Every model has its
defaults; ours is told to take the log of the time.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from _machine import describe, one_line, record
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning

Floats = NDArray[np.float64]
Survival = tuple[Floats, Floats]
"""The risk of each test row, and its survival function [n, k] at k times."""
METRICS = ("concordance", "brier")
TIME, EVENT = "time", "cens"


def deepbasis(X: pd.DataFrame, y: Any, test: pd.DataFrame, times: Floats, seed: int, **changes: Any) -> Survival:
    model = DeepBasisRegressor(target="log", random_state=seed, **changes)
    model.fit(X, y[TIME], upper=np.where(y[EVENT], y[TIME], np.inf))
    dist = model.predict_dist(test)
    return -dist.median, dist.survival(times)


def _numbers(X: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    both = pd.get_dummies(pd.concat([X, test]), drop_first=True).astype(float)
    return both.iloc[: len(X)], both.iloc[len(X) :]


def _lifelines(name: str) -> Callable[..., Survival]:
    def fit(X: pd.DataFrame, y: Any, test: pd.DataFrame, times: Floats, seed: int) -> Survival:
        import lifelines

        X, test = _numbers(X, test)
        model = getattr(lifelines, name)().fit(X.assign(T=y[TIME], E=y[EVENT]), "T", "E")
        found = model.predict_survival_function(test, times=times).to_numpy().T
        return -found.mean(1), found  # a median may not be reached: the area is

    return fit


def _forest(X: pd.DataFrame, y: Any, test: pd.DataFrame, times: Floats, seed: int) -> Survival:
    from sksurv.ensemble import RandomSurvivalForest

    X, test = _numbers(X, test)
    model = RandomSurvivalForest(random_state=seed).fit(X, y)
    return model.predict(test), np.stack([one(times) for one in model.predict_survival_function(test)])


def main() -> None:
    from sksurv.datasets import load_gbsg2
    from sksurv.metrics import concordance_index_censored, integrated_brier_score

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=5, help="of five, that are tested")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="such as results/targets")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    X, y = load_gbsg2()
    X = X.astype(dict.fromkeys(X.select_dtypes("category"), str))
    models: dict[str, Callable[..., Survival]] = {
        "deepbasis": lambda *given: deepbasis(*given, members=arguments.members),
        "lifelines CoxPHFitter": _lifelines("CoxPHFitter"),
        "lifelines WeibullAFTFitter": _lifelines("WeibullAFTFitter"),
        "scikit-survival RandomSurvivalForest": _forest,
    }
    splits = list(StratifiedKFold(5, shuffle=True, random_state=arguments.seed).split(X, y[EVENT]))[: arguments.folds]
    found, first = [], None
    for name, fit in models.items():
        scores = []
        for train, held in splits:
            times = np.quantile(y[TIME][held], np.linspace(0.1, 0.9, 33))
            risk, curves = fit(X.iloc[train], y[train], X.iloc[held], times, arguments.seed)
            concordance = concordance_index_censored(y[EVENT][held], y[TIME][held], risk)[0]
            scores.append((concordance, integrated_brier_score(y[train], y[held], curves, times)))
        each = np.array(scores)
        first = each if first is None else first
        spread = (each - first).std(0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.full(2, np.nan)
        row = {"model": name, "rows": len(splits[0][0]), "folds": len(splits)}
        for k, metric in enumerate(METRICS):
            row |= {metric: each[:, k].mean(), f"{metric}_error": spread[k]}
        found.append(row)
        print(
            f"{name:37s}" + "".join(f"  {key} {row[key]:.4f} ± {row[key + '_error']:.4f}" for key in METRICS),
            flush=True,
        )
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "survival.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "survival", arguments)


if __name__ == "__main__":
    main()
