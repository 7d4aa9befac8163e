"""The command with several targets: one model, and columns for each of them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor
from support.command import SMALL, assert_one_line, good, run


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    both = X @ [[1.0, 0.5], [0.0, 2.0]] + 0.3 * rng.normal(size=(150, 1))
    table = pd.DataFrame(np.hstack([X, both]), columns=["a", "b", "u", "v"]).assign(row=range(150))
    table.to_csv(tmp_path / "train.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fit_predict_evaluate(tables: Path) -> None:
    good("fit", "train.csv", "-t", "u", "-t", "v", "--drop", "row", "--out", "model", *SMALL)
    assert good("info", "model").stdout.startswith("model predicts 'u' and 'v' (several numbers)")
    good("predict", "model", "train.csv", "--id", "row", "--novelty", "--out", "out.csv")
    predicted, table = pd.read_csv("out.csv"), pd.read_csv("train.csv")
    own = [f"{column}_{output}" for output in "uv" for column in ("mean", "std", "lower_95", "upper_95")]
    assert list(predicted.columns) == ["row", *own, "novelty"]
    loaded = DeepBasisRegressor.load("model")
    np.testing.assert_allclose(predicted[["mean_u", "mean_v"]], loaded.predict(table[["a", "b"]]), rtol=1e-9)
    scores = json.loads(good("evaluate", "model", "train.csv", "--json").stdout)
    assert scores == pytest.approx({"rows": 150, **loaded.evaluate(table[["a", "b"]], table[["v", "u"]])}, rel=1e-9)
    fitted = DeepBasisRegressor(**loaded.get_params()).fit_dataset("train.csv", ["u", "v"], drop=["row"])
    np.testing.assert_array_equal(fitted.predict(table[["a", "b"]]), loaded.predict(table[["a", "b"]]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-t", "u", "-t", "u"], "--target names the column 'u', which --target names already"),
        (["-t", "u", "-t", "w"], "w"),
        (["-t", "u", "-t", "v", "--lower", "row"], "bounds of one target"),
        (["-t", "u", "-t", "v", "--drop-missing-target"], "is for one target"),
        (["-t", "u", "-t", "v", "--target-transform", "classes"], "is for one target"),
    ],
)
def test_bad_input(tables: Path, arguments: list[str], words: str) -> None:
    assert_one_line(run("fit", "train.csv", *arguments, "--out", "model", *SMALL), [words])


def test_what_is_about_one_target_says_so(tables: Path) -> None:
    good("fit", "train.csv", "-t", "u", "-t", "v", "--drop", "row", "--out", "model", *SMALL)
    assert_one_line(run("explain", "model", "train.csv"), ["several outputs"])
    assert_one_line(run("report", "model", "train.csv", "--out", "page.html"), ["several outputs"])
    assert_one_line(run("predict", "model", "train.csv", "--guarantee"), ["conformal"])
    assert_one_line(run("evaluate", "model", "train.csv", "-t", "u"), ["names of the fit"])


def test_an_update_takes_all_targets(tables: Path) -> None:
    good("fit", "train.csv", "-t", "u", "-t", "v", "--drop", "row", "--out", "model", *SMALL)
    table = pd.read_csv("train.csv")
    expected = DeepBasisRegressor.load("model").update(table[["a", "b"]], table[["u", "v"]])
    said = json.loads(good("update", "model", "train.csv", "--json").stdout)
    assert said["rows_in_all"] == 300
    assert {"crps_u", "crps_v"} <= said["before"].keys()
    found = DeepBasisRegressor.load("model")
    np.testing.assert_allclose(found.predict(table[["a", "b"]]), expected.predict(table[["a", "b"]]), rtol=1e-9)
    assert_one_line(run("update", "model", "train.csv", "-t", "u"), ["names of the fit"])
