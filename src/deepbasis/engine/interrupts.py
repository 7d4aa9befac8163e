"""Ctrl-C, as a flag that the engine looks at between steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag that the engine looks at between steps; the second one raises as usual."""
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # handlers can be set in the main thread alone
        yield seen.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        seen.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)
