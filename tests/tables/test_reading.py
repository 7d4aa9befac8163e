"""What counts as a table: every way to hold and to pass the same values gives the same columns."""

import datetime
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from deepbasis.tables.preprocessing import GAP, Preprocessor
from deepbasis.tables.reading import read_columns

UTC = datetime.UTC


def fitted(X, weight=None):
    return Preprocessor.fit(*read_columns(X), None if weight is None else np.asarray(weight, dtype=float))


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(np.ascontiguousarray(a).view(np.uint64), b.copy().view(np.uint64))


# --- ways to hold values in a column


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, "1", 1.0, "a", 2, np.float32(2)], dtype=object),
        pd.Series(pd.Categorical([1, 1, 1, "a", 2, 2])),
        pd.Series(["1", "1", "1", "a", "2", "2"]),
        pd.Series(["1", "1", "1", "a", "2", "2"], dtype="string"),
        pd.Series(["1", "1", "1", "a", "2", "2"], dtype=pd.ArrowDtype(pa.string())),
        pd.Series(["1", "1", Fraction(1), "a", Decimal(2), Decimal("2.00")], dtype=object),
    ],
    ids=["objects", "categorical", "str", "string", "arrow", "exact numbers"],
)
def test_categories_are_compared_as_text(column):
    preprocessor = fitted(pd.DataFrame({"c": column}))
    assert preprocessor.feature_names_out == ["c=1", "c=2", "c=a"]
    assert preprocessor.transform(pd.DataFrame({"c": column})).argmax(1).tolist() == [0, 0, 0, 2, 1, 1]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pd.Series([1, 2, 4], dtype="uint8"), "numeric"),
        (pd.Series([1, 2, 4], dtype="float32"), "numeric"),
        (pd.Series([1, 2, 4], dtype="Float64"), "numeric"),
        (pd.Series([1, 2, 4], dtype=pd.ArrowDtype(pa.int16())), "numeric"),
        (pd.Series([1, 2, 4], dtype=pd.SparseDtype("int64")), "numeric"),
        (pd.Series([Decimal(1), Decimal(2), Decimal(4)]), "numeric"),
        (pd.Series([Decimal(1), Decimal(2), Decimal(4)], dtype=pd.ArrowDtype(pa.decimal128(4, 1))), "numeric"),
        (pd.Series([1, 2.0, np.int8(4)], dtype=object), "numeric"),
        (pd.Series([True, 2, 4], dtype=object), "numeric"),
        (pd.Series(np.array([1, 2, 4], dtype="timedelta64[s]")), "duration"),
        (pd.Series([datetime.timedelta(seconds=k) for k in (1, 2, 4)], dtype=object), "duration"),
        (pd.Series([1, 2, 4], dtype=pd.ArrowDtype(pa.duration("s"))), "duration"),
    ],
)
def test_every_way_to_hold_numbers_gives_the_same(column, kind):
    reference = fitted(np.array([[1.0], [2.0], [4.0]]))
    preprocessor = fitted(pd.DataFrame({"a": column}))
    assert preprocessor.encodings[0].kind == kind
    assert same_bits(preprocessor.transform(pd.DataFrame({"a": column})), reference.transform([[1], [2], [4]]))


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([True, False, None], dtype=object),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series([True, False, None], dtype=pd.ArrowDtype(pa.bool_())),
        pd.Series([np.True_, np.False_, np.nan], dtype=object),
    ],
)
def test_every_way_to_hold_truth_values_gives_the_same(column):
    preprocessor = fitted(pd.DataFrame({"a": column}))
    assert preprocessor.feature_names_out == ["a", "a (missing)"]
    assert preprocessor.transform(pd.DataFrame({"a": column})).tolist() == [[1, 0], [-1, 0], [-1, 1]]


STAMPS = ["2020-02-01T01:30", "2021-07-01T13:00", "1969-12-31T23:59"]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(pd.to_datetime(STAMPS)),
        pd.Series(pd.to_datetime(STAMPS)).astype("datetime64[ns]"),
        pd.Series(pd.to_datetime(STAMPS)).astype("datetime64[s]"),
        pd.Series(pd.to_datetime(STAMPS)).dt.tz_localize("UTC"),
        pd.Series(pd.to_datetime(STAMPS)).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        pd.Series(pd.to_datetime(STAMPS)).astype(object),
        pd.Series([datetime.datetime.fromisoformat(stamp) for stamp in STAMPS], dtype=object),
        pd.Series([datetime.datetime.fromisoformat(stamp + "+00:00") for stamp in STAMPS], dtype=object),
        pd.Series([datetime.datetime.fromisoformat(stamp).replace(tzinfo=UTC) for stamp in STAMPS], dtype=object),
        pd.Series([np.datetime64(stamp) for stamp in STAMPS], dtype=object),
        pd.Series(pd.PeriodIndex(STAMPS, freq="min")),
        pd.Series(pd.PeriodIndex(STAMPS, freq="min")).astype(object),
        pd.Series(pd.to_datetime(STAMPS)).astype(pd.ArrowDtype(pa.timestamp("us"))),
        pd.Series(pd.to_datetime(STAMPS)).dt.tz_localize("UTC").astype(pd.ArrowDtype(pa.timestamp("us", "UTC"))),
    ],
)
def test_every_way_to_hold_dates_gives_the_same(column):
    stamps = np.array([np.datetime64(stamp) for stamp in STAMPS])[:, None]
    reference = fitted(stamps)
    assert reference.width == 1 + 2 * 3
    preprocessor = fitted(pd.DataFrame({"a": column}))
    assert same_bits(preprocessor.transform(pd.DataFrame({"a": column})), reference.transform(stamps))


# --- ways to pass a table


class NotAnArray:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2], [3, None], [5, 9]],
        ((1, 2), (3, np.nan), (5, 9)),
        np.array([[1, 2], [3, None], [5, 9]], dtype=object),
        np.array([[1, Decimal(2)], [3, pd.NA], [Fraction(5), np.int8(9)]], dtype=object),
        np.array([[1, 2], [3, np.nan], [5, 9]], dtype=np.float32),
        np.array([[1, 2], [3, np.nan], [5, 9]], dtype=np.longdouble),
        np.array([[1, 2], [3, np.nan], [5, 9]], order="F"),
        np.ma.MaskedArray([[1, 2], [3, 0], [5, 9]], mask=[[0, 0], [0, 1], [0, 0]]),
        NotAnArray([[1, 2], [3, np.nan], [5, 9]]),
        pd.DataFrame([[1, 2], [3, np.nan], [5, 9]]),
        pd.DataFrame([[1, 2], [3, np.nan], [5, 9]], columns=[2020, 2021]),
    ],
    ids=lambda X: type(X).__name__,
)
def test_every_way_to_pass_numbers_without_names(X):
    reference = np.array([[1, 2], [3, np.nan], [5, 9]])
    preprocessor = fitted(X)
    assert preprocessor.input_columns is None
    assert preprocessor.feature_names_out == ["x0", "x1", "x1 (missing)"]
    assert same_bits(preprocessor.transform(X), fitted(reference).transform(reference))


def test_arrays_of_truth_values_dates_and_durations():
    assert fitted(np.array([[True], [False]])).transform([[True], [False]]).tolist() == [[1], [-1]]
    days = np.array([["2020-01-01"], ["2020-01-03"]], dtype="datetime64[D]")
    assert fitted(days).feature_names_out[0] == "x0 (year)"
    assert fitted(days - days[0]).feature_names_out == ["x0"]


def test_numbers_and_truth_values_pass_for_each_other():
    numbers = fitted(pd.DataFrame({"a": [0, 1, 1, 0]}))
    truth = fitted(pd.DataFrame({"a": [False, True]}))
    for values in ([0, 1], [False, True], [0.0, 1.0]):
        table = pd.DataFrame({"a": values})
        assert same_bits(numbers.transform(table), numbers.transform(pd.DataFrame({"a": [0, 1]})))
        assert truth.transform(table).tolist() == [[-1], [1]]


def test_numbers_pass_for_categories_that_are_numbers():
    """A postcode column of which a file happens to hold only the numeric ones, with and without holes."""
    preprocessor = fitted(pd.DataFrame({"c": pd.Categorical([1, 2, 1])}))
    for values in ([2, 1], [2.0, 1.0], ["2", "1"]):
        assert preprocessor.transform(pd.DataFrame({"c": values})).tolist() == [[0, 1], [1, 0]]
    assert preprocessor.transform(pd.DataFrame({"c": [2.0, np.nan]})).tolist() == [[0, 1], [GAP, 0]]
    truth = fitted(pd.DataFrame({"c": pd.Categorical([True, False])}))
    assert truth.transform(pd.DataFrame({"c": [True, False]})).tolist() == [[0, 1], [1, 0]]


def test_names_and_no_names_warn_as_in_scikit_learn():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    with pytest.warns(UserWarning, match="X does not have valid feature names, but DeepBasisRegressor was fitted with"):
        fitted(table).transform(table.to_numpy())
    with pytest.warns(UserWarning, match="X has feature names, but DeepBasisRegressor was fitted without"):
        fitted(table.to_numpy()).transform(table)


def test_arrays_need_neither_pandas_nor_torch():
    code = """
import sys
sys.modules["pandas"] = None  # an import of it fails
import numpy as np
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.table import Table, row_labels
table = Table.read([[1, 2.0], [3, None]], [1, 2])
row_labels(Preprocessor.fit(table.names, table.columns).transform(np.eye(2)), [1, 2])
class Frame:
    __dataframe__ = None
try:
    Table.read(Frame(), [1])
except ValueError as error:
    print(error)
print("torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    message, torch = run.stdout.splitlines()
    assert "install pandas" in message
    assert torch == "False"
