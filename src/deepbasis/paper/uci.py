"""The UCI experiments (Sec. 4.2): Table 1 on two splits, the sensitivity to alpha and beta, splits in pairs, readings.

Each part is one training run: all seeds and all weights of a method on a data set, stacked. What a part records is
every member's validation score and test scores; the tables choose (alpha, beta) from these by validation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.paper import data_uci, splits, uci_report
from deepbasis.paper.parts import Content, Folder, Part
from deepbasis.paper.protocol import FAST_LOG, READINGS, Reading, grid
from deepbasis.paper.runs import fit
from deepbasis.paper.table1 import METHODS

PAPER, SAFE = "paper", "duplicate-safe"

_COMPILE_MEMBER_STEPS = 200_000  # from here on compiling pays for itself on a GPU


@dataclass(frozen=True)
class UciSize:
    """How much of everything."""

    datasets: tuple[str, ...]
    seeds: int = 5
    sensitivity_seeds: int = 10
    epochs: int = 400
    rank: int = 128
    width: int = 64
    rows: int | None = None
    """At most this many, the first ones; None is all."""
    paired: tuple[str, ...] = ("pol", "elevators")
    paired_splits: int = 10
    readings: tuple[str, ...] = tuple(READINGS)


FULL = UciSize(datasets=("pol", "elevators", "kin40k", "protein", "keggdirected", "keggundirected"))
QUICK = UciSize(
    datasets=("pol", "keggdirected"),
    seeds=2,
    sensitivity_seeds=2,
    epochs=2,
    rank=8,
    width=8,
    rows=600,
    paired=("pol",),
    paired_splits=2,
    readings=("log, fast", "clamped"),
)


@dataclass(frozen=True)
class SplitData:
    """A data set, split and scaled as the paper does it."""

    name: str
    split: str
    train: Rows
    validation: Rows
    test: Rows
    leak: float
    """The share of test rows that stand among the training rows."""


Read = Callable[[str], data_uci.RegressionTable]
"""A data set by its name."""


def run(folder: Folder, size: UciSize, read: Read) -> None:
    """Compute what is missing, then write every table and figure that the parts allow."""
    readings = {name: list(_reading_parts(folder, name, size, read)) for name in size.readings}
    tables = {split: list(_table_parts(folder, split, size, read)) for split in (PAPER, SAFE)}
    pairs = list(_paired_parts(folder, size, read))
    uci_report.write(folder, size.seeds, len(size.datasets), tables, pairs, readings)


def load(name: str, split: str, size: UciSize, read: Read, *, seed: int = 0) -> SplitData:
    table = read(name)
    X, y = table.X[: size.rows], table.y[: size.rows]
    drawn = splits.random_split(len(y), seed)
    if split == SAFE:
        drawn = splits.duplicate_safe(drawn, X)
    scaled = data_uci.paper_scaling(data_uci.RegressionTable(X, y), drawn)
    parts = (Rows(*scaled.train), Rows(*scaled.validation), Rows(*scaled.test))
    return SplitData(name, split, *parts, leak=splits.leak(drawn, X, y))


def has_copies(name: str, size: UciSize, read: Read) -> bool:
    """Whether the duplicate-safe split differs from the paper's."""
    X = read(name).X[: size.rows]
    drawn = splits.random_split(len(X))
    return any(not np.array_equal(a, b) for a, b in zip(drawn, splits.duplicate_safe(drawn, X), strict=True))


def _table_parts(folder: Folder, split: str, size: UciSize, read: Read) -> Iterator[Part]:
    for name in size.datasets:
        # Where no row has a copy the two splits are one, and so are their parts.
        own = split == PAPER or has_copies(name, size, read)
        for method in METHODS:
            more = (
                size.sensitivity_seeds
                if (name, method) in [(s, "dbk-silu") for s in uci_report.SENSITIVE]
                else size.seeds
            )
            members = grid(method, range(more if split == PAPER else size.seeds))
            part = _part(
                folder,
                f"{split if own else PAPER}-{name}-{method}",
                _UciJob(name, split if own else PAPER, method, FAST_LOG, members, size),
                read,
            )
            if part is not None:
                yield part


def _reading_parts(folder: Folder, reading: str, size: UciSize, read: Read) -> Iterator[Part]:
    """DBK-SiLU under one reading of what the paper leaves open, with and without trace regularisation."""
    members = [Member(seed=seed, alpha=alpha, beta=0.01) for alpha in (0.0, 1.0) for seed in range(size.seeds)]
    for name in size.datasets:
        label = reading.replace(",", "").replace(" = ", "").replace(" ", "-")
        job = _UciJob(name, PAPER, "dbk-silu", READINGS[reading], members, size)
        part = _part(folder, f"reading-{label}-{name}", job, read)
        if part is not None:
            yield part


def _paired_parts(folder: Folder, size: UciSize, read: Read) -> Iterator[Part]:
    """One seed on each of several random splits: five seeds on one split do not say which method is better."""
    for name in size.paired:
        for k in range(1, 1 + size.paired_splits):
            for method in ("pp-dkl", "dbk-silu", "dbk-rbf"):
                job = _UciJob(name, PAPER, method, FAST_LOG, grid(method, [k]), size, split_seed=k)
                part = _part(folder, f"pair-{name}-{method}-{k}", job, read)
                if part is not None:
                    yield part


@dataclass(frozen=True)
class _UciJob:
    dataset: str
    split: str
    method: str
    reading: Reading
    members: Sequence[Member]
    size: UciSize
    split_seed: int = 0

    def describe(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("dataset", "split", "method", "split_seed")},
            "reading": asdict(self.reading),
            "members": [{k: v for k, v in asdict(member).items() if k != "slope"} for member in self.members],
            **{name: getattr(self.size, name) for name in ("epochs", "rank", "width", "rows")},
        }


def _part(folder: Folder, name: str, job: _UciJob, read: Read) -> Part | None:
    def compute() -> Content:
        data = load(job.dataset, job.split, job.size, read, seed=job.split_seed)
        on_gpu = folder.device.type == "cuda"
        # NOTE[DIFF]: the paper's V100 has no tf32. Where that would cost digits, as in a kernel's whitening, products
        # stay in float32 here too (`gp.precision`).
        settings = job.reading.settings(job.method, epochs=job.size.epochs, precision="tf32" if on_gpu else "float32")
        member_steps = len(job.members) * job.size.epochs * -(-len(data.train) // settings.batch_size)
        settings = replace(settings, compile=on_gpu and member_steps >= _COMPILE_MEMBER_STEPS)
        done = fit(
            job.reading.build(job.method, data.train.x.shape[1], rank=job.size.rank, width=job.size.width),
            job.members,
            data.train,
            data.validation,
            settings,
            device=folder.device,
            progress=folder.progress,
            checkpoint=folder.checkpoint(name),
        )
        values = {
            "dataset": job.dataset,
            "method": job.method,
            "split_seed": job.split_seed,
            "rows": len(data.train),
            "columns": data.train.x.shape[1],
            "leak": data.leak,
            "training_seconds": done.seconds,
            "members": done.records(data.test, folder.device),
        }
        return values, {}

    return folder.part(name, job.describe(), compute)
