"""How far it is: a line that moves on a terminal, lines now and then elsewhere, and nothing of what is short."""

import io
import sys

import pytest

from deepbasis.progress import EpochReport, ProgressBar, RowCounter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def count(visible: bool) -> None:
    with RowCounter(3_000, visible, "reading") as tell:
        for _ in range(3):
            tell(1_000)


def test_a_terminal_sees_how_far_it_is_and_how_fast(monkeypatch):
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    count(visible=True)
    assert "reading" in screen.getvalue()
    assert "rows/s" in screen.getvalue()


@pytest.mark.parametrize(("visible", "screen"), [(True, io.StringIO()), (False, Terminal())])
def test_nobody_else_does(monkeypatch, visible, screen):
    monkeypatch.setattr(sys, "stderr", screen)
    count(visible)
    assert screen.getvalue() == ""


def report(epoch: int) -> EpochReport:
    return EpochReport(epoch, 150, 4, 4, 0.25, 12_000.0, 75.0, score="best CRPS")


def test_a_log_has_a_line_now_and_then():
    log = io.StringIO()
    with ProgressBar(log, "dbk-silu (candidate 1 of 3)", every=0.0) as tell:
        tell(report(40))
    where = "training dbk-silu (candidate 1 of 3): epoch 40 of 150"
    assert log.getvalue() == f"{where}, best CRPS 0.2500, 12.0k rows/s, 1:15 left\n"


def test_a_log_counts_rows_too(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with RowCounter(3_000, True, "reading", every=0.0) as tell:
        tell(1_500)
    assert log.getvalue().startswith("reading: 50 % of 3,000 rows, ")
    assert log.getvalue().endswith(" left\n")


def test_what_is_short_leaves_no_line_in_a_log():
    log = io.StringIO()
    with ProgressBar(log, "dbk-silu") as tell:
        tell(report(1))
        tell(report(150))
    assert log.getvalue() == ""
