"""Whether a run can have written a checkpoint: the sizes in it, its numbers, and how they follow from one another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbasis.engine.checkpoint import ACTIVE, FINISHED, HISTORY, VALIDATION, WaveState, status_after
from deepbasis.engine.settings import Settings

LARGEST = 1e12
"""No parameter that training finds comes near it: inputs and target are standardised."""

LARGEST_RATIO = 8.0
"""Adam's moments are m = sum_i (1 - b1) b1^i g_i and v = sum_i (1 - b2) b2^i g_i^2, of one series of gradients. So by
Cauchy and Schwarz m^2 <= (1 - b1)^2 / (1 - b2) / (1 - b1^2 / b2) v = 7.3^2 v, with b1 = 0.9 and b2 = 0.999."""
_UNDERFLOW = 1e-12
"""The square of a smaller gradient may be 0; it moves nothing, because Adam divides by sqrt(v) + 1e-8."""


@dataclass(frozen=True)
class Expected:
    """What the states of a run are like."""

    members: int
    settings: Settings
    parameters: Mapping[str, Tensor]
    """Of a member before its first epoch."""

    def check(self, state: WaveState, ended: bool) -> None:
        """Raise a ValueError if no run like this writes it. Members that have ended have one state each."""
        count, epochs = len(state.indices), self.settings.epochs
        lists = (state.indices, state.status, state.reason)
        _ask(all(type(values) is list for values in lists), "lists of members, their states and reasons")
        _ask(all(_is_int(k, self.members - 1) for k in state.indices) and count > 0, "a member's number")
        _ask(count == 1 or not ended, "members that have ended together")
        _ask(_is_int(state.epoch, epochs) and _is_int(state.step, 2**53), "epoch or step")
        _ask((state.epoch > 0) == (state.step > 0) and (state.epoch > 0 or not ended), "epoch or step")
        _ask(len(state.status) == len(state.reason) == count, "as many states as members")
        _ask(all(type(reason) is str for reason in state.reason), "the reason for an end")
        self._check_tensors(state, ended)
        for k in range(count):
            self._check_member(state, k, ended)

    def _check_tensors(self, state: WaveState, ended: bool) -> None:
        count, dtype = len(state.indices), self.settings.dtype
        expected: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            **dict.fromkeys(("best_epoch", "last_epoch"), ((count,), torch.int64)),
            "best_score": ((count,), torch.float64),
            "history": ((count, state.epoch, len(HISTORY)), torch.float64),
        }
        for group in ("best",) if ended else ("best", "parameters") if state.epoch else ():
            expected |= {f"{group}/{name}": ((count, *start.shape), dtype) for name, start in self.parameters.items()}
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.tensors.items()}
        if state.epoch and not ended:  # there is the optimiser's memory too, which the wave knows
            found = {name: kind for name, kind in found.items() if _group(name) in (name, "best", "parameters")}
        _ask(found == expected, "names, sizes or types of tensors")

    def _check_member(self, state: WaveState, k: int, ended: bool) -> None:
        status, last_epoch, best_epoch, best_score = self._outcome(state.tensors["history"][k].tolist())
        if ended and status == ACTIVE:
            _ask(state.epoch == self.settings.epochs, "a member that ended before its time")
            status = FINISHED
        numbers = {name: state.tensors[name][k].item() for name in ("last_epoch", "best_epoch", "best_score")}
        told = {"last_epoch": last_epoch, "best_epoch": best_epoch, "best_score": best_score}
        _ask(numbers == told and state.status[k] == status, "what the history of a member leads to")
        for name, tensor in state.tensors.items():
            group = _group(name)
            if group != name and (best_epoch > 0 if group == "best" else status == ACTIVE):
                sound = tensor[k].isfinite() & (tensor[k].abs() <= _largest(state.tensors, name, k))
                start = self.parameters.get(name.removeprefix(f"{group}/"))
                if start is not None:
                    sound |= start.isnan() & tensor[k].isnan()  # a DNN's noise
                _ask(bool(sound.all()), f"{name} is not finite, or too large")
        if status == ACTIVE and "search/value" in state.tensors:  # of L-BFGS, where an epoch is one evaluation
            length, value = (float(state.tensors[f"search/{name}"][k]) for name in ("length", "value"))
            loss = float(state.tensors["history"][k, -1, 0])
            _ask(0.0 < length <= 1.0 and value == loss, "the length of a step, or the loss that it began from")

    def _outcome(self, history: list[list[float]]) -> tuple[str, int, int, float]:
        """State, last epoch, best epoch and its score of a member that has come this far."""
        best_epoch, best_score = 0, math.inf
        for epoch, (loss, score, _) in enumerate(history, 1):
            better = math.isfinite(score) if self.settings.selection == "last" else score < best_score
            if better and math.isfinite(loss):
                best_epoch, best_score = epoch, score
            recent = [row[VALIDATION] for row in history[max(0, epoch - (self.settings.patience or 1)) : epoch]]
            status = status_after(self.settings, epoch, best_epoch, best_score, loss, recent)
            if status != ACTIVE:
                return status, epoch, best_epoch, best_score
        return ACTIVE, len(history), best_epoch, best_score


def read_history(found: dict[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    """Of a member in a model's file: one number of each kind for every epoch, or a `ValueError`."""
    first = found[HISTORY[0]]
    alike = all(values.shape == first.shape and values.dtype == torch.float64 for values in found.values())
    if found.keys() != set(HISTORY) or first.dim() != 1 or not alike:
        raise ValueError("its history does not have one number of each kind for every epoch")
    return {name: found[name].numpy() for name in HISTORY}


def _largest(tensors: Mapping[str, Tensor], name: str, k: int) -> Tensor | float:
    """How large the numbers of a member's tensor can be, so that the next step is finite too."""
    group, _, leaf = name.partition("/")
    if group in ("best", "parameters", "average") or name == "search/point":
        return LARGEST
    if group == "first":
        return LARGEST_RATIO * tensors[f"second/{leaf}"][k].sqrt() + _UNDERFLOW  # NaN, hence refused, below 0
    return math.inf


def _group(name: str) -> str:
    return name.partition("/")[0]


def _is_int(value: Any, largest: int) -> bool:
    return type(value) is int and 0 <= value <= largest


def _ask(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
