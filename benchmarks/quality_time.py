"""Seconds of a fit on two cores, of every model of the quality benchmark, beside those of ours on the same machine.

    python benchmarks/quality_time.py --data-dir DATA [--tables a,b] [--models a,b]     # -> results/quality/seconds.csv
    python benchmarks/quality_time.py --quick                                          # a made-up table, seconds

The first split of each table, one fit of each model, one after the other, with two threads; ours is fitted first and
last, and the mean counts. Not every peer can be installed on every machine: a line says on which it was. What a machine
has measured is not measured again. Peers that come later are a further call, numbered in `call`, with a line of ours of
its own: `relative` is the time over ours of the same machine, table and call.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from _machine import describe
from _quality_data import CV, FULL, QUICK, TABLE, Fold, Task, folds
from _quality_model import Effort, Model, score
from _quality_peers import MODELS

RESULTS = Path(__file__).resolve().parent.parent / "results" / "quality" / "seconds.csv"
TABLES = (
    "yacht", "energy", "concrete", "airfoil", "wine", "gas", "skillcraft", "sml", "abalone", "wine_white", "pumadyn32nm"
)  # fmt: skip
OURS = "deepbasis"
PEERS = (
    "deep-ensemble-calibrated",
    "catboost",
    "catboost-quantiles",
    "ngboost",
    "sklearn-gp",
    "hgb",
    "realmlp",
    "realmlp-bagged",
    "tabm",
    "ridge",
    "constant",
)
PLACE = ["machine", "table"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--models", default=",".join(PEERS), help="the peers; ours is always timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    effort = Effort(torch.device("cpu"), arguments.threads)
    if arguments.quick:
        fold = next(folds(Task(CV, "hetero1d"), QUICK))
        print(pd.DataFrame(timed(fold, ["ridge", "sklearn-gp"], replace(effort, limit=2))).to_string())
        return
    if arguments.data_dir is None:
        parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
    facts = describe()
    machine = f"{facts['cpu']}, {arguments.threads} cores"
    wanted = [name for name in arguments.models.split(",") if MODELS[name].installed]
    for table in arguments.tables.split(","):
        fold = next(folds(Task(TABLE, table), FULL.of_seeds(1), Path(arguments.data_dir)))
        new = add(arguments.out, machine, table, fold, wanted, effort)
        if new is not None:
            print(table, new[["model", "seconds", "relative"]].to_string(index=False), sep="\n", flush=True)


def add(
    path: Path,
    machine: str,
    table: str,
    fold: Fold,
    wanted: Sequence[str],
    effort: Effort,
    models: Mapping[str, Model] = MODELS,
) -> pd.DataFrame | None:
    """A call, of the peers that are not in the file yet; none where there are no such peers."""
    names = missing(here(path, machine, table)["model"], fold, wanted, models)
    if not names:
        return None
    rows = list(timed(fold, names, effort, models))
    call = here(path, machine, table)["call"].max()  # others may have written in the meantime
    found = {"machine": machine, "table": table, "call": 1 if pd.isna(call) else 1 + int(call)}
    new = pd.DataFrame([{**found, **row} for row in rows])
    old = [pd.read_csv(path)] if path.exists() else []
    pd.concat([*old, new]).to_csv(path, index=False, float_format="%.5g")
    return new


def here(path: Path, machine: str, table: str) -> pd.DataFrame:
    """The lines of a machine and a table."""
    if not path.exists():
        return pd.DataFrame({name: [] for name in (*PLACE, "call", "model")})
    found = pd.read_csv(path)
    return found[(found[PLACE] == [machine, table]).all(axis=1)]


def missing(there: Sequence[str], fold: Fold, wanted: Sequence[str], models: Mapping[str, Model]) -> list[str]:
    """Without those that so many rows are too many for."""
    rows = len(fold.train.y) + len(fold.validation.y)
    mosts = {name: models[name].most_rows for name in wanted if name not in set(there)}
    return [name for name, most in mosts.items() if most is None or rows <= most]


def timed(
    fold: Fold, peers: Sequence[str], effort: Effort, models: Mapping[str, Model] = MODELS
) -> Iterator[dict[str, Any]]:
    """Ours first, with the mean of its two times. A model that broke down has no time and no scores."""

    def fitted(name: str) -> dict[str, Any]:
        (found,) = score(models[name], fold, effort)
        return {"model": name, "rows": len(fold.train.y), "columns": fold.columns, **found}

    first = fitted(OURS)
    others = [fitted(name) for name in peers]
    last = fitted(OURS)
    own = (first["seconds"] + last["seconds"]) / 2
    for found in [{**first, "seconds": own}, *others]:
        kept = {name: found.get(name) for name in ("model", "rows", "columns", "seconds", "crps_40", "mae")}
        yield {**kept, "relative": None if found["seconds"] is None else found["seconds"] / own}


if __name__ == "__main__":
    main()
