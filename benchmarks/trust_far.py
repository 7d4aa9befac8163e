"""Predictions where there were no rows: before (`distance="none"`), after (`distance="widen"`), and scikit-learn's GP.

Real tables: an ordinary split, the middle third of the values of a column left out (Foong et al., 2019), the outer
tenth left out, and blocks of a table in time order. Networks alone (method="dbk-silu"), four members, short trainings:
the same members on both sides. Tables of up to 2,000 rows are left out: their numbers are predicted as before. Made-up
tables: a gap, a line and a trend that go on, categories never seen, a column in other units. There the default method
is fitted, small (two members, 30 epochs), and the truth has no noise.

    python benchmarks/trust_far.py [--data-dir PATH] [--part tables|cases|page] [--tables a,b] [--draws N] [--quick]
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from _machine import made
from _parts import read_parts, write_part
from _trust_far import BLOCK, CASES, GAP, ORDINARY, SHELL, Case, case, splits
from _trust_shifts import read
from deepbasis import DeepBasisRegressor
from deepbasis.engine.members import Ensemble
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.fitting.data import TableData
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp.calibration import calibrate

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
FILE = RESULTS / "far.json"
CHOSEN_ON, REPORTED = ("sml",), ("kin40k", "elevators", "pumadyn32nm")
IN_TIME = ("sml",)
ROWS, CASE_ROWS, GP_ROWS = 3_500, 2_200, 300
EPOCHS = 60
SMALL: dict[str, Any] = {"members": 2, "epochs": 30}
"""Of the made-up tables: two seconds a draw, so that there can be many."""
SHORT: dict[str, Any] = {"members": 4, "random_state": 0, "n_jobs": 1, "distance": "widen"}
BEFORE, AFTER, GP = "none", "widen", "exact GP"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--part", choices=("tables", "cases", "page"))
    parser.add_argument("--tables", default=",".join((*CHOSEN_ON, *REPORTED)))
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    warnings.simplefilter("ignore", NoveltyWarning)
    torch.set_num_threads(1)
    if arguments.quick:
        rows = [row for kind in CASES[:2] for row in elsewhere(case(kind, 2_400, 0), 0, {"epochs": 2, "members": 2})]
        print(pd.DataFrame(rows).to_string())
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    if arguments.part in (None, "tables"):
        for name in arguments.tables.split(","):
            keep("tables", "table", name, list(left_out(name, arguments.data_dir)))
    if arguments.part in (None, "cases"):
        for kind in CASES:
            rows = [r for seed in range(arguments.draws) for r in elsewhere(case(kind, CASE_ROWS, seed), seed)]
            keep("cases", "case", kind, rows)
    (RESULTS / "far.md").write_text("\n".join(page()))
    if arguments.part in (None, "page"):
        figure(RESULTS / "far.png")


def keep(part: str, key: str, value: str, rows: list[dict[str, Any]]) -> None:
    """In place of what was there of the same table or case."""
    before = read_parts(FILE).get(part, pd.DataFrame({key: []}))
    write_part(FILE, part, pd.concat([before[before[key] != value], pd.DataFrame(rows)]))
    print(value, flush=True)


def without(model: DeepBasisRegressor, X: pd.DataFrame, y: np.ndarray) -> Fitted:
    """What the same fit gives with `distance="none"`: the same members, calibrated without their disagreement."""
    fitted = model.fitted_
    rows = TableData.read(fitted.spec, X, y).folds(fitted.plan)[0].selecting
    plain = Ensemble(fitted.models, device=fitted.device, dtype=fitted.ensemble.stack.dtype)
    calibration = calibrate(plain.predict(rows.x), rows.y, rows.weight)
    return replace(fitted, calibration=calibration, distance=None)


def left_out(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    X, y = read(name, folder)
    for split in splits(X, ROWS, gaps=1, in_time=name in IN_TIME):
        known, new = (X.iloc[rows] for rows in (split.fit, split.test))
        model = DeepBasisRegressor(**SHORT, method="dbk-silu", epochs=EPOCHS).fit(known, y[split.fit])
        for distance, fitted in ((BEFORE, without(model, known, y[split.fit])), (AFTER, model.fitted_)):
            found = fitted.evaluate(new, y[split.test])
            yield {
                "table": name,
                "chosen_on": name in CHOSEN_ON,
                "split": split.kind,
                "column": split.column,
                "distance": distance,
                "crps": found["crps"] / y.std(),
                "nll": found["nll"],
                "coverage_95": found["coverage_95"],
                "rows": len(split.fit),
            }


def elsewhere(made: Case, seed: int, changes: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    size = made.y.std()
    settings = {**SHORT, **SMALL, **(changes or {})}
    model = DeepBasisRegressor(**settings).fit(made.X, made.y)
    for distance, fitted in ((BEFORE, without(model, made.X, made.y)), (AFTER, model.fitted_)):
        found = fitted.predict(made.new)
        errors, crps = (made.truth - found.mean) / found.std, found.crps(made.truth).mean() / size
        yield score(made, seed, distance, crps, errors)
    encode = model.fitted_.preprocessor.transform
    mean, std = exact_gp(encode(made.X), made.y, encode(made.new))
    z = (made.truth - mean) / std
    from scipy.stats import norm

    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    yield score(made, seed, GP, crps.mean() / size, z)


def score(made: Case, seed: int, model: str, crps: float, errors: np.ndarray) -> dict[str, Any]:
    within = float(np.mean(np.abs(errors) < 3.0))
    return {"case": made.kind, "seed": seed, "model": model, "crps": float(crps), "within_3": within}


def exact_gp(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's, of some of the rows: all would take a minute."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    some = np.random.default_rng(0).permutation(len(x))[:GP_ROWS]
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengthscales at their bounds
        model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x[some], y[some])
    mean, std = model.predict(new, return_std=True)
    return mean, std


# ---- the page --------------------------------------------------------------------------------------------------------


def page() -> Iterator[str]:
    yield from ("# Predictions where there were no rows", "")
    yield from ("`python benchmarks/trust_far.py` makes this page; its docstring says what is compared.", "")
    known = read_parts(FILE)
    if "tables" in known:
        found = known["tables"]
        for kind in (ORDINARY, GAP, SHELL, BLOCK):
            yield from (f"## {kind.capitalize()} splits", "")
            yield "| table | rows | CRPS before | after | NLL before | after | 95 % coverage before | after |"
            yield "| --- " * 8 + "|"
            for name in dict.fromkeys(found["table"]):
                some = found[(found["table"] == name) & (found["split"] == kind)].groupby("distance")
                if len(some) == 2:
                    means = some[["crps", "nll", "coverage_95", "rows"]].mean().loc[[BEFORE, AFTER]]
                    cells = [f"{v:.{d}f}" for c, d in (("crps", 4), ("nll", 3), ("coverage_95", 3)) for v in means[c]]
                    mark = "" if found[found["table"] == name]["chosen_on"].any() else " (reported)"
                    yield f"| {name}{mark} | {means['rows'].iloc[0]:.0f} | {' | '.join(cells)} |"
            yield ""
    if "cases" in known:
        found = known["cases"]
        yield from (
            f"## Made-up tables of {CASE_ROWS:,} rows, {found['seed'].nunique()} draws of each, 40 new rows",
            "",
        )
        yield "| case | within 3 std before | after | exact GP | CRPS before | after | exact GP | after / exact GP |"
        yield "| --- " * 8 + "|"
        for kind in dict.fromkeys(found["case"]):
            means = found[found["case"] == kind].groupby("model")[["within_3", "crps"]].mean().loc[[BEFORE, AFTER, GP]]
            within, crps = means["within_3"].tolist(), means["crps"].tolist()
            cells = [*(f"{one:.3f}" for one in within), *(f"{one:.4f}" for one in crps), f"{crps[1] / crps[2]:.2f}"]
            yield f"| {kind} | {' | '.join(cells)} |"
        yield ""
    yield from (made(), "")


def figure(path: Path) -> None:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = drawn.subplots(2, 2, sharey="row")
    for row, kind in zip(axes, ("1-D gap", "daily trend"), strict=True):
        made = case(kind, CASE_ROWS, 1)
        name = made.X.columns[0]
        everywhere = pd.concat([made.X[::20], made.new]).sort_values(name, ignore_index=True)
        model = DeepBasisRegressor(**{**SHORT, **SMALL}).fit(made.X, made.y)
        both = (BEFORE, without(model, made.X, made.y)), (AFTER, model.fitted_)
        for ax, (distance, fitted) in zip(row, both, strict=True):
            found = fitted.predict(everywhere)
            lower, upper = found.interval(0.95)
            ax.plot(made.X[name][::10], made.y[::10], ".", color="0.6", markersize=2, label="rows")
            ax.plot(made.new[name], made.truth, ".", color="C3", markersize=3, label="truth where there were none")
            ax.fill_between(everywhere[name], lower, upper, alpha=0.25, linewidth=0, label="95 %")
            ax.plot(everywhere[name], found.mean, linewidth=1.2, label="mean")
            ax.set_title(f'{kind}, distance="{distance}"', fontsize=9)
            ax.tick_params(labelsize=7)
    axes[1, 0].legend(fontsize=7, loc="lower left")
    drawn.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
