"""Categories of more levels than have a column of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisClassifier, DeepBasisRegressor
from deepbasis.errors import NoveltyWarning
from support.regressors import small

pytestmark = pytest.mark.usefixtures("one_thread")

LEVELS = 120
EASY: dict[str, Any] = {"width": 16, "rank": 16, "epochs": 60, "alpha": 0.0, "learning_rate": 1e-2, "batch_size": 128}


def shops(rows: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A target that is nearly the effect of a shop alone."""
    rng = np.random.default_rng(seed)
    effect = np.random.default_rng(99).normal(size=LEVELS)
    shop = rng.integers(0, LEVELS, rows)
    table = pd.DataFrame({"shop": [f"shop {k}" for k in shop], "z": rng.normal(size=rows)})
    return table, effect[shop] + 0.2 * rng.normal(size=rows)


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    return small(**EASY).fit(*shops(1_200))


def test_every_level_counts_and_a_new_one_is_as_uncertain_as_a_random_one(model: DeepBasisRegressor) -> None:
    X, y = shops(500, seed=1)
    scores = model.evaluate(X, y)
    assert scores["rmse"] < 0.45  # 1.0 where all but 32 levels are one
    assert 0.88 < scores["coverage_95"] <= 1.0
    new = X.assign(shop="never seen")
    assert 0.6 < model.predict_dist(new).std.mean() < 1.6
    assert model.predict_dist(X).std.mean() < 0.5
    with pytest.warns(NoveltyWarning, match=r"'shop' \(new values in (9\d|100) % of the rows\)"):
        model.predict(new)
    assert np.median(model.predict_novelty(new)) < 0.05 < np.median(model.predict_novelty(X))


def test_it_is_saved_and_loaded(model: DeepBasisRegressor, tmp_path: Path) -> None:
    X, _ = shops(50, seed=2)
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(DeepBasisRegressor.load(tmp_path / "model.safetensors").predict(X), model.predict(X))


def test_held_out_rows_say_how_good_it_is(model: DeepBasisRegressor) -> None:
    """Their effects know none of their own targets."""
    X, y = shops(2_000, seed=3)
    said, true = model.validation_["rmse"], model.evaluate(X, y)["rmse"]
    assert abs(said - true) < 0.1


@pytest.mark.parametrize("rows", [2_100, 600])
def test_above_2000_rows_a_category_never_seen_is_as_uncertain_as_a_random_one(rows: int) -> None:
    """Some rows are fitted to as if their category were new; of fewer rows none is."""
    rng = np.random.default_rng(0)
    shop = rng.integers(0, 12, rows)
    y = 2.0 * rng.normal(size=12)[shop] + 0.2 * rng.normal(size=rows)
    X = pd.DataFrame({"shop": [f"shop {k}" for k in shop], "z": rng.normal(size=rows)})
    model = small(**{**EASY, "epochs": 60 * 2_100 // rows}).fit(X, y)
    known, new = (model.predict_dist(X.assign(**more)).std.mean() for more in ({}, {"shop": "never seen"}))
    assert known < 0.35
    assert new > 1.0 if rows > 2_000 else new < 1.0
    p = model.predict_novelty(X.assign(shop="never seen"))
    assert np.median(p) < 0.05  # hidden categories are not familiar


def test_a_stream_has_them_too(tmp_path: Path) -> None:
    X, y = shops(1_500)
    X.assign(y=y).to_parquet(tmp_path / "rows.parquet")
    model = small(**EASY, objective="dppgp").fit_dataset(tmp_path / "rows.parquet", "y", stream=True)
    X, y = shops(500, seed=1)
    assert model.evaluate(X, y)["rmse"] < 0.45
    assert model.predict_dist(X.assign(shop="never seen")).std.mean() > 0.6


def test_classes_and_groups() -> None:
    X, y = shops(1_200)
    names = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
    model = DeepBasisClassifier(**{k: v for k, v in EASY.items() if k != "learning_rate"}, members=2, random_state=0)
    found = model.fit(X, names)
    test, y_test = shops(300, seed=1)
    assert found.score(test, np.array(["low", "middle", "high"])[np.digitize(y_test, [-0.5, 0.5])]) > 0.7
    # Where rows of a level are never in two parts, nothing is known of it in any part: as of new groups.
    grouped = small(**EASY).fit(X, y, groups=X["shop"].to_numpy())
    assert grouped.evaluate(test.assign(shop="never seen"), y_test)["coverage_95"] > 0.8
