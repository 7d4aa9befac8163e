"""Devices by the names that users give them."""

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches of some hundred rows gain nothing from a second thread, and lose much on a busy machine.

    And sums, rounded in the same order, are the same whatever the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
