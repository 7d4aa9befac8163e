"""`deepbasis update`: more rows into a model's file."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor, storage
from support.command import SMALL, assert_one_line, good, mixed_table, run


def test_the_file_is_what_the_estimator_would_have_become(here, tmp_path):
    """And the scores are those of the model as it was; CSV, Parquet, a folder and standard input are one."""
    out = str(tmp_path / "m")
    told = json.loads(good("update", "model", "new.csv", "--out", out, "--forget", "0.9", "--json").stdout)
    before = json.loads(good("evaluate", "model", "new.csv", "--json").stdout)
    assert told["before"] == pytest.approx({name: value for name, value in before.items() if name != "rows"})
    assert (told["rows"], told["rows_in_all"]) == (30, 120)
    new = pd.read_parquet("new.parquet")
    X = new.drop(columns=["order", "price"])
    expected = DeepBasisRegressor.load("model").update(X, new["price"], forget=0.9)
    found = DeepBasisRegressor.load(out)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-9)
    assert not np.allclose(found.predict(X), DeepBasisRegressor.load("model").predict(X), rtol=1e-4)
    (tmp_path / "parts").mkdir()
    for k in range(2):
        new[15 * k : 15 * k + 15].to_parquet(tmp_path / "parts" / f"{k}.parquet", index=False)
    for given, text in (("new.parquet", None), (str(tmp_path / "parts"), None), ("-", (here / "new.csv").read_text())):
        good("update", "model", given, "--out", str(tmp_path / "again"), "--forget", "0.9", "-q", input=text)
        again = DeepBasisRegressor.load(tmp_path / "again")
        np.testing.assert_allclose(again.predict(X), found.predict(X), rtol=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "m", "parts"]


def test_by_default_over_the_model_and_what_a_person_reads(here, tmp_path):
    place = tmp_path / "m"
    place.write_bytes((here / "model").read_bytes())
    told = good("update", str(place), "new.csv", "--weight", "weight").stdout
    assert told.startswith("m on 30 rows of new.csv")
    assert told.endswith(f"as it was. {place} knows 120 rows now.\n")
    assert json.loads(good("info", str(place), "--json").stdout)["rows"] == 120


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({"colour": None}, [], "colour"),
        ({}, ["--target", "nothing"], "nothing"),
        ({"income": 7.0}, ["--target", "income"], "--target is 'income', and the model predicts 'price'"),
        ({"price": "dear"}, [], "price"),
        ({"size": "large"}, [], "size"),
        ({}, ["--forget", "0"], "--forget must lie above 0"),
        ({}, ["--forget", "1.5"], "--forget must lie above 0"),
        ({}, ["--groups", "shop"], "--groups"),
        ({"size": -9.0}, ["--lower", "size"], "lower and upper are for a model"),
        ({}, ["--weight", "price", "--target", "price"], "--weight"),
        ({}, ["--out", "new.csv"], "new.csv"),
        ({}, ["--out", "nowhere/m"], "nowhere"),
        ({"rows": 0}, [], "row"),
    ],
)
def test_what_it_cannot_take_is_one_line_and_changes_nothing(here, tmp_path, change, arguments, words):
    table = mixed_table(30, seed=1)
    for column, value in change.items():
        if column == "rows":
            table = table[:0]
        elif value is None:
            table = table.drop(columns=column)
        else:
            table[column] = value
    table.to_csv(tmp_path / "wrong.csv", index=False)
    before = (here / "model").read_bytes()
    result = run("update", "model", str(tmp_path / "wrong.csv"), *arguments)
    assert_one_line(result, [words])
    assert (here / "model").read_bytes() == before
    assert not list(here.glob("*lock*"))


def test_targets_in_other_units_are_told_of(here, tmp_path):
    table = mixed_table(30, seed=1)
    table.assign(price=1e5 * table["price"]).to_csv(tmp_path / "cents.csv", index=False)
    result = good("update", "model", str(tmp_path / "cents.csv"), "--out", str(tmp_path / "m"))
    assert "deepbasis: warning: half of the new rows" in result.stderr


def test_classes_are_refused(here, tmp_path):
    good(
        "fit",
        "train.csv",
        "-t",
        "colour",
        "--drop",
        "order",
        "--drop-missing-target",
        "--out",
        str(tmp_path / "c"),
        *SMALL,
    )
    assert_one_line(run("update", str(tmp_path / "c"), "new.csv"), ["a model of classes", "fit it again"])


def test_two_updates_at_once_lose_nothing(here, tmp_path):
    place = tmp_path / "m"
    place.write_bytes((here / "model").read_bytes())
    with storage.reserved(place):
        result = run("update", str(place), "new.csv")
    assert_one_line(result, [f"in use by process {os.getpid()}"])
