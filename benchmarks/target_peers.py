"""Counts, ratings and skewed numbers in folds, beside other people's models; the same rows for all.

    python benchmarks/target_peers.py --data-dir FOLDER --folds 5 --out results/targets   # -> peers.csv
    python benchmarks/target_peers.py --only abalone --folds 1 --epochs 40 --members 2    # a short look

Every fold of five is a test. Rows of one group, or with the same inputs, are on one side. At most `--rows` of the other
rows are fitted, the same for every model. "deepbasis" is told that the target is a count or a rating, "deepbasis-auto"
is not. Of counts and ratings "score" is minus the log of the probability of y, "crps" the ranked probability score, and
"pit" the Kolmogorov-Smirnov distance of the randomised PIT of all test rows from a uniform distribution. Of other
numbers "score" is the CRPS, from quantiles at 20 levels. "behind" is the score minus that of the first model, with its
standard error by groups: above 0 is worse.
"""

from __future__ import annotations

import argparse
import csv
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kstest, poisson

from _machine import describe, one_line, record
from _target_peers import LEVELS, Peer, installed
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning
from deepbasis.gp.counts import Counts
from deepbasis.gp.discrete import Discrete
from targets import TABLES, Table

Floats = NDArray[np.float64]

FOLDS = 5
LEAST = 1e-12  # the smallest probability of a value: what one row may cost
FIELDS = ("table", "rows", "test_rows", "folds", "model", "became", "score", "crps", "mae", "pit", "behind", "error")


@dataclass(frozen=True)
class Losses:
    """Of every test row."""

    score: Floats
    crps: Floats
    absolute: Floats
    """Of the median."""
    pit: Floats


def of_masses(masses: Floats, y: Floats, rng: np.random.Generator) -> Losses:
    """Of probabilities [n, k] of the values 0, 1, ..., k - 1, beyond which hardly anything is left."""
    row, count, values = np.arange(len(y)), y.astype(int), np.arange(masses.shape[1])
    below, own = np.cumsum(masses, 1), masses[row, count]
    crps = np.square(below - (values >= y[:, None])).sum(1)
    median = (below < 0.5).sum(1)
    pit = below[row, count] - rng.uniform(size=len(y)) * own
    return Losses(-np.log(np.maximum(own, LEAST)), crps, np.abs(y - median), pit)


def of_quantiles(quantiles: Floats, y: Floats) -> Losses:
    error = y[:, None] - quantiles
    crps = 2.0 * np.maximum(LEVELS * error, (LEVELS - 1.0) * error).mean(1)
    place = (quantiles < y[:, None]).sum(1) / len(LEVELS)  # a PIT in steps of 1 / 20
    return Losses(crps, crps, np.abs(y - np.median(quantiles, 1)), place)


def masses_of(dist: Any, values: int) -> Floats:
    """Of our prediction: probabilities of values, or the masses of a density on each of them, +- 1/2."""
    if isinstance(dist.tensors, Discrete | Counts):
        found = np.zeros((len(dist), max(values, int(dist.values.max()) + 1)))
        found[:, dist.values.astype(int)] = dist.pmf
        return found
    below = np.stack([dist.cdf(np.full(len(dist), k + 0.5)) for k in range(values - 1)], 1)
    return np.diff(below, prepend=0.0, append=1.0, axis=1)


@dataclass(frozen=True)
class Ours:
    changes: dict[str, Any]

    def __call__(self, X: pd.DataFrame, y: Floats, test: pd.DataFrame, seed: int) -> tuple[Any, str]:
        model = DeepBasisRegressor(random_state=seed, **self.changes).fit(X, y)
        return model.predict_dist(test), model.plan_.target


def models(table: Table, arguments: argparse.Namespace) -> dict[str, Ours | Peer]:
    given = {"members": arguments.members} | ({"epochs": arguments.epochs} if arguments.epochs else {})
    mine: dict[str, Ours | Peer] = {"deepbasis-auto": Ours(given)}
    if table.discrete:
        mine = {"deepbasis": Ours(given | {"target": table.discrete}), **mine}
    if table.discrete == "count":
        mine["deepbasis-negative-binomial"] = Ours(given | {"likelihood": "negative-binomial"})
    every = {**mine, **installed(table.discrete is not None)}
    wanted = list(every) if arguments.models is None else arguments.models.split(",")
    return {name: model for name, model in every.items() if name in wanted}


def folds(table: Table, rows: int | None, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Training and test rows of each fold; groups are dealt out at random."""
    rng = np.random.default_rng(seed)
    names, of = np.unique(table.groups, return_inverse=True)
    place = rng.permutation(len(names))[of] % FOLDS
    every = [(rng.permutation(np.flatnonzero(place != k)), np.flatnonzero(place == k)) for k in range(FOLDS)]
    return [(train[:rows], held) for train, held in every]


def losses(model: Ours | Peer, table: Table, X: pd.DataFrame, train: Any, held: Any, seed: int) -> tuple[Losses, str]:
    """Of the rows of a fold."""
    known, y = (
        (X.iloc[train].reset_index(drop=True), table.y[train], X.iloc[held].reset_index(drop=True)),
        table.y[held],
    )
    predicted, became = model(*known, seed), ""
    values = int(table.y.max()) + 1
    if isinstance(model, Ours):
        dist, became = predicted
        predicted = masses_of(dist, values) if table.discrete else dist.quantile(LEVELS)
    elif table.discrete:  # a mean, of a Poisson
        predicted = poisson.pmf(np.arange(2 * values), np.maximum(predicted, 1e-9)[:, None])
    if table.discrete:
        return of_masses(predicted, y, np.random.default_rng(seed)), became
    return of_quantiles(predicted, y), became


def trials(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.only.split(","):
        table = TABLES[name](arguments.data_dir)
        X = table.X if isinstance(table.X, pd.DataFrame) else pd.DataFrame(table.X).add_prefix("x")
        dates = [column for column in X.columns if X[column].dtype.kind == "M"]
        numbers = X.assign(**{column: X[column].astype("int64") / 1e9 for column in dates})  # for the peers
        splits = folds(table, arguments.rows, arguments.seed)[: arguments.folds]
        held = np.concatenate([test for _, test in splits])
        groups = np.unique(table.groups[held], return_inverse=True)[1]
        first: Floats | None = None
        for label, model in models(table, arguments).items():
            given = X if isinstance(model, Ours) else numbers
            found = [losses(model, table, given, *split, arguments.seed) for split in splits]
            one = Losses(
                *(np.concatenate(parts) for parts in zip(*(vars(part).values() for part, _ in found), strict=True))
            )
            row = {
                "table": name,
                "rows": len(splits[0][0]),
                "test_rows": len(held),
                "folds": len(splits),
                "model": label,
            }
            row |= {
                "became": found[0][1],
                "score": one.score.mean(),
                "crps": one.crps.mean(),
                "mae": one.absolute.mean(),
            }
            row["pit"] = kstest(one.pit, "uniform").statistic
            first = one.score if first is None else first
            gap = one.score - first
            sums = np.bincount(groups, gap - gap.mean())
            yield row | {"behind": gap.mean(), "error": np.sqrt(np.square(sums).sum()) / len(gap)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DEEPBASIS_DATA", "data")))
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--models", default=None, help="some of them; the first is what others are compared with")
    parser.add_argument("--folds", type=int, default=FOLDS, help=f"of {FOLDS}, that are tested")
    parser.add_argument("--rows", type=int, default=None, help="training rows at most")
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="such as results/targets")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    found = []
    for row in trials(arguments):
        found.append(row)
        numbers = "  ".join(f"{key} {row[key]:.5g}" for key in ("score", "crps", "mae", "pit"))
        gap = f"{row['behind']:+.4g} ± {row['error']:.2g}"
        print(f"{row['table']:13s} {row['model']:27s} {numbers}  {gap}  {row['became']}", flush=True)
    print(one_line(describe()))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "peers.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(found)
        record(arguments.out, "peers", arguments)


if __name__ == "__main__":
    main()
