"""`DeepBasisClassifier` beside other classifiers, those that are installed (`_class_peers.py`); the same rows for all.

    python benchmarks/classes.py --data-dir FOLDER --out results/targets   # everything -> results/targets/classes.csv
    python benchmarks/classes.py --quick                                   # a few minutes: a table on the screen
    python benchmarks/classes.py --only phoneme,digits --folds 3

A fold of five, stratified, is the test; rows with the same inputs are on one side. All other rows are fitted, with the
defaults of each model; what a model holds out for itself it takes from them. Seconds are of fit and prediction.
"behind" is the log loss minus that of DeepBasisClassifier, with the paired standard error of the test rows: above 0 is
worse than ours.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold

from _class_peers import Codes, Floats, Peer, installed
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


def ours(arguments: argparse.Namespace) -> Peer:
    own: dict[str, Any] = {"members": arguments.members} | ({"epochs": 20} if arguments.quick else {})

    def fit(X: pd.DataFrame, y: Codes, test: pd.DataFrame, seed: int) -> Floats:
        return DeepBasisClassifier(random_state=seed, **own).fit(X, y).predict_proba(test)

    return fit


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
    models = {OURS: ours(arguments), **installed()}
    if arguments.models is not None:
        models = {name: models[name] for name in dict.fromkeys((OURS, *arguments.models.split(",")))}
    for name in arguments.only.split(","):
        X, y = TABLES[name](arguments.data_dir)
        classes, codes = np.unique(y, return_inverse=True)
        if arguments.quick:
            some = np.random.default_rng(0).permutation(len(y))[:QUICK_ROWS]
            X, codes = X.iloc[some].reset_index(drop=True), codes[some]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class may have fewer rows than there are folds
            copies = X.groupby(list(X.columns), dropna=False).ngroup()
            folds = StratifiedGroupKFold(5, shuffle=True, random_state=arguments.seed)
            splits = list(folds.split(X, codes, copies))
        own: np.ndarray | None = None
        for model, fit in models.items():
            p, test, seconds = [], [], 0.0
            for rows, held in splits[: arguments.folds]:
                train = np.random.default_rng(arguments.seed).permutation(rows)[: arguments.rows]
                present, labels = np.unique(
                    codes[train], return_inverse=True
                )  # a rare class may be in no row of the fit
                start = time.perf_counter()
                found = fit(X.iloc[train], labels, X.iloc[held], arguments.seed)
                seconds += time.perf_counter() - start
                wide = np.zeros((len(held), len(classes)))
                wide[:, present] = found
                p.append(wide)
                test.append(codes[held])
            found, losses = scores(np.concatenate(p), np.concatenate(test))
            row = {"table": name, "classes": len(classes), "rows": len(train), "test_rows": len(losses), "model": model}
            row |= found | {"seconds": seconds}
            if model == OURS:
                own = losses
            elif own is not None:
                gap = losses - own
                row |= {"behind": gap.mean(), "error": gap.std(ddof=1) / np.sqrt(len(gap))}
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DEEPBASIS_DATA", "data")))
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--models", help="of those that are installed; ours is always among them")
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
        path, made = arguments.out / "classes.csv", {row["table"] for row in found}
        if path.exists():  # tables that were not made now stay
            with path.open(newline="") as file:
                found = [row for row in csv.DictReader(file) if row["table"] not in made] + found
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "classes", arguments)


if __name__ == "__main__":
    main()
