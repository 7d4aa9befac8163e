"""What workers say to each other, as bytes: JSON and arrays. Nothing that arrives is run.

Besides plain values and arrays there are only those dataclasses that `allow` has named, and errors.
"""

import builtins
import json
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from deepbasis import errors

_LENGTH_BYTES = 8  # of the JSON, in front of it
_ALLOWED: dict[str, type] = {}


def allow(*classes: type) -> None:
    """Let dataclasses travel, by their fields."""
    _ALLOWED.update({one.__name__: one for one in classes})


def packed(value: Any) -> bytes:
    arrays: dict[str, Tensor] = {}
    text = json.dumps(_taken_apart(value, arrays)).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + save(arrays)


def unpacked(data: bytes) -> Any:
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    return _put_together(json.loads(data[_LENGTH_BYTES:end]), load(data[end:]))


def _taken_apart(value: Any, arrays: dict[str, Tensor]) -> Any:
    """A plain value as it is; all else as a list: what it is, and what it is made of."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
        name = str(len(arrays))
        arrays[name] = tensor.to("cpu").clone(memory_format=torch.contiguous_format)
        return ["tensor" if isinstance(value, Tensor) else "array", name]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(_taken_apart(one, arrays) for one in value)]
    if isinstance(value, dict):
        return ["dict", *(_taken_apart(pair, arrays) for pair in value.items())]
    if isinstance(value, OSError) and value.errno is not None:
        return ["error", type(value).__name__, value.errno, value.strerror, value.filename]
    if isinstance(value, Exception):
        return ["error", type(value).__name__, str(value)]
    kind = _ALLOWED.get(type(value).__name__)
    if kind is None or type(value) is not kind:
        raise TypeError(f"{type(value).__name__} is nothing that workers send to each other")
    return [kind.__name__, *(_taken_apart(getattr(value, one.name), arrays) for one in fields(kind))]


def _put_together(plain: Any, arrays: dict[str, Tensor]) -> Any:
    if not isinstance(plain, list):
        return plain
    what, *parts = plain
    if what == "error":
        return _error(*parts)
    if what in ("tensor", "array"):
        return arrays[parts[0]] if what == "tensor" else arrays[parts[0]].numpy()
    values = [_put_together(part, arrays) for part in parts]
    if what in ("list", "tuple", "dict"):
        return {"list": list, "tuple": tuple, "dict": dict}[what](values)
    if what not in _ALLOWED:
        raise errors.WorkerError(f"another worker has sent a {what!r}: all must run the same release")
    return _ALLOWED[what](*values)


def _error(name: str, *arguments: Any) -> Exception:
    """One of ours or of Python's; anything else is told in words."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    simple = isinstance(kind, type) and issubclass(kind, errors.DeepBasisError | OSError | MemoryError)
    return kind(*arguments) if simple and kind else errors.WorkerError(f"{name}: {arguments[0]}")
