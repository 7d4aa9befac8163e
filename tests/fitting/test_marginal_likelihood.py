"""`log_marginal_likelihood` against the density of one dense Gaussian, in the units of the target."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from deepbasis import DeepBasisRegressor, InputError
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT: dict[str, Any] = {"objective": "mml", "dtype": "float64", "calibrate": False}


def fitted(X: Floats, y: Floats, weight: Floats | None = None, **changes: Any) -> DeepBasisRegressor:
    """To all rows: those that it validates on are others."""
    return small(**EXACT, **changes).fit(X, y, weight, X_val=X[:9] + 0.01, y_val=y[:9])


def dense(model: DeepBasisRegressor, X: Floats, y: Floats) -> list[float]:
    """log N(z; prior mean, Phi Phi^T + s I) of each member, less what Eq. 3 takes away, and the slope of y -> z."""
    x = torch.from_numpy(model.fitted_.preprocessor.transform(X))
    transform, step = model.fitted_.target.transform, 1e-6 * y.std()
    slope = (transform(y + step) - transform(y - step)) / (2 * step)
    found = []
    for member in model.fitted_.models:
        with torch.no_grad():
            phi, _, correction, _ = member.features(x)
            mean, s = member.prior_mean(x).expand(len(x)).numpy(), float(member.noise())
        density = multivariate_normal(mean, (phi @ phi.T).numpy() + s * np.eye(len(x))).logpdf(transform(y))
        missed = float(correction.sum()) / (2 * s) if member.corrected else 0.0
        found.append(density - missed + np.log(slope).sum())
    return found


@pytest.mark.parametrize("method", ["dbk-silu", "sv-rbf"])
@pytest.mark.parametrize("target", ["identity", "log"])
def test_it_is_the_density_of_all_rows_together(method: str, target: str) -> None:
    X, y = easy(50)
    y = 100.0 * np.exp(y)
    model = fitted(X, y, method=method, target=target)
    np.testing.assert_allclose(model.log_marginal_likelihood(), np.mean(dense(model, X, y)), rtol=1e-6)


def test_a_weight_is_a_number_of_rows() -> None:
    X, y = easy(40)
    count = np.arange(40) % 3
    weighted, repeated = fitted(X, y, count), np.repeat(np.arange(40), count)
    expected = np.mean(dense(weighted, X[repeated], y[repeated]))
    np.testing.assert_allclose(weighted.log_marginal_likelihood(), expected, rtol=1e-6)


def test_a_file_keeps_it_and_an_update_does_not(tmp_path) -> None:
    X, y = easy(40)
    model = fitted(X, y)
    model.save(tmp_path / "m")
    assert DeepBasisRegressor.load(tmp_path / "m").log_marginal_likelihood() == model.log_marginal_likelihood()
    with pytest.raises(InputError, match="after update, fit it again"):
        model.update(X, y).log_marginal_likelihood()


def test_another_objective_has_none() -> None:
    with pytest.raises(InputError, match="fit it exactly, with objective='mml'"):
        small(epochs=1).fit(*easy(40)).log_marginal_likelihood()
