"""Transformed targets beside the symmetric default: skewed targets, counts and ratings; the same rows and seeds.

    python benchmarks/targets.py --data-dir FOLDER                    # everything -> results/targets
    python benchmarks/targets.py --rows 8000 --epochs 60 --members 2  # a short fit: a table on the screen
    python benchmarks/targets.py --only pollution --targets identity,warp,log

Pollution is split by weeks, the speeds by places: eight tenths are fitted, and one tenth is the test.
The CRPS is of the test rows, in the target's units; the change against "identity" has the paired standard error of the
groups. Of counts and ratings "nll" is minus the log of the probability of y, for a density that of y +- 1/2. The rule
of "auto" was made with test scores of such fits in view: what it gains here is no clean test of it.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from _machine import describe, one_line, record
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning

IDENTITY = "identity"
RESULTS = Path(__file__).resolve().parent.parent / "results" / "targets"
METRICS = ("crps", "nll", "mae", "rmse", "coverage_95")


@dataclass(frozen=True)
class Table:
    X: Any
    y: np.ndarray
    groups: np.ndarray
    """Rows of one group are on one side of the split."""
    discrete: str | None = None
    """How a count or a rating is asked for."""


def pollution(folder: Path) -> Table:
    table = pd.read_csv(folder / "tables" / "pollution.csv.gz", parse_dates=["time"])
    weeks = (table["time"] - table["time"].min()).dt.days.to_numpy() // 7
    return Table(table.drop(columns="pm2.5"), table["pm2.5"].to_numpy(float), weeks)


def speeds(name: str) -> Callable[[Path], Table]:
    def read(folder: Path) -> Table:
        with np.load(folder / "ookla" / f"{name}.npz") as arrays:
            X, y = arrays["X"].astype(float), arrays["d_kbps"].astype(float)
            return Table(X, y, arrays["quadkey"])

    return read


def column(
    name: str, target: str, groups: Callable[[pd.DataFrame], np.ndarray] | None = None
) -> Callable[[Path], Table]:
    """The last column of a table; without groups, rows with the same inputs stay together."""

    def read(folder: Path) -> Table:
        table = pd.read_csv(folder / "tables" / f"{name}.csv.gz")
        X, y = table.iloc[:, :-1], table.iloc[:, -1].to_numpy(float)
        copies = X.groupby(list(X.columns), dropna=False).ngroup().to_numpy()
        return Table(X, y, copies if groups is None else groups(X), target)

    return read


def persons(table: pd.DataFrame) -> np.ndarray:
    """Of a panel without names whose rows are in order: the same person as long as the years go up, the sex stays and
    the year of birth does, to within one.

    Two that look like one stay together, which does no harm.
    """
    born = (table["year"] - table["age"]).diff().abs()
    new = (table["year"].diff() <= 0) | (table["female"].diff() != 0) | (born > 1)
    return new.cumsum().to_numpy()


TABLES = {
    "pollution": pollution,
    "puerto-rico": speeds("mobile_puerto_rico"),
    "georgia": speeds("fixed_2023Q2_georgia"),
    "abalone": column("abalone", "count"),
    "doctor-visits": column("doctor_visits", "count"),
    "rwm5yr": column("rwm5yr", "count", persons),
    "wine-white": column("wine_white", "ordinal"),
}


def split(table: Table, rows: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows: of ten groups eight and one; `rows` of the training rows at most."""
    rng = np.random.default_rng(0)
    names, of = np.unique(table.groups, return_inverse=True)
    place = rng.permutation(len(names))[of] * 10 // len(names)
    train, test = np.flatnonzero(place < 8), np.flatnonzero(place == 9)
    return rng.permutation(train)[:rows], rng.permutation(test)[:rows]


def chosen(X: Any, rows: np.ndarray) -> Any:
    return X.iloc[rows].reset_index(drop=True) if isinstance(X, pd.DataFrame) else X[rows]


def trials(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.only.split(","):
        table = TABLES[name](arguments.data_dir)
        train, test = split(table, arguments.rows)
        y, groups = table.y[test], np.unique(table.groups[test], return_inverse=True)[1]
        plain: np.ndarray | None = None
        for target in [*arguments.targets.split(","), *([table.discrete] if table.discrete else [])]:
            given = {"epochs": arguments.epochs} if arguments.epochs else {}
            model = DeepBasisRegressor(target=target, members=arguments.members, random_state=arguments.seed, **given)
            start = time.perf_counter()
            model.fit(chosen(table.X, train), table.y[train])
            seconds = time.perf_counter() - start
            dist = model.predict_dist(chosen(table.X, test))
            scores, crps = model.evaluate(chosen(table.X, test), y), dist.crps(y)
            if table.discrete:  # a density is scored by its mass on y +- 1/2
                mass = dist.cdf(y + 0.5) - dist.cdf(y - 0.5)
                scores["nll"] = -np.log(np.maximum(mass, 1e-12)).mean()
            plain = crps if target == IDENTITY else plain
            row = {"table": name, "rows": len(train), "target": target, "became": model.plan_.target}
            row |= {key: scores[key] for key in METRICS} | {"seconds": seconds, "because": model.plan_.target_because}
            if plain is not None:
                sums = np.bincount(groups, crps - plain) / len(y) / plain.mean()
                row |= {"change": sums.sum(), "error": np.sqrt(np.square(sums - sums.mean()).sum())}
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DEEPBASIS_DATA", "data")))
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument(
        "--targets", default="identity,warp,log,auto", help="the first is what the others are compared with"
    )
    parser.add_argument("--rows", type=int, default=None, help="training rows at most, and test rows")
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help=f"such as {RESULTS.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    found = []
    for row in trials(arguments):
        found.append(row)
        change = f"{100 * row['change']:+6.2f} ± {100 * row['error']:.2f} %" if "change" in row else ""
        numbers = "  ".join(f"{key} {row[key]:.5g}" for key in METRICS)
        print(
            f"{row['table']:12s} {row['target']:9s} {change:16s} {numbers}  {row['seconds']:.0f} s {row['because']}",
            flush=True,
        )
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "table.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "targets", arguments)


if __name__ == "__main__":
    main()
