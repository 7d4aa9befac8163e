"""Data sets, splits and folds of the quality benchmark.

A fold depends on the names of the data set and the split alone: every model gets the same rows, scaled the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from _quality_tables import TABLES, load_table
from deepbasis.paper import data_ookla, data_step1d, data_uci, splits
from deepbasis.paper import ookla as ookla_experiment
from deepbasis.paper.data_uci import RegressionTable
from deepbasis.paper.scaling import Scaled, Side
from deepbasis.paper.splits import Floats, Split

PAPER, SAFE, CV, TABLE = "paper", "duplicate-safe", "cv", "table"
SPLITS = (PAPER, SAFE, CV, TABLE)

UCI = ("pol", "elevators", "kin40k", "protein", "keggdirected", "keggundirected")
COPY_FREE = ("elevators", "kin40k")
"""No row has a copy here: the duplicate-safe split is the paper's, and so is its part."""
Load = Callable[[str, Path | None], RegressionTable]
OOKLA = tuple(f"{name}-{target}" for name in data_ookla.PREPARED for target in ookla_experiment.TARGETS)


class Own(NamedTuple):
    """The targets as they are, which are `std` times the scaled ones plus a mean."""

    train: Floats
    validation: Floats
    test: Floats
    std: float


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to train on, to stop early and select by, and to be scored on; and the seeds that models run with here.

    A fold equals itself alone: what was trained on it can be kept by it.
    """

    index: int
    train: Side
    validation: Side
    test: Side
    seeds: tuple[int, ...]
    digest: str
    """Of the numbers of the rows on each side: scores are compared only between parts that agree on it."""
    own: Own | None = None
    """For models that want to know whether a target is a count or a rating, where it may be one."""

    @property
    def columns(self) -> int:
        return self.train.x.shape[1]


class Task(NamedTuple):
    split: str
    dataset: str

    @property
    def recorded(self) -> Task:
        """The task whose parts this one is read from."""
        return self._replace(split=PAPER) if self.split == SAFE and self.dataset in COPY_FREE else self


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    tasks: tuple[Task, ...]
    seeds: int = 5
    """On UCI: seeds on the paper's one split, or random duplicate-safe splits with one seed each."""
    ookla_seeds: int = 3
    cv_folds: int = 5
    cv_repeats: int = 2
    table_splits: int = 10
    """Of a table of fewer than `long_rows`; with one seed each."""
    long_splits: int = 3
    """Of a longer one."""
    long_rows: int = 5_000
    uci_rows: int | None = None
    """At most so many, the first; none is all."""
    small_rows: int = 1_000
    """At most so many."""

    def of_seeds(self, seeds: int) -> Size:
        """With no more seeds or splits than these, but for cross-validation."""
        kinds = ("ookla_seeds", "table_splits", "long_splits")
        return replace(self, seeds=seeds, **{kind: min(seeds, getattr(self, kind)) for kind in kinds})

    def fits(self, task: Task) -> int:
        """Of each model."""
        if task.split == CV:
            return self.cv_folds * self.cv_repeats
        if task.split == TABLE:
            return self.long_splits if TABLES[task.dataset] >= self.long_rows else self.table_splits
        return self.ookla_seeds if task.dataset in OOKLA else self.seeds

    def describe(self, split: str) -> dict[str, object]:
        """What makes a part of this size another than that of the same name. Fewer seeds do not: see `Fold.seeds`."""
        if split == CV:
            return {"cv": [self.cv_folds, self.cv_repeats], "rows": self.small_rows}
        return {"rows": self.uci_rows}


def folds(task: Task, size: Size, data_dir: Path | None = None, load: Load = data_uci.load) -> Iterator[Fold]:
    if task.split == CV:
        yield from cross_validation(SMALL[task.dataset](size.small_rows), size)
    elif task.split == TABLE:
        X, y = (array[: size.uci_rows] for array in load_table(task.dataset, data_dir))
        for k in fold_numbers(task, size):
            split = splits.duplicate_safe(splits.random_split(len(y), k), X)
            yield table_fold(X, y, split, k)
    elif task.dataset in OOKLA:
        name, _, target = task.dataset.rpartition("-")
        tiles = ookla_experiment.load(name, ookla_experiment.FULL, data_dir)
        yield _fold(0, tiles.scaled(target), tiles.split, range(size.ookla_seeds))
    else:
        X, y = (array[: size.uci_rows] for array in load(task.dataset, data_dir))
        if task.split == PAPER:
            split = splits.random_split(len(y))
            yield _fold(0, data_uci.paper_scaling(RegressionTable(X, y), split), split, range(size.seeds))
        else:  # test sets without their copies are small and heavy-tailed: splits differ more than seeds
            for k in fold_numbers(task, size):
                split = splits.duplicate_safe(splits.random_split(len(y), k), X)
                yield _fold(k, data_uci.paper_scaling(RegressionTable(X, y), split), split, (k,))


def fold_numbers(task: Task, size: Size) -> range:
    """Known without reading the data. Tables have no split 0: early versions of the default were read on it."""
    if task.split == PAPER:
        return range(1)
    first = 1 if task.split == TABLE else 0
    return range(first, first + size.fits(task))


def table_fold(X: Floats, y: Floats, split: Split, k: int) -> Fold:
    scaled = data_uci.safe_scaling(RegressionTable(X, y), split)
    own = Own(*(y[rows] for rows in split), scaled.target_std)
    return replace(_fold(k, scaled, split, (k,)), own=own)


def _fold(index: int, scaled: Scaled, split: Split, seeds: Sequence[int]) -> Fold:
    digest = hashlib.sha256()
    for rows in split:
        digest.update(len(rows).to_bytes(8, "little") + rows.astype("<i8").tobytes())
    return Fold(index, scaled.train, scaled.validation, scaled.test, tuple(seeds), digest.hexdigest()[:16])


def cross_validation(table: RegressionTable, size: Size) -> Iterator[Fold]:
    """Repeated K-fold; a tenth of each training fold validates. Everything is scaled on what is left to train on."""
    from sklearn.model_selection import RepeatedKFold, train_test_split

    cut = RepeatedKFold(n_splits=size.cv_folds, n_repeats=size.cv_repeats, random_state=0)
    for k, (rest, test) in enumerate(cut.split(table.X)):
        train, validation = train_test_split(rest, test_size=0.1, random_state=k)
        split = Split(train, validation, test)
        yield _fold(k, data_uci.safe_scaling(table, split), split, (k,))


# ---- small sets ----------------------------------------------------------------------------------------------------


def _diabetes(rows: int) -> RegressionTable:
    """442 rows."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return _first(X, y, rows)


def _friedman(number: int, noise: float) -> Callable[[int], RegressionTable]:
    def make(rows: int) -> RegressionTable:
        from sklearn import datasets

        generate = getattr(datasets, f"make_friedman{number}")
        return _first(*generate(n_samples=rows, noise=noise, random_state=0), rows)

    return make


def _linear(rows: int) -> RegressionTable:
    """Twenty inputs, ten of which count, and noise of a third of the signal's spread."""
    from sklearn.datasets import make_regression

    X, y = make_regression(n_samples=rows, n_features=20, n_informative=10, noise=70.0, random_state=0)
    return _first(X, y, rows)


def _hetero1d(rows: int) -> RegressionTable:
    """y = sin(2 pi x) + (0.05 + 0.45 x^2) e for x in [-1, 1]: hardly any noise in the middle, much at the ends."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.0, 1.0, rows)
    y = np.sin(2.0 * np.pi * x) + (0.05 + 0.45 * x**2) * generator.standard_normal(rows)
    return RegressionTable(x[:, None], y)


def _step1d(rows: int) -> RegressionTable:
    x, y = data_step1d.draw(rows, generator=torch.Generator().manual_seed(0), amplitude=data_step1d.AMPLITUDE)
    return RegressionTable(x.double().numpy(), y.double().numpy())


def _first(X: Floats, y: Floats, rows: int) -> RegressionTable:
    return RegressionTable(np.asarray(X[:rows], dtype=np.float64), np.asarray(y[:rows], dtype=np.float64))


SMALL: Mapping[str, Callable[[int], RegressionTable]] = MappingProxyType(
    {
        "diabetes": _diabetes,
        # The noise of Friedman (1991): a third of the signal's spread in the last two, a fifth in the first.
        "friedman1": _friedman(1, 1.0),
        "friedman2": _friedman(2, 125.0),
        "friedman3": _friedman(3, 0.1),
        "linear": _linear,
        "hetero1d": _hetero1d,
        "step1d": _step1d,
    }
)

FULL = Size(
    tasks=(
        *(Task(PAPER, name) for name in (*UCI, *OOKLA)),
        *(Task(SAFE, name) for name in UCI),
        *(Task(CV, name) for name in SMALL),
        *(Task(TABLE, name) for name in TABLES),
    )
)
QUICK = replace(
    FULL,
    tasks=(Task(PAPER, "pol"), Task(SAFE, "keggdirected"), Task(CV, "diabetes"), Task(CV, "hetero1d")),
    seeds=1,
    cv_folds=2,
    cv_repeats=1,
    uci_rows=600,
    small_rows=200,
)
