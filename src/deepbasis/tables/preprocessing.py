"""From a user's table (mixed types, missing values, wild scales) to a float matrix without gaps; saved and loaded.

What each kind of column becomes (in brackets: the names of the outputs for a column `c`):

- numeric, and durations in seconds: (c - mean) / standard deviation, squashed where it is far out [c]; where the
  target is a class, also indicators of the frequent values of a column that is mostly one value [c=7298]
- boolean: -1 and +1 [c]
- text and categories: one-hot for the 32 most frequent [c=red], and one more for any others [c (other)]; where there
  are others, also the effect of each level on the target and how well it is known [c (effect), c (known)]
- dates (UTC where they have a zone): the trend, (c - median) / robust scale, squashed too [c (year)], and sine and
  cosine of each cycle that varies in training [c (hour, sin)] …

A column with missing values in training gets an indicator [c (missing)]. In any other a missing value is a `GAP`: the
members take it for 0, and `predict_novelty` for something strange. A column with one value in training has no output;
where that leaves none at all, there is one of zeros.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import FileFormatError, InputError
from deepbasis.hashing import name_hashes
from deepbasis.tables.cells import NOTHING, OddCells, Rule
from deepbasis.tables.columns import KINDS, Column, missing_column
from deepbasis.tables.encoders import (
    FLAT,
    MAX_CATEGORIES,
    MAX_SPIKES,
    PHASES,
    STANDARD,
    Encoding,
    check_kind,
    encode,
    fit_encoding,
    no_values,
    squash,
)
from deepbasis.tables.reading import ESTIMATOR, column_names, open_table, read_column, some_rows, whole_table

GAP = 2.0**-100
"""A missing value, in the first output of a column that had none in training: exact in every precision, as good as 0
to all arithmetic, and a number that no other cell has."""


@dataclass(frozen=True)
class Preprocessor:
    """From a user's table to a float64 matrix without gaps. What `fit` learned is kept as JSON."""

    input_columns: list[str] | None
    """The names of a DataFrame's columns; None for arrays, and for names that are not strings."""
    encodings: tuple[Encoding, ...]
    """One for each input column."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was found out about the columns, a line each; not saved."""

    @classmethod
    def fit(
        cls,
        names: list[str] | None,
        columns: Sequence[Column],
        weight: NDArray[np.float64] | None = None,
        *,
        within: Sequence[Column] | None = None,
        scaling: str = STANDARD,
        rules: Sequence[Rule | None] | None = None,
        spikes_above: float = math.inf,
    ) -> Preprocessor:
        """From the rows of positive weight.

        A column that has no values in these rows is refused. If they are part of a larger table, whose columns are
        `within`, it is refused only if it has none there either; otherwise it has no output.
        `rules` say how columns were made from text, and `spikes_above` is that of `fit_encoding`.
        """
        if weight is not None and not weight.all():
            keep = weight > 0
            columns, weight = [column.rows(keep) for column in columns], weight[keep]
        encodings = []
        for column, whole, rule in zip(columns, within or columns, rules or [None] * len(columns), strict=True):
            if rule is not None and rule.form == NOTHING:
                encodings.append(Encoding("categorical", missing=False, varies=False, rule=rule))
            elif not column.missing.all():
                encodings.append(replace(fit_encoding(column, weight, scaling, spikes_above=spikes_above), rule=rule))
            elif whole.missing.all():
                raise no_values(column.label)
            else:
                encodings.append(Encoding(whole.kind, missing=False, varies=False, rule=rule))
        return cls(names, tuple(encodings))

    @property
    def names(self) -> list[str]:
        """Those of the input columns; the columns of an array are x0, x1 …, as in scikit-learn."""
        return self.input_columns or [f"x{position}" for position in range(len(self.encodings))]

    @property
    def feature_names_out(self) -> list[str]:
        """age, age (missing), city=Rome, when (year) …"""
        pairs = zip(self.names, self.encodings, strict=True)
        return [name for column, encoding in pairs for name in encoding.names(column)] or ["constant"]

    def reads_as(self, other: Preprocessor) -> bool:
        """Whether it takes the same columns and reads their cells in the same way."""
        kinds, others = ([(one.kind, one.rule) for one in each.encodings] for each in (self, other))
        return self.input_columns == other.input_columns and kinds == others

    def needed(self, names: Sequence[str]) -> list[str]:
        """Those of the columns that say anything: a file need not have the others. One at least, to count the rows."""
        return [name for name, one in zip(names, self.encodings, strict=True) if not one.is_left_out] or list(names[:1])

    def completed(self, columns: Iterable[Column], rows: int) -> list[Column]:
        """The columns that are `needed`, and gaps for the others."""
        given = iter(columns)
        return [
            missing_column(f"column {k}", rows) if one.is_left_out else next(given)
            for k, one in enumerate(self.encodings)
        ]

    @property
    def coordinates(self) -> int:
        """The columns that say anything, where all of them are numbers without gaps; otherwise 0."""
        columns = [encoding for encoding in self.encodings if encoding.width > 0]
        return len(columns) if all(one.kind == "numeric" and not one.missing for one in columns) else 0

    @property
    def flags(self) -> tuple[int, ...]:
        """The columns of the encoded matrix that hold 0 and 1."""
        every = [flag for encoding in self.encodings for flag in encoding.are_flags]
        return tuple(k for k, flag in enumerate(every) if flag)

    @property
    def width(self) -> int:
        """The columns of the encoded matrix: at least one."""
        return sum(encoding.width for encoding in self.encodings) or 1

    def transform(self, X: Any) -> NDArray[np.float64]:
        """[n, width], finite. Each row is treated by itself: rows in pieces give the pieces of the whole."""
        return self.encoded(self.read(X))

    def chunks(self, X: Any, rows: int) -> Iterator[NDArray[np.float64]]:
        """`transform` of `rows` rows at a time; errors name rows of the whole table."""
        odd = OddCells()
        table = self._open(X)
        for start in range(0, len(table), rows):
            some = some_rows(table, start, start + rows)
            numbers = None if self._numbers is None else whole_table(some)
            if numbers is not None:
                yield self._encoded_at_once(numbers)
                continue
            try:
                columns = self._columns(some, odd)
            except InputError:
                self._columns(table)  # the same error, with the row of the table instead of the chunk
                raise
            yield self.encoded(columns)
        odd.warn("X")

    @cached_property
    def _numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Center and scale of each column, where every one is of numbers and has one output."""
        plain = all(one.kind == "numeric" and one.width == 1 and one.varies for one in self.encodings)
        if not plain or len({one.linear for one in self.encodings}) > 1:
            return None
        center, scale = np.array([(one.center, one.scale) for one in self.encodings]).T
        return center, scale

    def _encoded_at_once(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """`encoded` of a table of numbers, to the last bit: one row takes a tenth of the time."""
        assert self._numbers is not None
        center, scale = self._numbers
        with np.errstate(over="ignore"):  # as in `encode`
            z = squash((values - center) / scale, self.encodings[0].linear)
        missing = np.isnan(z)
        return np.where(missing, GAP, z) if missing.any() else z

    def read(self, X: Any) -> tuple[Column, ...]:
        """The columns of X, each of the kind that it had in training or one that can pass for it."""
        return self._columns(self._open(X))

    def checked(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Columns read elsewhere, each of the kind that it had in training or one that can pass for it."""
        return tuple(check_kind(encoding, column) for encoding, column in zip(self.encodings, columns, strict=True))

    def encoded(self, columns: Sequence[Column], odd: OddCells | None = None) -> NDArray[np.float64]:
        """[n, width] of columns that have been read."""
        out = np.zeros((len(columns[0].values), self.width))
        self.encode(columns, out, odd)
        return out

    def identities(self, columns: Sequence[Column]) -> NDArray[np.float64]:
        """[n, k]: a number for each category where several share an encoded column, to tell rows apart by."""
        found = []
        for encoding, given in zip(self.encodings, columns, strict=True):
            if encoding.other:
                column = check_kind(encoding, given)
                hashes = (name_hashes(column.categories) >> np.uint64(11)).astype(np.float64)
                found.append(np.append(hashes, -1.0)[column.values])
        return np.stack(found, 1) if found else np.zeros((len(columns[0].values), 0))

    def encode(self, columns: Iterable[Column], out: NDArray[Any], odd: OddCells | None = None) -> None:
        """Columns that have been read into `out` [n, width], which holds zeros; `odd` counts cells that say nothing."""
        start = 0
        for encoding, column in zip(self.encodings, columns, strict=True):
            stop = start + encoding.width
            if odd is not None:
                odd.add(encoding.rule, column)
            read = check_kind(encoding, column)
            encode(encoding, read, out[:, start:stop])
            if encoding.width and not encoding.missing and read.missing.any():
                out[read.missing, start] = GAP
            start = stop

    def _columns(self, table: Any, odd: OddCells | None = None) -> tuple[Column, ...]:
        columns = []
        for k, encoding in enumerate(self.encodings):
            if encoding.is_left_out:
                columns.append(missing_column(f"column {k}", len(table)))
            else:
                columns.append(read_column(table, k, encoding.kind))
            if odd is not None:
                odd.add(encoding.rule, columns[-1])
        return self.checked(columns)

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

    def state(self) -> dict[str, Any]:
        """All that `from_state` needs, as JSON can hold it: to the last bit."""
        return {"input_columns": self.input_columns, "columns": [asdict(encoding) for encoding in self.encodings]}

    @classmethod
    def from_state(cls, metadata: Mapping[str, Any]) -> Preprocessor:
        """What `state` gave, also after a round trip through JSON. Anything else raises `FileFormatError`."""
        try:
            records, names = metadata["columns"], metadata["input_columns"]
            _check(isinstance(records, Sequence) and len(records) > 0, "there must be columns")
            encodings = [_encoding(record) for record in records]
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


def _encoding(record: Any) -> Encoding:
    """One column's encoding from JSON, each field checked."""
    _check(record.keys() == {field.name for field in fields(Encoding)}, "the fields of a column")
    lists = {name: record[name] for name in ("categories", "phases", "spikes", "levels", "effects")}
    _check(all(isinstance(value, list | tuple) for value in lists.values()), f"{', '.join(lists)} must be lists")
    _check(all(isinstance(one, list | tuple) for one in lists["effects"]), "effects must be lists of numbers")
    lists["effects"] = [tuple(one) for one in lists["effects"]]
    rule = None if record["rule"] is None else Rule(**record["rule"])
    encoding = Encoding(**{**record, **{name: tuple(value) for name, value in lists.items()}, "rule": rule})
    _check(encoding.kind in KINDS, f"unknown kind {encoding.kind!r}")
    if rule is not None:
        rule.check()
        _check(rule.kind == encoding.kind, "a rule that makes another kind of column")
        _check(not encoding.is_left_out or not encoding.names(""), "outputs of a column that is left out")
    _check(encoding.kind == "categorical" or not (encoding.categories or encoding.other), "categories of a number")
    _check(encoding.kind == "datetime" or not encoding.phases, "phases of what is no date")
    _check((encoding.kind == "numeric" and encoding.varies) or not encoding.spikes, "spikes of what are no numbers")
    _check(encoding.varies or not encoding.other, "a rest of categories where there is one")
    _check(all(type(flag) is bool for flag in (encoding.missing, encoding.varies, encoding.other)), "flags")
    _check(encoding.other or not encoding.effects, "effects of categories that have a column each")
    _check(bool(encoding.levels) == bool(encoding.effects) and len(encoding.effects) != 1, "effects without levels")
    _check(all(len(one) == len(encoding.levels) for one in encoding.effects), "an effect for each level")
    _check(all(type(name) is str for name in encoding.levels), "levels must be texts")
    _check(len(set(encoding.levels)) == len(encoding.levels), "levels")
    numbers = (encoding.center, encoding.scale, encoding.fill, encoding.linear, *encoding.spikes)
    numbers += tuple(number for one in encoding.effects for number in one)
    _check(all(isinstance(number, float) and math.isfinite(number) for number in numbers), "numbers must be finite")
    _check(encoding.scale > 0 and 0 < encoding.linear < FLAT, "scale, and where the squash begins, must be > 0")
    _check(all(type(name) is str for name in encoding.categories), "categories must be texts")
    _check(len(set(encoding.categories)) == len(encoding.categories) <= MAX_CATEGORIES, "categories")
    _check(sorted(set(encoding.spikes)) == list(encoding.spikes) and len(encoding.spikes) <= MAX_SPIKES, "spikes")
    _check(list(encoding.phases) == [phase for phase in PHASES if phase in encoding.phases], "phases of a date")
    return encoding


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
