"""The command: from a table to a model to predictions."""

import json
import logging
import os
import re
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor, FitWarning
from deepbasis.cli.failures import notices
from deepbasis.fitting.recipe import RECIPES
from support.command import SMALL, assert_one_line, good, mixed_table, run


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_fit_predict_evaluate(here, tmp_path, ending):
    model, out = str(tmp_path / "m.safetensors"), tmp_path / f"out.{ending}"
    told = good("fit", f"train.{ending}", "-t", "price", "--drop", "order", "--out", model, *SMALL)
    assert told.stdout.splitlines()[0].startswith(f"{model}: 1 model (dbk-silu) fitted to 90 rows of 6 columns in ")
    assert re.match(r"validation: NLL \S+, CRPS \S+, MAE \S+, \S+ % of the targets", told.stdout.splitlines()[1])
    silent = good("predict", model, f"new.{ending}", "--out", str(out), "--id", "order", "--id", "shop")
    assert silent.output == ""
    predicted = (pd.read_csv if ending == "csv" else pd.read_parquet)(out)
    assert list(predicted.columns) == ["order", "shop", "mean", "std", "lower_95", "upper_95"]
    new = mixed_table(30, seed=1)
    assert predicted["order"].tolist() == new["order"].tolist()
    loaded = DeepBasisRegressor.load(model)
    mean, std = loaded.predict(new[list(loaded.feature_names_in_)], return_std=True)
    np.testing.assert_allclose(predicted["mean"], mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predicted["std"], std, rtol=1e-9, atol=1e-9)
    lower, upper = loaded.predict_interval(new[list(loaded.feature_names_in_)])
    np.testing.assert_allclose(predicted["lower_95"], lower, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predicted["upper_95"], upper, rtol=1e-9, atol=1e-9)
    scores = json.loads(good("evaluate", model, f"new.{ending}", "-t", "price", "--json").stdout)
    expected = loaded.evaluate(new[list(loaded.feature_names_in_)], new["price"])
    assert scores == pytest.approx({"rows": 30, **expected}, rel=1e-9)
    assert sorted(os.listdir(tmp_path)) == sorted(["m.safetensors", out.name])


def test_guaranteed_intervals_of_each_group(here, tmp_path):
    model, out = str(tmp_path / "m.safetensors"), tmp_path / "out.csv"
    fit = ("fit", "train.csv", "-t", "price", "--drop", "order", "--out", model, *SMALL)
    good(*fit, "--groups", "new", "--calibrate", "conformal")
    good("predict", model, "new.csv", "--guarantee", "--groups", "new", "--coverage", "0.6", "--out", str(out))
    new, loaded = mixed_table(30, seed=1), DeepBasisRegressor.load(model)
    expected = loaded.predict_interval(new[list(loaded.feature_names_in_)], 0.6, guarantee=True, groups=new["new"])
    np.testing.assert_allclose(pd.read_csv(out)[["lower_60", "upper_60"]].to_numpy().T, expected, rtol=1e-9, atol=1e-9)
    assert_one_line(run("predict", model, "new.csv", "--groups", "new"), ["give --guarantee with it"])
    result = run("predict", "model", "new.csv", "--guarantee", "--groups", "new")
    assert_one_line(result, ["fit with --calibrate conformal or --calibrate cross-conformal"])


def test_guaranteed_intervals_of_a_small_table(here, tmp_path):
    """The fit says what is promised; the intervals in a file are those of the estimator."""
    model = str(tmp_path / "m.safetensors")
    told = good(
        "fit", "train.csv", "-t", "price", "--drop", "order", "--out", model, *SMALL, "--calibrate", "cross-conformal"
    )
    assert "those of 90 % hold about 90 % of the targets, and 72.6 % at least is promised" in told.stdout
    good("predict", model, "new.csv", "--guarantee", "--coverage", "0.8", "--out", str(tmp_path / "out.csv"))
    new, loaded = mixed_table(30, seed=1), DeepBasisRegressor.load(model)
    expected = loaded.predict_interval(new[list(loaded.feature_names_in_)], 0.8, guarantee=True)
    found = pd.read_csv(tmp_path / "out.csv")[["lower_80", "upper_80"]].to_numpy().T
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert_one_line(run("predict", model, "new.csv", "--guarantee", "--coverage", "0.995"), ["from 199 rows on"])
    assert_one_line(run("update", model, "new.csv"), ["cross-conformal"])


def test_csv_and_parquet_give_the_same_model(here, tmp_path):
    predictions = []
    for ending in ("csv", "parquet"):
        model = str(tmp_path / ending)
        good("fit", f"train.{ending}", "-t", "price", "--drop", "order", "--out", model, *SMALL)
        predictions.append(good("predict", model, "new.parquet").stdout)
    assert predictions[0] == predictions[1]


def test_every_role_of_a_column_and_a_validation_file(here, tmp_path):
    arguments = [
        "--weight",
        "weight",
        "--groups",
        "shop",
        "--drop",
        "order",
        "--drop",
        "day",
        "--validation",
        "new.csv",
    ]
    told = good("fit", "train.csv", "-t", "price", *arguments, "--out", str(tmp_path / "m"), "--json", *SMALL)
    record = json.loads(told.stdout)
    assert (record["rows"], record["columns"], record["members"]) == (90, 3, 1)
    assert {"nll", "crps", "coverage_95", "mae"} <= set(record["validation"])
    assert record["seconds"] > 0
    loaded = DeepBasisRegressor.load(tmp_path / "m")
    assert list(loaded.feature_names_in_) == ["size", "colour", "new"]
    new = mixed_table(30, seed=1)
    assert loaded.evaluate(new[["size", "colour", "new"]], new["price"])["nll"] == pytest.approx(
        record["validation"]["nll"], rel=1e-4
    )


@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf", "sv-rbf-linear"])
def test_what_auto_has_chosen_is_told(here, tmp_path, chosen):
    """Beside networks of one epoch a kernel is chosen, if there is one to try."""
    recipe = f"told-{chosen}"
    if recipe not in RECIPES:
        kernels = () if chosen == "dbk-silu" else (chosen,)
        RECIPES.register(recipe, replace(RECIPES["default"], search_steps=10, shallow_methods=kernels))
    settings = ["--recipe", recipe, "--epochs", "1", "--members", "2", "--rank", "32", "--width", "8"]
    settings += ["--seed", "0"]
    arguments = ["fit", "train.csv", "-t", "price", "--drop", "order", "--out", str(tmp_path / "m"), *settings]
    models = "2 models (dbk-silu)" if chosen == "dbk-silu" else f"1 model ({chosen})"
    assert good(*arguments).stdout.startswith(f"{tmp_path}/m: {models} fitted to 90 rows of 6 columns in ")
    record = json.loads(good(*arguments, "--json").stdout)
    assert (record["method"], record["members"]) == (chosen, int(models[0]))
    loaded = DeepBasisRegressor.load(tmp_path / "m")
    assert (loaded.method, loaded.method_) == ("auto", chosen)
    new = mixed_table(30, seed=1)
    scores = json.loads(good("evaluate", str(tmp_path / "m"), "new.csv", "-t", "price", "--json").stdout)
    assert scores["nll"] == pytest.approx(loaded.evaluate(new[list(loaded.feature_names_in_)], new["price"])["nll"])


def test_options_reach_the_estimator(here, tmp_path):
    given = {
        "method": "sv-rbf", "recipe": "paper", "objective": "ppgp", "rank": 5, "width": 6, "blocks": 1, "inner": 7,
        "embedding": "none", "trend": "linear",
        "alpha": 0.5, "beta": 0.25, "members": 2, "epochs": 2, "batch_size": 40, "learning_rate": 0.002,
        "weight_decay": 0.5, "validation_fraction": 0.3, "patience": 1, "dtype": "float64", "device": "cpu",
        "compile": False, "calibrate": True,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value).lower())]
    good("fit", "train.csv", "-t", "price", "--out", str(tmp_path / "m"), "--seed", "7", "--quiet", *words)
    parameters = DeepBasisRegressor.load(tmp_path / "m").get_params()
    assert {name: parameters[name] for name in given} == given
    assert parameters["random_state"] == 7


def test_the_same_seed_gives_the_same_file(here, tmp_path):
    for name in ("a", "b"):
        good("fit", "train.csv", "-t", "price", "--out", str(tmp_path / name), *SMALL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_quiet_is_silent_and_json_is_alone_on_stdout(here, tmp_path):
    arguments = ["fit", "train.csv", "-t", "price", "--out", str(tmp_path / "m"), *SMALL]
    assert good(*arguments, "--quiet").output == ""
    assert json.loads(good(*arguments, "--json").stdout)["rows"] == 90
    assert good(*arguments, "--json", "--quiet").output == ""


def test_coverage_and_quantiles(here):
    def columns(*options: str) -> pd.DataFrame:
        return pd.read_csv(StringIO(good("predict", "model", "new.csv", *options).stdout))

    usual = columns()
    assert list(usual.columns) == ["mean", "std", "lower_95", "upper_95"]
    half = columns("--coverage", "0.5")
    assert list(half.columns) == ["mean", "std", "lower_50", "upper_50"]
    assert (half["upper_50"] - half["lower_50"] < usual["upper_95"] - usual["lower_95"]).all()
    assert list(columns("--coverage", "0.975").columns)[2:] == ["lower_97.5", "upper_97.5"]
    assert list(columns("--coverage", "0.29").columns)[2:] == ["lower_29", "upper_29"]
    some = columns("--quantiles", "0.025, 0.5,0.975")
    assert list(some.columns) == ["mean", "std", "q_0.025", "q_0.5", "q_0.975"]
    np.testing.assert_allclose(some["q_0.025"], usual["lower_95"], rtol=1e-6)
    np.testing.assert_allclose(some["q_0.975"], usual["upper_95"], rtol=1e-6)
    both = columns("--quantiles", "0.5", "--coverage", "0.9")
    assert list(both.columns) == ["mean", "std", "lower_90", "upper_90", "q_0.5"]


def test_columns_are_found_by_name_and_the_rest_is_left_alone(here, tmp_path):
    expected = good("predict", "model", "new.csv").stdout
    new = mixed_table(30, seed=1)
    new.drop(columns=["order", "price"])[["shop", "weight", "day", "new", "colour", "size"]].assign(
        price="not a number", more=1
    ).to_csv(tmp_path / "turned.csv", index=False)
    assert good("predict", "model", str(tmp_path / "turned.csv")).stdout == expected
    assert good("predict", "model", "-", input=(tmp_path / "turned.csv").read_bytes()).stdout == expected
    assert good("predict", "model", "new.csv", "--out", "-").stdout == expected
    good("predict", "model", "-", "--out", str(tmp_path / "out.parquet"), input=Path("new.csv").read_bytes())
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "out.parquet"), pd.read_csv(StringIO(expected)), rtol=1e-9)


def test_tables_from_standard_input(here, tmp_path):
    piped, named = str(tmp_path / "piped"), str(tmp_path / "named")
    text = Path("train.csv").read_bytes()
    good("fit", "-", "-t", "price", "--out", piped, *SMALL, input=text)
    good("fit", "train.csv", "-t", "price", "--out", named, *SMALL)
    assert Path(piped).read_bytes() == Path(named).read_bytes()
    for words in (["-", "--validation", "train.csv"], ["train.csv", "--validation", "-"]):
        good("fit", *words, "-t", "price", "--out", piped, *SMALL, input=text)
        good("fit", "train.csv", "--validation", "train.csv", "-t", "price", "--out", named, *SMALL)
        assert Path(piped).read_bytes() == Path(named).read_bytes()
    scores = [good("evaluate", "model", one, "-t", "price", "--json", input=text).stdout for one in ("-", "train.csv")]
    assert scores[0] == scores[1]


def test_a_model_that_was_fitted_on_an_array_takes_columns_by_place(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = DeepBasisRegressor(method="dbk-silu", epochs=2, members=1, rank=4, width=4, random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "m")
    pd.DataFrame(X, columns=["a", "b"]).assign(id=range(60), y=X[:, 0]).to_csv(tmp_path / "t.csv", index=False)
    out = good("predict", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--id", "id", "--id", "y").stdout
    np.testing.assert_allclose([float(line.split(",")[2]) for line in out.splitlines()[1:]], model.predict(X))
    result = run("predict", str(tmp_path / "m"), str(tmp_path / "t.csv"))
    assert result.exit_code == 2
    assert "has 4 columns" in result.stderr
    assert "array of 2" in result.stderr


def test_evaluate_prints_a_table(here):
    told = good("evaluate", "model", "new.csv", "--target", "price").stdout
    for word in ("model on 30 rows of new.csv", "MAE", "NLL", "CRPS", "95 % intervals", "calibration error"):
        assert word in told


def test_a_warning_of_a_fit_is_one_line_on_stderr(here, tmp_path):
    few = ["--max-steps", "1", "--batch-size", "10"]
    arguments = ["fit", "train.csv", "-t", "price", "--out", str(tmp_path / "m"), *SMALL, *few]
    assert "deepbasis: warning: --max-steps 1 is less than one pass" in good(*arguments).stderr
    assert any("--max-steps 1 is" in line for line in json.loads(good(*arguments, "--json").stdout)["warnings"])
    assert good(*arguments, "--quiet").output == ""


def test_predict_tells_of_strange_rows_unless_it_is_to_be_quiet(here, tmp_path):
    mixed_table(30, seed=1).assign(size=1e9).to_csv(tmp_path / "odd.csv", index=False)
    words = ["predict", "model", str(tmp_path / "odd.csv"), "--out"]
    assert "warning" in good(*words, str(tmp_path / "a.csv")).output
    for quiet in ("--quiet", "-q"):
        assert good(*words, str(tmp_path / "b.csv"), quiet).output == ""
        assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize("quiet", [False, True])
def test_our_warnings_are_told_and_those_of_others_are_not(capsys, quiet):
    with notices(quiet) as lines:
        warnings.warn("look at\nthis", FitWarning, stacklevel=2)
        warnings.warn("somebody else's", UserWarning, stacklevel=2)
        logging.getLogger("deepbasis").warning("and at %s", "that")
    assert sorted(lines) == ["and at that", "look at this"]
    told = [] if quiet else [f"deepbasis: warning: {line}" for line in lines]
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.slow
def test_demo_quick(tmp_path):
    threads = torch.get_num_threads()
    told = good("demo", "--quick", "--out", str(tmp_path)).stdout
    for word in (
        "MAE",
        "NLL",
        "CRPS",
        "seconds",
        "RBF GP (sparse)",
        "DBK (exact)",
        "DBK (dPPGP)",
        "oracle",
        "demo.png",
    ):
        assert word in told
    assert os.listdir(tmp_path) == ["demo.png"]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert torch.get_num_threads() == threads


def test_scores_and_names_of_several_targets_are_in_words(here, tmp_path):
    model = str(tmp_path / "m")
    good("fit", "train.csv", "-t", "price", "-t", "weight", "--out", model, *SMALL, "--quiet")
    told = good("info", model).stdout
    assert f"{model} predicts 'price' and 'weight' (several numbers)" in told
    assert "CRPS: price" in told
    assert "targets in their 95 % intervals: weight" in told
    assert "crps_price" not in told
