"""A table in memory: every column is read once; which rows belong together, and which are held out."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepbasis import InputError
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.recognition import recognise
from deepbasis.tables.table import Table, fold_masks, held_out_mask, row_labels


class Number(Decimal):
    """A cell that counts how often it is read."""

    reads = 0

    def __float__(self):
        self.reads += 1
        return super().__float__()


class Text(str):
    reads = 0

    def __str__(self):
        self.reads += 1
        return super().__str__()


def counting_table(n=40, seed=0):
    """Numbers with holes, whole numbers, and text."""
    rng = np.random.default_rng(seed)
    numbers = [Number(str(value)) if rng.random() < 0.9 else None for value in rng.normal(size=n).round(2)]
    whole = [Number(int(value)) for value in rng.integers(0, 5, n)]
    texts = [Text(value) for value in rng.choice(["Rome", "Oslo", "Lima"], n)]
    return pd.DataFrame({"a": pd.Series(numbers, dtype=object), "b": whole, "c": pd.Series(texts, dtype=object)})


def reads(frame):
    return {cell.reads for column in frame for cell in frame[column] if cell is not None}


@pytest.mark.parametrize("names", [True, False])
def test_a_fit_reads_every_cell_once(names):
    frame = counting_table()
    X = frame if names else frame[["a", "b"]].to_numpy()
    weight = np.arange(40.0) % 5
    table = Table.read(X, np.arange(40.0), weight, np.arange(40) // 2).weighted()
    table = replace(table, columns=recognise(table.names, table.columns).columns)
    whole = Preprocessor.fit(table.names, table.columns, table.weight)
    labels = row_labels(whole.encoded(table.columns), table.groups)
    for mask in [held_out_mask(labels, table.weight, 0.2), *fold_masks(labels, table.weight, 4)]:
        inside, outside = table.rows(~mask), table.rows(mask)
        preprocessor = Preprocessor.fit(inside.names, inside.columns, inside.weight, within=table.columns)
        for part in (inside, outside, table):
            preprocessor.encoded(part.columns)
    assert reads(frame if names else frame[["a", "b"]]) == {1}


def test_predictions_and_validation_read_every_cell_once():
    fitted_to = Table.read(counting_table(), np.zeros(40))
    preprocessor = Preprocessor.fit(fitted_to.names, fitted_to.columns)
    frame = counting_table(seed=1)
    pieces = list(preprocessor.chunks(frame, 7))
    assert reads(frame) == {1}
    frame = counting_table(seed=1)
    table = Table.for_validation(frame, np.zeros(40), preprocessor)
    np.testing.assert_array_equal(preprocessor.encoded(table.columns), np.concatenate(pieces))
    assert reads(frame) == {1}


def test_rows_are_those_of_the_whole_table():
    """Their kind too: of a column of text and numbers, some rows may hold nothing but numbers."""
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0, 4.0], "c": pd.Series(["x", 1, 2, None], dtype=object)})
    table = Table.read(frame, [1, 2, 3, 4], [1, 2, 0, 4], ["u", "v", "u", "w"])
    some = table.rows(np.array([1, 2]))
    assert [column.kind for column in some.columns] == ["numeric", "categorical"]
    assert (some.y.tolist(), some.weight.tolist(), some.groups.tolist()) == ([2, 3], [2, 0], ["v", "u"])
    preprocessor = Preprocessor.fit(table.names, table.columns)
    encoded = preprocessor.encoded(table.columns)
    mask = np.array([False, True, True, False])
    for rows in (np.array([1, 2]), mask, slice(1, 3)):
        np.testing.assert_array_equal(preprocessor.encoded(table.rows(rows).columns), encoded[mask])
    assert table.weighted().y.tolist() == [1, 2, 4]


def test_a_column_of_text_and_numbers_is_text_where_rows_hold_numbers_alone():
    frame = pd.DataFrame({"c": pd.Series([1, 2, 2, "x"], dtype=object)})
    table = Table.read(frame, np.arange(4))
    inside, outside = table.rows(slice(3)), table.rows(slice(3, 4))
    preprocessor = Preprocessor.fit(inside.names, inside.columns, within=table.columns)
    assert preprocessor.feature_names_out == ["c=2", "c=1"]
    assert preprocessor.encoded(outside.columns).tolist() == [[0, 0]]


def test_a_column_without_values_in_some_rows_has_no_output():
    table = Table.read(pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [np.nan, np.nan, 5.0]}), np.arange(3))
    some = table.rows(slice(0, 2))
    with pytest.raises(InputError, match="'b' has no values at all"):
        Preprocessor.fit(some.names, some.columns)
    preprocessor = Preprocessor.fit(some.names, some.columns, within=table.columns)
    assert preprocessor.feature_names_out == ["a"]
    assert preprocessor.encoded(table.columns).shape == (3, 1)
    empty = Table.read(pd.DataFrame({"a": [1.0, 2.0], "b": [np.nan, np.nan]}), np.arange(2))
    with pytest.raises(InputError, match="'b' has no values at all"):
        Preprocessor.fit(empty.names, empty.columns, within=empty.columns)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.eye(3), np.ones(2)), "X has 3 rows but y has 2: inconsistent numbers of samples"),
        ((np.eye(3), None), "requires y to be passed, but the target y is None"),
        ((np.eye(3), np.ones(3), np.ones(2)), "sample_weight.shape == \\(2,\\), expected \\(3,\\)"),
        ((np.eye(3), np.ones(3), None, [1, 2]), "groups must be one value for each row of X"),
    ],
)
def test_everything_is_of_one_length(arguments, words):
    with pytest.raises(InputError, match=words):
        Table.read(*arguments)


@pytest.mark.parametrize("weight", [None, [0, 0, 3]])
def test_one_row_is_not_enough(weight):
    n = 1 if weight is None else 3
    with pytest.raises(InputError, match="at least 2 rows, got n_samples = 1"):
        Table.read(np.ones((n, 1)), np.ones(n), weight).weighted()


@pytest.mark.parametrize(
    ("X_val", "y_val", "words"),
    [
        (np.eye(2), [np.nan, 1], "^y_val has 1 value"),
        (np.array([[np.inf, 1]]), [1], "^X_val: X: column 0 has 1 infinite"),
        (np.ones((2, 3)), [1, 2], "^X_val: X has 3 features, but DeepBasisRegressor is expecting 2"),
        (np.array([[1, "x"]], dtype=object), [1], "^X_val: X: column 1 holds text"),
        (np.array([["2020", "2021"]], dtype="M8[D]"), [1], "^X_val: X: column 0 was numeric .* is a date now"),
        (np.eye(2), [1], "^X_val has 2 rows but y_val has 1: they must agree"),
    ],
)
def test_validation_rows_that_cannot_be_used(X_val, y_val, words):
    table = Table.read(np.random.default_rng(0).normal(size=(5, 2)), np.ones(5))
    preprocessor = Preprocessor.fit(table.names, table.columns)
    with pytest.raises(InputError, match=words):
        Table.for_validation(X_val, y_val, preprocessor)


# --- rows that belong together


def partition(labels):
    """Which rows are together, as sets."""
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def components(rows, groups):
    """Connected components, by joining sets until nothing changes."""
    sets = [{k} for k in range(len(rows))]
    for k in range(len(rows)):
        for j in range(k):
            if np.array_equal(rows[k], rows[j]) or (groups is not None and groups[k] == groups[j]):
                joined = sets[k] | sets[j]
                for member in joined:
                    sets[member] = joined
    return {frozenset(members) for members in sets}


def test_identical_rows_and_groups_by_hand():
    x = np.array([[1, 2], [3, 4], [1, 2], [5, 6], [7, 8], [0.0, 1], [-0.0, 1]])
    assert partition(row_labels(x)) == {frozenset(s) for s in ({0, 2}, {1}, {3}, {4}, {5, 6})}
    chained = ["a", "b", "b", "c", "c", "d", "e"]  # 0 ~ 2 by their cells, 1 ~ 2 and 3 ~ 4 by group, 5 ~ 6 by cells
    assert partition(row_labels(x, chained)) == {frozenset(s) for s in ({0, 1, 2}, {3, 4}, {5, 6})}


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 12), st.integers(1, 2)), elements=st.sampled_from([0.0, 1.0, -2.5])
    ),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_labels_are_connected_components(x, data):
    groups = data.draw(st.none() | st.lists(st.integers(0, 6), min_size=len(x), max_size=len(x)))
    together = components(x, groups)
    if groups is not None and len(together) == 1:
        with pytest.raises(InputError, match="all rows into one group"):
            row_labels(x, groups)
        return
    labels = row_labels(x, groups)
    assert partition(labels) == together
    assert labels.dtype == np.int64
    assert np.unique(labels).tolist() == list(range(labels.max() + 1))


def test_labels_do_not_depend_on_order_repetition_or_names():
    rng = np.random.default_rng(0)
    x, groups = rng.integers(0, 9, (50, 2)).astype(float), rng.integers(0, 25, 50)
    labels = row_labels(x, groups)
    order = rng.integers(0, 50, 80)
    order = np.concatenate([rng.permutation(50), order])  # every row, and some again
    assert row_labels(x[order], groups[order]).tolist() == labels[order].tolist()
    assert row_labels(x, [f"g{-group}" for group in groups]).tolist() == labels.tolist()
    assert row_labels(x[order]).tolist() == row_labels(x)[order].tolist()


@pytest.mark.parametrize(
    "groups",
    [
        [1, 2, 1],
        ["a", "b", "a"],
        [1, "x", 1.0],
        [True, False, True],
        pd.Series(["a", "b", "a"], dtype="category"),
        pd.Series([1, 2, 1], dtype="Int64"),
        pd.to_datetime(["2020", "2021", "2020"]),
    ],
    ids=lambda groups: type(groups).__name__,
)
def test_every_way_to_pass_groups(groups):
    assert partition(row_labels(np.eye(3), groups)) == {frozenset({0, 2}), frozenset({1})}


def test_many_distinct_rows_stay_distinct():
    x = np.random.default_rng(0).normal(size=(20_000, 3))
    assert row_labels(x).max() == 19_999
    grid = np.stack(np.meshgrid(np.arange(100.0), np.arange(100.0)), -1).reshape(-1, 2)
    assert row_labels(grid).max() == 9_999


# --- rows that are held out


LABELS = hnp.arrays(np.int64, st.integers(2, 40), elements=st.integers(0, 12)).map(
    lambda labels: np.unique(labels, return_inverse=True)[1].astype(np.int64)
)


@given(LABELS, st.floats(0.01, 0.99), st.integers(2, 6))
@settings(max_examples=150, deadline=None)
def test_labels_stay_together_and_weights_are_repetitions(labels, fraction, count):
    assume(labels.any())
    mask = held_out_mask(labels, None, fraction)
    masks = fold_masks(labels, None, count)
    assert 0 < mask.sum() < len(labels)
    assert 1 <= len(masks) <= count
    distinct, weight = np.unique(labels, return_counts=True)
    for one in (mask, *masks):
        assert not set(labels[one]) & set(labels[~one])
    assert held_out_mask(distinct, weight.astype(float), fraction)[labels].tolist() == mask.tolist()
    as_weights = [one[labels].tolist() for one in fold_masks(distinct, weight.astype(float), count)]
    assert as_weights == [one.tolist() for one in masks]
    assert np.sum(masks, axis=0).max() <= 1  # no row is held out twice


@given(LABELS, st.floats(0.01, 0.99))
@settings(max_examples=100, deadline=None)
def test_as_much_is_held_out_as_was_asked_for_and_no_label_more(labels, fraction):
    assume(labels.any())
    mask = held_out_mask(labels, None, fraction)
    last = labels == labels[mask].max()
    assert (mask & ~last).sum() < fraction * len(labels)
    assert mask.sum() >= fraction * len(labels) * (1 - 1e-9) or labels[mask].max() == labels.max() - 1


def test_folds_of_distinct_rows_hold_out_every_row_once():
    masks = fold_masks(np.random.default_rng(0).permutation(100), None, 4)
    assert np.sum(masks, axis=0).tolist() == [1] * 100
    assert [int(mask.sum()) for mask in masks] == [25] * 4


def test_a_part_with_most_of_the_rows_or_hardly_any_is_not_held_out():
    labels = np.repeat([0, 1, 2], [30, 60, 10])  # of two parts the second has 60 + 10 rows
    assert [mask.sum() for mask in fold_masks(labels, None, 2)] == [30]


def test_where_there_is_one_label_nothing_is_held_out():
    table = Table.read(np.ones((5, 2)), np.arange(5))
    labels = row_labels(Preprocessor.fit(table.names, table.columns).encoded(table.columns))
    for mask in (held_out_mask(labels, None, 0.5), *fold_masks(labels, None, 4)):
        assert not mask.any()


def test_one_group_alone_is_refused():
    with pytest.raises(InputError, match="all rows into one group, so that none can be held out"):
        row_labels(np.eye(3), ["a", "a", "a"])
    with pytest.raises(InputError, match="all rows into one group"):
        row_labels(np.array([[1.0], [2.0], [2.0], [3.0]]), ["a", "a", "b", "b"])  # joined by two identical rows
