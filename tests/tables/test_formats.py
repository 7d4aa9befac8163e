"""A file format from outside the package: one registration, and every way to read and write tables knows it."""

import subprocess
import sys
from pathlib import Path

import pytest

NEW_FORMAT = """
import io
import numpy as np, pandas as pd, pyarrow as pa, pytest
from pyarrow import json
from deepbasis.errors import DeepBasisError
from deepbasis import register
from deepbasis.tables.formats.base import WholeFileFormat

def from_lines(content):
    return json.read_json(io.BytesIO(content))

def to_lines(table):
    return table.to_json(orient="records", lines=True).encode()

register("format", ".jsonl", WholeFileFormat(from_lines, to_lines))
"""

USE = """
from pathlib import Path
from deepbasis.tables.output import check_output, write_tables
from deepbasis.tables.places import load
from deepbasis.tables.folders import part_paths
from deepbasis.tables.predictions import PartFiles, PredictionColumns
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source

def frame(n):
    return pd.DataFrame({"order": [f"0{k}" for k in range(n)], "size": np.arange(n) / 4, "price": np.arange(n) * 2})

Path("new").mkdir()
for k, n in enumerate((30, 20)):
    write_tables([frame(n)], f"new/part-{k}.jsonl")

source = Source.open("new")
assert source.kinds == {"order": "categorical", "size": "numeric", "price": "numeric"}
assert source.file_rows == [30, 20]
assert [len(block) for block in source.all_blocks(["size"], 12)] == [12, 12, 6, 12, 8]
table = Roles.of(source, "price").table(source)
assert table.names == ["order", "size"] and table.columns[1].values[30] == 0.0
assert table.y.tolist() == [*frame(30)["price"], *frame(20)["price"]]

def predict(block):
    size = np.asarray(block.column("size").values)
    return [size, size, size - 1, size + 1]

work = PartFiles(source, ["size"], predict, PredictionColumns(), ["order"], "a model", 7)
paths = part_paths([file.place for file in source.files], "out")
assert [str(path) for path in paths] == ["out/part-0.parquet", "out/part-1.parquet"]
assert [work.write(k, path) for k, path in enumerate(paths)] == [True, True]
assert [work.write(k, path) for k, path in enumerate(paths)] == [False, False]
told = pd.read_parquet("out/part-1.parquet")
assert told["order"].tolist() == frame(20)["order"].tolist() and told["mean"].tolist() == frame(20)["size"].tolist()

for content, words in ((b"", "is empty"), (b"{1", "is damaged"), (b'{"a": [1]}', "'a' is nested")):
    Path("bad.jsonl").write_bytes(content)
    with pytest.raises(DeepBasisError, match=f"^'bad.jsonl'.*{words}"):
        Source.open("bad.jsonl")
Path("new/more.csv").write_text("order,size,price")
with pytest.raises(DeepBasisError, match="several kinds"):
    Source.open("new")
with pytest.raises(DeepBasisError, match=r"\\.csv, \\.csv\\.gz, \\.tsv, \\.tsv\\.gz, \\.parquet or \\.jsonl"):
    check_output("out.txt", endings=[*__import__("deepbasis.registry").registry.FORMATS])
with pytest.raises(DeepBasisError, match="already"):
    register("format", ".csv", None)
"""


@pytest.mark.slow
def test_a_format_from_outside_is_read_in_every_way_and_predicted_from(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEW_FORMAT + USE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
