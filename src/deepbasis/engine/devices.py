"""Devices by the names that users give them."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

from deepbasis.errors import InputError


def named(name: Any) -> torch.device:
    """The device of this name, whether or not it is there; "auto" is a GPU if there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:K', got {name!r}")
    return device


def present(name: Any) -> torch.device:
    """The same, and it is there."""
    device = named(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!r} was asked for, but torch sees no CUDA device of that number here; use 'cpu' or 'auto'"
        )
    return device


_lock = Lock()
_fits_with_one_thread = 0
_threads_before = 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches of some hundred rows gain little from a second thread, and lose much on a busy machine.

    And sums, rounded in the same order, are the same whatever the number of cores. The number is that of the whole
    process: where fits overlap the first one sets it, and the last one gives the threads back.
    """
    global _fits_with_one_thread, _threads_before
    with _lock:
        if _fits_with_one_thread == 0:
            _threads_before = torch.get_num_threads()
        _fits_with_one_thread += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _fits_with_one_thread -= 1
            if _fits_with_one_thread == 0:
                torch.set_num_threads(_threads_before)
