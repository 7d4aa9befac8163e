"""Censored times: a known process, and a table that scikit-survival ships, beside its models and those of lifelines.

    python benchmarks/survival.py --only known --out results/targets   # six made-up tables -> survival.csv
    pip install lifelines scikit-survival
    python benchmarks/survival.py --only gbsg2 --out results/targets   # five folds -> survival.csv

GBSG2: 686 women with breast cancer, the days until it came back; 56 % of the times are right-censored. "concordance" is
Harrell's, "brier" the integrated Brier score between the first and the ninth decile of the times, by scikit-survival's
own functions. Both are means over the folds, with the standard error of their difference from ours. Every model has its
defaults; ours is told to take the log of the time.

The known process has 2,000 rows of three columns: the log of the time is sin(a) + b / 2, with noise of standard
deviation 0.3, and 40 % of the times are right-censored. "uncensored" and "censored" are the mean distances of the
predicted median from the true one, in logarithms, of fits to the times and to what was seen of them; "ratio" is the
mean over tables of the second over the first, "ratio_low" and "ratio_high" are the least and the largest. Two oracles
say what the rows allow: exact Gaussian process regression, whose kernel and noise are known and whose posterior mode is
found by Newton's method, and the three coefficients of the true function by maximum likelihood.
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
Median = Callable[[Floats, Floats, NDArray[np.bool_], Floats], Floats]
"""Inputs, logs of times, which of them are censored, and other inputs, to the logs of their medians."""
METRICS = ("concordance", "brier")
STD = 0.3
SCALES = np.array([3.0, 13.0, 150.0])  # lengthscales that maximise the likelihood of uncensored rows
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


def times(rows: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Inputs, the log of what was seen of the time, and that of the time."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    y = true_median(X) + STD * rng.normal(size=rows)
    return X, np.minimum(y, 0.35 + rng.normal(size=rows)), y


def true_median(X: Floats) -> Floats:
    return np.sin(X[:, 0]) + 0.5 * X[:, 1]


def ours(**changes: Any) -> Median:
    def fit(X: Floats, seen: Floats, censored: NDArray[np.bool_], new: Floats) -> Floats:
        model = DeepBasisRegressor(target="log", random_state=0, **changes)
        bounds = {"upper": np.where(censored, np.inf, np.exp(seen))} if censored.any() else {}
        return np.log(model.fit(X, np.exp(seen), **bounds).predict_dist(new).median)

    return fit


def kernel_oracle(X: Floats, seen: Floats, censored: NDArray[np.bool_], new: Floats) -> Floats:
    """The mode of f ~ GP given what was seen: Rasmussen and Williams (2006), Algorithm 3.1."""
    from scipy.linalg import cho_factor, cho_solve

    K, cross = (1.0 + 10.0 * np.exp(-0.5 * np.square((A[:, None] - X) / SCALES).sum(-1)) for A in (X, new))
    f = np.zeros(len(seen))
    for _ in range(50):
        slope, curvature = _derivatives((seen - f) / STD, censored)
        root = np.sqrt(curvature)
        b = curvature * f + slope
        factor = cho_factor(np.eye(len(f)) + root[:, None] * K * root, lower=True)
        a = b - root * cho_solve(factor, root * (K @ b))
        f, before = K @ a, f
        if np.abs(f - before).max() < 1e-8:
            break
    return cross @ a


def parametric_oracle(X: Floats, seen: Floats, censored: NDArray[np.bool_], new: Floats) -> Floats:
    """The mode of three coefficients, with a flat prior."""

    def basis(X: Floats) -> Floats:
        return np.stack([np.sin(X[:, 0]), X[:, 1], np.ones(len(X))], 1)

    phi, w = basis(X), np.zeros(3)
    for _ in range(50):
        slope, curvature = _derivatives((seen - phi @ w) / STD, censored)
        w = w + np.linalg.solve(phi.T @ (curvature[:, None] * phi), phi.T @ slope)
    return basis(new) @ w


def _derivatives(z: Floats, censored: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Of log N(y; f, s^2), or log(1 - Phi(z)), z = (y - f) / s, with respect to f; the second with its sign changed."""
    from scipy.special import log_ndtr

    hazard = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(-z))
    slope = np.where(censored, hazard, z) / STD
    return slope, np.where(censored, np.maximum(hazard * (hazard - z), 1e-10), 1.0) / STD**2


def known_process(tables: int) -> list[dict[str, Any]]:
    models: dict[str, Median] = {
        "deepbasis": ours(),
        "deepbasis dbk-silu": ours(method="dbk-silu"),
        "deepbasis sv-rbf": ours(method="sv-rbf", objective="elbo", members=1, rank=64, learning_rate=0.05),
        "oracle of three coefficients": parametric_oracle,
        "oracle of the kernel": kernel_oracle,
    }
    new = np.random.default_rng(99).normal(size=(2_000, 3))
    found = []
    for name, fit in models.items():
        errors = np.empty((tables, 2))
        for k in range(tables):
            X, seen, y = times(2_000, k)
            for column, (known, censored) in enumerate(((y, np.zeros(len(y), bool)), (seen, seen < y))):
                errors[k, column] = np.abs(fit(X, known, censored, new) - true_median(new)).mean()
        ratio = errors[:, 1] / errors[:, 0]
        row = {"table": "known process", "model": name, "rows": 2_000, "folds": tables}
        row |= {"uncensored": errors[:, 0].mean(), "censored": errors[:, 1].mean(), "ratio": ratio.mean()}
        found.append({**row, "ratio_low": ratio.min(), "ratio_high": ratio.max()})
        print(
            f"{name:30s} uncensored {row['uncensored']:.4f}  censored {row['censored']:.4f}  ratio {row['ratio']:.2f} "
            f"({ratio.min():.2f} to {ratio.max():.2f})",
            flush=True,
        )
    return found


def gbsg2(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from sksurv.datasets import load_gbsg2
    from sksurv.metrics import concordance_index_censored, integrated_brier_score

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
        row = {"table": "gbsg2", "model": name, "rows": len(splits[0][0]), "folds": len(splits)}
        for k, metric in enumerate(METRICS):
            row |= {metric: each[:, k].mean(), f"{metric}_error": spread[k]}
        found.append(row)
        print(
            f"{name:37s}" + "".join(f"  {key} {row[key]:.4f} ± {row[key + '_error']:.4f}" for key in METRICS),
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="known,gbsg2")
    parser.add_argument("--tables", type=int, default=6, help="of the known process")
    parser.add_argument("--folds", type=int, default=5, help="of five, that are tested")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="such as results/targets")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    found = known_process(arguments.tables) if "known" in arguments.only.split(",") else []
    found += gbsg2(arguments) if "gbsg2" in arguments.only.split(",") else []
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        path, made = arguments.out / "survival.csv", {row["table"] for row in found}
        if path.exists():  # tables that were not made now stay
            with path.open(newline="") as file:
                found = [row for row in csv.DictReader(file) if row["table"] not in made] + found
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "survival" if "gbsg2" in made else "known-process", arguments)


if __name__ == "__main__":
    main()
