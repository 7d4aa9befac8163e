"""What is refused of a table in files, with the file and the row."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from deepbasis.errors import FileFormatError, InputError
from support.streams import DROP, LENGTHS, epoch_of, frame, small, survey_of

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


def broken(change: Callable[[pd.DataFrame], pd.DataFrame], folder: Path) -> Path:
    for k in range(3):
        table = frame(60, k).drop(columns=[*DROP])
        (change(table) if k == 1 else table).to_parquet(folder / f"part-{k}.parquet", index=False, row_group_size=20)
    return folder


def with_cell(column: str, row: int, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            with_cell("price", 33, np.nan),
            r"'price' of '.*part-1.parquet' has 1 .* NaN \(missing\), in row 33 \(",
        ),
        (with_cell("price", 45, 1e200), r"'price' of '.*part-1.parquet' is 1e\+200 in row 45 \(counting from 0\)"),
        (
            with_cell("width", 21, np.inf),
            r"^'.*part-1.parquet': column 'width' has 1 infinite .* row 21 \(counting from 0",
        ),
        (with_cell("day", 59, pd.Timestamp("1066-10-14")), r"part-1.parquet': column 'day' holds the date .*row 59 \("),
    ],
)
def test_a_bad_cell_is_named_with_its_file_and_row(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        small().fit_dataset(broken(change, tmp_path), "price", stream=True)


@pytest.mark.parametrize("role", ["target", "validation target", "weight"])
def test_text_among_the_numbers_of_a_csv_is_named_with_its_file_row_and_value(folder, tmp_path, role):
    table = frame(200, 8).astype({"price": object, "weight": object})
    table.loc[150, "weight" if role == "weight" else "price"] = "n.a. yet"
    table.to_csv(tmp_path / "t.csv", index=False)
    column = "weight" if role == "weight" else "target"
    value = r"must hold numbers, got 'n.a. yet' in row 150 \(counting from 0\)"
    words = rf"^{column} column '\w+' of '{tmp_path}/t.csv' {value}"
    data, aside = (folder, tmp_path / "t.csv") if role == "validation target" else (tmp_path / "t.csv", None)
    drop = ["shop"] if role == "weight" else DROP
    weight = "weight" if role == "weight" else None
    with pytest.raises(InputError, match=words):
        small().fit_dataset(data, "price", weight=weight, drop=drop, validation=aside, stream=True)


def test_numbers_written_as_text_may_be_a_target(tmp_path):
    table = frame(50, 8).drop(columns=[*DROP])
    table.assign(price=table["price"].astype(str)).to_parquet(tmp_path / "t.parquet", index=False)
    model = small().fit_dataset(tmp_path, "price", stream=True)
    assert model.fitted_.target.scale == pytest.approx(table["price"].std(), rel=0.5)  # some rows are held out


def test_dates_for_a_target_are_named(folder, tmp_path):
    table = frame(50, 8).drop(columns=[*DROP])
    table.assign(price=table["day"]).to_parquet(tmp_path / "t.parquet", index=False)
    words = r"target column 'price' of '.*t.parquet' must hold numbers, got 202\d-\S+ in row 0 \("
    with pytest.raises(InputError, match=words):
        small().fit_dataset(folder, "price", drop=DROP, validation=tmp_path / "t.parquet", stream=True)


def test_a_column_that_says_nothing_is_named(tmp_path):
    for k in range(2):
        frame(60, k).drop(columns=[*DROP]).assign(size=np.nan).to_parquet(tmp_path / f"{k}.parquet", index=False)
    with pytest.raises(InputError, match=r"^'.*0.parquet' and 1 more: column 'size' has no values at all"):
        small().fit_dataset(tmp_path, "price", stream=True)


def test_pages_that_cannot_be_read_stop_the_training_with_the_file_s_name(folder, tmp_path):
    """Damaged between the first pass and the second."""
    for k, n in enumerate(LENGTHS):
        frame(n, k).to_parquet(tmp_path / f"part-{k}.parquet", index=False, row_group_size=100)
    survey = survey_of(tmp_path)
    path = tmp_path / "part-3.parquet"
    content = bytearray(path.read_bytes())
    content[100:3000] = bytes(2900)
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"part-3.parquet' is damaged"):
        epoch_of(survey, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "deepbasis-reader"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "cost"}, r"part-0.parquet' has no column 'cost'"),
        ({"target": "colour"}, r"target column 'colour' of '.*' must hold numbers"),
        ({"target": "price", "weight": "colour"}, r"weight column 'colour' of '.*' must hold numbers"),
        ({"target": "price", "drop": ["colr"]}, r"no column 'colr'; did you mean 'colour'"),
        ({"target": "price", "max_steps": 0}, r"max_steps must be a positive integer, got 0"),
        ({"target": "price", "memory": "much"}, r"memory must be a size such as '2GiB'"),
    ],
)
def test_bad_arguments(folder, arguments, words):
    with pytest.raises(InputError, match=words):
        small().fit_dataset(folder, stream=True, **arguments)


def test_too_few_rows(tmp_path):
    parquet.write_table(pa.table({"a": [1.0], "price": [2.0]}), tmp_path / "one.parquet")
    with pytest.raises(InputError, match=r"a fit needs at least 2 rows, '.*one.parquet' has 1"):
        small().fit_dataset(tmp_path, "price", stream=True)
    parquet.write_table(pa.table({"a": [1.0, 2.0], "price": [2.0, 3.0]}), tmp_path / "one.parquet")
    small(epochs=1).fit_dataset(tmp_path, "price", stream=True)
