"""What a model's file says about itself: its target, its columns, its fit."""

import json

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor, __version__, storage
from deepbasis.fitting.fitted import KIND
from support.command import SMALL, assert_one_line, good, run
from support.regressors import small

NOTHING_BESIDE = {"lower": None, "upper": None, "exposure": None, "outputs": []}


def test_the_file_knows_its_target_and_its_columns(here):
    known = json.loads(good("info", "model", "--json").stdout)
    assert known["target"] == {"name": "price", "kind": "number", "transform": "identity", **NOTHING_BESIDE}
    kinds = {column["name"]: column["kind"] for column in known["columns"]}
    assert kinds == {
        "size": "numeric",
        "colour": "categorical",
        "new": "boolean",
        "day": "datetime",
        "weight": "numeric",
        "shop": "numeric",
    }
    assert [column["name"] for column in known["columns"] if column["gaps"]] == ["size", "colour"]
    loaded = DeepBasisRegressor.load("model")
    assert sum(column["encoded"] for column in known["columns"]) == loaded.fitted_.preprocessor.width
    assert (known["rows"], known["method"], known["members"]) == (90, "dbk-silu", 1)
    assert known["validation"] == loaded.validation_
    assert known["plan"] == str(loaded.plan_).splitlines()
    assert known["versions"]["deepbasis"] == __version__
    assert known["bytes"] == (here / "model").stat().st_size


def test_a_person_reads_the_same(here):
    told = good("info", "model").stdout
    assert told.startswith("model predicts 'price' (number)\nfitted to 90 rows of 6 columns; ")
    for words in ("category, 3 values", "true or false", "date", "MAE", "candidate 1: dbk-silu", "torch 2"):
        assert words in told


def test_scores_need_no_name_of_the_target(here):
    named = good("evaluate", "model", "new.csv", "--target", "price", "--json").stdout
    assert good("evaluate", "model", "new.csv", "--json").stdout == named


def test_a_stream_knows_its_target_too(here, tmp_path):
    model = str(tmp_path / "m")
    good("fit", "train.csv", "-t", "price", "--drop", "order", "--out", model, "--stream", *SMALL)
    assert json.loads(good("info", model, "--json").stdout)["target"]["name"] == "price"


@pytest.mark.parametrize(("y", "name"), [(pd.Series(range(40), name="count"), "count"), (np.arange(40.0), None)])
def test_the_name_of_a_series_is_the_targets(tmp_path, y, name):
    X = np.arange(40.0)[:, None]
    small(members=1, epochs=1, target="count").fit(X, y).save(tmp_path / "m")
    known = json.loads(good("info", str(tmp_path / "m"), "--json").stdout)
    assert known["target"] == {"name": name, "kind": "count", "transform": "count", **NOTHING_BESIDE}
    assert [column["name"] for column in known["columns"]] == ["x0"]
    pd.DataFrame({"x0": X[:, 0], "count": y}).to_csv(tmp_path / "t.csv", index=False)
    assert good("info", str(tmp_path / "m")).stdout.startswith(f"{tmp_path / 'm'} predicts ")
    if name is None:
        assert_one_line(run("evaluate", str(tmp_path / "m"), str(tmp_path / "t.csv")), ["--target must be named"])
    else:
        good("evaluate", str(tmp_path / "m"), str(tmp_path / "t.csv"))


def test_names_in_a_file_command_nothing(tmp_path):
    X = pd.DataFrame({"[red]a\x1b[31m": np.arange(20.0)})
    small(members=1, epochs=1).fit(X, pd.Series(np.arange(20.0), name="y\x1b[2J")).save(tmp_path / "m")
    told = good("info", str(tmp_path / "m")).stdout
    assert "\x1b[31m" not in told
    assert "\x1b[2J" not in told
    assert r"[red]a\x1b[31m" in told


def test_words_in_a_file_command_nothing(here, tmp_path):
    """Whatever it says of itself, in text and as JSON."""
    odd = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e[red]"
    tensors, metadata = storage.load("model", KIND)
    for key in ("target_because", "recipe", "device", "scaling"):
        metadata["plan"][key] += odd
    metadata["versions"]["torch"] += odd
    metadata["validation"][odd] = 1.0
    storage.save(tmp_path / "m", KIND, tensors, metadata)
    for arguments in ([], ["--json"]):
        told = good("info", str(tmp_path / "m"), *arguments).stdout
        assert all(c.isprintable() or c == "\n" for c in told)
        assert told.count("pwned") == 6
        assert told.count("[red]") == 6
    assert json.loads(told)["versions"]["torch"].endswith(odd)


def test_what_is_no_model_is_one_line(here):
    assert_one_line(run("info", "none"), ["MODEL 'none' does not exist"])
    assert_one_line(run("info", "train.csv"), ["train.csv is not a deepbasis file"])
