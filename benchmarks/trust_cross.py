"""Guaranteed intervals of small tables: rows set apart (conformal) beside five more fits (cross-conformal).

    python benchmarks/trust_cross.py --data-dir FOLDER       # everything -> results/trust/cross.*
    python benchmarks/trust_cross.py --tables stock,yacht    # some tables, the others stay
    python benchmarks/trust_cross.py --quick                 # a made-up table, seconds: on the screen

Of each table some hundred rows at random are fitted, ten times, and up to 1,000 others are new. The plain interval is
the calibrated one of the model that is fitted to all of them; its coverage is what nobody promises. The widths are over
those of the plain one. "needed" is the width that the plain model's central intervals must have to hold the asked
share of the new rows, which it is not told: where plain intervals hold too little, an honest one is wider.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from _machine import describe, one_line
from _trust_shifts import read
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.gp.conformal import central, depths

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
TABLES = {
    "yacht": 150,
    "autompg": 200,
    "stock": 300,
    "concrete": 300,
    "airfoil": 300,
    "wine": 300,
    "pumadyn32nm": 1_000,
}
"""And the rows that are fitted."""
LEVELS, DRAWS, NEW = (0.8, 0.9, 0.95), 10, 1_000
SHORT: dict[str, Any] = {"members": 2, "epochs": 60, "method": "dbk-silu", "random_state": 0, "n_jobs": 1}
PLAIN, SPLIT, CROSS, NEEDED = "plain", "conformal", "cross-conformal", "needed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    warnings.simplefilter("ignore", NoveltyWarning)
    torch.set_num_threads(1)
    if arguments.quick:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 3))
        y = X[:, 0] + rng.normal(size=300)
        print(pd.DataFrame(covered("made up", pd.DataFrame(X), y, 100, 0, {"epochs": 2})).to_string())
        return
    if arguments.data_dir is None:
        parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "cross.csv"
    for name in arguments.tables.split(","):
        X, y = read(name, arguments.data_dir)
        rows = [row for draw in range(arguments.draws) for row in covered(name, X, y, TABLES[name], draw)]
        before = pd.read_csv(path) if path.exists() else pd.DataFrame({"table": []})
        pd.concat([before[before["table"] != name], pd.DataFrame(rows).round(5)]).to_csv(path, index=False)
        print(name, flush=True)
    (RESULTS / "cross.md").write_text("\n".join(page(pd.read_csv(path))))


def covered(
    name: str, X: pd.DataFrame, y: np.ndarray, rows: int, draw: int, changes: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    order = np.random.default_rng(draw).permutation(len(X))
    known, new = order[:rows], order[rows : rows + NEW]
    settings = {**SHORT, **(changes or {})}
    cross = DeepBasisRegressor(**settings, calibrate=CROSS).fit(X.iloc[known], y[known])
    split = DeepBasisRegressor(**settings, calibrate=SPLIT).fit(X.iloc[known], y[known])
    predicted = cross.predict_dist(X.iloc[new], as_tensor=True)
    depth = depths(predicted, y[new])
    for level in LEVELS:
        deep = float(depth.kthvalue(max(1, round((1.0 - level) * len(new)))).values)  # what is known afterwards
        found = {
            PLAIN: cross.predict_interval(X.iloc[new], level),
            SPLIT: split.predict_interval(X.iloc[new], level, guarantee=True),
            CROSS: cross.predict_interval(X.iloc[new], level, guarantee=True),
            NEEDED: tuple(end.numpy() for end in central(predicted, deep)),
        }
        for interval, (lower, upper) in found.items():
            yield {
                "table": name,
                "rows": rows,
                "draw": draw,
                "level": level,
                "interval": interval,
                "coverage": float(np.mean((lower <= y[new]) & (y[new] <= upper))),
                "width": float(np.mean(upper - lower) / y.std()),
            }


# ---- the page --------------------------------------------------------------------------------------------------------


def page(found: pd.DataFrame) -> Iterator[str]:
    yield from ("# Guaranteed intervals of small tables", "")
    draws = found["draw"].nunique()
    yield "`python benchmarks/trust_cross.py` makes this page; its docstring says what is compared."
    yield f"Short fits: two members, 60 epochs. Means over {draws} draws of the rows; in brackets their error."
    yield ""
    yield "| table | rows | asked | plain | conformal | cross-conformal | width: conformal | cross-conformal | needed |"
    yield "| --- " * 9 + "|"
    for (name, rows, level), some in found.groupby(["table", "rows", "level"], sort=False):
        coverage = some.pivot_table(index="draw", columns="interval", values="coverage")
        width = some.pivot_table(index="draw", columns="interval", values="width")
        error = coverage.std() / np.sqrt(len(coverage))
        held = [f"{coverage[one].mean():.3f} ({error[one]:.3f})" for one in (PLAIN, SPLIT, CROSS)]
        wide = [f"{width[one].mean() / width[PLAIN].mean():.3f}" for one in (SPLIT, CROSS, NEEDED)]
        yield f"| {name} | {rows:.0f} | {level:g} | {' | '.join([*held, *wide])} |"
    yield from ("", *summary(found), "", one_line(describe()), "")


def summary(found: pd.DataFrame) -> Iterator[str]:
    keys = ["table", "level"]
    mean = found.pivot_table(index=keys, columns="interval", values=["coverage", "width"])
    for one in (PLAIN, SPLIT, CROSS):
        short = (mean["coverage"][one] - mean.index.get_level_values("level")).min()
        over = (mean["width"][one] / mean["width"][NEEDED]).mean() - 1.0
        yield f"- {one}: coverage at worst {short:+.3f} of what was asked; in mean {over:+.1%} of the width needed."


if __name__ == "__main__":
    main()
