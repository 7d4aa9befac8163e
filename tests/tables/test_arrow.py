"""Arrow's columns are the same columns that a DataFrame of them has."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from deepbasis.errors import InputError
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.reading import arrow_column, kind_of, read_column
from support.frames import to_pandas

ZONE = dt.timezone(dt.timedelta(hours=3))
COLUMNS = {
    "whole numbers": pa.array([1, None, 3]),
    "bytes": pa.array([1, 2, 3], pa.int8()),
    "fractions": pa.array([1.5, float("nan"), None]),
    "halves": pa.array(np.array([1, 2, 3], dtype=np.float16)),
    "decimals": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
    "large": pa.array([2**63 + 1, 1, 2], pa.uint64()),
    "beyond a double": pa.array([2**53 + 1, 1, None], pa.int64()),
    "truth with a hole": pa.array([True, None, False]),
    "truth": pa.array([True, True, False]),
    "days": pa.array([dt.date(2020, 1, 1), None, dt.date(1999, 3, 4)]),
    "days in ms": pa.array([dt.date(2020, 1, 1), None, dt.date(1999, 3, 4)], pa.date64()),
    "moments": pa.array([dt.datetime(2020, 1, 1, 3, 4, 5, 678), None, dt.datetime(1900, 1, 1)]),
    "moments with a zone": pa.array(
        [dt.datetime(2020, 1, 1, 3, tzinfo=ZONE), None, dt.datetime(1900, 1, 1, tzinfo=dt.UTC)],
        pa.timestamp("us", "Europe/Rome"),
    ),
    "durations": pa.array([dt.timedelta(seconds=3), None, dt.timedelta(days=1)]),
    "times": pa.array([dt.time(3, 4), None, dt.time(5, 6)]),
    "text": pa.array(["a", None, "b"]),
    "large text": pa.array(["a", "", "b"], pa.large_string()),
    "views of text": pa.array(["a", "", "b"], pa.string_view()),
    "categories": pa.array(["x", "y", None]).dictionary_encode(),
    "numbered categories": pa.array([3, 4, None]).dictionary_encode(),
    "nothing": pa.nulls(3),
    "no number": pa.array([None, None, None], pa.float64()),
    "no text": pa.array([None, None, None], pa.string()),
    "not a number": pa.array([np.nan] * 3),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_way_through_pandas_gives_the_same(name):
    table = pa.table({name: COLUMNS[name]})
    ours = arrow_column(f"column {name!r}", table[name])
    theirs = read_column(to_pandas(table), 0)
    assert (ours.label, ours.kind, ours.categories) == (theirs.label, theirs.kind, theirs.categories)
    assert ours.values.dtype == theirs.values.dtype
    np.testing.assert_array_equal(ours.values, theirs.values)
    assert kind_of(COLUMNS[name].type) in (ours.kind, "missing") or ours.kind == "missing"


@pytest.mark.parametrize("name", COLUMNS)
def test_chunks_and_slices_make_no_difference(name):
    whole = arrow_column("column 'c'", COLUMNS[name])
    chunked = pa.chunked_array([COLUMNS[name][:1], COLUMNS[name][1:]])
    if not pa.types.is_dictionary(COLUMNS[name].type):  # chunks of a dictionary may number it anew
        np.testing.assert_array_equal(arrow_column("column 'c'", chunked).values, whole.values)
    sliced = arrow_column("column 'c'", pa.concat_arrays([COLUMNS[name]] * 2)[3:])
    names = np.array([*whole.categories, ""])
    if whole.kind == "categorical":
        np.testing.assert_array_equal(np.array([*sliced.categories, ""])[sliced.values], names[whole.values])
    else:
        np.testing.assert_array_equal(sliced.values, whole.values)


def test_a_hole_inside_a_dictionary_is_a_hole():
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None]), pa.array(["a", None, "b"]))
    column = arrow_column("column 'c'", odd)
    assert [column.categories[k] if k >= 0 else None for k in column.values] == ["a", None, "b", None]


@pytest.mark.parametrize(("name", "words"), [("c", "infinite"), ("d", "outside 1678")])
def test_what_is_wrong_is_told_with_its_row_in_the_file(name, words):
    dates = pa.array([1, 10**17], pa.timestamp("ms"))
    block = FileBlock("'part.parquet'", 1000, pa.table({"c": [1.0, np.inf], "d": dates}))
    with pytest.raises(InputError, match=rf"^'part.parquet': column '{name}' .*{words}") as refused, block.located():
        block.column(name)
    assert "row 1001 (counting from 0)" in str(refused.value)


def test_what_makes_no_column_is_refused():
    assert kind_of(pa.list_(pa.int64())) == ""
    with pytest.raises(InputError, match=r"column 'c' is of type list<item: int64>"):
        arrow_column("column 'c'", pa.array([[1], [2]]))
