"""Ctrl-C ends a run cleanly; progress tells the truth while it lasts."""

import io
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.errors import NumericalError
from deepbasis.progress import EpochReport, ProgressBar


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_after(epoch: int, times: int = 1) -> Callable[[EpochReport], None]:
    def progress(report: EpochReport) -> None:
        if report.epoch == epoch:
            for _ in range(times):
                interrupt()

    return progress


@pytest.fixture(autouse=True)
def handler() -> Iterator[object]:
    """Python's own handler; whatever a test does to it, the next one finds it again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


# --- Ctrl-C ---


@pytest.mark.parametrize(("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "mml")])
@pytest.mark.parametrize("count", [1, 3])
def test_ctrl_c_ends_a_run_with_the_best_so_far(lab, method, objective, count, handler):
    """All is as if the run had been of three epochs, but for what it says of itself."""
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation)
    settings, short = (lab.settings(method, objective=objective, epochs=epochs) for epochs in (50, 3))
    outcomes = train(*arguments, settings, progress=interrupt_after(3))
    assert signal.getsignal(signal.SIGINT) is handler
    for mine, theirs in zip(outcomes, train(*arguments, short), strict=True):
        assert (mine.status, mine.reason) == ("interrupted", "after epoch 3")
        assert (mine.best_epoch, mine.best_score) == (theirs.best_epoch, theirs.best_score)
        assert all(torch.equal(value, theirs.parameters[name]) for name, value in mine.parameters.items())
        assert all(torch.equal(column, theirs.history[name]) for name, column in mine.history.items())
        assert bool(mine.model(lab.build(method))(lab.validation.x).mean.isfinite().all())


def test_an_epoch_that_was_cut_short_does_not_count(lab):
    """Ctrl-C between two steps of the third epoch: the run ends there, with what two epochs came to."""
    given: list[int] = []

    def open_epoch(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(50).split(16):
            given.append(epoch)
            if interrupted and given.count(2) == 2:
                interrupt()
            yield lab.data.x[rows], lab.data.y[rows]

    runs = []
    for interrupted, epochs in ((True, 9), (False, 2)):
        stream = Stream(open_epoch, rows=50, columns=3, name="test")
        given.clear()
        runs.append(train(lab.build(), lab.members(2), stream, lab.validation, lab.settings(epochs=epochs)))
        assert given == [0] * 4 + [1] * 4 + ([2] * 2 if interrupted else [])
    for mine, theirs in zip(*runs, strict=True):
        assert mine.status == "interrupted"
        assert all(torch.equal(value, theirs.parameters[name]) for name, value in mine.parameters.items())
        assert all(torch.equal(column, theirs.history[name]) for name, column in mine.history.items())


def test_ctrl_c_among_waves(lab):
    """Members before it have finished, those in it have their best so far, those after it have nothing."""
    seen = []

    def progress(report: EpochReport) -> None:
        seen.append(report)
        if len(seen) == 7:  # the second wave's third epoch
            interrupt()

    arguments = (lab.build(), lab.members(5), lab.data, lab.validation)
    outcomes = train(*arguments, lab.settings(epochs=4), wave_size=2, progress=progress)
    whole, short = (train(*arguments, lab.settings(epochs=epochs)) for epochs in (4, 3))
    assert [outcome.status for outcome in outcomes] == ["finished"] * 2 + ["interrupted"] * 3
    assert all(lab.difference(outcomes[k], whole[k]) <= 1e-10 for k in (0, 1))
    assert all(lab.largest(outcomes[k].parameters, short[k].parameters) <= 1e-10 for k in (2, 3))
    assert (outcomes[4].best_epoch, outcomes[4].reason) == (0, "after epoch 0")
    assert [len(column) for column in outcomes[4].history.values()] == [0, 0, 0]
    with pytest.raises(NumericalError, match="no usable parameters"):
        outcomes[4].model(lab.build())
    assert len(seen) == 7


def test_ctrl_c_after_the_last_epoch_comes_too_late(lab):
    outcomes = train(
        lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=3), progress=interrupt_after(3)
    )
    assert [outcome.status for outcome in outcomes] == ["finished"] * 2


def test_stopped_and_failed_members_stay_so(lab):
    """They ended before Ctrl-C came."""
    settings = lab.settings(epochs=60, learning_rate=0.03, patience=4)
    stopped = [
        len(train(lab.build(), [member], lab.data, lab.validation, settings)[0].history["noise"])
        for member in lab.members(6)
    ]
    middle = sorted(stopped)[3]
    outcomes = train(
        lab.build(), lab.members(6), lab.data, lab.validation, settings, progress=interrupt_after(middle - 1)
    )
    assert [o.status for o in outcomes] == ["stopped" if s < middle else "interrupted" for s in stopped]
    assert {o.status for o in outcomes} == {"stopped", "interrupted"}


def test_a_second_ctrl_c_ends_a_run_at_once(lab, handler):
    with pytest.raises(KeyboardInterrupt):
        train(
            lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(), progress=interrupt_after(2, times=2)
        )
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_of_the_callers_own_is_given_back_and_gets_the_second_one(lab):
    numbers: list[int] = []

    def own(number: int, frame: object) -> None:
        numbers.append(number)

    signal.signal(signal.SIGINT, own)
    arguments = (lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(epochs=30))
    assert train(*arguments, progress=interrupt_after(2))[0].status == "interrupted"
    assert numbers == []
    assert train(*arguments, progress=interrupt_after(2, times=2))[0].status == "interrupted"
    assert numbers == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is own


def test_the_handler_is_given_back_after_an_error(lab, handler):
    def fail(report: EpochReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(), progress=fail)
    assert signal.getsignal(signal.SIGINT) is handler


def test_training_off_the_main_thread(lab, handler):
    """Python lets no other thread set a handler: the run does without."""
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings())
    found: list[object] = []
    handlers: list[object] = []

    def work() -> None:
        found.extend(train(*arguments, progress=lambda report: handlers.append(signal.getsignal(signal.SIGINT))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert all(lab.same(a, b) for a, b in zip(found, train(*arguments), strict=True))
    assert len(found) == 2
    assert set(handlers) == {handler}


# --- progress ---


def ticking() -> Callable[[], float]:
    """A clock that goes on by a second whenever it is looked at: an epoch takes one."""
    seconds = itertools.count()
    return lambda: float(next(seconds))


def test_progress_is_told_after_each_epoch(lab):
    told: list[EpochReport] = []
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings(epochs=6))
    outcomes = train(*arguments, progress=told.append, clock=ticking())
    validation = torch.stack([outcome.history["validation"] for outcome in outcomes])
    assert [report.epoch for report in told] == [1, 2, 3, 4, 5, 6]
    assert {(report.epochs, report.active, report.members) for report in told} == {(6, 3, 3)}
    assert [report.best for report in told] == [float(validation[:, :epoch].min()) for epoch in range(1, 7)]
    assert [report.rows_per_second for report in told] == [50.0 * 3] * 6
    assert [report.seconds_left for report in told] == pytest.approx([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])


def test_time_left_counts_the_waves_to_come(lab):
    told: list[EpochReport] = []
    arguments = (lab.build(), lab.members(5), lab.data, lab.validation, lab.settings(epochs=3))
    train(*arguments, wave_size=2, progress=told.append, clock=ticking())
    assert [report.seconds_left for report in told] == pytest.approx(list(range(8, -1, -1)))
    assert [report.members for report in told] == [2] * 6 + [1] * 3


def test_time_left_after_a_resume(lab, tmp_path):
    """From the first epoch on, though it is not the run's first."""
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=8))
    settings = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    train(*arguments, **settings, progress=interrupt_after(3))
    told: list[EpochReport] = []
    train(*arguments, **settings, progress=told.append, clock=ticking())
    assert [report.seconds_left for report in told] == pytest.approx([8 - report.epoch for report in told])


def test_rows_per_second_counts_active_members(lab):
    """A member that has failed is not in training, and its rows are not trained on."""
    bad = lab.members(3)[1].seed

    def build(member):
        model = lab.build()(member)
        if member.seed == bad:
            torch.nn.init.constant_(model.mean, torch.nan)
        return model

    told: list[EpochReport] = []
    arguments = (build, lab.members(3), lab.data, lab.validation, lab.settings(epochs=4))
    train(*arguments, progress=told.append, clock=ticking())
    assert [report.active for report in told] == [2, 2, 2, 2]
    assert [report.rows_per_second for report in told[1:]] == [50.0 * 2] * 3


@pytest.mark.parametrize(
    ("method", "changes", "score"),
    [
        ("dbk-silu", {}, "best NLL"),
        ("dbk-silu", {"selection": "crps"}, "best CRPS"),
        ("dnn", {"objective": "mse", "selection": "crps"}, "best MSE"),
        ("sv-rbf", {"objective": "mml", "selection": "last"}, "last NLL"),
    ],
    ids=str,
)
def test_a_report_names_its_score(lab, method, changes, score):
    told: list[EpochReport] = []
    settings = lab.settings(method, epochs=1, **changes)
    train(lab.build(method), lab.members(1), lab.data, lab.validation, settings, progress=told.append)
    assert [report.score for report in told] == [score]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


REPORT = EpochReport(
    epoch=3,
    epochs=7,
    active=2,
    members=2,
    best=-0.12345,
    rows_per_second=2_340_000.0,
    seconds_left=3725.0,
    score="best NLL",
)


def test_a_bar_is_silent_when_it_is_not_on_a_terminal(lab, monkeypatch):
    """And needs no rich."""
    monkeypatch.setitem(sys.modules, "rich", None)
    stream = io.StringIO()
    with ProgressBar(stream) as bar:
        bar(REPORT)
        train(lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(), progress=bar)
    assert stream.getvalue() == ""


def test_a_bar_on_a_terminal_shows_what_it_is_told(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with ProgressBar(stream) as bar:
        bar(REPORT)
    shown = stream.getvalue()
    assert all(text in shown for text in ("training", "3/7", "best NLL -0.1235", "2.3M rows/s", "1:02:05 left"))


def test_a_bar_follows_a_run(lab, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with ProgressBar(stream) as bar:
        (outcome,) = train(lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(), progress=bar)
    assert f"best NLL {outcome.best_score:.4f}" in stream.getvalue()
    assert "5/5" in stream.getvalue()


def test_a_bar_is_closed_whatever_happens(lab, monkeypatch):
    """rich hides the cursor: it must be there again after the block."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    def fails(report: EpochReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ProgressBar(stream):
        train(lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(), progress=fails)
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l") >= 0


def test_at_its_deadline_a_run_ends_with_the_best_so_far(lab):
    """By its own clock, which here goes on by one with each look."""
    ticks = iter(range(10_000))
    settings = lab.settings(epochs=1_000)
    outcomes = train(
        lab.build(),
        lab.members(2),
        lab.data,
        lab.validation,
        settings,
        clock=lambda: float(next(ticks)),
        deadline=200.0,
    )
    assert {outcome.status for outcome in outcomes} == {"interrupted"}
    assert all(0 < outcome.best_epoch < 100 for outcome in outcomes)
