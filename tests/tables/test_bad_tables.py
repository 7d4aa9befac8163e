"""Tables, targets, weights and groups that cannot be used: the error is typed, and says what, where and what to do."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from deepbasis import InputError
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns
from deepbasis.tables.table import Table, row_labels
from deepbasis.tables.targets import check_target, check_weight


def fitted(X, weight=None):
    return Preprocessor.fit(*read_columns(X), weight)


def objects(*cells):
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return pd.DataFrame({"a": range(len(cells)), "bad": pd.Series(column, dtype=object)})


def frame(**columns):
    return pd.DataFrame(columns)


def seconds(*stamps):
    return np.array(stamps, dtype="datetime64[s]")


def duplicated():
    return pd.DataFrame(np.eye(3), columns=["a", "b", "a"])


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("not today")


class Broken:
    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        raise RuntimeError("not today")


INF = np.inf
DATE = datetime.date

TABLES = {
    # not a table
    "none": (None, "Expected 2D array, got scalar array", "Reshape your data"),
    "a number": (3.0, "Expected 2D array, got scalar array", "Reshape your data"),
    "a word": ("table.csv", "Expected 2D array, got scalar array", "table.csv"),
    "a dict": ({"a": [1, 2]}, "Expected 2D array, got scalar array"),
    "a vector": (np.ones(4), "Expected 2D array, got 1D array instead", "shape (4,)", "Reshape your data"),
    "a list": ([1, 2, 3], "Expected 2D array, got 1D array instead", "reshape(-1, 1)"),
    "a list of dicts": ([{"a": 1}, {"a": 2}], "Expected 2D array, got 1D array instead"),
    "a Series": (pd.Series([1.0, 2.0]), "2-dimensional container", "Reshape your data", "to_frame"),
    "an arrow column": (pa.chunked_array([[1, 2]]), "Reshape your data"),
    "a cube": (np.ones((2, 2, 2)), "Found array with dim 3, while dim <= 2 is required"),
    "ragged": ([[1, 2], [3]], "X cannot be made an array", "one length"),
    "an array that refuses": (Unreadable(), "X cannot be made an array", "not today"),
    "a table that refuses": (Broken(), "cannot be read as a table", "not today"),
    "structured": (np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), "structured array", "pandas.DataFrame"),
    "sparse matrix": (sparse.csr_matrix(np.eye(3)), "Sparse data was passed", "toarray"),
    "sparse array": (sparse.coo_array(np.eye(3)), "Sparse data was passed", "dense data is required"),
    # empty
    "no rows": (
        np.ones((0, 3)),
        "Found array with 0 sample(s) (shape=(0, 3)) while a minimum of 1 is required by DeepBasisRegressor",
    ),
    "no columns": (np.ones((12, 0)), "0 feature(s) (shape=(12, 0)) while a minimum of 1 is required"),
    "no rows in a DataFrame": (frame(a=[]), "Found array with 0 sample(s) (shape=(0, 1))"),
    "no columns in a DataFrame": (pd.DataFrame(index=range(3)), "0 feature(s) (shape=(3, 0)) while a minimum of 1"),
    "nothing": (pd.DataFrame(), "X is empty", "0 sample(s)"),
    # names
    "a name twice": (duplicated(), "duplicate column names: 'a'", "rename"),
    "a number twice": (pd.DataFrame(np.eye(2), columns=[1, 1]), "duplicate column names: 1"),
    "mixed names": (pd.DataFrame(np.eye(2), columns=["a", 0]), "0 among strings", "X.columns.astype(str)"),
    # infinite
    "inf in an array": (np.array([[1, 2], [3, INF], [4, -INF]]), "column 1 has 2 infinite", "inf", "row 1", "NaN"),
    "inf in a DataFrame": (frame(a=[1, 2.0], b=[-INF, 0]), "column 'b' has 1 infinite", "row 0"),
    "inf in Float64": (frame(a=pd.array([1.0, INF], dtype="Float64")), "column 'a' has 1 infinite", "row 1"),
    "inf in arrow": (frame(a=pd.array([1.0, INF], dtype=pd.ArrowDtype(pa.float32()))), "'a' has 1 infinite", "row 1"),
    "inf among objects": (objects(1, None, INF), "column 'bad' has 1 infinite", "row 2"),
    "a Decimal Infinity": (objects(Decimal(1), Decimal("-Infinity")), "column 'bad' has 1 infinite", "row 1"),
    "an integer beyond float64": ([[1], [10**400]], "column 0 has 1 infinite", "row 1"),
    "a longdouble beyond float64": (np.array([[1], [2]], dtype=np.longdouble) * np.longdouble("1e4000"), "2 infinite"),
    # missing
    "all NaN in an array": (np.array([[1, np.nan], [2, np.nan]]), "column 1 has no values at all", "drop it"),
    "all NaN in a DataFrame": (frame(a=[1, 2], b=[np.nan, np.nan]), "column 'b' has no values at all"),
    "all None": (objects(None, None), "column 'bad' has no values at all"),
    "all NA": (frame(b=pd.array([None, None], dtype="Int64")), "column 'b' has no values at all"),
    "all NaT": (frame(b=pd.to_datetime([None, None])), "column 'b' has no values at all"),
    "all missing text": (frame(b=pd.array([None, None], dtype="string")), "column 'b' has no values at all"),
    "all missing categories": (frame(b=pd.Categorical([None, None], ["x"])), "column 'b' has no values at all"),
    # text where there are no types
    "an array of text": (np.array([["a", "b"]]), "column 0 holds text", "'a'", "row 0", "DataFrame"),
    "numbers as text": ([["1", "2"]], "column 0 holds text", "astype(float)"),
    "an array of bytes": (np.array([[b"a"]]), "column 0, row 0 holds a bytes", "decode"),
    "a word in a list": ([[1, 2], [3, "x"]], "column 1 holds text", "DataFrame"),
    "text among objects": (np.array([[1, 2], [3, "x"]], dtype=object), "column 1 holds text", "pandas DataFrame"),
    "dates among objects": (
        np.array([[DATE(2020, 1, 1)]], dtype=object),
        "column 0 holds datetime values",
        "DataFrame",
    ),
    "spans among objects": (np.array([[datetime.timedelta(1)]], dtype=object), "holds duration values", "DataFrame"),
    "void": (np.zeros((2, 2), dtype="V4"), "column 0 is of type |V4", "not supported"),
    # complex
    "complex array": (np.ones((3, 1)) * 1j, "Complex data not supported", "real and imaginary"),
    "complex column": (frame(a=[1, 2], b=[1j, 2]), "column 'b'", "Complex data not supported"),
    "complex cell": (objects(1.0, 2j), "column 'bad', row 1", "Complex data not supported"),
    "complex cell of an array": (
        np.array([[1.0], [1j]], dtype=object),
        "column 0, row 1",
        "Complex data not supported",
    ),
    # cells that are no values
    "lists": (objects([1], [2]), "column 'bad', row 0 holds a list", "string (in a DataFrame) or a real number"),
    "one dict": (objects("x", {"a": 1}), "column 'bad', row 1 holds a dict", "columns of its own"),
    "tuples": (objects((1, 2), (3, 4)), "column 'bad', row 0 holds a tuple"),
    "sets": (objects({1}, {2}), "column 'bad', row 0 holds a set"),
    "arrays": (objects(np.ones(2), np.ones(3)), "column 'bad', row 0 holds a ndarray"),
    "a dict in an array": (np.array([[{"foo": "bar"}, 1]], dtype=object), "column 0, row 0 holds a dict"),
    "bytes": (objects(b"x", b"y"), "column 'bad', row 0 holds a bytes", "decode"),
    "times": (objects(datetime.time(1), None), "column 'bad', row 0 holds a time"),
    "objects": (objects(object(), 1), "column 'bad', row 0 holds a object"),
    "modules": (objects(1, None, np), "column 'bad', row 2 holds a module"),
    "intervals": (frame(b=pd.interval_range(0, 3)), "column 'b', row 0 holds a Interval"),
    "arrow lists": (frame(b=pd.array([[1], [2]], dtype=pd.ArrowDtype(pa.list_(pa.int64())))), "column 'b', row 0"),
    "arrow structs": (pa.table({"a": [1], "b": [{"x": 1}]}), "column 'b', row 0 holds a dict"),
    "arrow nested table": (pa.table({"a": [1], "b": [[1, 2]]}), "column 'b', row 0 holds a ndarray"),
    "dates and text": (objects(DATE(2020, 1, 1), "x"), "column 'bad' mixes datetime and text"),
    "dates and numbers": (objects(DATE(2020, 1, 1), 3), "column 'bad' mixes datetime and numeric", "split"),
    "spans and numbers": (objects(datetime.timedelta(1), 3), "column 'bad' mixes duration and numeric"),
    # dates out of range
    "year 9999": (objects(DATE(2020, 1, 1), DATE(9999, 12, 31)), "'bad' holds the date 9999-12-31 in row 1", "NaT"),
    "year 1": (objects(datetime.datetime.min, None), "'bad' holds the date 0001-01-01", "row 0", "1678-01-01"),
    "year 9999 as stamps": (frame(b=seconds("2020-01-01", "9999-12-31")), "'b' holds the date 9999", "row 1"),
    "year 9999 as numpy": (np.array([["9999-12-31"]], dtype="M8[D]"), "column 0 holds the date 9999-12-31", "row 0"),
    "year 50000": (np.array([["2020"], [48030]], dtype="M8[Y]"), "row 1", "outside 1678-01-01 to 2261-12-31"),
    "year 9999 with a zone": (
        objects(datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-9)))),
        "column 'bad' holds the date 9999-12-31",
        "row 0",
    ),
    "year 9999 as periods": (frame(b=pd.PeriodIndex(["2020", "9999"], freq="Y")), "'b' holds the date 9999", "row 1"),
    "periods beyond": (frame(b=pd.PeriodIndex.from_ordinals([10**6, 50], freq="Y")), "'b' holds the date", "row 0"),
    "months as durations": (np.array([[1], [2]], dtype="m8[M]"), "column 0 holds durations", "convert them to days"),
}


def said(error, words):
    return [word for word in words if word not in str(error)]


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_fitted(case):
    X, *words = TABLES[case]
    with pytest.raises(InputError) as error:
        fitted(X)
    assert said(error.value, words) == []


@pytest.mark.parametrize("case", [case for case in TABLES if not case.startswith("all ")])
def test_reading_alone_finds_it_too(case):
    """All but what only the training rows can tell."""
    with pytest.raises(InputError) as error:
        Table.read(TABLES[case][0], [1.0])
    assert said(error.value, TABLES[case][1:]) == []


@pytest.mark.parametrize("case", ["lists", "one dict", "a dict in an array", "objects"])
def test_scikit_learn_asks_for_a_type_error_of_cells(case):
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        fitted(TABLES[case][0])


def test_a_column_that_only_rows_of_weight_zero_fill():
    with pytest.raises(InputError, match=r"column 'b' has no values at all \(in rows of positive weight\)"):
        fitted(frame(a=[1, 2, 3], b=[1, np.nan, np.nan]), np.array([0, 1, 1]))


# --- at prediction

TRAIN = {
    "n": [1.0, 2.0, 3.0],
    "b": [True, False, True],
    "t": ["x", "y", "x"],
    "d": pd.to_datetime(["2020-01-01", "2021-01-01", "2022-01-01"]),
    "s": pd.to_timedelta([1, 2, 3], unit="h"),
}
NEW = pd.DataFrame(TRAIN)
STAMP = pd.to_datetime(["2020-05-06"] * 3)
SPAN = pd.to_timedelta([60] * 3, unit="s")
TEXT = ["u", "v", "w"]
ORDER = "X[['n', 'b', 't', 'd', 's']]"
NAMES = "The feature names should match those that were passed during fit.\n"

PREDICTIONS = {
    "other order": (NEW[["b", "n", "t", "d", "s"]], NAMES, "same order as they were in fit", ORDER),
    "one column less": (
        NEW.drop(columns="t"),
        NAMES + "Feature names seen at fit time, yet now missing:\n- t\n",
        ORDER,
    ),
    "one column more": (NEW.assign(z=1), NAMES + "Feature names unseen at fit time:\n- z\n", ORDER),
    "renamed": (NEW.rename(columns={"n": "N"}), "unseen at fit time:\n- N\n", "yet now missing:\n- n\n"),
    "many more": (NEW.assign(**{f"z{k}": 1 for k in range(9)}), "- z4\n- ...\n"),
    "a name twice": (NEW.rename(columns={"b": "n"}), "duplicate column names: 'n'"),
    "array with fewer": (np.ones((3, 4)), "X has 4 features, but DeepBasisRegressor is expecting 5 features as input"),
    "array with more": (np.ones((3, 6)), "X has 6 features, but DeepBasisRegressor is expecting 5 features as input"),
    "numbered with fewer": (pd.DataFrame(np.ones((3, 2))), "X has 2 features", "expecting 5 features"),
    "no rows": (NEW.iloc[:0], "0 sample(s)"),
    "a vector": (np.ones(5), "Reshape your data"),
    "inf": (NEW.assign(n=[1, INF, 2]), "column 'n' has 1 infinite", "row 1"),
    "a far date": (NEW.assign(d=seconds(*["9999-01-01"] * 3)), "column 'd' holds the date 9999", "row 0"),
    "lists": (NEW.assign(t=[[1]] * 3), "column 't', row 0 holds a list"),
    "numeric now text": (
        NEW.assign(n=[None, "u", "v"]),
        "column 'n' was numeric",
        "is text",
        "'u' in row 1",
        "to_numeric",
    ),
    "numeric now numbers as text": (NEW.assign(n=["1", "2", "3"]), "was numeric", "is text", "'1' in row 0"),
    "numeric now text here and there": (NEW.assign(n=pd.Series([1, "v", 2], dtype=object)), "'n' was numeric", "text"),
    "numeric now categories": (NEW.assign(n=pd.Categorical([1, 2, 3])), "column 'n' was numeric", "is text", "'1'"),
    "numeric now dates": (NEW.assign(n=STAMP), "column 'n' was numeric", "is a date now, 2020-05-06", "row 0"),
    "numeric now durations": (NEW.assign(n=SPAN), "column 'n' was numeric", "is a duration now, 60 seconds"),
    "boolean now text": (
        NEW.assign(b=["True", "False", "True"]),
        "column 'b' was boolean",
        "is text",
        "'True' in row 0",
    ),
    "boolean now numbers": (NEW.assign(b=[1, 0, 7]), "column 'b' was boolean", "is numeric now, 7.0 in row 2"),
    "boolean now dates": (NEW.assign(b=STAMP), "column 'b' was boolean", "is a date"),
    "text now numbers": (NEW.assign(t=[4, 5, 6]), "column 't' was text", "is numeric now, 4.0 in row 0", "astype(str)"),
    "text now booleans": (NEW.assign(t=[True] * 3), "column 't' was text", "is boolean now, True in row 0"),
    "text now dates": (NEW.assign(t=STAMP), "column 't' was text", "is a date now", "fit the model again"),
    "dates now text": (NEW.assign(d=["2020-01-01"] * 3), "column 'd' was a date", "is text", "pandas.to_datetime"),
    "dates now numbers": (NEW.assign(d=[2020, 2021, 2022]), "column 'd' was a date", "is numeric now, 2020.0 in row 0"),
    "dates now durations": (NEW.assign(d=SPAN), "column 'd' was a date", "is a duration now, 60 seconds in row 0"),
    "durations now numbers": (NEW.assign(s=[1.0, 2.0, 3.0]), "column 's' was a duration", "numeric", "to_timedelta"),
    "durations now text": (NEW.assign(s=TEXT), "column 's' was a duration", "is text", "'u' in row 0"),
}


@pytest.mark.parametrize("case", PREDICTIONS)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_table_that_is_not_like_the_one_of_training(case):
    X, *words = PREDICTIONS[case]
    preprocessor = fitted(NEW)
    with pytest.raises(InputError) as error:
        preprocessor.transform(X)
    assert said(error.value, words) == []
    with pytest.raises(InputError) as in_pieces:
        list(preprocessor.chunks(X, 1))
    assert str(in_pieces.value) == str(error.value)  # rows of the table, not of the piece


def test_an_array_of_numbers_for_a_table_of_text_is_refused():
    with pytest.warns(UserWarning, match="feature names"), pytest.raises(InputError, match="column 0 was"):
        fitted(frame(t=["x", "y"])).transform(np.ones((2, 1)))


# --- targets

TARGETS = {
    "none": (None, "requires y to be passed, but the target y is None"),
    "a number": (3.0, "y should be a 1d array, got an array of shape ()"),
    "two columns": (np.ones((3, 2)), "y should be a 1d array, got an array of shape (3, 2) instead", "one target"),
    "one row": (np.ones((1, 3)), "y should be a 1d array, got an array of shape (1, 3)"),
    "a cube": (np.ones((3, 1, 1)), "y should be a 1d array"),
    "empty": ([], "y is empty", "0 sample(s)"),
    "ragged": ([1, [2, 3]], "y cannot be made an array"),
    "sparse": (sparse.csr_matrix([[1.0]]), "Sparse data was passed for y"),
    "NaN": ([1.0, np.nan, np.nan], "y has 2 values that are NaN (missing), the first in row 1", "remove such rows"),
    "None among numbers": ([1.0, None], "y has 1 value that is NaN (missing), in row 1"),
    "NA": (pd.Series([None, 1], dtype="Int64"), "y has 1 value that is NaN", "row 0"),
    "masked": (np.ma.MaskedArray([1, 2], mask=[0, 1]), "y has 1 value that is NaN", "row 1"),
    "nothing but None": ([None, None], "y has 2 values that are NaN", "row 0"),
    "inf": ([1.0, INF], "y has 1 value that is inf (infinite), in row 1"),
    "minus inf": ([-INF, 1, -INF], "y has 2 values that are inf", "row 0"),
    "a large integer": ([1, 10**400], "y has 1 value that is inf", "row 1"),
    "large": ([1.0, -1e200], "y is -1e+200 in row 1", "units"),
    "a word in a list": ([1.0, "b"], "y must hold numbers, got text"),
    "text": (["a", "b"], "y must hold numbers, got text", "'a'", "row 0"),
    "numbers as text": (["1", "2"], "y must hold numbers, got text"),
    "text among objects": (np.array([1, "b"], dtype=object), "y must hold numbers, got text"),
    "pandas text": (pd.Series(["a", "b"]), "y must hold numbers, got text", "'a' in row 0"),
    "categories": (pd.Series(pd.Categorical(["a", "b"])), "y must hold numbers, got text"),
    "bytes": (np.array([b"a"]), "y must hold numbers, got bytes"),
    "classes": (["egg", "ham"], "y must hold numbers, got text: 'egg' in row 0", "use DeepBasisClassifier"),
    "dates": (np.array(["2020-01-01"], dtype="M8[D]"), "y must hold numbers, got dates", "2020-01-01"),
    "date objects": ([DATE(2020, 1, 1)], "y must hold numbers, got dates"),
    "durations": (np.array([1], dtype="m8[s]"), "y must hold numbers, got durations"),
    "duration objects": ([datetime.timedelta(1)], "y must hold numbers, got durations", "86400 seconds"),
    "complex": (np.array([1j, 2]), "y: Complex data not supported"),
    "complex cell": (np.array([1, 2j, "x"], dtype=object), "y, row 1: Complex data not supported"),
    "dicts": ([{"a": 1}], "y, row 0 holds a dict"),
    "structured": (np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), "y must hold numbers"),
    "unreadable": (Unreadable(), "y cannot be made an array", "not today"),
}


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_that_cannot_be_used(case):
    y, *words = TARGETS[case]
    with pytest.raises(InputError) as error:
        check_target(y)
    assert said(error.value, words) == []
    if case not in ("two columns", "one row"):  # a table may have several targets
        with pytest.raises(InputError) as of_table:
            Table.read(np.eye(3), y)
        assert str(of_table.value) == str(error.value)


def test_the_target_has_its_own_name_in_messages():
    with pytest.raises(InputError, match=r"^y_val has 1 value that is NaN"):
        check_target([np.nan], "y_val")


# --- weights and groups

WEIGHTS = {
    "negative": ([1, -1, 2], "sample_weight has 1 value that is negative, in row 1: -1.0", ">= 0"),
    "a negative number": (-1, "sample_weight has 3 values that are negative"),
    "all zero": ([0, 0, 0], "Sample weights must contain at least one non-zero number"),
    "zero": (0, "Sample weights must contain at least one non-zero number"),
    "NaN": ([1, np.nan, 1], "not finite (NaN or inf), in row 1"),
    "a NaN": (np.nan, "3 values that are not finite"),
    "inf": ([1, 1, INF], "not finite (NaN or inf), in row 2: inf"),
    "None among numbers": ([1, None, 1], "not finite", "row 1"),
    "large": ([1e200, 1, 1], "larger than 1e+150", "row 0"),
    "too many": (np.ones(6), "sample_weight.shape == (6,), expected (3,)"),
    "too few": ([1], "sample_weight.shape == (1,), expected (3,)"),
    "none at all": ([], "sample_weight.shape == (0,), expected (3,)"),
    "two columns": (np.ones((3, 2)), "Sample weights must be 1D array or scalar, got 2D array"),
    "one column": (np.ones((3, 1)), "Sample weights must be 1D array or scalar, got 2D array"),
    "text": (["a", "b", "c"], "sample_weight must hold numbers, got text"),
    "a word": ("balanced", "sample_weight must hold numbers, got text", "balanced"),
    "dates": (np.array(["2020"] * 3, dtype="M8[D]"), "sample_weight must hold numbers, got dates"),
    "complex": ([1j, 1, 1], "sample_weight: Complex data not supported"),
    "ragged": ([1, [2], 3], "sample_weight cannot be made an array"),
    "dicts": ([{}, {}, {}], "sample_weight, row 0 holds a dict"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_cannot_be_used(case):
    weight, *words = WEIGHTS[case]
    with pytest.raises(InputError) as error:
        check_weight(weight, 3)
    assert said(error.value, words) == []
    with pytest.raises(InputError) as of_table:
        Table.read(np.eye(3), np.ones(3), weight)
    assert str(of_table.value) == str(error.value)


GROUPS = {
    "too many": ([1, 2, 3, 4], "groups must be one value for each row of X: shape (3,), got (4,)"),
    "none at all": ([], "shape (3,), got (0,)"),
    "a number": (7, "shape (3,), got ()"),
    "a word": ("abc", "shape (3,), got ()"),
    "two columns": (np.ones((3, 2)), "shape (3,), got (3, 2)"),
    "NaN": ([1, np.nan, np.nan], "groups has 2 missing values, the first in row 1", "group of its own"),
    "NaN among text": (["a", np.nan, "b"], "groups has 1 missing value, in row 1"),
    "None": (["a", None, "b"], "groups has 1 missing value, in row 1"),
    "NA": (pd.array([1, None, 2], dtype="Int64"), "groups has 1 missing value, in row 1"),
    "NaT": (np.array(["2020", "2021", "NaT"], dtype="M8[ns]"), "groups has 1 missing value, in row 2"),
    "lists of unequal length": (pd.Series([[1], [2, 3], [4]]), "groups must hold numbers or texts"),
    "dicts": ([{}, {}, {}], "groups must hold numbers or texts", "unhashable"),
    "ragged": ([1, [2], 3], "groups cannot be made an array"),
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_that_cannot_be_used(case):
    groups, *words = GROUPS[case]
    with pytest.raises(InputError) as error:
        row_labels(np.eye(3), groups)
    assert said(error.value, words) == []


def test_there_are_enough_of_them():
    assert sum(map(len, (TABLES, PREDICTIONS, TARGETS, WEIGHTS, GROUPS))) >= 150


def test_of_a_column_of_numbers_the_cell_that_is_none_is_told():
    preprocessor = fitted(pd.DataFrame({"a": [1.0, 2.0, 3.0]}))
    with pytest.raises(InputError, match=r"'a'.*'abc' in row 2.*correct that cell"):
        preprocessor.transform(pd.DataFrame({"a": ["1.5", "2", "abc", "x"]}))
    with pytest.raises(InputError, match=r"'a'.*'1.5' in row 1"):
        preprocessor.transform(pd.DataFrame({"a": [None, "1.5"]}))
