"""`Plan`: what every "auto" is resolved to for a table, once (`decide.py`), before anything is trained.

A plan is frozen and can be printed (`deepbasis fit --explain-plan`, `model.plan_`). `Fitted` records which of its
candidates won.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.gp.build import build
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import DeepBasisGP


@dataclass(frozen=True)
class HoldOut:
    """Which rows members do not train on. With several `parts` each member holds out one of them, in turn."""

    parts: int
    fraction: float
    """Share of the rows, if all members hold out the same."""


@dataclass(frozen=True)
class Facts:
    """What is known about a table before anything is trained: everything that a plan depends on."""

    table_rows: int
    rows: int
    """Rows that a member is fitted to, in the largest fold."""
    columns: int
    """As encoded."""
    number_columns: int = 0
    """Number columns, if all columns that vary are numbers without gaps; otherwise 0."""
    grouped: bool = False
    streamed: bool = False
    line_leaves: float | None = None
    """The share of the target's variance that a straight line leaves; None if not needed."""


@dataclass(frozen=True)
class Architecture:
    """What a member is made of: everything needed to build one, except its own seed and starting values."""

    method: str
    likelihood: str
    rank: int
    width: int
    blocks: int
    inner: int
    embedding: str
    trend: str
    jitter: float

    def build(self, columns: int, member: Member) -> DeepBasisGP:
        return build(
            self.method,
            columns,
            rank=self.rank,
            width=self.width,
            blocks=self.blocks,
            inner=self.inner,
            embedding=self.embedding,
            likelihood=self.likelihood,
            noise=member.noise,
            slope=member.slope,
            jitter=self.jitter,
            seed=member.seed,
        )

    @property
    def is_shallow(self) -> bool:
        """Whether it is a kernel of the inputs themselves."""
        return METHODS[self.method].backbone == "identity"


@dataclass(frozen=True)
class Candidate:
    """One way to fit the table."""

    architecture: Architecture
    settings: Settings
    members: int
    weights: tuple[tuple[float, float], ...]
    """(alpha, beta) to try: all are trained together, and the validation score chooses."""
    calibrate: bool
    on_all_rows: bool = False
    """Trained exactly on every row, and scored on held-out rows by its posterior given the others."""
    noise_rate_again: float | None = None
    """The learning rate of the noise in a second training, if the noise still falls at the end of the first."""

    @property
    def far_fall(self) -> float:
        """How far the log of the noise must have fallen for a second training.

        With a rate c and N steps along a cosine Adam goes c N / 2 at most: half of that is a long way.
        """
        return 0.25 * (self.settings.noise_learning_rate or 0.0) * self.settings.epochs


@dataclass(frozen=True)
class Plan:
    recipe: str
    hold_out: HoldOut
    scaling: str
    """Of number columns."""
    copies_limit: float | None
    """Copies of an input among the validation rows count as at most this many average inputs."""
    start_from_data: bool
    """Whether the noise, and the inducing points of a shallow kernel, start from the rows."""
    candidates: tuple[Candidate, ...]
    """Networks first. On a small table kernels may follow, which are tried in order."""
    device: str
    one_thread: bool
    epoch_rows: int
    """Rows of an epoch: all of them, or some if the table is streamed."""
    warnings: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people: what is held out, then each candidate."""
        parts, fraction = self.hold_out.parts, self.hold_out.fraction
        held = f"1/{parts} of the rows, another part for each member" if parts > 1 else f"{fraction:g} of the rows"
        where = f"{self.device}{' (one thread)' * self.one_thread}"
        yield f"recipe {self.recipe}, on {where}; {self.scaling} inputs; held out: {held}"
        for number, one in enumerate(self.candidates, 1):
            a, s = one.architecture, one.settings
            weights = ", ".join(f"({alpha:g}, {beta:g})" for alpha, beta in one.weights)
            network = f", width {a.width}, {a.blocks} blocks of {a.inner}, embedding {a.embedding}, trend {a.trend}"
            yield f"candidate {number}: {a.method} ({a.likelihood}), {_count(one.members, 'member')}, rank {a.rank}" + (
                "" if a.is_shallow else network
            )
            passes = f" of {s.passes} passes" * (s.passes > 1)
            steps = "exact steps" if s.exact else f"epochs{passes}, batches of {s.batch_size}"
            yield (
                f"  {s.objective}: {s.epochs} {steps}, rate {s.learning_rate:g}, {s.precision}"
                f"{', compiled' * s.compile}{'' if s.exact else f'; (alpha, beta): {weights}'}"
                f"; {'calibrated' if one.calibrate else 'not calibrated'}"
            )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Plan:
        candidates = [
            Candidate(
                **{
                    **one,
                    "architecture": Architecture(**one["architecture"]),
                    "settings": Settings(**one["settings"]),
                    "weights": tuple((float(alpha), float(beta)) for alpha, beta in one["weights"]),
                }
            )
            for one in record["candidates"]
        ]
        return cls(
            **{
                **record,
                "hold_out": HoldOut(**record["hold_out"]),
                "candidates": tuple(candidates),
                "warnings": tuple(record["warnings"]),
            }
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
