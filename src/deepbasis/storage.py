"""One container for everything on disk: safetensors, with JSON metadata, a format version and a checksum.

No pickle: a file holds tensors and JSON, and reading it runs no code. Writing is atomic: a reader sees the old file or
the new one, whatever happens to the writer.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from deepbasis.errors import FileFormatError, FileInUseError

FORMAT = 1
"""To be increased when older releases could no longer read the file."""

_KEY = "deepbasis"
_LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it
_LENGTH_BYTES = 8  # a safetensors file begins with its header's length, little-endian
_BLOCK_BYTES = 1 << 20
_HOLDER = b"deepbasis: reserved by "  # what a file that stands for a lock begins with
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""As safetensors calls them."""


@dataclass(frozen=True)
class _Part:
    """Where a tensor is in a file."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    first: int
    """Its first byte, from the start of the file."""

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def save(path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write `tensors` and `metadata` (anything that JSON can hold) to `path`, atomically. `kind` says what it is."""
    # A view of one number counts as contiguous whatever its stride: the format is asked for, not `.contiguous()`.
    packed = {"memory_format": torch.contiguous_format}
    on_cpu = {name: tensor.detach().to("cpu").clone(**packed) for name, tensor in tensors.items()}
    envelope = {"format": FORMAT, "kind": kind, "metadata": dict(metadata)}
    envelope["sha256"] = digest(on_cpu, envelope)
    write_atomically(path, to_safetensors(on_cpu, {_KEY: json.dumps(envelope, sort_keys=True, allow_nan=False)}))


def load(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote: (tensors on the CPU, metadata). Anything else raises `FileFormatError`.

    The header is read first, then the checksum is computed block by block: a file that is not what it should be is
    refused before memory of its size is taken.
    """
    with open(path, "rb") as file:
        parts, envelope = _header(path, file)
        if envelope["format"] > FORMAT:
            raise FileFormatError(
                f"{path} has format {envelope['format']}, this release reads up to {FORMAT}: upgrade deepbasis"
            )
        if envelope["kind"] != kind:
            raise FileFormatError(f"{path} is a deepbasis {envelope['kind']!r} file, expected a {kind!r} file")
        if envelope.pop("sha256", None) != _digest_of_file(file, parts, envelope):
            raise FileFormatError(f"{path} is damaged: its content does not match its checksum; make it again")
        try:
            tensors = {part.name: _read(file, part) for part in parts}
        except (EOFError, TypeError, RuntimeError, OverflowError) as error:
            if "can't allocate memory" in str(error):
                raise
            raise FileFormatError(f"{path} is damaged, or was changed while it was read: {error}") from None
    return tensors, envelope["metadata"]


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by what they belong to: "member/0/mean" is the "mean" of "member/0"."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, k, own = name.split("/", 2)
        found.setdefault(f"{part}/{k}", {})[own] = tensor
    return found


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write to a temporary file beside `path`, sync it, then rename: `path` never holds half of anything."""
    with writing_atomically(path) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The same, piece by piece: a file to write to, that takes its place when the block ends without an error.

    A new file has the permissions that the process gives new files; one that replaces another has those of the other,
    and never more while it is written.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: a file cannot be written in its place", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to", str(target.parent))
    _sweep_up(target)
    temporary, opened = _temporary_file(target)
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.filename is None:  # a full disk, while writing: say which file
            raise type(error)(error.errno, error.strerror, str(target)) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _temporary_file(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `target`, locked: nobody sweeps it up."""
    while True:
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        mode = 0o666
        with suppress(FileNotFoundError):
            mode &= target.stat().st_mode
        # The system itself applies the umask, which a process can only read by changing it for all of its threads.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)
        file = os.fdopen(handle, "wb")
        locked = _lock(handle)
        if locked is None or (locked and _is_at(temporary, file)):
            return temporary, file
        file.close()  # another writer has taken it for a killed one's before it was locked, and removes it


@contextmanager
def reserved(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within the block nobody else can reserve `path`: they get a `FileInUseError` that names this process.

    The lock is on a hidden file beside it. It ends with its process, and that file with the block. Where there are no
    locks nothing is refused.
    """
    beside = Path(path).parent / f".{Path(path).name}.deepbasis-lock"
    file = _locked_file(path, beside)
    try:
        yield
    finally:
        if file is not None:
            if _is_ours(file):
                with suppress(OSError):
                    os.unlink(beside)
            file.close()  # after that, so that nobody can have locked the file that is removed


def _locked_file(path: str | os.PathLike[str], beside: Path) -> BinaryIO | None:
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            file = os.fdopen(os.open(beside, flags, 0o666), "a+b")
        except OSError:  # whoever writes to that folder will say what is wrong with it
            return None
        locked = _lock(file.fileno())
        if locked and _is_at(beside, file):
            if _is_ours(file):
                file.truncate(0)
                file.write(_HOLDER + f"process {os.getpid()} on {socket.gethostname()}".encode())
                file.flush()
            return file
        ours = _is_ours(file)
        file.seek(len(_HOLDER))
        other = (file.read(300).decode("utf-8", "replace") if ours else "") or "another process"
        if locked is None and ours:
            os.unlink(beside)
        file.close()
        if locked is None:
            return None
        if not locked:
            raise FileInUseError(f"{os.fspath(path)} is in use by {other}: wait for its end, or name another file")
        # else: the one before us has removed the file that we opened


def _is_ours(file: BinaryIO) -> bool:
    """Whether a file beside a reserved one is nothing but that: it may be somebody's own, of that name."""
    file.seek(0)
    return file.read(len(_HOLDER)) in (b"", _HOLDER)


def _is_at(path: str | Path, file: BinaryIO) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def _lock(handle: int) -> bool | None:
    """Lock a file until it is closed; False if somebody else holds it, None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None


def _sweep_up(target: Path) -> None:
    """Remove temporary files that killed writers of this name have left: those that nobody holds."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError), open(left, "rb") as file:
            if _lock(file.fileno()):
                left.unlink(missing_ok=True)


def _header(path: str | os.PathLike[str], file: BinaryIO) -> tuple[list[_Part], dict[str, Any]]:
    """Where its tensors are, and the JSON that `save` put into the header: checked in form, not yet in meaning."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
        raise FileFormatError(f"{path} is not a deepbasis file, or it is truncated")
    if length > _LONGEST_HEADER:
        raise FileFormatError(f"{path} is not a deepbasis file")
    try:
        header = json.loads(file.read(length))
        envelope = json.loads(header.pop("__metadata__")[_KEY], parse_constant=_refused)
        well_formed = (
            isinstance(envelope["format"], int)
            and isinstance(envelope["kind"], str)
            and isinstance(envelope["metadata"], dict)
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        well_formed = False
    if not well_formed:
        raise FileFormatError(f"{path} is not a deepbasis file")
    return _parts(path, header, _LENGTH_BYTES + length, size), dict(envelope)


def _parts(path: str | os.PathLike[str], described: Mapping[str, Any], start: int, size: int) -> list[_Part]:
    """The tensors that a header describes: one behind the other, and nothing else in the file."""
    parts = []
    try:
        for name, one in described.items():
            first, end = one["data_offsets"]
            part = _Part(name, _DTYPES[one["dtype"]], [*one["shape"]], start + first)
            name.encode()  # JSON may hold what is no text
            if not all(type(number) is int and number >= 0 for number in (first, end, *part.shape)):
                raise ValueError(f"the place or the shape of {name!r} is no whole number")
            if part.size != end - first:
                raise ValueError(f"{name!r} has {end - first} bytes, and a shape of {part.size}")
            parts.append(part)
    except (ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f"{path} is damaged: its header is wrong ({error})") from None
    parts.sort(key=lambda part: (part.first, part.size))
    ends = [start, *(part.first + part.size for part in parts)]
    if ends[-1] != size:
        raise FileFormatError(f"{path} is damaged: it is {size} bytes long, but its header describes another size")
    if [part.first for part in parts] != ends[:-1]:
        raise FileFormatError(f"{path} is damaged: its tensors overlap, or there is something between them")
    return parts


def _read(file: BufferedReader, part: _Part) -> Tensor:
    raw = torch.empty(part.size, dtype=torch.uint8)
    file.seek(part.first)
    if file.readinto(raw.numpy().data) != part.size:
        raise EOFError("its end is missing")
    return raw.view(part.dtype).reshape(part.shape)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def digest(tensors: Mapping[str, Tensor], envelope: Mapping[str, Any]) -> str:
    """SHA-256 of the envelope and of every tensor's name, dtype, shape and bytes."""
    found = hashlib.sha256(json.dumps(envelope, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        found.update(_label(name, tensor.dtype, list(tensor.shape)))
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _digest_of_file(file: BinaryIO, parts: Sequence[_Part], envelope: Mapping[str, Any]) -> str:
    """The same of tensors in a file, none of which is held in memory."""
    found = hashlib.sha256(json.dumps(envelope, sort_keys=True).encode())
    for part in sorted(parts, key=lambda part: part.name):
        found.update(_label(part.name, part.dtype, part.shape))
        file.seek(part.first)
        for left in range(part.size, 0, -_BLOCK_BYTES):
            found.update(file.read(min(left, _BLOCK_BYTES)))
    return found.hexdigest()


def _label(name: str, dtype: torch.dtype, shape: list[int]) -> bytes:
    return f"{name}|{dtype}|{shape}|".encode()


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every system lets a directory be opened."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
