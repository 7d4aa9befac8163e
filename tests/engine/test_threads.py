"""Members in threads of their own: the same results with any number of threads, and nothing left behind."""

import threading

import pytest
import torch

from deepbasis.engine import device as devices
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from deepbasis.progress import EpochReport


@pytest.mark.parametrize(
    "changes", [{}, {"optimiser": "muon", "average": 0.9, "batch_size": 30}, {"objective": "mml"}], ids=str
)
def test_results_do_not_depend_on_the_number_of_threads(lab, changes):
    before = torch.get_num_threads()
    settings, members = lab.settings(epochs=5, **changes), lab.members(5)
    arguments = (lab.build(), members, lab.data, lab.validation, settings)
    in_pairs = train(*arguments, wave_size=2)
    for threads in (1, 2, 8):
        outcomes = train(*arguments, threads=threads)
        assert all(lab.same(a, b) for a, b in zip(outcomes, in_pairs, strict=True))
    assert torch.get_num_threads() == before
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_progress_tells_of_all_that_are_trained_at_a_time(lab):
    told: list[EpochReport] = []
    settings = lab.settings(epochs=3)
    train(lab.build(), lab.members(5), lab.data, lab.validation, settings, threads=2, progress=told.append)
    assert [(report.epoch, report.members, report.active) for report in told] == [
        *((epoch, 4, 4) for epoch in (1, 2, 3)),
        *((epoch, 1, 1) for epoch in (1, 2, 3)),
    ]


@pytest.mark.slow
def test_a_run_in_threads_is_resumed_bit_equal(lab, tmp_path):
    arguments = (lab.build(), lab.members(5), lab.data, lab.validation, lab.settings(epochs=6, optimiser="muon"))
    expected = train(*arguments, threads=2)
    kept = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}

    def crash(report: EpochReport) -> None:
        if report.epoch == 4:
            raise RuntimeError("power")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="power"):
            train(*arguments, threads=2, progress=crash, **kept)
    resumed = train(*arguments, threads=3, **kept)
    assert all(lab.same(a, b) for a, b in zip(resumed, expected, strict=True))


def test_a_failure_in_one_thread_is_passed_on():
    def work(number: int) -> int:
        if number == 2:
            raise ZeroDivisionError
        return number

    before = torch.get_num_threads()
    with devices.threads(2) as each, pytest.raises(ZeroDivisionError):
        each(work, [1, 2, 3])
    assert torch.get_num_threads() == before


def test_threads_are_for_rows_in_memory(lab):
    data = Stream(lambda epoch: iter(()), len(lab.data), lab.data.x.shape[1], "t")
    with pytest.raises(InputError, match="threads are for rows in memory"):
        train(lab.build(), lab.members(2), data, lab.validation, lab.settings(), threads=2)
