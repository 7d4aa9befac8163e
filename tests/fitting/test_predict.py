"""The ways to predict agree with each other and with what is computed by hand."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics import r2_score

from deepbasis.errors import InputError
from support.regressors import Fitted, close, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_mean_and_std_are_those_of_the_distribution(fitted: Fitted) -> None:
    mean, std = fitted.model.predict(fitted.X, return_std=True)
    dist = fitted.model.predict_dist(fitted.X, as_tensor=True)
    close(fitted.model.predict(fitted.X), mean, atol=1e-15)  # without variances
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
    close(dist.cdf(upper) - dist.cdf(lower), coverage, rtol=1e-6)


def test_one_level_is_one_column(fitted: Fitted) -> None:
    one, two = fitted.model.predict_quantiles(fitted.X, 0.3), fitted.model.predict_quantiles(fitted.X, [0.1, 0.3])
    assert one.shape == (len(fitted.X), 1)
    close(one, two[:, 1:], rtol=1e-12, atol=1e-12)


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
    n, X = 800, fitted.X[:30]
    draws = fitted.model.sample_functions(n, random_state=0)(X)
    dist = fitted.model.predict_dist(X, as_tensor=True)
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
    dist = fitted.model.predict_dist(X, as_tensor=True)
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
    assert small().plan(X, y).candidates[0].settings.dtype == torch.float64
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
def test_rows_in_pieces_are_predicted_like_all_at_once(fitted: Fitted, rows: int) -> None:
    for model, X in ((fitted.model, fitted.X), (fitted.of_table, fitted.table)):
        parts = model.fitted_.predict(X, rows=rows)
        close([parts.mean, parts.std], model.predict(X, return_std=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"trend": "linear"}, {"target": "warp"}], ids=str)
def test_a_kernel_predicts_with_all_digits(options: dict[str, str]) -> None:
    """A row's mean and std do not depend on its company: in float32 a product with K_ZZ^(-1/2) loses four digits."""
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(150, 3)), rng.normal(size=(60, 3))
    options = {"method": "sv-rbf", "objective": "mml", "rank": 100, "dtype": "float32", **options}
    model = small(**options).fit(X, np.exp(np.sin(X[:, 0])) + 0.01 * X[:, 1])
    mean, std = model.predict(new, return_std=True)
    for k in range(0, len(new), 7):
        alone = np.concatenate(model.predict(new[k : k + 1], return_std=True))
        assert np.abs(alone - [mean[k], std[k]]).max() < 1e-8 * std[k]


def test_a_bad_row_far_down_is_named_by_its_place_in_the_table(fitted: Fitted) -> None:
    X = fitted.X.copy()
    X[25, 1] = np.inf
    with pytest.raises(InputError, match=r"column 1 has 1 infinite.*row 25\b"):
        fitted.model.fitted_.predict(X, rows=10)


@pytest.mark.parametrize(("ids", "quantiles"), [(["mean"], []), ([], [0.1, 0.1]), (["k", "k"], [])])
def test_predictions_have_no_column_twice(tmp_path: Path, ids: list[str], quantiles: list[float]) -> None:
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    model = small().fit(table, y)
    table.assign(mean=1.0, k=2.0).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="twice"):
        model.predict_dataset(tmp_path / "t.parquet", tmp_path / "out", ids=ids, quantiles=quantiles)
    assert not list((tmp_path / "out").glob("*.parquet"))
