"""Rows held out of a table in files: the same on every run, however it is read; about as many as were asked for."""

import numpy as np
import pytest

from deepbasis.hashing import name_hashes
from deepbasis.tables.columns import Column
from deepbasis.tables.table import HeldOut, most_rows, position_hashes

POSITIONS = [12035550249420947055, 12935080325729570654]
NAMES = [13020603013274838756, 636548684707296368]


def splitmix64(z: int) -> int:
    """Steele, Lea and Flood's, in Python's integers."""
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize(("file", "row"), [(0, 0), (0, 1), (3, 10**12), (2**40, 7)])
def test_the_hash_of_a_place(file, row):
    start = splitmix64(file * 0x9E3779B97F4A7C15 % 2**64)
    expected = splitmix64((row * 0x9E3779B97F4A7C15 + start) % 2**64)
    assert position_hashes(file, row, 1).tolist() == [expected]


def test_it_never_changes():
    """A later release must hold out the same rows: a model is compared on what it was not trained on."""
    assert position_hashes(0, 0, 2).tolist() == POSITIONS
    assert name_hashes(["", "Zürich"]).tolist() == NAMES


def test_a_row_has_one_hash_however_the_file_is_cut():
    whole = position_hashes(2, 0, 1000)
    pieces = [position_hashes(2, start, min(77, 1000 - start)) for start in range(0, 1000, 77)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert len(np.unique(np.concatenate([whole, position_hashes(3, 0, 1000), position_hashes(2, 1000, 1000)]))) == 3000


@pytest.mark.parametrize(
    ("fraction", "rows", "expected"),
    [(0.1, [50, 0, 51], 10), (0.5, [3], 2), (1e-9, [1000], 1), (0.999, [2], 1), (0.1, [1], 0), (0.1, [], 0)],
)
def test_a_few_are_counted_exactly(fraction, rows, expected):
    held_out = HeldOut.choose(fraction, rows)
    assert sum(held_out.of(file, 0, count).sum() for file, count in enumerate(rows)) == expected


def test_many_are_as_many_on_average_and_never_more_than_fit():
    rows = [400_000, 600_000]
    for fraction, most, expected in ((0.1, 10**9, 100_000), (0.1, 20_000, 20_000), (0.9, 10**9, 900_000)):
        held_out = HeldOut.choose(fraction, rows, most)
        count = sum(int(held_out.of(file, 0, n).sum()) for file, n in enumerate(rows))
        assert abs(count - expected) < 5 * np.sqrt(expected)


def test_long_rows_are_fewer():
    assert [most_rows(columns) for columns in (1, 10, 100, 1000, 10**6)] == [100_000, 100_000, 100_000, 10_000, 1_000]


def test_they_are_spread_evenly_over_the_file():
    held = HeldOut.choose(0.2, [1_000_000], most=10**9).of(0, 0, 1_000_000)
    assert abs(held.reshape(100, -1).mean(1) - 0.2).max() < 0.02
    assert abs(np.corrcoef(held[1:], held[:-1])[0, 1]) < 0.005


def test_none_at_all():
    assert not HeldOut().of(0, 0, 100).any()
    assert not HeldOut().of_groups(Column("column 'g'", "numeric", np.arange(100.0))).any()


def test_a_group_is_held_out_or_not_wherever_it_stands():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 500, 20_000)
    held_out = HeldOut.groups(0.2, 20_000)
    as_text = Column("column 'g'", "categorical", groups, tuple(str(k) for k in range(500)))
    out = held_out.of_groups(as_text)
    np.testing.assert_array_equal(out, held_out.of_groups(Column("column 'g'", "numeric", groups.astype(float))))
    assert len({(int(group), bool(held)) for group, held in zip(groups, out, strict=True)}) == 500
    assert abs(out.mean() - 0.2) < 0.06
    assert HeldOut.groups(0.2, 10**9, most=10**5).threshold == int(1e-4 * 2**64)
