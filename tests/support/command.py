"""Runs the command on small tables."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import parquet
from typer.testing import CliRunner, Result

from deepbasis import cli, storage

SMALL = ["--method", "dbk-silu", "--epochs", "3", "--members", "1", "--rank", "8", "--width", "8", "--seed", "0"]


COMMAND = [sys.executable, "-m", "deepbasis"]


def run(*arguments: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), input=input, prog_name="deepbasis")


def good(*arguments: str, input: str | bytes | None = None) -> Result:
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result


def mixed_table(n: int = 90, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, text, truth values, dates; a target that depends on them."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "order": [f"o{k:03d}" for k in range(n)],
            "size": rng.normal(size=n).round(3),
            "colour": rng.choice(["red", "green", "blue"], n),
            "new": rng.random(n) < 0.5,
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            "weight": (rng.random(n) + 0.1).round(3),
            "shop": rng.integers(0, 12, n),
        }
    )
    table["price"] = (2 * table["size"] + (table["colour"] == "red") + 0.2 * rng.normal(size=n)).round(4)
    table.loc[3, "size"] = np.nan
    table.loc[5, "colour"] = None
    return table


def write_bad_files(folder: Path, train: pd.DataFrame) -> None:
    """Each is named after what is wrong with it."""
    text = (folder / "train.csv").read_bytes()
    model = (folder / "model").read_bytes()
    (folder / "folder.csv").mkdir()
    for name, content in {
        "table.xlsx": text,
        "empty.csv": b"",
        "header.csv": text.splitlines(keepends=True)[0],
        "latin.csv": text.replace(b"red", "r\xe9d".encode("latin-1"), 1),
        "zipped.csv": b"\x1f\x8b" + text,
        "unzipped.csv.gz": text,
        "text.parquet": text,
        "cut.parquet": (folder / "train.parquet").read_bytes()[:-30],
        "ragged.csv": text + b"1,2,3\n",
        "semicolons.csv": text.replace(b",", b";"),
        "twice.csv": text.replace(b"weight", b"shop", 1),
        "cut.model": model[: len(model) // 2],
        "altered.model": model[:-1] + bytes([model[-1] ^ 1]),
        "empty.model": b"",
        "newer.model": model.replace(b'\\"format\\": 1', b'\\"format\\": 9', 1),
        "price.csv": b"price\n1\n2\n3\n",
        "one.csv": b"x,price\n1,2\n",
    }.items():
        (folder / name).write_bytes(content)
    storage.save(folder / "checkpoint.model", "checkpoint", {"x": torch.ones(1)}, {})
    parquet.write_table(
        pa.table({"a": [1.0] * 20, "nested": [[1]] * 20, "price": [1.0] * 20}), folder / "nested.parquet"
    )

    def with_cells(name: str, column: str, values: dict[int, object]) -> None:
        table = train.astype({column: object})
        for row, value in values.items():
            table.loc[row, column] = value
        table.to_csv(folder / name, index=False)

    with_cells("text_target.csv", "price", {7: "unknown"})
    with_cells("nan_target.csv", "price", {7: None, 9: None})
    with_cells("inf_target.csv", "price", {4: "inf"})
    with_cells("huge_target.csv", "price", {4: 1e200})
    with_cells("inf_size.csv", "size", {8: "-inf"})
    with_cells("text_size.csv", "size", {8: "large"})
    with_cells("old_day.csv", "day", {2: "0001-01-01"})
    train.assign(size=np.nan).to_csv(folder / "nothing_size.csv", index=False)
    with_cells("no_day.csv", "day", {2: "someday"})
    with_cells("negative_weight.csv", "weight", {6: -1})
    with_cells("text_weight.csv", "weight", {6: "heavy"})
    with_cells("nan_weight.csv", "weight", {6: None})
    with_cells("nan_shop.csv", "shop", {6: None})
    train.assign(weight=0).to_csv(folder / "zero_weight.csv", index=False)
    train.drop(columns="size").to_csv(folder / "no_size.csv", index=False)
    train.rename(columns={"size": "Size"}).to_csv(folder / "renamed.csv", index=False)
    train.rename(columns={"order": "mean"}).to_csv(folder / "mean.csv", index=False)


def assert_one_line(result: Result, words: list[str]) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("deepbasis: error: ")
    assert result.stderr.count("\n") == 1
    assert [word for word in words if word not in result.stderr] == [], result.stderr
