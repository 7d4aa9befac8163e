"""Memory that a table really takes: long texts, many columns, what is packed in a file; and limits that are kept."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from deepbasis.errors import FileFormatError, InputError
from deepbasis.fitting.budget import GIB, Machine
from deepbasis.fitting.files import part_files, predict_file
from deepbasis.fitting.run import fit_table
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.fitting.train import Execution
from deepbasis.tables.formats.csv import Csv
from deepbasis.tables.formats.parquet import PARQUET
from deepbasis.tables.predictions import PredictionColumns, open_inputs
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from support.runs import Watch, prepared
from support.streams import DROP, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model

MIB = 2**20
TEXTS = [f"{k}".ljust(20_000, "x") for k in range(20)]


def long_texts(folder: Path, rows: int = 4_000) -> Path:
    codes = pa.array(np.arange(rows) % len(TEXTS), pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(codes, TEXTS), "y": np.arange(float(rows))})
    parquet.write_table(table, folder / "texts.parquet", store_schema=False)
    return folder / "texts.parquet"


def wide(folder: Path, columns: int, rows: int = 2_000) -> Path:
    values = np.random.default_rng(0).normal(size=(columns, rows)).astype(np.float32)
    table = pa.table({**{f"x{k}": column for k, column in enumerate(values)}, "y": values[0]})
    parquet.write_table(table, folder / "wide.parquet", use_dictionary=False, compression=None)
    return folder / "wide.parquet"


def test_a_text_that_stands_in_many_rows_is_read_once(tmp_path):
    source = Source.open(long_texts(tmp_path))
    assert source.kinds["text"] == "categorical"
    blocks = list(source.all_blocks(["text", "y"], 1_000))
    assert max(block.table.nbytes for block in blocks) < 2 * MIB  # 20 MB as they stand in the rows
    read = [block.column("text") for block in blocks]
    names = [column.categories[code] for column in read for code in column.values]
    assert names == [TEXTS[k % len(TEXTS)] for k in range(4_000)]


def test_texts_that_are_copied_are_written_out_some_at_a_time(tmp_path):
    source = Source.open(long_texts(tmp_path))
    blocks = list(source.all_blocks(["y"], 4_000, ["text"]))
    assert max(block.copied.nbytes for block in blocks) < 32 * MIB
    assert [text for block in blocks for text in block.copied.column("text").to_pylist()][:40] == TEXTS * 2
    assert source.type_of(0, "text", copied=True) == blocks[0].copied.column("text").type == pa.string()


def test_a_text_counts_by_its_length(tmp_path):
    unlike = [f"{k}".ljust(5_000, "y") for k in range(300)]
    pd.DataFrame({"text": unlike, "y": range(300)}).to_parquet(tmp_path / "t.parquet", index=False)
    pd.DataFrame({"text": unlike, "y": range(300)}).to_csv(tmp_path / "t.csv", index=False)
    for name in ("t.parquet", "t.csv"):
        assert 5_000 < Source.open(tmp_path / name).row_bytes < 6_000


def test_many_columns_do_not_each_have_a_large_buffer(tmp_path):
    source = Source.open(wide(tmp_path, 600))
    before = pa.total_allocated_bytes()
    blocks = source.blocks(0, source.names, 64)
    next(blocks)
    assert pa.total_allocated_bytes() - before < 150 * MIB  # of each column a mebibyte would be 600
    assert source.open_bytes < 150 * MIB


def test_a_table_that_has_no_room_to_train_is_refused_before_it_is_read(tmp_path):
    class Unread:
        def survey(self, place: Any, selection: Any) -> Any:
            found = PARQUET.survey(place, selection)
            return type(found)(**{**vars(found), "read": self.read})

        def read(self, request: Any) -> Any:
            raise AssertionError("a row was read")

    path, large = wide(tmp_path, 100, 200), small(rank=1024, width=1024, batch_size=1024)
    source = Source.open(path, formats={".parquet": Unread()})  # type: ignore[dict-item]
    limit = Machine.now().taken + 120 * MIB  # enough to read it
    with pytest.raises(InputError, match=r"memory of .* is too little: .* give at least"):
        StreamData.of(Spec.of(large), source, Roles.of(source, "y"), None, limit)


def test_the_sample_holds_no_texts_of_rows_that_are_not_in_it(tmp_path):
    from deepbasis.tables.columns import categorical_column
    from deepbasis.tables.survey import TableStatistics

    statistics = TableStatistics.empty(["key"], 1, most=50)
    rng = np.random.default_rng(0)
    for start in range(0, 5_000, 100):
        keys = categorical_column("column 'key'", np.arange(100), [f"k{start + k}" for k in range(100)])
        hashes = rng.integers(0, 2**63, 100).astype(np.uint64)
        statistics.add(0, hashes, [keys], np.zeros(100), None)
    assert len(statistics.sample[0].values) == 50
    assert len(statistics.sample[0].categories) <= 50


def test_long_texts_that_all_differ_are_refused_early(tmp_path):
    texts = [f"{k}".ljust(20_000, "z") for k in range(2_500)]
    pd.DataFrame({"note": texts, "x": range(2_500), "y": range(2_500)}).to_parquet(tmp_path / "t.parquet", index=False)
    with pytest.raises(InputError, match=r"t.parquet': column 'note' holds texts of 20,000 characters.*drop it"):
        small().fit_dataset(tmp_path / "t.parquet", "y", stream=True, memory="64GiB")


def test_a_quote_that_is_never_closed_does_not_take_all_of_the_file(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n1,"2\n' + "3,4\n" * 5_000)
    formats = {".csv": Csv(block_bytes=1_000, longest_record=8_000)}
    with pytest.raises(FileFormatError, match=r"t.csv', line 2: a record of more than 8,000 bytes; is there a quote"):
        Source.open(tmp_path / "t.csv", formats=formats)


def test_standard_input_is_read_in_blocks_too(tmp_path):
    from deepbasis.tables.places import load

    (tmp_path / "t.csv").write_text("a,b\n" + "1,x\n" * 500 + "2.5,3\n" * 500)
    source = Source.open(load(tmp_path / "t.csv"), formats={".csv": Csv(block_bytes=1_000)})
    assert len(source.units) > 3
    assert source.kinds == {"a": "numeric", "b": "categorical"}
    assert sum(len(block) for block in source.all_blocks(["a", "b"])) == 1_000


def test_never_streamed_and_too_large_is_refused(folder):
    limit = Machine.now().taken + 100_000
    with pytest.raises(InputError, match=r"takes about .* in memory, more than the limit of .* leaves"):
        small().fit_dataset(folder, "price", drop=DROP, stream=False, memory=limit)


@pytest.mark.parametrize("stream", [None, True, False])
def test_a_limit_that_leaves_nothing_is_refused_before_the_table_is_opened(tmp_path, folder, stream):
    """A .csv.gz of a few megabytes may take a minute to look at. Here there is none to open."""
    table = pd.read_parquet(folder / "part-0.parquet")
    model, none = small(epochs=1).fit(table[["size"]], table["price"]), tmp_path / "none.csv"
    for use in (
        lambda: small().fit_dataset(none, "price", stream=stream, memory="1MiB"),
        lambda: model.predict_dataset(none, tmp_path / "out", memory="1MiB"),
        lambda: predict_file(model.fitted_, none, "-", PredictionColumns(), memory="1MiB"),
    ):
        with pytest.raises(InputError, match=r"memory of 1 MiB is too little: .* are taken before a row is read"):
            use()


def test_members_of_a_table_in_memory_train_in_the_room_that_there_is():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    model = small(members=3, validation_fraction=0.2, epochs=2)
    given = prepared(model, X, X[:, 0])
    together, apart = Watch(), Watch()
    for watch, room in ((together, None), (apart, 1)):
        fit_table(*given, Execution(progress=watch, member_room=room))
    assert [report.active for report in together.reports] == [3, 3]
    assert [report.active for report in apart.reports] == [1] * 6


def test_a_single_table_is_predicted_to_csv_a_block_at_a_time(folder, tmp_path):
    table = pd.read_parquet(folder / "part-0.parquet")
    model = small(epochs=1).fit(table[["size", "width", "colour"]], table["price"])
    out = tmp_path / "out.csv"
    for ending in (".csv", ".csv.gz", ".parquet"):
        path = tmp_path / f"t{ending}"
        table.to_parquet(path, index=False) if ending == ".parquet" else table.to_csv(path, index=False)
        predict_file(model.fitted_, path, str(out), PredictionColumns(), ids=["shop"], memory="64GiB")
        told = pd.read_csv(out)
        assert told["shop"].tolist() == table["shop"].tolist()
        np.testing.assert_allclose(told["mean"], model.predict(table[["size", "width", "colour"]]), rtol=1e-9)
    source = open_inputs(folder / "part-0.parquet", model.fitted_.preprocessor)
    limit = Machine.now().taken + 40 * MIB
    parts = part_files(model.fitted_, source, PredictionColumns(), memory=limit)
    assert parts.block_rows < part_files(model.fitted_, source, PredictionColumns(), memory=64 * GIB).block_rows
    assert sum(len(frame) for frame in parts.frames(0)) == len(table)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["texts", "long-csv"])
def test_limits_are_kept(name, tmp_path):
    """The measurement itself, of a tenth of a table."""
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    words = [sys.executable, str(script), name, "--share", "0.1", "--folder", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"kept": true' in done.stdout
