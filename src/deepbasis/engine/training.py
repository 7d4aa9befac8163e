"""The one engine: E members (E >= 1), stacked and trained together (Algorithms 1 and 3).

    outcomes = train(build, members, Rows(x, y), Rows(x_val, y_val), Settings(epochs=100))

A member's start and its order of batches depend on its seed alone, so it ends the same alone or among eighty.
"""

import gc
import hashlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike

import torch
from torch import Tensor

from deepbasis import __version__
from deepbasis.engine.batches import Rows, Stream
from deepbasis.engine.checkpoint import (
    ACTIVE,
    FAILED,
    FINISHED,
    HISTORY,
    INTERRUPTED,
    RunState,
    WaveState,
    empty_history,
)
from deepbasis.engine.members import Build, Member
from deepbasis.engine.memory import available_bytes, bytes_per_member, is_out_of_memory
from deepbasis.engine.progress import EpochReport, Progress
from deepbasis.engine.settings import Settings
from deepbasis.engine.wave import Wave
from deepbasis.errors import InputError, NumericalError, check_positive_int
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import WeightPosterior

log = logging.getLogger("deepbasis")

_MEMORY_SHARE = 0.7  # of what is free; the estimate is an estimate


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


def train(
    build: Build,
    members: Sequence[Member],
    data: Rows | Stream,
    validation: Rows,
    settings: Settings | None = None,
    *,
    device: torch.device | str = "cpu",
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Progress | None = None,
    wave_size: int | None = None,
) -> list[Outcome]:
    """Train every member and return what each came to, in their order.

    `build(member)` makes a member's model; the engine stacks them. With `checkpoint`, the run is written there at most
    every `checkpoint_seconds` and when it ends; the same call then goes on from it. Ctrl-C ends the run after the
    present step, with the best parameters so far; a second one at once. `wave_size` is the number of members at a time;
    by default as many as fit. `progress` is told after each epoch.
    """
    settings = settings or Settings()
    place = torch.device(device)
    members = list(members)
    if not members:
        raise InputError("train needs at least one member, got none")
    columns = data.columns if isinstance(data, Stream) else data.x.shape[1]
    if columns != validation.x.shape[1]:
        raise InputError(f"the training data have {columns} columns, the validation data {validation.x.shape[1]}")
    if settings.exact and not isinstance(build(members[0]).posterior, WeightPosterior):
        raise InputError("exact training (mml) needs a distribution over the weights; a DNN has point weights")
    run = _Run(build, members, data, validation, settings, place, progress, checkpoint, checkpoint_seconds)
    with _interrupts() as interrupted:
        run.go(interrupted, wave_size)
    gc.collect()  # the last wave is a cycle of references; its memory is wanted for predictions
    return run.outcomes()


class _Run:
    """Waves of members, one after another, and what must be remembered between them."""

    def __init__(
        self,
        build: Build,
        members: list[Member],
        data: Rows | Stream,
        validation: Rows,
        settings: Settings,
        device: torch.device,
        progress: Progress | None,
        path: str | PathLike[str] | None,
        every_seconds: float,
    ) -> None:
        self.build, self.members, self.data, self.validation = build, members, data, validation
        self.settings, self.device, self.progress = settings, device, progress
        self.path, self.every_seconds = path, every_seconds
        self.state = RunState(identity={}, pending=[])
        self.cut_short: list[WaveState] = []
        self._written = time.monotonic()
        self._epoch_seconds = 0.0

    def go(self, interrupted: Callable[[], bool], wave_size: int | None) -> None:
        identity = {} if self.path is None else self._identity()
        resumed = None if self.path is None else RunState.load(self.path, identity)
        self.state = resumed or RunState(identity, pending=self._waves(wave_size))
        while self.state.pending and not interrupted():
            try:
                self._train_wave(interrupted)
            except Exception as error:
                if not is_out_of_memory(error) or len(self.state.pending[0].indices) == 1:
                    raise
                self._halve()

    def outcomes(self) -> list[Outcome]:
        states = {state.indices[0]: state for state in self.state.ended}
        for state in [*self.state.pending, *self.cut_short]:  # an interrupted run has these
            for k, index in enumerate(state.indices):
                states[index] = state.select([k])
        return [_outcome(self.members[k], states[k]) for k in range(len(self.members))]

    def _train_wave(self, interrupted: Callable[[], bool]) -> None:
        gc.collect()  # an earlier wave is a cycle of references, and it holds most of the memory
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        state = self.state.pending[0]
        members = [self.members[k] for k in state.indices]
        wave = Wave(self.build, state.indices, members, self.data, self.validation, self.settings, self.device)
        if state.tensors:
            wave.restore(state)
        wave.prepare()
        while wave.active and wave.state.epoch < self.settings.epochs:
            start = time.monotonic()
            if not wave.train_epoch(interrupted):
                # The file keeps its last state, at the end of an epoch; what is returned is the best so far.
                self.cut_short = [wave.export()]
                return
            wave.end_epoch()
            self._tell(wave, time.monotonic() - start)
            if time.monotonic() - self._written >= self.every_seconds:
                self.state.pending[0] = wave.export()
                self._write()
        wave.state.status = [FINISHED if status == ACTIVE else status for status in wave.state.status]
        self.state.ended += wave.ended()
        self.state.pending.pop(0)
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            self.state.save(self.path)
        self._written = time.monotonic()

    def _halve(self) -> None:
        """Out of memory: go on from the last state that is remembered, with half as many members at a time."""
        state = self.state.pending.pop(0)
        everyone = list(range(len(state.indices)))
        half = len(everyone) // 2
        log.warning("out of memory with %d members at a time: going on with %d", len(everyone), half)
        self.state.pending[:0] = [state.select(everyone[:half]), state.select(everyone[half:])]

    def _waves(self, wave_size: int | None) -> list[WaveState]:
        everyone = list(range(len(self.members)))
        size = self._fitting() if wave_size is None else check_positive_int("wave_size", wave_size)
        return [WaveState.fresh(everyone[k : k + size]) for k in range(0, len(everyone), size)]

    def _fitting(self) -> int:
        settings = self.settings
        rows = settings.chunk_rows if settings.exact else min(settings.batch_size, len(self.data))
        columns = self.validation.x.shape[1]
        need = bytes_per_member(self.build(self.members[0]), rows, columns, settings.dtype)
        return max(1, int(_MEMORY_SHARE * available_bytes(self.device) / need))

    def _identity(self) -> dict[str, object]:
        return {
            "version": __version__,
            "settings": _plain(self.settings),
            "members": [_plain(member) for member in self.members],
            "model": _description(self.build(self.members[0])),
            "training data": self.data.fingerprint(),
            "validation data": self.validation.fingerprint(),
        }

    def _tell(self, wave: Wave, seconds: float) -> None:
        if self.progress is None:
            return
        self._epoch_seconds = seconds if self._epoch_seconds == 0.0 else 0.8 * self._epoch_seconds + 0.2 * seconds
        later = sum(len(state.indices) > 0 for state in self.state.pending[1:]) * self.settings.epochs
        self.progress(
            EpochReport(
                epoch=wave.state.epoch,
                epochs=self.settings.epochs,
                active=wave.active,
                members=len(wave.state.indices),
                best=float(wave.state.tensors["best_score"].min()),
                rows_per_second=len(self.data) * wave.active / max(seconds, 1e-9),
                seconds_left=self._epoch_seconds * (self.settings.epochs - wave.state.epoch + later),
            )
        )


def _outcome(member: Member, state: WaveState) -> Outcome:
    """From the state of one member; `active` here means that the run ended before the member did."""
    status, reason = state.status[0], state.reason[0]
    if status == ACTIVE:
        status, reason = INTERRUPTED, f"after epoch {state.epoch}"
    if status == FAILED:
        log.warning("member %s failed at %s", member, reason)
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


def _plain(values: Settings | Member) -> dict[str, object]:
    """As JSON gives it back: numpy's numbers as Python's."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in asdict(values).items()}


def _description(model: DeepBasisGP) -> dict[str, str]:
    """Tells models apart: the shape and a digest of the initial values of every parameter."""
    return {name: f"{list(p.shape)} {_digest(p)}" for name, p in model.named_parameters()}


def _digest(parameter: Tensor) -> str:
    values = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(values.numpy().data).hexdigest()[:8]


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag that the engine looks at between steps; the second one raises as usual."""
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # handlers can be set in the main thread alone
        yield seen.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        seen.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)
