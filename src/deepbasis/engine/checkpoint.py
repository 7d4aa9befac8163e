"""What a run must remember to go on as if it had not been stopped."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepbasis import storage
from deepbasis.errors import CheckpointMismatchError

KIND = "checkpoint"

ACTIVE, FINISHED, STOPPED, FAILED, INTERRUPTED = "active", "finished", "stopped", "failed", "interrupted"
"""What may be said of a member."""

HISTORY = ("train_loss", "validation", "noise")
"""The columns of a history, one row an epoch."""


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
    """"parameters/…", "first/…", "second/…" (Adam's moments), "best/…", "best_score", "best_epoch", "last_epoch",
    "history"; none before the first epoch."""

    @classmethod
    def fresh(cls, indices: list[int]) -> "WaveState":
        return cls(indices, 0, 0, [ACTIVE] * len(indices), [""] * len(indices), {})

    def select(self, places: list[int]) -> "WaveState":
        """Some of the members alone."""
        pick: list[Any] = [[values[k] for k in places] for values in (self.indices, self.status, self.reason)]
        tensors = {name: tensor[places] for name, tensor in self.tensors.items()}
        return WaveState(pick[0], self.epoch, self.step, pick[1], pick[2], tensors)

    def group(self, prefix: str) -> dict[str, Tensor]:
        return _under(prefix + "/", self.tensors)


@dataclass
class RunState:
    """A run's whole memory: who it is, the waves of members that are not done, and what the others came to."""

    identity: dict[str, Any]
    """What must agree between the file and the run that resumes it."""
    pending: list[WaveState]
    """The first of them is the one in training."""
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
    def load(cls, path: str | os.PathLike[str], identity: Mapping[str, Any]) -> "RunState | None":
        """The run saved at `path`, or None if there is no file. One of another run is refused, never overwritten."""
        if not Path(path).exists():
            return None
        tensors, metadata = storage.load(path, KIND)
        _check_identity(path, metadata["identity"], identity)
        parts: dict[str, list[WaveState]] = {}
        for part in ("pending", "ended"):
            parts[part] = [
                WaveState(**fields, tensors=_under(f"{part}/{k}/", tensors)) for k, fields in enumerate(metadata[part])
            ]
        return cls(metadata["identity"], **parts)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _check_identity(path: str | os.PathLike[str], theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for what, mine in ours.items():
        if theirs.get(what) != mine:
            raise CheckpointMismatchError(
                f"{path} is the checkpoint of another run: its {what} is {_differing(theirs.get(what), mine)}; "
                "give this run another checkpoint file, or delete that one"
            )


def _differing(theirs: Any, ours: Any) -> str:
    """Only the part that differs, so that the message can be read."""
    if isinstance(theirs, list) and isinstance(ours, list):
        theirs, ours = dict(enumerate(theirs)), dict(enumerate(ours))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
        theirs, ours = {k: theirs.get(k) for k in keys}, {k: ours.get(k) for k in keys}
    return f"{_cut(theirs)}, this run's is {_cut(ours)}"


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that later training does not change."""
    return {k: v.detach().to("cpu", copy=True) for k, v in tensors.items()}


def empty_history(members: int) -> Tensor:
    return torch.zeros(members, 0, len(HISTORY), dtype=torch.float64)
