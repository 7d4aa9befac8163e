"""Every method learns, and predicts a distribution that is no narrower than its noise."""

import numpy as np
import pytest

from deepbasis.errors import NoveltyWarning
from support.own import METHODS, OUTLOOK
from support.regressors import easy, mixed, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        *((method, None) for method in METHODS),
        *((method, "mml") for method in METHODS if method not in {*OUTLOOK, "dnn"}),
    ],
)
def test_every_method_predicts_a_distribution_no_narrower_than_its_noise(method: str, objective: str | None) -> None:
    X, y = easy()
    model = small(method=method, objective=objective).fit(X, y)
    with pytest.warns(NoveltyWarning):
        mean, std = model.predict(100 * X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert model.calibration_ is not None
    noise = np.outer(model.calibration_.scales, model.noise_).ravel()
    assert (std**2 >= model.calibration_.mean_scale * model.noise_.mean() * (1 - 1e-9)).all()
    assert (model.predict_dist(X, as_tensor=True).variances.numpy() >= noise[:, None] * (1 - 1e-9)).all()
    assert len(model.fitted_.models) == 2


@pytest.mark.parametrize("method", METHODS)
def test_the_rank_that_is_told_is_that_of_the_members(method: str) -> None:
    """It is nobody's to choose where the basis functions are the columns and a constant, or a network's last layer.

    A kernel has no more inducing points than there are rows to fit, and beside RBF each column adds a linear function.
    """
    X, y = easy(20)
    model = small(method=method, rank=64, epochs=1).fit(X, y)
    assert model.rank_ == {"linear": 4, "dnn": 8, "sv-rbf": 18, "sv-rbf-linear": 18}.get(method, 64)
    beside = 3 if method == "sv-rbf-linear" else 0
    assert {one.posterior.rank for one in model.fitted_.models} == {model.rank_ + beside}
    (planned,) = model.plan_.candidates
    assert planned.architecture.rank == (64 if method.startswith("sv-rbf") else model.rank_)


@pytest.mark.parametrize("method", ["dbk-silu", "dnn"])
def test_it_learns(method: str) -> None:
    X, y = easy(300)
    X_new, y_new = easy(300, seed=1)
    model = small(method=method, epochs=60, rank=16, width=16, learning_rate=2e-2).fit(X, y)
    assert model.score(X_new, y_new) > 0.8
    assert 0.8 < model.evaluate(X_new, y_new)["coverage_95"] < 1.0


def test_exact_training_learns() -> None:
    X, y = easy(200)
    X_new, y_new = easy(200, seed=1)
    assert small(objective="mml", epochs=30, rank=16, learning_rate=2e-2).fit(X, y).score(X_new, y_new) > 0.8


def test_a_category_matters_where_it_does() -> None:
    table, y = mixed(250)
    model = small(epochs=80, rank=16, width=16, learning_rate=2e-2).fit(table, y)
    red, blue = (model.predict(table.assign(color=name)).mean() for name in ("red", "blue"))
    assert 2.0 < red - blue < 4.0
