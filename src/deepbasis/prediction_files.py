"""Predictions of a table in files: one Parquet file for each, read and written piece by piece.

A part is written under another name and takes its place when it is whole. It records which model and which input it was
made from, so that a run that was stopped goes on with the parts that are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepbasis.errors import InputError
from deepbasis.tables.arrow import Block
from deepbasis.tables.files import cannot_write
from deepbasis.tables.naming import ENDINGS
from deepbasis.tables.predicted import Wanted
from deepbasis.tables.sources import Source

_KEY = b"deepbasis"
_READING = 2
"""Another number wherever the same file comes to be read otherwise: parts that were made before are made again."""


@dataclass(frozen=True)
class Work:
    """What is predicted, from what, by which model."""

    source: Source
    inputs: Sequence[str]
    """The columns that are predicted from."""
    predict: Callable[[Block], Any]
    """The predictive distribution of a block's rows."""
    wanted: Wanted
    ids: Sequence[str]
    """Columns that are copied to the front; of a CSV the text of their cells."""
    model: str
    """A fingerprint."""
    block_rows: int
    tell: Callable[[int], None] = lambda rows: None

    def part(self, file: int, path: Path) -> bool:
        """Write the predictions of a file to `path`; False if they stand there already."""
        record = self._record(file)
        if _record_of(path) == record:
            self.tell(self.source.file_rows[file])
            return False
        try:
            self._write(file, path, record)
        except OSError as error:
            raise InputError(cannot_write(path, error)) from None
        return True

    def _write(self, file: int, path: Path, record: dict[str, Any]) -> None:
        from pyarrow import parquet

        from deepbasis.storage import writing_atomically

        schema = self._schema(file, record)
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_atomically(path) as to, parquet.ParquetWriter(to, schema) as writer:
            for table in self._tables(file, schema):
                writer.write_table(table)
                self.tell(table.num_rows)

    def _tables(self, file: int, schema: Any) -> Iterator[Any]:
        import pyarrow as pa

        for block in self.source.file_blocks(file, self.inputs, self.block_rows, self.ids):
            kept = [block.copied.column(name) for name in self.ids]
            numbers = self.wanted.numbers(self.predict(block))
            yield pa.table([*kept, *(pa.array(values, pa.float64()) for values in numbers)], schema=schema)

    def _schema(self, file: int, record: dict[str, Any]) -> Any:
        import pyarrow as pa

        fields = [(name, self.source.copied_type(file, name)) for name in self.ids]
        fields += [(name, pa.float64()) for name in self.wanted.names]
        return pa.schema(fields, metadata={_KEY: json.dumps(record, sort_keys=True).encode()})

    def _record(self, file: int) -> dict[str, Any]:
        place = self.source.files[file].place
        return {
            "model": self.model,
            "input": [place.relative, *place.identity()],
            "columns": [*self.ids, *self.wanted.names],
            "reading": _READING,
        }


def part_paths(source: Source, out: str | os.PathLike[str]) -> list[Path]:
    """Where each file's predictions go: its name below `out`, ending in .parquet."""
    read = {_inode(Path(file.place.path)) for file in source.files if file.place.filesystem is None}
    paths: dict[Path, None] = {}
    for file in source.files:
        relative = file.place.relative
        ending = max((one for one in ENDINGS if relative.lower().endswith(one)), key=len)
        path = Path(out) / f"{relative[: -len(ending)]}.parquet"
        if path in paths:
            raise InputError(f"two tables would both be predicted to '{path}': rename {file.place.name}")
        if path.exists() and _inode(path) in read:
            raise InputError(f"cannot write '{path}': it is also read; choose another folder for the output")
        paths[path] = None
    return list(paths)


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _record_of(path: Path) -> Any:
    """What an earlier run wrote down in a part; None where there is none, or none of ours."""
    import pyarrow as pa
    from pyarrow import parquet

    if not path.is_file():
        return None
    try:
        metadata = parquet.read_schema(path).metadata or {}
        return json.loads(metadata.get(_KEY, b"null"))
    except (pa.ArrowException, OSError, ValueError):
        return None
