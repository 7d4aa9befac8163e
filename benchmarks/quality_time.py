"""Seconds of a fit on two cores, of every model of the quality benchmark, beside those of ours on the same machine.

    python benchmarks/quality_time.py --data-dir DATA [--tables a,b] [--models a,b]     # -> results/quality/seconds.csv
    python benchmarks/quality_time.py --quick                                          # a made-up table, seconds

The first split of each table, one fit of each model, one after the other, with two threads; ours is fitted first and
last, and the mean counts. Not every peer can be installed on every machine: a line says on which it was, and
`relative` is the time over ours there. What a machine has measured is not measured again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from _machine import describe
from _quality_data import CV, FULL, QUICK, TABLE, Fold, Task, folds
from _quality_model import Effort, score
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
    "ridge",
)
KEY = ["machine", "table", "model"]


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
        there = known(arguments.out)
        own = there[(there["machine"] == machine) & (there["table"] == table)]
        missing = [name for name in wanted if name not in set(own["model"])]
        fold = next(folds(Task(TABLE, table), FULL.of_seeds(1), Path(arguments.data_dir)))
        if missing:
            rows = [{"machine": machine, "table": table, **row} for row in timed(fold, missing, effort)]
            new = pd.DataFrame(rows).drop_duplicates(KEY)
            old = known(arguments.out)  # others may have written in the meantime
            kept = old[~old[KEY].apply(tuple, axis=1).isin(set(new[KEY].apply(tuple, axis=1)))] if len(old) else old
            pd.concat([kept, new]).to_csv(arguments.out, index=False, float_format="%.5g")
            print(table, new[["model", "seconds", "relative"]].to_string(index=False), sep="\n", flush=True)


def known(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.exists() else pd.DataFrame({name: [] for name in KEY})


def timed(fold: Fold, peers: Sequence[str], effort: Effort) -> Iterator[dict[str, Any]]:
    """Ours first, with the mean of its two times."""

    def fitted(name: str) -> dict[str, Any]:
        (found,) = score(MODELS[name], fold, effort)
        return {"model": name, "rows": len(fold.train.y), "columns": fold.columns, **found}

    def able(name: str) -> bool:
        most = MODELS[name].most_rows
        return most is None or len(fold.train.y) + len(fold.validation.y) <= most

    first = fitted(OURS)
    others = [fitted(name) for name in peers if able(name)]
    last = fitted(OURS)
    own = (first["seconds"] + last["seconds"]) / 2
    for found in [{**first, "seconds": own}, *others]:
        kept = {name: found[name] for name in ("model", "rows", "columns", "seconds", "crps_40", "mae")}
        yield {**kept, "relative": found["seconds"] / own}


if __name__ == "__main__":
    main()
