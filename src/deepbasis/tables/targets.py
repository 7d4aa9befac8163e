"""What comes with a table: the target y, the weights of the rows, and their groups."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import InputError, counted, first_of, which_are
from deepbasis.tables.columns import MISSING, Array, category, is_missing, object_column
from deepbasis.tables.reading import ESTIMATOR, as_array

Floats = NDArray[np.float64]

REMOVE = "remove such rows"

LARGEST = 1e150
"""Limit for y and weights: their squares and sums stay finite."""


def one_column(y: Any, name: str = "y") -> Array:
    """y as [n], of whatever it holds. A column [n, 1] passes, with scikit-learn's warning."""
    if y is None:
        raise InputError(f"{name} is None: {ESTIMATOR} requires y to be passed, but the target y is None")
    if hasattr(y, "tocsr") or hasattr(y, "todense"):
        raise InputError(f"Sparse data was passed for {name}, but dense data is required: use {name}.toarray()")
    values = as_array(y, name)
    if values.ndim == 2 and values.shape[1] == 1:
        _warn_of_column_vector(name)
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(
            f"{name} should be a 1d array, got an array of shape {values.shape} instead: one target for each row, or, "
            "of DeepBasisRegressor, several numbers in the columns of a table"
        )
    if len(values) == 0:
        raise InputError(f"{name} is empty. Found array with 0 sample(s) while a minimum of 1 is required.")
    return values


def check_target(y: Any, name: str = "y", remedy: str = REMOVE) -> Floats:
    """y as [n] float64, finite. `remedy` says what to do about gaps."""
    numbers = _numbers(one_column(y, name), name, "convert it, or use DeepBasisClassifier for classes")
    missing, infinite = np.isnan(numbers), np.isinf(numbers)
    for what, bad, instead in (("NaN (missing)", missing, remedy), ("inf (infinite)", infinite, REMOVE)):
        if bad.any():
            found = which_are(int(bad.sum()), "value", what, int(np.argmax(bad)))
            raise InputError(f"{name} has {found}; {instead}: a target cannot be filled in")
    large = np.abs(numbers) > LARGEST
    if large.any():
        row = int(np.argmax(large))
        raise InputError(f"{name} is {numbers[row]:g} in row {row}, beyond {LARGEST:g}; give it in larger units")
    return numbers


def check_targets(y: Any, name: str = "y") -> Floats:
    """y as [n], or as [n, m] of several outputs; float64, finite."""
    if y is None or hasattr(y, "tocsr") or hasattr(y, "todense"):
        return check_target(y, name)
    values = as_array(y, name)
    if values.ndim != 2 or values.shape[1] < 2 or len(values) == 0:
        return check_target(y, name)
    names = output_names(y, values.shape[1])
    return np.stack([check_target(column, f"{name}[{k}]") for k, column in zip(names, values.T, strict=True)], 1)


def output_names(y: Any, outputs: int) -> tuple[str, ...]:
    """What the columns of several outputs are called: those of a DataFrame, or 0, 1, ..."""
    columns = getattr(y, "columns", getattr(y, "column_names", None))  # of pandas and polars, or of Arrow
    names = [str(k) for k in range(outputs)] if columns is None else [str(getattr(one, "name", one)) for one in columns]
    if len(names) != outputs or len(set(names)) < outputs:
        raise InputError(f"y must have {outputs} columns of different names, got {names}")
    return tuple(names)


def is_no_count(y: Floats) -> NDArray[np.bool_]:
    return (y < 0) | (y != np.floor(y))


def check_counts(y: Floats) -> Floats:
    """Whole numbers from 0."""
    wrong = is_no_count(y)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"y is {y[row]:g} in row {row}: a count is a whole number from 0; for others use likelihood='gaussian'"
        )
    return y


def check_exposure(exposure: Any, n: int, name: str = "exposure") -> Floats:
    """Of counts: how long, or how much, each was counted over."""
    values = _numbers(as_array(exposure, name), name)
    if values.shape != (n,):
        raise InputError(f"{name} must be one number for each row: shape ({n},), got {values.shape}")
    wrong = ~((values >= 1.0 / LARGEST) & (values <= LARGEST))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{name} is {values[row]:g} in row {row}: it must be a positive number; leave out rows that were not "
            "counted at all"
        )
    return values


def check_bounds(y: Floats, lower: Any, upper: Any) -> Floats | None:
    """Bounds [n, 2] of a target, or None. A bound that is missing (NaN) is infinite; all that are not given are y."""
    if lower is None and upper is None:
        return None
    if y.ndim > 1:
        raise InputError("lower and upper are bounds of one target, and y has several columns: leave them out")
    ends = []
    for name, given, nowhere in (("lower", lower, -np.inf), ("upper", upper, np.inf)):
        values = y if given is None else _numbers(as_array(given, name), name)
        if values.shape != y.shape:
            raise InputError(f"{name} must be one number for each row: shape {y.shape}, got {values.shape}")
        beyond = np.isnan(values) | (np.sign(nowhere) * values > LARGEST)
        ends.append(np.where(beyond, nowhere, values))
    crossed = ~((ends[0] <= y) & (y <= ends[1]))
    if crossed.any():
        row = int(np.argmax(crossed))
        raise InputError(
            f"lower, y and upper are {ends[0][row]:g}, {y[row]:g} and {ends[1][row]:g} in row {row}: not in this "
            f"order, as in {counted(int(crossed.sum()), 'row')} in all; give bounds with lower <= y <= upper"
        )
    return np.stack(ends, 1)


def check_ends(bounds: Floats) -> None:
    """Of the bounds of all rows to fit: where no row has an end, nothing says how far the targets go."""
    sides = (("a lower", "small"), ("an upper", "large"))
    for (side, word), ends in zip(sides, bounds.T, strict=True):
        if not np.isfinite(ends).any():
            name = side.split()[1]
            raise InputError(
                f"no row has {side} end: nothing says how {word} the target can be; give rows with a finite {name} "
                f"bound, or exact ones ({name} = y), or leave {name} out"
            )


def check_weight(weight: Any, n: int, name: str = "sample_weight") -> Floats:
    """Weights as [n] float64: finite, not negative, not all zero. None is 1 for each row, a number is that for each."""
    if weight is None:
        return np.ones(n)
    values = as_array(weight, name)
    if values.ndim == 0:
        values = np.full(n, values[()])
    if values.ndim != 1:
        raise InputError(
            f"Sample weights must be 1D array or scalar, got {values.ndim}D array. Expected either a scalar value or "
            f"a 1D array of length {n}."
        )
    if len(values) != n:
        raise InputError(f"{name}.shape == {values.shape}, expected {(n,)}: one weight for each row of X")
    weights = check_weights(_numbers(values, name), name)
    if not weights.any():
        raise InputError(f"Sample weights must contain at least one non-zero number: every {name} is zero")
    return weights


def check_weights(weights: Floats, name: str) -> Floats:
    """Finite and not negative; all may be zero, as those of a part of the rows can be."""
    for what, bad in (
        ("not finite (NaN or inf)", ~np.isfinite(weights)),
        ("negative", weights < 0),
        (f"larger than {LARGEST:g}", weights > LARGEST),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            found = which_are(int(bad.sum()), "value", what, row)
            raise InputError(f"{name} has {found}: {weights[row]}; a weight is a number >= 0, and 0 leaves the row out")
    return weights


def check_precision(values: Array, given: Array, name: str, dtype: str, rows: Array | None = None) -> None:
    """Refuse what overflows in the model's precision. `rows` are their numbers, where some rows were left out."""
    largest = float(np.finfo(dtype).max)
    beyond = ~(np.abs(values) <= largest)
    if beyond.any():
        first = int(np.argmax(beyond))
        row = first if rows is None else int(rows[first])
        far = "" if values[first] == given[first] else f", {abs(values[first]):.2g} standard deviations from the others"
        remedy = "" if dtype == "float64" else ", or use dtype='float64'"
        raise InputError(
            f"{name} is {given[first]:g} in row {row}{far}: numbers of type {dtype} end at {largest:.2g}; correct it, "
            f"or leave that row out{remedy}"
        )


def check_groups(groups: Any, n: int) -> Array:
    """One value for each of n rows."""
    values = as_array(groups, "groups")
    if values.shape != (n,):
        raise InputError(f"groups must be one value for each row of X: shape ({n},), got {values.shape}")
    return values


def group_codes(groups: Any, n: int) -> NDArray[np.int64]:
    """0, 1, … for the group of each row, in order of appearance."""
    values = check_groups(groups, n)
    cells = values.tolist()
    missing = np.isnat(values).tolist() if values.dtype.kind in "mM" else [is_missing(cell) for cell in cells]
    if any(missing):
        raise InputError(
            f"groups has {counted(sum(missing), 'missing value')}, {first_of(sum(missing), missing.index(True))}; "
            "give each such row a group of its own"
        )
    try:
        known = {cell: code for code, cell in enumerate(dict.fromkeys(cells))}
    except TypeError as error:
        raise InputError(f"groups must hold numbers or texts: {error}") from None
    return np.fromiter((known[cell] for cell in cells), dtype=np.int64, count=n)


def group_names(groups: Any, n: int) -> list[str]:
    """The group of each row as text: 1 and 1.0 are the same."""
    group_codes(groups, n)  # refuses what is missing
    return [category(cell) for cell in check_groups(groups, n).tolist()]


def _numbers(values: Array, name: str, of_text: str = "convert it") -> Floats:
    """An array [n] of numbers as float64; text, dates and objects are refused, with the row.

    `of_text` says what to do about text.
    """
    if values.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            return np.array(values, dtype=np.float64)
    if values.dtype.kind == "O":
        try:
            column = object_column(name, values)
        except InputError as error:
            raise type(error)(str(error).removeprefix("X: ")) from None
        if column.kind in ("numeric", "boolean", MISSING):
            return column.values
        instead = of_text if column.kind == "categorical" else "convert it"
        raise InputError(f"{name} must hold numbers, got {_KINDS[column.kind]}: {column.example()}; {instead}")
    instead = of_text if values.dtype.kind == "U" else "convert it"
    what = {"U": "text", "S": "bytes", "M": "dates", "m": "durations"}.get(values.dtype.kind, str(values.dtype))
    raise InputError(f"{name} must hold numbers, got {what}: {values[0]!r} in row 0; {instead}")


_KINDS = {"categorical": "text", "datetime": "dates", "duration": "durations"}


def _warn_of_column_vector(name: str) -> None:
    warnings.warn(
        f"A column-vector {name} was passed when a 1d array was expected. Please change the shape of {name} to "
        "(n_samples, ), for example using ravel().",
        import_module("sklearn.exceptions").DataConversionWarning,
        stacklevel=4,
    )
