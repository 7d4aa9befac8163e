"""The clock of the experiments: what is timed, what is not, and that a step is one step. Time is what a test says."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build
from deepbasis.paper.timing import Clock, step_milliseconds

CPU = torch.device("cpu")


@dataclass
class Time:
    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def passes(self, milliseconds: float) -> None:
        self.seconds += milliseconds / 1e3


def test_what_comes_before_is_not_timed_and_the_first_run_is_not_counted():
    time, durations = Time(), iter([60, 4, 9, 5])
    clock = Clock(CPU, time.now)
    found = clock.milliseconds(lambda: time.passes(next(durations)), repetitions=3, before=lambda: time.passes(30))
    assert found == pytest.approx(5)  # the median of the last three
    assert next(durations, None) is None


@dataclass
class Steps:
    """In place of a wave: each step takes 3 ms, the start of an epoch 100."""

    exact: bool
    time: Time = field(default_factory=Time)
    done: int = 0
    starts: list[int] = field(default_factory=list)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        self.settings = SimpleNamespace(exact=self.exact)
        self.source = SimpleNamespace(steps=4, start_epoch=self.start_epoch)

    def training_precision(self) -> nullcontext:
        return nullcontext()

    def start_epoch(self, epoch: int) -> None:
        self.starts.append(self.done)
        self.time.passes(100)

    def step(self) -> None:
        self.done += 1
        self.time.passes(3)


@pytest.mark.parametrize(("exact", "steps"), [(False, 4), (True, 1)])
def test_a_step_is_one_step_of_an_epoch(exact, steps):
    wave = Steps(exact)
    assert step_milliseconds(wave, repetitions=3, now=wave.time.now) == pytest.approx(3)
    assert wave.done == 4 * steps  # one run that warms up, and three
    assert wave.starts == [k * steps for k in range(4)]  # never past the end of an epoch


@pytest.mark.parametrize("objective", ["dppgp", "mml"])
def test_steps_of_a_wave_are_steps_of_its_training(objective):
    data = Rows(torch.rand(40, 1), torch.rand(40))
    settings = settings_for("dbk-silu", objective=objective, batch_size=10)
    wave = Wave(
        lambda m: build("dbk-silu", 1, rank=2, width=4, seed=m.seed), [0], [Member()], data, data, settings, CPU
    )
    wave.prepare()
    before = wave.stack.member(0).noise().item()
    assert step_milliseconds(wave, repetitions=2) > 0
    assert wave.stack.member(0).noise().item() != before
