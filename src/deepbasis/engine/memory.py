"""How many members fit: an estimate of a step's memory, the free memory, and how running out of it shows."""

import re
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from deepbasis.gp.model import DeepBasisGP

_STATE_COPIES = 8  # parameters, gradients, two moments, best parameters, average and what it displaces, one in flight

_SHARE = 0.7  # of what is free; the estimate is an estimate

UNKNOWN = 4 * 2**30
"""Assumed if the system does not report its memory."""

_GROUP_FILES = {
    "": ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
    "memory": (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}
"""Of control groups, by the controllers that /proc/self/cgroup names: version 2, and version 1. The folder that they
are mounted in, the files of the limit and of what is used, and what `memory.stat` calls the cache of files."""


def members_at_a_time(count: int, model: DeepBasisGP, rows: int, columns: int, dtype: torch.dtype, free: int) -> int:
    """How many of `count` members like `model` can take a step of `rows` rows together in `free` bytes; at least 1.

    A small run should not wait for the estimate, which takes as long as a step: a guess that is at least twice as high
    may do.
    """
    tensors = [*model.parameters(), *model.buffers()]
    guess = sum(64 * tensor.numel() + 16 * rows * max(tensor.shape, default=1) for tensor in tensors) * dtype.itemsize
    if count * guess <= _SHARE * free:
        return max(1, count)
    return max(1, int(_SHARE * free / bytes_per_member(model, rows, columns, dtype)))


def bytes_per_member(model: DeepBasisGP, rows: int, columns: int, dtype: torch.dtype) -> int:
    """An estimate of what one member adds to a training step of `rows` rows: its state, and what autograd keeps.

    The forward pass is run on the meta device, which knows shapes and has no memory; autograd's saved tensors are
    counted once each, and doubled for the gradients that flow back through them.
    """
    shadow = deepcopy(model).to("meta", dtype)
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[id(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = shadow(torch.empty(rows, columns, dtype=dtype, device="meta"))
        terms.mean.sum() + terms.corrected_var.sum()
    activations = sum(tensor.numel() * tensor.element_size() for tensor in saved.values())
    state = sum(p.numel() * p.element_size() for p in shadow.parameters())
    return _STATE_COPIES * state + 2 * activations


def available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available_on_host()


def available_on_host(proc: Path = Path("/proc"), control: Path = Path("/sys/fs/cgroup")) -> int:
    """The free memory of this machine, or of this process's container; the file cache counts as free."""
    free = [int(kib) * 1024 for kib in re.findall(r"(?m)^MemAvailable:\s*(\d+)", _text(proc / "meminfo"))]
    return max(0, min([*free, *_left_by_groups(_text(proc / "self" / "cgroup"), control)], default=UNKNOWN))


def _text(file: Path) -> str:
    """Nothing where there is no such file."""
    with suppress(OSError):
        return file.read_text()
    return ""


def _left_by_groups(membership: str, control: Path) -> Iterator[int]:
    """By every control group that this process is in, from its own to the outermost, where it has a limit."""
    for _, controllers, path in (line.split(":", 2) for line in membership.splitlines()):
        if controllers not in _GROUP_FILES:
            continue
        mount, limit, used, cached = _GROUP_FILES[controllers]
        own = control / mount / path.lstrip("/")
        for group in [own, *own.parents]:
            try:
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                cache = sum(int(stat.get(name, 0)) for name in cached)  # freed as soon as memory is needed
                yield int((group / limit).read_text()) - int((group / used).read_text()) + cache
            except (OSError, ValueError):  # no such group here, or "max": no limit
                continue


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an exception type for it; the CPU's allocator only a message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
