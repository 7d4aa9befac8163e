"""`Plan`: what every "auto" is resolved to for a table, once (`decide.py`), before anything is trained.

A plan is frozen and can be printed (`deepbasis fit --explain-plan`, `model.plan_`). `Fitted` records which of its
candidates won.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from html import escape
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.errors import check_number, counted
from deepbasis.gp.build import build
from deepbasis.gp.embedding import PeriodicLinear
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import DeepBasisGP
from deepbasis.registry import LIKELIHOODS

T = TypeVar("T")


WAVES = "periodic-linear"
"""The embedding that knows columns of 0 and 1."""


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
    flags: tuple[int, ...] = ()
    """Encoded columns that hold 0 and 1."""
    grouped: bool = False
    streamed: bool = False
    target: str = "identity"
    target_because: str = ""
    classes: int = 0
    """How many, if the target is one."""
    edges: tuple[float, ...] = ()
    """Between the values of a discrete target, in the units that it is trained in."""
    outputs: int = 0
    """How many, if there are several."""
    censored: bool = False
    """Whether some targets are only known to lie between bounds."""
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
    edges: Sequence[float] = ()
    """Of an interval likelihood."""
    classes: int = 0
    outputs: int = 0
    flags: Sequence[int] = ()
    """Columns that the embedding takes for 0 and 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(self.edges))
        object.__setattr__(self, "flags", tuple(self.flags))
        if self.flags and self.embedding != WAVES:
            raise ValueError(f"the embedding {self.embedding!r} knows no columns of 0 and 1")

    def build(self, columns: int, member: Member) -> DeepBasisGP:
        all_needs = {"edges": self.edges, "classes": self.classes, "outputs": self.outputs}
        needs: dict[str, Any] = {name: value for name, value in all_needs.items() if value}
        return build(
            self.method,
            columns,
            rank=self.rank,
            width=self.width,
            blocks=self.blocks,
            inner=self.inner,
            embedding=partial(PeriodicLinear, columns, flags=self.flags) if self.flags else self.embedding,
            likelihood=partial(LIKELIHOODS[self.likelihood], **needs) if needs else self.likelihood,
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
    trained_apart: bool = False
    """Whether its parameters are those given the others too: they are trained again for each part held out."""
    one_by_one: bool = False
    """Whether each row is predicted given all others, and not given those of other parts. Its parameters are few."""
    learns_from: int | None = None
    """Rows that its parameters are learnt from, at most, of those that are not held out; its posterior is given all."""

    @property
    def of_any_length(self) -> Candidate:
        """What it has in common with the same candidate in a race or within a time limit."""
        return replace(
            self,
            members=1,
            settings=replace(self.settings, epochs=1, passes=1, patience=None, average=None),
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Candidate:
        weights = tuple((check_number("alpha", one), check_number("beta", other)) for one, other in record["weights"])
        architecture, settings = _read(Architecture, record["architecture"]), _read(Settings, record["settings"])
        METHODS.check("method", architecture.method)
        return _read(cls, {**record, "architecture": architecture, "settings": settings, "weights": weights})


@dataclass(frozen=True)
class Widening:
    """How predictions widen where there were no rows; unknown values are drawn from the known ones in any case."""

    kernel: Candidate | None
    """What may predict beside the networks."""


@dataclass(frozen=True)
class Plan:
    recipe: str
    hold_out: HoldOut
    scaling: str
    """Of number columns."""
    target: str
    """How the target is transformed: "identity", "log", "warp", "count", "ordinal", "classes" or "outputs"; a
    transformer is a warp."""
    target_because: str
    """Why "auto" has decided so."""
    copies_limit: float | None
    """Copies of an input among the validation rows count as at most this many average inputs."""
    start_from_data: bool
    """Whether the noise, and the inducing points of a shallow kernel, start from the rows."""
    candidates: tuple[Candidate, ...]
    """Networks first; of several, a short race chooses one. On a small table kernels may follow, tried in order; that
    of a censored one is trained as the networks are."""
    device: str
    threads: int | None
    """Of torch, on a CPU, at most; None is as many as it has."""
    member_threads: bool
    """Whether members are trained in threads of their own, each with one of torch's."""
    epoch_rows: int
    """Rows of an epoch: all of them, or some if the table is streamed."""
    jobs: int | None = None
    """Threads that the user has asked for."""
    race_steps: int = 0
    """Steps of the race between networks."""
    warnings: tuple[str, ...] = ()
    distance: Widening | None = None

    @property
    def networks(self) -> list[Candidate]:
        return [one for one in self.candidates if not one.on_all_rows]

    @property
    def racing(self) -> list[Candidate]:
        """Networks of which a short race chooses one to be trained."""
        return self.networks if self.race_steps else self.networks[:1]

    @property
    def alternatives(self) -> list[Candidate]:
        """What is trained in full beside the first, on the same rows: held-out rows choose."""
        return [] if self.race_steps else self.networks[1:]

    @property
    def kernels(self) -> list[Candidate]:
        return [one for one in self.candidates if one.on_all_rows]

    def place_of(self, candidate: Candidate) -> int | None:
        """Its place among the candidates, whatever the members and the length of its training; None if it is none."""
        places = [k for k, one in enumerate(self.candidates) if one.of_any_length == candidate.of_any_length]
        return places[0] if places else None

    def lines(self) -> Iterator[str]:
        """For people: what is held out, then each candidate."""
        parts, fraction = self.hold_out.parts, self.hold_out.fraction
        held = f"1/{parts} of the rows, another part for each member" if parts > 1 else f"{fraction:g} of the rows"
        threads = "" if self.threads is None else f" ({counted(self.threads, 'thread')})"
        where = f"{self.device}{' (members in threads)' if self.member_threads else threads}"
        yield f"recipe {self.recipe}, on {where}; {self.scaling} inputs; held out: {held}"
        yield f"target: {self.target}{f' ({self.target_because})' if self.target_because else ''}"
        if self.alternatives:
            yield "the candidates are trained on the same rows; the best on held-out rows is kept"
        if len(self.racing) > 1:
            yield f"the networks are tried for {self.race_steps} steps each; the best on held-out rows is trained"
        for number, one in enumerate(self.candidates, 1):
            a, s = one.architecture, one.settings
            weights = ", ".join(f"({alpha:g}, {beta:g})" for alpha, beta in one.weights)
            blocks = f"{counted(a.blocks, 'block')} of {a.inner}"
            network = f", width {a.width}, {blocks}, embedding {a.embedding}, trend {a.trend}"
            yield (
                f"candidate {number}: {a.method} ({a.likelihood}), {counted(one.members, 'member')}, rank {a.rank}"
                + ("" if a.is_shallow else network)
            )
            passes = f" of {s.passes} passes" * (s.passes > 1)
            steps = counted(s.epochs, "exact step" if s.exact else "epoch")
            steps += "" if s.exact else f"{passes}, batches of {s.batch_size}"
            how = f"{s.optimiser}, rate {s.learning_rate:g}, decay {s.weight_decay:g}"
            if s.optimiser == "lbfgs":
                steps, how = f"at most {steps}", s.optimiser
            if one.learns_from is not None:
                steps += f" on {one.learns_from:,} rows"
            yield (
                f"  {s.objective}: {steps}, {how}, {s.precision}"
                f"{', compiled' * s.compile}{'' if s.exact else f'; (alpha, beta): {weights}'}"
                f"; {'calibrated' if one.calibrate else 'not calibrated'}"
            )
        if self.distance is not None:
            kernel = self.distance.kernel
            beside = f"; {kernel.architecture.method} may predict far rows" if kernel is not None else ""
            far = "wider, by slopes and disagreement; unknown values are drawn from the known ones"
            yield f"where there were no rows: {far}{beside}"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        if self.distance is None:
            del found["distance"]
        return found

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Plan:
        candidates = [Candidate.from_json(one) for one in record["candidates"]]
        distance = None
        if record.get("distance") is not None:
            kernel = record["distance"]["kernel"]
            distance = Widening(None if kernel is None else Candidate.from_json(kernel))
        parts = {
            "hold_out": _read(HoldOut, record["hold_out"]),
            "candidates": tuple(candidates),
            "warnings": tuple(map(str, record["warnings"])),
            "distance": distance,
        }
        return _read(cls, {**record, **parts})


def _read(cls: Callable[..., T], record: Mapping[str, Any]) -> T:
    """An object from what a file says of it: numbers, flags and words must be what its fields are."""
    hints = get_type_hints(cls)
    for name, value in record.items():
        hint = hints.get(name)
        types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if all(one in _PLAIN for one in types) and not any(_PLAIN[one](value) for one in types):
            raise ValueError(f"its {name} is {value!r:.80}")
    return cls(**record)


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    int: lambda value: type(value) is int,
    float: lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max,
    bool: lambda value: type(value) is bool,
    str: lambda value: type(value) is str,
    type(None): lambda value: value is None,
}
