"""The calibration of the predictive variance by the rows held out."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor
from deepbasis.fitting.recipe import RECIPES
from deepbasis.gp.calibration import Calibration, calibrate
from deepbasis.gp.predictive import GaussianMixture
from support.recipes import recipe
from support.regressors import Floats, close, easy, small
from support.splits import Table

pytestmark = pytest.mark.usefixtures("one_thread")


def calibrated_pair(X: Any, y: Floats, **changes: Any) -> tuple[DeepBasisRegressor, DeepBasisRegressor]:
    return small(calibrate=False, **changes).fit(X, y), small(calibrate=True, **changes).fit(X, y)


def assert_scaled(calibration: Calibration | None, before: GaussianMixture, after: GaussianMixture) -> None:
    """After is before with every scale of the variance, each with its weight."""
    assert calibration is not None
    assert before.weights is None
    assert after.weights is not None
    copies, members = len(calibration.scales), len(before.means)
    np.testing.assert_array_equal(after.means.numpy(), np.tile(before.means.numpy(), (copies, 1)))
    expected = np.concatenate([scale * before.variances.numpy() for scale in calibration.scales])
    close(after.variances.numpy(), expected, rtol=1e-6)
    close(after.weights.numpy(), np.repeat(calibration.weights, members) / members)


@pytest.mark.parametrize(
    "changes",
    [{}, {"members": 1}, {"objective": "mml"}, {"method": "sv-dkl"}, {"method": "dnn"}, {"dtype": "float32"}],
    ids=str,
)
def test_the_scales_are_those_of_the_validation_rows(changes: dict[str, Any]) -> None:
    X, y = easy(200)
    plain, model = calibrated_pair(X, y, epochs=6, **changes)
    _, outside = Table(X, y).split(model.validation_fraction)
    assert plain.calibration_ is None
    assert_scaled(model.calibration_, plain.predict_dist(X, as_tensor=True), model.predict_dist(X, as_tensor=True))
    expected = calibrate(plain.predict_dist(outside.X, as_tensor=True), torch.from_numpy(outside.y))
    close(model.calibration_.scales, expected.scales, rtol=1e-5)
    close(model.calibration_.weights, expected.weights, rtol=1e-5)
    close(model.predict(X), plain.predict(X), atol=1e-12)
    np.testing.assert_array_equal(model.noise_, plain.noise_)
    np.testing.assert_array_equal(model.history_[0]["validation"], plain.history_[0]["validation"])
    assert model.validation_["nll"] != plain.validation_["nll"]
    assert model.validation_["nll_constant"] == plain.validation_["nll_constant"]
    found = {name: value for name, value in model.validation_.items() if name != "nll_constant"}
    assert found == pytest.approx(model.evaluate(outside.X, outside.y), rel=1e-4)


def test_auto_calibrates_as_the_recipe_says() -> None:
    X, y = easy(60)
    off, on = (fit.calibration_ for fit in calibrated_pair(X, y))
    assert on is not None
    for answer, expected in ((False, off), (True, on)):
        own = recipe(f"calibrate {answer}", calibrate=answer)
        assert small(recipe=own).fit(X, y).calibration_ == expected
        assert small(recipe=own, calibrate=not answer).fit(X, y).calibration_ == (off if answer else on)


def test_the_paper_s_recipe_does_not_calibrate_and_the_default_does() -> None:
    assert (RECIPES["default"].calibrate, RECIPES["paper"].calibrate) == (True, False)


def test_a_fit_without_calibration_forgets_an_earlier_one() -> None:
    X, y = easy(60)
    model = small(calibrate=True).fit(X, y)
    assert model.calibration_ is not None
    model.set_params(calibrate=np.bool_(False)).fit(X, y)
    assert model.calibration_ is None
    np.testing.assert_array_equal(model.predict(X, True), small(calibrate=False).fit(X, y).predict(X, True))


@pytest.mark.filterwarnings("ignore:on the 2000 validation rows")
def test_a_model_that_is_too_sure_is_corrected() -> None:
    """The targets to validate on are noisier than those to train on, at any epoch."""
    X, y = easy(300, noise=0.05)
    X_val, y_val = easy(2_000, seed=3, noise=5.0)
    X_new, y_new = easy(2_000, seed=4, noise=5.0)
    settings = {"epochs": 60, "learning_rate": 2e-2, "rank": 16, "width": 16}
    plain, model = (
        small(calibrate=calibrate, **settings).fit(X, y, X_val=X_val, y_val=y_val) for calibrate in (False, True)
    )
    assert model.calibration_.mean_scale > 1.5
    assert abs(model.evaluate(X_new, y_new)["coverage_95"] - 0.95) < 0.02
    assert model.evaluate(X_new, y_new)["nll"] < plain.evaluate(X_new, y_new)["nll"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("weight", [None, "weight"])
def test_a_table_in_files_is_calibrated(tmp_path: Path, stream: bool, weight: str | None) -> None:
    X, y = easy(200)
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table["y"] = y
    table["weight"] = np.random.default_rng(0).integers(1, 4, size=len(y)).astype(float)
    table.to_parquet(tmp_path / "part.parquet")
    drop = ["weight"] if weight is None else []
    plain, model = (
        small(calibrate=calibrate).fit_dataset(tmp_path, "y", stream=stream, weight=weight, drop=drop)
        for calibrate in (False, True)
    )
    assert plain.calibration_ is None
    assert_scaled(
        model.calibration_, *(fit.predict_dist(table[["a", "b", "c"]], as_tensor=True) for fit in (plain, model))
    )


WORKER = """
import sys
from deepbasis import DeepBasisRegressor
from deepbasis.cli.common import workers
with workers("cpu") as team:
    model = DeepBasisRegressor(
        members=2, epochs=3, rank=4, width=4, blocks=1, alpha=0.1, beta=0.1,
        random_state=0, device="cpu", calibrate=True
    ).fit_dataset(sys.argv[1], "y", stream=True, team=team)
    found = team.gather_objects((vars(model.calibration_), model.validation_))
    if team.first:
        assert model.calibration_ is not None
        assert found[0] == found[1], found
        print("alike")
"""


@pytest.mark.slow
def test_all_workers_find_the_same_calibration(
    tmp_path: Path, two_workers: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    X, y = easy(400)
    (tmp_path / "table").mkdir()
    pd.DataFrame(np.column_stack([X, y]), columns=["a", "b", "c", "y"]).to_parquet(
        tmp_path / "table" / "part.parquet", row_group_size=50
    )
    (tmp_path / "worker.py").write_text(WORKER)
    done = two_workers(tmp_path / "worker.py", tmp_path / "table")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alike\n"
