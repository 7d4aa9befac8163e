"""What an experiment has recorded: a text file with a line for each part, and a Parquet file of the arrays to draw.

Both are written whole, beside their place, and renamed. Several processes may record into one folder: each waits for
the others, reads what they have written, and adds its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepbasis.errors import FileFormatError
from deepbasis.storage import write_atomically

LINES, ARRAYS = "parts.jsonl", "arrays.parquet"

Line = dict[str, Any]
"""Of a part: "name", "settings", "values" and "made"."""
Arrays = dict[str, Tensor]
"""All float32: their digits are for the eye, and whole numbers below 2^24 are exact."""
_Stamp = tuple[int, int, int] | None


@dataclass
class Records:
    """The two files of one folder."""

    folder: Path
    _lines: tuple[_Stamp, dict[str, Line]] = (None, {})
    _arrays: tuple[_Stamp, dict[str, Arrays]] = field(default=(None, {}), repr=False)

    @property
    def file(self) -> Path:
        return self.folder / LINES

    def lines(self) -> dict[str, Line]:
        """By name, in the order in which they were first recorded. Read again only when the file has changed."""
        stamp = _stamp(self.file)
        if stamp != self._lines[0]:
            self._lines = stamp, {} if stamp is None else _parsed(self.file)
        return self._lines[1]

    def arrays(self, name: str) -> Arrays:
        """Of one part; most have none."""
        return dict(self._every_array().get(name, {}))

    def put(self, line: Line, arrays: Mapping[str, Tensor]) -> None:
        """Record a part, in the place of an older one of its name. Its arrays first: a line is a part that is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _others_wait(self.folder):
            every = self._every_array()
            if arrays or line["name"] in every:
                every = {**every, line["name"]: {name: a.detach().cpu().float() for name, a in arrays.items()}}
                write_atomically(self.folder / ARRAYS, _packed(every))
            lines = {**self.lines(), line["name"]: line}
            text = "".join(f"{_compact(one)}\n" for one in lines.values())
            write_atomically(self.file, text.encode())

    def _every_array(self) -> dict[str, Arrays]:
        file = self.folder / ARRAYS
        stamp = _stamp(file)
        if stamp != self._arrays[0]:
            self._arrays = stamp, {} if stamp is None else _unpacked(file)
        return self._arrays[1]


def to_draw(array: Tensor) -> Tensor:
    """With the three digits that a figure shows, which take a third of the room."""
    return array.half().float()


def _stamp(file: Path) -> _Stamp:
    """Another one for every writing: each makes a new file."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _others_wait(folder: Path) -> Iterator[None]:
    """The folder itself is locked, so that nothing is left behind. Systems without such a lock have one process."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compact(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _parsed(file: Path) -> dict[str, Line]:
    found = {}
    for k, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            found[line["name"]] = {key: line[key] for key in ("name", "settings", "values", "made")}
        except (ValueError, TypeError, KeyError):
            raise FileFormatError(
                f"{file}, line {k} is no part: delete the line, and it will be computed again"
            ) from None
    return found


def _packed(arrays: Mapping[str, Arrays]) -> bytes:
    """A row for each array: the part, the array's name, its shape and its values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(part, name, array) for part, own in arrays.items() for name, array in own.items()]
    flat = [np.ascontiguousarray(array.numpy(), dtype=np.float32).ravel() for _, _, array in rows]
    ends = np.cumsum([0, *map(len, flat)], dtype=np.int32)
    values = pa.ListArray.from_arrays(ends, pa.array(np.concatenate([np.empty(0, np.float32), *flat])))
    table = pa.table(
        {
            "part": pa.array([part for part, _, _ in rows], pa.string()),
            "array": pa.array([name for _, name, _ in rows], pa.string()),
            "shape": pa.array([list(array.shape) for _, _, array in rows], pa.list_(pa.int32())),
            "values": values,
        }
    )
    sink = pa.BufferOutputStream()
    # Bytes of one kind stand together: arrays that were rounded to fewer digits take less room.
    encoding = {"values.list.element": "BYTE_STREAM_SPLIT"}
    pq.write_table(
        table, sink, compression="zstd", compression_level=19, use_dictionary=False, column_encoding=encoding
    )
    return bytes(sink.getvalue())


def _unpacked(file: Path) -> dict[str, Arrays]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, columns=["part", "array", "shape", "values"], memory_map=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FileFormatError(f"{file} cannot be read as the arrays of an experiment: {error}") from None
    found: dict[str, Arrays] = {}
    parts, names, shapes = (table[column].to_pylist() for column in ("part", "array", "shape"))
    for part, name, shape, values in zip(parts, names, shapes, table["values"], strict=True):
        flat = values.values.to_numpy(zero_copy_only=False).astype(np.float32)
        found.setdefault(part, {})[name] = torch.from_numpy(flat).reshape(shape)
    return found
