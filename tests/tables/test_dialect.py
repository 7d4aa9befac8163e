"""How a file is written is found in its beginning: separators, decimal commas, encodings; given ones overrule that."""

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepbasis.errors import FileFormatError, InputError
from deepbasis.tables.dialect import Dialect, TablePath
from deepbasis.tables.output import write_tables
from deepbasis.tables.source import Source


def found(text: str, encoding: str = "utf-8", **given: str) -> Dialect:
    return Dialect(**given).found(text.encode(encoding))


@pytest.mark.parametrize(
    ("text", "separator", "decimal"),
    [
        ("a,b\n1,2\n", ",", "."),
        ("a;b\n1;2\n", ";", "."),
        ("a\tb\n1\t2\n", "\t", "."),
        ("a|b\n1|2\n", "|", "."),
        ("a\n1\n2\n", ",", "."),
        ("a\n1;5\n2;5\n", ",", "."),  # one column by its header
        ("a;b\n1,5;2\n0,25;3\n", ";", ","),
        ("a;b\n1,234;2\n2,345;3\n", ";", "."),  # thousands, perhaps: the column will tell
        ("a;b\n1,5;2.5\n0,25;3.5\n", ";", "."),
        ("a;b\n1.234,5;2\n1.500,0;3\n0,25;4\n", ";", ","),
        ('"a, b";c\n1;2\n', ";", "."),
        ('a,"b;c"\n1,2\n', ",", "."),
        ("a,b\n1,2\n3\n", ",", "."),  # a short line is the user's to correct
        ("a;b,c\n1;2,5\n", ",", "."),
        ("", ",", "."),
    ],
)
def test_separators(text: str, separator: str, decimal: str) -> None:
    assert found(text) == Dialect(separator, decimal, "utf-8")


@given(
    st.sampled_from(",;\t|"),
    st.integers(2, 5),
    st.lists(st.text("ab,;|\t\"' 1.\n", max_size=6), min_size=40, max_size=40),
)
def test_what_the_csv_module_writes_is_read_back(separator: str, width: int, cells: list[str]) -> None:
    rows = [[f"{cell}x" for cell in cells[k : k + width]] for k in range(0, 40 - width, width)]
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([[f"c{k}" for k in range(width)], *rows])
    assert found(text.getvalue()).separator == separator


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("utf-16", "utf-16"), ("cp1252", "cp1252"), ("latin-1", "cp1252")],
)
def test_encodings(tmp_path: Path, encoding: str, name: str) -> None:
    text = "größe,b\n1.5,Zürich\n2.5,São Paulo\n"
    assert found(text, encoding).encoding == name
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode(encoding)))
    for path in (tmp_path / "t.csv", tmp_path / "t.csv.gz"):
        source = Source.open(path)
        (block,) = source.all_blocks(source.names, copied=["b"])
        assert block.table.to_pydict() == {"größe": [1.5, 2.5], "b": ["Zürich", "São Paulo"]}
        assert block.copied.to_pydict() == {"b": ["Zürich", "São Paulo"]}
        assert len(source.notes) == (name == "cp1252")


def test_what_is_given_overrules(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a;b\n1,234;\xc6\n2,345;x\n".encode("cp1252"))
    source = Source.open(TablePath(str(path), Dialect(";", ",", "cp1251")))
    (block,) = source.all_blocks(["a", "b"])
    assert block.table.to_pydict() == {"a": [1.234, 2.345], "b": ["Ж", "x"]}
    assert source.notes == []
    with pytest.raises(FileFormatError, match="is not UTF-8 text"):
        Source.open(TablePath(str(path), Dialect(encoding="utf-8")))
    with pytest.raises(FileFormatError, match=r"is not ascii text .*; name its encoding"):
        Source.open(TablePath(str(path), Dialect(encoding="ascii")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"separator": ";;"}, "separator must be one character, such as ';', got ';;'"),
        ({"separator": "€"}, "separator must be one character"),
        ({"decimal": ";"}, "decimal must be '.' or ',', got ';'"),
        ({"separator": ",", "decimal": ","}, "separator and decimal are both ','"),
        ({"encoding": "klingon"}, "encoding must be one that Python knows, such as cp1252, got 'klingon'"),
    ],
)
def test_what_cannot_be_given(words: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Dialect(**words)


def test_a_large_file_in_another_encoding_is_read_in_blocks(tmp_path: Path) -> None:
    n = 300_000
    text = "k;größe\n" + "".join(f"{k};{k / 4}\n".replace(".", ",") for k in range(n))
    (tmp_path / "t.csv").write_bytes(text.encode("utf-16"))
    source = Source.open(tmp_path / "t.csv")
    assert (source.rows, source.decimal) == (n, ",")
    assert len(source.units) == 1
    blocks = list(source.all_blocks(["größe"], 65_536))
    values = np.concatenate([block.column("größe").values for block in blocks])
    np.testing.assert_array_equal(values, np.arange(n) / 4)


def test_a_tsv_is_written_and_read(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1.5, 2.5], "b": ["x\ty", "z"]})
    for name in ("t.tsv", "t.tsv.gz"):
        write_tables([table], tmp_path / name)
        source = Source.open(tmp_path / name)
        (block,) = source.all_blocks(["a", "b"])
        pd.testing.assert_frame_equal(block.table.to_pandas(), table, check_dtype=False)
    assert (tmp_path / "t.tsv").read_bytes() == b'a\tb\n1.5\t"x\ty"\n2.5\tz\n'
