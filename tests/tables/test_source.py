"""Tables in many files: the rows of each, in pieces of any size; and every fault with its file's name."""

import codecs
import gzip
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import compute as pc
from pyarrow import dataset, fs, parquet

from deepbasis.errors import FileFormatError, InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.formats.csv import Csv
from deepbasis.tables.places import find_places, is_many
from deepbasis.tables.source import Source
from support.frames import frame_of, read_table


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": rng.normal(size=n).round(3),
            "count": rng.integers(0, 9, n),
            "colour": rng.choice(["red", "a, b", 'say "hi"', "two\nlines"], n),
            "new": rng.random(n) < 0.5,
            "day": [date(2021, 1, 1 + int(k)) for k in rng.integers(0, 28, n)],
            "price": rng.normal(size=n),
        }
    )


def write(folder: Path, kind: str, lengths: tuple[int, ...] = (40, 25, 60), group: int = 10) -> list[pd.DataFrame]:
    frames = [frame(n, seed) for seed, n in enumerate(lengths)]
    for k, one in enumerate(frames):
        if kind == "parquet":
            one.to_parquet(folder / f"part-{k}.parquet", index=False, row_group_size=group)
        else:
            one.to_csv(folder / f"part-{k}.{kind}", index=False)
    return frames


def in_blocks_of(block_bytes: int) -> dict[str, Any]:
    return {**FORMATS, ".csv": Csv(block_bytes=block_bytes), ".csv.gz": Csv(gzipped=True, block_bytes=block_bytes)}


def all_rows(source: Source, rows: int = 7) -> pd.DataFrame:
    tables = []
    for unit in range(len(source.units)):
        for block in source.blocks(unit, source.names, rows):
            assert 0 < len(block) <= rows
            tables.append(block.table)
    return pa.concat_tables(tables, promote_options="permissive").to_pandas(date_as_object=False)


# ---- the same rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_the_pieces_are_the_table(tmp_path, kind):
    write(tmp_path, kind)
    source = Source.open(tmp_path, formats=in_blocks_of(300))
    expected = pd.concat([read_table(path) for path in sorted(tmp_path.iterdir())], ignore_index=True)
    found = all_rows(source)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    pd.testing.assert_frame_equal(frame_of(source), expected, check_dtype=False)
    assert source.rows == 125
    assert source.file_rows == [40, 25, 60]
    assert source.kinds == {
        "size": "numeric", "count": "numeric", "colour": "categorical", "new": "boolean", "day": "datetime",
        "price": "numeric",
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "units"), [("parquet", 13), ("csv.gz", 3)])
def test_units_are_row_groups_and_know_their_rows(tmp_path, kind, units):
    frames = write(tmp_path, kind)
    source = Source.open(tmp_path)
    assert len(source.units) == units
    for position, unit in enumerate(source.units):
        row = unit.first_row
        for block in source.blocks(position, ["price"], 4):
            assert block.first_row == row
            assert block.name == f"'{tmp_path}/part-{unit.file}.{kind}'"
            np.testing.assert_allclose(
                block.table.column("price").to_numpy(), frames[unit.file]["price"][row : row + len(block)]
            )
            row += len(block)
        assert row == unit.first_row + unit.rows


@pytest.mark.parametrize("kind", ["csv", "csv.gz"])
def test_a_column_that_is_to_be_text_is_text_in_every_file_and_block(tmp_path, kind):
    files = {"a": ["01234"] * 20 + ["NA"] * 20, "b": ["K1A", "true", "1.10"] * 7, "c": [""] * 9}
    for name, cells in files.items():
        pd.DataFrame({"zip": cells, "size": range(len(cells))}).to_csv(tmp_path / f"{name}.{kind}", index=False)
    with pytest.raises(InputError, match=r"column 'zip' is text, and numeric in"):
        Source.open(tmp_path, formats=in_blocks_of(40))
    source = Source.open(tmp_path, text=["zip", "elsewhere"], formats=in_blocks_of(40))
    assert source.kinds == {"zip": "categorical", "size": "numeric"}
    expected = ["" if cell == "NA" else cell for cells in files.values() for cell in cells]
    found = all_rows(source)
    assert found["zip"].fillna("").tolist() == expected
    assert found["zip"].isna().tolist() == [cell == "" for cell in expected]
    assert found["size"].dtype.kind == "i"


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_columns_to_be_copied_lie_beside_the_rows(tmp_path, kind):
    """Of a CSV as the text of their cells, though they may be read as numbers too; of Parquet as what they are."""
    keys = ["00123", "NA", "", "1.10", "9007199254740993"] * 8
    (tmp_path / "year=2021").mkdir()
    path = tmp_path / "year=2021" / f"t.{kind}"
    table = pd.DataFrame({"key": keys, "size": range(40)})
    if kind == "parquet":
        table.to_parquet(path, index=False, row_group_size=9)
    else:
        table.to_csv(path, index=False)
    source = Source.open(tmp_path, ["key", "size", "year"], formats=in_blocks_of(60))
    ids = ["year", "key", "size"]
    blocks = list(source.all_blocks(["size"], 4, ids))
    assert all(len(block.copied) == len(block) <= 4 for block in blocks)
    assert [size for block in blocks for size in block.table.column("size").to_pylist()] == list(range(40))
    copied = {name: [cell for block in blocks for cell in block.copied.column(name).to_pylist()] for name in ids}
    text = kind != "parquet"
    assert copied["key"] == [None if text and key == "" else key for key in keys]
    assert copied["size"] == [str(k) if text else k for k in range(40)]
    assert copied["year"] == [2021] * 40
    assert [source.type_of(0, name, copied=True) for name in ids[1:]] == [
        block.type for block in (blocks[0].copied.column(name) for name in ids[1:])
    ]
    assert all(block.copied.num_columns == 0 for block in source.all_blocks(["size"], 4))


def test_a_csv_is_cut_between_records_and_not_inside_quotes(tmp_path):
    write(tmp_path, "csv")
    source = Source.open(tmp_path, formats=in_blocks_of(50))
    assert len(source.units) > 20
    again = [source.blocks(unit, ["colour"], 100) for unit in range(len(source.units))]
    colours = [text for blocks in reversed(again) for block in blocks for text in block.table["colour"].to_pylist()]
    assert set(colours) == {"red", "a, b", 'say "hi"', "two\nlines"}


def test_a_quote_inside_a_field_does_not_keep_a_csv_from_being_cut(tmp_path):
    """5" pipe: it opens nothing, to Arrow and to us."""
    lines = ["what,size", '5" pipe,1', *(f"plain,{k}" for k in range(300)), '"a\n""b"",\n",2', *["plain,3"] * 300]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    source = Source.open(tmp_path / "t.csv", formats=in_blocks_of(300))
    assert len(source.units) > 15
    pd.testing.assert_frame_equal(frame_of(source), read_table(tmp_path / "t.csv"), check_dtype=False)


@pytest.mark.parametrize("seed", range(30))
def test_wherever_quotes_stand_a_csv_is_cut_as_arrow_reads_it(tmp_path, seed):
    """Fields of quotes, commas, line ends and letters at random: one of the two columns is quoted, the other is not."""
    rng = np.random.default_rng(seed)
    lines = ['\ufeff"name, of it",y' if seed % 2 else "name,y"]
    for _ in range(200):
        quoted = "".join(rng.choice(['""', ",", "\n", "a"], 4, p=[0.3, 0.2, 0.2, 0.3]))
        plain = "b" + "".join(rng.choice(['"', '""', "a", " "], 3))
        lines.append(f'"{quoted}"{rng.choice(["", "c", "d e"])},{plain}')
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    source = Source.open(tmp_path / "t.csv", formats=in_blocks_of(40))
    assert len(source.units) > 50
    pd.testing.assert_frame_equal(frame_of(source), read_table(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("cells", "kind", "type_"),
    [
        (["1", "2", "2.5"], "numeric", pa.float64()),
        (["", "", "7"], "numeric", pa.int64()),
        (["1", "2", "x"], "categorical", pa.string()),
        (["2021-01-01", "2021-01-02", "2021-01-03T04:05:06"], "datetime", pa.timestamp("s")),
        (["12:30", "12:31", "12:32"], "categorical", pa.string()),
        (["true", "false", "true"], "boolean", pa.bool_()),
        (["2021-01-01", "5", "6"], "categorical", pa.string()),
    ],
)
def test_the_blocks_of_a_csv_agree_on_a_type(tmp_path, cells, kind, type_):
    """As they would if the file were read at once; 6 bytes at a time is a block for each line."""
    (tmp_path / "t.csv").write_text("n,c\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)))
    source = Source.open(tmp_path / "t.csv", formats=in_blocks_of(6))
    assert len(source.units) > 1
    assert source.kinds["c"] == kind
    assert source.type_of(0, "c") == type_
    expected = read_table(tmp_path / "t.csv")
    pd.testing.assert_frame_equal(frame_of(source), expected, check_dtype=False)


def test_csv_files_agree_on_a_type_too(tmp_path):
    (tmp_path / "a.csv").write_text("c\n1\n2\n")
    (tmp_path / "b.csv").write_text("c\n1.5\n")
    (tmp_path / "c.csv").write_text("c\n\n")
    (tmp_path / "d.csv").write_text("c\n")
    source = Source.open(tmp_path)
    assert source.type_of(0, "c") == pa.float64()
    assert source.file_rows == [2, 1, 0, 0]
    np.testing.assert_array_equal(frame_of(source)["c"], [1.0, 2.0, 1.5])


@pytest.mark.parametrize("block_bytes", [4, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_empty_line_of_a_single_column_is_a_missing_value(tmp_path, block_bytes, end):
    """But not at the end of the file; and with more columns it is none: there a row has a comma at least."""
    rows = ["", "x", "", "1.5", "", "", "2", '""', "", "", ""]
    (tmp_path / "one.csv").write_bytes(codecs.BOM_UTF8 + end.join(rows).encode())
    expected = [np.nan, 1.5, np.nan, np.nan, 2.0, np.nan]
    for table in (
        read_table(tmp_path / "one.csv"),
        frame_of(Source.open(tmp_path / "one.csv", formats=in_blocks_of(block_bytes))),
    ):
        np.testing.assert_array_equal(table["x"], expected)
    (tmp_path / "two.csv").write_bytes(end.join(["x,y", "", "1,2", "", "3,4", "", ""]).encode())
    for table in (
        read_table(tmp_path / "two.csv"),
        frame_of(Source.open(tmp_path / "two.csv", formats=in_blocks_of(block_bytes))),
    ):
        assert table.to_dict("list") == {"x": [1, 3], "y": [2, 4]}


def test_empty_lines_before_the_name_of_a_single_column_are_nothing(tmp_path):
    (tmp_path / "t.csv").write_text("\n\nx\n1\n\n2\n")
    for table in (read_table(tmp_path / "t.csv"), frame_of(Source.open(tmp_path / "t.csv"))):
        np.testing.assert_array_equal(table["x"], [1.0, np.nan, 2.0])


def test_a_row_group_larger_than_a_block_is_read_in_blocks(tmp_path):
    write(tmp_path, "parquet", (60,), group=60)
    source = Source.open(tmp_path)
    assert [len(block) for block in source.blocks(0, ["size"], 25)] == [25, 25, 10]


def test_files_without_rows_have_no_units(tmp_path):
    frame(0).to_parquet(tmp_path / "a.parquet", index=False)
    frame(5).to_parquet(tmp_path / "b.parquet", index=False)
    source = Source.open(tmp_path)
    assert source.file_rows == [0, 5]
    assert [unit.file for unit in source.units] == [1]


def test_numbers_of_any_width_are_one_kind(tmp_path):
    pd.DataFrame({"c": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"c": [1.5, None]}).to_parquet(tmp_path / "b.parquet")
    parquet.write_table(pa.table({"c": pa.nulls(2)}), tmp_path / "c.parquet")
    source = Source.open(tmp_path)
    assert source.kinds == {"c": "numeric"}
    assert frame_of(source)["c"].tolist()[:3] == [1.0, 2.0, 1.5]


def test_categories_and_text_are_one_kind(tmp_path):
    pd.DataFrame({"c": pd.Categorical(["a", "b", "a"])}).to_parquet(tmp_path / "a.parquet", row_group_size=2)
    pd.DataFrame({"c": pd.Categorical(["z", None])}).to_parquet(tmp_path / "b.parquet")
    pd.DataFrame({"c": ["q", "b"]}).to_parquet(tmp_path / "c.parquet")
    source = Source.open(tmp_path)
    assert source.kinds == {"c": "categorical"}
    texts = ["a", "b", "a", "z", None, "q", "b"]
    assert [None if pd.isna(text) else text for text in frame_of(source)["c"]] == texts


# ---- where the files are ---------------------------------------------------------------------------------------------


def test_every_way_to_name_the_files_finds_them_in_the_same_order(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path, "parquet")
    frame(5).to_parquet(tmp_path / "sub" / "more.parquet", index=False)
    for name in (".hidden.parquet", "_SUCCESS", "readme.txt"):
        (tmp_path / name).write_text("not a table")
    expected = [f"{tmp_path}/part-{k}.parquet" for k in range(3)]
    assert [place.path for place in find_places(tmp_path)] == [*expected, f"{tmp_path}/sub/more.parquet"]
    assert [place.path for place in find_places(f"{tmp_path}/part-*.parquet")] == expected
    assert [place.path for place in find_places(list(reversed(expected)))] == expected
    assert [place.path for place in find_places(dataset.dataset(expected))] == expected
    assert [place.relative for place in find_places(f"{tmp_path}/**/*.parquet")][-1] == "sub/more.parquet"


def test_what_names_many_files():
    assert is_many(".")
    assert is_many("a/*.csv")
    assert is_many("a[0-9].csv")
    assert not is_many("a.csv")
    assert not is_many("-")
    assert not is_many("a[31m.csv")


def test_folders_named_after_values_give_columns(tmp_path):
    for year, town in ((2020, "Rome"), (2021, "Pisa")):
        folder = tmp_path / f"year={year}" / f"town={town}"
        folder.mkdir(parents=True)
        frame(3, year)[["price"]].to_parquet(folder / "part.parquet", index=False)
    expected = {"price": "numeric", "year": "numeric", "town": "categorical"}
    for data in (tmp_path, dataset.dataset(tmp_path, partitioning="hive")):
        source = Source.open(data)
        assert source.kinds == expected
        table = frame_of(source)
        assert table["year"].tolist() == [2020] * 3 + [2021] * 3
        assert table["town"].tolist() == ["Rome"] * 3 + ["Pisa"] * 3


@pytest.mark.parametrize("name", ["--5", "5-", "-", "", "1_000", "\u00b2"])
def test_a_folder_named_after_what_is_nearly_a_number_gives_text(tmp_path, name):
    for value in ("-7", name):
        (tmp_path / f"k={value}").mkdir()
        frame(2)[["price"]].to_parquet(tmp_path / f"k={value}" / "part.parquet", index=False)
    assert {place.constants["k"] for place in find_places(tmp_path)} == {"-7", name}


def test_another_filesystem_of_arrow(tmp_path):
    write(tmp_path, "parquet")
    elsewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    source = Source.open(dataset.dataset("/", filesystem=elsewhere))
    assert source.rows == 125
    assert source.files[0].place.filesystem is not None
    pd.testing.assert_frame_equal(all_rows(source), all_rows(Source.open(tmp_path)))


def test_the_fingerprint_tells_tables_apart(tmp_path):
    write(tmp_path, "parquet")
    one = Source.open(tmp_path).fingerprint()
    assert Source.open(f"{tmp_path}/*.parquet").fingerprint() == one
    assert Source.open(f"{tmp_path}/part-[01].parquet").fingerprint() != one
    assert Source.open(tmp_path, drop=["new"]).fingerprint() != one


# ---- faults ----------------------------------------------------------------------------------------------------------


def cut_short(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def test_a_truncated_file_in_the_middle_of_a_folder_is_named(tmp_path):
    write(tmp_path, "parquet")
    cut_short(tmp_path / "part-1.parquet")
    with pytest.raises(FileFormatError, match=r"^'.*part-1.parquet' is truncated: its end is missing"):
        Source.open(tmp_path)


def test_damaged_pages_are_found_when_they_are_read(tmp_path):
    write(tmp_path, "parquet", (20_000,), group=20_000)
    path = tmp_path / "part-0.parquet"
    content = bytearray(path.read_bytes())
    content[200:4000] = bytes(3800)
    path.write_bytes(content)
    source = Source.open(tmp_path)
    with pytest.raises(FileFormatError, match=r"^'.*part-0.parquet' is damaged"):
        all_rows(source, 1000)


def test_a_truncated_gzip_file_is_named(tmp_path):
    write(tmp_path, "csv.gz")
    cut_short(tmp_path / "part-2.csv.gz")
    with pytest.raises(FileFormatError, match=r"^'.*part-2.csv.gz' is truncated or damaged"):
        Source.open(tmp_path)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path):
    write(tmp_path, "parquet")
    source = Source.open(tmp_path)
    frame(40).to_parquet(tmp_path / "part-0.parquet", index=False, row_group_size=20)
    with pytest.raises(FileFormatError, match=r"part-0.parquet' has changed while it was read"):
        list(source.blocks(0, ["price"], 10))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="price"), "has no column 'price', which '.*part-0"),
        (lambda t: t.assign(more=1), "has a column 'more' that '.*part-0.* does not have"),
        (lambda t: t.assign(count="many"), "column 'count' is text, and numeric in '.*part-0"),
        (lambda t: t.assign(day=1.5), "column 'day' is numeric, and a date in '.*part-0"),
    ],
)
def test_a_file_with_another_schema_is_named_with_the_column(tmp_path, kind, change, words):
    write(tmp_path, kind)
    other = change(frame(9))
    path = tmp_path / f"part-1.{kind}"
    other.to_parquet(path, index=False) if kind == "parquet" else other.to_csv(path, index=False)
    with pytest.raises(InputError, match=rf"^'.*part-1.{kind}'.*{words}"):
        Source.open(tmp_path)
    assert Source.open(tmp_path, columns=["size"]).rows == 40 + 9 + 60


def test_columns_in_another_order_are_the_same_columns(tmp_path):
    write(tmp_path, "parquet", (5,))
    frame(5)[["price", "day", "new", "colour", "count", "size"]].to_parquet(tmp_path / "z.parquet", index=False)
    table = all_rows(Source.open(tmp_path))
    pd.testing.assert_frame_equal(table[:5], table[5:].reset_index(drop=True))


BAD_FILES = {
    "empty.parquet": (b"", "is empty"),
    "empty.csv": (b"", "is empty"),
    "blank.csv": (b"\n\n", "is empty"),
    "text.parquet": (b"a,b\n1,2\n" * 3, "is not a Parquet file"),
    "zipped.csv": (gzip.compress(b"a,b\n1,2\n"), "is gzipped"),
    "unzipped.csv.gz": (b"a,b\n1,2\n", "is not gzipped"),
    "ragged.csv": (b"a,b\n1,2\n1\n", r"line 3: 1 field where the header has 2"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_none_is_named(tmp_path, name):
    content, words = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((InputError, FileFormatError), match=rf"^'{tmp_path}/{name}'.*{words}"):
        Source.open(tmp_path)


def test_the_line_is_that_of_the_file_in_a_later_block_too(tmp_path):
    lines = ["a,b", *(f"{k},{k}" for k in range(100)), "1", *(f"{k},{k}" for k in range(100))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(FileFormatError, match=r"t.csv', line 102: 1 field where the header has 2"):
        Source.open(tmp_path, formats=in_blocks_of(64))
    beyond = [*lines[:101], "\n".join(["1,2"] * 100_000), "1,\xfc"]  # too far to be seen in the beginning
    (tmp_path / "t.csv").write_bytes("\n".join(beyond).encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"t.csv' is not UTF-8 text: byte \d+ \(line 100102\) is 0xfc"):
        Source.open(tmp_path, formats=in_blocks_of(4096))


def test_places_that_hold_no_table(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=rf"^'{tmp_path}' holds no table: no file in it, or below, ends in"):
        find_places(tmp_path)
    with pytest.raises(InputError, match=r"^no file matches '.*nothing-\*.parquet'"):
        find_places(tmp_path / "nothing-*.parquet")
    with pytest.raises(InputError, match=r"none.parquet' does not exist"):
        find_places([tmp_path / "none.parquet"])
    with pytest.raises(InputError, match=r"must be a folder, a pattern, a list of files or a pyarrow data set, got 7"):
        find_places(7)
    with pytest.raises(InputError, match=r"InMemoryDataset has no files"):
        find_places(dataset.dataset(pa.table({"a": [1]})))
    write(tmp_path, "parquet")
    some = dataset.dataset(sorted(str(path) for path in tmp_path.glob("*.parquet"))).filter(pc.field("size") > 0)
    with pytest.raises(InputError, match=r"a filtered pyarrow data set cannot be read by its files"):
        find_places(some)


def test_one_kind_of_file_at_a_time(tmp_path):
    write(tmp_path, "parquet")
    write(tmp_path, "csv")
    with pytest.raises(InputError, match=r"several kinds \('.csv', '.parquet'\): choose one by a pattern"):
        find_places(tmp_path)
    assert len(find_places(f"{tmp_path}/*.csv")) == 3


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t.parquet' has more than one column named 'a'"):
        Source.open(tmp_path)


def test_nested_columns_are_refused_unless_they_are_dropped(tmp_path):
    parquet.write_table(pa.table({"a": [1], "deep": [[1, 2]]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t.parquet': column 'deep' is nested"):
        Source.open(tmp_path)
    assert Source.open(tmp_path, drop=["deep"]).names == ["a"]
    with pytest.raises(InputError, match=r"t.parquet' has no column 'b'; did you mean|t.parquet' has no column 'b'"):
        Source.open(tmp_path, drop=["b"])
