"""The command with a target of classes: it sees what it is, and predicts a column for each."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisClassifier
from support.choosing import Workers
from support.classifiers import three, two
from support.command import SMALL, good, run


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    X, y = three()
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(food=y, hot=X[:, 0] > 0, number=two()[1], row=range(len(y)))
    table.to_csv(tmp_path / "train.csv", index=False)
    table.to_parquet(tmp_path / "train.parquet")
    table.drop(columns="food").to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FIT = ["--drop", "row", "--drop", "hot", "--drop", "number", *SMALL]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_fit_predict_evaluate(tables: Path, ending: str) -> None:
    told = good("fit", f"train.{ending}", "-t", "food", "--out", "model", *FIT)
    assert "target 'food' has 3 classes: egg, ham, oat" in told.stderr
    assert told.stdout.splitlines()[1].startswith("validation: log loss ")
    good("predict", "model", "new.csv", "--id", "row", "--out", "out.csv")
    predicted, table = pd.read_csv("out.csv"), pd.read_csv("train.csv")
    assert list(predicted.columns) == ["row", "p_egg", "p_ham", "p_oat"]
    loaded = DeepBasisClassifier.load("model")
    np.testing.assert_allclose(predicted.iloc[:, 1:], loaded.predict_proba(table[["a", "b", "c"]]), rtol=1e-9)
    scores = json.loads(good("evaluate", "model", "train.csv", "-t", "food", "--json").stdout)
    expected = loaded.evaluate(table[["a", "b", "c"]], table["food"])
    assert scores == pytest.approx({"rows": 150, **expected}, rel=1e-9)
    words = good("evaluate", "model", f"train.{ending}", "-t", "food").stdout
    assert "log loss" in words
    assert "AUC" in words


def test_truth_values_and_numbers_that_are_classes(tables: Path) -> None:
    drop = ["--drop", "row", "--drop", "food", *SMALL]
    told = good("fit", "train.csv", "-t", "hot", "--out", "model", "--drop", "number", *drop)
    assert "2 classes: False, True" in told.stderr
    good("predict", "model", "new.csv", "--out", "out.parquet")
    assert list(pd.read_parquet("out.parquet")) == ["p_False", "p_True"]
    good("fit", "train.csv", "-t", "number", "--out", "model", "--drop", "hot", "--target-transform", "classes", *drop)
    assert DeepBasisClassifier.load("model").classes_.tolist() == [0, 1]
    assert 0.0 < json.loads(good("evaluate", "model", "train.csv", "-t", "number", "--json").stdout)["auc"] <= 1.0
    good("fit", "train.csv", "-t", "number", "--out", "model", "--drop", "hot", *drop)  # by itself it is a number
    assert list(pd.read_csv(_predicted("new.csv")))[:2] == ["mean", "std"]


def _predicted(new: str) -> str:
    good("predict", "model", new, "--out", "out.csv")
    return "out.csv"


def test_a_stream_is_fitted_too(tables: Path) -> None:
    good("fit", "train.parquet", "-t", "food", "--out", "streamed", "--stream", "--validation", "train.csv", *FIT)
    assert DeepBasisClassifier.load("streamed").classes_.tolist() == ["egg", "ham", "oat"]


def test_bad_input(tables: Path) -> None:
    good("fit", "train.csv", "-t", "food", "--out", "model", *FIT)
    table = pd.read_csv("train.csv")
    table.assign(food="tea").to_csv("tea.csv", index=False)
    table.assign(food=table["food"].where(table.index != 3)).to_csv("hole.csv", index=False)
    cases = {
        ("predict", "model", "new.csv", "--coverage", "0.9"): "this model predicts classes",
        ("predict", "model", "new.csv", "--quantiles", "0.9"): "this model predicts classes",
        ("evaluate", "model", "tea.csv", "-t", "food"): "'tea' in row 0",
        ("evaluate", "model", "hole.csv", "-t", "food"): "in row 3",
        ("fit", "tea.csv", "-t", "food", "--out", "other", *FIT): "has one class only, 'tea'",
        ("fit", "hole.csv", "-t", "food", "--out", "other", *FIT): "in row 3",
        ("fit", "train.csv", "-t", "food", "--out", "other", "--target-transform", "log", *FIT): "must hold numbers",
        (
            "fit",
            "train.csv",
            "-t",
            "food",
            "--out",
            "other",
            "--trend",
            "linear",
            *FIT,
        ): "--trend 'linear' is for numbers",
    }
    for command, words in cases.items():
        told = run(*command)
        assert (told.exit_code, words in told.stderr) == (2, True), told.output
    assert not Path("other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_two_workers_fit_one_model(tables: Path, two_workers: Workers, stream: str) -> None:
    fit = ["fit", "train.parquet", "-t", "food", "--device", "cpu", stream, *FIT]
    done = two_workers("-m", "deepbasis", *fit, "--out", "both", "--json")
    assert done.returncode == 0, done.stderr
    good(*fit, "--out", "one")
    both, one = (DeepBasisClassifier.load(name) for name in ("both", "one"))
    assert both.classes_.tolist() == one.classes_.tolist() == ["egg", "ham", "oat"]
    assert both.validation_["log_loss"] == pytest.approx(one.validation_["log_loss"], abs=0.2)
    if stream == "--no-stream":  # then the order of the rows is the same
        X = pd.read_csv("train.csv")[["a", "b", "c"]]
        np.testing.assert_allclose(both.predict_proba(X), one.predict_proba(X), atol=1e-5)
