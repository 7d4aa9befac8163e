"""`DeepBasisClassifier` beside scikit-learn's classifiers, and CatBoost where it is installed; the same rows for all.

    python benchmarks/classes.py --data-dir FOLDER --out results/targets   # everything -> results/targets/classes.csv
    python benchmarks/classes.py --quick                                   # a few minutes: a table on the screen
    python benchmarks/classes.py --only phoneme,digits --folds 3

A fold of five, stratified, is the test; rows with the same inputs are on one side. All other rows are fitted, with the
defaults of each model; what a model holds out for itself it takes from them. "behind" is the log loss minus that of
DeepBasisClassifier, with the paired standard error of the test rows: above 0 is worse than ours.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from _machine import describe, one_line, record
from deepbasis import DeepBasisClassifier
from deepbasis.gp.metrics import confidence_error

OURS = "deepbasis"
METRICS = ("log_loss", "brier", "ece", "auc", "accuracy")
QUICK_ROWS = 2_000
Labels = np.ndarray


def column(name: str, target: str) -> Callable[[Path], tuple[pd.DataFrame, Labels]]:
    def read(folder: Path) -> tuple[pd.DataFrame, Labels]:
        table = pd.read_csv(folder / "tables" / f"{name}.csv.gz")
        return table.drop(columns=target), table[target].to_numpy()

    return read


def digits(folder: Path) -> tuple[pd.DataFrame, Labels]:
    X, y = load_digits(return_X_y=True)
    return pd.DataFrame(X, columns=[f"pixel{k}" for k in range(X.shape[1])]), y


TABLES = {
    "adult": column("adult", "income"),
    "phoneme": column("phoneme", "nasal"),
    "wine-white": column("wine_white", "quality"),
    "digits": digits,
}


def logistic(seed: int) -> BaseEstimator:
    text = make_column_selector(dtype_include=["object", "string"])
    numbers = make_column_selector(dtype_include="number")
    encoder = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), text), (StandardScaler(), numbers))
    return make_pipeline(encoder, LogisticRegression(max_iter=2_000))


def boosting(seed: int) -> BaseEstimator:
    return HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)


def catboost(seed: int) -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(random_seed=seed, verbose=False, allow_writing_files=False)


def models(arguments: argparse.Namespace) -> dict[str, Callable[[int], Any]]:
    own: dict[str, Any] = {"members": arguments.members}
    if arguments.quick:
        own["epochs"] = 20
    found: dict[str, Callable[[int], Any]] = {
        OURS: lambda seed: DeepBasisClassifier(random_state=seed, **own),
        "logistic": logistic,
        "hist-gradient-boosting": boosting,
    }
    if find_spec("catboost") is not None:
        found["catboost"] = catboost
    return found


def prepared(name: str, X: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table, and arguments of `fit`, as each library wants texts."""
    text = [column for column in X.columns if X[column].dtype.kind not in "biuf"]
    if name == "hist-gradient-boosting":
        return X.astype(dict.fromkeys(text, "category")), {}
    if name == "catboost" and text:
        return X.fillna(dict.fromkeys(text, "")), {"cat_features": text}
    return (X.fillna(dict.fromkeys(text, "")), {}) if name == "logistic" else (X, {})


def scores(p: np.ndarray, codes: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """The metrics of test rows, and the log loss of each."""
    losses = -np.log(np.maximum(p[np.arange(len(p)), codes], 1e-15))
    is_class = np.eye(p.shape[1])[codes]
    here = [k for k in range(p.shape[1]) if 0 < is_class[:, k].sum() < len(p)]
    ece = confidence_error(torch.from_numpy(np.ascontiguousarray(p, float)), torch.from_numpy(codes.astype(float)))
    return {
        "log_loss": losses.mean(),
        "brier": ((p - is_class) ** 2).sum(1).mean(),
        "ece": float(ece),
        "auc": float(np.mean([roc_auc_score(is_class[:, k], p[:, k]) for k in here])),
        "accuracy": (p.argmax(1) == codes).mean(),
    }, losses


def trials(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.only.split(","):
        X, y = TABLES[name](arguments.data_dir)
        classes, codes = np.unique(y, return_inverse=True)
        if arguments.quick:
            some = np.random.default_rng(0).permutation(len(y))[:QUICK_ROWS]
            X, y, codes = X.iloc[some].reset_index(drop=True), y[some], codes[some]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class may have fewer rows than there are folds
            copies = X.groupby(list(X.columns), dropna=False).ngroup()
            folds = StratifiedGroupKFold(5, shuffle=True, random_state=arguments.seed)
            splits = list(folds.split(X, codes, copies))
        ours: np.ndarray | None = None
        for model, make in models(arguments).items():
            table, more = prepared(model, X)
            p, test, seconds = [], [], 0.0
            for rows, held in splits[: arguments.folds]:
                train = np.random.default_rng(arguments.seed).permutation(rows)[: arguments.rows]
                start = time.perf_counter()
                fitted = make(arguments.seed).fit(table.iloc[train], y[train], **more)
                seconds += time.perf_counter() - start
                wide = np.zeros((len(held), len(classes)))  # a rare class may be in no row of the fit
                wide[:, np.searchsorted(classes, fitted.classes_)] = fitted.predict_proba(table.iloc[held])
                p.append(wide)
                test.append(codes[held])
            found, losses = scores(np.concatenate(p), np.concatenate(test))
            row = {"table": name, "classes": len(classes), "rows": len(train), "test_rows": len(losses), "model": model}
            row |= found | {"seconds": seconds}
            ours = losses if model == OURS else ours
            if ours is not None and model != OURS:
                gap = losses - ours
                row |= {"behind": gap.mean(), "error": gap.std(ddof=1) / np.sqrt(len(gap))}
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DEEPBASIS_DATA", "data")))
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--folds", type=int, default=1, help="of five, that are tested")
    parser.add_argument("--rows", type=int, default=None, help="training rows at most")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows of each table, and few epochs")
    parser.add_argument("--out", type=Path, default=None, help="such as results/targets")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    found = []
    for row in trials(arguments):
        found.append(row)
        gap = f"{row['behind']:+.4f} ± {row['error']:.4f}" if "behind" in row else ""
        numbers = "  ".join(f"{key} {row[key]:.4f}" for key in METRICS)
        print(f"{row['table']:11s} {row['model']:23s} {gap:18s} {numbers}  {row['seconds']:.0f} s", flush=True)
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "classes.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "classes", arguments)


if __name__ == "__main__":
    main()
