"""One column of a user's table: its kind, its values as a plain array, missing ones as NaN.

Arrays of numpy types are read as they are, float64 without a copy; cells that are Python objects are read one by one.
Nothing here knows pandas.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import InputError

Array: TypeAlias = NDArray[Any]
Mask: TypeAlias = NDArray[np.bool_]
Selection: TypeAlias = Mask | NDArray[np.int64] | slice
"""Which rows: a truth value for each, their positions, or a range."""

KINDS = ("numeric", "boolean", "duration", "datetime", "categorical")
MISSING = "missing"
"""The kind of a column without a single value: it passes for any kind that the column had in training."""

YEARS = (1678, 2261)
"""Dates outside are nearly always placeholders (9999-12-31, 0001-01-01). Inside, 64 bits of nanoseconds hold them."""


@dataclass(frozen=True)
class Column:
    """One column as read. Rows are counted from 0."""

    label: str
    """Its name in messages: "column 'age'", or "column 3" where there are no names."""
    kind: str
    values: Array
    """[n] float64, NaN where missing: numbers, 0 and 1, seconds, or seconds since 1970 (UTC).
    Of a categorical column: int64 positions in `categories`, -1 where missing."""
    categories: tuple[str, ...] = ()

    @cached_property
    def missing(self) -> Mask:
        return self.values < 0 if self.kind == "categorical" else np.isnan(self.values)

    def example(self) -> str:
        """The first value that is not missing, for messages: "'red' in row 0"."""
        row = int(np.argmax(~self.missing))
        value = self.values[row]
        if self.kind == "categorical":
            return f"{self.categories[int(value)]!r} in row {row}"
        if self.kind == "datetime":
            return f"{np.datetime64(math.floor(value), 's')} in row {row}"
        if self.kind == "duration":
            return f"{value:g} seconds in row {row}"
        return f"{bool(value) if self.kind == 'boolean' else float(value)} in row {row}"

    def rows(self, rows: Selection) -> Column:
        return Column(self.label, self.kind, self.values[rows], self.categories)

    def sampled(self, rows: NDArray[np.int64]) -> Column:
        """Some of its rows, with memory of their own: the rest of it can go."""
        return Column(self.label, self.kind, self.values[rows], self.categories).compact()

    def compact(self) -> Column:
        """Without the categories that no row has, where they are more than the rows."""
        if len(self.categories) <= len(self.values):
            return self
        used, codes = np.unique(self.values, return_inverse=True)
        gap = int(len(used) > 0 and used[0] < 0)
        categories = tuple(self.categories[position] for position in used[gap:])
        return Column(self.label, self.kind, codes - gap, categories)

    def cells(self) -> Array:
        """Of a column without gaps: the texts of a categorical one, truth values or numbers."""
        if self.kind == "categorical":
            return np.array([*self.categories, ""], dtype=object)[self.values]
        return self.values.astype(bool) if self.kind == "boolean" else self.values

    def as_text(self) -> Column:
        """Numbers or truth values as the categories that they would have been in a column of text."""
        missing = self.missing
        distinct, codes = np.unique(self.values[~missing], return_inverse=True)
        cells = distinct.astype(bool) if self.kind == "boolean" else distinct
        return categorical_column(self.label, _spread(codes, missing, -1), [category(cell) for cell in cells.tolist()])


def category(cell: Any) -> str:
    """A cell as the name of a category. 1, 1.0 and "1" are the same: with a gap, pandas turns integers into floats."""
    if _family(type(cell)) != "numeric":
        return str(cell)
    number = _number(cell)
    return str(int(cell)) if math.isfinite(number) and number == math.floor(number) else repr(number)


# --- columns of numpy types


def typed_column(label: str, values: Array) -> Column:
    """A numpy array of numbers, truth values, dates or durations."""
    kind = values.dtype.kind
    if kind == "M":
        return Column(label, "datetime", _seconds_since_1970(label, values))
    if kind == "m":
        return Column(label, "duration", _seconds(label, values))
    if kind == "c":
        raise InputError(f"X: {label}: Complex data not supported; split it into real and imaginary parts")
    if kind not in "biuf":
        raise InputError(f"X: {label} is of type {values.dtype}, which is not supported; convert it or drop it")
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes inf, and is refused as such
        numeric = np.asarray(values, dtype=np.float64)
    return Column(label, "boolean" if kind == "b" else "numeric", numeric)


def categorical_column(label: str, codes: Array, names: list[str]) -> Column:
    """Of positions in `names` (-1: missing), which may name one category twice."""
    known = {name: position for position, name in enumerate(dict.fromkeys(names))}
    lookup = np.array([*(known[name] for name in names), -1], dtype=np.int64)  # position -1 takes the last
    return Column(label, "categorical", lookup[codes], tuple(known))


def missing_column(label: str, n: int) -> Column:
    return Column(label, MISSING, np.full(n, np.nan))


def joined(parts: Sequence[Column]) -> Column:
    """The rows of one column in pieces, all of one kind except pieces without values."""
    kind = next((part.kind for part in parts if part.kind != MISSING), MISSING)
    if kind != "categorical":
        return Column(parts[0].label, kind, np.concatenate([part.values for part in parts]))
    names = [name for part in parts for name in part.categories]
    starts = np.cumsum([0, *(len(part.categories) for part in parts)])
    codes = [np.where(part.missing, -1, part.values + start) for part, start in zip(parts, starts, strict=False)]
    return categorical_column(parts[0].label, np.concatenate(codes).astype(np.int64), names)


def _seconds_since_1970(label: str, stamps: Array) -> Array:
    """datetime64 of any unit as float64 seconds, NaN for NaT."""
    missing = np.isnat(stamps)
    years = np.where(missing, 1970, stamps.astype("datetime64[Y]").astype(np.int64) + 1970)
    outside = (years < YEARS[0]) | (years > YEARS[1])
    if outside.any():
        row = int(np.argmax(outside))
        raise _out_of_range(label, row, stamps[row])
    whole = stamps.astype("datetime64[s]")
    with np.errstate(invalid="ignore"):
        seconds = whole.astype(np.int64) + (stamps - whole) / np.timedelta64(1, "s")
    return np.where(missing, np.nan, seconds)


def _seconds(label: str, durations: Array) -> Array:
    try:
        return np.asarray(durations / np.timedelta64(1, "s"), dtype=np.float64)
    except TypeError:  # months and years have no length in seconds
        raise InputError(f"X: {label} holds durations of type {durations.dtype}; convert them to days") from None


def _out_of_range(label: str, row: int, value: Any) -> InputError:
    return InputError(
        f"X: {label} holds the date {value} in row {row}, outside {YEARS[0]}-01-01 to {YEARS[1]}-12-31; "
        "if it stands for 'no date', make the cell missing (NaT)"
    )


# --- columns of Python objects


def object_column(label: str, cells: Array, expected: str | None = None) -> Column:
    """A column of Python objects. Its kind is that of its cells; text and numbers together are text.

    `expected` is the kind that the column had in training. It decides when the cells do not: a few rows of a mixed
    column may happen to hold nothing but numbers.
    """
    # Most cells are text, which is never missing: a comparison finds that faster than a call.
    missing = np.array([type(cell) is not str and is_missing(cell) for cell in cells.tolist()], dtype=bool)
    present = cells[~missing].tolist()
    families = {type_: _family(type_) for type_ in dict.fromkeys(map(type, present))}
    _refuse_strange_cells(label, cells, missing, families)
    kinds = set(families.values())
    if not kinds:
        return missing_column(label, len(cells))
    if kinds <= {"text", "numeric", "boolean"} and ("text" in kinds or expected == "categorical"):
        names = list(map(str if kinds == {"text"} else category, present))
        return categorical_column(label, _spread(np.arange(len(names)), missing, -1), names)
    if kinds <= {"numeric", "boolean"}:
        kind = "boolean" if kinds == {"boolean"} else "numeric"
        return Column(label, kind, _spread(np.array([_number(cell) for cell in present]), missing, np.nan))
    if kinds == {"datetime"}:
        stamps = [_datetime64(label, row, cells[row]) for row in np.flatnonzero(~missing).tolist()]
        return typed_column(label, _spread(np.array(stamps, dtype="datetime64[us]"), missing, np.datetime64("NaT")))
    if kinds == {"duration"}:
        lengths = np.array([np.timedelta64(cell) for cell in present], dtype="timedelta64[us]")
        return typed_column(label, _spread(lengths, missing, np.timedelta64("NaT", "us")))
    raise InputError(f"X: {label} mixes {' and '.join(sorted(kinds))} values; make it one of them, or split it")


def _spread(values: Array, missing: Mask, hole: Any) -> Array:
    """`values` where nothing is missing, `hole` elsewhere."""
    spread = np.full(len(missing), hole, dtype=values.dtype)
    spread[~missing] = values
    return spread


def is_missing(cell: Any) -> bool:
    if cell is None:
        return True
    if isinstance(cell, float | np.floating):
        return bool(cell != cell)
    if isinstance(cell, Decimal):
        return cell.is_nan()
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return bool(np.isnat(cell))
    return type(cell).__name__ in ("NAType", "NaTType")  # pandas.NA, pandas.NaT


def _family(type_: type) -> str:
    """What kind of value a cell of this Python type is; "" for any other."""
    for family, types in _FAMILIES.items():
        if issubclass(type_, types):
            return family
    return "datetime" if type_.__name__ == "Period" else ""


_FAMILIES: dict[str, tuple[type, ...]] = {
    "boolean": (bool, np.bool_),
    "duration": (datetime.timedelta, np.timedelta64),  # before the numbers: numpy's is one of its integers
    "datetime": (datetime.date, np.datetime64),
    "numeric": (numbers.Real, Decimal),
    "complex": (numbers.Complex,),
    "text": (str,),
}


def _refuse_strange_cells(label: str, cells: Array, missing: Mask, families: dict[type, str]) -> None:
    strange = [type_ for type_, family in families.items() if family in ("", "complex")]
    if not strange:
        return
    row = next(row for row, cell in enumerate(cells) if type(cell) in strange and not missing[row])
    name = type(cells[row]).__name__
    if families[type(cells[row])] == "complex":
        raise InputError(f"X: {label}, row {row}: Complex data not supported; split it into real and imaginary parts")
    remedy = "decode it" if name in ("bytes", "bytearray") else "spread it over columns of its own, or drop the column"
    raise InputError(
        f"X: {label}, row {row} holds a {name}: argument must be a string (in a DataFrame) or a real number, "
        f"not {name!r}; {remedy}"
    )


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except OverflowError:  # an integer beyond float64: refused as infinite, with its row
        return math.inf


def _datetime64(label: str, row: int, cell: Any) -> np.datetime64:
    """A date, a datetime (UTC where it has a zone), a numpy or pandas stamp, or a period's start."""
    try:
        if type(cell).__name__ == "Period":
            cell = cell.start_time
        if isinstance(cell, datetime.datetime) and cell.tzinfo is not None:
            cell = cell.astimezone(datetime.UTC).replace(tzinfo=None)
        stamp = cell if isinstance(cell, np.datetime64) else np.datetime64(cell, "us")
        year = int(stamp.astype("datetime64[Y]").astype(np.int64)) + 1970
    except (OverflowError, ValueError):
        raise _out_of_range(label, row, cell) from None
    if not YEARS[0] <= year <= YEARS[1]:
        raise _out_of_range(label, row, cell)
    return stamp.astype("datetime64[us]")
