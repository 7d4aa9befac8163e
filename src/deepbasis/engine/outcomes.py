"""What a member came to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis.engine.checkpoint import ACTIVE, HISTORY, INTERRUPTED, WaveState, empty_history
from deepbasis.engine.members import Build, Member
from deepbasis.errors import NumericalError
from deepbasis.gp.model import DeepBasisGP


@dataclass(frozen=True)
class Outcome:
    """What a member came to."""

    member: Member
    status: str
    """"finished" (all epochs), "stopped" (patience), "failed" or "interrupted"."""
    reason: str
    best_epoch: int
    """From 1; 0 if no epoch had a finite score."""
    best_score: float
    history: dict[str, Tensor]
    """"train_loss", "validation" and "noise", a number an epoch."""
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
    tensors = state.tensors or {
        "best_epoch": torch.zeros(1),
        "last_epoch": torch.zeros(1),
        "best_score": torch.full((1,), torch.inf),
        "history": empty_history(1),
    }
    return Outcome(
        member=member,
        status=status,
        reason=reason,
        best_epoch=int(tensors["best_epoch"][0]),
        best_score=float(tensors["best_score"][0]),
        history={name: tensors["history"][0, : int(tensors["last_epoch"][0]), j] for j, name in enumerate(HISTORY)},
        parameters={name: value[0] for name, value in state.group("best").items()},
    )
