"""Gaps in small tables: our default beside peers, where the middle third of a column's values was left out.

    python benchmarks/trust_gaps.py --data-dir FOLDER [--tables a,b] [--gaps N]     # -> results/trust/gaps.*
    python benchmarks/trust_gaps.py --quick                                         # a made-up table, seconds

Of each table 500 rows at random. Of some of its columns with at least ten distinct values, drawn by seed, the rows in
the middle third of these are new (Foong et al., 2019); a tenth of the others is for early stopping, where a model does
that. Ours is the default, with `distance="none"` and with "widen", from one fit. Peers are those of the benchmark of
quality, with its settings; VBLL is ours, with one member. All see the same standardised columns, and NLL and CRPS are
in units of the target's standard deviation among the rows to fit.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from _machine import describe, one_line
from _quality_data import Fold, Side
from _quality_model import BREAKDOWNS, Effort, evaluate
from _quality_peers import MODELS
from _trust_far import GAP, Split, splits
from _trust_shifts import read
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.gp.predictive import Predictive

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
CHOSEN_ON = ("concrete", "airfoil", "sml")
"""What the form of `distance` was chosen on; the others are reported."""
TABLES = (*CHOSEN_ON, "energy", "yacht", "wine", "pumadyn32nm", "kin40k", "elevators")
NONE, WIDEN, VBLL = 'deepbasis, distance="none"', 'deepbasis, distance="widen"', "vbll"
PEERS = ("deep-ensemble", "sklearn-gp", "ngboost", "catboost")
ROWS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--gaps", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    warnings.simplefilter("ignore", NoveltyWarning)
    torch.set_num_threads(1)
    effort = Effort(torch.device("cpu"))
    if arguments.quick:
        rng = np.random.default_rng(0)
        X = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
        rows = measured("made up", X, (X["a"] + rng.normal(size=200)).to_numpy(), 1, replace(effort, limit=2))
        print(pd.DataFrame(rows).to_string())
        return
    if arguments.data_dir is None:
        parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "gaps.csv"
    for name in arguments.tables.split(","):
        start = time.process_time()
        rows = list(measured(name, *read(name, arguments.data_dir), arguments.gaps, effort))
        before = pd.read_csv(path) if path.exists() else pd.DataFrame({"table": []})
        pd.concat([before[before["table"] != name], pd.DataFrame(rows).round(4)]).to_csv(path, index=False)
        print(name, f"{time.process_time() - start:.0f} s of a core", flush=True)
    (RESULTS / "gaps.md").write_text("\n".join(page(pd.read_csv(path))))


def measured(name: str, X: pd.DataFrame, y: np.ndarray, gaps: int, effort: Effort) -> Iterator[dict[str, Any]]:
    for split in splits(X, ROWS, gaps, in_time=False):
        if split.kind == GAP:
            fold = as_fold(X.to_numpy(float), y, split)
            for model, predicted in predictions(fold, effort):
                scores = {} if predicted is None else evaluate(predicted, fold.test.y)
                kept = {one: scores.get(one) for one in ("nll", "crps", "coverage_95")}
                yield {"table": name, "column": split.column, "model": model, "rows": len(split.fit), **kept}


def as_fold(X: np.ndarray, y: np.ndarray, split: Split) -> Fold:
    """Standardised by the rows to fit, of which a tenth is for validation."""
    spread = X[split.fit].std(0)
    x = (X - X[split.fit].mean(0)) / np.where(spread > 0, spread, 1.0)
    z = (y - y[split.fit].mean()) / y[split.fit].std()
    mixed = np.random.default_rng(0).permutation(split.fit)
    cut = len(mixed) // 10
    sides = (
        Side(torch.from_numpy(x[rows]).float(), torch.from_numpy(z[rows]).float())
        for rows in (mixed[cut:], mixed[:cut], split.test)
    )
    return Fold(0, *sides, seeds=(0,), digest="")


def predictions(fold: Fold, effort: Effort) -> Iterator[tuple[str, Predictive | None]]:
    """None: the model broke down."""
    X, y, new = (
        *(torch.cat([one, other]).double().numpy() for one, other in zip(fold.train, fold.validation, strict=True)),
        fold.test.x.double().numpy(),
    )
    short: dict[str, Any] = {"random_state": 0, "n_jobs": 1, "device": "cpu"}
    if effort.limit is not None:
        short |= {"epochs": effort.limit}
    ours = DeepBasisRegressor(distance="widen", **short).fit(X, y)
    yield NONE, replace(ours.fitted_, distance=None).predict(new).tensors
    yield WIDEN, ours.predict_dist(new, as_tensor=True)
    vbll = DeepBasisRegressor(method=VBLL, members=1, **short).fit(X, y)
    yield VBLL, vbll.predict_dist(new, as_tensor=True)
    for peer in PEERS:
        if MODELS[peer].installed:
            try:
                (found,) = MODELS[peer].fit(fold, (0,), effort)
                yield peer, found.predict(fold.test.x)
            except BREAKDOWNS:
                yield peer, None


# ---- the page --------------------------------------------------------------------------------------------------------


def page(found: pd.DataFrame) -> Iterator[str]:
    models = [one for one in (NONE, WIDEN, VBLL, *PEERS) if one in set(found["model"])]
    yield from ("# Gaps in small tables", "")
    yield from ("`python benchmarks/trust_gaps.py` makes this page; its docstring says what is compared.", "")
    for score, title in (("nll", "NLL"), ("coverage_95", "Coverage of the 95 % interval"), ("crps", "CRPS")):
        table = found.pivot_table(index="table", columns="model", values=score, sort=False)
        yield from (
            f"## {title}",
            "",
            f"| table | rows | gaps | {' | '.join(models)} |",
            "| --- " * (3 + len(models)) + "|",
        )
        for name in table.index:
            some = found[found["table"] == name]
            mark = "" if name in CHOSEN_ON else " (reported)"
            cells = [f"{table.loc[name, one]:.3f}" for one in models]
            yield f"| {name}{mark} | {some['rows'].mean():.0f} | {some['column'].nunique()} | {' | '.join(cells)} |"
        yield ""
        yield from (*summary(table[models], score), "")
    yield from (one_line(describe()), "")


def summary(table: pd.DataFrame, score: str) -> Iterator[str]:
    """Ours counts once, as it is by default."""
    if score == "coverage_95":
        enough = ", ".join(f"{one} {(table[one] >= 0.9).sum()}" for one in table)
        yield f"Tables with a coverage of at least .90, which was asked for, of {len(table)}: {enough}."
    if score == "nll":
        ranks = table.drop(columns=WIDEN).rank(axis=1)
        told = ", ".join(f"{one} {ranks[one].mean():.1f}" for one in ranks)
        first = ", ".join(f"{one} {(ranks[one] == 1).sum()}" for one in ranks)
        yield from (f"Mean rank: {told}.", f"First: {first}.")


if __name__ == "__main__":
    main()
