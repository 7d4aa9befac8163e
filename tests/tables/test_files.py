"""Tables in files: what is written comes back, and what cannot be read is refused with its name, place and remedy."""

import errno
import gzip
import io
import os
import subprocess
import sys
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from deepbasis.errors import DeepBasisError, FileFormatError, InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.output import check_output, write_tables
from deepbasis.tables.places import Place, load
from deepbasis.tables.predictions import PartFiles, PredictionColumns
from deepbasis.tables.source import Source
from support.frames import frame_of, read_table


@pytest.fixture
def mixed() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "n": [1, 2, 3],
            "x": [0.1, np.nan, -1e-300],
            "text": ["a,b", 'say "é"', "two\nlines"],
            "flag": [True, False, True],
            "day": pd.to_datetime(["2020-02-29", None, "1999-12-31"]),
        }
    )


def csv_table(tmp_path: Path, text: str | bytes, name: str = "table.csv") -> pd.DataFrame:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_table(path)


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [*FORMATS])
def test_what_is_written_comes_back(tmp_path, mixed, ending):
    path = tmp_path / f"Table.{ending[1:].upper()}"
    write_tables([mixed], path)
    back = read_table(path)
    assert list(back.columns) == list(mixed.columns)
    for column in ("n", "x"):
        np.testing.assert_array_equal(back[column], mixed[column])
    assert back["text"].tolist() == mixed["text"].tolist()
    assert back["flag"].tolist() == mixed["flag"].tolist()
    assert back["day"].astype("datetime64[s]").equals(mixed["day"].astype("datetime64[s]"))
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2"], "i"),
        (["1", ""], "f"),
        (["1", "2.5"], "f"),
        (["inf", "-inf"], "f"),
        (["12345678901234567890", "1"], "f"),
        (["true", "False"], "b"),
        (["true", ""], "boolean"),
        (["2020-01-31", ""], "M"),
        (["2020-01-31T10:00:00", "2020-02-01 11:30"], "M"),
        (["2020-01-31T10:00:00.25", ""], "M"),
        (["2020-01-31T10:00:00Z", "2020-01-31T10:00:00+02:00"], "M"),
        (["2020-01-31", "31/01/2020"], "text"),
        (["2020-13-31", "2020-01-01"], "text"),
        (["12:30", "13:45"], "text"),
        (["1", "one"], "text"),
        (["yes", "no"], "text"),
        (["NA", ""], "f"),
    ],
)
def test_the_type_of_a_csv_column(tmp_path, cells, kind):
    column = csv_table(tmp_path, "other,c\n" + "".join(f"1,{cell}\n" for cell in cells))["c"]
    if kind == "text":
        assert column.tolist() == cells
    elif kind == "boolean":
        assert column.dtype == "boolean"
    else:
        assert column.dtype.kind == kind


@pytest.mark.parametrize("word", ["", "NA", "NaN", "nan", "null", "NULL", "N/A", "None", "#N/A"])
def test_words_for_a_missing_value(tmp_path, word):
    table = csv_table(tmp_path, f"number,text\n1,a\n{word},{word}\n")
    assert table.isna().to_numpy().tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("cells", [["01234", "98101"], ["1.10", "2"], ["true", "false"], ["2020-01-31"], ["12:30"]])
def test_a_column_that_is_to_be_text_is_text_whatever_stands_in_it(tmp_path, cells):
    (tmp_path / "t.csv").write_text("other,c\n" + "".join(f"1,{cell}\n" for cell in cells))
    table = read_table(tmp_path / "t.csv", text=["c", "elsewhere"])
    assert table["c"].tolist() == cells
    assert table["other"].dtype.kind == "i"


@pytest.mark.parametrize(
    "word", ["", "NA", "NaN", "nan", "null", "NULL", "N/A", "None", "#N/A", '"NA"', '""', "-", " "]
)
def test_what_is_missing_in_a_column_that_is_to_be_text_is_missing_in_one_that_is(tmp_path, word):
    was = csv_table(tmp_path, f"n,c\n1,K1A\n2,{word}\n")["c"]
    (tmp_path / "t.csv").write_text(f"n,c\n1,123\n2,{word}\n")
    now = read_table(tmp_path / "t.csv", text=["c"])["c"]
    assert now[0] == "123"
    assert was.isna()[1] == now.isna()[1]
    assert was.isna()[1] or was[1] == now[1]


def copies(source: Source, ids: list[str]) -> pd.DataFrame:
    """What stands before the predictions of a file."""

    def predict(block: FileBlock) -> Any:
        return [np.zeros(len(block)), np.ones(len(block))]

    parts = PartFiles(source, ids[:1], predict, PredictionColumns(None), ids, "a model", 4)
    return pd.concat(parts.frames(0), ignore_index=True)[ids]


KEYS = ["00123", "1001", "", "9007199254740993", "NA", "1.10", "TRUE", "12:30", "a, b", " 7 "]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_columns_to_be_copied_are_the_text_of_their_cells(tmp_path, ending):
    table = pd.DataFrame({"x": range(len(KEYS)), "key": KEYS, "number": "1.10"})
    write_tables([table], tmp_path / f"t{ending}")
    loaded = Source.open(load(tmp_path / f"t{ending}"))
    copied = copies(loaded, ["number", "key"])
    assert list(copied.columns) == ["number", "key"]
    assert copied["key"].fillna("").tolist() == KEYS
    assert copied["key"].isna().tolist() == [key == "" for key in KEYS]
    assert frame_of(loaded)["number"].tolist() == [1.1] * len(KEYS)  # and read, it is what it is


def test_columns_of_parquet_are_copied_as_what_they_are(tmp_path):
    table = pa.table(
        {
            "order": pa.array([9007199254740993, None, 1001]),
            "part": pa.array([1, None, 3], pa.uint8()),
            "cents": pa.array([Decimal("1.10"), None, Decimal("2.00")]),
            "day": pa.array([date(2020, 1, 1), None, date(2020, 1, 2)]),
            "at": pa.array([time(12, 30), None, time(1, 2)]),
            "flag": pa.array([True, None, False]),
            "name": pa.array(["01", None, "NA"]),
            "shop": pa.array(["a", None, "b"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    copied = copies(Source.open(load(tmp_path / "t.parquet")), table.schema.names)
    write_tables([copied], tmp_path / "copy.parquet")
    back = parquet.read_table(tmp_path / "copy.parquet")
    assert back.to_pydict() == table.to_pydict()
    assert back.schema.field("order").type == pa.int64()
    assert back.schema.field("part").type == pa.uint8()
    write_tables([copied], tmp_path / "copy.csv")
    assert (tmp_path / "copy.csv").read_text().splitlines()[1:] == [
        "9007199254740993,1,1.10,2020-01-01,12:30:00,True,01,a",
        ",,,,,,,",
        "1001,3,2.00,2020-01-02,01:02:00,False,NA,b",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,x\n2,y\n",
        "a,b\r\n1,x\r\n2,y\r\n",
        "a,b\n1,x\n2,y",
        "\ufeffa,b\n1,x\n2,y\n",
        '"a","b"\n"1","x"\n"2","y"\n',
        "a,b\n\n1,x\n\n2,y\n\n",
        "\n\na,b\n1,x\n2,y\n",
    ],
)
def test_ways_to_write_the_same_csv(tmp_path, text):
    table = csv_table(tmp_path, text)
    assert table.to_dict("list") == {"a": [1, 2], "b": ["x", "y"]}


def test_a_type_that_shows_late_holds_for_the_whole_column(tmp_path):
    """pyarrow reads a file in blocks of a megabyte."""
    table = csv_table(tmp_path, "a,b\n" + "1,1\n" * 400_000 + "2.5,late\n")
    assert table["a"].iloc[-1] == 2.5
    assert table["b"].iloc[0] == "1"


def test_columns_are_chosen_by_name_in_the_order_asked_for(tmp_path, mixed):
    for name in ("t.csv", "t.parquet"):
        write_tables([mixed], tmp_path / name)
        assert list(read_table(tmp_path / name, ["x", "n"]).columns) == ["x", "n"]
        assert list(read_table(tmp_path / name, drop=["x", "n"]).columns) == ["text", "flag", "day"]


def test_parquet_types_that_csv_does_not_have(tmp_path):
    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.5"), None]),
            "time": pa.array([time(12, 30), None]),
            "date": pa.array([date(2020, 1, 1), None]),
            "stamp": pa.array([datetime(2020, 1, 1), None], pa.timestamp("us", "Europe/Paris")),
            "category": pa.array(["a", "b"]).dictionary_encode(),
            "nothing": pa.nulls(2),
            "flag": pa.array([True, None]),
            "large": pa.array(["a", None], pa.large_string()),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    back = read_table(tmp_path / "t.parquet")
    assert back["decimal"].tolist()[0] == 1.5
    assert back["decimal"].dtype == back["nothing"].dtype == np.float64
    assert back["time"][0] == "12:30:00.000000"
    assert back["date"].dtype.kind == back["stamp"].dtype.kind == "M"
    assert isinstance(back["category"].dtype, pd.CategoricalDtype)
    assert back["flag"].dtype == "boolean"
    assert back["large"].isna().tolist() == [False, True]


def test_the_index_that_pandas_hides_in_parquet_is_no_column(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    frame[frame["a"] > 1].to_parquet(tmp_path / "unnamed.parquet")
    assert list(read_table(tmp_path / "unnamed.parquet").columns) == ["a"]
    frame.rename_axis("order").to_parquet(tmp_path / "named.parquet", index=True)
    assert set(read_table(tmp_path / "named.parquet").columns) == {"a", "order"}


def test_a_nested_column_does_no_harm_where_it_is_not_read(tmp_path):
    parquet.write_table(pa.table({"a": [1], "nested": [[1, 2]]}), tmp_path / "t.parquet")
    assert list(read_table(tmp_path / "t.parquet", ["a"]).columns) == ["a"]
    assert list(read_table(tmp_path / "t.parquet", drop=["nested"]).columns) == ["a"]


def test_standard_input_and_output_are_csv():
    code = "from deepbasis.tables.output import write_tables; from deepbasis.tables.places import load; "
    code += "from deepbasis.tables.source import Source; import pandas as pd; "
    code += "block, = Source.open(load('-'), ['b', 'a']).all_blocks(['b', 'a']); "
    code += "write_tables([block.table.to_pandas()], '-')"
    done = subprocess.run(
        [sys.executable, "-c", code], input="a,b\n1,é\n", capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b,a\né,1\n", "")


# ---- what is refused -------------------------------------------------------------------------------------------------

GZIPPED = gzip.compress(b"a,b\n1,2\n")
PARQUET = io.BytesIO()
parquet.write_table(pa.table({"a": range(1000), "b": range(1000)}), PARQUET)
PARQUET = PARQUET.getvalue()


def parquet_bytes(columns: dict[str, object]) -> bytes:
    data = io.BytesIO()
    parquet.write_table(pa.table(columns), data)
    return data.getvalue()


def altered(content: bytes, start: int, stop: int) -> bytes:
    return content[:start] + bytes(255 - byte for byte in content[start:stop]) + content[stop:]


TWICE = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
SAME_NAME = io.BytesIO()
parquet.write_table(TWICE, SAME_NAME)

REFUSED = {
    "empty": ("t.csv", b"", ["is empty"]),
    "blank": ("t.csv", b" \n\n", ["is empty"]),
    "header only": ("t.csv", b"a,b\n", ["no rows"]),
    "header without an end": ("t.csv", b"a,b", ["no rows"]),
    "short row": ("t.csv", b"a,b,c\n1,2,3\n4,5\n", ["line 3", "2 fields", "header has 3"]),
    "row of one": ("t.csv", b"a,b\n1,2\n3\n", ["line 3", "1 field "]),
    "long row": ("t.csv", b"a,b\n1,2\n3,4,5\n6,7\n", ["line 3", "3 fields", "header has 2", "quotes"]),
    "long rows everywhere": ("t.csv", b"a,b\n1,2,3\n4,5,6\n", ["line 2", "3 fields"]),
    "ragged after a quoted newline": ("t.csv", b'a,b\n"x\ny",2\n3\n', ["line 4"]),
    "unclosed quote": ("t.csv", b'a,b\n1,2\n"3,4\n5,6\n', ["line 3"]),
    "long unclosed quote": ("t.csv", b'a,b\n1,2\n"3,4\n' + b"5,6\n" * 50_000, ["line 3", "quote"]),
    "unclosed quote in the header": ("t.csv", b'"a,b\n' + b"1,2\n" * 50_000, ["header", "quote"]),
    "same name twice": ("t.csv", b"a,b,a\n1,2,3\n", ["more than one column named 'a'"]),
    "no name": ("t.csv", b",a\n0,1\n", ["column 1 has no name", "index=False"]),
    "blank name": ("t.csv", b"a, \n0,1\n", ["column 2 has no name"]),
    "character cut at the end": ("t.csv", "a\né".encode()[:-1], ["byte 2 (line 2)"]),
    "UTF-16 without a mark": ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), ["byte 1 is zero"]),
    "spreadsheet": ("t.csv", b"PK\x03\x04\x14\x00\x06\x00" + bytes(range(256)), ["UTF-8"]),
    "gzip without its ending": ("t.csv", GZIPPED, ["gzipped", ".csv.gz"]),
    "Parquet named CSV": ("t.csv", PARQUET, ["Parquet", ".parquet"]),
    "ending of gzip alone": ("t.csv.gz", b"a,b\n1,2\n", ["not gzipped"]),
    "truncated gzip": ("t.csv.gz", GZIPPED[:-9], ["truncated or damaged"]),
    "altered gzip": ("t.csv.gz", altered(GZIPPED, 12, 16), ["truncated or damaged"]),
    "gzipped nothing": ("t.csv.gz", gzip.compress(b""), ["is empty"]),
    "gzipped Parquet": ("t.csv.gz", gzip.compress(PARQUET), ["Parquet"]),
    "empty Parquet": ("t.parquet", b"", ["is empty"]),
    "CSV named Parquet": ("t.parquet", b"a,b\n1,2\n", ["not a Parquet file", ".csv"]),
    "truncated Parquet": ("t.parquet", PARQUET[:-20], ["truncated"]),
    "Parquet of nothing but marks": ("t.parquet", b"PAR1PAR1", ["damaged"]),
    "altered footer": ("t.parquet", altered(PARQUET, len(PARQUET) - 60, len(PARQUET) - 20), ["damaged"]),
    "altered pages": ("t.parquet", altered(PARQUET, 4, 60), ["damaged"]),
    "Parquet without rows": ("t.parquet", parquet_bytes({"a": pa.array([], pa.int64())}), ["no rows"]),
    "Parquet with one name twice": ("t.parquet", SAME_NAME.getvalue(), ["more than one column named 'a'"]),
    "list": ("t.parquet", parquet_bytes({"a": [1], "b": [[1]]}), ["'b'", "nested", "list"]),
    "struct": ("t.parquet", parquet_bytes({"where": [{"x": 1}]}), ["'where'", "nested", "struct"]),
    "map": ("t.parquet", parquet_bytes({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))}), ["'m'", "map"]),
    "bytes": ("t.parquet", parquet_bytes({"raw": [b"\xff"]}), ["'raw'", "bytes"]),
    "unknown ending": ("t.xlsx", b"a", [".csv, .csv.gz, .tsv, .tsv.gz or .parquet"]),
    "no ending": ("table", b"a", [".csv, .csv.gz, .tsv, .tsv.gz or .parquet"]),
    "another compression": ("t.csv.bz2", b"a", [".csv, .csv.gz, .tsv, .tsv.gz or .parquet"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_read_as_it_is(tmp_path, case):
    name, content, words = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DeepBasisError) as caught:
        read_table(tmp_path / name)
    message = str(caught.value)
    assert isinstance(caught.value, InputError | FileFormatError)
    assert [word for word in [*words, name] if word not in message] == []
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv' does not exist"):
        read_table(tmp_path / "none.csv")


def test_a_folder(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path / "folder.csv")


@pytest.mark.parametrize(("code", "words"), [(errno.EACCES, "permission denied"), (errno.EIO, "cannot be read")])
def test_a_file_that_the_system_does_not_give(code, words):
    class Refusing:
        def open_input_file(self, path: str) -> Any:
            raise OSError(code, os.strerror(code), path)

    for name in ("t.csv", "t.parquet"):
        with pytest.raises(InputError, match=rf"^'{name}'.*{words}"):
            Source.open(Place(name, name, Refusing()))
        with pytest.raises(InputError, match=rf"^'{name}'.*{words}"):
            Place(name, name, Refusing()).loaded()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_column_that_is_not_there(tmp_path, mixed, name):
    write_tables([mixed], tmp_path / name)
    with pytest.raises(InputError, match=r"no column 'txt'; did you mean 'text'\?"):
        read_table(tmp_path / name, ["n", "txt"])
    with pytest.raises(InputError, match="no column 'price'; it has 'n', 'x', 'text'"):
        read_table(tmp_path / name, drop=["price"])


def test_many_columns_are_not_all_listed(tmp_path):
    csv_table(tmp_path, ",".join(f"c{k}" for k in range(100)) + "\n" + ",".join("1" * 100) + "\n")
    with pytest.raises(InputError, match="'c7' and 92 more"):
        read_table(tmp_path / "table.csv", ["zzz"])


# ---- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, mixed, monkeypatch, name):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / name).write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=rf"cannot write '.*{name}': no space left on device; make room"):
        write_tables([mixed], tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"old"


def test_a_folder_that_does_not_exist(tmp_path, mixed):
    with pytest.raises(InputError, match=r"the folder '.*no' does not exist; create it"):
        write_tables([mixed], tmp_path / "no" / "t.csv")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        write_tables([mixed], tmp_path / "file" / "t.csv")


def test_an_ending_that_cannot_be_written(tmp_path, mixed):
    with pytest.raises(InputError, match=r"\.csv, \.csv\.gz, \.tsv, \.tsv\.gz or \.parquet"):
        write_tables([mixed], tmp_path / "t.txt")
    assert os.listdir(tmp_path) == []


def test_an_output_is_looked_at_before_the_work(tmp_path):
    (tmp_path / "in.csv").touch()
    check_output(tmp_path / "new.csv", endings=[*FORMATS], inputs=[tmp_path / "in.csv", None, "-"])
    assert os.listdir(tmp_path) == ["in.csv"]
    with pytest.raises(InputError, match="must end in"):
        check_output(tmp_path / "new.txt", endings=[*FORMATS])
    with pytest.raises(InputError, match="is a folder"):
        check_output(tmp_path)
    with pytest.raises(InputError, match="it is also read"):
        check_output(tmp_path / "." / "in.csv", inputs=[tmp_path / "in.csv"])
    with pytest.raises(InputError, match="does not exist"):
        check_output(tmp_path / "no" / "new.csv")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to():
    with pytest.raises(InputError, match=r"cannot write '/proc/self/new\.csv'"):
        check_output("/proc/self/new.csv")


def test_the_same_table_gives_the_same_gzip_file(tmp_path, mixed):
    write_tables([mixed], tmp_path / "a.csv.gz")
    write_tables([mixed], tmp_path / "b.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
