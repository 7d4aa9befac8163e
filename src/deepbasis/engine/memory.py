"""How many members fit: an estimate of a step's memory, what the device has free, and what running out looks like."""

import os
from copy import deepcopy

import torch
from torch import Tensor

from deepbasis.gp.model import DeepBasisGP

_STATE_COPIES = 8  # parameters, gradients, two moments, best parameters, average and what it displaces, one in flight


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
        (terms.mean + terms.var + terms.correction).sum()
    activations = sum(tensor.numel() * tensor.element_size() for tensor in saved.values())
    state = sum(p.numel() * p.element_size() for p in shadow.parameters())
    return _STATE_COPIES * state + 2 * activations


def available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 4 * 2**30


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU's allocator says it in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
