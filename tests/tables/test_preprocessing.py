"""From a mixed table to numbers: the relations that must hold for every table."""

import datetime
import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepbasis import FileFormatError, InputError
from deepbasis.tables import encoders
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns


def mixed_table(n=60, seed=0):
    """Every kind of column, with holes; no two rows alike."""
    rng = np.random.default_rng(seed)
    hole = rng.random((n, 6)) < 0.15
    start = pd.Timestamp("2021-03-01T10:00")
    table = pd.DataFrame(
        {
            "age": np.where(hole[:, 0], np.nan, rng.normal(40, 10, n)),
            "count": pd.array(np.where(hole[:, 1], None, rng.integers(0, 9, n)), dtype="Int64"),
            "smoker": pd.array(np.where(hole[:, 2], None, rng.random(n) < 0.4), dtype="boolean"),
            "city": np.where(hole[:, 3], None, rng.choice(["Rome", "Oslo", "Lima"], n)),
            "size": pd.Categorical(rng.choice(["S", "M"], n)),
            "when": start + pd.to_timedelta(rng.integers(0, 10**8, n), unit="s"),
            "wait": pd.to_timedelta(rng.integers(0, 500, n), unit="min"),
            "same": 7,
        }
    )
    table.loc[hole[:, 4], "when"] = pd.NaT
    return table


def fitted(X, weight=None):
    return Preprocessor.fit(*read_columns(X), None if weight is None else np.asarray(weight, dtype=float))


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(np.ascontiguousarray(a).view(np.uint64), b.copy().view(np.uint64))


def through_json(preprocessor):
    return Preprocessor.from_state(json.loads(json.dumps(preprocessor.state(), allow_nan=False)))


# --- relations


def test_one_row_at_a_time_and_in_pieces_is_the_same():
    table = mixed_table()
    preprocessor = fitted(table)
    whole = preprocessor.transform(table)
    for rows in (1, 7, 60, 100):
        assert same_bits(np.concatenate(list(preprocessor.chunks(table, rows))), whole)
        pieces = [preprocessor.transform(table.iloc[k : k + rows]) for k in range(0, len(table), rows)]
        assert same_bits(np.concatenate(pieces), whole)


def test_pieces_of_far_out_numbers_are_bitwise_those_of_the_whole():
    x = np.random.default_rng(0).standard_cauchy((5000, 3))
    preprocessor = fitted(x)
    whole = preprocessor.transform(x)
    for rows in (1, 3, 17, 1000):
        assert same_bits(np.concatenate(list(preprocessor.chunks(x[:1000], rows))), whole[:1000])
    assert same_bits(preprocessor.transform(np.asfortranarray(x)), whole)


def numbers() -> pd.DataFrame:
    """Of all sizes and of three types, without gaps."""
    x = np.random.default_rng(0).standard_cauchy((200, 3))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1].astype(np.float32), "c": (100 * x[:, 2]).astype(np.int64)})


@pytest.mark.parametrize("gaps", ["none", "some", "a whole column"])
@pytest.mark.parametrize("array", [False, True])
def test_a_table_of_numbers_at_once_is_its_columns_one_by_one(gaps: str, array: bool) -> None:
    table = numbers()
    preprocessor = fitted(table.to_numpy() if array else table)
    if gaps != "none":
        table.loc[[3, 5] if gaps == "some" else slice(None), "a"] = np.nan
    again = table.to_numpy() if array else table
    for rows in (1, 200):
        assert same_bits(np.concatenate(list(preprocessor.chunks(again, rows))), preprocessor.transform(again))


def test_an_infinite_number_is_named_by_its_row_of_the_table():
    table = numbers()
    preprocessor = fitted(table)
    table.loc[150, "b"] = np.inf
    with pytest.raises(InputError, match=r"column 'b' has 1 infinite value \(inf\), in row 150"):
        list(preprocessor.chunks(table, 7))


def test_a_piece_of_a_mixed_column_may_look_like_another_kind():
    table = pd.DataFrame({"c": pd.Series([1, "a", None, 2.0, "b", True], dtype=object)})
    preprocessor = fitted(table)
    assert same_bits(np.concatenate(list(preprocessor.chunks(table, 1))), preprocessor.transform(table))


def test_pieces_are_by_position_whatever_the_index():
    table = mixed_table().set_index(np.linspace(1, 0, 60))
    preprocessor = fitted(table)
    assert same_bits(np.concatenate(list(preprocessor.chunks(table, 7))), preprocessor.transform(table))


def test_the_order_of_the_training_rows_does_not_matter():
    table = mixed_table()
    weight = np.random.default_rng(1).random(60)
    order = np.random.default_rng(2).permutation(60)
    assert fitted(table.iloc[order]) == fitted(table)
    assert fitted(table.iloc[order], weight[order]) == fitted(table, weight)


@given(st.lists(st.integers(0, 4), min_size=60, max_size=60), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_weights_are_repetitions_to_the_last_bit(weights, seed):
    table, weight = mixed_table(seed=seed), np.array(weights)
    repeated = table.loc[table.index.repeat(weight)]
    assume(len(repeated) > 0)
    assume(not repeated.isna().all().any())
    assert fitted(table, weight) == fitted(repeated)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.sampled_from([0.0, 1.0, 1e9, -0.5])),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_weights_are_repetitions_also_where_the_quartiles_coincide(x, data):
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x))))
    assume(weight.any())
    assert fitted(x, weight) == fitted(x.repeat(weight, axis=0))


def test_equal_weights_are_no_weights():
    table = mixed_table()
    for weight in (1.0, 0.1, 1 / 3):
        equal, none = fitted(table, np.full(60, weight)), fitted(table)
        np.testing.assert_allclose(equal.transform(table), none.transform(table), rtol=1e-12, atol=1e-12)


WILD = st.floats(allow_infinity=False) | st.sampled_from([1e300, -1e300, 1e-300, 5e-324, 1.7e308, -1.7e308])


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 3)), elements=WILD), st.data())
@settings(max_examples=100, deadline=None)
def test_every_finite_or_missing_number_gives_finite_numbers(x, data):
    assume(not np.isnan(x).all(0).any())
    preprocessor = fitted(x)
    new = data.draw(hnp.arrays(np.float64, (4, x.shape[1]), elements=WILD))
    for table in (x, new):
        out = preprocessor.transform(table)
        assert np.isfinite(out).all()
        assert np.abs(out).max() < 38
        assert out.shape == (len(table), preprocessor.width)
    assert through_json(preprocessor) == preprocessor


CELLS = {
    "number": st.none()
    | st.floats(-1e6, 1e6)
    | st.integers(-(10**30), 10**30)
    | st.decimals(allow_infinity=False, allow_nan=False),
    "text": st.none() | st.text(max_size=3) | st.integers(0, 3),
    "truth": st.none() | st.booleans(),
    "date": st.none() | st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)) | st.just(pd.NaT),
    "span": st.none() | st.timedeltas(datetime.timedelta(-1000), datetime.timedelta(1000)),
}


def test_flags_are_the_columns_of_0_and_1():
    """Categories, gaps and single values of a number; not truth values, which are -1 and 1."""
    table = mixed_table(3_000)
    table["gain"] = np.where(np.arange(3_000) % 4 == 0, np.arange(3_000) % 41, 0)
    fitted = Preprocessor.fit(*read_columns(table), spikes_above=2_000)
    x = fitted.transform(table)
    binary = [k for k in range(fitted.width) if set(np.unique(x[:, k])) <= {0.0, 1.0}]
    assert list(fitted.flags) == binary
    names = [fitted.feature_names_out[k] for k in binary]
    assert {"city=Rome", "size=S", "age (missing)", "gain=4", "city (missing)"} <= set(names)
    assert Preprocessor.fit(*read_columns(pd.DataFrame({"a": [1.0, 1.0]}))).flags == ()


def test_nothing_but_constants_gives_a_column_of_zeros():
    preprocessor = fitted(np.ones((3, 2)))
    assert preprocessor.feature_names_out == ["constant"]
    assert preprocessor.transform(np.zeros((2, 2))).tolist() == [[0.0], [0.0]]
    assert same_bits(through_json(preprocessor).transform(np.zeros((2, 2))), np.zeros((2, 1)))


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_round_trip_through_json_gives_the_same_bits(data):
    n = data.draw(st.integers(1, 10))
    kinds = data.draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    columns = [data.draw(st.lists(CELLS[kind], min_size=n, max_size=n)) for kind in kinds]
    table = pd.DataFrame({f"c{k}": pd.Series(cells, dtype=object) for k, cells in enumerate(columns)})
    assume(not table.isna().all().any())
    preprocessor = fitted(table)
    again = through_json(preprocessor)
    assert again == preprocessor
    out = preprocessor.transform(table)
    assert np.isfinite(out).all()
    assert same_bits(again.transform(table), out)
    assert out.shape[1] == preprocessor.width == len(preprocessor.feature_names_out)


def test_the_state_is_plain_json():
    metadata = fitted(mixed_table()).state()
    assert json.loads(json.dumps(metadata, allow_nan=False))["input_columns"] == list(mixed_table())
    for file in Path(encoders.__file__).parent.glob("*.py"):
        assert "pickle" not in file.read_text(encoding="utf-8").replace("without pickle", "")


@cache
def saved():
    return json.dumps(fitted(mixed_table()).state())


def damaged(change):
    metadata = json.loads(saved())
    change(metadata)
    return metadata


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["columns"][0].pop("scale"),
        lambda m: m["columns"][0].update(scale=[1.0]),
        lambda m: m["columns"][0].update(scale=1),
        lambda m: m["columns"][0].update(scale=-1.0),
        lambda m: m["columns"][0].update(scale=0.0),
        lambda m: m["columns"][0].update(center=float("nan")),
        lambda m: m["columns"][0].update(fill=float("inf")),
        lambda m: m["columns"][0].update(center="x"),
        lambda m: m.pop("columns"),
        lambda m: m.pop("input_columns"),
        lambda m: m.update(columns=[]),
        lambda m: m.update(columns="numeric"),
        lambda m: m.update(columns={"a": 1}),
        lambda m: m.update(columns=None),
        lambda m: m.update(input_columns=["a"]),
        lambda m: m.update(input_columns=["a"] * 8),
        lambda m: m.update(input_columns=list(range(8))),
        lambda m: m.update(input_columns="abcdefgh"),
        lambda m: m["columns"].pop(),
        lambda m: m["columns"][0].pop("kind"),
        lambda m: m["columns"][0].update(kind="exec"),
        lambda m: m["columns"][0].update(kind=["numeric"]),
        lambda m: m["columns"][0].update(missing=1),
        lambda m: m["columns"][0].update(varies="yes"),
        lambda m: m["columns"][0].update(surprise=1),
        lambda m: m["columns"][0].pop("linear"),
        lambda m: m["columns"][0].update(linear=0.0),
        lambda m: m["columns"][0].update(linear=float("nan")),
        lambda m: m["columns"][0].update(linear=float("inf")),
        lambda m: m["columns"][0].update(linear="10"),
        lambda m: m["columns"][0].pop("rule"),
        lambda m: m["columns"][0].update(rule="number"),
        lambda m: m["columns"][0].update(rule={"form": "eval"}),
        lambda m: m["columns"][0].update(rule={"form": ["number"]}),
        lambda m: m["columns"][0].update(rule={"form": "number", "surprise": 1}),
        lambda m: m["columns"][0].update(rule={"form": "number", "decimal": ";"}),
        lambda m: m["columns"][0].update(rule={"form": "number", "decimal": ",", "group": ","}),
        lambda m: m["columns"][0].update(rule={"form": "number", "unit": "x" * 1000}),
        lambda m: m["columns"][0].update(rule={"form": "number", "gap": 1}),
        lambda m: m["columns"][0].update(rule={"form": "number", "order": "dmy"}),
        lambda m: m["columns"][0].update(rule={"form": "date", "order": "dmy"}),  # of a column of numbers
        lambda m: m["columns"][0].update(rule={"form": "nothing"}),
        lambda m: m["columns"][3].update(rule={"form": "nothing"}),  # and yet it has outputs
        lambda m: m["columns"][3].update(categories=[1, 2]),
        lambda m: m["columns"][3].update(categories=["a", "a"]),
        lambda m: m["columns"][3].update(categories=[f"{k}" for k in range(99)]),
        lambda m: m["columns"][3].update(categories=None),
        lambda m: m["columns"][3].update(categories="abc"),
        lambda m: m["columns"][3].update(varies=False, other=True),
        lambda m: m["columns"][0].update(categories=["a"]),
        lambda m: m["columns"][0].update(other=True),
        lambda m: m["columns"][0].update(phases=["hour"]),
        lambda m: m["columns"][0].update(spikes=[1]),
        lambda m: m["columns"][0].update(spikes=[2.0, 1.0]),
        lambda m: m["columns"][0].update(spikes=[1.0, 1.0]),
        lambda m: m["columns"][0].update(spikes=[float("nan")]),
        lambda m: m["columns"][0].update(spikes=[float(k) for k in range(99)]),
        lambda m: m["columns"][0].update(spikes="1"),
        lambda m: m["columns"][3].update(spikes=[1.0]),
        lambda m: m["columns"][5].update(phases=["moon"]),
        lambda m: m["columns"][5].update(phases=["hour", "hour"]),
        lambda m: m["columns"][5].update(phases=[["hour"]]),
        lambda m: m["columns"].__setitem__(0, None),
    ],
)
def test_nonsense_is_no_state(change):
    with pytest.raises(FileFormatError, match="not the preprocessing of a table"):
        Preprocessor.from_state(damaged(change))


@pytest.mark.parametrize("metadata", [None, [], "x", 3, {}])
def test_nonsense_metadata_is_no_state(metadata):
    with pytest.raises(FileFormatError):
        Preprocessor.from_state(metadata)


ROWS = mixed_table(12)
JSON = st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "a", "hour", "datetime"])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_altered_state_is_refused_or_still_works(data):
    table = ROWS
    metadata = damaged(lambda m: None)
    if data.draw(st.booleans()):
        number = data.draw(st.sampled_from(["center", "fill", "scale"]))
        data.draw(st.sampled_from(metadata["columns"]))[number] = data.draw(st.floats())
    column = data.draw(st.sampled_from(metadata["columns"]))
    field = data.draw(st.sampled_from(sorted(column)))
    column[field] = data.draw(JSON | st.lists(JSON, max_size=3))
    try:
        preprocessor = Preprocessor.from_state(metadata)
        out = preprocessor.transform(table)
    except ValueError:  # of a file that is damaged, or of a table that is not the one it tells of
        return
    assert np.isfinite(out).all()
    assert out.shape == (len(ROWS), preprocessor.width)


# --- other tables, holes


class Only:
    """A table that offers one way to be read and nothing else."""

    def __init__(self, table, method):
        setattr(self, method, getattr(table, method))


def test_other_tables_are_read_as_pandas_would():
    table = mixed_table()[["age", "city", "when"]]
    preprocessor = fitted(table)
    arrow = pa.Table.from_pandas(table)
    for other in (arrow, Only(table, "__dataframe__"), Only(arrow, "__dataframe__"), Only(arrow, "__arrow_c_stream__")):
        assert fitted(other) == preprocessor
        assert same_bits(preprocessor.transform(other), preprocessor.transform(table))


@pytest.mark.parametrize("hole", [None, np.nan, pd.NA, pd.NaT])
def test_a_column_may_be_all_missing_at_prediction(hole):
    table = mixed_table()
    preprocessor = fitted(table)
    new = pd.DataFrame({name: pd.Series([hole] * 2, dtype=object) for name in table})
    out = preprocessor.transform(new)
    shown = [name for name, value in zip(preprocessor.feature_names_out, out[0], strict=True) if value == 1]
    assert shown == [f"{name} (missing)" for name in ("age", "count", "smoker", "city", "when")]
    assert same_bits(preprocessor.transform(table.iloc[:1].reindex([10**6])), out[:1])


def test_the_table_is_left_as_it_was():
    table, x = mixed_table(), np.array([[-0.0, np.nan], [1e300, 2.0], [3.0, 4.0]])
    before, x_before = table.copy(deep=True), x.copy()
    fitted(table).transform(table)
    x.flags.writeable = False
    fitted(x).transform(x)
    pd.testing.assert_frame_equal(table, before)
    assert np.array_equal(x, x_before, equal_nan=True)
