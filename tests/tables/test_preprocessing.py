"""From a mixed table to numbers: worked by hand, and the relations that must hold for every table."""

import datetime
import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepbasis import FileFormatError
from deepbasis.tables import encoders
from deepbasis.tables.encoders import MAX_CATEGORIES, masses, mean_and_std, quantile, squash
from deepbasis.tables.preprocessing import Preprocessor

NORMAL_IQR = 1.3489795003921634
UTC = datetime.UTC


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


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(np.ascontiguousarray(a).view(np.uint64), b.copy().view(np.uint64))


def through_json(preprocessor):
    arrays, metadata = preprocessor.state()
    return Preprocessor.from_state(arrays, json.loads(json.dumps(metadata, allow_nan=False)))


# --- worked by hand


def test_a_mixed_table_by_hand():
    table = pd.DataFrame(
        {
            "age": [20.0, 30.0, np.nan, 40.0, 50.0],
            "city": ["Rome", "Oslo", "Rome", None, "Lima"],
            "smoker": [True, False, False, False, True],
            "wait": pd.to_timedelta([0, 60, 120, 180, 240], unit="s"),
            "same": [7, 7, 7, 7, 7],
            "when": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", None]),
        }
    )
    preprocessor = Preprocessor.fit(table)
    assert preprocessor.input_columns == list(table)
    assert preprocessor.feature_names_out == [
        *["age", "age (missing)"],
        *["city=Rome", "city=Lima", "city=Oslo", "city (missing)"],
        *["smoker", "wait"],
        *["when (year)", "when (day of year, sin)", "when (day of year, cos)"],
        *["when (day of week, sin)", "when (day of week, cos)", "when (missing)"],
    ]
    age = 1 / np.sqrt(125)  # 20, 30, 40, 50: the mean is 35, its squared distances 225, 25, 25, 225
    wait = 1 / (60 * np.sqrt(2))  # of 0, 60, …, 240 s: the mean is 120, the standard deviation 60 times that of 0 … 4
    day = NORMAL_IQR / 2  # the inverted CDF of days 1, 2, 3, 4: quartiles 1 and 3, median 2
    of_year, of_week = 2 * np.pi / 365.25, 2 * np.pi / 7  # Monday, the first of January
    wave = [[np.sin(of_year * k), np.cos(of_year * k), np.sin(of_week * k), np.cos(of_week * k)] for k in range(4)]
    expected = [
        [-15 * age, 0, 1, 0, 0, 0, 1, -120 * wait, -day, *wave[0], 0],
        [-5 * age, 0, 0, 0, 1, 0, -1, -60 * wait, 0, *wave[1], 0],
        [0, 1, 1, 0, 0, 0, -1, 0, day, *wave[2], 0],
        [5 * age, 0, 0, 0, 0, 1, -1, 60 * wait, 2 * day, *wave[3], 0],
        [15 * age, 0, 0, 1, 0, 0, 1, 120 * wait, 0, 0, 0, 0, 0, 1],
    ]
    assert preprocessor.width == 14
    np.testing.assert_allclose(preprocessor.transform(table), expected, atol=1e-15)


def test_what_was_not_there_in_training():
    """Unseen categories, and holes in columns that had none: no indicator, the mean, all zeros."""
    train = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [True, True, False], "c": ["x", "y", "x"]})
    preprocessor = Preprocessor.fit(train)
    new = pd.DataFrame({"a": [np.nan, 2.0], "b": pd.array([None, False], dtype="boolean"), "c": ["z", None]})
    assert preprocessor.feature_names_out == ["a", "b", "c=x", "c=y"]
    assert preprocessor.transform(new).tolist() == [[0, 1, 0, 0], [0, -1, 0, 0]]


def test_the_rest_of_many_categories_shares_a_column():
    names = [f"c{k:02}" for k in range(MAX_CATEGORIES + 3)]
    train = pd.DataFrame({"c": names[:1] + names})  # one of them twice, the others tied: by name
    preprocessor = Preprocessor.fit(train)
    assert preprocessor.feature_names_out == [f"c={name}" for name in names[:MAX_CATEGORIES]] + ["c (other)"]
    out = preprocessor.transform(pd.DataFrame({"c": [names[0], names[-1], "new", None]}))
    assert out[:, [0, -1]].tolist() == [[1, 0], [0, 1], [0, 1], [0, 0]]
    assert out.sum() == 3


def test_more_than_thirty_two_but_not_hopeless_is_fine():
    rng = np.random.default_rng(0)
    few_rows = pd.DataFrame({"c": [f"id{k}" for k in range(900)]})  # all distinct, but there are not many
    repeated = pd.DataFrame({"c": rng.integers(0, 1500, 6000).astype(str)})  # many, but each several times
    assert Preprocessor.fit(few_rows).width == Preprocessor.fit(repeated).width == MAX_CATEGORIES + 1


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
    preprocessor = Preprocessor.fit(pd.DataFrame({"c": column}))
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
    reference = Preprocessor.fit(np.array([[1.0], [2.0], [4.0]]))
    preprocessor = Preprocessor.fit(pd.DataFrame({"a": column}))
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
    preprocessor = Preprocessor.fit(pd.DataFrame({"a": column}))
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
    reference = Preprocessor.fit(stamps)
    assert reference.width == 1 + 2 * 3
    preprocessor = Preprocessor.fit(pd.DataFrame({"a": column}))
    assert same_bits(preprocessor.transform(pd.DataFrame({"a": column})), reference.transform(stamps))


def test_dates_without_a_time_have_no_hour():
    dates = [datetime.date(2020, 1, 1), datetime.date(2021, 5, 7), None]
    for column in (pd.Series(dates, dtype=object), pd.Series(dates, dtype=pd.ArrowDtype(pa.date32()))):
        names = Preprocessor.fit(pd.DataFrame({"d": column})).feature_names_out
        assert "d (day of week, sin)" in names
        assert "d (missing)" in names
        assert not any("hour" in name for name in names)


def test_a_clock_alone_has_only_the_trend_and_the_hour():
    table = pd.DataFrame({"t": pd.to_datetime(["2024-05-06T00:00", "2024-05-06T06:00", "2024-05-06T18:00"])})
    preprocessor = Preprocessor.fit(table)
    assert preprocessor.feature_names_out == ["t (year)", "t (hour, sin)", "t (hour, cos)"]
    np.testing.assert_allclose(preprocessor.transform(table)[:, 1:], [[0, 1], [1, 0], [-1, 0]], atol=1e-15)


# --- constant columns, scales


def test_constant_columns_have_no_output_but_are_still_asked_for():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [5, 5], "c": ["x", "x"], "d": [True, True]})
    preprocessor = Preprocessor.fit(table)
    assert preprocessor.feature_names_out == ["a"]
    assert same_bits(preprocessor.transform(table), preprocessor.transform(table.assign(b=9, c="y", d=False)))
    with pytest.raises(ValueError, match="yet now missing:\n- b\n"):
        preprocessor.transform(table.drop(columns="b"))


def test_a_constant_column_with_holes_is_its_indicator():
    table = pd.DataFrame({"a": [5.0, np.nan, 5.0], "t": pd.to_datetime(["2020-01-01", None, "2020-01-01"])})
    preprocessor = Preprocessor.fit(table)
    assert preprocessor.feature_names_out == ["a (missing)", "t (missing)"]
    assert preprocessor.transform(table).tolist() == [[0, 0], [1, 1], [0, 0]]


def test_nothing_but_constants_gives_a_column_of_zeros():
    preprocessor = Preprocessor.fit(np.ones((3, 2)))
    assert preprocessor.feature_names_out == ["constant"]
    assert preprocessor.transform(np.zeros((2, 2))).tolist() == [[0.0], [0.0]]
    assert same_bits(through_json(preprocessor).transform(np.zeros((2, 2))), np.zeros((2, 1)))


def test_rounding_is_no_variation():
    assert Preprocessor.fit(np.array([[0.1 + 0.2], [0.3]])).feature_names_out == ["constant"]
    assert Preprocessor.fit(np.array([[0.3 + 1e-9], [0.3]])).feature_names_out == ["x0"]


def test_normal_values_get_unit_scale():
    x = np.random.default_rng(0).normal(1e6, 1e-2, (20_000, 1))
    z = Preprocessor.fit(x).transform(x)
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03


def test_numbers_get_mean_0_and_standard_deviation_1():
    rng = np.random.default_rng(0)
    few = np.where(rng.random(5000) < 0.97, 0.0, rng.exponential(size=5000))  # the quartiles coincide
    x = np.stack([rng.normal(3, 2, 5000), rng.lognormal(size=5000), rng.integers(0, 3, 5000), few], axis=1)
    weight = rng.exponential(size=5000)
    for one, mass in ((None, np.ones(5000)), (weight, weight)):
        mean = np.average(x, axis=0, weights=mass)
        std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=mass))
        encodings = Preprocessor.fit(x, one).encodings
        np.testing.assert_allclose([e.center for e in encodings], mean, rtol=1e-12)
        np.testing.assert_allclose([e.scale for e in encodings], std, rtol=1e-12)
        z = (x - mean) / std
        np.testing.assert_allclose(Preprocessor.fit(x, one).transform(x), squash(z), rtol=1e-9, atol=1e-12)


def test_a_column_that_is_mostly_one_value_is_whole():
    x = np.zeros((10_000, 1))
    x[:6, 0] = [1.0, 2.0, 3.0, 4.0, 5.0, 300.0]
    encoding = Preprocessor.fit(x).encodings[0]
    assert (encoding.center, encoding.scale) == pytest.approx((x.mean(), x.std()), rel=1e-12)


ORDINARY = {
    "normal": lambda rng: rng.normal(size=1000),
    "offset": lambda rng: rng.normal(1e6, 1e-2, 1000),
    "mostly zero": lambda rng: np.where(rng.random(1000) < 0.9, 0.0, rng.normal(size=1000)),
    "almost all zero": lambda rng: np.concatenate([np.zeros(995), rng.normal(size=5)]),
    "two values": lambda rng: np.repeat([0.0, 1.0], [997, 3]),
}


@pytest.mark.parametrize("outlier", [1e12, -1e30, 1e308])
@pytest.mark.parametrize("column", sorted(ORDINARY))
def test_an_outlier_has_no_influence_on_the_others(column, outlier):
    x = ORDINARY[column](np.random.default_rng(0))[:, None]
    with_outlier = np.concatenate([x, [[outlier]]])
    z, preprocessor = Preprocessor.fit(x).transform(x), Preprocessor.fit(with_outlier)
    assert same_bits(preprocessor.transform(x), z)
    assert np.abs(z).max() < 10 + np.log1p(np.sqrt(1000)) < 20 < np.abs(preprocessor.transform([[outlier]])[0, 0]) < 38


def test_far_out_is_a_thousand_robust_scales():
    x = np.arange(-500.0, 501.0)
    scale = 500 / NORMAL_IQR  # the inverted CDF: quartiles -250 and 250
    for far, kept in ((990 * scale, True), (1010 * scale, False), (-1010 * scale, False)):
        whole = np.append(x, far)
        expected = whole if kept else x
        encoding = Preprocessor.fit(whole[:, None]).encodings[0]
        assert (encoding.center, encoding.scale) == pytest.approx((expected.mean(), expected.std()), abs=1e-9)


@pytest.mark.parametrize(("linear", "most"), [(3.0, 31), (10.0, 38)])
def test_the_squash_is_monotone_odd_smooth_and_bounded(linear, most):
    z = np.concatenate([np.linspace(0, 20, 2001), np.logspace(1.4, 308, 400)])
    squashed = squash(z, linear)
    assert np.array_equal(squashed[z <= linear], z[z <= linear])
    assert (np.diff(squashed[z < 1e12]) > 0).all()
    assert (np.diff(squashed) >= 0).all()
    assert np.array_equal(squash(-z, linear), -squashed)
    assert squash(np.array([np.inf]), linear)[0] == squashed[-1] < most
    step = 1e-6
    slopes = (squash(np.array([linear + step]), linear) - linear) / step
    np.testing.assert_allclose(slopes, 1, atol=1e-5)


def test_numbers_are_linear_up_to_ten_and_dates_up_to_three():
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta([0, 1, 2, 3, 4], unit="D")
    table = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0, 4.0], "d": days, "w": days - days[0]})
    preprocessor = Preprocessor.fit(table)
    assert [encoding.linear for encoding in preprocessor.encodings] == [10.0, 3.0, 10.0]
    later = table.iloc[:1].assign(a=16.0, d=days[0] + pd.Timedelta("16D"), w=pd.Timedelta("16D"))
    z = preprocessor.transform(later)[0, [0, 1, -1]]
    straight, bent = 14 / np.sqrt(2), 3 + np.log1p(14 * NORMAL_IQR / 2 - 3)  # days 0 … 4: median 2, quartiles 1 and 3
    np.testing.assert_allclose(z, [straight, bent, straight], rtol=1e-12)


def test_a_state_that_does_not_say_where_the_squash_begins_is_of_release_0_1():
    x = np.random.default_rng(0).normal(size=(100, 1))
    preprocessor = Preprocessor.fit(x)
    arrays, metadata = preprocessor.state()
    assert metadata["columns"][0].pop("linear") == 10.0
    z = np.array([[-50.0], [-2.0], [2.9], [3.1], [50.0]])
    old = Preprocessor.from_state(arrays, metadata).transform(preprocessor.encodings[0].center + z * arrays["scale"])
    np.testing.assert_allclose(old, squash(z, 3.0), rtol=1e-12)
    assert abs(old[-1, 0]) < 7 < 13 < preprocessor.transform(z)[-1, 0]


def test_quantiles_are_those_of_the_inverted_cdf():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4, 7, 100):
        values = rng.normal(size=n).round(1)
        for q in (0.25, 0.5, 0.75):
            assert quantile(*masses(values, None), q) == np.quantile(values, q, method="inverted_cdf")


def test_the_standard_deviation_of_enormous_and_tiny_values():
    values = np.array([1.0, 2.0, 4.0, 4.5])
    for unit in (1e-300, 1.0, 1e300):
        mean, std = mean_and_std(*masses(values * unit, None))
        np.testing.assert_allclose([mean / unit, std / unit], [values.mean(), values.std()], rtol=1e-14)


# --- relations


def test_one_row_at_a_time_and_in_pieces_is_the_same():
    table = mixed_table()
    preprocessor = Preprocessor.fit(table)
    whole = preprocessor.transform(table)
    for rows in (1, 7, 60, 100):
        assert same_bits(np.concatenate(list(preprocessor.chunks(table, rows))), whole)
        pieces = [preprocessor.transform(table.iloc[k : k + rows]) for k in range(0, len(table), rows)]
        assert same_bits(np.concatenate(pieces), whole)


def test_pieces_of_far_out_numbers_are_bitwise_those_of_the_whole():
    x = np.random.default_rng(0).standard_cauchy((5000, 3))
    preprocessor = Preprocessor.fit(x)
    whole = preprocessor.transform(x)
    for rows in (1, 3, 17, 1000):
        assert same_bits(np.concatenate(list(preprocessor.chunks(x[:1000], rows))), whole[:1000])
    assert same_bits(preprocessor.transform(np.asfortranarray(x)), whole)


def test_a_piece_of_a_mixed_column_may_look_like_another_kind():
    table = pd.DataFrame({"c": pd.Series([1, "a", None, 2.0, "b", True], dtype=object)})
    preprocessor = Preprocessor.fit(table)
    assert same_bits(np.concatenate(list(preprocessor.chunks(table, 1))), preprocessor.transform(table))


def test_pieces_are_by_position_whatever_the_index():
    table = mixed_table().set_index(np.linspace(1, 0, 60))
    preprocessor = Preprocessor.fit(table)
    assert same_bits(np.concatenate(list(preprocessor.chunks(table, 7))), preprocessor.transform(table))


def test_the_order_of_the_training_rows_does_not_matter():
    table = mixed_table()
    weight = np.random.default_rng(1).random(60)
    order = np.random.default_rng(2).permutation(60)
    assert Preprocessor.fit(table.iloc[order]) == Preprocessor.fit(table)
    assert Preprocessor.fit(table.iloc[order], weight[order]) == Preprocessor.fit(table, weight)


@given(st.lists(st.integers(0, 4), min_size=60, max_size=60), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_weights_are_repetitions_to_the_last_bit(weights, seed):
    table, weight = mixed_table(seed=seed), np.array(weights)
    repeated = table.loc[table.index.repeat(weight)]
    assume(len(repeated) > 0)
    assume(not repeated.isna().all().any())
    assert Preprocessor.fit(table, weight) == Preprocessor.fit(repeated)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.sampled_from([0.0, 1.0, 1e9, -0.5])),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_weights_are_repetitions_also_where_the_quartiles_coincide(x, data):
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x))))
    assume(weight.any())
    assert Preprocessor.fit(x, weight) == Preprocessor.fit(x.repeat(weight, axis=0))


def test_equal_weights_are_no_weights():
    table = mixed_table()
    for weight in (1.0, 0.1, 1 / 3):
        equal, none = Preprocessor.fit(table, np.full(60, weight)), Preprocessor.fit(table)
        np.testing.assert_allclose(equal.transform(table), none.transform(table), rtol=1e-12, atol=1e-12)


WILD = st.floats(allow_infinity=False) | st.sampled_from([1e300, -1e300, 1e-300, 5e-324, 1.7e308, -1.7e308])


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 3)), elements=WILD), st.data())
@settings(max_examples=200, deadline=None)
def test_every_finite_or_missing_number_gives_finite_numbers(x, data):
    assume(not np.isnan(x).all(0).any())
    preprocessor = Preprocessor.fit(x)
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


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_round_trip_through_json_gives_the_same_bits(data):
    n = data.draw(st.integers(1, 10))
    kinds = data.draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    columns = [data.draw(st.lists(CELLS[kind], min_size=n, max_size=n)) for kind in kinds]
    table = pd.DataFrame({f"c{k}": pd.Series(cells, dtype=object) for k, cells in enumerate(columns)})
    assume(not table.isna().all().any())
    preprocessor = Preprocessor.fit(table)
    again = through_json(preprocessor)
    assert again == preprocessor
    out = preprocessor.transform(table)
    assert np.isfinite(out).all()
    assert same_bits(again.transform(table), out)
    assert out.shape[1] == preprocessor.width == len(preprocessor.feature_names_out)


def test_the_state_is_arrays_of_numbers_and_plain_json():
    arrays, metadata = Preprocessor.fit(mixed_table()).state()
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        name: (np.dtype(np.float64), (8,)) for name in ("center", "scale", "fill")
    }
    assert json.loads(json.dumps(metadata, allow_nan=False))["input_columns"] == list(mixed_table())
    for file in Path(encoders.__file__).parent.glob("*.py"):
        assert "pickle" not in file.read_text(encoding="utf-8").replace("without pickle", "")


def damaged(change):
    arrays, metadata = Preprocessor.fit(mixed_table()).state()
    metadata = json.loads(json.dumps(metadata))
    change(arrays, metadata)
    return arrays, metadata


@pytest.mark.parametrize(
    "change",
    [
        lambda a, m: a.pop("scale"),
        lambda a, m: a.update(scale=a["scale"][:-1]),
        lambda a, m: a.update(scale=a["scale"][:, None]),
        lambda a, m: a.update(scale=-a["scale"]),
        lambda a, m: a.update(scale=a["scale"] * 0),
        lambda a, m: a.update(center=a["center"] * np.nan),
        lambda a, m: a.update(fill=a["fill"] + np.inf),
        lambda a, m: a.update(center=np.array(["x"] * 8)),
        lambda a, m: m.pop("columns"),
        lambda a, m: m.pop("input_columns"),
        lambda a, m: m.update(columns=[]),
        lambda a, m: m.update(columns="numeric"),
        lambda a, m: m.update(columns={"a": 1}),
        lambda a, m: m.update(columns=None),
        lambda a, m: m.update(input_columns=["a"]),
        lambda a, m: m.update(input_columns=["a"] * 8),
        lambda a, m: m.update(input_columns=list(range(8))),
        lambda a, m: m.update(input_columns="abcdefgh"),
        lambda a, m: m["columns"].pop(),
        lambda a, m: m["columns"][0].pop("kind"),
        lambda a, m: m["columns"][0].update(kind="exec"),
        lambda a, m: m["columns"][0].update(kind=["numeric"]),
        lambda a, m: m["columns"][0].update(missing=1),
        lambda a, m: m["columns"][0].update(varies="yes"),
        lambda a, m: m["columns"][0].update(surprise=1),
        lambda a, m: m["columns"][0].update(linear=0.0),
        lambda a, m: m["columns"][0].update(linear=float("nan")),
        lambda a, m: m["columns"][0].update(linear=float("inf")),
        lambda a, m: m["columns"][0].update(linear="10"),
        lambda a, m: m["columns"][3].update(categories=[1, 2]),
        lambda a, m: m["columns"][3].update(categories=["a", "a"]),
        lambda a, m: m["columns"][3].update(categories=[f"{k}" for k in range(99)]),
        lambda a, m: m["columns"][3].update(categories=None),
        lambda a, m: m["columns"][3].update(categories="abc"),
        lambda a, m: m["columns"][3].update(varies=False, other=True),
        lambda a, m: m["columns"][0].update(categories=["a"]),
        lambda a, m: m["columns"][0].update(other=True),
        lambda a, m: m["columns"][0].update(phases=["hour"]),
        lambda a, m: m["columns"][5].update(phases=["moon"]),
        lambda a, m: m["columns"][5].update(phases=["hour", "hour"]),
        lambda a, m: m["columns"][5].update(phases=[["hour"]]),
        lambda a, m: m["columns"].__setitem__(0, None),
    ],
)
def test_nonsense_is_no_state(change):
    with pytest.raises(FileFormatError, match="not the preprocessing of a table"):
        Preprocessor.from_state(*damaged(change))


@pytest.mark.parametrize("metadata", [None, [], "x", 3, {}])
def test_nonsense_metadata_is_no_state(metadata):
    with pytest.raises(FileFormatError):
        Preprocessor.from_state({}, metadata)


JSON = st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "a", "hour", "datetime"])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_an_altered_state_is_refused_or_still_works(data):
    table = mixed_table()
    arrays, metadata = damaged(lambda a, m: None)
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(arrays)))
        arrays[name][data.draw(st.integers(0, 7))] = data.draw(st.floats())
    column = data.draw(st.sampled_from(metadata["columns"]))
    field = data.draw(st.sampled_from(sorted(column)))
    column[field] = data.draw(JSON | st.lists(JSON, max_size=3))
    try:
        preprocessor = Preprocessor.from_state(arrays, metadata)
        out = preprocessor.transform(table)
    except ValueError:  # of a file that is damaged, or of a table that is not the one it tells of
        return
    assert np.isfinite(out).all()
    assert out.shape == (60, preprocessor.width)


# --- what counts as a table


class Only:
    """A table that offers one way to be read and nothing else."""

    def __init__(self, table, method):
        setattr(self, method, getattr(table, method))


class NotAnArray:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def test_other_tables_are_read_as_pandas_would():
    table = mixed_table()[["age", "city", "when"]]
    preprocessor = Preprocessor.fit(table)
    arrow = pa.Table.from_pandas(table)
    for other in (arrow, Only(table, "__dataframe__"), Only(arrow, "__dataframe__"), Only(arrow, "__arrow_c_stream__")):
        assert Preprocessor.fit(other) == preprocessor
        assert same_bits(preprocessor.transform(other), preprocessor.transform(table))


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
    preprocessor = Preprocessor.fit(X)
    assert preprocessor.input_columns is None
    assert preprocessor.feature_names_out == ["x0", "x1", "x1 (missing)"]
    assert same_bits(preprocessor.transform(X), Preprocessor.fit(reference).transform(reference))


def test_arrays_of_truth_values_dates_and_durations():
    assert Preprocessor.fit(np.array([[True], [False]])).transform([[True], [False]]).tolist() == [[1], [-1]]
    days = np.array([["2020-01-01"], ["2020-01-03"]], dtype="datetime64[D]")
    assert Preprocessor.fit(days).feature_names_out[0] == "x0 (year)"
    assert Preprocessor.fit(days - days[0]).feature_names_out == ["x0"]


def test_numbers_and_truth_values_pass_for_each_other():
    numbers = Preprocessor.fit(pd.DataFrame({"a": [0, 1, 1, 0]}))
    truth = Preprocessor.fit(pd.DataFrame({"a": [False, True]}))
    for values in ([0, 1], [False, True], [0.0, 1.0]):
        table = pd.DataFrame({"a": values})
        assert same_bits(numbers.transform(table), numbers.transform(pd.DataFrame({"a": [0, 1]})))
        assert truth.transform(table).tolist() == [[-1], [1]]


def test_numbers_pass_for_categories_that_are_numbers():
    """A postcode column of which a file happens to hold only the numeric ones, with and without holes."""
    preprocessor = Preprocessor.fit(pd.DataFrame({"c": pd.Categorical([1, 2, 1])}))
    for values in ([2, 1], [2.0, 1.0], ["2", "1"]):
        assert preprocessor.transform(pd.DataFrame({"c": values})).tolist() == [[0, 1], [1, 0]]
    assert preprocessor.transform(pd.DataFrame({"c": [2.0, np.nan]})).tolist() == [[0, 1], [0, 0]]
    truth = Preprocessor.fit(pd.DataFrame({"c": pd.Categorical([True, False])}))
    assert truth.transform(pd.DataFrame({"c": [True, False]})).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("hole", [None, np.nan, pd.NA, pd.NaT])
def test_a_column_may_be_all_missing_at_prediction(hole):
    table = mixed_table()
    preprocessor = Preprocessor.fit(table)
    new = pd.DataFrame({name: pd.Series([hole] * 2, dtype=object) for name in table})
    out = preprocessor.transform(new)
    shown = [name for name, value in zip(preprocessor.feature_names_out, out[0], strict=True) if value == 1]
    assert shown == [f"{name} (missing)" for name in ("age", "count", "smoker", "city", "when")]
    assert same_bits(preprocessor.transform(table.iloc[:1].reindex([10**6])), out[:1])


def test_the_table_is_left_as_it_was():
    table, x = mixed_table(), np.array([[-0.0, np.nan], [1e300, 2.0], [3.0, 4.0]])
    before, x_before = table.copy(deep=True), x.copy()
    Preprocessor.fit(table).transform(table)
    x.flags.writeable = False
    Preprocessor.fit(x).transform(x)
    pd.testing.assert_frame_equal(table, before)
    assert np.array_equal(x, x_before, equal_nan=True)


def test_names_and_no_names_warn_as_in_scikit_learn():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    with pytest.warns(UserWarning, match="X does not have valid feature names, but DeepBasisRegressor was fitted with"):
        Preprocessor.fit(table).transform(table.to_numpy())
    with pytest.warns(UserWarning, match="X has feature names, but Mine was fitted without feature names"):
        Preprocessor.fit(table.to_numpy()).transform(table, estimator_name="Mine")


def test_arrays_need_neither_pandas_nor_torch():
    code = """
import sys
sys.modules["pandas"] = None  # an import of it fails
import numpy as np
from deepbasis.tables.preprocessing import Preprocessor, TargetScaler, row_groups
out = Preprocessor.fit([[1, 2.0], [3, None]]).transform(np.ones((2, 2)))
TargetScaler.fit([1, 2, 3]); row_groups(out, [1, 2])
class Table:
    __dataframe__ = None
try:
    Preprocessor.fit(Table())
except ValueError as error:
    print(error)
print("torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    message, torch = run.stdout.splitlines()
    assert "install pandas" in message
    assert torch == "False"
