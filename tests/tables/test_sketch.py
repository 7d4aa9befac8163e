"""The quantile sketch: exact while it can be, within its own bound of the ranks beyond, however it was put together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepbasis.tables.encoders import masses, quantile
from deepbasis.tables.sketch import POINTS, QuantileSketch

Floats = NDArray[np.float64]


def sketched(pieces: list[Floats], weights: list[Floats] | None = None) -> QuantileSketch:
    sketch = QuantileSketch()
    for k, piece in enumerate(pieces):
        sketch.add(piece, None if weights is None else weights[k])
    return sketch


def worst_rank(sketch: QuantileSketch, values: Floats, weight: Floats) -> float:
    """The largest difference between the sketch's rank of any point and the true one, in weight."""
    order = np.argsort(values, kind="stable")
    values, below = values[order], np.concatenate([[0.0], np.cumsum(weight[order])])
    points, mass = sketch.distribution()
    told = np.cumsum(mass)
    at = below[np.searchsorted(values, points, side="right")]
    before = below[np.searchsorted(values, points, side="left")]
    return float(np.max(np.maximum(np.abs(at - told), np.abs(before - (told - mass)))))


def shapes(rng: np.random.Generator, n: int) -> dict[str, Floats]:
    return {
        "normal": rng.standard_normal(n),
        "heavy tails": rng.standard_cauchy(n),
        "many zeros": np.where(rng.random(n) < 0.6, 0.0, rng.standard_normal(n)),
        "ascending": np.arange(n, dtype=np.float64),
        "descending": -np.arange(n, dtype=np.float64),
    }


@pytest.mark.parametrize("piece", [500, 7_001, 65_536])
@pytest.mark.parametrize("shape", ["normal", "heavy tails", "many zeros", "ascending", "descending"])
def test_ranks_are_within_the_bound_that_it_states(shape, piece):
    values = shapes(np.random.default_rng(0), 300_000)[shape]
    sketch = sketched([values[k : k + piece] for k in range(0, len(values), piece)])
    error = sketch.rank_error / len(values)
    assert 0.0 < error <= (2 + np.log2(len(values) / min(piece, POINTS))) / (2 * POINTS)
    assert worst_rank(sketch, values, np.ones(len(values))) <= sketch.rank_error * (1 + 1e-9)
    assert sketch.distribution()[1].sum() == pytest.approx(len(values), rel=1e-12)


def test_the_bound_is_small_enough_for_quartiles():
    """A thousandth of the rows, at fifty million of them in pieces of 65,536, is what the summary promises."""
    pieces = 50_000_000 / 65_536
    assert (2 + np.log2(pieces)) / (2 * POINTS) < 0.002


def test_weights_count_as_so_many_rows():
    rng = np.random.default_rng(1)
    values, weight = rng.standard_normal(60_000), rng.exponential(size=60_000)
    sketch = sketched(np.split(values, 12), np.split(weight, 12))
    assert worst_rank(sketch, values, weight) <= sketch.rank_error * (1 + 1e-9)
    assert sketch.rank_error / weight.sum() < 0.001


def test_few_different_values_are_exact_in_any_number_of_pieces():
    rng = np.random.default_rng(2)
    values = rng.integers(0, POINTS, 100_000).astype(np.float64)
    sketch = sketched(np.split(values, 50))
    assert sketch.exact
    for ours, theirs in zip(sketch.distribution(), masses(values, None), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_merging_workers_is_within_the_bound_too():
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal(n) * scale for n, scale in ((50_000, 1.0), (3, 100.0), (90_000, 5.0))]
    whole = QuantileSketch()
    for part in parts:
        whole.merge(sketched(np.array_split(part, 9)))
    whole.merge(QuantileSketch())
    values = np.concatenate(parts)
    assert worst_rank(whole, values, np.ones(len(values))) <= whole.rank_error * (1 + 1e-9)
    for q in (0.25, 0.5, 0.75):
        rank = np.mean(values <= quantile(*whole.distribution(), q))
        assert abs(rank - q) <= whole.rank_error / len(values) + 1e-4


@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20), max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_small_columns_are_what_masses_says(pieces):
    values = np.array([value for piece in pieces for value in piece])
    sketch = sketched([np.array(piece, dtype=np.float64) for piece in pieces])
    if len(values):
        for ours, theirs in zip(sketch.distribution(), masses(values, None), strict=True):
            np.testing.assert_array_equal(ours, theirs)
