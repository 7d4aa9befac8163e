"""`noise="input"` beside the default, on two made-up tables whose noise is known and on a real one.

    python benchmarks/noise.py --data-dir FOLDER --rows 4000 --epochs 60 --members 2 --out results/targets

"std_error" is the mean of |log(predicted std / true std)| over the test rows, where the truth is known. The real table
is pollution, split by weeks, with the warp that "auto" chooses.
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
from targets import TABLES, chosen, split

METRICS = ("crps", "nll", "coverage_95", "width_95")
TEST_ROWS = 4_000


def made_up(kind: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and the standard deviation of their noise: it grows with a column, or jumps where the function
    does not."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(rows, 4))
    std = 0.05 * 40.0 ** (0.5 * (X[:, 1] + 1.0)) if kind == "growing" else np.where(X[:, 1] * X[:, 2] > 0, 1.0, 0.1)
    return X, np.sin(4.0 * X[:, 0]) + X[:, 3] + std * rng.normal(size=rows), std


def tables(arguments: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for kind in ("growing", "jumping"):
        X, y, _ = made_up(kind, arguments.rows, 0)
        found[kind] = (X, y, *made_up(kind, TEST_ROWS, 1))
    table = TABLES["pollution"](arguments.data_dir)
    train, test = split(table, arguments.rows)
    found["pollution"] = (chosen(table.X, train), table.y[train], chosen(table.X, test), table.y[test], None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DEEPBASIS_DATA", "data")))
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    found = []
    for name, (X, y, X_new, y_new, std) in tables(arguments).items():
        for seed in range(arguments.seeds):
            for noise in ("constant", "input"):
                given = {"epochs": arguments.epochs} if arguments.epochs else {}
                model = DeepBasisRegressor(noise=noise, members=arguments.members, random_state=seed, **given)
                start = time.process_time()
                scores = model.fit(X, y).evaluate(X_new, y_new)
                row = {"table": name, "rows": len(y), "seed": seed, "noise": noise, "target": model.plan_.target}
                row |= {key: scores[key] for key in METRICS}
                if std is not None:
                    row["std_error"] = float(np.abs(np.log(model.predict_dist(X_new).std / std)).mean())
                found.append({**row, "cpu_seconds": time.process_time() - start})
                print("  ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in found[-1].values()), flush=True)
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "noise.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "noise", arguments)


if __name__ == "__main__":
    main()
