"""From a column to numbers: worked by hand, scales, and what is squashed."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from deepbasis.tables.encoders import MAX_CATEGORIES, MAX_SPIKES, squash
from deepbasis.tables.preprocessing import GAP, Preprocessor
from deepbasis.tables.reading import read_columns
from deepbasis.tables.weighted import masses, mean_and_std, quantile

NORMAL_IQR = 1.3489795003921634


def fitted(X, weight=None):
    return Preprocessor.fit(*read_columns(X), None if weight is None else np.asarray(weight, dtype=float))


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(np.ascontiguousarray(a).view(np.uint64), b.copy().view(np.uint64))


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
    preprocessor = fitted(table)
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
    """Unseen categories, which are all zeros, and holes in columns that had none, which are gaps."""
    train = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [True, True, False], "c": ["x", "y", "x"]})
    preprocessor = fitted(train)
    new = pd.DataFrame({"a": [np.nan, 2.0], "b": pd.array([None, False], dtype="boolean"), "c": ["z", None]})
    assert preprocessor.feature_names_out == ["a", "b", "c=x", "c=y"]
    assert preprocessor.transform(new).tolist() == [[GAP, GAP, 0, 0], [0, -1, GAP, 0]]


def test_the_rest_of_many_categories_shares_a_column():
    names = [f"c{k:02}" for k in range(MAX_CATEGORIES + 3)]
    train = pd.DataFrame({"c": names[:1] + names})  # one of them twice, the others tied: by name
    preprocessor = fitted(train)
    assert preprocessor.feature_names_out == [f"c={name}" for name in names[:MAX_CATEGORIES]] + ["c (other)"]
    out = preprocessor.transform(pd.DataFrame({"c": [names[0], names[-1], "new", None]}))
    assert out[:, [0, -1]].tolist() == [[1, 0], [0, 1], [0, 1], [GAP, 0]]
    assert out.sum() == 3


def test_more_than_thirty_two_but_not_hopeless_is_fine():
    rng = np.random.default_rng(0)
    few_rows = pd.DataFrame({"c": [f"id{k}" for k in range(900)]})  # all distinct, but there are not many
    repeated = pd.DataFrame({"c": rng.integers(0, 1500, 6000).astype(str)})  # many, but each several times
    assert fitted(few_rows).width == fitted(repeated).width == MAX_CATEGORIES + 1


def test_dates_without_a_time_have_no_hour():
    dates = [datetime.date(2020, 1, 1), datetime.date(2021, 5, 7), None]
    for column in (pd.Series(dates, dtype=object), pd.Series(dates, dtype=pd.ArrowDtype(pa.date32()))):
        names = fitted(pd.DataFrame({"d": column})).feature_names_out
        assert "d (day of week, sin)" in names
        assert "d (missing)" in names
        assert not any("hour" in name for name in names)


def test_a_clock_alone_has_only_the_trend_and_the_hour():
    table = pd.DataFrame({"t": pd.to_datetime(["2024-05-06T00:00", "2024-05-06T06:00", "2024-05-06T18:00"])})
    preprocessor = fitted(table)
    assert preprocessor.feature_names_out == ["t (year)", "t (hour, sin)", "t (hour, cos)"]
    np.testing.assert_allclose(preprocessor.transform(table)[:, 1:], [[0, 1], [1, 0], [-1, 0]], atol=1e-15)


# --- constant columns, scales


def test_constant_columns_have_no_output_but_are_still_asked_for():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [5, 5], "c": ["x", "x"], "d": [True, True]})
    preprocessor = fitted(table)
    assert preprocessor.feature_names_out == ["a"]
    assert same_bits(preprocessor.transform(table), preprocessor.transform(table.assign(b=9, c="y", d=False)))
    with pytest.raises(ValueError, match="yet now missing:\n- b\n"):
        preprocessor.transform(table.drop(columns="b"))


def test_a_constant_column_with_holes_is_its_indicator():
    table = pd.DataFrame({"a": [5.0, np.nan, 5.0], "t": pd.to_datetime(["2020-01-01", None, "2020-01-01"])})
    preprocessor = fitted(table)
    assert preprocessor.feature_names_out == ["a (missing)", "t (missing)"]
    assert preprocessor.transform(table).tolist() == [[0, 0], [1, 1], [0, 0]]


def test_rounding_is_no_variation():
    assert fitted(np.array([[0.1 + 0.2], [0.3]])).feature_names_out == ["constant"]
    assert fitted(np.array([[0.3 + 1e-9], [0.3]])).feature_names_out == ["x0"]


def test_normal_values_get_unit_scale():
    x = np.random.default_rng(0).normal(1e6, 1e-2, (20_000, 1))
    z = fitted(x).transform(x)
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
        encodings = fitted(x, one).encodings
        np.testing.assert_allclose([e.center for e in encodings], mean, rtol=1e-12)
        np.testing.assert_allclose([e.scale for e in encodings], std, rtol=1e-12)
        z = (x - mean) / std
        np.testing.assert_allclose(fitted(x, one).transform(x), squash(z), rtol=1e-9, atol=1e-12)


def test_a_column_that_is_mostly_one_value_is_whole():
    x = np.zeros((10_000, 1))
    x[:6, 0] = [1.0, 2.0, 3.0, 4.0, 5.0, 300.0]
    encoding = fitted(x).encodings[0]
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
    z, preprocessor = fitted(x).transform(x), fitted(with_outlier)
    assert same_bits(preprocessor.transform(x), z)
    assert np.abs(z).max() < 10 + np.log1p(np.sqrt(1000)) < 20 < np.abs(preprocessor.transform([[outlier]])[0, 0]) < 38


def test_far_out_is_a_thousand_robust_scales():
    x = np.arange(-500.0, 501.0)
    scale = 500 / NORMAL_IQR  # the inverted CDF: quartiles -250 and 250
    for far, kept in ((990 * scale, True), (1010 * scale, False), (-1010 * scale, False)):
        whole = np.append(x, far)
        expected = whole if kept else x
        encoding = fitted(whole[:, None]).encodings[0]
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
    preprocessor = fitted(table)
    assert [encoding.linear for encoding in preprocessor.encodings] == [10.0, 3.0, 10.0]
    later = table.iloc[:1].assign(a=16.0, d=days[0] + pd.Timedelta("16D"), w=pd.Timedelta("16D"))
    z = preprocessor.transform(later)[0, [0, 1, -1]]
    straight, bent = 14 / np.sqrt(2), 3 + np.log1p(14 * NORMAL_IQR / 2 - 3)  # days 0 … 4: median 2, quartiles 1 and 3
    np.testing.assert_allclose(z, [straight, bent, straight], rtol=1e-12)


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


# --- spikes


def gains(rows: int = 3_000) -> np.ndarray:
    """Mostly 0, 30 values of 20 rows each, and 41 of one; some are missing."""
    often, once = np.repeat(1_000.0 + 7.0 * np.arange(30), 20), 5_000.0 + np.arange(40) ** 2
    column = np.concatenate([often, once, [99_999.0, np.nan, np.nan]])
    return np.concatenate([np.zeros(rows - len(column)), column])


def with_spikes(column: np.ndarray, weight: np.ndarray | None = None) -> Preprocessor:
    return Preprocessor.fit(*read_columns(column[:, None]), weight, spikes_above=2_000)


def test_frequent_values_of_a_column_that_is_mostly_one_have_indicators():
    column = gains()
    preprocessor = with_spikes(column)
    expected = (0.0, *(1_000.0 + 7.0 * np.arange(30)))
    assert preprocessor.encodings[0].spikes == expected
    assert preprocessor.feature_names_out[:3] == ["x0", "x0=0", "x0=1000"]
    new = np.concatenate([column, [1_000.5, 1e6, -1.0]])
    out = preprocessor.transform(new[:, None])
    np.testing.assert_array_equal(out[:, 1:-1], new[:, None] == expected)
    np.testing.assert_array_equal(out[:, -1], np.isnan(new))
    plain = fitted(column[:, None]).transform(new[:, None])
    assert same_bits(np.ascontiguousarray(out[:, [0, -1]]), plain)  # the number itself is what it was
    assert Preprocessor.from_state(preprocessor.state()) == preprocessor


def test_weights_of_spikes_are_repetitions():
    column = gains()
    weight = np.where(column > 5_000.0, 15.0, 1.0)
    repeated = np.repeat(column, weight.astype(int))
    assert with_spikes(column, weight) == with_spikes(repeated)
    assert len(with_spikes(column, weight).encodings[0].spikes) == MAX_SPIKES  # the most frequent of 72


@pytest.mark.parametrize(
    "column",
    [
        np.random.default_rng(0).normal(size=3_000),
        np.concatenate([np.zeros(3_000), np.repeat(np.arange(1.0, 16.0), 20)]),  # few values
        np.repeat(np.arange(50.0), 60),  # none of them is most
        gains(1_500),  # a small table
    ],
    ids=["numbers", "few", "even", "small"],
)
def test_other_numbers_have_no_spikes(column):
    assert with_spikes(column).encodings[0].spikes == ()
    assert fitted(column[:, None]).encodings[0].spikes == ()  # nor has any that is not asked for them
