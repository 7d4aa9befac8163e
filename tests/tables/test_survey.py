"""One pass in pieces, by any number of workers, tells what one look at the whole table tells."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from deepbasis.errors import InputError
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.encoders import MAX_CATEGORIES
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns
from deepbasis.tables.sketch import POINTS
from deepbasis.tables.summaries import FARTHEST, MOST_NAMES, Categories, Moments, TrimmedMoments
from deepbasis.tables.survey import TableStatistics
from deepbasis.tables.targets import TargetScaler


def table(n: int, seed: int = 0) -> pd.DataFrame:
    """Every kind of column, with holes."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "normal": rng.normal(5.0, 3.0, n),
            "skewed": rng.lognormal(3.0, 2.0, n),
            "mostly zero": np.where(rng.random(n) < 0.9, 0.0, rng.normal(size=n)),
            "whole": rng.integers(-50, 50, n),
            "constant": np.full(n, 2.5),
            "true": rng.random(n) < 0.3,
            "colour": rng.choice(["red", "green", "blue"], n, p=[0.5, 0.3, 0.2]),
            "town": [f"t{int(k)}" for k in rng.geometric(0.05, n)],
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            "lapse": pd.to_timedelta(rng.exponential(1000.0, n), unit="s"),
        }
    )
    for name in ("normal", "colour", "day"):
        frame.loc[rng.random(n) < 0.1, name] = None
    return frame


def gathered(
    frame: pd.DataFrame, y: np.ndarray, weight: np.ndarray | None = None, rows: int = 777, workers: int = 1
) -> TableStatistics:
    """Blocks dealt out to workers, whose findings are merged."""
    whole = pa.Table.from_pandas(frame, preserve_index=False)
    starts = range(0, len(frame), rows)
    mine = [TableStatistics.empty(list(frame.columns), len(starts)) for _ in range(workers)]
    for unit, start in enumerate(starts):
        part = slice(start, start + rows)
        block = FileBlock("'t'", start, whole.slice(start, rows))
        columns = [block.column(name) for name in frame.columns]
        mine[unit % workers].add(unit, columns, y[part], None if weight is None else weight[part])
    return TableStatistics.merged(mine)


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_a_table_of_few_values_gives_the_same_preprocessing_to_the_last_bit(workers):
    n = POINTS - 1
    frame, y = table(n), np.random.default_rng(1).normal(100.0, 5.0, n)
    statistics = gathered(frame, y, workers=workers)
    assert statistics.preprocessor() == Preprocessor.fit(*read_columns(frame))
    assert statistics.rank_error() == 0.0
    assert (statistics.rows, statistics.mass) == (n, n)
    expected = TargetScaler.fit(y)
    assert statistics.target().mean == pytest.approx(expected.mean, rel=1e-13)
    assert statistics.target().scale == pytest.approx(expected.scale, rel=1e-12)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_large_table_gives_the_same_to_rounding(workers):
    """But for the numbers that are far out by the sketch's quartiles and not by the exact ones, or the reverse."""
    n = 60_000
    frame, y = table(n), np.random.default_rng(1).standard_cauchy(n)
    statistics = gathered(frame, y, rows=5_000, workers=workers)
    ours, theirs = statistics.preprocessor(), Preprocessor.fit(*read_columns(frame))
    assert 0.0 < statistics.rank_error() < 0.001
    for name, mine, exact in zip(frame.columns, ours.encodings, theirs.encodings, strict=True):
        tolerance = 0.02 if name == "skewed" else 1e-12
        assert mine.center == pytest.approx(exact.center, rel=tolerance), name
        assert mine.scale == pytest.approx(exact.scale, rel=tolerance), name
        rest = [(e.kind, e.missing, e.varies, e.fill, e.categories, e.other, e.phases, e.linear) for e in (mine, exact)]
        assert rest[0] == rest[1]
    expected = TargetScaler.fit(y)
    assert statistics.target().mean == pytest.approx(expected.mean, rel=1e-9)
    assert statistics.target().scale == pytest.approx(expected.scale, rel=1e-10)


def test_the_trend_of_many_dates_differs_in_the_ranks_of_its_quantiles_alone():
    n = 60_000
    seconds = np.sort(np.random.default_rng(0).integers(0, 10**8, n))
    frame = pd.DataFrame({"when": pd.Timestamp("2020-01-01") + pd.to_timedelta(seconds, unit="s")})
    statistics = gathered(frame, np.zeros(n), rows=5_000, workers=3)
    mine, exact = statistics.preprocessor().encodings[0], Preprocessor.fit(*read_columns(frame)).encodings[0]
    start = pd.Timestamp("2020-01-01").timestamp()
    rank = np.searchsorted(seconds, mine.center - start, side="right") / n
    assert 0.0 < abs(rank - 0.5) <= statistics.rank_error() + 2 / n
    assert mine.scale == pytest.approx(exact.scale, rel=0.01)


def test_a_column_whose_quartiles_are_equal_is_whole():
    rng = np.random.default_rng(0)
    n = 40_000
    frame = pd.DataFrame({"c": np.where(rng.random(n) < 0.8, 3.0, rng.normal(size=n))})
    statistics = gathered(frame, np.zeros(n), rows=9_000)
    assert statistics.rank_error() > 0.0
    assert statistics.preprocessor().encodings[0].scale == pytest.approx(frame["c"].std(ddof=0), rel=1e-12)
    assert statistics.preprocessor().encodings[0].center == pytest.approx(frame["c"].mean(), rel=1e-12)


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("outliers", [1, FARTHEST, FARTHEST + 300])
def test_a_few_numbers_that_are_far_out_are_left_out_and_many_nearly(outliers, workers):
    rng = np.random.default_rng(0)
    n = 40_000
    values, weight = rng.normal(3.0, 2.0, n), rng.exponential(size=n)
    values[rng.permutation(n)[:outliers]] = np.geomspace(1e7, 1e308, outliers)
    frame = pd.DataFrame({"c": values, "-c": -values})
    for one in (None, weight):
        statistics = gathered(frame, np.zeros(n), one, rows=5_000, workers=workers)
        assert statistics.rank_error() > 0.0
        for mine, exact in zip(
            statistics.preprocessor().encodings, Preprocessor.fit(*read_columns(frame), one).encodings, strict=True
        ):
            tolerance = 1e-12 if outliers <= FARTHEST else 0.01
            assert mine.center == pytest.approx(exact.center, rel=tolerance)
            assert mine.scale == pytest.approx(exact.scale, rel=tolerance)
            assert 1.9 < exact.scale < 2.1


def test_trimmed_moments_are_those_of_the_values_within():
    rng = np.random.default_rng(0)
    values, weight = rng.standard_cauchy(20_000), rng.exponential(size=20_000)
    parts = [TrimmedMoments() for _ in range(4)]
    for k, at in enumerate(np.array_split(np.arange(20_000), 23)):
        parts[k % 4].add(values[at], weight[at])
    whole = TrimmedMoments()
    for part in parts:
        whole.merge(part)
    for low, high in ((-np.inf, np.inf), (-50.0, 80.0), (-20.0, np.inf)):
        inside = (values >= low) & (values <= high)
        mean = np.average(values[inside], weights=weight[inside])
        std = np.sqrt(np.average((values[inside] - mean) ** 2, weights=weight[inside]))
        assert whole.within(low, high) == pytest.approx((mean, std), rel=1e-10)
    assert whole.within(-1.0, 1.0) is None  # more than can be told apart
    assert whole.ends == (values.min(), values.max())


def test_weights_are_counted_as_rows():
    n = 3_000
    frame, y = table(n), np.random.default_rng(1).normal(size=n)
    weight = np.random.default_rng(2).integers(1, 5, n).astype(np.float64)
    repeated = np.repeat(np.arange(n), weight.astype(int))
    statistics = gathered(frame, y, weight, workers=2)
    assert statistics.preprocessor() == Preprocessor.fit(*read_columns(frame), weight)
    assert statistics.preprocessor() == gathered(frame.iloc[repeated], y[repeated]).preprocessor()
    assert statistics.mass == weight.sum()
    assert statistics.target().scale == pytest.approx(TargetScaler.fit(y, weight).scale, rel=1e-12)


def test_a_constant_target_keeps_its_units():
    statistics = gathered(pd.DataFrame({"c": np.arange(9.0)}), np.full(9, 0.1), rows=2)
    assert statistics.target() == TargetScaler.fit(np.full(9, 0.1))


def test_moments_of_far_and_of_huge_numbers():
    rng = np.random.default_rng(0)
    for scale, offset in ((1e300, 0.0), (1e-300, 0.0), (1.0, 1e9)):
        values = offset + scale * rng.normal(size=10_000)
        moments = Moments()
        for part in np.array_split(values, 37):
            moments.add(part, None)
        assert moments.mean == pytest.approx(offset + scale * float(np.mean((values - offset) / scale)), rel=1e-9)
        assert moments.std == pytest.approx(scale * float(np.std((values - offset) / scale)), rel=1e-6)
        assert (moments.low, moments.high) == (values.min(), values.max())


def test_a_column_without_values_is_refused_with_its_name():
    frame = pd.DataFrame({"c": np.arange(5.0), "d": np.full(5, np.nan)})
    with pytest.raises(InputError, match=r"column 'd' has no values at all"):
        gathered(frame, np.arange(5.0), rows=2).preprocessor()


# ---- categories ------------------------------------------------------------------------------------------------------


def counted(names: list[str], parts: int = 10, most_names: int = MOST_NAMES) -> Categories:
    whole = Categories(most_names)
    for part in np.array_split(np.array(names, dtype=object), parts):
        block = FileBlock("'t'", 0, pa.table({"c": pa.array(part.tolist())}))
        one = Categories(most_names)
        one.add(block.column("c"), None)
        whole.merge(one)
    return whole


def test_an_identifier_is_refused():
    names = [f"id {k}" for k in range(2_000)]
    with pytest.raises(
        InputError, match=r"column 'c' has 2000 different texts in 2000 rows, such as 'id 0'.*identifier"
    ):
        counted(names).encoding("column 'c'", False, 2_000, 2_000.0)


def test_beyond_the_names_that_are_counted_the_frequent_ones_stay():
    rng = np.random.default_rng(0)
    frequent = [f"f{k}" for k in range(MAX_CATEGORIES)]
    names = [*rng.choice(frequent, 4_000), *(f"r{k}" for k in rng.integers(0, 3_000, 6_000))]
    names = [names[k] for k in rng.permutation(len(names))]
    found = counted(names, parts=60, most_names=400)
    exact = pd.Series(names).value_counts()
    assert len(found.counts) <= 400
    assert 0.0 < found.error < 50.0
    for name, mass in found.counts.items():
        assert exact[name] - found.error <= mass <= exact[name]
    assert found.distinct == pytest.approx(len(exact), rel=0.12)
    encoding = found.encoding("column 'c'", False, 10_000, 10_000.0)
    assert set(encoding.categories) == set(frequent)
    assert encoding.other


def test_an_identifier_is_found_out_even_then():
    found = counted([f"id {k}" for k in range(5_000)], parts=20, most_names=400)
    with pytest.raises(InputError, match="identifier"):
        found.encoding("column 'c'", False, 5_000, 5_000.0)


def test_ties_between_categories_are_settled_by_name():
    names = [f"c{k:02d}" for k in range(40)] * 3
    whole = counted(names)
    frame = pd.DataFrame({"c": names})
    assert whole.encoding("column 'c'", False, 120, 120.0) == Preprocessor.fit(*read_columns(frame)).encodings[0]
    assert math.isclose(sum(whole.counts.values()), 120)
