"""`DeepBasisRegressor`: its answers agree with each other, its choices with its rules, its refusals with the reason."""

import math
import signal
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from deepbasis import DeepBasisRegressor, arguments, estimator, predictions
from deepbasis.errors import FileFormatError, InputError, NumericalError
from deepbasis.estimator import FitWarning
from deepbasis.gp.calibration import Calibration, calibrate
from deepbasis.gp.methods import METHODS
from deepbasis.gp.predictive import GaussianMixture
from deepbasis.planning import make_plan
from deepbasis.recipes import FLOAT64_ROWS, RECIPES
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.resident import Table

Floats = NDArray[np.float64]


def small(**changes: Any) -> DeepBasisRegressor:
    """A regressor that fits in a fraction of a second."""
    settings = {
        "method": "dbk-silu",
        "members": 2,
        "validation_fraction": 0.1,
        "epochs": 5,
        "rank": 8,
        "width": 8,
        "blocks": 1,
        "alpha": 0.1,
        "beta": 0.1,
        "random_state": 0,
        "device": "cpu",
    }
    return DeepBasisRegressor(**{**settings, **changes})


def easy(rows: int = 120, seed: int = 0, noise: float = 0.1) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + noise * rng.normal(size=rows)


def mixed(rows: int = 120, seed: int = 0) -> tuple[pd.DataFrame, Floats]:
    """Numbers, text, truth values and dates, all with holes, one constant, one wild."""
    rng = np.random.default_rng(seed)
    color = rng.choice(["red", "blue", "green"], rows)
    size = rng.normal(size=rows)
    table = pd.DataFrame(
        {
            "size": size,
            "color": pd.Series(color, dtype=object),
            "sold": rng.random(rows) < 0.5,
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 500, rows), unit="D"),
            "wild": np.exp(20 * rng.normal(size=rows)),
            "same": 7,
        }
    )
    for position, column in enumerate(["size", "color", "when"]):
        table.loc[table.index[position::11], column] = None
    return table, np.where(color == "red", 3.0, 0.0) + 0.3 * size + 0.05 * rng.normal(size=rows)


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Fitted:
    """Data and models that tests only look at."""

    X: Floats
    y: Floats
    table: pd.DataFrame
    y_table: Floats
    model: DeepBasisRegressor
    of_table: DeepBasisRegressor


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    torch.manual_seed(0)
    X, y = easy()
    table, y_table = mixed()
    return Fitted(X, y, table, y_table, small(epochs=30).fit(X, y), small(epochs=30).fit(table, y_table))


def close(a: Any, b: Any, rtol: float = 1e-9, atol: float = 0.0) -> None:
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# --- every method


@pytest.mark.parametrize("objective", [None, "mml"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_a_distribution_no_narrower_than_its_noise(method: str, objective: str | None) -> None:
    if method == "dnn" and objective == "mml":
        pytest.skip("a network without a distribution over its weights has no marginal likelihood")
    X, y = easy()
    model = small(method=method, objective=objective).fit(X, y)
    mean, std = model.predict(100 * X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert model.calibration_ is not None
    noise = np.outer(model.calibration_.scales, model.noise_).ravel()
    assert (std**2 >= model.calibration_.mean_scale * model.noise_.mean() * (1 - 1e-9)).all()
    assert (model.predict_dist(X).variances.numpy() >= noise[:, None] * (1 - 1e-9)).all()
    assert len(model.models_) == 2


@pytest.mark.parametrize("method", ["dbk-silu", "dnn"])
def test_it_learns(method: str) -> None:
    X, y = easy(300)
    X_new, y_new = easy(300, seed=1)
    model = small(method=method, epochs=150, rank=16, width=16, learning_rate=1e-2).fit(X, y)
    assert model.score(X_new, y_new) > 0.8
    assert 0.8 < model.evaluate(X_new, y_new)["coverage_95"] < 1.0


def test_exact_training_learns() -> None:
    X, y = easy(200)
    X_new, y_new = easy(200, seed=1)
    assert small(objective="mml", epochs=60, rank=16, learning_rate=1e-2).fit(X, y).score(X_new, y_new) > 0.8


def test_a_category_matters_where_it_does() -> None:
    table, y = mixed(250)
    model = small(epochs=200, rank=16, width=16, learning_rate=1e-2).fit(table, y)
    red, blue = (model.predict(table.assign(color=name)).mean() for name in ("red", "blue"))
    assert 2.0 < red - blue < 4.0


# --- the ways to predict agree


def test_mean_and_std_are_those_of_the_distribution(fitted: Fitted) -> None:
    mean, std = fitted.model.predict(fitted.X, return_std=True)
    dist = fitted.model.predict_dist(fitted.X)
    np.testing.assert_array_equal(mean, fitted.model.predict(fitted.X))
    assert dist.weights is not None
    means, shares = dist.means.numpy(), dist.weights.numpy()
    close(mean, shares @ means, atol=1e-15)
    close(std**2, shares @ (dist.variances.numpy() + (means - mean) ** 2))


@pytest.mark.parametrize("coverage", [0.5, 0.95, 0.999])
def test_an_interval_is_a_pair_of_quantiles(fitted: Fitted, coverage: float) -> None:
    lower, upper = fitted.model.predict_interval(fitted.X, coverage)
    tail = (1 - coverage) / 2
    quantiles = fitted.model.predict_quantiles(fitted.X, [tail, 0.5, 1 - tail])
    close(np.stack([lower, upper], 1), quantiles[:, [0, 2]], rtol=1e-9, atol=1e-9)
    assert (np.diff(quantiles, axis=1) > 0).all()
    dist = fitted.model.predict_dist(fitted.X)
    close(dist.cdf(torch.from_numpy(upper)) - dist.cdf(torch.from_numpy(lower)), coverage, rtol=1e-6)


def test_one_level_is_one_column(fitted: Fitted) -> None:
    np.testing.assert_array_equal(
        fitted.model.predict_quantiles(fitted.X, 0.3), fitted.model.predict_quantiles(fitted.X, [0.1, 0.3])[:, 1:]
    )


def test_draws_of_the_target_have_its_mean_and_variance(fitted: Fitted) -> None:
    n = 4000
    mean, std = fitted.model.predict(fitted.X, return_std=True)
    draws = fitted.model.sample_y(fitted.X, n, random_state=0)
    assert draws.shape == (len(fitted.X), n)
    assert (np.abs(draws.mean(1) - mean) < 5 * std / math.sqrt(n)).all()
    assert (np.abs(draws.std(1) / std - 1) < 0.15).all()
    assert abs(np.corrcoef(draws)[0, 1:]).mean() < 0.05  # independent between rows
    np.testing.assert_array_equal(draws[:, :7], fitted.model.sample_y(fitted.X, n, random_state=0)[:, :7])
    assert not np.array_equal(draws, fitted.model.sample_y(fitted.X, n, random_state=1))


def test_functions_are_the_same_at_every_call_and_in_pieces(fitted: Fitted) -> None:
    functions = fitted.model.sample_functions(5, random_state=0)
    whole = functions(fitted.X)
    assert whole.shape == (len(fitted.X), 5)
    np.testing.assert_array_equal(whole, functions(fitted.X))
    close(np.concatenate([functions(fitted.X[:50]), functions(fitted.X[50:])]), whole)
    np.testing.assert_array_equal(whole, fitted.model.sample_functions(5, random_state=0)(fitted.X))
    assert not np.allclose(whole, fitted.model.sample_functions(5, random_state=1)(fitted.X))
    assert len(np.unique(whole[0])) == 5


def test_functions_have_the_mean_and_the_noise_free_variance(fitted: Fitted) -> None:
    n = 1600
    draws = fitted.model.sample_functions(n, random_state=0)(fitted.X)
    dist = fitted.model.predict_dist(fitted.X)
    calibration = fitted.model.calibration_
    assert calibration is not None
    assert abs(math.log(calibration.mean_scale)) > 0.1
    own = dist.variances[:2].numpy() / calibration.scales[0] - fitted.model.noise_[:, None]
    std = np.sqrt(calibration.mean_scale * own.mean(0) + dist.means[:2].numpy().var(0))
    assert (np.abs(draws.mean(1) - dist.mean.numpy()) < 5 * std / math.sqrt(n)).all()
    assert (np.abs(draws.std(1) / std - 1) < 0.3).all()
    assert abs(np.median(draws.std(1) / std) - 1) < 0.05


def test_evaluate_equals_the_metrics_by_hand(fitted: Fitted) -> None:
    X, y = easy(80, seed=5)
    found = fitted.model.evaluate(X, y)
    dist = fitted.model.predict_dist(X)
    assert dist.weights is not None
    means, stds, shares = dist.means.numpy(), dist.variances.sqrt().numpy(), dist.weights.numpy()
    error = y - fitted.model.predict(X)
    lower, upper = fitted.model.predict_interval(X)
    log_density = logsumexp(stats.norm.logpdf(y, means, stds), axis=0, b=shares[:, None])
    grid = np.linspace((means - 12 * stds).min(), (means + 12 * stds).max(), 40_001)
    crps = [
        np.trapezoid((stats.norm.cdf(grid[:, None], means[:, k], stds[:, k]) @ shares - (grid >= y[k])) ** 2, grid)
        for k in range(len(y))
    ]
    close(found["mae"], np.abs(error).mean())
    close(found["rmse"], math.sqrt((error**2).mean()))
    close(found["nll"], -log_density.mean())
    close(found["crps"], np.mean(crps), rtol=1e-3)
    assert found["coverage_95"] == pytest.approx(((lower <= y) & (y <= upper)).mean())
    close(found["width_95"], (upper - lower).mean())
    close(fitted.model.score(X, y), r2_score(y, fitted.model.predict(X)))


def test_the_target_s_units_do_not_matter() -> None:
    X, y = easy()
    assert make_plan(small(), len(X)).settings.dtype == torch.float64
    one, other = small(epochs=20).fit(X, y), small(epochs=20).fit(X, 1000 * y + 5)
    mean, std = one.predict(X, return_std=True)
    mean_other, std_other = other.predict(X, return_std=True)
    close(mean_other, 1000 * mean + 5, rtol=1e-6)
    close(std_other, 1000 * std, rtol=1e-6)
    close(other.noise_, 1e6 * one.noise_, rtol=1e-6)
    close(other.validation_["nll"], one.validation_["nll"] + math.log(1000), rtol=1e-6)
    close(other.validation_["rmse"], 1000 * one.validation_["rmse"], rtol=1e-6)
    close(other.sample_functions(2, 0)(X), 1000 * one.sample_functions(2, 0)(X) + 5, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 120, 121])
def test_rows_in_pieces_are_predicted_like_all_at_once(
    fitted: Fitted, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    whole = [fitted.model.predict(fitted.X, return_std=True), fitted.of_table.predict(fitted.table, return_std=True)]
    monkeypatch.setattr(predictions, "_PREDICT_ROWS", rows)
    parts = [fitted.model.predict(fitted.X, return_std=True), fitted.of_table.predict(fitted.table, return_std=True)]
    close(parts, whole, rtol=1e-10, atol=1e-12)


def test_a_bad_row_far_down_is_named_by_its_place_in_the_table(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_PREDICT_ROWS", 10)
    X = fitted.X.copy()
    X[25, 1] = np.inf
    with pytest.raises(InputError, match=r"column 1 has 1 infinite.*row 25\b"):
        fitted.model.predict(X)


# --- tables


def test_a_mixed_table_with_holes_and_unseen_categories(fitted: Fitted) -> None:
    new = fitted.table.copy()
    new["color"] = "violet"
    new.loc[3, ["size", "color", "when"]] = None
    mean, std = fitted.of_table.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert list(fitted.of_table.feature_names_in_) == list(fitted.table.columns)
    assert fitted.of_table.n_features_in_ == 6
    for row in (0, 3, 50):
        close(fitted.of_table.predict(new.iloc[[row]]), mean[[row]], rtol=1e-10)


def test_a_constant_column_has_no_influence(fitted: Fitted) -> None:
    np.testing.assert_array_equal(
        fitted.of_table.predict(fitted.table.assign(same=8)), fitted.of_table.predict(fitted.table)
    )


def test_an_index_of_any_kind_is_ignored(fitted: Fitted) -> None:
    relabelled = fitted.table.set_axis(np.arange(len(fitted.table))[::-1] + 1000, axis=0)
    np.testing.assert_array_equal(fitted.of_table.predict(relabelled), fitted.of_table.predict(fitted.table))
    again = small(epochs=30).fit(relabelled, pd.Series(fitted.y_table, index=relabelled.index))
    np.testing.assert_array_equal(again.predict(fitted.table), fitted.of_table.predict(fitted.table))


def test_lists_and_frames_of_numbers_are_like_arrays(fitted: Fitted) -> None:
    frame = pd.DataFrame(fitted.X, columns=["a", "b", "c"])
    expected = fitted.model.predict(fitted.X)
    np.testing.assert_array_equal(fitted.model.predict(fitted.X.tolist()), expected)
    np.testing.assert_array_equal(small(epochs=30).fit(frame, fitted.y).predict(frame), expected)


def test_names_on_one_side_only_give_one_warning(fitted: Fitted) -> None:
    frame = pd.DataFrame(fitted.X, columns=["a", "b", "c"])
    with pytest.warns(UserWarning, match="fitted without feature names") as seen:
        fitted.model.predict(frame)
    assert len(seen) == 1


# --- scikit-learn's tools


def test_in_a_pipeline(fitted: Fitted) -> None:
    pipeline = make_pipeline(StandardScaler(), small()).fit(fitted.X, fitted.y)
    by_hand = StandardScaler().fit(fitted.X)
    expected = small().fit(by_hand.transform(fitted.X), fitted.y).predict(by_hand.transform(fitted.X))
    np.testing.assert_array_equal(pipeline.predict(fitted.X), expected)
    mean, std = pipeline.predict(fitted.X, return_std=True)
    np.testing.assert_array_equal(mean, expected)
    assert (std > 0).all()


def test_in_a_grid_search(fitted: Fitted) -> None:
    search = GridSearchCV(small(), {"rank": [4, 8], "method": ["dbk-silu", "dnn"]}, cv=2).fit(fitted.X, fitted.y)
    best = small(**search.best_params_).fit(fitted.X, fitted.y)
    np.testing.assert_array_equal(search.predict(fitted.X), best.predict(fitted.X))
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()


def test_in_cross_validation(fitted: Fitted) -> None:
    folds = KFold(3, shuffle=True, random_state=0)
    found = cross_val_predict(small(), fitted.table, fitted.y_table, cv=folds)
    for train, test in folds.split(fitted.table):
        model = small().fit(fitted.table.iloc[train], fitted.y_table[train])
        np.testing.assert_array_equal(found[test], model.predict(fitted.table.iloc[test]))


def test_clones_are_unfitted_equals(fitted: Fitted) -> None:
    copy = clone(fitted.model)
    assert copy.get_params() == fitted.model.get_params()
    assert not hasattr(copy, "models_")
    np.testing.assert_array_equal(copy.fit(fitted.X, fitted.y).predict(fitted.X), fitted.model.predict(fitted.X))


def test_fit_leaves_its_parameters_alone(fitted: Fitted) -> None:
    model = DeepBasisRegressor(epochs=2, members=1, rank=4)
    before = model.get_params()
    model.fit(fitted.X, fitted.y)
    assert model.get_params() == before


def test_with_a_transformed_target(fitted: Fitted) -> None:
    wrapped = TransformedTargetRegressor(small(), func=np.log, inverse_func=np.exp).fit(fitted.X, np.exp(fitted.y))
    close(wrapped.predict(fitted.X), np.exp(small().fit(fitted.X, fitted.y).predict(fitted.X)), rtol=1e-6)


# --- randomness


@pytest.mark.parametrize("random_state", [None, 0])
def test_the_global_random_states_are_left_as_they_were(random_state: int | None) -> None:
    X, y = easy(40)
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    model = small(random_state=random_state, method="dbk-rbf").fit(X, y)
    model.sample_y(X, 3, random_state=random_state)
    model.sample_functions(3, random_state=random_state)(X)
    assert torch.equal(torch.get_rng_state(), before_torch)
    after = np.random.get_state()  # noqa: NPY002
    assert after[0] == before_numpy[0]
    np.testing.assert_array_equal(after[1], before_numpy[1])
    assert after[2:] == before_numpy[2:]


def test_a_seed_decides_everything(fitted: Fitted) -> None:
    def predicted(random_state: Any, **changes: Any) -> Floats:
        return small(random_state=random_state, **changes).fit(fitted.X, fitted.y).predict(fitted.X)

    batches = {"batch_size": 32}
    np.testing.assert_array_equal(predicted(3, **batches), predicted(np.int64(3), **batches))
    np.testing.assert_array_equal(
        predicted(np.random.RandomState(3)),
        predicted(np.random.RandomState(3)),
    )
    assert not np.allclose(predicted(3), predicted(4))
    assert not np.allclose(predicted(None), predicted(None))


def test_a_random_state_moves_on_and_its_members_differ(fitted: Fitted) -> None:
    state = np.random.RandomState(3)
    one, two = (small(random_state=state).fit(fitted.X, fitted.y) for _ in range(2))
    assert not np.allclose(one.predict(fitted.X), two.predict(fitted.X))
    means = one.predict_dist(fitted.X).means
    assert not torch.allclose(means[0], means[1])


# --- the inner split


def held_out(table: Table, fraction: float = 0.1) -> tuple[set[tuple[float, ...]], set[tuple[float, ...]]]:
    """The distinct rows to train on and to validate on."""
    inside, outside = table.split(fraction)
    return {tuple(row) for row in np.asarray(inside.X)}, {tuple(row) for row in np.asarray(outside.X)}


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
def test_a_split_holds_out_its_share_and_loses_nothing(fraction: float) -> None:
    X, y = easy(200)
    inside, outside = held_out(Table(X, y), fraction)
    assert len(inside) + len(outside) == 200
    assert not inside & outside
    assert fraction * 200 - 1 <= len(outside) <= fraction * 200 + 1


def test_identical_rows_stand_on_one_side() -> None:
    X, y = easy(20)
    inside, outside = held_out(Table(np.repeat(X, 5, axis=0), np.repeat(y, 5)), 0.3)
    assert not inside & outside
    assert len(inside) + len(outside) == 20
    assert inside
    assert outside


@pytest.mark.parametrize("seed", range(5))
def test_a_group_stands_on_one_side_also_through_identical_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 30, size=(100, 1)).astype(float), rng.normal(size=100)
    groups = rng.integers(0, 60, size=100)
    X, y, groups = (
        np.concatenate([X, 100 + X[:50]]),
        np.concatenate([y, y[:50]]),
        np.concatenate([groups, 200 + groups[:50]]),
    )
    inside, outside = Table(X, y, None, groups).split(0.3)
    assert len(inside.y) + len(outside.y) == 150
    assert inside.groups is not None
    assert outside.groups is not None
    assert not set(inside.groups.tolist()) & set(outside.groups.tolist())
    assert not {*inside.X[:, 0]} & {*outside.X[:, 0]}


def test_a_split_depends_on_neither_order_nor_repetition_nor_the_names_of_groups() -> None:
    X, y = easy(100)
    weight = np.random.default_rng(1).integers(1, 4, size=100)
    groups = np.arange(100) // 2
    order = np.random.default_rng(2).permutation(100)
    weighted = held_out(Table(X, y, weight.astype(float)))
    assert held_out(Table(X[order], y[order], weight[order].astype(float))) == weighted
    assert held_out(Table(np.repeat(X, weight, axis=0), np.repeat(y, weight))) == weighted
    grouped = held_out(Table(X, y, None, groups))
    assert held_out(Table(X, y, None, np.array([f"g{999 - g}" for g in groups]))) == grouped
    assert held_out(Table(X[order], y[order], None, groups[order])) == grouped
    assert grouped != held_out(Table(X, y))


def test_groups_change_which_rows_are_validated_on() -> None:
    X, y = easy(60)
    groups = np.arange(60) // 20
    model = small().fit(X, y, groups=groups)
    inside, outside = Table(X, y, None, groups).split(model.validation_fraction)
    assert set(np.unique(outside.groups)).isdisjoint(np.unique(inside.groups))
    assert len(outside.y) == 20
    close(model.validation_["rmse"], model.evaluate(outside.X, outside.y)["rmse"])
    close(model.target_.mean, inside.y.mean())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": "mml"},
        {"method": "sv-dkl"},
        {"method": "sv-rbf", "objective": "mml"},
        {"method": "dnn"},
        {"calibrate": False},
    ],
    ids=str,
)
def test_an_integer_weight_is_a_repetition(changes: dict[str, Any]) -> None:
    X, y = easy(80)
    weight = np.random.default_rng(0).integers(0, 4, size=80)
    weighted = small(epochs=10, **changes).fit(X, y, sample_weight=weight)
    repeated = small(epochs=10, **changes).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    close(weighted.predict(X, True), repeated.predict(X, True), rtol=1e-6, atol=1e-8)
    close(weighted.noise_, repeated.noise_, rtol=1e-6)
    if changes.get("calibrate", True):
        close(weighted.calibration_.scales, repeated.calibration_.scales, rtol=1e-7)
        close(weighted.calibration_.weights, repeated.calibration_.weights, rtol=1e-7)
    close(weighted.history_[0]["validation"], repeated.history_[0]["validation"], rtol=1e-6)
    assert weighted.validation_ == pytest.approx(repeated.validation_, rel=1e-6)


def test_rows_of_weight_zero_are_no_rows() -> None:
    X, y = easy(80)
    weight = np.ones(80)
    weight[::7] = 0
    y_wild = np.where(weight == 0, 1e9, y)
    with_zeros = small().fit(X, y_wild, sample_weight=weight)
    without = small().fit(X[weight > 0], y[weight > 0])
    close(with_zeros.predict(X, True), without.predict(X, True), rtol=1e-9)


def test_a_given_validation_table_is_used_and_all_rows_are_trained_on() -> None:
    X, y = easy(100)
    X_val, y_val = easy(25, seed=9)
    model = small(epochs=20).fit(X, y, X_val=X_val, y_val=y_val)
    assert model.target_.mean == pytest.approx(y.mean())
    np.testing.assert_array_equal(model.preprocessor_.transform(X), Preprocessor.fit(X).transform(X))
    found = {name: value for name, value in model.validation_.items() if name != "nll_constant"}
    assert found == pytest.approx(model.evaluate(X_val, y_val), rel=1e-9)
    other = small(epochs=20).fit(X, y, X_val=X_val, y_val=-y_val)
    close(other.history_[0]["train_loss"][:3], model.history_[0]["train_loss"][:3])  # trained alike, validated not
    assert not np.allclose(other.history_[0]["validation"][:3], model.history_[0]["validation"][:3])


# --- what "auto" comes to


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


# --- what is left after a fit


def test_a_fit_that_fails_leaves_the_one_before() -> None:
    X, y = easy()
    model = small().fit(X, y)
    before, attributes = model.predict(X), set(vars(model))
    with pytest.raises(InputError, match="X_val"):
        model.fit(100.0 * X + 5.0, 1000.0 * y, X_val=X[:, :2], y_val=y)
    model.learning_rate = 1e300
    with pytest.raises(NumericalError):
        model.fit(100.0 * X + 5.0, 1000.0 * y)
    np.testing.assert_array_equal(model.predict(X), before)
    assert set(vars(model)) == attributes


def test_a_first_fit_that_fails_leaves_nothing() -> None:
    X, y = easy()
    model = small(learning_rate=1e300)
    with pytest.raises(NumericalError):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("value", [1.0, "red"], ids=str)
def test_a_column_may_have_its_only_values_among_the_rows_held_out(value: Any, tmp_path: Path) -> None:
    """Whichever rows these are: it then says nothing."""
    X, y = easy(60)
    widths = set()
    for row in range(0, 60, 4):
        table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(rare=pd.Series([value], [row]))
        model = small(epochs=1, members=1).fit(table, y)
        model.save(tmp_path / "model")
        loaded = DeepBasisRegressor.load(tmp_path / "model", device="cpu")
        np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
        widths.add(model.preprocessor_.width)
    assert min(widths) == 3 < max(widths)
    with pytest.raises(InputError, match="'rare' has no values at all"):
        small().fit(table.assign(rare=np.nan), y)


def test_one_group_leaves_nothing_to_hold_out() -> None:
    X, y = easy()
    with pytest.raises(InputError, match=r"one group.*rows to validate on"):
        small().fit(X, y, groups=np.zeros(len(X)))


def test_a_few_cells_that_are_no_numbers_are_told() -> None:
    X, y = easy()
    cells = pd.Series(X[:, 0]).round(3).astype(str)
    cells[[3, 50]] = "?"
    table = pd.DataFrame({"power": cells, "b": X[:, 1]})
    with pytest.warns(FitWarning, match=r"column 'power' holds text.*numbers.*'\?'.*categories.*to_numeric") as seen:
        small().fit(table, y)
    assert [str(warning.filename) for warning in seen] == [__file__]


def test_numbers_that_are_meant_as_categories_are_not_told() -> None:
    X, y = easy()
    zips = pd.Series(np.arange(len(X)) % 60 + 10_000)
    table = pd.DataFrame({"zip": zips.astype(str), "kind": zips.astype("category"), "b": X[:, 1]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small().fit(table, y)


def test_names_of_a_table_before_are_forgotten() -> None:
    X, y = easy()
    model = small().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y).fit(X, y)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(("offset", "scale"), [(1e8, 1.0), (0.0, 1e20), (0.0, 1e-24)])
def test_validation_is_told_in_all_digits(offset: float, scale: float, tmp_path: Path) -> None:
    X, y = easy(300)
    ours, usual = (small(dtype="float32").fit(X, target) for target in (offset + scale * y, y))
    for name in ("mae", "rmse", "crps", "width_95"):
        assert ours.validation_[name] == pytest.approx(scale * usual.validation_[name], rel=1e-3)
    for name in ("coverage_95", "calibration_error"):
        assert ours.validation_[name] == pytest.approx(usual.validation_[name], abs=1e-6)
    assert ours.validation_["nll"] == pytest.approx(usual.validation_["nll"] + math.log(scale), abs=1e-3)
    ours.save(tmp_path / "model")
    assert DeepBasisRegressor.load(tmp_path / "model").validation_ == ours.validation_


def test_of_pairs_those_that_failed_come_last() -> None:
    """However good the members that are left."""
    outcomes = [SimpleNamespace(best_score=score) for score in (5.0, 4.0, 1.0)]
    whole, better, half, nothing = outcomes[:2], [outcomes[1]] * 2, outcomes[2:], []
    order = sorted([nothing, half, whole, better], key=estimator._failed_then_score)  # type: ignore[arg-type]
    assert order == [better, whole, half, nothing]


def test_patience_is_heard_of_a_kernel_too() -> None:
    X, y = easy(100)
    model = small(method="sv-rbf", objective="mml", epochs=300, patience=2, learning_rate=0.3).fit(X, y)
    assert {len(history["validation"]) < 300 for history in model.history_} == {True}


def test_a_torch_device_is_as_good_as_its_name(tmp_path: Path) -> None:
    X, y = easy()
    model = small(device=torch.device("cpu")).fit(X, y)
    model.save(tmp_path / "model")
    loaded = DeepBasisRegressor.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert (loaded.device, loaded.rows_) == ("cpu", len(X))


@pytest.mark.parametrize(("ids", "quantiles"), [(["mean"], []), ([], [0.1, 0.1]), (["k", "k"], [])])
def test_predictions_have_no_column_twice(tmp_path: Path, ids: list[str], quantiles: list[float]) -> None:
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    model = small().fit(table, y)
    table.assign(mean=1.0, k=2.0).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="twice"):
        model.predict_dataset(tmp_path / "t.parquet", tmp_path / "out", ids=ids, quantiles=quantiles)
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.parametrize("method", ["dbk-silu", "sv-dkl"])
def test_fitted_attributes_are_consistent(method: str) -> None:
    X, y = easy(150)
    model = small(method=method, epochs=25, learning_rate=1e-2).fit(X, y)
    inside, outside = Table(X, y).split(model.validation_fraction)
    assert (model.target_.mean, model.target_.scale) == pytest.approx((inside.y.mean(), inside.y.std()))
    dist = model.predict_dist(outside.X)
    for k, history in enumerate(model.history_):
        assert set(history) == {"train_loss", "validation", "noise"}
        assert {len(values) for values in history.values()} == {25}
        best = int(np.argmin(history["validation"]))
        close(model.noise_[k], history["noise"][best] * model.target_.scale**2, rtol=1e-9)
        own = dist.variances[k].numpy() / model.calibration_.scales[0]
        std = np.sqrt(own)
        z = (outside.y - dist.means[k].numpy()) / std
        crps = std * (z * (2.0 * stats.norm.cdf(z) - 1.0) + 2.0 * stats.norm.pdf(z) - 1.0 / math.sqrt(math.pi))
        close(history["validation"][best], crps.mean() / model.target_.scale, rtol=1e-6)
    found = dict(model.validation_)
    constant = found.pop("nll_constant")
    assert found == pytest.approx(model.evaluate(outside.X, outside.y), rel=1e-9)
    close(constant, -stats.norm.logpdf(outside.y, inside.y.mean(), inside.y.std()).mean())
    used = {"dppgp": (0.1, 0.1), "ppgp": (0.0, 0.1), "elbo": (0.0, 1.0), "mse": (0.0, 0.0)}
    assert (model.alpha_, model.beta_) == used[METHODS[method].objective]


def test_patience_ends_a_fit_when_its_last_member_stops() -> None:
    """A member that has stopped keeps its best, and its history ends there."""
    X, y = easy(100)
    model = small(members=3, epochs=200, patience=3, learning_rate=0.1).fit(X, y)
    stops = []
    for k, history in enumerate(model.history_):
        best, best_epoch = math.inf, 0
        for epoch, score in enumerate(history["validation"].tolist(), start=1):
            if score < best:
                best, best_epoch = score, epoch
            elif epoch - best_epoch >= 3:
                break
        stops.append(epoch)
        close(model.noise_[k], history["noise"][best_epoch - 1] * model.target_.scale**2)
    assert [len(history["validation"]) for history in model.history_] == stops
    assert max(stops) < 200
    assert min(stops) < max(stops)


def test_a_network_s_variance_is_that_of_its_validation_residuals() -> None:
    X, y = easy(150)
    model = small(method="dnn", epochs=40).fit(X, y)
    _, outside = Table(X, y).split(model.validation_fraction)
    dist = model.predict_dist(outside.X)
    residuals = outside.y - dist.means[:2].numpy()
    close(model.noise_, (residuals**2).mean(1), rtol=1e-6)
    expected = np.outer(model.calibration_.scales, model.noise_).reshape(-1, 1)
    close(dist.variances.numpy(), np.broadcast_to(expected, dist.variances.shape), rtol=1e-6)
    far = model.predict_dist(1000 * X)
    close(far.variances.numpy(), np.broadcast_to(expected, far.variances.shape), rtol=1e-6)


# --- calibration of the variance


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
    plain, model = calibrated_pair(X, y, epochs=20, **changes)
    _, outside = Table(X, y).split(model.validation_fraction)
    assert plain.calibration_ is None
    assert_scaled(model.calibration_, plain.predict_dist(X), model.predict_dist(X))
    expected = calibrate(plain.predict_dist(outside.X), torch.from_numpy(outside.y))
    close(model.calibration_.scales, expected.scales, rtol=1e-5)
    close(model.calibration_.weights, expected.weights, rtol=1e-5)
    close(model.predict(X), plain.predict(X), atol=1e-12)
    np.testing.assert_array_equal(model.noise_, plain.noise_)
    np.testing.assert_array_equal(model.history_[0]["validation"], plain.history_[0]["validation"])
    assert model.validation_["nll"] != plain.validation_["nll"]
    assert model.validation_["nll_constant"] == plain.validation_["nll_constant"]
    found = {name: value for name, value in model.validation_.items() if name != "nll_constant"}
    assert found == pytest.approx(model.evaluate(outside.X, outside.y), rel=1e-4)


def test_auto_calibrates_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = easy(60)
    off, on = (fit.calibration_ for fit in calibrated_pair(X, y))
    assert on is not None
    for answer, expected in ((False, off), (True, on)):
        monkeypatch.setattr(arguments, "RECIPES", {"default": replace(RECIPES["default"], calibrate=answer)})
        assert small().fit(X, y).calibration_ == expected
        assert small(calibrate=not answer).fit(X, y).calibration_ == (off if answer else on)


def test_the_paper_s_recipe_does_not_calibrate_and_the_default_does() -> None:
    assert {name: recipe.calibrate for name, recipe in RECIPES.items()} == {"default": True, "paper": False}


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
    settings = {"epochs": 150, "learning_rate": 1e-2, "rank": 16, "width": 16}
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
    assert_scaled(model.calibration_, *(fit.predict_dist(table[["a", "b", "c"]]) for fit in (plain, model)))


WORKER = """
import sys
from deepbasis import DeepBasisRegressor
from deepbasis.commands.together import working_together
with working_together("cpu") as team:
    model = DeepBasisRegressor(
        members=2, epochs=3, rank=4, width=4, blocks=1, alpha=0.1, beta=0.1,
        random_state=0, device="cpu", calibrate=True
    ).fit_dataset(sys.argv[1], "y", stream=True, team=team)
    found = team.gather_objects((model.calibration_, model.validation_))
    if team.first:
        assert model.calibration_ is not None
        assert found[0] == found[1], found
        print("alike")
"""


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


# --- warnings and interrupts


def test_a_model_worse_than_a_constant_is_told_what_to_try() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 2)), rng.normal(size=100)
    with pytest.warns(FitWarning, match=r"60 validation rows.*worse than.*constant Gaussian") as seen:
        model = small(epochs=10, calibrate=False).fit(X, 0.01 * y, X_val=X[:60], y_val=0.01 * y[:60] + 0.2)
    assert len(seen) == 1
    for word in ("more rows", "learning_rate", "alpha", "method"):
        assert word in str(seen[0].message)
    assert seen[0].filename == __file__
    assert model.validation_["nll"] > model.validation_["nll_constant"]
    assert np.isfinite(model.predict(X)).all()


def test_a_good_fit_is_silent() -> None:
    X, y = easy(400)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = small(epochs=150, learning_rate=1e-2, rank=16, width=16).fit(X, y)
    assert not seen
    assert model.validation_["nll"] < model.validation_["nll_constant"]


@pytest.mark.parametrize("doubtful", [1e-9, 1.0])
def test_rows_of_hardly_any_weight_do_not_spoil_the_verdict(doubtful: float) -> None:
    """Of the 100 validation rows half are predicted well, and the others far worse than by a constant."""
    X, y = easy(200)
    model = small(epochs=60, learning_rate=1e-2, calibrate=False).fit(X, y)
    rows = model._rows(Table(X[:100], y[:100]), torch.float64)
    worse = torch.where(torch.arange(100) < 50, rows.y, rows.y + 30.0)
    weight = torch.where(torch.arange(100) < 50, 1.0, doubtful).double()
    held_out = replace(rows, y=worse, weight=weight)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model._look_at(model.ensemble_.predict(rows.x), held_out, torch.zeros(()), torch.ones(()))
    assert len(seen) == (doubtful == 1.0)


def test_a_constant_target_is_no_fault() -> None:
    X, _ = easy(400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small().fit(X, np.full(len(X), 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, atol=0.2)


def test_a_limit_within_the_first_pass_is_told(tmp_path: Path) -> None:
    X, y = easy(400)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / "t.parquet")
    with pytest.warns(FitWarning, match=r"max_steps=3 is less than one pass .* 360 rows .* 6 steps") as seen:
        small(batch_size=64).fit_dataset(tmp_path / "t.parquet", "y", max_steps=3)
    assert seen[0].filename == __file__


class Interrupter:
    """Stands in for the progress bar, and presses Ctrl-C after the third epoch."""

    def __enter__(self) -> "Interrupter":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, report: Any) -> None:
        if report.epoch == 3:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_fit_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = easy(100)
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(estimator, "ProgressBar", Interrupter)
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(epochs=10_000, verbose=True, alpha="auto").fit(X, y)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert signal.getsignal(signal.SIGINT) is before
    assert {len(history["validation"]) for history in model.history_} == {3}
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert model.validation_["rmse"] > 0


def test_an_interrupt_before_the_first_epoch_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no model to return; a smaller learning_rate is not what helps."""
    X, y = easy(100)
    genuine = DeepBasisRegressor._build
    pressed = []

    def build(self: DeepBasisRegressor, member: Any) -> Any:
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return genuine(self, member)

    monkeypatch.setattr(DeepBasisRegressor, "_build", build)
    with pytest.raises((KeyboardInterrupt, NumericalError)) as error:
        small().fit(X, y)
    assert "learning_rate" not in str(error.value)
    if not isinstance(error.value, KeyboardInterrupt):
        assert "interrupted" in str(error.value)


def test_a_fit_that_blows_up_says_so() -> None:
    with pytest.raises(NumericalError, match=r"no member could be trained.*smaller learning_rate"):
        small(learning_rate=1e300).fit(*easy(40))


# --- hard tables


@pytest.mark.usefixtures("few_exact_steps")
@pytest.mark.parametrize("rows", [2, 3, 10, 20])
@pytest.mark.parametrize("method", ["auto", "dbk-silu", "dbk-rbf", "sv-rbf", "dnn"])
def test_few_rows(method: str, rows: int) -> None:
    X, y = easy(rows)
    model = small(method=method).fit(X, y)
    assert np.isfinite(model.predict(X, return_std=True)).all()
    assert all(math.isfinite(value) for value in model.validation_.values())


def hard_tables() -> dict[str, tuple[Any, Floats]]:
    X, y = easy(25)
    return {
        "one row many times": (np.repeat(X[:1], 25, axis=0), y),
        "two rows many times": (np.repeat(X[:2], 12, axis=0), y[:24]),
        "constant y": (X, np.full(25, 3.0)),
        "constant y, huge": (X, np.full(25, 1e12)),
        "constant X": (np.ones((25, 3)), y),
        "constant both": (np.ones((25, 3)), np.ones(25)),
        "wild X": (np.exp(100 * X), y),
        "huge y": (X, 1e100 * y),
        "tiny y": (X, 1e-100 * y),
        "far y": (X, 1e9 + y),
        "more columns than rows": (np.random.default_rng(0).normal(size=(25, 60)), y),
        "integers": (np.round(10 * X).astype(np.int64), np.round(10 * y).astype(np.int64)),
        "mostly missing": (np.where(np.arange(75).reshape(25, 3) % 12 == 0, X, np.nan) + np.eye(25, 3) * 0, y),
    }


@pytest.mark.usefixtures("few_exact_steps")
@pytest.mark.parametrize("name", hard_tables())
@pytest.mark.parametrize("method", ["auto", "dbk-silu", "dnn", "sv-rbf"])
def test_hard_tables(method: str, name: str) -> None:
    X, y = hard_tables()[name]
    if name == "mostly missing":
        X[0] = [1.0, 2.0, 3.0]
        X[1] = [2.0, 1.0, 5.0]
    model = small(method=method, objective="mml" if method == "sv-rbf" else None).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    spread = np.ptp(y.astype(float)) or 1.0
    assert (np.abs(mean - y.mean()) < 10 * spread).all()


# --- bad input


@dataclass(frozen=True)
class Bad:
    what: str
    call: Callable[[Fitted], Any]
    words: tuple[str, ...]
    error: type[Exception] = InputError


def option(words: tuple[str, ...], **changes: Any) -> Bad:
    """A bad constructor argument: the message names it and what was given."""
    (name, value), *_ = changes.items()
    return Bad(f"{name}={value!r:.30}", lambda d: small(**changes).fit(d.X, d.y), (name, *words))


def with_cell(array: Any, position: Any, value: Any) -> Any:
    changed = np.array(array)
    changed[position] = value
    return changed


def fit(words: tuple[str, ...], what: str, call: Callable[[Fitted], Any]) -> Bad:
    return Bad(what, call, words)


NAN, INF = float("nan"), float("inf")

BAD = [
    # options
    option(("'dbk'", "dbk-silu", "sv-dkl"), method="dbk"),
    option(("None", "one of"), method=None),
    option(("'papers'", "default", "paper"), recipe="papers"),
    option(("'exact'", "mml"), objective="exact"),
    option(("'waves'", "fourier"), embedding="waves"),
    Bad(
        "waves before no network",
        lambda d: small(method="sv-rbf", embedding="fourier").fit(d.X, d.y),
        ("sv-rbf", "no network", "'fourier'"),
    ),
    Bad("mse for weights", lambda d: small(method="vbll", objective="mse").fit(d.X, d.y), ("vbll", "mse", "dnn")),
    Bad("a network by mml", lambda d: small(method="dnn", objective="mml").fit(d.X, d.y), ("dnn", "objective", "mse")),
    option(("'tpu9'", "cpu"), device="tpu9"),
    option(("None", "cpu"), device=None),
    option(("mps",), device="mps"),
    option(("meta",), device="meta"),
    option(("'float16'", "float32"), dtype="float16"),
    option(("torch.float64", "float64"), dtype=torch.float64),
    option(("positive integer", "0"), rank=0),
    option(("positive integer", "-3"), rank=-3),
    option(("positive integer", "8.5"), rank=8.5),
    option(("positive integer", "'8'"), rank="8"),
    option(("positive integer", "True"), rank=True),
    option(("positive integer", "0"), width=0),
    option(("positive integer", "0"), blocks=0),
    option(("positive integer", "0"), members=0),
    option(("positive integer", "None"), members=None),
    option(("positive integer", "-1"), epochs=-1),
    option(("positive integer", "'many'"), epochs="many"),
    option(("positive integer", "0"), batch_size=0),
    option(("positive integer", "1.5"), batch_size=1.5),
    option(("positive integer", "0"), patience=0),
    option((">= 0", "-1"), alpha=-1),
    option(("number", "'x'"), alpha="x"),
    option(("finite", "nan"), alpha=NAN),
    option(("number",), alpha=np.array([0.1, 0.2])),
    option(("finite", "inf"), beta=INF),
    option((">= 0", "-0.5"), beta=-0.5),
    option(("number", "None"), beta=None),
    option(("> 0", "0"), learning_rate=0),
    option(("number", "'fast'"), learning_rate="fast"),
    option((">= 0", "-1"), weight_decay=-1),
    option(("between 0 and 1", "0"), validation_fraction=0),
    option(("between 0 and 1", "1"), validation_fraction=1),
    option(("between 0 and 1", "2"), validation_fraction=2),
    option(("number", "'some'"), validation_fraction="some"),
    option(("True, False or 'auto'", "'yes'"), calibrate="yes"),
    option(("True, False or 'auto'", "1"), calibrate=1),
    option(("True, False or 'auto'", "None"), calibrate=None),
    option(("finite", "nan"), validation_fraction=NAN),
    option(("True", "auto", "'yes'"), compile="yes"),
    option(("'x'",), random_state="x"),
    option(("-1",), random_state=-1),
    option(("1.5",), random_state=1.5),
    # the target
    fit(("y", "1 value", "NaN", "row 4", "remove"), "NaN in y", lambda d: small().fit(d.X, with_cell(d.y, 4, NAN))),
    fit(("y", "2 value", "inf", "row 7"), "inf in y", lambda d: small().fit(d.X, with_cell(d.y, [7, 9], -INF))),
    fit(("y", "beyond", "row 3", "units"), "huge y", lambda d: small().fit(d.X, with_cell(d.y, 3, 1e200))),
    fit(("y", "text", "'a'", "row 0", "convert"), "y of text", lambda d: small().fit(d.X, ["a"] * 120)),
    fit(("y", "dates", "row 0"), "y of dates", lambda d: small().fit(d.X, np.full(120, np.datetime64("2024-01-01")))),
    fit(("120 rows", "119"), "y too short", lambda d: small().fit(d.X, d.y[:-1])),
    fit(("y", "1d", "(120, 2)", "one model"), "two targets", lambda d: small().fit(d.X, np.stack([d.y, d.y], 1))),
    fit(("y", "None"), "no y", lambda d: small().fit(d.X, None)),
    fit(("y", "empty"), "empty y", lambda d: small().fit(d.X, [])),
    fit(("y", "Complex"), "complex y", lambda d: small().fit(d.X, d.y * 1j)),
    fit(("y", "1d"), "y is a number", lambda d: small().fit(d.X, 3.0)),
    # the table
    fit(
        ("column 1", "2 infinite", "row 5", "NaN"), "inf", lambda d: small().fit(with_cell(d.X, ([5, 8], 1), INF), d.y)
    ),
    fit(
        ("'size'", "infinite", "row 2"),
        "inf in a named column",
        lambda d: small().fit(d.table.assign(size=with_cell(np.zeros(120), 2, INF)), d.y),
    ),
    fit(("X", "empty", "0 sample"), "no rows", lambda d: small().fit(d.X[:0], d.y[:0])),
    fit(("X", "empty", "0 feature"), "no columns", lambda d: small().fit(d.X[:, :0], d.y)),
    fit(("at least 2 rows", "1"), "one row", lambda d: small().fit(d.X[:1], d.y[:1])),
    fit(
        ("duplicate", "'a'", "rename"),
        "columns of one name",
        lambda d: small().fit(pd.DataFrame(d.X, columns=["a", "b", "a"]), d.y),
    ),
    fit(("column 2", "no values", "drop"), "all missing", lambda d: small().fit(with_cell(d.X, (..., 2), NAN), d.y)),
    fit(
        ("'when'", "no values", "drop"),
        "all missing, named",
        lambda d: small().fit(d.table.assign(when=pd.NaT), d.y_table),
    ),
    fit(("2D", "Reshape"), "a vector", lambda d: small().fit(d.X[:, 0], d.y)),
    fit(("dim 3",), "three dimensions", lambda d: small().fit(d.X[..., None], d.y)),
    fit(("Series", "to_frame"), "a Series", lambda d: small().fit(d.table["size"], d.y)),
    fit(("column 0", "text", "DataFrame"), "an array of text", lambda d: small().fit(np.full((120, 2), "a"), d.y)),
    fit(("Complex",), "complex X", lambda d: small().fit(d.X * 1j, d.y)),
    fit(
        ("'bag'", "row 0", "list"),
        "cells that are lists",
        lambda d: small().fit(pd.DataFrame({"bag": [[1, 2]] * 120}), d.y),
    ),
    fit(
        ("'id'", "1200", "identifier", "drop"),
        "an identifier",
        lambda d: small().fit(pd.DataFrame({"id": [f"u{k}" for k in range(1200)]}), np.arange(1200.0)),
    ),
    fit(
        ("'when'", "9999", "row 0", "NaT"),
        "a date out of range",
        lambda d: small().fit(pd.DataFrame({"when": np.full(120, np.datetime64("9999-12-31", "s"))}), d.y),
    ),
    fit(("rows", "length"), "rows of different lengths", lambda d: small().fit([[1.0, 2.0], [3.0]] * 60, d.y)),
    # weights and groups
    fit(
        ("sample_weight", "negative", "row 6"),
        "a negative weight",
        lambda d: small().fit(d.X, d.y, with_cell(np.ones(120), 6, -1)),
    ),
    fit(("weight", "zero"), "no weight", lambda d: small().fit(d.X, d.y, np.zeros(120))),
    fit(
        ("sample_weight", "NaN", "row 1"),
        "NaN weight",
        lambda d: small().fit(d.X, d.y, with_cell(np.ones(120), 1, NAN)),
    ),
    fit(
        ("sample_weight", "inf", "row 1"),
        "inf weight",
        lambda d: small().fit(d.X, d.y, with_cell(np.ones(120), 1, INF)),
    ),
    fit(("sample_weight", "(119,)", "(120,)"), "weights too short", lambda d: small().fit(d.X, d.y, np.ones(119))),
    fit(("weights", "1D"), "weights of two columns", lambda d: small().fit(d.X, d.y, np.ones((120, 2)))),
    fit(("sample_weight", "text"), "weights of text", lambda d: small().fit(d.X, d.y, ["a"] * 120)),
    fit(("at least 2 rows", "1"), "one row with weight", lambda d: small().fit(d.X, d.y, np.eye(120)[0])),
    fit(("groups", "120", "119"), "groups too short", lambda d: small().fit(d.X, d.y, groups=np.arange(119))),
    fit(("groups", "120"), "groups are a word", lambda d: small().fit(d.X, d.y, groups="abc")),
    fit(
        ("groups", "missing", "row 3", "group of its own"),
        "a group missing",
        lambda d: small().fit(d.X, d.y, groups=with_cell(np.zeros(120), 3, NAN)),
    ),
    # the validation table
    fit(("X_val", "y_val", "both"), "X_val alone", lambda d: small().fit(d.X, d.y, X_val=d.X)),
    fit(("X_val", "y_val", "both"), "y_val alone", lambda d: small().fit(d.X, d.y, y_val=d.y)),
    fit(
        ("X_val", "y_val", "5", "4"),
        "lengths of X_val, y_val",
        lambda d: small().fit(d.X, d.y, X_val=d.X[:5], y_val=d.y[:4]),
    ),
    fit(("X_val", "2 features", "3"), "columns of X_val", lambda d: small().fit(d.X, d.y, X_val=d.X[:, :2], y_val=d.y)),
    fit(
        ("X_val", "color"),
        "names of X_val",
        lambda d: small().fit(d.table, d.y_table, X_val=d.table.drop(columns="color"), y_val=d.y_table),
    ),
    fit(("y_val", "NaN", "row 1"), "NaN in y_val", lambda d: small().fit(d.X, d.y, X_val=d.X[:2], y_val=[1, NAN])),
    fit(("y_val", "empty"), "empty y_val", lambda d: small().fit(d.X, d.y, X_val=d.X[:0], y_val=[])),
    # before a fit
    *(
        Bad(f"{name} before fit", call, ("not fitted",), NotFittedError)
        for name, call in {
            "predict": lambda d: small().predict(d.X),
            "predict_dist": lambda d: small().predict_dist(d.X),
            "predict_interval": lambda d: small().predict_interval(d.X),
            "predict_quantiles": lambda d: small().predict_quantiles(d.X, 0.5),
            "sample_y": lambda d: small().sample_y(d.X),
            "sample_functions": lambda d: small().sample_functions(),
            "evaluate": lambda d: small().evaluate(d.X, d.y),
            "score": lambda d: small().score(d.X, d.y),
            "save": lambda d: small().save("/nowhere/model.safetensors"),
        }.items()
    ),
    # prediction
    fit(("2 features", "expecting 3"), "a column too few", lambda d: d.model.predict(d.X[:, :2])),
    fit(("4 features", "expecting 3"), "a column too many", lambda d: d.model.predict(np.ones((2, 4)))),
    fit(("empty", "0 sample"), "no rows to predict", lambda d: d.model.predict(d.X[:0])),
    fit(("column 2", "infinite", "row 9"), "inf to predict", lambda d: d.model.predict(with_cell(d.X, (9, 2), INF))),
    fit(("2D", "Reshape"), "one row as a vector", lambda d: d.model.predict(d.X[0])),
    fit(("order", "'size', 'color'"), "another order", lambda d: d.of_table.predict(d.table[d.table.columns[::-1]])),
    fit(("missing", "- color"), "a column gone", lambda d: d.of_table.predict(d.table.drop(columns="color"))),
    fit(("unseen", "- extra"), "a column more", lambda d: d.of_table.predict(d.table.assign(extra=1))),
    fit(
        ("unseen", "- Size", "- size"),
        "a column renamed",
        lambda d: d.of_table.predict(d.table.rename(columns={"size": "Size"})),
    ),
    fit(
        ("'size'", "numeric", "text", "'big'", "to_numeric"),
        "numbers now text",
        lambda d: d.of_table.predict(d.table.assign(size="big")),
    ),
    fit(
        ("'when'", "date", "numeric", "to_datetime"),
        "dates now numbers",
        lambda d: d.of_table.predict(d.table.assign(when=1.5)),
    ),
    fit(
        ("'color'", "text", "date"),
        "text now dates",
        lambda d: d.of_table.predict(d.table.assign(color=pd.Timestamp("2024-01-01"))),
    ),
    fit(("'sold'", "boolean", "2.0"), "truth now numbers", lambda d: d.of_table.predict(d.table.assign(sold=2.0))),
    fit(("coverage", "1.5"), "coverage=1.5", lambda d: d.model.predict_interval(d.X, 1.5)),
    fit(("coverage", "0"), "coverage=0", lambda d: d.model.predict_interval(d.X, 0.0)),
    fit(("coverage", "'x'"), "coverage='x'", lambda d: d.model.predict_interval(d.X, "x")),
    fit(("coverage", "nan"), "coverage=NaN", lambda d: d.model.predict_interval(d.X, NAN)),
    fit(("level", "between 0 and 1", "1.5"), "q=1.5", lambda d: d.model.predict_quantiles(d.X, [0.5, 1.5])),
    fit(("level", "between 0 and 1", "0"), "q=0", lambda d: d.model.predict_quantiles(d.X, 0)),
    fit(("q", "'x'"), "q='x'", lambda d: d.model.predict_quantiles(d.X, "x")),
    fit(("q", "level"), "q=[]", lambda d: d.model.predict_quantiles(d.X, [])),
    fit(("q", "(1, 2)"), "q of two dimensions", lambda d: d.model.predict_quantiles(d.X, [[0.1, 0.2]])),
    fit(("q", "None"), "q=None", lambda d: d.model.predict_quantiles(d.X, None)),
    fit(("n must", "positive integer", "0"), "sample_y n=0", lambda d: d.model.sample_y(d.X, 0)),
    fit(("n must", "positive integer", "2.5"), "sample_y n=2.5", lambda d: d.model.sample_y(d.X, 2.5)),
    fit(("n must", "positive integer", "-1"), "sample_functions n=-1", lambda d: d.model.sample_functions(-1)),
    fit(("random_state", "'x'"), "sample_y random_state", lambda d: d.model.sample_y(d.X, 1, random_state="x")),
    fit(("X has 120 rows", "y has 3"), "evaluate y too short", lambda d: d.model.evaluate(d.X, d.y[:3])),
    fit(("y", "NaN", "row 1"), "evaluate NaN", lambda d: d.model.evaluate(d.X, with_cell(d.y, 1, NAN))),
    # files
    Bad(
        "load this file",
        lambda d: DeepBasisRegressor.load(__file__),
        ("test_estimator.py", "not a deepbasis file"),
        FileFormatError,
    ),
    Bad(
        "load a file that is not there",
        lambda d: DeepBasisRegressor.load("/nowhere/m"),
        ("/nowhere/m",),
        FileNotFoundError,
    ),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.what)
def test_bad_input_is_refused_with_the_place_and_the_remedy(fitted: Fitted, case: Bad) -> None:
    with pytest.raises(case.error) as error:
        case.call(fitted)
    message = str(error.value)
    missing = [word for word in case.words if word not in message]
    assert not missing, f"{missing} not in the message: {message}"


def test_there_are_enough_bad_inputs() -> None:
    assert len(BAD) >= 60
    assert len({case.what for case in BAD}) == len(BAD)


@pytest.mark.parametrize(
    "device", ["tpu9", pytest.param("cuda", marks=pytest.mark.skipif("torch.cuda.is_available()"))]
)
def test_loading_to_a_device_that_is_not_there_blames_the_device(fitted: Fitted, tmp_path: Path, device: str) -> None:
    path = tmp_path / "model.safetensors"
    fitted.model.save(path)
    with pytest.raises(InputError, match=f"device.*{device}"):
        DeepBasisRegressor.load(path, device=device)


def test_a_refused_fit_leaves_a_fitted_model_usable(fitted: Fitted) -> None:
    model = small().fit(fitted.X, fitted.y)
    before = model.predict(fitted.X)
    with pytest.raises(InputError):
        model.fit(fitted.X[:, :2], with_cell(fitted.y, 0, NAN))
    np.testing.assert_array_equal(model.predict(fitted.X), before)
