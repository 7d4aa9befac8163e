"""What a run must remember to continue as if it had never stopped, and the outcome of each member."""

import glob
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepbasis import storage
from deepbasis.engine.members import Build, Member
from deepbasis.engine.settings import Settings
from deepbasis.errors import CheckpointMismatchError, FileFormatError, NumericalError
from deepbasis.gp.model import DeepBasisGP

KIND = "checkpoint"

ACTIVE, FINISHED, STOPPED, FAILED, INTERRUPTED = "active", "finished", "stopped", "failed", "interrupted"
"""The possible states of a member."""

Check = Callable[["WaveState", bool], None]
"""Raises a ValueError for a state that the run cannot have written; with True for members that have ended."""

HISTORY = ("train_loss", "validation", "noise")
"""The columns of a history, one row per epoch."""
VALIDATION = HISTORY.index("validation")


@dataclass
class WaveState:
    """Members in the middle of their training, at the end of an epoch. Every tensor has the member axis in front."""

    indices: list[int]
    """Their places in the run's list of members."""
    epoch: int
    step: int
    status: list[str]
    reason: list[str]
    tensors: dict[str, Tensor]
    """"best_score", "best_epoch", "last_epoch" and "history"; after the first epoch also "parameters/…", "first/…" and
    "second/…" (Adam's moments), "average/…", "best/…"."""

    @classmethod
    def fresh(cls, indices: list[int]) -> "WaveState":
        members = len(indices)
        tensors = {
            "best_score": torch.full((members,), math.inf, dtype=torch.float64),
            "best_epoch": torch.zeros(members, dtype=torch.int64),
            "last_epoch": torch.zeros(members, dtype=torch.int64),
            "history": torch.zeros(members, 0, len(HISTORY), dtype=torch.float64),
        }
        return cls(indices, 0, 0, [ACTIVE] * members, [""] * members, tensors)

    def with_tensors(self, tensors: dict[str, Tensor]) -> "WaveState":
        """A copy with others in their place."""
        return WaveState(list(self.indices), self.epoch, self.step, list(self.status), list(self.reason), tensors)

    def select(self, places: list[int]) -> "WaveState":
        """Only some of the members."""
        pick: list[Any] = [[values[k] for k in places] for values in (self.indices, self.status, self.reason)]
        tensors = {name: tensor[places] for name, tensor in self.tensors.items()}
        return WaveState(pick[0], self.epoch, self.step, pick[1], pick[2], tensors)

    def group(self, prefix: str) -> dict[str, Tensor]:
        under = f"{prefix}/"
        return {name.removeprefix(under): value for name, value in self.tensors.items() if name.startswith(under)}


@dataclass
class RunState:
    """The whole state of a run: its identity, the waves of unfinished members, and the finished members."""

    identity: dict[str, Any]
    """What must be the same in the file and in the run that resumes it."""
    pending: list[WaveState]
    """The first of them is being trained."""
    ended: list[WaveState] = field(default_factory=list)
    """Members that have ended, one in each, without their moments."""

    def save(self, path: str | os.PathLike[str]) -> None:
        tensors: dict[str, Tensor] = {}
        metadata: dict[str, Any] = {"identity": self.identity, "pending": [], "ended": []}
        for part in ("pending", "ended"):
            for k, state in enumerate(getattr(self, part)):
                metadata[part].append({name: value for name, value in vars(state).items() if name != "tensors"})
                tensors |= {f"{part}/{k}/{name}": tensor for name, tensor in state.tensors.items()}
        storage.save(path, KIND, tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], identity: Mapping[str, Any], check: Check) -> "RunState | None":
        """The run saved at `path`, or None if there is no file. A file of another run is refused, never overwritten.

        What workers wrote beside it, each for its own members, is merged into it. The members of a worker that had not
        written anything yet are at their start.
        """
        parts = _worker_files(path)
        states = [cls._read(file, identity, check) for file in [path, *parts] if Path(file).exists()]
        if not states:
            return None
        state = cls.joined(states)
        missing = set(range(len(identity["members"]))) - {
            k for wave in state.pending + state.ended for k in wave.indices
        }
        if missing and not parts:
            raise _impossible(path, f"no members {sorted(missing)}")
        if missing:
            state.pending.append(WaveState.fresh(sorted(missing)))
        if parts:
            state.save_joined(path)
        return state

    def save_joined(self, path: str | os.PathLike[str]) -> None:
        """Save the merged state of all workers, and remove what each has written."""
        self.save(path)
        for part in _worker_files(path):
            os.unlink(part)

    @classmethod
    def joined(cls, states: Sequence["RunState"]) -> "RunState":
        """Merge several states of one run; if a member is in more than one, keep its furthest state."""
        furthest: dict[int, float] = {}
        for state in states:
            for wave in state.pending:
                furthest |= {index: max(wave.epoch, furthest.get(index, 0)) for index in wave.indices}
            furthest |= {wave.indices[0]: math.inf for wave in state.ended}
        whole = cls(states[0].identity, [], [])
        for state in states:
            for wave in state.ended:
                if furthest.pop(wave.indices[0], None) is not None:
                    whole.ended.append(wave)
            for wave in state.pending:
                places = [k for k, index in enumerate(wave.indices) if furthest.get(index) == wave.epoch]
                if places:
                    whole.pending.append(wave.select(places))
                    for k in places:
                        del furthest[wave.indices[k]]
        return whole

    def share(self, rank: int, size: int) -> "RunState":
        """One worker's part of the members; those that have ended are the first worker's."""
        mine = set([index for wave in self.pending for index in wave.indices][rank::size])
        pending = [wave.select([k for k, index in enumerate(wave.indices) if index in mine]) for wave in self.pending]
        return RunState(self.identity, [wave for wave in pending if wave.indices], self.ended if rank == 0 else [])

    @classmethod
    def _read(cls, path: str | os.PathLike[str], identity: Mapping[str, Any], check: Check) -> "RunState":
        tensors, metadata = storage.load(path, KIND)
        parts: dict[str, list[WaveState]] = {"pending": [], "ended": []}
        try:
            _check_identity(path, dict(metadata["identity"]), identity)
            grouped = storage.grouped(tensors)
            for part, states in parts.items():
                for k, fields in enumerate(metadata[part]):
                    states.append(WaveState(**fields, tensors=grouped.pop(f"{part}/{k}", {})))
                    check(states[-1], part == "ended")
            indices = [index for states in parts.values() for state in states for index in state.indices]
            if len(set(indices)) != len(indices) or grouped:
                raise ValueError("a member twice, or tensors of no member")
        except CheckpointMismatchError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise _impossible(path, error) from error
        return cls(dict(identity), **parts)


def _impossible(path: str | os.PathLike[str], why: object) -> FileFormatError:
    return FileFormatError(f"{path} is no checkpoint that this run can have written ({why}): delete it to start again")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a member's training."""

    member: Member
    status: str
    """"finished" (all epochs), "stopped" (patience), "failed" or "interrupted"."""
    reason: str
    best_epoch: int
    """From 1; 0 if no epoch had a finite score."""
    best_score: float
    history: dict[str, Tensor]
    """"train_loss", "validation" and "noise", one number per epoch."""
    parameters: dict[str, Tensor]
    """Of the best epoch, on the CPU."""

    def model(self, build: Build) -> DeepBasisGP:
        """The trained model, in the precision it was trained in."""
        if self.best_epoch == 0:
            raise NumericalError(f"member {self.member} has no usable parameters: {self.reason or self.status}")
        model = build(self.member).to(next(iter(self.parameters.values())).dtype)
        model.load_state_dict(self.parameters, strict=False)
        return model


def outcome_of(member: Member, state: WaveState) -> Outcome:
    """From the state of one member; `active` here means that the run ended before the member did."""
    status, reason = state.status[0], state.reason[0]
    if status == ACTIVE:
        status, reason = INTERRUPTED, f"after epoch {state.epoch}"
    tensors = state.tensors
    return Outcome(
        member=member,
        status=status,
        reason=reason,
        best_epoch=int(tensors["best_epoch"][0]),
        best_score=float(tensors["best_score"][0]),
        history={name: tensors["history"][0, : int(tensors["last_epoch"][0]), j] for j, name in enumerate(HISTORY)},
        parameters={name: value[0] for name, value in state.group("best").items()},
    )


def status_after(
    settings: Settings, epoch: int, best_epoch: int, best_score: float, loss: float, recent: Sequence[float]
) -> str:
    """The state of a member that was active until then; `recent` are its last validation scores, `settings.patience`
    of them or fewer."""
    if best_epoch == epoch:
        return ACTIVE
    if not (math.isfinite(loss) and math.isfinite(recent[-1])):
        return FAILED
    waits = settings.patience is None or epoch - best_epoch < settings.patience
    return ACTIVE if waits or min(recent) < best_score + settings.margin else STOPPED


def _worker_files(path: str | os.PathLike[str]) -> list[str]:
    """What workers have written beside a checkpoint: FILE.worker0, FILE.worker1, ..., and no file of another name."""
    name = os.fspath(path)
    found = glob.glob(f"{glob.escape(name)}.worker[0-9]*")
    return sorted(file for file in found if file.removeprefix(f"{name}.worker").isdecimal())


def _check_identity(path: str | os.PathLike[str], theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for what, mine in ours.items():
        if theirs.get(what) != mine:
            verb = "are" if what.endswith("s") else "is"
            both = _differing(theirs.get(what), mine, verb)
            raise CheckpointMismatchError(
                f"{path} is the checkpoint of another run: its {what} {verb} {both}; give this run another checkpoint "
                "file, or delete that one"
            )


def _differing(theirs: Any, ours: Any, verb: str = "is") -> str:
    """Only the part that differs, to keep the message readable."""
    if isinstance(theirs, list) and isinstance(ours, list):
        theirs, ours = dict(enumerate(theirs)), dict(enumerate(ours))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
        theirs, ours = ({k: one.get(k) for k in keys} for one in (theirs, ours))
        theirs, ours = (", ".join(f"{k}: {value}" for k, value in one.items()) for one in (theirs, ours))
    return f"{_cut(theirs)}, this run's {verb} {_cut(ours)}"


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that later training leaves unchanged."""
    return {k: v.detach().to("cpu", copy=True) for k, v in tensors.items()}
