"""Text in a CSV means the same whatever the other rows hold."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from support.command import SMALL, assert_one_line, good, run

CELLS = {"zip": ["01234", "02345", "98101", "K1A", "NA"], "version": ["1.1", "1.10", "2", "beta", ""]}
CELLS["flag"] = ["true", "false", "unknown", "true", "false"]


def categories(n: int = 300) -> pd.DataFrame:
    """Text that looks like something else, in all rows but a few."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.choice(cells, n) for name, cells in CELLS.items()}).assign(size=rng.normal(size=n))
    return table.assign(y=(table["zip"] == "01234") * 3.0 + (table["version"] == "1.10") - (table["flag"] == "true"))


@pytest.fixture(scope="module")
def of_categories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("categories")
    categories().to_csv(folder / "train.csv", index=False)
    good("fit", str(folder / "train.csv"), "-t", "y", "--out", str(folder / "model"), *SMALL, "--dtype", "float64")
    return folder


def test_what_a_csv_says_of_a_row_does_not_depend_on_the_other_rows(of_categories, tmp_path):
    """A file whose zips are all digits is asked of a model that knows K1A too."""
    model, table = str(of_categories / "model"), categories()
    whole = pd.read_csv(io.StringIO(good("predict", model, str(of_categories / "train.csv")).stdout))
    (tmp_path / "parts").mkdir()
    for cells in [("01234", "1.10", "true"), ("98101", "2", "false"), ("NA", "", "unknown")]:
        alike = (table[list(CELLS)] == list(cells)).all(axis=1)
        rows = table.assign(k=range(len(table)))[alike]
        assert len(rows)
        path = tmp_path / "parts" / f"{cells[0]}.csv"
        rows.to_csv(path, index=False)
        some = [good("predict", model, str(path)).stdout, good("predict", model, "-", input=path.read_bytes()).stdout]
        for told in some:
            np.testing.assert_allclose(pd.read_csv(io.StringIO(told)), whole.iloc[rows["k"]], rtol=1e-9)
        scores = json.loads(good("evaluate", model, str(path), "-t", "y", "--json").stdout)
        assert scores["mae"] == pytest.approx((whole["mean"].iloc[rows["k"]] - rows["y"]).abs().mean(), rel=1e-9)
    good("predict", model, str(tmp_path / "parts"), "--id", "k", "--out", str(tmp_path / "out"))
    told = pd.read_parquet(tmp_path / "out")
    np.testing.assert_allclose(told["mean"], whole["mean"].iloc[told["k"].astype(int)], rtol=1e-9)


def test_a_validation_file_is_read_as_the_training_table_was(of_categories, tmp_path):
    table = categories()
    digits = table[(table["zip"] == "01234") & (table["flag"] != "unknown") & (table["version"] == "1.10")]
    digits.to_csv(tmp_path / "csv.csv", index=False)
    digits.assign(zip="01234").to_parquet(tmp_path / "parquet.parquet", index=False)
    for kind in ("csv", "parquet"):
        words = ["--validation", str(tmp_path / f"{kind}.{kind}"), "--out", str(tmp_path / kind), *SMALL]
        good("fit", str(of_categories / "train.csv"), "-t", "y", *words)
    assert (tmp_path / "csv").read_bytes() == (tmp_path / "parquet").read_bytes()


def test_ids_of_a_csv_are_copied_as_they_stand(of_categories, tmp_path):
    model, out = str(of_categories / "model"), tmp_path / "out.csv"
    keys = ["00123", "1001", "", "9007199254740993", "NA", "1.10", "TRUE", '"a, b"']
    lines = [f"{key},{k}.50,01234,2,true" for k, key in enumerate(keys)]
    (tmp_path / "new.csv").write_text("\n".join(["key,size,zip,version,flag", *lines, ""]))
    good("predict", model, str(tmp_path / "new.csv"), "--id", "key", "--id", "size", "--out", str(out))
    told = [line.rsplit(",", 4) for line in out.read_text().splitlines()]
    assert [line[0] for line in told] == ["key,size", *(f"{key},{k}.50" for k, key in enumerate(keys))]
    assert len({line[1] for line in told[1:]}) == len(keys)  # size is an id and an input
    good("predict", model, str(tmp_path / "new.csv"), "--id", "key", "--out", str(tmp_path / "out.parquet"))
    kept = parquet.read_table(tmp_path / "out.parquet").column("key").to_pylist()
    assert kept == [None if key == "" else key.strip('"') for key in keys]


def test_a_copied_formula_is_quoted_where_that_is_asked_for(tmp_path):
    table = pd.DataFrame({"key": ["=1+1", "@x", "plain", "-3"] * 10, "size": np.arange(40.0), "price": np.arange(40.0)})
    table.to_csv(tmp_path / "t.csv", index=False)
    model = str(tmp_path / "m.safetensors")
    good("fit", str(tmp_path / "t.csv"), "-t", "price", "--drop", "key", "--out", model, *SMALL)
    words = ["predict", model, str(tmp_path / "t.csv"), "--id", "key"]
    for out in ("out.csv", "out.csv.gz"):
        good(*words, "--out", str(tmp_path / out))
        assert pd.read_csv(tmp_path / out)["key"].tolist() == table["key"].tolist()
        good(*words, "--out", str(tmp_path / out), "--safe-csv")
        assert pd.read_csv(tmp_path / out)["key"].tolist() == ["'=1+1", "'@x", "plain", "'-3"] * 10
    assert "\n'=1+1," in good(*words, "--safe-csv").stdout
    result = run(*words, "--out", str(tmp_path / "out.parquet"), "--safe-csv")
    assert_one_line(result, ["--safe-csv is for predictions that are written as CSV"])
