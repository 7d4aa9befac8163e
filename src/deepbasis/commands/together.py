"""A command that torchrun has started as one of several workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepbasis.engine.distributed import Team


@contextmanager
def working_together(device: str = "auto") -> Iterator[Team]:
    """The workers of this run; one alone where torchrun has not been there."""
    from deepbasis.engine import distributed

    try:
        yield distributed.start(device)
    finally:
        distributed.stop()
