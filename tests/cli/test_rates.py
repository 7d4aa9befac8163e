"""The command with counts that have an exposure."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor
from support.command import SMALL, assert_one_line, good, run

FIT = ("fit", "train.csv", "-t", "claims", "--exposure", "years", "--drop", "row", "--out", "model", *SMALL)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rates")
    rng = np.random.default_rng(0)
    a, years = rng.normal(size=120), rng.uniform(0.5, 4.0, 120)
    table = pd.DataFrame({"a": a, "b": rng.normal(size=120), "years": years})
    table.assign(claims=rng.poisson(years * np.exp(0.7 * a)), row=range(120)).to_csv(folder / "train.csv", index=False)
    return folder


def test_fit_predict_evaluate(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tables)
    good(*FIT, "--likelihood", "poisson")
    table, loaded = pd.read_csv("train.csv"), DeepBasisRegressor.load("model")
    X, years = table[["a", "b"]], table["years"]
    good("predict", "model", "train.csv", "--exposure", "years", "--id", "row", "--id", "years", "--out", "out.csv")
    found = pd.read_csv("out.csv")
    assert list(found.columns) == ["row", "years", "mean", "std", "lower_95", "upper_95"]
    np.testing.assert_allclose(found["mean"], years * loaded.predict(X), rtol=1e-9)
    good("predict", "model", "train.csv", "--out", "rates.csv")
    np.testing.assert_allclose(pd.read_csv("rates.csv")["mean"], loaded.predict(X), rtol=1e-9)
    scores = json.loads(good("evaluate", "model", "train.csv", "--json").stdout)
    assert scores == pytest.approx({"rows": 120, **loaded.evaluate(X, table["claims"], exposure=years)}, rel=1e-9)
    assert good("info", "model").stdout.startswith("model predicts 'claims' (rate, counted over 'years')")


@pytest.mark.slow
def test_a_report_and_an_explanation_of_counts_without_a_known_exposure(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was fitted to an array of exposures: which column they are in has to be said."""
    monkeypatch.chdir(tables)
    table = pd.read_csv("train.csv")
    model = DeepBasisRegressor(likelihood="poisson", members=1, epochs=3, rank=4, width=8, random_state=0)
    model.fit(table[["a", "b"]], table["claims"], exposure=table["years"].to_numpy()).save("unnamed")
    commands = (["report", "unnamed", "train.csv", "--out", "r.html"], ["explain", "unnamed", "train.csv", "--json"])
    for command in (*commands, ["evaluate", "unnamed", "train.csv"]):
        assert_one_line(run(*command), ["--exposure is missing: the counts of the fit had one"])
    mae = model.evaluate(table[["a", "b"]], table["claims"], exposure=table["years"])["mae"]
    good(*commands[0], "--exposure", "years")
    assert f"{mae:.4g}" in Path("r.html").read_text(encoding="utf-8")
    good(*commands[1], "--exposure", "years", "--repeats", "1")
    table.drop(columns="claims").to_csv("new.csv", index=False)
    good("explain", "unnamed", "new.csv", "--repeats", "1")
    targetless = run("explain", "unnamed", "new.csv", "--exposure", "years")
    assert_one_line(targetless, ["--exposure is for counts to be scored, and no target is given"])


def test_bad_input(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tables)
    assert_one_line(run(*FIT), ["--exposure is for a likelihood of counts"])
    twice = run(*FIT, "--likelihood", "poisson", "--weight", "years")
    assert_one_line(twice, ["--exposure names the column 'years', which --weight names already"])
    pd.read_csv("train.csv").assign(years=0).to_csv("zero.csv", index=False)
    zero = run("fit", "zero.csv", *FIT[2:], "--likelihood", "poisson")
    assert_one_line(zero, ["exposure column 'years' of 'zero.csv' is 0 in row 0"])
