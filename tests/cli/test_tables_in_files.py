"""The command on tables in files: folders, patterns, limits, several workers; and bad input, one line and status 2."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from deepbasis import DeepBasisRegressor, cli

SMALL = ["--epochs", "2", "--batch-size", "64", "--members", "1", "--rank", "8", "--width", "8", "--alpha", "0.1"]
SMALL += ["--seed", "0", "--method", "dbk-silu"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in arguments], prog_name="deepbasis")


def good(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "order": [f"o{seed}-{k}" for k in range(n)],
            "size": rng.normal(size=n),
            "colour": rng.choice(["red", "blue"], n),
            "shop": rng.integers(0, 20, n),
        }
    )
    return table.assign(price=table["size"] + (table["colour"] == "red") + 0.1 * rng.normal(size=n))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/: three files; new/: two; a model; and one folder for each fault."""
    here = tmp_path_factory.mktemp("shell")
    for folder, lengths in (("train", (300, 200, 400)), ("new", (70, 30))):
        (here / folder).mkdir()
        for k, n in enumerate(lengths):
            frame(n, k + 10 * (folder == "new")).to_parquet(
                here / folder / f"part-{k}.parquet", index=False, row_group_size=50
            )
    train = [here / "train", "-t", "price", "--drop", "order", "--stream", "--out", here / "model", "-q"]
    good("fit", *train, *SMALL)
    faults = {
        "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
        "renamed": lambda path: frame(9).rename(columns={"size": "Size"}).to_parquet(path, index=False),
        "text": lambda path: frame(9).assign(size="large").to_parquet(path, index=False),
        "hole": lambda path: frame(60).assign(price=np.nan).to_parquet(path, index=False),
        "infinite": lambda path: (
            frame(60).assign(size=np.where(np.arange(60) == 2, np.inf, 0.0)).to_parquet(path, index=False)
        ),
        "zero": lambda path: path.write_bytes(b""),
    }
    for name, damage in faults.items():
        (here / name).mkdir()
        for k in range(3):
            frame(60, k).to_parquet(here / name / f"part-{k}.parquet", index=False)
        damage(here / name / "part-1.parquet")
    (here / "nothing").mkdir()
    (here / "nothing" / "notes.txt").write_text("no table")
    (here / "headers").mkdir()
    frame(0).to_csv(here / "headers" / "a.csv", index=False)
    frame(30).to_csv(here / "one.csv", index=False)
    return here


def everything(folder: Path, pattern: str = "*") -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob(pattern)}


# ---- from a folder to a model to a folder ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::deepbasis.FitWarning")
def test_fit_and_predict_a_folder(here, tmp_path):
    arguments = ["-t", "price", "--drop", "order", "--out", tmp_path / "m", *SMALL]
    told = good("fit", here / "train", *arguments, "--stream", "--memory", "8GiB")
    assert told.stdout.startswith(f"{tmp_path}/m: 1 model (dbk-silu) fitted to 900 rows of 3 columns in ")
    assert (tmp_path / "m").read_bytes() == (here / "model").read_bytes()
    record = json.loads(good("fit", here / "train", *arguments, "--json").stdout)  # in memory: it is small
    assert (record["rows"], record["columns"]) == (900, 3)
    assert (tmp_path / "m").read_bytes() != (here / "model").read_bytes()
    assert good("predict", here / "model", here / "new", "--out", tmp_path / "out", "--id", "order").output == ""
    loaded = DeepBasisRegressor.load(here / "model")
    for k, n in enumerate((70, 30)):
        told_rows = pd.read_parquet(tmp_path / "out" / f"part-{k}.parquet")
        assert list(told_rows.columns) == ["order", "mean", "std", "lower_95", "upper_95"]
        table = frame(n, k + 10)
        assert told_rows["order"].tolist() == table["order"].tolist()
        np.testing.assert_allclose(told_rows["mean"], loaded.predict(table[["size", "colour", "shop"]]), rtol=1e-6)
    before = everything(tmp_path / "out", "*.parquet")
    good("predict", here / "model", f"{here}/new/*.parquet", "--out", tmp_path / "out", "--id", "order")
    assert everything(tmp_path / "out", "*.parquet") == before


def test_a_pattern_with_groups_a_weight_and_a_validation_file(here, tmp_path):
    roles = [
        "--groups",
        "shop",
        "--weight",
        "size2",
        "--drop",
        "order",
        "--validation",
        here / "new",
    ]
    for k in range(2):
        frame(200, k).assign(size2=1.5).to_parquet(tmp_path / f"t{k}.parquet", index=False)
    told = good(
        "fit", f"{tmp_path}/t*.parquet", "-t", "price", *roles, "--stream", "--json", "--out", tmp_path / "m", *SMALL
    )
    record = json.loads(told.stdout)
    assert (record["rows"], record["columns"]) == (400, 2)
    assert np.isfinite(record["validation"]["nll"])


def test_steps_and_a_checkpoint(here, tmp_path):
    words = ["--stream", "--max-steps", "10", "--checkpoint", tmp_path / "c", "--out", tmp_path / "m", "-q", *SMALL]
    good("fit", here / "train", "-t", "price", "--drop", "order", *words)
    assert (tmp_path / "c").exists()
    first = (tmp_path / "m").read_bytes()
    good("fit", here / "train", "-t", "price", "--drop", "order", *words)  # a run that has ended gives its result again
    assert (tmp_path / "m").read_bytes() == first


# ---- bad input -------------------------------------------------------------------------------------------------------

FIT = "-t price --drop order --stream --out out.safetensors"
BAD = {
    f"fit truncated {FIT}": ["'truncated/part-1.parquet' is truncated: its end is missing"],
    f"fit renamed {FIT}": ["'renamed/part-1.parquet' has", "column 'Size'", "'renamed/part-0.parquet'"],
    f"fit text {FIT}": ["'text/part-1.parquet': column 'size' is text, and numeric in 'text/part-0.parquet'"],
    f"fit hole {FIT}": ["target column 'price' of 'hole/part-1.parquet' has 60", "row 0 (counting from 0)"],
    f"fit zero {FIT}": ["'zero/part-1.parquet' is empty"],
    f"fit nothing {FIT}": ["'nothing' holds no table"],
    f"fit headers {FIT}": ["at least 2 rows", "'headers/a.csv' has 0"],
    "fit headers -t price --out out.safetensors": ["'headers/a.csv' has no rows"],
    f"fit none/*.parquet {FIT}": ["no file matches 'none/*.parquet'"],
    f"fit train {FIT} --memory lots": ["--memory must be a size such as '2GiB'", "lots"],
    f"fit train {FIT} --memory 1MiB": ["--memory of 1 MiB is too little", "give at least"],
    f"fit train {FIT} --max-steps 0": ["--max-steps"],
    f"fit train {FIT} --checkpoint c --members 1": ["--checkpoint needs", "--seed"],
    f"fit train {FIT} --checkpoint out.safetensors": ["--checkpoint and --out are the same file"],
    "fit train -t price --out c.2 --checkpoint c": ["--checkpoint and --out are the same file"],
    f"fit train {FIT} --checkpoint no/c": ["cannot write 'no/c'", "the folder 'no' does not exist"],
    "fit train -t cost --stream --out out.safetensors": ["'train/part-0.parquet' has no column 'cost'"],
    "fit - -t price --stream --out out.safetensors": ["standard input is read at once"],
    "fit infinite -t price --no-stream --out out.safetensors": [
        "'infinite/part-1.parquet': column 'size'",
        "row 2 (counting from 0)",
    ],
    "fit train --validation infinite -t price --no-stream --out out.safetensors": [
        "'infinite/part-1.parquet': column 'size'",
        "row 2 (counting from 0)",
    ],
    "predict model new": ["--out must be a folder if NEW is one", "'new'"],
    "predict model new --out one.csv": ["--out 'one.csv' is a file"],
    "predict model new --out no/where": ["cannot write 'no/where'"],
    "predict model new --out new": ["cannot write 'new/part-0.parquet'", "also read"],
    "predict model nothing --out out": ["'nothing' holds no table"],
    "predict model truncated --out out": ["'truncated/part-1.parquet' is truncated"],
    "predict model renamed --out out": ["'renamed/part-1.parquet' has no column 'size'; did you mean 'Size'?"],
    "predict model text --out out": ["'text/part-1.parquet': column 'size' is text, and numeric in"],
    "predict model new --out out --id number": ["'new/part-0.parquet' has no column 'number'"],
    "predict model new --out out --memory 3": ["--memory of 1 MiB is too little"],
    "predict none new --out out": ["MODEL 'none' does not exist"],
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(here, monkeypatch, line):
    monkeypatch.chdir(here)
    before = everything(here)
    result = run(*line.split())
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("deepbasis: error: ")
    assert result.stderr.count("\n") == 1
    assert [word for word in BAD[line] if word not in result.stderr] == [], result.stderr
    assert everything(here) == before


def test_a_full_disk_is_one_line_and_the_whole_parts_stay(here, tmp_path, monkeypatch):
    synced = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 4:  # the list of parts, a part, and their folder each time
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = run("predict", here / "model", here / "new", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "part-1.parquet': no space left on device; make room" in result.stderr
    assert sorted(os.listdir(tmp_path / "out")) == ["_parts.json", "part-0.parquet"]


# ---- several workers -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_workers_fit_one_model(here, tmp_path, two_workers):
    fit = ["fit", here / "train", "-t", "price", "--drop", "order", "--stream", "--out", tmp_path / "m", *SMALL]
    done = two_workers("-m", "deepbasis", *fit, "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)  # one worker speaks
    assert record["rows"] == 900
    alone, together = DeepBasisRegressor.load(here / "model"), DeepBasisRegressor.load(tmp_path / "m")
    assert together.fitted_.preprocessor == alone.fitted_.preprocessor
    assert together.fitted_.target.scale == pytest.approx(alone.fitted_.target.scale, rel=1e-12)
    assert together.validation_["nll"] == pytest.approx(alone.validation_["nll"], abs=1.0)
