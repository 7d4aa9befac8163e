"""From anything that a user may call a table to columns: arrays, nested lists, DataFrames, columns of Arrow.

Problems with a table as a whole are reported here, in scikit-learn's words if it has them. pandas is imported only
for a pandas object, or for one that has to become one, and pyarrow only for columns of Arrow.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from deepbasis.errors import InputError, counted, first_of
from deepbasis.tables.columns import (
    MISSING,
    Array,
    Column,
    categorical_column,
    category,
    missing_column,
    object_column,
    typed_column,
)
from deepbasis.tables.places import unknown_column

ESTIMATOR = "DeepBasisRegressor"
"""scikit-learn's messages name the estimator."""


def read_columns(X: Any, unread: Collection[str] = ()) -> tuple[list[str] | None, tuple[Column, ...]]:
    """The names of the columns, or None, and the columns; an `InputError` names the first problem.

    Of those that are `unread`, by name or by number, nothing but their length is known.
    """
    table = open_table(X)
    names = column_names(table)
    called = names or [str(position) for position in range(table.shape[1])]
    for name in unread:
        if name not in called:
            raise unknown_column(name, called)
    return names, tuple(
        missing_column(f"column {name!r}", len(table)) if name in unread else read_column(table, position)
        for position, name in enumerate(called)
    )


def open_table(X: Any) -> Any:
    """A pandas DataFrame, or an array [n, d]; n and d are at least 1 and no name is there twice."""
    table = _dataframe(X)
    if table is None:
        table = _array(X)
    n, d = table.shape
    if n == 0 or d == 0:
        found = "0 sample(s)" if n == 0 else "0 feature(s)"
        raise InputError(
            f"X is empty. Found array with {found} (shape=({n}, {d})) while a minimum of 1 is required by {ESTIMATOR}."
        )
    if not isinstance(table, np.ndarray) and not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()].unique().tolist()
        raise InputError(f"X has duplicate column names: {', '.join(map(repr, twice[:5]))}; rename or drop one of each")
    return table


def column_names(table: Any) -> list[str] | None:
    """The names of a DataFrame's columns, when they are strings. Others (0, 1, …) are positions, as in scikit-learn."""
    if isinstance(table, np.ndarray):
        return None
    are_text = [isinstance(name, str) for name in table.columns]
    if any(are_text) and not all(are_text):
        other = table.columns[are_text.index(False)]
        raise InputError(
            f"X has column names of several types, {other!r} among strings. Feature names are only supported if all "
            "input features have string names: use X.columns = X.columns.astype(str)"
        )
    return [str(name) for name in table.columns] if all(are_text) else None


def read_column(table: Any, position: int, expected: str | None = None) -> Column:
    """One column of what `open_table` gave; `expected` is the kind that it had in training."""
    if isinstance(table, np.ndarray):
        column = _array_column(f"column {position}", table[:, position], expected)
    else:
        column = _series_column(f"column {table.columns[position]!r}", table.iloc[:, position], expected)
    return _checked(column)


def _checked(column: Column) -> Column:
    """Without infinite values; a column without a single value is of the kind `MISSING`."""
    if column.missing.all():
        return missing_column(column.label, len(column.values))
    infinite = np.isinf(column.values)
    if infinite.any():
        count = int(infinite.sum())
        place = first_of(count, int(np.argmax(infinite)))
        raise InputError(
            f"X: {column.label} has {counted(count, 'infinite value')} (inf), {place}; remove such rows, or make the "
            "cells missing (NaN)"
        )
    return column


def some_rows(table: Any, start: int, stop: int) -> Any:
    return table[start:stop] if isinstance(table, np.ndarray) else table.iloc[start:stop]


def whole_table(table: Any) -> Array | None:
    """What `open_table` gave as float64 [n, d], where every column is of finite numbers, or NaN, of numpy's types."""
    if isinstance(table, np.ndarray):
        plain = table.dtype.kind in "iuf"
    else:
        plain = all(isinstance(dtype, np.dtype) and dtype.kind in "iuf" for dtype in table.dtypes)
    if not plain:
        return None
    with np.errstate(over="ignore"):  # as in `typed_column`
        values = np.asarray(table, dtype=np.float64)
    return None if np.isinf(values).any() else values


def as_array(values: Any, name: str) -> Array:
    """`numpy.asarray`, with the holes of a masked array as NaN, and every failure an `InputError`."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.filled(values.astype(np.float64 if values.dtype.kind in "biuf" else object), np.nan)
    try:
        array = np.asarray(values)
    except Exception as error:  # somebody else's __array__ may raise anything
        raise InputError(f"{name} cannot be made an array: {error}; are all of its rows of one length?") from None
    if array.dtype.kind in "SU" and isinstance(values, list | tuple):
        array = np.asarray(values, dtype=object)  # numpy turned the numbers and NaN among the text into text
    if array.dtype.kind == "c":
        raise InputError(f"{name}: Complex data not supported; split it into real and imaginary parts")
    return array


def _dataframe(X: Any) -> Any:
    """X as a pandas DataFrame if it is a table with names of its own, otherwise None."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame | pandas.Series):
        if not hasattr(X, "__dataframe__") and not hasattr(X, "__arrow_c_stream__"):
            return None
        X = _to_pandas(X)
    if X.ndim == 1:
        raise InputError(
            "X: Expected a 2-dimensional container but got a Series instead. Reshape your data: pass "
            "series.to_frame() if it is a single feature, or series.to_frame().T if it is a single sample."
        )
    return X


def _to_pandas(X: Any) -> Any:
    """Another library's table: by its own conversion, by the Arrow interface, or by the dataframe interchange."""
    try:
        pandas: Any = import_module("pandas")
        if hasattr(X, "to_pandas"):
            return X.to_pandas()
        if hasattr(X, "__arrow_c_stream__"):
            return import_module("pyarrow").table(X).to_pandas()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pandas 3 has its doubts about the interchange
            return pandas.api.interchange.from_dataframe(X)
    except ImportError as error:
        raise InputError(f"X: to read a {type(X).__name__}, install pandas and pyarrow ({error})") from None
    except Exception as error:  # somebody else's code, and its own errors
        raise InputError(
            f"X: this {type(X).__name__} cannot be read as a table ({error}); "
            "drop its nested or unusual columns, or pass a pandas DataFrame"
        ) from None


def _array(X: Any) -> Array:
    """X as an array [n, d]."""
    if hasattr(X, "tocsr") or hasattr(X, "todense"):
        raise InputError("Sparse data was passed for X, but dense data is required: use X.toarray()")
    table = as_array(X, "X")
    if table.dtype.names is not None:
        raise InputError("X is a structured array; pass a DataFrame: pandas.DataFrame(X)")
    if table.ndim < 2:
        got = f"1D array instead (shape {table.shape})" if table.ndim else f"scalar array instead ({X!r:.50})"
        raise InputError(
            f"X: Expected 2D array, got {got}. Reshape your data either using array.reshape(-1, 1) if your data has a "
            "single feature or array.reshape(1, -1) if it contains a single sample."
        )
    if table.ndim > 2:
        raise InputError(f"X: Found array with dim {table.ndim}, while dim <= 2 is required: shape {table.shape}")
    return table


def _array_column(label: str, values: Array, expected: str | None) -> Column:
    if values.dtype.kind not in "OSU":
        return typed_column(label, values)
    column = object_column(label, values.astype(object), expected)
    if column.kind not in ("numeric", "boolean", MISSING):
        what = "text" if column.kind == "categorical" else f"{column.kind} values"
        raise InputError(
            f"X: {label} holds {what}, {column.example()}; an array must hold numbers: convert it with "
            "X.astype(float), or pass a pandas DataFrame, which has a type for each column"
        )
    return column


def _series_column(label: str, series: Any, expected: str | None) -> Column:
    """A pandas Series of any type: numpy's, nullable, Arrow, categorical, sparse, period, with a time zone."""
    pandas: Any = sys.modules["pandas"]
    if isinstance(series.dtype, pandas.CategoricalDtype):
        return categorical_column(label, series.cat.codes.to_numpy(), [category(c) for c in series.cat.categories])
    if isinstance(series.dtype, pandas.SparseDtype):
        series = series.sparse.to_dense()
    elif isinstance(series.dtype, pandas.PeriodDtype):
        with suppress(ValueError, OverflowError):  # out of range: read as objects below, which finds the row
            series = series.dt.to_timestamp(how="start")
    elif isinstance(series.dtype, pandas.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return typed_column(label, series.to_numpy())
    if dtype.kind in "biuf":  # nullable and Arrow numbers
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return Column(label, "boolean" if dtype.kind == "b" else "numeric", values)
    return object_column(label, series.to_numpy(dtype=object), expected)


# --- columns of Arrow: the same that a DataFrame of them has, without the way through pandas


def kind_of(type_: Any) -> str:
    """The kind of column that values of this Arrow type make; "" for what makes none."""
    import pyarrow.types as types

    if types.is_dictionary(type_) or types.is_time(type_):
        return "categorical"
    for kind, tests in {
        MISSING: [types.is_null],
        "numeric": [types.is_integer, types.is_floating, types.is_decimal],
        "boolean": [types.is_boolean],
        "datetime": [types.is_date, types.is_timestamp],
        "duration": [types.is_duration],
        "categorical": [types.is_string, types.is_large_string, types.is_string_view],
    }.items():
        if any(test(type_) for test in tests):
            return kind
    return ""


def arrow_column(label: str, values: Any) -> Column:
    """A pyarrow Array or ChunkedArray as a column."""
    import pyarrow as pa
    import pyarrow.types as types

    values = _one_array(values)
    kind = kind_of(values.type)
    if values.null_count == len(values):
        return missing_column(label, len(values))
    if kind == "categorical":
        return _text(label, values)
    if kind in ("datetime", "duration"):
        if types.is_date(values.type):
            values = values.cast(pa.timestamp("s" if types.is_date32(values.type) else "ms"))
        return typed_column(label, np.asarray(values.to_numpy(zero_copy_only=False)))  # a hole is NaT here
    if kind not in ("numeric", "boolean"):
        raise InputError(f"X: {label} is of type {values.type}, which is not supported; convert it or drop it")
    return _checked(Column(label, kind, numbers(values)))


def numbers(values: Any) -> Array:
    """Numbers or truth values as float64, NaN where there is no value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _one_array(values)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    values = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False))  # a hole is NaN here


def _one_array(values: Any) -> Any:
    import pyarrow as pa

    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def _text(label: str, values: Any) -> Column:
    import pyarrow as pa

    if pa.types.is_time(values.type):
        values = values.cast(pa.string())
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    dictionary = encoded.dictionary
    if len(dictionary) > len(codes):  # it is that of many more rows
        used, codes = np.unique(codes, return_inverse=True)
        gap = int(used[0] < 0)
        dictionary, codes = dictionary.take(pa.array(used[gap:])), codes - gap
    names = dictionary.to_pylist()
    if None in names:  # a dictionary may hold a hole as a value
        hole = names.index(None)
        codes[codes == hole] = -1
        names[hole] = ""
    return categorical_column(label, codes, [name if isinstance(name, str) else category(name) for name in names])
