"""What comes with a table: the target y, the weights of the rows, and their groups."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.columns import MISSING, Array, is_missing, object_column
from deepbasis.tables.encoders import masses, mean_and_std
from deepbasis.tables.reading import ESTIMATOR, as_array

Floats = NDArray[np.float64]

_LARGEST = 1e150
"""Limit for y and weights: their squares and sums stay finite."""

_ROUNDING = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class TargetScaler:
    """y to mean 0 and standard deviation 1, both weighted; `mean + scale * z` inverts it."""

    mean: float
    scale: float

    @classmethod
    def fit(cls, y: Floats, weight: Floats | None = None) -> TargetScaler:
        """From y in rows of positive weight. A y that does not vary, beyond rounding, gets scale 1."""
        if weight is not None:
            y, weight = y[weight > 0], weight[weight > 0]
        distinct, mass = masses(y, weight)
        return cls.of(*mean_and_std(distinct, mass), float(np.abs(distinct).max()))

    @classmethod
    def of(cls, mean: float, std: float, largest: float) -> TargetScaler:
        """From the moments of y and the largest |y|."""
        constant = std <= max(_ROUNDING * largest, 1 / _LARGEST)
        return cls(mean, 1.0 if constant else std)

    def transform(self, y: Floats) -> Floats:
        return (y - self.mean) / self.scale

    def state(self) -> dict[str, float]:
        return {"mean": self.mean, "scale": self.scale}

    @classmethod
    def from_state(cls, metadata: Mapping[str, Any]) -> TargetScaler:
        numbers: list[Any] = [metadata.get(key) if isinstance(metadata, Mapping) else None for key in ("mean", "scale")]
        if not all(type(one) is float and abs(one) <= _LARGEST for one in numbers) or not numbers[1] >= 1 / _LARGEST:
            raise FileFormatError(
                f"the target's mean and scale must be two numbers up to {_LARGEST:g}, the scale at least "
                f"{1 / _LARGEST:g}; got {numbers}"
            )
        return cls(*numbers)


def check_target(y: Any, name: str = "y") -> Floats:
    """y as [n] float64, finite. A column [n, 1] passes, with scikit-learn's warning."""
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
            f"{name} should be a 1d array, got an array of shape {values.shape} instead; "
            "there is one target: fit one model for each"
        )
    if len(values) == 0:
        raise InputError(f"{name} is empty. Found array with 0 sample(s) while a minimum of 1 is required.")
    numbers = _numbers(values, name)
    for what, bad in (("NaN (missing)", np.isnan(numbers)), ("inf (infinite)", np.isinf(numbers))):
        if bad.any():
            raise InputError(
                f"{name} has {int(bad.sum())} value(s) that are {what}, the first in row {int(np.argmax(bad))}; "
                "remove those rows: a target cannot be filled in"
            )
    large = np.abs(numbers) > _LARGEST
    if large.any():
        row = int(np.argmax(large))
        raise InputError(f"{name} is {numbers[row]:g} in row {row}, beyond {_LARGEST:g}; give it in larger units")
    return numbers


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
        (f"larger than {_LARGEST:g}", weights > _LARGEST),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{name} has {int(bad.sum())} value(s) that are {what}, the first in row {row}: {weights[row]}; "
                "a weight is a number >= 0, and 0 leaves the row out"
            )
    return weights


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
            f"groups has {sum(missing)} missing value(s), the first in row {missing.index(True)}; "
            "give each of those rows a group of its own"
        )
    try:
        known = {cell: code for code, cell in enumerate(dict.fromkeys(cells))}
    except TypeError as error:
        raise InputError(f"groups must hold numbers or texts: {error}") from None
    return np.fromiter((known[cell] for cell in cells), dtype=np.int64, count=n)


def _numbers(values: Array, name: str) -> Floats:
    """An array [n] of numbers as float64; text, dates and objects are refused, with the row."""
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
        raise InputError(f"{name} must hold numbers, got {_KINDS[column.kind]}: {column.example()}; convert it")
    what = {"U": "text", "S": "bytes", "M": "dates", "m": "durations"}.get(values.dtype.kind, str(values.dtype))
    raise InputError(f"{name} must hold numbers, got {what}: {values[0]!r} in row 0; convert it")


_KINDS = {"categorical": "text", "datetime": "dates", "duration": "durations"}


def _warn_of_column_vector(name: str) -> None:
    warnings.warn(
        f"A column-vector {name} was passed when a 1d array was expected. Please change the shape of {name} to "
        "(n_samples, ), for example using ravel().",
        import_module("sklearn.exceptions").DataConversionWarning,
        stacklevel=3,
    )
