"""One container for everything on disk: safetensors, with JSON metadata, a format version and a checksum.

No pickle: a file holds tensors and JSON, and reading it runs no code. Writing is atomic: a reader sees the old file or
the new one, whatever happens to the writer.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from deepbasis.errors import FileFormatError

FORMAT = 1
"""Raised when an older release could no longer read the file."""

_KEY = "deepbasis"
_LENGTH_BYTES = 8  # a safetensors file begins with its header's length, little-endian


def save(path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write `tensors` and `metadata` (anything that JSON can hold) to `path`, atomically. `kind` says what it is."""
    # A view of one number counts as contiguous whatever its stride: the format is asked for, not `.contiguous()`.
    packed = {"memory_format": torch.contiguous_format}
    on_cpu = {name: tensor.detach().to("cpu").clone(**packed) for name, tensor in tensors.items()}
    envelope = {"format": FORMAT, "kind": kind, "metadata": dict(metadata)}
    envelope["sha256"] = _digest(on_cpu, envelope)
    write_atomically(path, to_safetensors(on_cpu, {_KEY: json.dumps(envelope, sort_keys=True, allow_nan=False)}))


def load(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote: (tensors on the CPU, metadata). Everything else is a `FileFormatError`."""
    data = Path(path).read_bytes()
    envelope = _envelope(path, data)
    if envelope["format"] > FORMAT:
        raise FileFormatError(
            f"{path} has format {envelope['format']}, this release reads up to {FORMAT}: upgrade deepbasis"
        )
    if envelope["kind"] != kind:
        raise FileFormatError(f"{path} is a deepbasis {envelope['kind']!r} file, expected a {kind!r} file")
    try:
        tensors = parse_safetensors(data)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None
    if envelope.pop("sha256", None) != _digest(tensors, envelope):
        raise FileFormatError(f"{path} is damaged: its content does not match its checksum; make it again")
    return tensors, envelope["metadata"]


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write to a temporary file beside `path`, sync it, then rename: `path` never holds half of anything."""
    with writing_atomically(path) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The same, piece by piece: a file to write to, that takes its place when the block ends without an error."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: a file cannot be written in its place", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to", str(target.parent))
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_directory(target.parent)


def _envelope(path: str | os.PathLike[str], data: bytes) -> dict[str, Any]:
    """The JSON that `save` put into the header, with its shape checked and its meaning not yet."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or length > len(data) - _LENGTH_BYTES:
        raise FileFormatError(f"{path} is not a deepbasis file, or it is truncated")
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        envelope = json.loads(header["__metadata__"][_KEY])
        well_formed = (
            isinstance(envelope["format"], int)
            and isinstance(envelope["kind"], str)
            and isinstance(envelope["metadata"], dict)
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        well_formed = False
    if not well_formed:
        raise FileFormatError(f"{path} is not a deepbasis file")
    return dict(envelope)


def _digest(tensors: Mapping[str, Tensor], envelope: Mapping[str, Any]) -> str:
    """SHA-256 of the envelope and of every tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(envelope, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every system lets a directory be opened."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
