"""One container for everything on disk: safetensors, with JSON metadata, a format version and a checksum.

No pickle: a file holds tensors and JSON, and reading it runs no code. Writing is atomic: a reader sees the old file or
the new one, whatever happens to the writer.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from deepbasis.errors import FileFormatError, FileInUseError

FORMAT = 1
"""To be increased when older releases could no longer read the file."""

_KEY = "deepbasis"
_LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it
_LENGTH_BYTES = 8  # a safetensors file begins with its header's length, little-endian


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

    The header is read first: a file that is not what it should be is refused before its tensors are read.
    """
    with open(path, "rb") as file:
        header, envelope = _header(path, file)
        if envelope["format"] > FORMAT:
            raise FileFormatError(
                f"{path} has format {envelope['format']}, this release reads up to {FORMAT}: upgrade deepbasis"
            )
        if envelope["kind"] != kind:
            raise FileFormatError(f"{path} is a deepbasis {envelope['kind']!r} file, expected a {kind!r} file")
        data = header + file.read()
    try:
        tensors = parse_safetensors(data)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None
    if envelope.pop("sha256", None) != digest(tensors, envelope):
        raise FileFormatError(f"{path} is damaged: its content does not match its checksum; make it again")
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

    A new file has the permissions that the process gives new files; one that replaces another has those of the other.
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
        # The system itself applies the umask, which a process can only read by changing it for all of its threads.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        file = os.fdopen(handle, "wb")
        locked = _lock(handle)
        if locked is None or (locked and _is_at(temporary, file)):
            return temporary, file
        file.close()  # another writer has taken it for a killed one's before it was locked, and removes it


@contextmanager
def reserved(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within the block nobody else can reserve `path`: they get a `FileInUseError` that names this process.

    The lock is on a file beside it, PATH.lock. It ends with its process, and that file with the block. Where there are
    no locks nothing is refused.
    """
    beside = f"{os.fspath(path)}.lock"
    file = _locked_file(path, beside)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                os.unlink(beside)
            file.close()  # after that, so that nobody can have locked the file that is removed


def _locked_file(path: str | os.PathLike[str], beside: str) -> BinaryIO | None:
    while True:
        try:
            file = open(beside, "a+b")  # noqa: SIM115
        except OSError:  # whoever writes to that folder will say what is wrong with it
            return None
        locked = _lock(file.fileno())
        if locked and _is_at(beside, file):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
            return file
        file.seek(0)
        other = file.read(300).decode("utf-8", "replace") or "another process"
        file.close()
        if locked is None:
            os.unlink(beside)
            return None
        if not locked:
            raise FileInUseError(f"{os.fspath(path)} is in use by {other}: wait for its end, or name another file")
        # else: the one before us has removed the file that we opened


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


def _header(path: str | os.PathLike[str], file: BinaryIO) -> tuple[bytes, dict[str, Any]]:
    """The header as it is, and the JSON that `save` put into it: checked in form, not yet in meaning."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
        raise FileFormatError(f"{path} is not a deepbasis file, or it is truncated")
    if length > _LONGEST_HEADER:
        raise FileFormatError(f"{path} is not a deepbasis file")
    text = file.read(length)
    try:
        header = json.loads(text)
        envelope = json.loads(header["__metadata__"][_KEY], parse_constant=_refused)
        end = max((int(one["data_offsets"][1]) for name, one in header.items() if name != "__metadata__"), default=0)
        well_formed = (
            isinstance(envelope["format"], int)
            and isinstance(envelope["kind"], str)
            and isinstance(envelope["metadata"], dict)
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        well_formed, end = False, 0
    if not well_formed:
        raise FileFormatError(f"{path} is not a deepbasis file")
    if _LENGTH_BYTES + length + end != size:
        raise FileFormatError(f"{path} is damaged: it is {size} bytes long, but its header describes another size")
    return prefix + text, dict(envelope)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def digest(tensors: Mapping[str, Tensor], envelope: Mapping[str, Any]) -> str:
    """SHA-256 of the envelope and of every tensor's name, dtype, shape and bytes."""
    found = hashlib.sha256(json.dumps(envelope, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        found.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every system lets a directory be opened."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
