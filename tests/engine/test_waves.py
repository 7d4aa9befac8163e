"""Waves: more members than fit, running out of memory, and the estimate that is to avoid it."""

import gc
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from deepbasis.engine.checkpoint import Outcome
from deepbasis.engine.memory import available_bytes, bytes_per_member, is_out_of_memory, members_at_a_time
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.engine.wave import Wave
from deepbasis.gp.methods import METHODS as METHODS_OF_THE_PAPER
from support.waves import Watched

CPU = torch.device("cpu")
METHODS = pytest.mark.parametrize(("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "mml")])


def watched_run(lab, count: int, settings: Settings, fails=lambda watched: False, method="dbk-silu", **arguments):
    """The outcomes of a run, and what was seen of it."""
    members = lab.members(count)
    watched = Watched(lab.build(method), members, fails, arguments.pop("error", torch.OutOfMemoryError))
    return train(watched, members, lab.data, lab.validation, settings, progress=watched.told, **arguments), watched


def assert_same(lab, mine: list[Outcome], theirs: list[Outcome]) -> None:
    assert all(lab.difference(a, b) <= 1e-10 for a, b in zip(mine, theirs, strict=True))


# --- waves ---


@METHODS
@pytest.mark.parametrize("size", [1, 3])
def test_waves_come_to_what_all_at_once_come_to(lab, method, objective, size):
    settings = lab.settings(method, objective=objective, epochs=4)
    together, whole = watched_run(lab, 4, settings, method=method)
    assert {len(wave) for wave, _ in whole.trained} == {4}
    outcomes, parted = watched_run(lab, 4, settings, method=method, wave_size=size)
    assert_same(lab, outcomes, together)
    assert max(len(wave) for wave, _ in parted.trained) == size
    assert all(parted.epochs_of(member) == list(range(4)) for member in range(4))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The garbage collector does not run by itself: on a large machine it may not for long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("objective", ["dppgp", "mml"])
def test_a_wave_is_let_go_before_the_next_begins_and_at_the_end(lab, objective):
    """Otherwise two are in memory, of which one was sized to fit; or the device is full when the caller predicts."""
    watched = watched_run(lab, 6, lab.settings(epochs=2, objective=objective), wave_size=2)[1]
    assert len({tuple(wave) for wave, _ in watched.trained}) == 3
    assert set(watched.left_over) == {0}
    assert watched.alive() == 0


@pytest.mark.usefixtures("no_collection")
def test_a_wave_that_ran_out_of_memory_is_let_go_before_the_next_begins(lab):
    watched = watched_run(lab, 4, lab.settings(epochs=2), lambda w: len(w.wave) > 2 and w.phase != "building")[1]
    assert [wave for wave, _ in watched.trained] == [[0, 1]] * 2 + [[2, 3]] * 2
    assert set(watched.left_over) == {0}


@pytest.mark.usefixtures("no_collection")
def test_a_run_collects_no_garbage(lab):
    """Among all that a process has imported that takes longer than a small run."""
    collections: list[object] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(info)

    gc.callbacks.append(note)
    try:
        watched_run(lab, 3, lab.settings(epochs=2), wave_size=2)
    finally:
        gc.callbacks.remove(note)
    assert collections == []


# --- out of memory ---


@METHODS
@pytest.mark.parametrize("phase", ["building", "training", "validating"])
def test_out_of_memory_halves_the_wave(lab, warnings_logged, method, objective, phase):
    settings = lab.settings(method, objective=objective, epochs=2)
    expected, _ = watched_run(lab, 5, settings, method=method)
    outcomes, watched = watched_run(lab, 5, settings, lambda w: len(w.wave) > 2 and w.phase == phase, method)
    assert_same(lab, outcomes, expected)
    assert warnings_logged() == [
        "out of memory with 5 members at a time: continuing with 2",
        "out of memory with 3 members at a time: continuing with 1",
    ]
    assert sorted({tuple(wave) for wave, _ in watched.trained}) == [(0, 1), (2,), (3, 4)]
    assert all(watched.epochs_of(member) == list(range(2)) for member in range(5))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_members_that_have_ended_are_not_trained_again(lab, error):
    """The third wave runs out of memory; the first two are done."""
    settings = lab.settings(epochs=3)
    expected, _ = watched_run(lab, 6, settings)
    outcomes, watched = watched_run(lab, 6, settings, lambda w: w.wave == [4, 5], wave_size=2, error=error)
    assert_same(lab, outcomes, expected)
    assert [wave for wave, _ in watched.trained] == [[0, 1]] * 3 + [[2, 3]] * 3 + [[4]] * 3 + [[5]] * 3


@METHODS
def test_out_of_memory_after_some_epochs_goes_on_from_what_is_remembered(lab, tmp_path, method, objective):
    settings = lab.settings(method, objective=objective, epochs=6, schedule="cosine", patience=5, clip=0.5)
    expected, _ = watched_run(lab, 4, settings, method=method)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    outcomes, watched = watched_run(lab, 4, settings, lambda w: len(w.wave) > 2 and w.epoch >= 3, method, **file)
    assert_same(lab, outcomes, expected)
    assert all(watched.epochs_of(member) == list(range(6)) for member in range(4)), "no epoch twice, none left out"
    assert [len(wave) for wave, _ in watched.trained] == [4] * 3 + [2] * 6


def test_out_of_memory_between_checkpoints_costs_epochs_but_changes_nothing(lab):
    settings = lab.settings(epochs=5)
    outcomes, watched = watched_run(lab, 4, settings, lambda w: len(w.wave) > 2 and w.epoch >= 3)
    assert_same(lab, outcomes, watched_run(lab, 4, settings)[0])
    assert watched.epochs_of(0) == [0, 1, 2, 0, 1, 2, 3, 4]


def test_one_member_that_does_not_fit_is_an_error(lab, warnings_logged):
    with pytest.raises(torch.OutOfMemoryError):
        watched_run(lab, 4, lab.settings(), lambda w: w.phase == "training")
    assert [line.split()[4] for line in warnings_logged()] == ["4", "2"]


def test_other_errors_are_not_taken_for_it(lab, warnings_logged):
    with pytest.raises(RuntimeError, match="for a test"):
        watched_run(lab, 4, lab.settings(), lambda w: w.phase == "training", error=RuntimeError)
    assert warnings_logged() == []


def test_what_running_out_of_memory_looks_like():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**61, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not agree"))


# --- the estimate ---


@pytest.fixture
def measured(lab, capfd) -> Iterator[Callable[..., float]]:
    """The bytes that a member adds to the peak of a wave's first epoch, by the profiler's record of allocations."""

    def peak(method: str, objective: str, members: int, rows: int, rank: int, width: int) -> int:
        settings = lab.settings(method, objective=objective, batch_size=rows, chunk_rows=rows, epochs=1)
        data = lab.rows(2 * rows, 1)
        gc.collect()  # or what an earlier wave gives back would be counted here
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            build = lab.build(method, rank=rank, width=width)
            indices = list(range(members))
            wave = Wave(build, indices, lab.members(members), data, lab.validation, settings, CPU)
            wave.prepare()
            lab.epochs(wave, 1)
        events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
        now = highest = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            highest = max(highest, now)
        return highest

    def of_one_member(method: str, objective: str, **sizes: int) -> float:
        few, many = (peak(method, objective, members, **sizes) for members in (2, 6))
        return (many - few) / 4

    yield of_one_member
    capfd.readouterr()  # the profiler talks


@pytest.mark.parametrize(
    ("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "dppgp"), ("dnn", "mse"), ("dbk-silu", "mml")]
)
@pytest.mark.parametrize(
    "sizes", [{"rows": 1024, "rank": 32, "width": 16}, {"rows": 50, "rank": 128, "width": 64}], ids=["rows", "state"]
)
def test_the_estimate_is_near_what_is_measured(lab, measured, method, objective, sizes):
    """Not below it, or the first wave would not fit; not three times as much, or the device would stand idle."""
    model = lab.build(method, rank=sizes["rank"], width=sizes["width"])(lab.members(1)[0])
    estimate = bytes_per_member(model, sizes["rows"], 3, torch.float64)
    ratio = estimate / measured(method, objective, **sizes)
    assert 0.9 < ratio < 3.0


def test_the_estimate_grows_with_rows_rank_and_precision(lab):
    def estimate(rows: int, rank: int, dtype: torch.dtype) -> int:
        return bytes_per_member(lab.build("dbk-rbf", rank=rank)(lab.members(1)[0]), rows, 3, dtype)

    least, *rest = (estimate(rows, 8, torch.float64) for rows in (100, 200, 300))
    assert rest[1] - rest[0] == rest[0] - least > 0  # a line in the rows
    assert estimate(100, 80, torch.float64) > 2 * least
    assert estimate(100, 8, torch.float64) > 1.5 * estimate(100, 8, torch.float32)


@pytest.mark.parametrize("method", METHODS_OF_THE_PAPER)
def test_as_many_members_as_the_memory_allows(lab, method):
    """With room for two members and a half by the estimate, two at a time; at least one is tried, and never more than
    there are."""
    model = lab.build(method, rank=40, width=24)(lab.members(1)[0])
    for rows in (1, 1000):
        need = bytes_per_member(model, rows, 3, torch.float64)
        for room in (0.1, 2.5, 4.9, 1e6):
            fitting = members_at_a_time(5, model, rows, 3, torch.float64, math.ceil(room * need / 0.7))
            assert min(fitting, 5) == min(max(1, int(room)), 5)
    assert members_at_a_time(0, model, 1, 3, torch.float64, 2**40) == 1


def test_members_that_do_not_fit_together_are_trained_one_after_another(lab):
    """No machine has the memory for a step of so many rows, if they were there."""
    watched = watched_run(lab, 3, lab.settings(objective="mml", epochs=1, chunk_rows=2**50))[1]
    assert [wave for wave, _ in watched.trained] == [[0], [1], [2]]


def test_the_memory_that_is_available_is_a_sensible_number():
    assert 2**24 < available_bytes(CPU) < 2**50
