"""Memory: sizes as people write them, and what is made of a limit."""

import pytest

from deepbasis import budget
from deepbasis.budget import Budget, fits_in_memory, parse_memory, words
from deepbasis.errors import InputError

MIB = 2**20


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of 400 MiB on a machine with 16 GiB to give."""
    monkeypatch.setattr(budget, "_resident", lambda: 400 * MIB)
    monkeypatch.setattr(budget, "available", lambda: 16 * 2**30)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 2**30), ("2gb", 2 * 2**30), ("2G", 2 * 2**30), (" 1.5 GiB ", 3 * 2**29), ("500M", 500 * MIB),
        ("64KiB", 65536), ("1TiB", 2**40), ("1000000", 10**6), (123, 123), (None, None),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "two", "-1GiB", "2GiBs", "1e9", "0", "2 PiB", True, "0.1"])
def test_what_is_no_size(text):
    with pytest.raises(InputError, match=r"memory must be a size such as '2GiB'"):
        parse_memory(text)


def test_words():
    assert words(2**30) == "1.0 GiB"
    assert words(512 * MIB) == "512 MiB"
    assert words(1) == "1 MiB"


def test_what_is_held_at_a_time_fits_into_the_limit(process):
    for limit in (500 * MIB, 2**30, 2 * 2**30, 64 * 2**30):
        for columns, width in ((1, 1), (10, 13), (300, 2000)):
            left = limit - 400 * MIB
            sizes = Budget.of(limit).sizes(8 * columns, columns, width + 1, 4)
            blocks = sizes.block_rows * (16 * columns + 16 * columns + 5 * 4 * (width + 1))
            buffer = sizes.buffer_rows * 4 * (width + 1)
            assert sizes.block_rows == 1024 or blocks <= left / 8
            assert sizes.buffer_rows == sizes.block_rows or buffer <= left / 4
            assert sizes.buffer_rows >= sizes.block_rows >= 1024


def test_what_is_taken_is_not_given_twice(process):
    free, taken = Budget.of(2**30).sizes(80, 10, 14, 4), Budget.of(2**30, 500 * MIB).sizes(80, 10, 14, 4)
    assert taken.buffer_rows < 0.25 * free.buffer_rows
    assert Budget.of(2**30).members_at_a_time(8, 10 * MIB) == 8
    assert Budget.of(2**30).members_at_a_time(80, 10 * MIB) == (1024 - 400) // 3 // 10
    assert Budget.of(2**30).members_at_a_time(80, 2**40) == 1


def test_too_little_is_said_at_once_with_what_is_needed(process):
    with pytest.raises(InputError, match=r"memory of 300 MiB is too little: 400 MiB are taken.*give at least 528 MiB"):
        Budget.of(300 * MIB)


def test_what_fits_is_fitted_in_memory(process):
    assert fits_in_memory(10**6, 80, None)  # 480 MB of 8 GiB
    assert not fits_in_memory(10**6, 80, 500 * MIB)
    assert fits_in_memory(10**6, 80, 900 * MIB)
    assert not fits_in_memory(10**9, 80, None)


def test_a_machine_says_what_it_has():
    assert budget.available() > 2**20
    assert 2**20 < budget._resident() < 2**40
