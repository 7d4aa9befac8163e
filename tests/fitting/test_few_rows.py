"""Few rows and many columns: a kernel's lengthscales are alike until the rows say otherwise."""

import numpy as np
import pytest

from deepbasis import DeepBasisRegressor
from deepbasis.fitting.recipe import RECIPES
from support.recipes import recipe

KERNEL = {"method": "sv-rbf", "objective": "mml", "members": 1, "calibrate": False, "target": "identity"}
WITHOUT = recipe("no-prior", shallow_prior=False)


def line(rows: int, columns: int, counting: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    return X, X[:, :counting].sum(1) / counting**0.5 + noise * rng.standard_normal(rows)


def scores(X: np.ndarray, y: np.ndarray, given: int, **arguments: object) -> tuple[float, float]:
    """NLL and coverage of rows that were not given."""
    model = DeepBasisRegressor(random_state=0, **{**KERNEL, **arguments}).fit(X[:given], y[:given])
    found = model.evaluate(X[given:], y[given:])
    return found["nll"], found["coverage_95"]


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "counting", "noise"), [(40, 40, 0.3), (20, 1, 3.0)])
def test_thirty_rows_do_not_say_which_of_many_columns_count(columns, counting, noise):
    X, y = line(1_030, columns, counting, noise)
    (nll, coverage), (free, _) = (scores(X, y, 30, recipe=name) for name in ("default", WITHOUT))
    constant = 0.5 * np.log(2 * np.pi * y.var()) + 0.5
    assert nll < free - 0.1
    assert nll < constant + 0.2
    assert coverage > 0.85


def test_a_hundred_rows_may_say_that_one_column_counts():
    X, y = line(600, 6, 1, 0.1)
    model = DeepBasisRegressor(random_state=0, **KERNEL).fit(X[:100], y[:100])
    lengths = model.fitted_.models[0].expansion.log_lengthscale.detach().exp()
    assert float(lengths[1:].min()) > 5.0 * float(lengths[0])
    assert model.evaluate(X[100:], y[100:])["rmse"] < 0.13


def test_the_paper_has_no_prior():
    assert RECIPES["default"].shallow_prior
    assert not RECIPES["paper"].shallow_prior


def test_more_columns_than_rows_are_no_reason_to_find_no_noise():
    """Centred columns and a centred target: without an intercept of its own the line's noise went to its floor."""
    tables = [line(1_040, 60, 10, 0.7, seed) for seed in range(3)]
    found = [scores(X, y, 40, method="linear") for X, y in tables]
    assert 0.85 < np.mean([coverage for _, coverage in found]) < 0.99  # it was 0.6
