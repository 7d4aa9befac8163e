"""Kinds of noise beside the default: `noise="input"`, and `likelihood="student"` for outliers.

    python benchmarks/noise.py --data-dir FOLDER --rows 4000 --epochs 60 --members 2 --out results/targets
    python benchmarks/noise.py --only outliers,many-outliers,budget-food,skillcraft,abalone --out results/targets

Made-up tables have a noise that is known: it grows along a column, jumps where the function does not, or has outliers
(one target in 20, or in 7, with 30 times the standard deviation). "std_error" is the mean of |log(predicted std / true
std)| over the test rows; "function_error" is the mean distance of the median from the true function, which is that of
all made-up tables. Pollution is split by weeks, with the warp that "auto" chooses. "uncalibrated" is the default
without the three scales that it fits to held-out rows. Test rows have outliers as training rows have them.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from _machine import describe, one_line, record
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning
from targets import TABLES, chosen, column, split

METRICS = ("crps", "nll", "coverage_95", "width_95")
TEST_ROWS = 4_000
MODELS: dict[str, dict[str, Any]] = {
    "constant": {},
    "input": {"noise": "input"},
    "student": {"likelihood": "student", "target": "identity"},
    "default": {"target": "identity"},
    "uncalibrated": {"target": "identity", "calibrate": False},
}
NOISES, TAILS = ("constant", "input"), ("default", "uncalibrated", "student")
COMPARED = {
    "growing": NOISES,
    "jumping": NOISES,
    "pollution": NOISES,
    "outliers": TAILS,
    "many-outliers": TAILS,
    "budget-food": TAILS,
    "skillcraft": TAILS,
    "abalone": TAILS,
}
SHARES = {"outliers": 1 / 20, "many-outliers": 1 / 7}
"""Of the targets that are outliers."""


def function(X: np.ndarray) -> np.ndarray:
    return np.sin(4.0 * X[:, 0]) + X[:, 3]


def made_up(kind: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Inputs, targets and the standard deviation of their noise, where it is a function."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(rows, 4))
    if kind in SHARES:
        far = np.where(rng.random(rows) < SHARES[kind], 30.0, 1.0)
        return X, function(X) + 0.1 * far * rng.normal(size=rows), None
    std = 0.05 * 40.0 ** (0.5 * (X[:, 1] + 1.0)) if kind == "growing" else np.where(X[:, 1] * X[:, 2] > 0, 1.0, 0.1)
    return X, function(X) + std * rng.normal(size=rows), std


def table(name: str, arguments: argparse.Namespace) -> tuple[Any, ...]:
    """Training and test rows, their targets, and the true standard deviation and function of the test rows."""
    if name in ("growing", "jumping", *SHARES):
        X, y, _ = made_up(name, arguments.rows, 0)
        X_new, y_new, std = made_up(name, TEST_ROWS, 1)
        return X, y, X_new, y_new, std, function(X_new)
    read = TABLES[name] if name in TABLES else column(name.replace("-", "_"), "identity")
    found = read(arguments.data_dir)
    train, test = split(found, arguments.rows)
    return chosen(found.X, train), found.y[train], chosen(found.X, test), found.y[test], None, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DEEPBASIS_DATA", "data")))
    parser.add_argument("--only", default=",".join(COMPARED))
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    found = []
    for name in arguments.only.split(","):
        X, y, X_new, y_new, std, truth = table(name, arguments)
        for seed in range(arguments.seeds):
            for noise in COMPARED[name]:
                given = {"epochs": arguments.epochs} if arguments.epochs else {}
                model = DeepBasisRegressor(members=arguments.members, random_state=seed, **given, **MODELS[noise])
                start = time.process_time()
                scores = model.fit(X, y).evaluate(X_new, y_new)
                row = {"table": name, "rows": len(y), "seed": seed, "noise": noise, "target": model.plan_.target}
                row |= {key: scores[key] for key in METRICS}
                dist = model.predict_dist(X_new)
                if std is not None:
                    row["std_error"] = float(np.abs(np.log(dist.std / std)).mean())
                if truth is not None:
                    row["function_error"] = float(np.abs(dist.median - truth).mean())
                found.append({**row, "cpu_seconds": time.process_time() - start})
                print("  ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in found[-1].values()), flush=True)
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        path, made = arguments.out / "noise.csv", {row["table"] for row in found}
        if path.exists():  # tables that were not made now stay
            with path.open(newline="") as file:
                found = [row for row in csv.DictReader(file) if row["table"] not in made] + found
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "tails" if made & {*SHARES} else "noise", arguments)


if __name__ == "__main__":
    main()
