"""Splits against the paper's sizes, scikit-learn's own calls, and plain sets of rows."""

import os

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from deepbasis.errors import InputError
from deepbasis.paper import data_uci as uci
from deepbasis.paper.splits import Split, duplicate_safe, leak, random_split

PAPERS_SIZES = {  # all rows, and the n of Table 1's header
    "pol": (15000, 12000),
    "elevators": (16599, 13279),
    "kin40k": (40000, 32000),
    "protein": (45730, 36584),
    "keggdirected": (48827, 39061),
    "slice": (53500, 42800),
    "keggundirected": (63608, 50886),
    "3droad": (434874, 347898),
    "song": (515345, 412275),
    "buzz": (583250, 466600),
}

LEAKS = {"pol": 0.004, "elevators": 0.0, "kin40k": 0.0, "protein": 0.058, "keggdirected": 0.73, "keggundirected": 0.77}


def with_copies(rows: int, kinds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of `rows` rows, of which at most `kinds` differ, and a target of 0 and 1."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(kinds, 3))[rng.integers(kinds, size=rows)], rng.integers(2, size=rows).astype(float)


@pytest.mark.parametrize("name", PAPERS_SIZES)
def test_the_training_rows_are_as_many_as_the_papers(name):
    rows, train = PAPERS_SIZES[name]
    split = random_split(rows)
    assert len(split.train) == train
    assert len(split.validation) == len(split.test)
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(rows))
    assert uci.SHAPES[name][0] == rows


@pytest.mark.parametrize("seed", [0, 42])
def test_it_is_two_calls_of_scikit_learn(seed):
    rest, test = train_test_split(np.arange(16599), test_size=0.1, random_state=seed)
    train, validation = train_test_split(rest, test_size=1 / 9, random_state=seed)
    for ours, theirs in zip(random_split(16599, seed), (train, validation, test), strict=True):
        assert ours.dtype == np.int64
        assert np.array_equal(ours, theirs)


def test_the_seed_alone_decides():
    assert np.array_equal(random_split(100, 3).test, random_split(100, 3).test)
    assert not np.array_equal(random_split(100, 3).test, random_split(100, 4).test)


@pytest.mark.parametrize("seed", range(5))
def test_copies_follow_the_first_of_them(seed):
    X, _ = with_copies(500, 200, seed)
    before = random_split(500, seed)
    after = duplicate_safe(before, X)
    side_before = {int(row): side for side, rows in enumerate(before) for row in rows}
    side_after = {int(row): side for side, rows in enumerate(after) for row in rows}
    first: dict[tuple[float, ...], int] = {}
    for row in range(500):
        first.setdefault(tuple(X[row]), row)
    assert side_after == {row: side_before[first[tuple(X[row])]] for row in range(500)}
    assert sum(map(len, after)) == 500  # none lost, none twice
    kinds = [{tuple(X[row]) for row in rows} for rows in after]
    assert sum(map(len, kinds)) == len(first)  # each on one side
    for ours, again in zip(after, duplicate_safe(before, X), strict=True):
        assert np.array_equal(ours, again)


def test_without_copies_it_is_the_very_same_split():
    X = np.random.default_rng(0).normal(size=(300, 2))
    before = random_split(300)
    for ours, theirs in zip(duplicate_safe(before, X), before, strict=True):
        assert np.array_equal(ours, theirs)


def test_equal_numbers_are_equal_inputs():
    """0 and -0 differ in their bits alone; a target does not make an input another."""
    X = np.array([[0.0], [1.0], [-0.0]])
    after = duplicate_safe(Split(*(np.array([row]) for row in range(3))), X)
    assert [rows.tolist() for rows in after] == [[0, 2], [1], []]


def test_the_leak_is_the_share_of_test_rows_seen_in_training():
    X, y = with_copies(1000, 900)
    split = random_split(1000)
    seen = {(*X[row], y[row]) for row in split.train}
    assert leak(split, X, y) == pytest.approx(np.mean([(*X[row], y[row]) in seen for row in split.test]))
    assert 0.1 < leak(split, X, y) < 0.9
    assert leak(duplicate_safe(split, X), X, y) == 0.0


def test_another_target_is_no_leak():
    X = np.zeros((10, 1))
    assert leak(random_split(10), X, np.arange(10.0)) == 0.0
    assert leak(random_split(10), X, np.zeros(10)) == 1.0


@pytest.mark.skipif("DEEPBASIS_DATA" not in os.environ, reason="DEEPBASIS_DATA names no folder of data sets")
@pytest.mark.parametrize("name", LEAKS)
def test_the_benchmark_leaks(name):
    """The shares known from an earlier count, over other splits: they vary by half a point from one to the next."""
    X, y = uci.load(name)
    split = random_split(len(X))
    assert leak(split, X, y) == pytest.approx(LEAKS[name], abs=0.015)
    assert leak(duplicate_safe(split, X), X, y) == 0.0


def test_too_few_rows_and_a_split_of_another_table_are_refused():
    with pytest.raises(InputError, match="at least 10"):
        random_split(9)
    with pytest.raises(InputError, match="random_split"):
        duplicate_safe(random_split(20), np.zeros((21, 1)))
    with pytest.raises(InputError, match="random_split"):
        leak(Split(*[np.array([0, 0, 1])] * 3), np.zeros((3, 1)), np.zeros(3))
