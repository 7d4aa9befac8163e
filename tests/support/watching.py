"""What a test watches a fit by, and disturbs it with."""

import signal
from collections.abc import Callable
from typing import Any


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def power_failure() -> None:
    raise RuntimeError("the power failed")


class Presses:
    """A `progress` for a fit (`Execution(progress=...)`): acts once, after an epoch of the training of this number."""

    def __init__(self, training: int = -1, epoch: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.training, self.epoch, self.act = training, epoch, act
        self.seen: list[tuple[int, int]] = []
        """(training, epoch), in their order; a training begins with epoch 1."""

    def __call__(self, report: Any) -> None:
        begun = (self.seen[-1][0] if self.seen else -1) + (report.epoch == 1)
        self.seen.append((begun, report.epoch))
        if (begun, report.epoch) == (self.training, self.epoch):
            self.act()
