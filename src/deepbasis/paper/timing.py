"""How long a step or a prediction takes, on the device that does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from deepbasis.engine.wave import Wave


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Clock:
    """Waits for the device before it looks at the time."""

    device: torch.device
    now: Callable[[], float] = time.perf_counter

    def seconds(self, work: Callable[[], object]) -> float:
        self._wait()
        start = self.now()
        work()
        self._wait()
        return self.now() - start

    def milliseconds(
        self, work: Callable[[], object], *, repetitions: int, before: Callable[[], None] = _nothing
    ) -> float:
        """The median; `before` each of them is not timed, and the first is not counted."""
        times = []
        for _ in range(repetitions + 1):
            before()
            times.append(1e3 * self.seconds(work))
        return median(times[1:])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def step_milliseconds(
    wave: Wave, *, repetitions: int = 9, most_steps: int = 50, now: Callable[[], float] = time.perf_counter
) -> float:
    """One training step of a prepared wave: the median over runs of up to `most_steps` of an epoch's steps.

    Steps follow each other without a wait between them, as they do in training; shuffling and validation are left out.
    """
    steps = 1 if wave.settings.exact else min(wave.source.steps, most_steps)

    def several() -> None:
        with wave.training_precision():
            for _ in range(steps):
                wave.step()

    clock = Clock(wave.device, now)
    return clock.milliseconds(several, repetitions=repetitions, before=lambda: wave.source.start_epoch(0)) / steps
