"""How far training has got, and how many rows were read: a line that moves on a terminal, and now and then a line
elsewhere, in a notebook or a log. The first needs `deepbasis[progress]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TextIO

from deepbasis.errors import per_cent


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
    """The best validation score of any member so far, or the last; `score` says which."""
    rows_per_second: float
    """Rows times active members, per second, over this epoch."""
    seconds_left: float
    """Seconds left, if every remaining epoch runs and takes as long as the last ones did."""
    turns: int = 1
    """Trainings one after another, this one included, if not all members are trained at a time."""
    score: str = "best"
    """What `best` is: "best CRPS", "best NLL", "best MSE" (of a DNN), or "last NLL" where the last epoch is kept."""


Progress = Callable[[EpochReport], None]

LOG_SECONDS = 30.0
"""Between two lines where there is no terminal; what takes less has none."""
NOTEBOOK_SECONDS = 5.0
"""The same in a notebook, where somebody waits."""


class _Line:
    """A line that rich draws while the context is open; where `stream` (stderr) is no terminal, one now and then."""

    word: str

    def __init__(self, stream: TextIO | None = None, visible: bool = True, every: float | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._visible = visible and self._stream.isatty()
        self._logs = visible and not self._visible
        self._every = every if every is not None else NOTEBOOK_SECONDS if "ipykernel" in sys.modules else LOG_SECONDS
        self._started = self._told = time.monotonic()
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

    def _tell(self, text: str) -> None:
        """A line, where there is no terminal, if it is time for one."""
        now = time.monotonic()
        if self._logs and now - self._told >= self._every:
            self._told = now
            print(f"{self.word}: {text}", file=self._stream, flush=True)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class ProgressBar(_Line):
    """The `Progress` of a training: epoch, best score, speed and time left.

    `what` is being trained. The first line of a log is due some time after `since` (of `time.monotonic`): by default
    now, or when the first of several trainings began.
    """

    def __init__(
        self, stream: TextIO | None = None, what: str = "", every: float | None = None, since: float | None = None
    ) -> None:
        super().__init__(stream, every=every)
        self.word = f"training {what}".rstrip()
        if since is not None:
            self._told = since

    def __enter__(self) -> Self:
        if not self._visible:
            return self
        from rich.progress import MofNCompleteColumn

        fields = "{task.fields[best]}  {task.fields[speed]}  {task.fields[left]} left"
        return self._open(MofNCompleteColumn(), fields, total=None, best="-", speed="-", left="-")

    def __call__(self, report: EpochReport) -> None:
        best, speed = f"{report.score} {report.best:.4f}", f"{_short(report.rows_per_second)} rows/s"
        left = _duration(report.seconds_left)
        if self._bar is not None:
            self._bar.update(self._task, completed=report.epoch, total=report.epochs, best=best, speed=speed, left=left)
        self._tell(f"epoch {report.epoch} of {report.epochs}, {best}, {speed}, {left} left")


class RowCounter(_Line):
    """Called with the number of rows after each block: share of the total, speed and time left."""

    def __init__(self, total: int, visible: bool, word: str = "reading", every: float | None = None) -> None:
        super().__init__(None, visible, every)
        self._total, self.word, self._rows = total, word, 0

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
        self._rows += rows
        seconds = max(time.monotonic() - self._started, 1e-9)
        left = _duration(seconds * (self._total / max(self._rows, 1) - 1.0))
        speed = f"{_short(self._rows / seconds)} rows/s"
        self._tell(f"{per_cent(self._rows / max(self._total, 1))} of {self._total:,} rows, {speed}, {left} left")


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
