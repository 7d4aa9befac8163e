"""A run of the engine seen from outside: which members train together, and what happens when memory runs out."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from deepbasis.engine.members import Build, Member
from deepbasis.gp.model import DeepBasisGP
from deepbasis.progress import EpochReport


class Watched:
    """A `Build` and a `Progress` in one. It knows the members of the present wave and how many epochs they have done.

    `fails` is asked before each pass through a network, and when a wave's third member is built; if it says so `error`
    is raised.
    """

    def __init__(
        self,
        build: Build,
        members: list[Member],
        fails: Callable[["Watched"], bool] = lambda watched: False,
        error: type[Exception] = torch.OutOfMemoryError,
    ) -> None:
        self._build, self._members, self._fails, self._error = build, members, fails, error
        self.wave: list[int] = []
        self.epoch = 0
        self.phase = ""
        """"building", "training" or "validating"."""
        self.trained: list[tuple[list[int], int]] = []
        """(places of the members, epoch) of every epoch that any wave has trained to its end."""
        self.left_over: list[int] = []
        """How many networks of earlier waves are still in memory when a wave begins."""
        self._networks: list[weakref.ref[nn.Module]] = []

    def __call__(self, member: Member) -> DeepBasisGP:
        place = self._members.index(member)
        if self.phase != "building" or place in self.wave:
            self.left_over.append(self.alive())
            self.wave, self.epoch, self.phase = [], 0, "building"
        self.wave.append(place)
        if len(self.wave) == 3:
            self._perhaps_fail()
        model = self._build(member)

        def before(network: nn.Module, inputs: Any) -> None:  # a function: a stack's copy of the model has it too
            self.phase = "training" if torch.is_grad_enabled() else "validating"
            if all(reference() is not network for reference in self._networks):
                self._networks.append(weakref.ref(network))
            self._perhaps_fail()

        model.backbone.register_forward_pre_hook(before)
        return model

    def told(self, report: EpochReport) -> None:
        self.trained.append((self.wave, report.epoch - 1))
        self.epoch = report.epoch

    def alive(self) -> int:
        return sum(reference() is not None for reference in self._networks)

    def epochs_of(self, member: int) -> list[int]:
        return [epoch for wave, epoch in self.trained if member in wave]

    def _perhaps_fail(self) -> None:
        if self._fails(self):
            raise self._error("out of memory, for a test")
