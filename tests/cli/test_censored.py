"""The command with a target that is censored: the file knows the columns of its bounds."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor, TableWarning
from deepbasis.explain import Sample, importance
from deepbasis.fitting.known import evaluate_file
from support.command import SMALL, good
from support.regressors import easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the rows are right-censored, one of them long before anything could happen."""
    folder = tmp_path_factory.mktemp("censored")
    X, y = easy(200, noise=0.1)
    end = np.random.default_rng(1).normal(size=200)
    end[7] = -30.0
    seen = np.minimum(y, end)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(seen=seen, up=np.where(seen < y, np.nan, seen))
    table.to_csv(folder / "t.csv", index=False)
    table.drop(columns="up").to_csv(folder / "exact.csv", index=False)
    where = [str(folder / name) for name in ("t.csv", "model")]
    how = ("--target-transform", "identity", *SMALL)
    good("fit", where[0], "-t", "seen", "--upper", "up", "--out", where[1], *how)
    good("fit", where[0], "-t", "seen", "--upper", "up", "--out", f"{where[1]}s", "--stream", *how)
    return folder


@pytest.mark.parametrize("model", ["model", "models"])
def test_bounds_are_those_of_the_fit(tables: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tables)
    known = json.loads(good("info", model, "--json").stdout)["target"]
    assert (known["lower"], known["upper"]) == (None, "up")
    assert good("info", model).stdout.startswith(f"{model} predicts 'seen' (number, at most 'up')")
    named = good("evaluate", model, "t.csv", "--upper", "up", "--json").stdout
    assert good("evaluate", model, "t.csv", "--json").stdout == named
    table, loaded = pd.read_csv("t.csv"), DeepBasisRegressor.load(model)
    expected = loaded.evaluate(table[["a", "b", "c"]], table["seen"], upper=table["up"])
    assert json.loads(named) == pytest.approx({"rows": 200, **expected}, rel=1e-6)
    with pytest.warns(TableWarning, match="has no column 'up', the upper bounds of the fit"):
        _, exact = evaluate_file(loaded.fitted_, "exact.csv")
    assert exact == pytest.approx(loaded.evaluate(table[["a", "b", "c"]], table["seen"]), rel=1e-6)


@pytest.mark.slow
def test_explanations_and_reports_know_them(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 7 was censored so early that nothing is unusual about it; the CRPS is that of exact rows."""
    monkeypatch.chdir(tables)
    good("report", "model", "t.csv", "--out", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    table, loaded = pd.read_csv("t.csv"), DeepBasisRegressor.load("model")
    X, exact = table[["a", "b", "c"]], table["up"].notna()
    scores = loaded.evaluate(X, table["seen"], upper=table["up"])
    for key in ("nll", "mae", "calibration_error", "concordance", "integrated_brier_score"):
        assert f"<td>{scores[key]:.4g}</td>" in page
    assert f"Of {(~exact).sum()} targets only bounds are known" in page
    unusual = page[page.index("<caption>Unusual rows") :]
    rows = re.findall(r"<th scope='row'>(\d+)</th>", unusual[: unusual.index("</table>")])
    assert len(rows) == 10
    assert "7" not in rows
    sample = Sample.of_file(loaded.fitted_, "t.csv")
    assert sample.y is not None
    other = replace(sample, y=np.where(exact, sample.y, sample.y - 100.0))
    assert importance(loaded.fitted_, other, repeats=1) == importance(loaded.fitted_, sample, repeats=1)
    assert "no column 'up'" in good("explain", "model", "exact.csv").stderr


def test_series_have_names(tmp_path: Path) -> None:
    X, y = easy(60)
    upper = pd.Series(np.where(np.arange(60) % 3 == 0, np.inf, y), name="most")
    small().fit(X, y, lower=y, upper=upper).save(tmp_path / "m")
    target = DeepBasisRegressor.load(tmp_path / "m").fitted_.target
    assert (target.lower, target.upper) == (None, "most")
