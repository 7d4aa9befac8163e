"""Coverage on keggdirected, most of whose rows are copies: by rows, and with each distinct input counted once.

    python benchmarks/trust_copies.py --data-dir FOLDER --device cuda  # 20 splits, a minute -> results/trust/copies.csv
    python benchmarks/trust_copies.py --quick                          # a made-up table, seconds: on the screen

Splits are random, 8:1:1, with all copies of an input on one side. The default is fitted to the first two parts. One
input has 4,240 copies: where it is among the test rows, a mean over rows is mostly about that one input. Splits that
are in the file stay, and only the others are run; `device` is what each was fitted on.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from _machine import describe, one_line
from deepbasis import DeepBasisRegressor
from deepbasis.engine.device import present
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.paper import data_uci, splits
from deepbasis.storage import write_atomically

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
FILE, LEVEL = "copies.csv", 0.95


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
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = describe(present(arguments.device))
    run = f"{facts['date'][:10]}, revision {facts['revision']}; {one_line(facts)}"
    found = recorded(arguments.out / FILE)
    for number in missing(found, arguments.splits):
        one = {
            "split": number,
            **score(X, y, number, device=arguments.device),
            "device": facts.get("gpu", facts["cpu"]),
        }
        print(one, flush=True)
        found = add(arguments.out / FILE, one, run)  # as it goes
    for name in ("coverage_by_inputs", "coverage_by_rows"):
        values = found[name]
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


def recorded(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, comment="#") if path.exists() else pd.DataFrame({"split": []})


def missing(found: pd.DataFrame, splits: int) -> list[int]:
    return [number for number in range(splits) if number not in set(found["split"])]


def add(path: Path, one: dict[str, Any], run: str) -> pd.DataFrame:
    """To what the file has by now, in the order of the splits; below stand the runs that it comes from."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = dict.fromkeys([*(line for line in lines if line.startswith("#")), f"# {run}"])
    old = recorded(path)
    found = pd.concat([old[old["split"] != one["split"]], pd.DataFrame([one])]).sort_values("split")
    found = found.astype({"split": int})
    text = found.to_csv(index=False, float_format="%.6g") + "".join(f"{line}\n" for line in runs)
    write_atomically(path, text.encode())
    return found


if __name__ == "__main__":
    main()
