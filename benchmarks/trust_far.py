"""Made-up tables where there were no rows: before (`distance="none"`), after ("widen"), and scikit-learn's exact GP.

A gap, a line and a trend that go on half of their range beyond its end, categories never seen, a column in other units.
The default method is fitted, small (two members, 30 epochs), and the truth has no noise; before and after are the same
members. Real tables are in trust_gaps.py.

    python benchmarks/trust_far.py [--draws N] [--page] [--quick]
"""

from __future__ import annotations

import argparse
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
from _trust_far import CASES, Case, case
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.fitting.fitted import Fitted

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
FILE = RESULTS / "far.json"
CASE_ROWS, GP_ROWS = 2_200, 300
SMALL: dict[str, Any] = {"members": 2, "epochs": 30, "random_state": 0, "n_jobs": 1, "distance": "widen"}
"""Two seconds a draw, so that there can be many."""
BEFORE, AFTER, GP = "none", "widen", "exact GP"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--page", action="store_true", help="of what has been computed")
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
    for kind in () if arguments.page else CASES:
        keep(kind, [row for seed in range(arguments.draws) for row in elsewhere(case(kind, CASE_ROWS, seed), seed)])
    (RESULTS / "far.md").write_text("\n".join(page()))
    figure(RESULTS / "far.png")


def keep(kind: str, rows: list[dict[str, Any]]) -> None:
    """In place of what was there of the same case."""
    before = read_parts(FILE).get("cases", pd.DataFrame({"case": []}))
    write_part(FILE, "cases", pd.concat([before[before["case"] != kind], pd.DataFrame(rows)]))
    print(kind, flush=True)


def both(model: DeepBasisRegressor) -> tuple[tuple[str, Fitted], ...]:
    """The same members and their calibration, without what `distance` adds and with it."""
    return (BEFORE, replace(model.fitted_, distance=None)), (AFTER, model.fitted_)


def elsewhere(made: Case, seed: int, changes: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    size = made.y.std()
    model = DeepBasisRegressor(**{**SMALL, **(changes or {})}).fit(made.X, made.y)
    for distance, fitted in both(model):
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
    found = read_parts(FILE)["cases"]
    yield from ("# Predictions where there were no rows: made-up tables", "")
    yield from ("`python benchmarks/trust_far.py` makes this page; its docstring says what is compared.", "")
    yield from ("![A gap and a trend, before and after](far.png)", "")
    draws = found["seed"].nunique()
    yield f"Tables of {CASE_ROWS:,} rows, {draws} draws of each, 40 new rows a draw; the exact GP has {GP_ROWS} rows."
    yield "Asked for: within 3 std in at least .950, at a CRPS of at most 1.25 times that of the exact GP."
    yield ""
    yield "| case | rows within 3 std before | after | exact GP | draws after | CRPS before | after | GP | ratio |"
    yield "| --- " * 9 + "|"
    for kind in dict.fromkeys(found["case"]):
        own = found[found["case"] == kind]
        means = own.groupby("model")[["within_3", "crps"]].mean().loc[[BEFORE, AFTER, GP]]
        within, crps = means["within_3"].tolist(), means["crps"].tolist()
        of_draws = (own.loc[own["model"] == AFTER, "within_3"] >= 0.95).mean()
        cells = [*(f"{one:.3f}" for one in (*within, of_draws)), *(f"{one:.4f}" for one in crps)]
        cells.append(f"{crps[1] / crps[2]:.2f}")
        yield f"| {kind} | {' | '.join(cells)} |"
    yield ""
    yield "Rows: the share of all. Draws: the share of those in which at least .95 of the rows are within 3 std, with"
    yield '`distance="widen"`. Ratio: its CRPS over that of the exact GP.'
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
        model = DeepBasisRegressor(**SMALL).fit(made.X, made.y)
        for ax, (distance, fitted) in zip(row, both(model), strict=True):
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
