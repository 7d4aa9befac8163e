"""Files and folders that somebody else made: each problem is a typed error that names the file."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.predictions import without_formulas
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from support.streams import small


def not_utf8(folder: Path) -> Path:
    offsets, data = pa.py_buffer(np.array([0, 2, 4, 6], np.int32)), pa.py_buffer(b"ab\xff\xfecd")
    text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data])
    parquet.write_table(pa.table({"text": text, "y": [1.0, 2.0, 3.0]}), folder / "bad.parquet")
    return folder / "bad.parquet"


@pytest.mark.parametrize("stream", [False, True])
def test_parquet_text_that_is_not_utf8(tmp_path, stream):
    with pytest.raises(FileFormatError, match=r"bad.parquet' is damaged \(.*UTF8"):
        small().fit_dataset(not_utf8(tmp_path), "y", stream=stream)


def test_copied_parquet_text_that_is_not_utf8(tmp_path):
    source = Source.open(not_utf8(tmp_path))
    with pytest.raises(FileFormatError, match=r"bad.parquet' is damaged \(.*UTF8"):
        list(source.all_blocks(["y"], 10, ["text"]))


@pytest.mark.parametrize("note", [b"{broken", b"\xff", b"[]", b'{"index_columns": [{"kind": 7}], "columns": 3}'])
def test_what_pandas_wrote_beside_the_columns_may_be_broken(tmp_path, note):
    table = pa.table({"x": np.arange(40.0), "text": ["a", "b"] * 20, "y": np.arange(40.0)})
    parquet.write_table(table.replace_schema_metadata({b"pandas": note}), tmp_path / "t.parquet")
    source = Source.open(tmp_path / "t.parquet")
    read = Roles.of(source, "y").table(source)
    assert read.names == ["x", "text"]
    assert read.y.tolist() == list(range(40))


@pytest.mark.parametrize("year", ["99999999999999999999999999", "-9223372036854775809"])
def test_a_folder_with_a_number_beyond_64_bits(tmp_path, year):
    for one in ("2020", year):
        (tmp_path / f"year={one}").mkdir()
        pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 2.0]}).to_parquet(tmp_path / f"year={one}" / "part.parquet")
    with pytest.raises(InputError, match=rf"year={year}/part.parquet': its folder .* beyond a number of 64 bits"):
        small().fit_dataset(tmp_path, "y")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["y", "place"])
def test_a_folder_does_not_override_what_a_file_holds(tmp_path, ending, column):
    (tmp_path / f"{column}=1").mkdir()
    path = tmp_path / f"{column}=1" / f"part.{ending}"
    table = pd.DataFrame({"x": np.arange(20.0), "place": 1, "y": 1.0})

    def write() -> None:
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path, index=False)

    write()
    source = Source.open(tmp_path)  # both say the same
    assert Roles.of(source, "y").table(source).y.tolist() == [1.0] * 20
    table.loc[13, column] = 7
    write()
    with pytest.raises(InputError, match=rf"part.{ending}': its folder says that '{column}' is 1, .* column has .*7"):
        Source.open(tmp_path)
    assert Source.open(tmp_path, drop=[column]).names == [name for name in table if name != column]


def test_without_pyarrow_files_are_not_read(tmp_path, monkeypatch):
    pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 2.0]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"to read '.*t.parquet', install pyarrow: pip install 'deepbasis\[tables\]'"):
        small().fit_dataset(tmp_path / "t.parquet", "y")


def test_no_copied_text_looks_like_a_formula():
    full_width = [f"{chr(ord(sign) + 0xFEE0)}1" for sign in "=+-@"]
    odd = [
        "=1+1",
        "+a",
        "-2",
        "@sum",
        "\tx",
        "\rx",
        "\nx",
        "\n=1",
        " =1",
        "\ufeff=1",
        "\x00=1",
        "\u200b=1",
        *full_width,
    ]
    cells = [*odd, "plain", "a=b", "", None, "'quoted", " ", "x"]
    frame = pd.DataFrame({"=id": cells, "number": -1.5, "count": range(len(cells)), "mean": -1.0})
    told = without_formulas(frame, ["=id", "number", "count"])
    assert list(told.columns) == ["'=id", "number", "count", "mean"]
    expected = [*(f"'{cell}" for cell in odd), *cells[len(odd) :]]
    assert [None if pd.isna(cell) else cell for cell in told["'=id"]] == expected
    pd.testing.assert_frame_equal(told[["number", "count", "mean"]], frame[["number", "count", "mean"]])
