"""Full disks, interrupts, closed pipes, libraries that are missing."""

import errno
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pandas as pd
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from deepbasis.cli.failures import Group
from deepbasis.cli.options import Debug
from support.choosing import kernel
from support.command import COMMAND, SMALL, assert_one_line, mixed_table, run
from support.runs import ctrl_c

FIT = ["fit", "train.csv", "-t", "price", "--drop", "order", *SMALL]


@pytest.mark.parametrize("name", ["model.safetensors", "out.csv"])
def test_a_full_disk(here, tmp_path, monkeypatch, name):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    out = ["--out", str(tmp_path / name)]
    command = ["predict", "model", "new.csv"] if name == "out.csv" else FIT
    assert_one_line(run(*command, *out), [name, "no space left on device"])
    assert os.listdir(tmp_path) == []


def run_failing(error: Exception, *words: str) -> Result:
    """A command that fails so, among commands as ours are."""
    app = typer.Typer(cls=Group)

    @app.command()
    def fail(debug: Debug = False) -> None:
        raise error

    @app.command()
    def other() -> None: ...

    return CliRunner().invoke(app, ["fail", *words])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), ["out of memory", "--batch-size"]),
        (torch.OutOfMemoryError("CUDA out of memory"), ["out of memory"]),
        (PermissionError(errno.EACCES, "Permission denied", "model"), ["'model': permission denied"]),
        (ModuleNotFoundError("No module named 'pandas'", name="pandas"), ["pandas", "pip install 'deepbasis[cli"]),
    ],
)
def test_what_the_system_refuses(error, words):
    assert_one_line(run_failing(error), words)


def test_a_surprise_is_one_line_too_and_status_1():
    result = run_failing(RuntimeError("what\nnow"))
    assert result.exit_code == 1
    assert result.stderr.startswith("deepbasis: error: unexpected RuntimeError: what now")
    assert result.stderr.count("\n") == 1
    result = run_failing(RuntimeError("what\nnow"), "--debug")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback")


@pytest.mark.parametrize("keep", [True, False])
def test_ctrl_c_during_a_fit_saves_the_best_so_far_unless_told_otherwise(here, tmp_path, keep):
    calls = count()
    method = kernel(f"sv-presses-{keep}", lambda: ctrl_c() or 1.0 if next(calls) == 50 else 1.0)
    out = str(tmp_path / "m")
    words = [*FIT, "--out", out, "--method", method]
    words += ["--epochs", "1000"]
    result = run(*words, *([] if keep else ["--discard-interrupted"]))
    assert result.exit_code == 130
    if not keep:
        assert result.stderr == "deepbasis: error: interrupted\n"
        assert os.listdir(tmp_path) == []
        return
    assert result.stderr == f"deepbasis: error: interrupted: the best model so far is in {out}\n"
    assert run("predict", out, "train.csv", "--out", str(tmp_path / "p.csv")).exit_code == 0


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(here, tmp_path):
    """`deepbasis predict model - < new.csv | head -1`, with more than a pipe holds."""
    new = pd.concat([mixed_table(500, seed=1)] * 20)
    new.to_csv(tmp_path / "many.csv", index=False)
    with (tmp_path / "many.csv").open("rb") as table:
        process = subprocess.Popen(
            [*COMMAND, "predict", "model", "-"], stdin=table, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"mean,std,lower_95,upper_95\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(timeout=60) == 141


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_standard_output_that_is_full(here):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "predict", "model", "new.csv"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("deepbasis: error: ")
    assert "no space left" in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_without_its_libraries_the_command_says_what_to_install(monkeypatch, capsys):
    from deepbasis.__main__ import main

    monkeypatch.delitem(sys.modules, "deepbasis.cli")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "deepbasis: error: the command needs typer: pip install 'deepbasis[cli,plots]'\n"
    )


@pytest.mark.slow
def test_an_error_right_after_a_csv_was_read_is_no_crash(tmp_path: Path) -> None:
    """Arrow's threads let go of a Python object a little later, and Python aborts a thread of C++ that it meets at its
    own end: every other run died of a signal."""
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 150)
    wrong = [*COMMAND, "fit", str(tmp_path / "t.csv"), "--target", "y", "--out", str(tmp_path / "model.safetensors")]
    done = [subprocess.run(wrong, capture_output=True, text=True, check=False) for _ in range(8)]
    assert {one.returncode for one in done} == {2}
    assert {one.stderr.count("\n") for one in done} == {1}
