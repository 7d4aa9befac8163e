"""A device by its name, and how work runs on it: threads, CUDA graphs, torch.compile, the precision of a step."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import FunctionType, MethodType
from typing import Any

import torch

from deepbasis.errors import InputError

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


_lock = Lock()
_fits_with_one_thread = 0
_threads_before = 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches of a few hundred rows gain little from a second thread, and lose much on a busy machine.

    Sums are also rounded in the same order, so results do not depend on the number of cores. The setting is global: if
    fits overlap, the first one sets it and the last one restores it.
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
    """If the garbage collector found an old graph while another is recorded, destroying it would be an operation that a
    recording does not allow, and end it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def training_precision(precision: str, backbone: Any) -> Iterator[None]:
    """tf32 and bf16 apply only inside this block."""
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
