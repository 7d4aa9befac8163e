"""`diagnose`: what a fit says about itself."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from deepbasis import DeepBasisClassifier, DeepBasisRegressor
from deepbasis.fitting.diagnosis import Diagnosis
from support.regressors import easy, small

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning"),
]

Floats = NDArray[np.float64]


def table(rows: int = 1_000) -> tuple[pd.DataFrame, Floats]:
    rng = np.random.default_rng(0)
    X, y = easy(rows, noise=0.2)
    frame = pd.DataFrame(X, columns=["a", "b", "noise"])
    frame["kind"] = rng.choice(["p", "q"], rows)
    return frame, y + (frame["kind"] == "p")


def learner(**changes: Any) -> DeepBasisRegressor:
    return small(**{"members": 1, "epochs": 60, "learning_rate": 1e-2, "validation_fraction": 0.3, **changes})


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    X, y = table()
    return learner(epochs=150, rank=16, width=16).fit(X, 2 * np.sin(2 * X["a"]) + 0.3 * y)


def test_a_good_fit_has_nothing_to_say_but_of_the_column_that_is_noise(model: DeepBasisRegressor) -> None:
    found = model.diagnose()
    assert found.rows == 300
    assert found.coverage[2] == pytest.approx(model.validation_["coverage_95"])
    assert found.crps == pytest.approx(model.validation_["crps"])
    assert found.crps < found.crps_line < found.crps_constant
    assert sum(found.pit) == pytest.approx(1.0)
    assert max(found.pit) < 0.2
    assert all(text.startswith("the predictions hardly depend on 'noise'") for text in found.findings), found
    assert str(found).splitlines()[0].startswith("300 rows held out: intervals of 50 % hold ")


@pytest.mark.parametrize(
    ("crps", "words"),
    [
        (0.5, "50 % below that of a constant"),
        (1.1, "10 % above that of a constant"),
        (1.0, "level with that of a constant"),
        (22.3, "22 times that of a constant"),
    ],
)
def test_scores_beside_others_are_in_words(model: DeepBasisRegressor, crps: float, words: str) -> None:
    lines = list(replace(model.diagnose(), crps=crps, crps_constant=1.0, crps_line=1.0).lines())
    assert lines[2].startswith(f"CRPS: {words}, ")
    assert "-" not in lines[2]
    assert next(replace(model.diagnose(), rows=1).lines()).startswith("1 row held out")


def test_noise_is_no_better_than_a_constant() -> None:
    X, _ = table(400)
    y = np.random.default_rng(1).normal(size=400)
    told = learner(epochs=5).fit(X, y).diagnose().findings
    assert any(text.startswith("no better than a constant") for text in told)


def test_a_line_is_named_where_it_is_better() -> None:
    X, _ = easy(600)
    told = learner(epochs=1, learning_rate=1e-4).fit(X, X @ [1.0, 2.0, 3.0]).diagnose().findings
    assert any("a constant" in text or "a straight line" in text for text in told)


COLUMNS: dict[str, tuple[Any, str]] = {
    "a leak": (lambda X, y: np.exp(-y), "'more' is the target, or an increasing or decreasing function of it"),
    "a row number": (lambda X, y: np.random.default_rng(0).permutation(len(y)) + 17, "'more' looks like an identifier"),
    "a copy": (lambda X, y: 100 - 3 * X["a"], "'more' says the same as 'a'"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_should_not_be_there_are_named(name: str) -> None:
    make, words = COLUMNS[name]
    X, y = table(400)
    told = learner(epochs=1).fit(X.assign(more=make(X, y)), y).diagnose().findings
    assert sum(text.startswith(words) for text in told) == 1, told
    others = [text for text in table_findings(X, y) if "'more'" in text]
    assert others == []


def table_findings(X: pd.DataFrame, y: Floats) -> tuple[str, ...]:
    return learner(epochs=1).fit(X, y).diagnose().findings


def test_few_rows_for_many_columns() -> None:
    X = np.random.default_rng(0).normal(size=(60, 20))
    told = learner(epochs=1).fit(X, X[:, 0]).diagnose().findings
    assert any(text.startswith("few rows for so many columns: 42 for 20") for text in told)


def test_intervals_that_are_too_narrow_are_told() -> None:
    """Without calibration and with a noise that is far too small."""
    X, y = easy(900, noise=1.0)
    fitted = learner(calibrate=False, method="dnn", epochs=3).fit(X, y).fitted_
    assert fitted.diagnosis is not None
    narrow = replace(fitted.diagnosis, coverage=(0.2, 0.4, 0.6))
    assert "those of 95 % hold 60 %" in str(narrow)


def test_the_tenths_of_ratings_are_filled_evenly():
    """Two ratings, equally likely: each is spread over half of the tenths."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1_200, 1)), (rng.random(1_200) < 0.5).astype(float)
    found = small(members=1, epochs=3, target="ordinal", validation_fraction=0.5).fit(X, y).diagnose()
    assert sum(found.pit) == pytest.approx(1.0)
    assert max(found.pit) < 0.13


def test_counts_and_folds_and_streams_have_one_too(tmp_path: Path) -> None:
    X, y = table(600)
    counted = learner(target="count", epochs=3).fit(X, np.floor(np.exp(y / 2))).diagnose()
    assert sum(counted.pit) == pytest.approx(1.0)
    folds = small(members=2, epochs=3, validation_fraction="auto").fit(X, y).diagnose()
    assert folds.rows > 200
    X.assign(y=y).to_parquet(tmp_path / "t.parquet")
    streamed = (
        small(members=1, epochs=1, validation_fraction=0.3)
        .fit_dataset(tmp_path / "t.parquet", "y", stream=True)
        .diagnose()
    )
    assert streamed.rows == 180


def test_classes_have_none() -> None:
    X, y = table(100)
    classifier = DeepBasisClassifier(members=1, epochs=1, rank=4, width=4, blocks=1, random_state=0).fit(X, y > 0)
    assert classifier.fitted_.diagnosis is None


def test_a_saved_model_says_the_same(model: DeepBasisRegressor, path: Path) -> None:
    model.save(path)
    assert DeepBasisRegressor.load(path).diagnose() == model.diagnose()


WRONG: dict[str, Any] = {
    "coverage": [0.5, 0.8, 1.1],
    "pit": ["x"] * 10,
    "crps": 0.0,
    "rows": 0,
    "findings": [3],
    "crps_line": None,
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_in_a_file_is_refused(model: DeepBasisRegressor, name: str) -> None:
    state = asdict(model.diagnose())
    state = {key: list(value) if isinstance(value, tuple) else value for key, value in state.items()}
    assert Diagnosis.from_state(state) == model.diagnose()
    with pytest.raises(ValueError, match=f"{name}|finding|diagnosis"):
        Diagnosis.from_state({**state, name: WRONG[name]})
    with pytest.raises(ValueError, match="parts"):
        Diagnosis.from_state({key: value for key, value in state.items() if key != name})
