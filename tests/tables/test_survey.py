"""One pass in pieces, by any number of workers, tells what one look at the whole table tells."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from deepbasis.errors import InputError
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.survey import Moments, TableStatistics
from deepbasis.tables.table import position_hashes


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
    frame: pd.DataFrame,
    y: np.ndarray,
    weight: np.ndarray | None = None,
    rows: int = 777,
    workers: int = 1,
    most: int | None = None,
) -> TableStatistics:
    """Blocks dealt out to workers, whose findings are merged."""
    whole = pa.Table.from_pandas(frame, preserve_index=False)
    starts = range(0, len(frame), rows)
    mine = [TableStatistics.empty(list(frame.columns), len(starts), most) for _ in range(workers)]
    for unit, start in enumerate(starts):
        part = slice(start, start + rows)
        block = FileBlock("'t'", start, whole.slice(start, rows))
        columns = [block.column(name) for name in frame.columns]
        hashes = position_hashes(0, start, len(block))
        mine[unit % workers].add(unit, hashes, columns, y[part], None if weight is None else weight[part])
    return TableStatistics.merged(mine)


@pytest.mark.parametrize("workers", [1, 3, 50])
@pytest.mark.parametrize("weighted", [False, True])
def test_of_no_more_rows_than_the_sample_holds_it_is_the_same_preprocessing_to_the_last_bit(workers, weighted):
    n = 4_000
    rng = np.random.default_rng(1)
    frame, y = table(n), rng.normal(100.0, 5.0, n)
    weight = rng.integers(1, 4, n).astype(float) if weighted else None
    for scaling in ("standard", "min-max"):
        statistics = gathered(frame, y, weight, workers=workers)
        names, columns = read_columns(frame)
        assert statistics.preprocessor(scaling) == Preprocessor.fit(names, columns, weight, scaling=scaling)
    assert (statistics.rows, statistics.mass) == (n, n if weight is None else weight.sum())
    expected = TargetScaler.fit(y, weight)
    assert statistics.target().mean == pytest.approx(expected.mean, rel=1e-13)
    assert statistics.target().scale == pytest.approx(expected.scale, rel=1e-12)


def test_a_sample_is_the_same_rows_whoever_reads_which_piece():
    frame, y = table(5_000), np.zeros(5_000)
    one = gathered(frame, y, most=300).preprocessor()
    assert gathered(frame, y, rows=1_300, most=300).preprocessor() == one
    assert gathered(frame, y, rows=401, workers=5, most=300).preprocessor() == one
    rows = np.argsort(position_hashes(0, 0, 5_000))[:300]
    names, columns = read_columns(frame.iloc[rows].reset_index(drop=True))
    of_sample = Preprocessor.fit(names, columns)
    for mine, theirs in zip(one.encodings, of_sample.encodings, strict=True):
        assert (mine.center, mine.scale, mine.categories) == (theirs.center, theirs.scale, theirs.categories)


def test_a_large_tables_sample_is_near_the_whole():
    """Within five standard errors of 20,000 rows; the target's moments, gaps and ends are exact."""
    n = 60_000
    frame, y = table(n), np.random.default_rng(1).standard_cauchy(n)
    statistics = gathered(frame, y, rows=5_000, workers=3, most=20_000)
    names, columns = read_columns(frame)
    for scaling in ("standard", "min-max"):
        ours = statistics.preprocessor(scaling)
        theirs = Preprocessor.fit(names, columns, scaling=scaling)
        for name, mine, exact in zip(frame.columns, ours.encodings, theirs.encodings, strict=True):
            if scaling == "min-max" and exact.kind in ("numeric", "duration"):
                assert (mine.center, mine.scale) == (exact.center, exact.scale), name
            elif name != "skewed":  # its standard deviation has none
                assert abs(mine.center - exact.center) < 5 * exact.scale / math.sqrt(20_000), name
                assert mine.scale == pytest.approx(exact.scale, rel=0.05), name
            assert (mine.kind, mine.missing, mine.varies) == (exact.kind, exact.missing, exact.varies)
            assert len(set(mine.categories) & set(exact.categories)) >= 0.9 * len(exact.categories)
    expected = TargetScaler.fit(y)
    assert statistics.target().mean == pytest.approx(expected.mean, rel=1e-9)
    assert statistics.target().scale == pytest.approx(expected.scale, rel=1e-10)


def test_gaps_and_variation_outside_the_sample_are_known():
    n = 2_000
    values = np.zeros(n)
    outside = np.argsort(position_hashes(0, 0, n))[500:]
    values[outside[0]], gap, rare = 7.0, np.zeros(n), np.full(n, np.nan)
    gap[outside[1]], rare[outside[2]] = np.nan, 1.0
    words = np.where(np.arange(n) == outside[3], None, "a").astype(object)
    frame = pd.DataFrame({"once": values, "gap": gap, "rare": rare, "words": words})
    once, with_gap, rarely, texts = gathered(frame, np.zeros(n), most=500).preprocessor().encodings
    assert (once.varies, once.missing) == (True, False)
    assert (with_gap.varies, with_gap.missing) == (False, True)
    assert (rarely.kind, rarely.varies, rarely.missing) == ("numeric", False, True)
    assert (texts.varies, texts.missing, texts.categories) == (True, True, ("a",))


def test_a_piece_without_values_is_of_any_kind():
    frame = pd.DataFrame({"a": [np.nan] * 10 + [1.0, 2.0] * 5, "c": [None] * 10 + ["x", "y"] * 5})
    names, columns = read_columns(frame)
    assert gathered(frame, np.zeros(20), rows=5).preprocessor() == Preprocessor.fit(names, columns)
    nothing = pd.DataFrame({"a": [np.nan] * 20})
    with pytest.raises(InputError, match="column 'a' has no values at all"):
        gathered(nothing, np.zeros(20)).preprocessor()


def test_a_column_of_identifiers_is_left_out_by_the_sample():
    frame = pd.DataFrame({"key": [f"k{k}" for k in range(6_000)], "size": np.arange(6_000.0)})
    found = gathered(frame, np.zeros(6_000), most=3_000).preprocessor()
    assert [encoding.is_left_out for encoding in found.encodings] == [True, False]
    assert found.notes[0].startswith("column 'key' is left out: 3,000 different texts in 3,000 rows")


def test_a_wide_table_has_a_smaller_sample():
    assert TableStatistics.empty([f"x{k}" for k in range(10)], 1).most == 65_536
    assert TableStatistics.empty([f"x{k}" for k in range(1_000)], 1).most == 10_000
    assert TableStatistics.empty([f"x{k}" for k in range(100_000)], 1).most == 1_024


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e150])
def test_moments_of_pieces_are_those_of_the_whole(scale):
    rng = np.random.default_rng(0)
    values, weight = scale * rng.normal(3.0, 2.0, 1_000), rng.exponential(size=1_000)
    whole = Moments()
    for at in np.array_split(np.arange(1_000), 17):
        part = Moments()
        part.add(values[at], weight[at])
        whole.merge(part)
    mean = np.average(values, weights=weight)
    assert whole.mean == pytest.approx(mean, rel=1e-12)
    assert whole.std == pytest.approx(
        scale * math.sqrt(np.average(((values - mean) / scale) ** 2, weights=weight)), rel=1e-12
    )
    assert (whole.low, whole.high) == (values.min(), values.max())
    assert whole.mass == pytest.approx(weight.sum(), rel=1e-12)
