"""What the arguments "auto" come to."""

from typing import Any

import numpy as np
import pytest
import torch
from deepbasis.planning import make_plan
from deepbasis.recipes import FLOAT64_ROWS, RECIPES

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError
from support.regressors import close, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_auto_takes_the_pair_with_the_best_mean_validation_score() -> None:
    X, y = easy(100)
    auto = small(alpha="auto", beta="auto", recipe="paper", epochs=8, learning_rate=3e-2).fit(X, y)
    recipe = RECIPES["paper"]
    scores = {}
    for alpha in recipe.alphas:
        for beta in recipe.betas[::3]:
            fixed = small(alpha=alpha, beta=beta, recipe="paper", epochs=8, learning_rate=3e-2).fit(X, y)
            scores[alpha, beta] = np.mean([history["validation"].min() for history in fixed.history_])
            if (alpha, beta) == (auto.alpha_, auto.beta_):
                close(fixed.predict(X, True), auto.predict(X, True), rtol=1e-7)
    chosen = np.mean([history["validation"].min() for history in auto.history_])
    assert auto.alpha_ in recipe.alphas
    assert auto.beta_ in recipe.betas
    assert chosen <= min(scores.values()) + 1e-9
    if (auto.alpha_, auto.beta_) in scores:
        assert scores[auto.alpha_, auto.beta_] == pytest.approx(chosen, rel=1e-9)
    assert max(scores.values()) > chosen  # there was something to choose


def test_auto_alpha_equals_the_better_of_two_fixed_fits() -> None:
    X, y = easy(100)
    auto = small(alpha="auto", epochs=20).fit(X, y)
    fixed = {alpha: small(alpha=alpha, epochs=20).fit(X, y) for alpha in RECIPES["default"].alphas}
    score = {alpha: np.mean([h["validation"].min() for h in model.history_]) for alpha, model in fixed.items()}
    best = min(score, key=lambda alpha: score[alpha])
    assert len(set(score.values())) == len(score)
    assert auto.alpha_ == best
    assert auto.beta_ == 0.1
    close(auto.predict(X, True), fixed[best].predict(X, True), rtol=1e-7)


@pytest.mark.parametrize("rows", [2_049, 10_000, 1_000_000])
def test_the_paper_s_recipe_is_the_paper_s(rows: int) -> None:
    plan = make_plan(DeepBasisRegressor(recipe="paper", device="cpu"), rows)
    assert plan.settings.learning_rate == 1e-3
    assert plan.settings.noise_learning_rate == 1e-3
    assert plan.settings.batch_size == 1024
    assert plan.settings.epochs == 400
    assert plan.settings.weight_decay == 1e-2
    assert plan.settings.schedule == "constant"
    assert plan.settings.patience is None or plan.settings.patience >= 400
    grid = (0.0, 0.01, 0.1, 1.0)
    assert sorted(plan.pairs) == [(a, b) for a in grid for b in grid]


@pytest.mark.parametrize(
    ("method", "objective", "pairs"),
    [
        ("dbk-silu", None, 16),
        ("dbk-rbf", None, 16),
        ("pp-dkl", None, 4),
        ("sv-dkl", None, 1),
        ("dnn", None, 1),
        ("dbk-silu", "mml", 1),
    ],
)
def test_only_weights_that_the_objective_has_are_tried(method: str, objective: str | None, pairs: int) -> None:
    plan = make_plan(DeepBasisRegressor(recipe="paper", method=method, objective=objective, device="cpu"), 5000)
    assert len(plan.pairs) == len(set(plan.pairs)) == pairs


@pytest.mark.parametrize(
    ("rows", "changes", "dtype", "batch_size"),
    [
        (20, {}, torch.float64, 20),
        (FLOAT64_ROWS, {}, torch.float64, FLOAT64_ROWS),
        (FLOAT64_ROWS + 1, {}, torch.float32, FLOAT64_ROWS + 1),
        (1_024, {}, torch.float32, 1_024),
        (1_025, {}, torch.float32, 512),
        (10**7, {}, torch.float32, 512),
        (20, {"dtype": "float32"}, torch.float32, 20),
        (10**6, {"dtype": "float64", "batch_size": 7}, torch.float64, 7),
    ],
)
def test_precision_and_batches_by_the_number_of_rows(
    rows: int, changes: dict[str, Any], dtype: torch.dtype, batch_size: int
) -> None:
    plan = make_plan(DeepBasisRegressor(device="cpu", **changes), rows)
    assert plan.settings.dtype == dtype
    assert plan.settings.batch_size == batch_size
    assert not plan.settings.compile
    steps = plan.settings.epochs * plan.settings.passes * -(-rows // batch_size)
    assert steps <= max(3000, 5 * -(-rows // batch_size))


def test_what_is_given_is_taken() -> None:
    given = {"epochs": 17, "batch_size": 9, "learning_rate": 0.125, "patience": 3, "weight_decay": 0.5}
    plan = make_plan(DeepBasisRegressor(alpha=0.25, beta=4, device="cpu", **given), 100)
    assert {name: getattr(plan.settings, name) for name in given} == given
    assert plan.pairs == [(0.25, 4.0)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_precision_asked_for_is_the_models_own(dtype: str) -> None:
    X, y = easy(60)
    model = small(dtype=dtype).fit(X, y)
    assert {parameter.dtype for parameter in model.models_[0].parameters()} == {getattr(torch, dtype)}
    assert model.predict(X).dtype == np.float64


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"'cuda'.*no CUDA device.*'cpu' or 'auto'"):
        small(device="cuda").fit(*easy(20))
