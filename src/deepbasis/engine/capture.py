"""CUDA graphs, and the precision of a training step."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WARM_UP_STEPS = 3  # before a capture: libraries allocate their workspaces, the optimiser its state


def captured(work: Callable[[], Any], rewind: Callable[[], None], device: torch.device) -> Callable[[], Any]:
    """`work` as a CUDA graph: a function that replays it, and returns what the recorded call did, at fixed addresses.

    `rewind` comes before each trial and before the recording.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_STEPS):
            rewind()
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    rewind()
    graph = torch.cuda.CUDAGraph()
    with _no_collection(), torch.cuda.graph(graph):
        result = work()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """An earlier wave is a cycle that holds graphs: if it were collected while another graph is recorded, destroying
    them would be an operation that a recording does not allow, and end it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def training_precision(precision: str, backbone: Any) -> Iterator[None]:
    """tf32 and bf16 hold inside this block alone."""
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    if precision == "tf32":
        matmul.allow_tf32 = True
    if hasattr(backbone, "autocast"):
        backbone.autocast = torch.bfloat16 if precision == "bf16" else None
    try:
        yield
    finally:
        matmul.allow_tf32 = before
        if hasattr(backbone, "autocast"):
            backbone.autocast = None
