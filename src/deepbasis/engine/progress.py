"""What a run tells while it trains: a small callback protocol, and a progress bar as its first user."""

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol


@dataclass(frozen=True)
class EpochReport:
    """Told after each epoch."""

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
    """Rows times active members a second, over this epoch."""
    seconds_left: float
    """If every remaining epoch is run and takes what the last ones took."""


class Progress(Protocol):
    """Anything that can be called with an `EpochReport`."""

    def __call__(self, report: EpochReport) -> None: ...


class ProgressBar:
    """A line on the terminal that shows epoch, best score, speed and time left; silent when it is not a terminal.

    Used as a context manager, so that the line is closed whatever happens. Needs the extra `deepbasis[progress]`.
    """

    def __init__(self, stream: Any = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "ProgressBar":
        if not self._stream.isatty():
            return self
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("best {task.fields[best]}  {task.fields[speed]}  {task.fields[left]} left"),
            console=Console(file=self._stream),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("training", total=None, best="-", speed="-", left="-")
        return self

    def __call__(self, report: EpochReport) -> None:
        if self._bar is None:
            return
        self._bar.update(
            self._task,
            completed=report.epoch,
            total=report.epochs,
            best=f"{report.best:.4f}",
            speed=f"{_short(report.rows_per_second)} rows/s",
            left=_duration(report.seconds_left),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


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
