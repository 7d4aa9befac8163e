"""From a user's table (mixed types, missing values, wild scales) to a float matrix without gaps; saved and loaded.

What each kind of column becomes (in brackets: the names of the outputs for a column `c`):

- numeric, and durations in seconds: (c - mean) / standard deviation, squashed where it is far out [c]
- boolean: -1 and +1 [c]
- text and categories: one-hot for the 32 most frequent [c=red], and one more for any others [c (other)]
- dates (UTC where they have a zone): the trend, (c - median) / robust scale, squashed too [c (year)], and sine and
  cosine of each cycle that varies in training [c (hour, sin)] …

A column with missing values in training gets an indicator [c (missing)]. A column with one value in training has no
output; where that leaves none at all, there is one of zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.columns import KINDS, Column
from deepbasis.tables.encoders import (
    FLAT,
    MAX_CATEGORIES,
    PHASES,
    STANDARD,
    Encoding,
    check_kind,
    encode,
    fit_encoding,
    no_values,
    reads_as,
)
from deepbasis.tables.reading import ESTIMATOR, column_names, open_table, read_column, some_rows

_NUMBERS = ("center", "scale", "fill")  # the fields of an encoding that are saved as arrays


@dataclass(frozen=True)
class Preprocessor:
    """From a user's table to a float64 matrix without gaps. What `fit` learned is kept as arrays and JSON."""

    input_columns: list[str] | None
    """The names of a DataFrame's columns; None for arrays, and for names that are not strings."""
    encodings: tuple[Encoding, ...]
    """One for each input column."""

    @classmethod
    def fit(
        cls,
        names: list[str] | None,
        columns: Sequence[Column],
        weight: NDArray[np.float64] | None = None,
        *,
        within: Sequence[Column] | None = None,
        scaling: str = STANDARD,
    ) -> Preprocessor:
        """From the rows of positive weight.

        A column without values in them is refused. Where they are some rows of a larger table, whose columns are
        `within`, only one without values there is; the others have no output.
        """
        if weight is not None and not weight.all():
            keep = weight > 0
            columns, weight = [column.rows(keep) for column in columns], weight[keep]
        encodings = []
        for column, whole in zip(columns, within or columns, strict=True):
            if not column.missing.all():
                encodings.append(fit_encoding(column, weight, scaling))
            elif whole.missing.all():
                raise no_values(column.label)
            else:
                encodings.append(Encoding(whole.kind, missing=False, varies=False))
        return cls(names, tuple(encodings))

    @property
    def feature_names_out(self) -> list[str]:
        """age, age (missing), city=Rome, when (year) …; the columns of an array are x0, x1 …, as in scikit-learn."""
        inputs = self.input_columns or [f"x{position}" for position in range(len(self.encodings))]
        pairs = zip(inputs, self.encodings, strict=True)
        return [name for column, encoding in pairs for name in encoding.names(column)] or ["constant"]

    def numbers_as_text(self, columns: Sequence[Column]) -> list[tuple[str, str]]:
        """Columns read as categories although nearly all of their many texts are numbers: one "?" makes a column text.

        For each, its name and a text that is not a number.
        """
        found = []
        for encoding, column in zip(self.encodings, columns, strict=True):
            numbers = sum(reads_as("numeric", name) for name in encoding.categories)
            if not encoding.other or numbers < 0.9 * len(encoding.categories):
                continue
            texts = [column.categories[position] for position in np.unique(column.values[~column.missing])]
            others = [text for text in texts if not reads_as("numeric", text)]
            if others and len(others) <= 0.1 * len(texts):
                found.append((column.label, others[0]))
        return found

    @property
    def coordinates(self) -> int:
        """The columns that say anything, where all of them are numbers without gaps; otherwise 0."""
        columns = [encoding for encoding in self.encodings if encoding.width > 0]
        return len(columns) if all(one.kind == "numeric" and not one.missing for one in columns) else 0

    @property
    def width(self) -> int:
        """The columns of the encoded matrix: at least one."""
        return sum(encoding.width for encoding in self.encodings) or 1

    def transform(self, X: Any) -> NDArray[np.float64]:
        """[n, width], finite. Each row is treated by itself: rows in pieces give the pieces of the whole."""
        return self.encoded(self.read(X))

    def chunks(self, X: Any, rows: int) -> Iterator[NDArray[np.float64]]:
        """`transform` of `rows` rows at a time; errors name rows of the whole table."""
        table = self._open(X)
        for start in range(0, len(table), rows):
            try:
                columns = self._columns(some_rows(table, start, start + rows))
            except InputError:
                self._columns(table)  # the same error, with the row of the table instead of the chunk
                raise
            yield self.encoded(columns)

    def read(self, X: Any) -> tuple[Column, ...]:
        """The columns of X, each of the kind that it had in training or one that can pass for it."""
        return self._columns(self._open(X))

    def checked(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Columns read elsewhere, each of the kind that it had in training or one that can pass for it."""
        return tuple(check_kind(encoding, column) for encoding, column in zip(self.encodings, columns, strict=True))

    def encoded(self, columns: Sequence[Column]) -> NDArray[np.float64]:
        """[n, width] of columns that have been read."""
        out = np.zeros((len(columns[0].values), self.width))
        self.encode(columns, out)
        return out

    def encode(self, columns: Iterable[Column], out: NDArray[Any]) -> None:
        """Columns that have been read into `out` [n, width], which holds zeros."""
        start = 0
        for encoding, column in zip(self.encodings, columns, strict=True):
            stop = start + encoding.width
            encode(encoding, check_kind(encoding, column), out[:, start:stop])
            start = stop

    def _columns(self, table: Any) -> tuple[Column, ...]:
        kinds = enumerate(self.encodings)
        return tuple(check_kind(encoding, read_column(table, k, encoding.kind)) for k, encoding in kinds)

    def _open(self, X: Any) -> Any:
        """A table with the columns of training, by name and in their order, or by number: scikit-learn's convention."""
        table = open_table(X)
        names, seen = column_names(table), self.input_columns
        if names is not None and seen is not None:
            if names != seen:
                raise InputError(_name_mismatch(names, seen))
            return table
        if table.shape[1] != len(self.encodings):
            raise InputError(
                f"X has {table.shape[1]} features, but {ESTIMATOR} is expecting {len(self.encodings)} features as "
                "input."
            )
        if seen is not None:
            warnings.warn(
                f"X does not have valid feature names, but {ESTIMATOR} was fitted with feature names", stacklevel=4
            )
        elif names is not None:
            warnings.warn(f"X has feature names, but {ESTIMATOR} was fitted without feature names", stacklevel=4)
        return table

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays, and metadata that JSON can hold: all that `from_state` needs."""
        records = [asdict(encoding) for encoding in self.encodings]
        arrays = {name: np.array([record.pop(name) for record in records], dtype=np.float64) for name in _NUMBERS}
        return arrays, {"input_columns": self.input_columns, "columns": records}

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> Preprocessor:
        """What `state` gave, also after a round trip through JSON. Anything else raises `FileFormatError`."""
        try:
            records, names = metadata["columns"], metadata["input_columns"]
            _check(all(arrays[name].dtype == np.float64 for name in _NUMBERS), "numbers must be float64")
            numbers = {name: np.asarray(arrays[name]) for name in _NUMBERS}
            _check(isinstance(records, Sequence) and len(records) > 0, "there must be columns")
            _check(all(column.shape == (len(records),) for column in numbers.values()), "one number for each column")
            encodings = [
                _encoding(record, {name: float(numbers[name][position]) for name in _NUMBERS})
                for position, record in enumerate(records)
            ]
            if names is not None:
                _check(isinstance(names, list) and all(isinstance(name, str) for name in names), "names must be texts")
                _check(len(set(names)) == len(names) == len(records), "one name for each column")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"this is not the preprocessing of a table: {error}") from None
        return cls(names, tuple(encodings))


def _name_mismatch(names: list[str], seen: list[str]) -> str:
    """scikit-learn's message, line by line, and the remedy."""
    message = "The feature names should match those that were passed during fit.\n"
    unseen, absent = sorted(set(names) - set(seen)), sorted(set(seen) - set(names))
    for title, some in (("unseen at fit time", unseen), ("seen at fit time, yet now missing", absent)):
        if some:
            lines = [f"- {name}\n" for name in some[:5]] + ["- ...\n"] * (len(some) > 5)
            message += f"Feature names {title}:\n{''.join(lines)}"
    if not unseen and not absent:
        message += "Feature names must be in the same order as they were in fit.\n"
    order = ", ".join(map(repr, seen[:20])) + ", ..." * (len(seen) > 20)
    return f"{message}Pass X with exactly these columns, in this order: X[[{order}]]"


def _encoding(record: Any, numbers: dict[str, float]) -> Encoding:
    """One column's encoding from JSON, each field checked."""
    _check({*record, *numbers} == {field.name for field in fields(Encoding)}, "the fields of a column")
    lists = {name: record[name] for name in ("categories", "phases")}
    _check(all(isinstance(value, list | tuple) for value in lists.values()), "categories and phases must be lists")
    encoding = Encoding(**{**record, **numbers, **{name: tuple(value) for name, value in lists.items()}})
    _check(encoding.kind in KINDS, f"unknown kind {encoding.kind!r}")
    _check(encoding.kind == "categorical" or not (encoding.categories or encoding.other), "categories of a number")
    _check(encoding.kind == "datetime" or not encoding.phases, "phases of what is no date")
    _check(encoding.varies or not encoding.other, "a rest of categories where there is one")
    _check(all(type(flag) is bool for flag in (encoding.missing, encoding.varies, encoding.other)), "flags")
    _check(bool(np.isfinite(list(numbers.values())).all()) and encoding.scale > 0, "numbers must be finite, scale > 0")
    _check(type(encoding.linear) is float and 0.0 < encoding.linear < FLAT, "the squash must begin at a number > 0")
    _check(all(type(name) is str for name in encoding.categories), "categories must be texts")
    _check(len(set(encoding.categories)) == len(encoding.categories) <= MAX_CATEGORIES, "categories")
    _check(list(encoding.phases) == [phase for phase in PHASES if phase in encoding.phases], "phases of a date")
    return encoding


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
