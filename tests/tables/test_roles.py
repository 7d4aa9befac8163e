"""Which part each column plays: the same checks for one file in memory and for files that are read in blocks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis.errors import InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.formats.csv import Csv
from deepbasis.tables.places import load
from deepbasis.tables.roles import Roles, check_distinct, read_known
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table


def frame(n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    return pd.DataFrame(
        {
            "size": rng.normal(size=n).round(3),
            "colour": rng.choice(["red", "blue"], n),
            "price": rng.normal(size=n).round(3),
            "weight": rng.integers(1, 5, n),
            "shop": rng.integers(0, 9, n),
        }
    )


def sources(path: Path) -> list[Source]:
    """One file at once, and in blocks of a few rows."""
    return [Source.open(load(path)), Source.open(path, formats={**FORMATS, ".csv": Csv(block_bytes=64)})]


def test_a_table_is_taken_apart_by_its_roles(tmp_path):
    table = frame()
    table.to_csv(tmp_path / "t.csv", index=False)
    for source in sources(tmp_path / "t.csv"):
        roles = Roles.of(source, "price", "weight", "shop")
        assert roles.features == ["size", "colour"]
        found, whole = roles.table(source), Table.read(table[["size", "colour"]], table["price"])
        assert found.names == whole.names
        for mine, theirs in zip(found.columns, whole.columns, strict=True):
            assert (mine.label, mine.kind, mine.categories) == (theirs.label, theirs.kind, theirs.categories)
            np.testing.assert_array_equal(mine.values, theirs.values)
        np.testing.assert_array_equal(found.y, table["price"])
        np.testing.assert_array_equal(found.weight, table["weight"])
        np.testing.assert_array_equal(found.groups, table["shop"])
        plain = roles.for_validation().table(source)
        assert (plain.weight, plain.groups) == (None, None)
    alone = read_known(tmp_path / "t.csv", Roles([], "price"))
    np.testing.assert_array_equal(alone.y, table["price"])
    assert alone.bounds is None
    assert alone.exposure is None


@pytest.mark.parametrize("row", [0, 30])
def test_a_target_is_a_number_with_its_unit_in_blocks_as_at_once(tmp_path, row):
    """One cell in kilograms is a slip among 40, though it is half of a block of two; in all cells it is their unit."""
    table, path = frame(), tmp_path / "t.csv"
    texts = table["price"].astype(str)
    table.assign(price=texts + " kg").to_csv(path, index=False)
    for source in sources(path):
        np.testing.assert_array_equal(Roles.of(source, "price").table(source).y, table["price"])
    texts[row] += " kg"
    table.assign(price=texts).to_csv(path, index=False)
    for source in sources(path):
        with pytest.raises(InputError, match=rf"must hold numbers, got '{texts[row]}' in row {row} "):
            Roles.of(source, "price")


BAD_CELLS = {
    "text": (
        "price",
        "n.a. yet",
        r"^target column 'price' of '.*t.csv' must hold numbers, got 'n.a. yet' in row 33 \(",
    ),
    "hole": ("price", None, r"^target column 'price' of '.*t.csv' has 1 value that is NaN .* row 33 \("),
    "huge": ("price", 1e200, r"^target column 'price' of '.*t.csv' is 1e\+200 in row 33 \("),
    "weight": ("weight", -1, r"^weight column 'weight' of '.*t.csv' has 1 value that is negative.* row 33 \("),
    "word": ("weight", "two", r"^weight column 'weight' of '.*t.csv' must hold numbers, got 'two' in row 33 \("),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_cell_is_named_with_its_row_in_any_block(tmp_path, case):
    column, cell, words = BAD_CELLS[case]
    table = frame().astype({column: object})
    table.loc[33, column] = cell
    table.to_csv(tmp_path / "t.csv", index=False)
    for source in sources(tmp_path / "t.csv"):
        with pytest.raises(InputError, match=words):
            Roles.of(source, "price", "weight").table(source)


def test_numbers_that_are_text_are_a_target_too(tmp_path):
    table = frame()
    table.astype({"price": str}).to_parquet(tmp_path / "t.parquet")
    np.testing.assert_array_equal(read_known(tmp_path / "t.parquet", Roles([], "price")).y, table["price"])


def test_roles_that_no_table_can_have(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    source = Source.open(tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"t.csv' has no column 'prize'; did you mean 'price'"):
        Roles.of(source, "prize")
    (tmp_path / "odd.csv").write_text("age#price\n1#2\n")
    with pytest.raises(
        InputError, match=r"no column 'price'; its one column is 'age#price': name what separates .*--sep"
    ):
        Roles.of(Source.open(tmp_path / "odd.csv"), "price")
    with pytest.raises(InputError, match=r"weight names the column 'price', which target names already"):
        Roles.of(source, "price", "price")
    alone = Source.open(tmp_path / "t.csv", ["price", "weight"])
    with pytest.raises(InputError, match=r"t.csv' has no column left to predict 'price' from"):
        Roles.of(alone, "price", "weight")
    with pytest.raises(InputError, match=r"^--drop names the column 'b', which --groups names already"):
        check_distinct("a", None, "b", ["c", "b"], named=lambda role: f"--{role}")
    check_distinct("a", None, None, ["c", "b"])
