"""What the tables and figures of the 1-D example are made of: the parts that are there, by method, n and rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepbasis.paper.data_step1d import Draw
from deepbasis.paper.parts import Part, summary

GRID = torch.linspace(-1.0, 1.0, 401)
"""Where kernels, bases and predictions are recorded."""

DPPGP, EXACT_DBK, EXACT_RBF, EXACT_DKL = "dbk-silu", "dbk-silu-exact", "rbf-exact", "dkl-exact"
METHODS: Mapping[str, str] = {
    EXACT_RBF: "RBF (exact)",
    EXACT_DKL: "DKL (exact)",
    EXACT_DBK: "DBK (exact)",
    DPPGP: "DBK (dPPGP)",
}
"""In the order of Fig. 1."""

SCORES = ("mae", "nll", "crps", "effective_rank")
"""One for every seed."""
TIMES = ("step_ms", "eval_ms")
"""One for all seeds."""

SHOWN_RANKS = (1, 2, 8, 64)
"""Of the kernels, bases and predictions in Fig. 5 and its appendix."""

PAPER_NLL: Mapping[int, float] = {1: 0.126, 2: -0.192, 8: -0.215, 64: -0.225}
"""By rank, from the captions of the appendix: the best of 10 runs on the test rows. All other values are only drawn."""


@dataclass(frozen=True)
class PartFit:
    """A part, read."""

    part: Part
    times: Part | None = None
    """Of a step and of an evaluation."""

    @property
    def values(self) -> dict[str, Any]:
        return self.part.values

    @property
    def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self.values["records"]
        return records

    def over_seeds(self, score: str) -> list[float]:
        """Of the seeds that gave a result."""
        return [record[score] for record in self.records if record.get(score) is not None]

    def statistic(self, metric: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation over seeds; a time has no deviation. None if there is nothing."""
        if metric in TIMES:
            time = self.time(metric)
            return None if time is None else (time, None)
        values = self.over_seeds(metric)
        return summary(values) if values else None

    def time(self, name: str) -> float | None:
        return None if self.times is None else float(self.times.values[name])

    @property
    def best(self) -> dict[str, Any] | None:
        """The record of the run with the best validation NLL."""
        k = self.values["best"]
        return None if k is None else self.records[k]

    @property
    def mean(self) -> Tensor:
        """On the grid, of the best run; as are the following. Only parts that a figure shows have them."""
        return self.part.arrays["mean"]

    @property
    def std(self) -> Tensor:
        return self.part.arrays["std"]

    @property
    def kernel(self) -> Tensor:
        arrays = self.part.arrays
        return arrays["K"] if "K" in arrays else arrays["phi"] @ arrays["phi"].mT

    @property
    def basis(self) -> Tensor:
        return self.part.arrays["phi"]


@dataclass(frozen=True)
class Collapse:
    """The kernel's spectrum through exact training."""

    part: Part

    @property
    def steps(self) -> list[int]:
        """The moments at which it was looked at."""
        moments: list[int] = self.part.values["moments"]
        return moments

    @property
    def effective_ranks(self) -> Tensor:
        """[seeds, steps]."""
        return torch.tensor(self.part.values["effective_ranks"], dtype=torch.float64)

    @property
    def first_shares(self) -> Tensor:
        """[seeds, steps]: the largest eigenvalue's share of them all."""
        return torch.tensor(self.part.values["first_shares"], dtype=torch.float64)


@dataclass
class StudyResults:
    """At one amplitude."""

    amplitude: float
    oracle: dict[str, float]
    """Its scores on the test rows."""
    shown: Draw
    """The training rows that the figures show."""
    sizes: dict[str, dict[int, PartFit]] = field(default_factory=lambda: {method: {} for method in METHODS})
    """By method and n."""
    by_rank: dict[int, PartFit] = field(default_factory=dict)
    at_a_constant_rate: dict[int, PartFit] = field(default_factory=dict)
    """By rank."""
    by_expansion: dict[str, PartFit] = field(default_factory=dict)
    """By the name of the method."""
    collapse: Collapse | None = None
    missing: int = 0
    """Parts that were left out."""

    def add_size(self, method: str, n: int, part: Part | None, times: Part | None) -> None:
        self._add(self.sizes[method], n, part, times)
        self.missing += times is None

    def add_rank(self, rank: int, part: Part | None) -> None:
        self._add(self.by_rank, rank, part)

    def add_constant_rank(self, rank: int, part: Part | None) -> None:
        self._add(self.at_a_constant_rate, rank, part)

    def add_expansion(self, method: str, part: Part | None) -> None:
        self._add(self.by_expansion, method, part)

    def add_collapse(self, part: Part | None) -> None:
        self.missing += part is None
        self.collapse = None if part is None else Collapse(part)

    def at(self, n: int) -> dict[str, PartFit]:
        """The methods that there are at this n, in the order of Fig. 1."""
        return {method: fits[n] for method, fits in self.sizes.items() if n in fits}

    def every_n(self) -> list[int]:
        return sorted({n for fits in self.sizes.values() for n in fits})

    def parts(self) -> Iterator[Part]:
        every: list[dict[Any, PartFit]] = [*self.sizes.values(), self.by_rank, self.at_a_constant_rate]
        for fits in (*every, self.by_expansion):
            yield from (fit.part for fit in fits.values())
            yield from (fit.times for fit in fits.values() if fit.times is not None)
        if self.collapse is not None:
            yield self.collapse.part

    def _add(self, place: dict[Any, PartFit], key: Any, part: Part | None, times: Part | None = None) -> None:
        if part is None:
            self.missing += 1
        else:
            place[key] = PartFit(part, times)


@dataclass
class Results:
    focus: int
    """n of Fig. 1 and Fig. 5."""
    quick: bool
    studies: list[StudyResults]
    expansion_rows: int = 0
    """n of the other expansions."""

    def parts(self) -> list[Part]:
        """Each once: times do not depend on the noise, and the studies share them."""
        return list({part.name: part for study in self.studies for part in study.parts()}.values())
