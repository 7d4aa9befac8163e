"""Memory: sizes as people write them, and what is made of a limit."""

import numpy as np
import pandas as pd
import pytest

from deepbasis.errors import InputError
from deepbasis.fitting.budget import (
    Budget,
    Machine,
    column_kinds,
    fits_in_memory,
    parse_memory,
    resident_bytes,
    words,
)
from deepbasis.fitting.data import CROSS_PARTS, TableData
from deepbasis.fitting.spec import Spec
from deepbasis.tables.labels import Labels
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table

MIB = 2**20


MACHINE = Machine(free=16 * 2**30, taken=400 * MIB)


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


def test_what_is_held_at_a_time_fits_into_the_limit():
    for limit in (500 * MIB, 2**30, 2 * 2**30, 64 * 2**30):
        for columns, width in ((1, 1), (10, 13), (300, 2000)):
            left = limit - 400 * MIB
            sizes = Budget.of(limit, machine=MACHINE).sizes(8 * columns, columns, width + 1, 4, mixing=True)
            blocks = sizes.block_rows * (16 * columns + 16 * columns + 5 * 4 * (width + 1))
            buffer = sizes.buffer_rows * 4 * (width + 1)
            assert sizes.block_rows == 256 or blocks <= left / 8
            assert sizes.buffer_rows == sizes.block_rows or buffer <= left / 4
            assert sizes.buffer_rows >= sizes.block_rows >= 256


def test_what_is_taken_is_not_given_twice():
    free, taken = (Budget.of(2**30, taken, MACHINE).sizes(80, 10, 14, 4, mixing=True) for taken in (0, 400 * MIB))
    assert taken.buffer_rows < 0.25 * free.buffer_rows
    assert Budget.of(2**30, machine=MACHINE).members_at_a_time(8, 10 * MIB) == 8
    assert Budget.of(2**30, machine=MACHINE).members_at_a_time(80, 10 * MIB) == (1024 - 512) // 3 // 10
    assert Budget.of(2**30, machine=MACHINE).members_at_a_time(80, 2**40) == 1


@pytest.mark.parametrize("memory", [700 * MIB, 2**30, 8 * 2**30])
def test_the_same_limit_gives_the_same_sizes_whatever_the_process_holds(memory):
    found = []
    for resident in (200 * MIB, 317 * MIB + 4096, 450 * MIB):
        given = Budget.of(memory, 50 * MIB, Machine(free=16 * 2**30, taken=resident))
        found.append((given.sizes(800, 100, 120, 4, mixing=True), given.members_at_a_time(80, MIB)))
    assert found[0] == found[1] == found[2]


def test_without_a_limit_the_sizes_do_not_follow_what_is_free_from_moment_to_moment():
    def sizes(free):
        machine = Machine(free=free, taken=400 * MIB)
        return Budget.of(None, 50 * MIB, machine).sizes(8_000, 1_000, 1_200, 4, mixing=True)

    found = {sizes(free) for free in (9 * 2**30, 11 * 2**30 + 12345, 15 * 2**30)}
    assert len(found) == 1
    assert sizes(2**30) not in found


def test_sizes_that_do_not_fit_beside_a_large_process_are_refused():
    """They are not made smaller: another order of the rows is another fit. What the message asks for is enough."""
    large = Machine(free=16 * 2**30, taken=900 * MIB)
    wide = (8_000, 1_000, 1_200, 4)
    Budget.of(2**30, machine=large).sizes(*wide)  # the blocks alone fit
    with pytest.raises(InputError, match=r"memory of 1.0 GiB is too little: .* give at least 1.2 GiB"):
        Budget.of(2**30, machine=large).sizes(*wide, mixing=True)
    Budget.of(parse_memory("1.2GiB"), machine=large).sizes(*wide, mixing=True)


def test_too_little_is_said_at_once_with_what_is_needed():
    with pytest.raises(InputError, match=r"memory of 300 MiB is too little: 400 MiB are taken.*give at least 528 MiB"):
        Budget.of(300 * MIB, machine=MACHINE)


def test_what_fits_is_fitted_in_memory():
    need = resident_bytes(10**6, 80, ["numeric"] * 10)  # 1,072 MB
    assert 4 * 80 * 10**6 < need < 15 * 80 * 10**6
    assert fits_in_memory(need, None, MACHINE)
    assert not fits_in_memory(need, 1000 * MIB, MACHINE)
    assert fits_in_memory(need, 1600 * MIB, MACHINE)
    assert not fits_in_memory(1000 * need, None, MACHINE)


def test_text_counts_by_its_length_and_by_the_columns_that_it_may_become():
    short, long = (resident_bytes(1000, size, ["categorical"]) for size in (16, 20_000))
    assert long - short > 1000 * 19_000
    assert short > 2 * resident_bytes(1000, 16, ["numeric"])


def held(data: TableData) -> int:
    """Bytes of the rows as numbers, those set apart too."""
    tables = [data, *data.without]
    x = [one.encoded.x for one in tables] + [one.apart.x for one in tables if one.apart is not None]
    return sum(one.numel() * one.element_size() for one in x)


def test_a_cross_conformal_fit_holds_its_rows_once_more_for_each_part():
    X = np.random.default_rng(0).normal(size=(500, 20))
    plain, cross = (
        held(TableData.of(Spec(calibrate=how), Table.read(X, X[:, 0]))) for how in ("auto", "cross-conformal")
    )
    needs = [resident_bytes(500, 160, ["numeric"] * 20, more) for more in (0, CROSS_PARTS)]
    assert cross - plain == needs[1] - needs[0] > 0


def spiky(rows: int = 5_000) -> pd.DataFrame:
    """One column that is mostly 0, one that is sometimes, one that never is, and classes."""
    rng = np.random.default_rng(0)
    wages, gaps = (np.where(rng.random(rows) < share, 0.0, rng.integers(1, 60, rows)) for share in (0.7, 0.3))
    return pd.DataFrame({"wages": wages, "gaps": gaps, "size": rng.normal(size=rows), "who": rng.integers(0, 2, rows)})


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_number_that_is_mostly_one_value_may_become_many(tmp_path, ending):
    """As many as it does in a classifier; that it is so is seen in a few rows of the table."""
    table, path = spiky(), tmp_path / f"t{ending}"
    table.to_csv(path, index=False) if ending == ".csv" else table.to_parquet(path, index=False, row_group_size=500)
    source, names = Source.open(path), ["wages", "gaps", "size"]
    labels, y, _ = Labels.read(table["who"])
    encoded = TableData.of(Spec(), Table.read(table[names], y, labels=labels)).preprocessor.encodings
    assert [one.width for one in encoded] == [33, 1, 1]

    def numbers(classes: bool) -> list[int]:
        """Of a row, beside what is held of any."""
        kinds = column_kinds(source, names, classes)
        return [resident_bytes(1, 0, [kind]) - resident_bytes(1, 0, ["numeric"]) for kind in kinds]

    assert numbers(classes=False) == [0, 0, 0]
    assert numbers(classes=True)[0] >= 3 * 8 * 32  # copies of as many numbers more
    assert numbers(classes=True)[1:] == [0, 0]


def test_a_machine_says_what_it_has():
    machine = Machine.now()
    assert machine.free > 2**20
    assert 2**20 < machine.taken < 2**40
