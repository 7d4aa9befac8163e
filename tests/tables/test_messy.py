"""Forty messy tables, each with a known answer; clean tables, in which nothing changes; cells as numbers and back."""

import math
import os
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepbasis.errors import InputError
from deepbasis.tables.cells import CLOCK, DATE, NUMBER, SPAN, Rule
from deepbasis.tables.columns import Column
from deepbasis.tables.reading import read_columns
from deepbasis.tables.recognition import Recognised, recognise
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from support.messy import TARGET, Messy, days, german, seconds, tables

TABLES = {table.name: table for table in tables()}
DATA = Path(os.environ.get("DEEPBASIS_DATA", "nowhere"))


def read(table: Messy, folder: Path) -> tuple[list[str], Recognised]:
    path = folder / table.file
    path.write_bytes(table.content())
    source = Source.open(path)
    read = Roles.of(source, "y").table(source)
    np.testing.assert_array_equal(read.y, TARGET)
    assert read.names is not None
    return read.names, recognise(read.names, read.columns, decimal=read.decimal)


def is_answer(column: Column, kind: str, values: np.ndarray) -> bool:
    return column.kind == kind and np.allclose(column.values, values, rtol=1e-9, atol=1e-9, equal_nan=True)


def seen(**columns: list[object]) -> Recognised:
    return recognise(*read_columns(pd.DataFrame(columns)))


@pytest.mark.parametrize("name", TABLES)
def test_a_messy_table_is_understood_or_named(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    names, found = read(table, tmp_path)
    for column, (kind, values) in table.answers.items():
        assert is_answer(found.columns[names.index(column)], kind, values), (column, found.notes)
    for column in table.named:
        about = [note for note in found.notes if note.startswith(f"column '{column}' ")]
        is_constant = len(set(table.cells[column])) == 1  # these are named where the encoding is made
        assert len(about) == 1 or is_constant, (column, found.notes)


def test_most_of_forty_are_understood_outright() -> None:
    assert len(TABLES) == 40
    assert sum(not table.named for table in TABLES.values()) >= 34


# ---- what is not touched ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (DATA / "tables").is_dir(), reason="needs the tables in DEEPBASIS_DATA")
@pytest.mark.parametrize(
    "path", [*sorted((DATA / "tables").glob("*.csv.gz")), *DATA.glob("ookla/*.parquet")], ids=lambda path: path.name
)
def test_no_column_of_a_clean_table_changes_its_kind(path: Path) -> None:
    source = Source.open(path)
    assert Source.open(path, numbers=()).kinds == source.kinds  # no codes such as 00501
    blocks = list(source.all_blocks(source.names))
    for name in source.names:
        column = blocks[0].column(name)
        assert recognise([name], [column]).rules == (None,)


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2", "3", "10"],  # astype(str) makes categories of numbers
        ["1.0", "2.0", "3.0", "1.0"],
        ["00501", "90210", "10001", "n/a"],
        ["yes", "no", "yes", "no"],  # two categories say as much
        ["red", "green", "blue", "red"],
        ["<=50K", ">50K", "<=50K", ">50K"],
        ["20-30", "30-40", "40-50", "20-30"],
        ["1.2.3", "1.2.4", "1.3.0", "2.0.0"],
        ["192.168.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"],
        ["Q1", "Q2", "Q3", "Q4"],
        ["1st", "2nd", "3rd", "4th"],
        ["555-1234", "555-2345", "555-3456", "555-4567"],
    ],
)
def test_categories_stay(cells: list[object]) -> None:
    found = seen(x=cells)
    assert found.rules == (None,)
    assert found.notes == ()


@pytest.mark.parametrize("cells", [["00501", "90210", "10001", "60601"], ["501", "90210", "", "00007"]])
def test_codes_with_leading_zeros_are_categories_in_a_file_as_in_a_frame(cells: list[str], tmp_path: Path) -> None:
    frame = pd.DataFrame({"zip": cells * 10, "size": range(40), "hour": ["07", "8", "9", "10"] * 10})
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    source = Source.open(path, numbers=["hour"])
    assert source.kinds == {"zip": "categorical", "size": "numeric", "hour": "numeric"}
    (block,) = source.all_blocks(["zip"])
    (in_frame,) = recognise(*read_columns(frame[["zip"]].replace("", None))).columns
    (in_file,) = recognise(["zip"], [block.column("zip")]).columns
    assert [in_file.categories[code] if code >= 0 else None for code in in_file.values] == [
        in_frame.categories[code] if code >= 0 else None for code in in_frame.values
    ]
    assert Source.open(path).kinds["zip"] == "numeric"  # a model that knows it as a number reads it as one


def test_codes_of_one_file_are_text_in_all_files(tmp_path: Path) -> None:
    for k, cells in enumerate((["90210", "10001"], ["00501", "7"], ["3", "4"])):
        pd.DataFrame({"zip": cells}).to_csv(tmp_path / f"{k}.csv", index=False)
    source = Source.open(tmp_path, numbers=())
    assert source.kinds == {"zip": "categorical"}
    found = [block.column("zip") for block in source.all_blocks(["zip"])]
    assert [part.categories[int(code)] for part in found for code in part.values] == [
        *("90210", "10001"), *("00501", "7"), *("3", "4"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["row", "rowno", "row_no", "row number", "rownum", "Row"])
def test_a_row_number_is_named(name: str) -> None:
    found = recognise([name, "x"], [*read_columns(pd.DataFrame({name: range(40), "x": [1.0, 2.0] * 20}))[1]])
    assert any(note.startswith(f"column '{name}' has another whole number in every row") for note in found.notes)
    assert recognise(["rows", "x"], found.columns).notes == ()


def test_whole_numbers_as_text_that_name_the_rows_are_left_out_and_named() -> None:
    found = seen(x=[str(7919 * k) for k in range(40)], y=[k % 7 for k in range(40)])
    assert [rule and rule.form for rule in found.rules] == ["nothing", None]
    assert "column 'x' is left out: 40 different texts in 40 rows" in found.notes[0]
    assert "'number' reads them as numbers" in found.notes[0]


def test_columns_of_numbers_are_the_same_object() -> None:
    _, columns = read_columns(pd.DataFrame({"x": [1.5, 2.5, np.nan], "t": pd.date_range("2020", periods=3)}))
    assert all(before is after for before, after in zip(columns, recognise(["x", "t"], columns).columns, strict=True))


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_a_note_says_what_was_taken_for_what_and_how_to_overrule_it() -> None:
    (note,) = seen(price=["$7,182", "$5,000", "$1,200", "n/a"]).notes
    assert note == (
        "column 'price' is read as numbers: '$7,182' is 7182; "
        "columns={'price': 'category'} keeps its texts as categories"
    )


def test_odd_cells_are_counted() -> None:
    cells: list[object] = [f"{k}.5" for k in range(100)]
    cells[7], cells[9] = "12O", "abc"
    (note,) = seen(x=cells).notes
    assert "2 cells cannot be read, such as '12O', and are missing" in note
    cells[:10] = [f"odd {k}x{k}" for k in range(10)]
    (note,) = seen(x=cells).notes
    assert note.startswith("column 'x' is read as categories: 90 % of its cells are numbers, others such as 'odd 0x0'")
    assert "columns={'x': 'number'}" in note


def test_cells_with_and_without_a_unit_are_named() -> None:
    """A spreadsheet's 12% beside its 0.12: the numbers are not of one scale, and nothing else would say so."""
    (note,) = seen(x=["1%", "0.02", "3%", "0.04", "0"]).notes
    assert "'1%' is 1; cells without that unit, such as '0.02', are taken for the same; columns=" in note
    for cells in (["1%", "2%", "3%", "0"], ["$1", "$2", "$3.5", "n/a"], ["1", "2.5", "3", "4"]):
        assert not any("without" in note for note in seen(x=cells).notes)


def test_a_date_that_may_be_read_in_two_ways_says_so() -> None:
    (note,) = seen(x=["03/04/2021", "05/06/2021", "07/08/2021"]).notes
    assert "'03/04/2021' is 2021-03-04; day and month may be the other way round" in note
    (note,) = seen(x=["03/04/2021", "05/06/2021", "31/08/2021"]).notes
    assert "'03/04/2021' is 2021-04-03; columns=" in note


def test_numbers_that_name_the_rows_are_named() -> None:
    assert [note[:20] for note in seen(order_id=list(range(30)), width=list(range(30, 0, -1))).notes] == [
        "column 'order_id' ha"
    ]


# ---- what is told ----------------------------------------------------------------------------------------------------


def told(meaning: str, cells: list[object]) -> tuple[Rule | None, Column]:
    found = recognise(*read_columns(pd.DataFrame({"x": cells})), {"x": meaning})
    return found.rules[0], found.columns[0]


def test_a_meaning_that_is_told_overrules() -> None:
    assert told("category", ["$1", "$2", "$3"])[1].categories == ("$1", "$2", "$3")
    assert told("category", [3, 1, 2])[1].categories == ("1", "2", "3")
    np.testing.assert_array_equal(told("number", ["1", "2", "x"])[1].values, [1, 2, np.nan])
    np.testing.assert_array_equal(told("date", [20201231, 20210101])[1].values, [1609372800, 1609459200])
    np.testing.assert_array_equal(told("text", ["a", "bcd", None])[1].values, [1, 3, np.nan])
    assert told("drop", ["a", "b"])[1].missing.all()


def test_a_meaning_that_cannot_be_is_refused() -> None:
    with pytest.raises(
        InputError, match="column 'x' was to be read as number, and has no cell that is one, 'a' in row 0"
    ):
        told("number", ["a", "b"])
    with pytest.raises(
        InputError,
        match="columns says what 'z' is meant as, which is not among the columns to predict from: these are 'x'",
    ):
        recognise(["x"], [Column("column 'x'", "numeric", np.zeros(3))], {"z": "number"})


# ---- cells and back --------------------------------------------------------------------------------------------------

finite = st.floats(-1e12, 1e12).map(lambda x: round(x, 2))


@given(finite)
def test_a_number_is_read_back(x: float) -> None:
    written = {
        f"{x:,.2f}": Rule(NUMBER, ".", ","),
        f"${x:,.2f}": Rule(NUMBER, ".", ",", "$"),
        f"{x:.2f} %": Rule(NUMBER, unit="%"),
        german(x): Rule(NUMBER, ",", "."),
        f"{x:,.2f}".replace(",", "'"): Rule(NUMBER, ".", "'"),
        f"{x:,.2f}".replace(",", "\u00a0").replace(".", ","): Rule(NUMBER, ",", " "),
        f"({-x:,.2f})" if x < 0 else f"{x:,.2f}": Rule(NUMBER, ".", ","),
        f"{x!r}": Rule(NUMBER),
    }
    for cell, rule in written.items():
        assert rule.read(cell) == pytest.approx(x, rel=1e-12, abs=1e-9), cell


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_back_to_the_last_bit(x: float) -> None:
    assert Rule(NUMBER).read(repr(x)) == x


@given(st.datetimes(datetime(1700, 1, 1), datetime(2260, 1, 1)))
def test_a_date_is_read_back(moment: datetime) -> None:
    (day,) = days([moment])
    for form, order in {
        "%Y-%m-%d": "ymd",
        "%d/%m/%Y": "dmy",
        "%m/%d/%Y": "mdy",
        "%d.%m.%Y": "dmy",
        "%d %B %Y": "dby",
        "%d-%b-%Y": "dby",
        "%b %d, %Y": "bdy",
        "%A, %B %d, %Y": "bdy",
        "%Y%m%d": "digits",
    }.items():
        assert Rule(DATE, order=order).read(day.strftime(form)) == seconds([day])[0], form
    for form in ("%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %I:%M:%S.%f %p", "%Y-%m-%d %H:%M:%S.%fZ"):
        assert Rule(DATE, order="ymd").read(moment.strftime(form)) == pytest.approx(seconds([moment])[0], abs=1e-5)


@given(st.integers(0, 10**7))
def test_a_duration_is_read_back(s: int) -> None:
    hours, minutes, rest = s // 3600, s // 60 % 60, s % 60
    assert Rule(CLOCK, order="h:m").read(f"{hours}:{minutes:02}:{rest:02}") == s
    assert Rule(CLOCK, order="h:m").read(f"{hours}:{minutes:02}") == s - rest
    for cell in (
        f"{hours}h {minutes}m {rest}s",
        f"{hours} hours {minutes} min {rest} seconds",
        f"PT{hours}H{minutes}M{rest}S",
        str(pd.Timedelta(timedelta(seconds=s))),
    ):
        assert Rule(SPAN).read(cell) == s, cell


@given(st.text(max_size=40))
def test_no_text_is_too_strange(cell: str) -> None:
    for rule in (*(Rule(form) for form in (NUMBER, SPAN)), Rule(DATE, order="dby"), Rule(CLOCK, order="m:s")):
        assert not math.isinf(rule.read(cell))
    seen(x=[cell, "1.5", "2.5", "3.5"])
