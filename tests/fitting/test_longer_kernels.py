"""Kernels of tables that are too long to learn from all rows, and columns that kernels are told to count."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor
from deepbasis.engine.batches import Rows
from deepbasis.fitting.criteria import found_little
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.plan import Candidate, Facts, Plan
from deepbasis.fitting.run import fit_table
from deepbasis.fitting.slopes import steepness
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.train import drawn
from deepbasis.gp.build import build
from deepbasis.gp.predictive import Gaussian
from support.choosing import easy, small
from support.recipes import DEFAULT, only
from support.runs import prepared

Floats = NDArray[np.float64]

pytestmark = pytest.mark.usefixtures("one_thread")

LONGER = only("sv-rbf", small_rows=60, kernel_rows=500)


def plan(rows: int, **facts: Any) -> Plan:
    return make_plan(Spec(device="cpu"), Facts(**{"table_rows": rows, "rows": rows, "columns": 3, **facts}))


def kernels(rows: int, **facts: Any) -> list[Candidate]:
    return list(plan(rows, **facts).kernels)


def test_kernels_of_a_longer_table_learn_from_some_rows() -> None:
    smooth, both, line = kernels(2_001)
    assert [one.architecture.method for one in (smooth, both, line)] == ["sv-rbf", "sv-rbf-linear", "linear"]
    assert smooth.learns_from == both.learns_from == DEFAULT.small_rows == 2_000
    assert line.learns_from is None
    assert str(plan(2_001)).count("exact steps on 2,000 rows") == 2
    assert smooth.calibrate
    assert not smooth.trained_apart  # they have not seen the rows that judge them
    assert {one.learns_from for one in kernels(2_000)} == {None}
    assert len(kernels(DEFAULT.kernel_rows)) == 3
    assert not kernels(DEFAULT.kernel_rows + 1)


def test_only_a_line_is_tried_where_a_longer_table_has_categories() -> None:
    """Networks learn what a category is like that they have never seen."""
    assert [one.architecture.method for one in kernels(2_001, flags=(2,))] == ["linear"]
    assert len(kernels(2_000, flags=(2,))) == 3


def dense(model: DeepBasisRegressor, X: Floats, y: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the GP that was chosen, at new rows, given others."""
    fitted = model.fitted_
    gp, scale = fitted.models[0].double(), fitted.target.scale
    with torch.no_grad():
        old, there = (gp.features(torch.from_numpy(fitted.preprocessor.transform(x))) for x in (X, new))
        Sigma = old.phi @ old.phi.mT + torch.eye(len(y)) * gp.noise()
        k = there.phi @ old.phi.mT
        mean = gp.mean + k @ torch.linalg.solve(Sigma, torch.from_numpy(fitted.target.transform(y)) - gp.mean)
        var = there.prior_var - (k @ torch.linalg.inv(Sigma) * k).sum(-1) + there.correction + gp.noise()
    return mean.numpy() * scale + fitted.target.mean, var.numpy() * scale**2


def test_they_are_judged_given_the_rows_to_fit_and_predict_given_all() -> None:
    X, y = easy(300)
    model = small(recipe=LONGER, learning_rate=1e-9, calibrate=False, dtype="float64").fit(X, y)
    assert model.method_ == "sv-rbf"
    _, plan, data = prepared(model, X, y)
    (fold,) = data.folds(plan)
    held_out = np.isin(data.encoded.x.numpy(), fold.held_out.x.numpy()).all(1)
    assert held_out.sum() == len(fold.held_out) == 30
    mean, var = dense(model, X[~held_out], y[~held_out], X[held_out])
    nll = 0.5 * ((y[held_out] - mean) ** 2 / var + np.log(2.0 * np.pi * var)).mean()
    assert model.validation_["nll"] == pytest.approx(nll, rel=1e-6)
    expected = dense(model, X, y, X[:9] + 0.1)
    np.testing.assert_allclose(
        model.predict(X[:9] + 0.1, return_std=True), (expected[0], expected[1] ** 0.5), rtol=1e-6
    )


@pytest.mark.parametrize(("who", "learns", "posterior"), [("held out", 0, 1), ("fitted", 0, 1), ("learnt from", 1, 1)])
def test_parameters_come_from_some_of_the_rows_to_fit_and_the_posterior_from_all(
    who: str, learns: int, posterior: int
) -> None:
    """What other targets of five such rows change."""
    spec, plan, data = prepared(small(recipe=LONGER, learning_rate=1e-9), *easy(300))
    fold = data.folds(plan)[0]
    some = drawn(fold.data, plan.kernels[0].learns_from)
    assert len(some) == 60

    def among(rows: Rows) -> NDArray[np.bool_]:
        return np.isin(data.encoded.y.float().numpy(), rows.y.float().numpy())

    of = {"held out": among(fold.held_out), "learnt from": among(some), "fitted": among(fold.data) & ~among(some)}[who]
    moved = torch.zeros(300, dtype=torch.bool)
    moved[np.flatnonzero(of)[:5]] = True
    changed = replace(data, encoded=replace(data.encoded, y=torch.where(moved, data.encoded.y + 0.1, data.encoded.y)))
    one, other = (fit_table(spec, plan, each).models[0] for each in (data, changed))
    learnt = [torch.equal(a, b) for a, b in zip(one.expansion.parameters(), other.expansion.parameters(), strict=True)]
    assert all(learnt) == (not learns)
    assert torch.equal(one.posterior.m, other.posterior.m) == (not posterior)


# ---- columns that count ----------------------------------------------------------------------------------------------


def test_slopes_are_those_of_the_function() -> None:
    gp = build("sv-rbf", 3, rank=5, seed=0).double()
    x = torch.randn(7, 3, dtype=torch.float64)
    step = 1e-5 * torch.eye(3, dtype=torch.float64)
    with torch.no_grad():
        slopes = torch.stack([(gp.mean_at(x + h) - gp.mean_at(x - h)) / 2e-5 for h in step])
    torch.testing.assert_close(steepness([gp], x), slopes.square().mean(1).sqrt().float(), rtol=1e-4, atol=1e-7)
    assert not x.requires_grad


@pytest.mark.parametrize(
    ("noise", "networks_leave", "little"),
    [
        (0.95, 0.9, True),  # nothing
        (0.85, 0.9, False),
        (0.5, 0.2, True),  # less than the networks have
        (0.3, 0.2, False),
        (0.3, 0.1, True),
    ],
)
def test_little_is_next_to_nothing_or_far_less_than_networks_have_found(
    noise: float, networks_leave: float, little: bool
) -> None:
    y = torch.tensor([-1.0, 1.0]).repeat(50).double()  # of variance 1
    held_out = Rows(torch.zeros(100, 1), y, torch.ones(100))
    networks = Gaussian(y + networks_leave**0.5, torch.ones(100))
    for others in ((), (99.0,)):
        kernels = [SimpleNamespace(models=[build("sv-rbf", 1, rank=2, noise=one)]) for one in (*others, noise)]
        assert found_little(kernels, networks, held_out) == little


@pytest.mark.slow
def test_kernels_find_columns_that_networks_have_found() -> None:
    """Two of 24, which only count together: where all lengthscales are alike the likelihood has no slope."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_400, 24))
    y = np.cos(2.0 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=2_400)
    told, alone = (
        DeepBasisRegressor(random_state=0, device="cpu", **more).fit(X[:400], y[:400]).evaluate(X[400:], y[400:])
        for more in ({}, {"method": "sv-rbf", "objective": "mml", "members": 1})
    )
    assert told["crps"] < 0.07  # the noise has .056
    assert told["crps"] < 0.3 * alone["crps"]
