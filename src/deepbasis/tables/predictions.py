"""Predictions of tables: their columns, and those of a table in files: one Parquet file for each, piece by piece.

A part is written under another name and moved into place once complete. It records which model and which input it was
made from, so that a run that was stopped continues with the missing parts (`folders.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np

from deepbasis.errors import InputError, warn_of_table
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.cells import CATEGORY
from deepbasis.tables.columns import Array, category
from deepbasis.tables.encoders import Encoding
from deepbasis.tables.folders import RECORD, record_of
from deepbasis.tables.output import writing
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.source import Source

if TYPE_CHECKING:
    import pandas as pd

_FORMULA, _BREAKS = ("=", "+", "-", "@"), ("\t", "\r", "\n")
"""What a cell begins with that a spreadsheet may take for a formula, also in its full width, or behind blanks; and what
may end a cell for it."""


@dataclass(frozen=True)
class PredictionColumns:
    """The columns of a prediction: mean, std, the ends of an interval, quantiles, and how unlike the fit's a row is."""

    coverage: float | None = 0.95
    levels: Sequence[float] = ()
    novelty: bool = False
    guarantee: bool = False
    """Of the interval: it keeps what it promises, by rows that the fit has set apart."""

    @property
    def names(self) -> list[str]:
        """mean, std, lower_95, upper_95, q_0.1 ..., novelty."""
        percent = None if self.coverage is None else f"{100.0 * self.coverage:.12g}"
        ends = [] if percent is None else [f"lower_{percent}", f"upper_{percent}"]
        return ["mean", "std", *ends, *(f"q_{level:.12g}" for level in self.levels), *["novelty"] * self.novelty]

    def numbers(
        self,
        distribution: Any,
        p_values: Callable[[], Array] | None = None,
        guaranteed: Callable[[float], Sequence[Array]] | None = None,
    ) -> list[Array]:
        """Of a predictive distribution, p-values and guaranteed intervals, in the order of the names."""
        found = [distribution.mean, distribution.std]
        interval = guaranteed if self.guarantee and guaranteed else distribution.interval
        found += [] if self.coverage is None else interval(self.coverage)
        found += [distribution.quantile(level) for level in self.levels]
        found += [p_values()] if self.novelty and p_values else []
        return [np.asarray(values) for values in found]


@dataclass(frozen=True)
class ClassColumns:
    """The columns of a prediction of classes: the probability of each, and how unlike the fit's a row is."""

    classes: Sequence[str]
    novelty: bool = False

    @property
    def names(self) -> list[str]:
        """p_cat, p_dog, ..., novelty."""
        return [*(f"p_{name}" for name in self.classes), *["novelty"] * self.novelty]

    def numbers(
        self,
        distribution: Any,
        p_values: Callable[[], Array] | None = None,
        guaranteed: Callable[[float], Sequence[Array]] | None = None,
    ) -> list[Array]:
        found = [np.asarray(values) for values in distribution.tensors.probabilities.numpy().T]
        return [*found, p_values()] if self.novelty and p_values else found


@dataclass(frozen=True)
class OutputColumns:
    """The columns of a prediction of several outputs: those of each, and how unlike the fit's a row is."""

    outputs: Sequence[str]
    of_each: PredictionColumns

    @property
    def names(self) -> list[str]:
        """mean_a, std_a, lower_95_a, ..., mean_b, ..., novelty."""
        own = replace(self.of_each, novelty=False).names
        novelty = ["novelty"] * self.of_each.novelty
        return [*(f"{column}_{output}" for output in self.outputs for column in own), *novelty]

    def numbers(
        self,
        distribution: Any,
        p_values: Callable[[], Array] | None = None,
        guaranteed: Callable[[float], Sequence[Array]] | None = None,
    ) -> list[Array]:
        found = [values for name in self.outputs for values in self.of_each.numbers(distribution.output(name))]
        return [*found, p_values()] if self.of_each.novelty and p_values else found


Columns = PredictionColumns | ClassColumns | OutputColumns

# ---- the columns that a model takes ----------------------------------------------------------------------------------


def open_inputs(data: Any, preprocessor: Preprocessor, ids: Sequence[str] = (), beside: Sequence[str] = ()) -> Source:
    """New rows for a model: the columns of `ids`, which are copied, those that the model needs, and those `beside`.

    Columns that it knows as text are read as text. `input_names` are the names of its inputs in their order.
    """
    names = preprocessor.input_columns
    if names is None:
        source = Source.open(data, text=ids)
        names = [name for name in source.names if name not in (*ids, *beside)]
        if len(names) != len(preprocessor.encodings):
            raise InputError(
                f"{source.name} has {len(names)} columns beside those that are copied, but the model was fitted on an "
                f"array of {len(preprocessor.encodings)} without names: give exactly those, in their order"
            )
    text = [*_text_columns(names, preprocessor.encodings), *(name for name in ids if name not in (*names, *beside))]
    found = Source.open(data, list(dict.fromkeys([*ids, *preprocessor.needed(names), *beside])), text=text)
    for note in found.notes:
        warn_of_table(note)
    return found


def input_names(source: Source, preprocessor: Preprocessor, ids: Sequence[str] = ()) -> list[str]:
    """Of what `open_inputs` gave. A model of an array takes its columns by their places."""
    if preprocessor.input_columns is not None:
        return preprocessor.needed(preprocessor.input_columns)
    return [name for name in source.names if name not in ids]


def _text_columns(names: Sequence[str], encodings: Sequence[Encoding]) -> list[str]:
    """The columns that a model knows as text: in a CSV they are read as text, whatever their cells contain.

    Not those whose categories are all numbers or truth values as we write them (1, 2.5, True): a pandas Categorical may
    have held these, and 1.0, as pandas writes it in a column with a gap, is its 1. A rule reads nothing but text.
    """
    return [name for name, encoding in zip(names, encodings, strict=True) if _is_text(encoding)]


def _is_text(encoding: Encoding) -> bool:
    if encoding.rule is not None and encoding.rule.form != CATEGORY:
        return True
    numbers = bool(encoding.categories) and all(_was_a_number(one) for one in encoding.categories)
    return encoding.kind == "categorical" and not numbers


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
    predict: Callable[[FileBlock], Sequence[Array]]
    """The numbers that are wanted of a block's rows."""
    wanted: Columns
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
        if record_of(path) == record:
            self.progress(self.source.file_rows[file])
            return False
        schema = self._schema(file).with_metadata({RECORD: json.dumps(record, sort_keys=True).encode()})
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as to, parquet.ParquetWriter(to, schema) as writer:
            for table in self._tables(file, schema):
                writer.write_table(table)
                self.progress(table.num_rows)
        return True

    def frames(self, file: int) -> Iterator[pd.DataFrame]:
        """The same in memory, a block at a time; whole numbers with gaps among the copied columns stay whole."""
        import pandas as pd
        import pyarrow as pa

        for table in self._tables(file, self._schema(file)):
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
            for name in self.ids:
                column = table.column(name)
                if pa.types.is_integer(column.type) and column.null_count:  # they would be floats
                    nullable = str(column.type).replace("int", "Int").replace("u", "U")  # in pandas' words
                    frame[name] = pd.array(column.to_pylist(), dtype=nullable)
            yield frame

    def _tables(self, file: int, schema: Any) -> Iterator[Any]:
        import pyarrow as pa

        for block in self.source.all_blocks(self.inputs, self.block_rows, self.ids, file):
            kept = [block.copied.column(name) for name in self.ids]
            numbers = self.predict(block)
            yield pa.table([*kept, *(pa.array(values, pa.float64()) for values in numbers)], schema=schema)

    def _schema(self, file: int) -> Any:
        import pyarrow as pa

        fields = [(name, self.source.type_of(file, name, copied=True)) for name in self.ids]
        return pa.schema([*fields, *((name, pa.float64()) for name in self.wanted.names)])

    def _record(self, file: int) -> dict[str, Any]:
        place = self.source.files[file].place
        promised = ["guarantee"] if isinstance(self.wanted, PredictionColumns) and self.wanted.guarantee else []
        columns = [*self.ids, *self.wanted.names, *promised]
        return {"model": self.model, "input": [place.relative, place.fingerprint()], "columns": columns}


def without_formulas(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The texts of these columns, and their names, so that a spreadsheet takes none of them for a formula."""

    def quoted(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        seen = next((c for c in cell if c.isprintable() and not c.isspace()), "")
        return f"'{cell}" if cell.startswith(_BREAKS) or normalize("NFKC", seen) in _FORMULA else cell

    cells = {name: frame[name].map(quoted) for name in names if frame[name].dtype.kind not in "biufmM"}
    return frame.assign(**cells).rename(columns={name: quoted(name) for name in names})


def check_columns_differ(ids: Sequence[str], wanted: Columns) -> None:
    twice = [name for name, count in Counter([*ids, *wanted.names]).items() if count > 1]
    if twice:
        raise InputError(
            f"the predictions would have the column '{twice[0]}' twice: name each of ids and each quantile once, "
            "and rename a column of the table that is called as a predicted one"
        )
