"""Predictions of tables: their columns, and those of a table in files: one Parquet file for each, piece by piece.

A part is written under another name and moved into place once complete. It records which model and which input it was
made from, so that a run that was stopped continues with the missing parts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbasis.errors import InputError
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import Array, category
from deepbasis.tables.encoders import Encoding
from deepbasis.tables.output import writing
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.source import Source

if TYPE_CHECKING:
    import pandas as pd

_KEY = b"deepbasis"


@dataclass(frozen=True)
class PredictionColumns:
    """The columns of a prediction: mean, std, the ends of an interval, quantiles."""

    coverage: float | None = 0.95
    levels: Sequence[float] = ()

    @property
    def names(self) -> list[str]:
        """mean, std, lower_95, upper_95, q_0.1 ..."""
        percent = None if self.coverage is None else f"{100.0 * self.coverage:.12g}"
        ends = [] if percent is None else [f"lower_{percent}", f"upper_{percent}"]
        return ["mean", "std", *ends, *(f"q_{level:.12g}" for level in self.levels)]

    def numbers(self, distribution: Any) -> list[Array]:
        """Of a predictive distribution, in the order of the names."""
        found = [distribution.mean, distribution.std]
        found += [] if self.coverage is None else distribution.interval(self.coverage)
        found += [distribution.quantile(level) for level in self.levels]
        return [np.asarray(values) for values in found]


# ---- the columns that a model takes ----------------------------------------------------------------------------------


def open_inputs(data: Any, preprocessor: Preprocessor, ids: Sequence[str] = ()) -> Source:
    """New rows for a model: the columns of `ids`, which are copied, and those that the model needs.

    Columns that it knows as text are read as text. `input_names` are the names of its inputs in their order.
    """
    names = preprocessor.input_columns
    if names is None:
        source = Source.open(data, text=ids)
        names = [name for name in source.names if name not in ids]
        if len(names) != len(preprocessor.encodings):
            raise InputError(
                f"{source.name} has {len(names)} columns beside those that are copied, but the model was fitted on an "
                f"array of {len(preprocessor.encodings)} without names: give exactly those, in their order"
            )
    text = [*_text_columns(names, preprocessor.encodings), *(name for name in ids if name not in names)]
    return Source.open(data, list(dict.fromkeys([*ids, *names])), text=text)


def input_names(source: Source, preprocessor: Preprocessor, ids: Sequence[str] = ()) -> list[str]:
    """Of what `open_inputs` gave. A model of an array takes its columns by their places."""
    return preprocessor.input_columns or [name for name in source.names if name not in ids]


def _text_columns(names: Sequence[str], encodings: Sequence[Encoding]) -> list[str]:
    """The columns that a model knows as text: in a CSV they are read as text, whatever their cells contain.

    Not those whose categories are all numbers or truth values as we write them (1, 2.5, True): a pandas Categorical may
    have held these, and 1.0, as pandas writes it in a column with a gap, is its 1.
    """
    return [
        name
        for name, encoding in zip(names, encodings, strict=True)
        if encoding.kind == "categorical"
        and not (encoding.categories and all(_was_a_number(one) for one in encoding.categories))
    ]


def _was_a_number(name: str) -> bool:
    try:
        return name in ("True", "False") or category(float(name)) == name
    except ValueError:
        return False


# ---- part files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartFiles:
    """What is predicted, from what, by which model."""

    source: Source
    inputs: Sequence[str]
    """The columns that are predicted from."""
    predict: Callable[[FileBlock], Any]
    """The predictive distribution of a block's rows."""
    wanted: PredictionColumns
    ids: Sequence[str]
    """Columns that are copied to the front; of a CSV the text of their cells."""
    model: str
    """A fingerprint."""
    block_rows: int
    progress: Callable[[int], None] = lambda rows: None

    def __post_init__(self) -> None:
        check_columns_differ(self.ids, self.wanted)

    def write(self, file: int, path: Path) -> bool:
        """Write the predictions of a file to `path`; False if they are already there."""
        from pyarrow import parquet

        record = self._record(file)
        if _record_of(path) == record:
            self.progress(self.source.file_rows[file])
            return False
        schema = self._schema(file).with_metadata({_KEY: json.dumps(record, sort_keys=True).encode()})
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as to, parquet.ParquetWriter(to, schema) as writer:
            for table in self._tables(file, schema):
                writer.write_table(table)
                self.progress(table.num_rows)
        return True

    def frame(self, file: int) -> pd.DataFrame:
        """The same in memory; whole numbers with gaps among the copied columns stay whole."""
        import pandas as pd
        import pyarrow as pa

        table = pa.concat_tables(self._tables(file, self._schema(file)))
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        for name in self.ids:
            column = table.column(name)
            if pa.types.is_integer(column.type) and column.null_count:  # they would be floats
                nullable = str(column.type).replace("int", "Int").replace("u", "U")  # in pandas' words
                frame[name] = pd.array(column.to_pylist(), dtype=nullable)
        return frame

    def _tables(self, file: int, schema: Any) -> Iterator[Any]:
        import pyarrow as pa

        for block in self.source.all_blocks(self.inputs, self.block_rows, self.ids, file):
            kept = [block.copied.column(name) for name in self.ids]
            numbers = self.wanted.numbers(self.predict(block))
            yield pa.table([*kept, *(pa.array(values, pa.float64()) for values in numbers)], schema=schema)

    def _schema(self, file: int) -> Any:
        import pyarrow as pa

        fields = [(name, self.source.type_of(file, name, copied=True)) for name in self.ids]
        return pa.schema([*fields, *((name, pa.float64()) for name in self.wanted.names)])

    def _record(self, file: int) -> dict[str, Any]:
        place = self.source.files[file].place
        columns = [*self.ids, *self.wanted.names]
        return {"model": self.model, "input": [place.relative, *place.identity()], "columns": columns}


def check_columns_differ(ids: Sequence[str], wanted: PredictionColumns) -> None:
    twice = [name for name, count in Counter([*ids, *wanted.names]).items() if count > 1]
    if twice:
        raise InputError(
            f"the predictions would have the column '{twice[0]}' twice: name each of ids and each quantile once, "
            "and rename a column of the table that is called as a predicted one"
        )


def part_paths(source: Source, out: str | os.PathLike[str]) -> list[Path]:
    """Where each file's predictions go: its name below `out`, ending in .parquet."""
    read = {_inode(Path(file.place.path)) for file in source.files if file.place.filesystem is None}
    paths: dict[Path, None] = {}
    for file in source.files:
        path = Path(out) / f"{file.place.stem}.parquet"
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
    """What an earlier run recorded in a part; None if there is no part, or not one of ours."""
    import pyarrow as pa
    from pyarrow import parquet

    if not path.is_file():
        return None
    try:
        metadata = parquet.read_schema(path).metadata or {}
        return json.loads(metadata.get(_KEY, b"null"))
    except (pa.ArrowException, OSError, ValueError):
        return None
