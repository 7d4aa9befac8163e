"""What the arguments "auto" come to."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from deepbasis.errors import InputError
from deepbasis.fitting.candidate import weights_for
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.plan import Candidate, Facts
from deepbasis.fitting.recipe import FLOAT64_ROWS, RECIPES
from deepbasis.fitting.spec import Spec
from support.recipes import DEFAULT, recipe
from support.regressors import close, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


def network(rows: int, **changes: Any) -> Candidate:
    """The first candidate for a table of so many rows."""
    spec = Spec(device="cpu", **changes)
    return make_plan(spec, Facts(table_rows=rows, rows=rows, columns=5)).candidates[0]


def test_auto_takes_the_pair_with_the_best_mean_validation_score() -> None:
    X, y = easy(60)
    alphas, betas = (0.0, 1.0), (0.01, 10.0)
    own = recipe("four pairs", small=replace(DEFAULT.small, alphas=alphas, betas=betas))
    settings = {"recipe": own, "epochs": 8, "learning_rate": 3e-2}
    auto = small(**settings, alpha="auto", beta="auto").fit(X, y)
    fixed = {(a, b): small(**settings, alpha=a, beta=b).fit(X, y) for a in alphas for b in betas}
    scores = {pair: np.mean([h["validation"].min() for h in model.history_]) for pair, model in fixed.items()}
    best = min(scores, key=lambda pair: scores[pair])
    assert len(set(scores.values())) == 4
    assert (auto.alpha_, auto.beta_) == best
    close(auto.predict(X, True), fixed[best].predict(X, True), rtol=1e-7)


@pytest.mark.parametrize("rows", [2_049, 10_000, 1_000_000])
def test_the_paper_s_recipe_is_the_paper_s(rows: int) -> None:
    candidate = network(rows, recipe="paper")
    settings = candidate.settings
    assert settings.learning_rate == settings.noise_learning_rate == 1e-3
    assert (settings.batch_size, settings.epochs, settings.weight_decay) == (1024, 400, 1e-2)
    assert settings.schedule == "constant"
    assert settings.patience >= 400
    grid = (0.0, 0.01, 0.1, 1.0)
    assert sorted(candidate.weights) == [(a, b) for a in grid for b in grid]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("dppgp", [(a, b) for a in (0.0, 0.01, 0.1, 1.0) for b in (0.0, 0.01, 0.1, 1.0)]),
        ("dppgp-detached", [(a, b) for a in (0.0, 0.01, 0.1, 1.0) for b in (0.0, 0.01, 0.1, 1.0)]),
        ("ppgp", [(0.0, b) for b in (0.0, 0.01, 0.1, 1.0)]),
        ("elbo", [(0.0, 1.0)]),
        ("mml", [(0.0, 0.0)]),
        ("mse", [(0.0, 0.0)]),
    ],
)
def test_weights_are_those_that_the_objective_has(objective: str, expected: list[tuple[float, float]]) -> None:
    assert list(weights_for(RECIPES["paper"].small, objective, None, None)) == expected
    used = [tuple(set(column)) for column in zip(*expected, strict=True)]
    given = [single[0] if len(single) == 1 else 0.5 for single in used]
    assert weights_for(RECIPES["paper"].small, objective, 0.5, 0.5) == (tuple(given),)


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
    settings = network(rows, **changes).settings
    assert settings.dtype == dtype
    assert settings.batch_size == batch_size
    assert not settings.compile
    steps = settings.epochs * settings.passes * -(-rows // batch_size)
    assert steps <= max(3000, 5 * -(-rows // batch_size))


def test_what_is_given_is_taken() -> None:
    given = {"epochs": 17, "batch_size": 9, "learning_rate": 0.125, "patience": 3, "weight_decay": 0.5}
    candidate = network(100, alpha=0.25, beta=4, **given)
    assert {name: getattr(candidate.settings, name) for name in given} == given
    assert candidate.weights == ((0.25, 4.0),)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_precision_asked_for_is_the_models_own(dtype: str) -> None:
    X, y = easy(60)
    model = small(dtype=dtype).fit(X, y)
    assert {parameter.dtype for parameter in model.fitted_.models[0].parameters()} == {getattr(torch, dtype)}
    assert model.predict(X).dtype == np.float64


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"'cuda'.*no CUDA device.*'cpu' or 'auto'"):
        small(device="cuda").fit(*easy(20))
