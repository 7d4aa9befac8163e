"""The count of rows that are read: a line on a terminal, and nothing elsewhere."""

import io
import sys

import pytest

from deepbasis.progress import RowCounter


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
