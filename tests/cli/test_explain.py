"""`deepbasis explain`: a table for people, a CSV, a figure, JSON; the same numbers in each."""

import json

import numpy as np
import pandas as pd
from PIL import Image

from deepbasis import DeepBasisRegressor, explain
from support.command import SMALL, assert_one_line, good, mixed_table, run

FEW = ["--repeats", "2"]


def test_all_forms_say_the_same(here, tmp_path):
    told = good(
        "explain",
        "model",
        "new.csv",
        *FEW,
        "--top",
        "2",
        "--out",
        str(tmp_path / "i.csv"),
        "--plot",
        str(tmp_path / "i.png"),
    ).stdout
    assert "model on 30 of 30 rows" in told
    assert "CRPS rises by" in told
    known = json.loads(good("explain", "model", "new.csv", *FEW, "--top", "2", "--json").stdout)
    table = pd.read_csv(tmp_path / "i.csv")
    assert table["column"].tolist() == [one["column"] for one in known["importance"]]
    np.testing.assert_allclose(table["std"], [one["std"] for one in known["importance"]])
    assert sorted(table["column"]) == ["colour", "day", "new", "shop", "size", "weight"]
    with Image.open(tmp_path / "i.png") as picture:
        assert min(picture.size) > 300
    assert {one["column"] for one in known["effects"]} <= set(table["column"])
    model, new = DeepBasisRegressor.load("model"), mixed_table(30, seed=1)
    sample = explain.Sample.of(model.fitted_, new[list(model.feature_names_in_)], new["price"])
    by_hand = explain.importance(model.fitted_, sample, repeats=2)
    np.testing.assert_allclose(table["mean"], [one.mean for one in by_hand], rtol=1e-6)


def test_without_targets_there_is_no_score(here, tmp_path):
    mixed_table(30, seed=1).drop(columns="price").to_csv(tmp_path / "t.csv", index=False)
    told = good("explain", "model", str(tmp_path / "t.csv"), *FEW, "--rows", "10").stdout
    assert "model on 10 of 30 rows" in told
    assert "CRPS" not in told


def test_names_like_formulas_are_quoted_where_that_is_asked_for(tmp_path):
    table = pd.DataFrame({"=1+1": np.arange(40.0), "size": np.arange(40.0) % 7, "price": np.arange(40.0)})
    table.to_csv(tmp_path / "t.csv", index=False)
    model, out = str(tmp_path / "m"), tmp_path / "i.csv"
    good("fit", str(tmp_path / "t.csv"), "-t", "price", "--out", model, *SMALL)
    words = ["explain", model, str(tmp_path / "t.csv"), *FEW, "--out", str(out)]
    good(*words)
    plain = pd.read_csv(out)
    good(*words, "--safe-csv")
    assert sorted(plain["column"]) == ["=1+1", "size"]
    quoted = plain.assign(column=plain["column"].replace("=1+1", "'=1+1"))
    pd.testing.assert_frame_equal(pd.read_csv(out), quoted)
    assert_one_line(run(*words[:-2], "--safe-csv"), ["--safe-csv is for importances that are written as CSV"])


def test_bad_input_is_one_line(here):
    assert_one_line(run("explain", "model", "n*.csv"), ["TABLE 'n*.csv' is a folder or a pattern", "takes one file"])
    assert_one_line(run("explain", "model", "new.csv", "--plot", "x.jpg"), ["x.jpg", ".png"])
    assert_one_line(run("explain", "model", "no_size.csv"), ["has no column 'size'"])
    assert_one_line(run("explain", "model", "new.csv", "-t", "cost"), ["has no column 'cost'"])


def test_columns_are_read_as_in_the_fit(tmp_path):
    rng = np.random.default_rng(0)
    income = rng.uniform(1_000, 9_000, 60)
    table = pd.DataFrame({"income": [f"${one:,.2f}" for one in income], "y": income / 1_000})
    table.to_csv(tmp_path / "t.csv", index=False, sep=";")
    model, separator = str(tmp_path / "m"), ["--separator", ";"]
    good("fit", str(tmp_path / "t.csv"), "-t", "y", "--out", model, *SMALL, *separator)
    known = json.loads(good("explain", model, str(tmp_path / "t.csv"), *FEW, "--json", *separator).stdout)
    (effect,) = known["effects"]
    assert effect["kind"] == "numeric"
    assert 1_000 < min(effect["values"]) < max(effect["values"]) < 9_000
    good("report", model, str(tmp_path / "t.csv"), "--out", str(tmp_path / "r.html"), *separator)


def test_classes_are_explained_too(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    table.assign(kind=np.where(table["a"] > 0, "yes it is", "not at all")).to_csv(tmp_path / "t.csv", index=False)
    model, path = str(tmp_path / "m"), str(tmp_path / "t.csv")
    good("fit", path, "-t", "kind", "--out", model, *SMALL)
    told = good("explain", model, path, *FEW, "--plot", str(tmp_path / "c.png")).stdout
    for words in ("moves the probabilities by", "moves the entropy by", "log loss rises by"):
        assert words in told
    effects = json.loads(good("explain", model, path, *FEW, "--json").stdout)["effects"]
    assert {one["column"] for one in effects} == {"a", "b"}
    assert {one["of"] for one in effects} == {"yes it is"}
    assert all(
        0 <= low <= p <= high <= 1
        for e in effects
        for low, p, high in zip(e["lower"], e["mean"], e["upper"], strict=True)
    )
