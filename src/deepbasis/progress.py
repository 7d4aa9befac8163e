"""Lines on the terminal: how far training has got, and how many rows were read. They need `deepbasis[progress]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TextIO


@dataclass(frozen=True)
class EpochReport:
    """What is reported after each epoch."""

    epoch: int
    """Epochs done, from 1."""
    epochs: int
    """Epochs at most."""
    active: int
    """Members still training, of those in this wave."""
    members: int
    best: float
    """The best validation score of any member so far: NLL, or MSE for a DNN."""
    rows_per_second: float
    """Rows times active members, per second, over this epoch."""
    seconds_left: float
    """Seconds left, if every remaining epoch runs and takes as long as the last ones did."""


class Progress(Protocol):
    """Anything that can be called with an `EpochReport`."""

    def __call__(self, report: EpochReport) -> None: ...


class _Line:
    """A line that rich draws while the context is open; nothing where `stream` (stderr) is not a terminal."""

    word: str

    def __init__(self, stream: TextIO | None, visible: bool = True) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._visible = visible and self._stream.isatty()
        self._bar: Any = None
        self._task: Any = None

    def _open(self, *columns: Any, **task: Any) -> Self:
        """Columns are rich's, or texts with the task's fields in braces."""
        from rich.console import Console
        from rich.progress import BarColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(self.word, BarColumn(), *columns, console=Console(file=self._stream), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self.word, **task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class ProgressBar(_Line):
    """The `Progress` of a training: epoch, best score, speed and time left."""

    word = "training"

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)

    def __enter__(self) -> Self:
        if not self._visible:
            return self
        from rich.progress import MofNCompleteColumn

        fields = "best {task.fields[best]}  {task.fields[speed]}  {task.fields[left]} left"
        return self._open(MofNCompleteColumn(), fields, total=None, best="-", speed="-", left="-")

    def __call__(self, report: EpochReport) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=report.epoch,
                total=report.epochs,
                best=f"{report.best:.4f}",
                speed=f"{_short(report.rows_per_second)} rows/s",
                left=_duration(report.seconds_left),
            )


class RowCounter(_Line):
    """Called with the number of rows after each block: share of the total, speed and time left."""

    def __init__(self, total: int, visible: bool, word: str = "reading") -> None:
        super().__init__(None, visible)
        self._total, self.word = total, word

    def __enter__(self) -> Self:
        if not self._visible:
            return self
        from rich.progress import TimeRemainingColumn

        fields = "{task.percentage:>3.0f} %  {task.fields[speed]}"
        return self._open(fields, TimeRemainingColumn(), total=self._total, speed="")

    def __call__(self, rows: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, rows)
            speed = self._bar.tasks[0].speed
            self._bar.update(self._task, speed="" if speed is None else f"{speed:,.0f} rows/s")


def _short(number: float) -> str:
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.0f}{unit}" if number >= 100 or not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}G"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
