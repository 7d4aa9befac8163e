"""How many rows were read, and how many a second: a line on the terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class RowCounter:
    """Called with the number of rows after each block. Silent where it is not `visible`, or not on a terminal."""

    def __init__(self, total: int, visible: bool, word: str = "reading") -> None:
        self._total, self._word = total, word
        self._visible = visible and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> RowCounter:
        if self._visible:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn(self._word),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %  {task.fields[speed]}"),
                TimeRemainingColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._word, total=self._total, speed="")
        return self

    def __call__(self, rows: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, rows)
            speed = self._bar.tasks[0].speed
            self._bar.update(self._task, speed="" if speed is None else f"{speed:,.0f} rows/s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
