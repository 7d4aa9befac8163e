"""Regions left out of nine tables: ours beside peers in gaps, outer shells and blocks of time.

    python benchmarks/trust_gaps.py --data-dir FOLDER [--tables a,b] [--models a,b] [--jobs N] [--minutes M]
    python benchmarks/trust_gaps.py --page          # results/trust/gaps.md from the rows that there are
    python benchmarks/trust_gaps.py --quick         # a made-up table, seconds

Of each column with at least ten distinct values, of at most eight of them drawn by seed, the rows in the middle third
of these values are new (Foong et al., 2019). Outer shell: the tenth of the rows farthest from the middle of the
columns. Time block: of sml, whose rows are in time order, a tenth in the middle and the last tenth. Ordinary: a tenth
at random. Tables have all their rows; elevators, kin40k and pumadyn32nm have 6,000 of them. A tenth of the rows to fit
is for early stopping, where a model does that.

Ours is the default, with `distance="none"` and with "widen", from one fit. Peers are those of the benchmark of quality,
with its settings, except that deep ensembles are trained in batches of 256 rows, and that scikit-learn's exact GP sees
1,000 rows where there are more than 2,000; VBLL is ours, with one member. All see the same standardised columns, and
NLL and CRPS are in units of the target's standard deviation among the rows to fit. Each row of results/trust/gaps.csv
is computed once: a run goes on where the last one ended. Later gaps of the three long tables are computed last; a
table's figures are averages over the splits that all models have.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from _quality_data import Fold, Side
from _quality_model import BREAKDOWNS, Effort, evaluate
from _quality_peers import MODELS
from _trust_far import BLOCK, GAP, ORDINARY, SHELL, Split, splits
from _trust_shifts import read
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.gp.predictive import Predictive

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
CHOSEN_ON = ("concrete", "airfoil", "sml")
"""What the form of `distance` was chosen on; the others are reported."""
TABLES = (*CHOSEN_ON, "energy", "yacht", "wine", "pumadyn32nm", "kin40k", "elevators")
IN_TIME, LONG = ("sml",), ("pumadyn32nm", "kin40k", "elevators")
OURS = "deepbasis"
NONE, WIDEN, VBLL = 'deepbasis, distance="none"', 'deepbasis, distance="widen"', "vbll"
PEERS = ("deep-ensemble", "sklearn-gp", "ngboost", "catboost")
ROWS, GAPS = 6_000, 8
GP_MOST, GP_ROWS = 2_000, 1_000
BATCH = 256
SOON = 3
"""Gaps of a long table that are computed before those of others."""
KEY = ["table", "split", "column", "model"]


class Unit(NamedTuple):
    """What is computed at once: a model of a split."""

    table: str
    number: int
    """Of the split."""
    model: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--out", type=Path, default=RESULTS / "gaps.csv")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--models", default=",".join((OURS, VBLL, *PEERS)))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        quick()
        return
    if not arguments.page:
        if arguments.data_dir is None:
            parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        known = rows_of(arguments.out) if arguments.out.exists() else None
        work = list(wanted(arguments.tables.split(","), arguments.models.split(","), arguments.data_dir, known))
        compute(work, arguments.data_dir, arguments.out, arguments.jobs, arguments.minutes)
    if arguments.out.parent == RESULTS:
        (RESULTS / "gaps.md").write_text("\n".join(page(rows_of(arguments.out))))


def rows_of(path: Path) -> pd.DataFrame:
    return pd.read_csv(path).fillna({"column": ""})


def quick() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
    y = (X["a"] + rng.normal(size=200)).to_numpy()
    split = next(one for one in splits(X, ROWS, 1, in_time=False) if one.kind == GAP)
    fold, effort = as_fold(X.to_numpy(float), y, split), replace(Effort(torch.device("cpu")), limit=2)
    for model in (OURS, VBLL, *PEERS):
        for name, predicted in predictions(model, fold, effort):
            print(name, None if predicted is None else evaluate(predicted, fold.test.y)["nll"])


def wanted(tables: list[str], models: list[str], folder: Path, known: pd.DataFrame | None) -> Iterator[Unit]:
    """What is not there yet."""
    there = set() if known is None else {tuple(row) for row in known[KEY].itertuples(index=False)}
    last = []
    for model in models:
        if model not in (OURS, VBLL) and not MODELS[model].installed:
            continue
        for table in tables:
            for number, split in enumerate(splits_of(table, folder)[2]):
                if (table, split.kind, split.column, WIDEN if model == OURS else model) not in there:
                    unit = Unit(table, number, model)
                    if split.kind == GAP and number > SOON and table in LONG:
                        last.append(unit)
                    else:
                        yield unit
    yield from last


def splits_of(table: str, folder: Path) -> tuple[pd.DataFrame, np.ndarray, list[Split]]:
    X, y = read(table, folder)
    return X, y, list(splits(X, ROWS, GAPS, in_time=table in IN_TIME))


def compute(work: list[Unit], folder: Path, out: Path, jobs: int, minutes: float) -> None:
    """Rows are written as they come; after the time is over what still runs is ended."""
    end, done = time.monotonic() + 60.0 * minutes, 0
    with multiprocessing.get_context("spawn").Pool(jobs, _one_thread) as pool:
        found = pool.imap_unordered(partial(measured, folder=folder), work)
        for _ in work:
            try:
                rows = found.next(None if end == float("inf") else max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            pd.DataFrame(rows).to_csv(out, mode="a", header=not out.exists(), index=False, float_format="%.6g")
            done += 1
    print(f"{done} of {len(work)} fits", flush=True)


def _one_thread() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FitWarning)
    warnings.simplefilter("ignore", NoveltyWarning)


def measured(unit: Unit, folder: Path) -> list[dict[str, Any]]:
    X, y, several = splits_of(unit.table, folder)
    split = several[unit.number]
    fold, rows = as_fold(X.to_numpy(float), y, split), []
    start = time.perf_counter()
    for model, predicted in predictions(unit.model, fold, Effort(torch.device("cpu"))):
        scores = {} if predicted is None else evaluate(predicted, fold.test.y)
        kept = {one: scores.get(one) for one in ("nll", "crps", "coverage_95")}
        named = dict(zip(KEY, (unit.table, split.kind, split.column, model), strict=True))
        seconds = time.perf_counter() - start
        rows.append({**named, "rows": len(split.fit), "new": len(split.test), **kept, "seconds": seconds})
    return rows


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


def predictions(model: str, fold: Fold, effort: Effort) -> Iterator[tuple[str, Predictive | None]]:
    """None: the model broke down."""
    X, y, new = (
        *(torch.cat([one, other]).double().numpy() for one, other in zip(fold.train, fold.validation, strict=True)),
        fold.test.x.double().numpy(),
    )
    short: dict[str, Any] = {"random_state": 0, "n_jobs": 1, "device": "cpu"}
    if effort.limit is not None:
        short |= {"epochs": effort.limit}
    if model == OURS:
        ours = DeepBasisRegressor(distance="widen", **short).fit(X, y)
        yield NONE, replace(ours.fitted_, distance=None).predict(new).tensors
        yield WIDEN, ours.predict_dist(new, as_tensor=True)
    elif model == VBLL:
        yield VBLL, DeepBasisRegressor(method=VBLL, members=1, **short).fit(X, y).predict_dist(new, as_tensor=True)
    elif MODELS[model].installed:
        if model == "sklearn-gp":
            fold = few(fold)
        try:
            (found,) = MODELS[model].fit(fold, (0,), replace(effort, batch=BATCH))
            yield model, found.predict(fold.test.x)
        except BREAKDOWNS:
            yield model, None


def few(fold: Fold) -> Fold:
    """The same with fewer rows, which are in random order, for what takes the cube of their number."""
    if len(fold.train.y) + len(fold.validation.y) <= GP_MOST:
        return fold
    cut = GP_ROWS // 10
    train, validation = (Side(side.x[:k], side.y[:k]) for side, k in ((fold.train, 9 * cut), (fold.validation, cut)))
    return replace(fold, train=train, validation=validation)


# ---- the page --------------------------------------------------------------------------------------------------------


SCORES = (("coverage_95", "Coverage of the 95 % interval"), ("nll", "NLL"), ("crps", "CRPS"))


def page(found: pd.DataFrame) -> Iterator[str]:
    models = [one for one in (NONE, WIDEN, VBLL, *PEERS) if one in set(found["model"])]
    yield from ("# Where regions were left out", "")
    yield from ("`python benchmarks/trust_gaps.py` makes this page; its docstring says what is compared.", "")
    for kind in (GAP, SHELL, BLOCK, ORDINARY):
        some = found[found["split"] == kind]
        wide = some.pivot_table(index=["table", "column"], columns="model", values="crps", aggfunc="count", sort=False)
        if not len(some) or not set(models) <= set(wide):
            continue
        complete = wide.index[(wide[models] > 0).all(axis=1)]  # a model that broke down has no score to count
        some = some[pd.MultiIndex.from_frame(some[["table", "column"]]).isin(complete)]
        yield from (f"## {kind.capitalize()} splits", "")
        for score, title in SCORES:
            table = some.pivot_table(index="table", columns="model", values=score)[models]
            table = table.loc[[name for name in TABLES if name in table.index]]
            heads = " | ".join(short(one) for one in models)
            yield from (f"### {title}", "", f"| table | rows | splits | {heads} |")
            yield "| --- " * (3 + len(models)) + "|"
            for name, means in table.iterrows():
                own = some[some["table"] == name]
                mark = "" if name in CHOSEN_ON else " (reported)"
                cells = " | ".join(f"{value:.{4 if score == 'crps' else 3}f}" for value in means)
                yield f"| {name}{mark} | {own['rows'].mean():.0f} | {own['column'].nunique()} | {cells} |"
            yield from ("", *summary(table, score, kind), "")
    yield from ("Fits were made on several machines, each on one core: their times are not compared.", "")


def short(model: str) -> str:
    return model.replace("deepbasis, distance=", "ours, ").replace('"', "")


def summary(table: pd.DataFrame, score: str, kind: str) -> Iterator[str]:
    if score == "coverage_95":
        enough = ", ".join(f"{short(one)} {(table[one] >= 0.9).sum()}" for one in table)
        yield f"Tables with a coverage of at least .90, which was asked for, of {len(table)}: {enough}."
    if score == "nll":
        for own, other in ((WIDEN, NONE), (NONE, WIDEN)):  # ours counts once
            ranks = table.drop(columns=other).rank(axis=1)
            told = ", ".join(f"{short(one)} {ranks[one].mean():.1f} ({(ranks[one] == 1).sum()})" for one in ranks)
            yield f"Mean rank (tables on which it is first), {short(own)}: {told}.\n"
    if score == "crps" and kind == ORDINARY:
        cost = ", ".join(f"{name} {100.0 * (row[WIDEN] / row[NONE] - 1.0):+.1f} %" for name, row in table.iterrows())
        yield f"What widen costs: {cost}."


if __name__ == "__main__":
    main()
