"""The clock of the experiments: what is timed, what is not, and that a step is one step."""

import time

import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build
from deepbasis.paper.timing import Clock, step_milliseconds

CPU = torch.device("cpu")


def sleep(milliseconds: float) -> None:
    time.sleep(milliseconds / 1e3)


def test_what_comes_before_is_not_timed_and_the_first_run_is_not_counted():
    durations = iter([60, 5, 5, 5])
    found = Clock(CPU).milliseconds(lambda: sleep(next(durations)), repetitions=3, before=lambda: sleep(30))
    assert 5 <= found < 25
    assert next(durations, None) is None


@pytest.mark.parametrize(("objective", "steps"), [("dppgp", 4), ("mml", 1)])
def test_a_step_is_one_step_of_an_epoch(objective, steps):
    data = Rows(torch.rand(40, 1), torch.rand(40))
    settings = settings_for("dbk-silu", objective=objective, batch_size=10)
    wave = Wave(
        lambda m: build("dbk-silu", 1, rank=2, width=4, seed=m.seed), [0], [Member()], data, data, settings, CPU
    )
    wave.prepare()
    real, calls, starts = wave.step, [], []
    start_epoch = wave.source.start_epoch

    def step() -> None:
        calls.append(1)
        sleep(3)
        real()

    def started(epoch: int) -> None:
        starts.append(len(calls))
        start_epoch(epoch)

    wave.step, wave.source.start_epoch = step, started
    assert 3 <= step_milliseconds(wave, repetitions=3) < 20
    assert len(calls) == 4 * steps  # one run that warms up, and three
    assert starts == [k * steps for k in range(4)]  # never past the end of an epoch
