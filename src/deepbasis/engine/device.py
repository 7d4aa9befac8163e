"""A device by its name, and how work runs on it: threads, CUDA graphs, torch.compile, the precision of a step."""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Lock
from types import FunctionType, MethodType
from typing import Any

import torch

from deepbasis.errors import InputError
from deepbasis.gp.precision import tf32_allowed

_WARM_UP_STEPS = 3  # before a capture: libraries allocate their workspaces, the optimiser its state


def named(name: Any) -> torch.device:
    """The device of this name, whether or not it exists; "auto" is a GPU if there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:K', got {name!r}")
    return device


def present(name: Any) -> torch.device:
    """The same, if it exists; otherwise an error."""
    device = named(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!r} was asked for, but torch sees no CUDA device of that number here; use 'cpu' or 'auto'"
        )
    return device


if hasattr(os, "register_at_fork"):
    # A child has none of the threads that its parent computes with, and OpenMP would wait for them for ever.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

_lock = Lock()
_fits_with_own_threads = 0
_threads_before = 0


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Within this block torch has so many threads; None changes nothing.

    Sums are rounded in the same order for the same number. The setting is global: if fits overlap, each sets it and the
    last one to end restores it.
    """
    if count is None:
        yield
        return
    global _fits_with_own_threads, _threads_before
    with _lock:
        if _fits_with_own_threads == 0:
            _threads_before = torch.get_num_threads()
        _fits_with_own_threads += 1
        torch.set_num_threads(count)
    try:
        yield
    finally:
        with _lock:
            _fits_with_own_threads -= 1
            if _fits_with_own_threads == 0:
                torch.set_num_threads(_threads_before)


def usual_threads() -> int:
    """How many threads torch has where no fit has set another number."""
    with _lock:
        return _threads_before if _fits_with_own_threads else torch.get_num_threads()


@contextmanager
def threads(count: int | None) -> Iterator[Callable[[Callable[[Any], Any], list[Any]], list[Any]]]:
    """Within this block, a function that does some work on each of several things, in as many threads of Python's.

    Each of them has one of torch's threads. None is no thread of its own, and all of torch's.
    """
    if count is None:
        yield lambda work, things: [work(thing) for thing in things]
        return
    with torch_threads(1), ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield lambda work, things: list(pool.map(work, things))


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
    collecting = gc.isenabled()
    gc.disable()  # to destroy an old graph, if it were found now, is an operation that would end the recording
    try:
        with torch.cuda.graph(graph):
            result = work()
    finally:
        if collecting:
            gc.enable()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


@contextmanager
def training_precision(precision: str, backbone: Any) -> Iterator[None]:
    """tf32 and bf16 apply only inside this block; tf32 to all that runs meanwhile."""
    if hasattr(backbone, "autocast"):
        backbone.autocast = torch.bfloat16 if precision == "bf16" else None
    try:
        with tf32_allowed() if precision == "tf32" else nullcontext():
            yield
    finally:
        if hasattr(backbone, "autocast"):
            backbone.autocast = None


def compiled(method: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A bound method, compiled.

    On a GPU, independent small kernels are put into one launch ("combo kernels"): a step of one member is 65 of them
    instead of 82, and 10 % faster.
    """
    from torch._inductor import config as inductor  # slow to import, and few runs compile

    options: dict[str, Any] = (
        {"combo_kernels": True} if device.type == "cuda" and hasattr(inductor, "combo_kernels") else {}
    )
    return torch.compile(_with_own_code(method), fullgraph=True, dynamic=False, options=options)


def _with_own_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method with a code object of its own.

    torch.compile keeps its cache, and the limit on recompilations, by code object; without this the ninth wave of a
    process would not be compiled.
    """
    f: Any = method.__func__  # type: ignore[attr-defined]
    copy = FunctionType(f.__code__.replace(), f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    return MethodType(copy, method.__self__)  # type: ignore[attr-defined]
