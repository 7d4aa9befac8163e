"""Waves: more members than fit, running out of memory, and the estimate that is to avoid it."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from deepbasis.engine import training
from deepbasis.engine.memory import available_bytes, bytes_per_member, is_out_of_memory
from deepbasis.engine.training import train
from deepbasis.engine.wave import Wave

CPU = torch.device("cpu")
METHODS = pytest.mark.parametrize(("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "mml")])


@pytest.fixture
def trained(monkeypatch) -> list[tuple[list[int], int]]:
    """(places of the members, epoch) of every epoch that any wave has trained to its end."""
    done: list[tuple[list[int], int]] = []
    plain = Wave.end_epoch

    def end_epoch(wave: Wave) -> None:
        done.append((list(wave.state.indices), wave.state.epoch))
        plain(wave)

    monkeypatch.setattr(Wave, "end_epoch", end_epoch)
    return done


def run_out(
    monkeypatch, when: Callable[[Wave], bool], *, during: str = "train_epoch", error: type = torch.OutOfMemoryError
):
    """Let memory run out at the beginning of a wave's `during`, when `when` says so."""
    plain = getattr(Wave, during)

    def starved(wave: Wave, *arguments: object) -> object:
        if when(wave):
            raise error("out of memory, for a test")
        return plain(wave, *arguments)

    monkeypatch.setattr(Wave, during, starved)


def epochs_of(trained: list[tuple[list[int], int]], member: int) -> list[int]:
    return [epoch for indices, epoch in trained if member in indices]


# --- waves ---


@METHODS
@pytest.mark.parametrize("size", [1, 2, 4])
def test_waves_come_to_what_all_at_once_come_to(lab, trained, method, objective, size):
    settings = lab.settings(method, objective=objective, epochs=6)
    arguments = (lab.build(method), lab.members(5), lab.data, lab.validation, settings)
    together = train(*arguments)
    assert {len(indices) for indices, _ in trained} == {5}
    trained.clear()
    for mine, theirs in zip(train(*arguments, wave_size=size), together, strict=True):
        assert lab.difference(mine, theirs) <= 1e-10
    assert max(len(indices) for indices, _ in trained) == size
    assert all(epochs_of(trained, member) == list(range(6)) for member in range(5))


def test_a_wave_is_let_go_before_the_next_begins(lab, monkeypatch):
    """Otherwise two of them are in memory, of which one was sized to fit."""
    assert left_over(lab, monkeypatch, members=6, wave_size=2)[:3] == [0, 0, 0]


def test_the_last_wave_is_let_go_at_the_end_of_the_run(lab, monkeypatch):
    """Or the device is still full when the caller wants to predict."""
    assert left_over(lab, monkeypatch, members=2, wave_size=2)[-1] == 0


def test_a_wave_that_ran_out_of_memory_is_let_go_before_the_next_begins(lab, monkeypatch):
    run_out(monkeypatch, lambda wave: wave.stack.size > 2)
    assert left_over(lab, monkeypatch, members=4, wave_size=4)[:3] == [0, 0, 0]


def left_over(lab, monkeypatch, members: int, wave_size: int) -> list[int]:
    """How many earlier waves are still in memory when each one is made, and at the end.

    The garbage collector does not run by itself meanwhile: on a large machine it may not for long.
    """
    waves: list[weakref.ref[Wave]] = []
    counts: list[int] = []
    plain = Wave.__init__

    def count() -> None:
        counts.append(sum(reference() is not None for reference in waves))

    def init(wave: Wave, *arguments: object) -> None:
        count()
        waves.append(weakref.ref(wave))
        plain(wave, *arguments)

    monkeypatch.setattr(Wave, "__init__", init)
    gc.collect()
    gc.disable()
    try:
        train(lab.build(), lab.members(members), lab.data, lab.validation, lab.settings(epochs=2), wave_size=wave_size)
        count()
    finally:
        gc.enable()
    return counts


# --- out of memory ---


@METHODS
@pytest.mark.parametrize("during", ["prepare", "train_epoch", "end_epoch"])
def test_out_of_memory_halves_the_wave(lab, monkeypatch, trained, warnings_logged, method, objective, during):
    settings = lab.settings(method, objective=objective, epochs=4)
    arguments = (lab.build(method), lab.members(5), lab.data, lab.validation, settings)
    expected = train(*arguments)
    trained.clear()
    run_out(monkeypatch, lambda wave: wave.stack.size > 2, during=during)
    for mine, theirs in zip(train(*arguments), expected, strict=True):
        assert lab.difference(mine, theirs) <= 1e-10
    assert warnings_logged() == [
        "out of memory with 5 members at a time: going on with 2",
        "out of memory with 3 members at a time: going on with 1",
    ]
    assert sorted({tuple(indices) for indices, _ in trained}) == [(0, 1), (2,), (3, 4)]
    assert all(epochs_of(trained, member) == list(range(4)) for member in range(5))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_members_that_have_ended_are_not_trained_again(lab, monkeypatch, trained, error):
    """The third wave runs out of memory; the first two are done."""
    arguments = (lab.build(), lab.members(6), lab.data, lab.validation, lab.settings(epochs=3))
    expected = train(*arguments)
    trained.clear()
    run_out(monkeypatch, lambda wave: wave.state.indices == [4, 5], error=error)
    for mine, theirs in zip(train(*arguments, wave_size=2), expected, strict=True):
        assert lab.difference(mine, theirs) <= 1e-10
    assert [indices for indices, _ in trained] == [[0, 1]] * 3 + [[2, 3]] * 3 + [[4]] * 3 + [[5]] * 3


@METHODS
def test_out_of_memory_after_some_epochs_goes_on_from_what_is_remembered(
    lab, monkeypatch, trained, tmp_path, method, objective
):
    settings = lab.settings(method, objective=objective, epochs=6, schedule="cosine", patience=5, clip=0.5)
    arguments = (lab.build(method), lab.members(4), lab.data, lab.validation, settings)
    expected = train(*arguments)
    trained.clear()
    run_out(monkeypatch, lambda wave: wave.stack.size > 2 and wave.state.epoch >= 3)
    outcomes = train(*arguments, checkpoint=tmp_path / "run", checkpoint_seconds=0.0)
    for mine, theirs in zip(outcomes, expected, strict=True):
        assert lab.difference(mine, theirs) <= 1e-10
    assert all(epochs_of(trained, member) == list(range(6)) for member in range(4)), "no epoch twice, none left out"
    assert [len(indices) for indices, _ in trained] == [4] * 3 + [2] * 6


def test_out_of_memory_between_checkpoints_costs_epochs_but_changes_nothing(lab, monkeypatch, trained):
    arguments = (lab.build(), lab.members(4), lab.data, lab.validation, lab.settings(epochs=5))
    expected = train(*arguments)
    run_out(monkeypatch, lambda wave: wave.stack.size > 2 and wave.state.epoch >= 3)
    for mine, theirs in zip(train(*arguments), expected, strict=True):
        assert lab.difference(mine, theirs) <= 1e-10


def test_one_member_that_does_not_fit_is_an_error(lab, monkeypatch, warnings_logged):
    run_out(monkeypatch, lambda wave: True)
    with pytest.raises(torch.OutOfMemoryError):
        train(lab.build(), lab.members(4), lab.data, lab.validation, lab.settings())
    assert [line.split()[4] for line in warnings_logged()] == ["4", "2"]


def test_other_errors_are_not_taken_for_it(lab, monkeypatch, warnings_logged):
    run_out(monkeypatch, lambda wave: True, error=RuntimeError)
    with pytest.raises(RuntimeError, match="for a test"):
        train(lab.build(), lab.members(4), lab.data, lab.validation, lab.settings())
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


def test_waves_are_as_large_as_the_memory_allows(lab, monkeypatch, trained):
    """With room for two members and a half by the estimate, with its reserve: two at a time."""
    need = bytes_per_member(lab.build()(lab.members(1)[0]), 16, 3, torch.float64)
    room = 2.5 * need / training._MEMORY_SHARE
    monkeypatch.setattr(training, "available_bytes", lambda device: int(room))
    train(lab.build(), lab.members(5), lab.data, lab.validation, lab.settings(epochs=1))
    assert [indices for indices, _ in trained] == [[0, 1], [2, 3], [4]]


def test_at_least_one_member_is_tried(lab, monkeypatch, trained):
    monkeypatch.setattr(training, "available_bytes", lambda device: 1)
    train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=1))
    assert [indices for indices, _ in trained] == [[0], [1]]


def test_the_memory_that_is_available_is_a_sensible_number():
    assert 2**24 < available_bytes(CPU) < 2**50
