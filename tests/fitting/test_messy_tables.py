"""Columns that are written as people write them: from the fit to the file and to new rows, in memory and streamed."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor, InputError, TableWarning
from support.command import SMALL, good, run
from support.regressors import small

ROWS = 200


def clean(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, ROWS), unit="D")
    table = pd.DataFrame(
        {"cost": rng.lognormal(8, 1, ROWS).round(2), "when": when, "shop": rng.choice(["a", "b"], ROWS)}
    )
    return table, np.log(table["cost"].to_numpy()) + 0.1 * rng.normal(size=ROWS)


def messy(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(cost=[f"${x:,.2f}" for x in table["cost"]], when=[f"{t:%d/%m/%Y}" for t in table["when"]])


@pytest.fixture(scope="module")
def fitted() -> DeepBasisRegressor:
    table, y = clean()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = small(epochs=20).fit(messy(table), y)
    notes = [str(one.message) for one in caught if one.category is TableWarning]
    assert [note.partition(":")[0] for note in notes] == [
        "column 'cost' is read as numbers",
        "column 'when' is read as dates",
    ]
    return model


def test_a_messy_table_is_the_clean_one(fitted: DeepBasisRegressor) -> None:
    table, y = clean()
    twin = small(epochs=20).fit(table, y)
    new, _ = clean(1)
    np.testing.assert_allclose(fitted.predict(messy(new)), twin.predict(new), rtol=1e-6)


def test_the_rule_is_in_the_file(fitted: DeepBasisRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again, new = DeepBasisRegressor.load(tmp_path / "model"), messy(clean(1)[0])
    np.testing.assert_array_equal(again.predict(new), fitted.predict(new))
    one_row = new.iloc[:1].assign(when="03/04/2021")  # its day is the first, as in training
    april = clean(1)[0].iloc[:1].assign(when=pd.Timestamp("2021-04-03"))
    np.testing.assert_array_equal(again.predict(one_row), again.predict(april))


def test_cells_that_cannot_be_read_are_missing_and_counted_once(fitted: DeepBasisRegressor) -> None:
    new = messy(clean(1)[0])
    odd = new.assign(cost=["?", "€5", "many", *new["cost"][3:]])
    with pytest.warns(TableWarning) as caught:
        told = fitted.predict(odd)
    (warning,) = caught
    assert (
        "X has cells that are not written as in training and count as missing: 2 in column 'cost' (such as '€5')"
        in str(warning.message)
    )
    gaps = new.assign(cost=[None] * 3 + list(new["cost"][3:]))
    np.testing.assert_array_equal(told, fitted.predict(gaps))


def test_columns_overrules() -> None:
    table, y = clean()
    X = messy(table).assign(code=np.arange(ROWS) % 5, bag=[[1]] * ROWS, shop=["a", "bcd"] * (ROWS // 2))
    meanings = {"cost": "number", "when": "drop", "code": "category", "shop": "text", "bag": "drop"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", TableWarning)
        model = small(columns=meanings).fit(X, y)  # everything was said
    names = model.fitted_.preprocessor.feature_names_out
    assert set(names) == {"cost", "shop", *(f"code={k}" for k in range(5))}
    assert len(model.predict(X.assign(when=1.5))) == ROWS
    with pytest.raises(
        InputError, match=r"columns\['cost'\] must be one of category, date, drop, number, text; got 'money'"
    ):
        small(columns={"cost": "money"}).fit(X, y)
    with pytest.raises(
        InputError, match="columns says what 'cots' is meant as, which is not among the columns to predict from"
    ):
        small(columns={"cots": "drop"}).fit(X, y)


@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")
@pytest.mark.parametrize("stream", [True, False])
def test_files_are_read_alike_streamed_or_not(tmp_path: Path, stream: bool) -> None:
    table, y = clean()
    orders = [f"A{k:04d}" for k in range(ROWS)]
    messy(table).assign(order=orders, y=y).to_csv(tmp_path / "t.csv", index=False)
    model = small().fit_dataset(tmp_path / "t.csv", "y", stream=stream)
    kinds = [(one.kind, one.is_left_out) for one in model.fitted_.preprocessor.encodings]
    assert kinds == [("numeric", False), ("datetime", False), ("categorical", False), ("categorical", True)]
    new = messy(clean(1)[0])
    new.to_csv(tmp_path / "new.csv", index=False)  # an order is not needed
    (part,) = model.predict_dataset(tmp_path / "new.csv", tmp_path / "out")
    told = pd.read_parquet(part)["mean"]
    np.testing.assert_allclose(told, model.predict(new.assign(order="?")), rtol=1e-5)


def test_the_command_says_what_it_took_for_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table, y = clean()
    messy(table).assign(y=y.round(3)).to_csv("t.csv", index=False, sep=";", encoding="cp1252")
    told = good("fit", "t.csv", "-t", "y", "--out", "model", "--as", "when=category", *SMALL)
    (line,) = [line for line in told.stderr.splitlines() if line.startswith("deepbasis: note: ")]
    assert line.startswith("deepbasis: note: column 'cost' is read as numbers: '$")
    assert line.endswith("; --as 'cost=category' keeps its texts as categories")
    wrong = run("fit", "t.csv", "-t", "y", "--out", "model", "--as", "cost=money", *SMALL)
    assert "--as must be a column and one of number, category, date, text, drop, such as price=number" in wrong.stderr
    new = messy(clean(1)[0])
    new.assign(cost=["x", *new["cost"][1:]]).to_csv("new.tsv", index=False, sep="\t")
    told = good("predict", "model", "new.tsv")
    assert told.stderr.count("\n") == 1
    assert (
        "'new.tsv' has cells that are not written as in training and count as missing: 1 in column 'cost'"
        in told.stderr
    )


@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")
def test_a_target_may_be_money_and_have_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table, y = clean()
    price = np.round(1000 + 100 * y, 2)
    cells = [f"${value:,.2f}" for value in price]
    messy(table).assign(price=cells, a="x", b="y").to_csv("t.csv", index=False)
    table.assign(price=price).to_csv("clean.csv", index=False)
    good("fit", "t.csv", "-t", "price", "--out", "model", "--drop", "a,b", *SMALL)
    good("fit", "clean.csv", "-t", "price", "--out", "twin", *SMALL)
    assert (
        good("evaluate", "model", "t.csv").stdout.splitlines()[2:]
        == (good("evaluate", "twin", "clean.csv").stdout.splitlines()[2:])
    )
    messy(table).assign(price=["", "n/a", *cells[2:]]).to_csv("gaps.csv", index=False)
    refused = run("fit", "gaps.csv", "-t", "price", "--out", "some", *SMALL)
    assert "target column 'price' of 'gaps.csv' has 2 values that are NaN (missing)" in refused.stderr
    good("fit", "gaps.csv", "-t", "price", "--out", "some", "--drop-missing-target", *SMALL)
    model = DeepBasisRegressor.load("some")
    assert model.rows_ == ROWS - 2
    refused = run("evaluate", "some", "gaps.csv")
    assert "in row 0 (counting from 0); leave such rows out with --drop-missing-target" in refused.stderr
    messy(table).assign(price=cells)[2:].to_csv("known.csv", index=False)
    found, known = (
        json.loads(good("evaluate", "some", *rest, "--json").stdout)
        for rest in (["gaps.csv", "--drop-missing-target"], ["known.csv"])
    )
    assert found == pytest.approx(known, rel=1e-9)
    assert found["rows"] == ROWS - 2
    assert (
        "leave such rows out with --drop-missing-target" in run("report", "some", "gaps.csv", "--out", "r.html").stderr
    )
    good("report", "some", "gaps.csv", "--drop-missing-target", "--out", "r.html")
    page = Path("r.html").read_text()
    assert f"{ROWS - 2} of {ROWS} rows of gaps.csv" in page
    assert f"{found['mae']:.4g}" in page
    streamed = run("fit", "gaps.csv", "-t", "price", "--out", "some", "--drop-missing-target", "--stream", *SMALL)
    assert "--drop-missing-target is for tables in memory, and 'gaps.csv' is streamed" in streamed.stderr


def test_predictions_as_a_frame(fitted: DeepBasisRegressor) -> None:
    new = messy(clean(1)[0]).iloc[10:20]
    told = fitted.predict_frame(new, coverage=0.9, quantiles=[0.5])
    assert list(told) == ["mean", "std", "lower_90", "upper_90", "q_0.5"]
    assert told.index.equals(new.index)
    lower, upper = fitted.predict_interval(new, 0.9)
    np.testing.assert_array_equal(told[["lower_90", "upper_90"]], np.stack([lower, upper], 1))


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_other_libraries_tables_are_read(fitted: DeepBasisRegressor, library: str) -> None:
    module = pytest.importorskip(library)
    new = messy(clean(1)[0])
    theirs = module.Table.from_pandas(new) if library == "pyarrow" else module.from_pandas(new)
    np.testing.assert_array_equal(fitted.predict(theirs), fitted.predict(new))
    assert list(fitted.predict_frame(theirs, None)) == ["mean", "std"]
