"""Coverage on keggdirected, most of whose rows are copies: by rows, and with each distinct input counted once.

    python benchmarks/trust_copies.py --data-dir FOLDER --device cuda    # 20 splits, a minute -> results/trust/copies.*
    python benchmarks/trust_copies.py --quick                            # a made-up table, seconds: on the screen

Splits are random, 8:1:1, with all copies of an input on one side. The default is fitted to the first two parts. One
input has 4,240 copies: where it is among the test rows, a mean over rows is mostly about that one input.
"""

from __future__ import annotations

import argparse
import csv
import os
import warnings
from pathlib import Path

import numpy as np

from _machine import made
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.paper import data_uci, splits

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
LEVEL = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    for words in (FitWarning, NoveltyWarning):
        warnings.simplefilter("ignore", words)
    if arguments.quick:
        rng = np.random.default_rng(0)
        X = np.round(rng.normal(size=(400, 2)), 1)
        y = X[:, 0] + 0.1 * rng.normal(size=400)
        print(score(X, y, 0, members=2, epochs=5, method="dbk-silu"))
        return
    X, y = (np.asarray(array, np.float64) for array in data_uci.load("keggdirected", arguments.data_dir))
    found = []
    for number in range(arguments.splits):
        found.append({"split": number, **score(X, y, number, device=arguments.device)})
        print(found[-1], flush=True)
        write(arguments.out, found)  # as it goes
    for name in ("coverage_by_inputs", "coverage_by_rows"):
        values = np.array([one[name] for one in found])
        print(f"{name}: mean {values.mean():.4f}, {values.min():.3f} to {values.max():.3f} over {len(found)} splits")


def score(X: np.ndarray, y: np.ndarray, number: int, **changes: object) -> dict[str, float]:
    """Of one split: coverage and CRPS by rows, and by inputs, whose copies share one weight."""
    train, validation, test = splits.duplicate_safe(splits.random_split(len(y), number), X)
    model = DeepBasisRegressor(random_state=number, **changes).fit(
        X[train], y[train], X_val=X[validation], y_val=y[validation]
    )
    dist = model.predict_dist(X[test])
    lower, upper = dist.interval(LEVEL)
    inside, crps = (lower <= y[test]) & (y[test] <= upper), dist.crps(y[test]) / y[train].std()
    _, which, copies = np.unique(X[test], axis=0, return_inverse=True, return_counts=True)
    once = 1.0 / copies[which.ravel()]
    return {
        "rows": len(test),
        "inputs": len(copies),
        "most_copies": int(copies.max()),
        "coverage_by_inputs": float(np.average(inside, weights=once)),
        "coverage_by_rows": float(inside.mean()),
        "crps_by_inputs": float(np.average(crps, weights=once)),
        "crps_by_rows": float(crps.mean()),
    }


def write(folder: Path, found: list[dict[str, float]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "copies.csv", "w", newline="") as file:
        table = csv.DictWriter(file, found[0])
        table.writeheader()
        table.writerows(found)
        file.write(f"# {made()}\n")


if __name__ == "__main__":
    main()
