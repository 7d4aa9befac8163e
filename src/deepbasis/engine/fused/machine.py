"""What the kernels find on a machine."""

import os
from importlib.util import find_spec

import torch


def available() -> bool:
    """Whether there is a Triton to compile kernels with."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter runs kernels, without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def hopper() -> bool:
    """Whether every GPU here is of that generation, or a later one."""
    return all(torch.cuda.get_device_capability(k) >= (9, 0) for k in range(torch.cuda.device_count()))


def usable(device: torch.device) -> bool:
    return available() and (device.type == "cuda" or interpreted())
