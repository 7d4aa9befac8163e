"""A shallow kernel finds how little noise there is."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from deepbasis.estimator import FitWarning
from deepbasis.recipes import RECIPES

from deepbasis import DeepBasisRegressor, estimator, planning
from deepbasis.errors import NumericalError, UnfinishedError
from support.choosing import Floats

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


KERNEL = {"method": "sv-rbf", "objective": "mml", "members": 1, "random_state": 0, "device": "cpu"}


def experiment(noise: float) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(150, 2))
    return X, np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + noise * rng.normal(size=len(X))


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "trainings"), [(0.003, 2), (0.3, 1)])
def test_a_kernel_finds_how_little_noise_there_is(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], noise: float, trainings: int
) -> None:
    """A computer experiment: the noise starts at half of what a line leaves, thousands of times too large."""
    monkeypatch.setattr(planning, "RECIPES", RECIPES)
    model = DeepBasisRegressor(**KERNEL, rank=64, dtype="float32").fit(*experiment(noise))
    assert math.sqrt(model.noise_[0]) == pytest.approx(noise, rel=0.5)
    assert len(runs) == trainings


@pytest.mark.parametrize(
    "changes", [{"epochs": 30}, {"recipe": "paper", "epochs": 30}, {"method": "dbk-silu"}], ids=str
)
def test_nothing_else_is_trained_twice(runs: list[dict[str, Any]], changes: dict[str, Any]) -> None:
    """Neither where the number of steps was asked for, nor a network, nor as the paper does it."""
    DeepBasisRegressor(**{**KERNEL, "rank": 8, "width": 8, **changes}).fit(*experiment(0.0))
    assert len(runs) == 1


@pytest.mark.parametrize("bad", [UnfinishedError("Ctrl-C"), NumericalError("NaN"), "interrupted", "failed"], ids=str)
def test_a_second_training_that_does_not_end_well_is_as_none(monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    monkeypatch.setattr(planning, "RECIPES", {"default": replace(RECIPES["default"], exact_steps=40)})
    X, y = experiment(0.0)
    genuine, calls = estimator.train, []

    def trained(*given: Any, **more: Any) -> Any:
        outcomes = genuine(*given, **more)
        calls.append(outcomes)
        if len(calls) == 1:
            return outcomes
        if isinstance(bad, BaseException):
            raise bad
        return [replace(outcome, status=bad) for outcome in outcomes]

    monkeypatch.setattr(estimator, "train", trained)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model = DeepBasisRegressor(**KERNEL).fit(X, y)
    assert len(calls) == 2
    first, second = (one[0].history["noise"].numpy() for one in calls)
    np.testing.assert_array_equal(model.history_[0]["noise"], first)
    assert second[-1] < first[-1]
