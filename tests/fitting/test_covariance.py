"""The covariance between rows: its diagonal is the variance, and it is that of functions drawn from the model."""

import numpy as np
import pytest
import torch

from deepbasis import InputError, build
from support.regressors import easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("method", ["dbk-silu", "sv-rbf-linear", "pp-dkl", "dnn"])
def test_its_diagonal_is_the_variance(method):
    X, y = easy(60)
    model = small(method=method, target="identity", dtype="float64").fit(X, y)
    mean, covariance = model.predict(X, return_cov=True)
    expected, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-5)
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-9, atol=1e-12)
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_functions_drawn_from_the_members_have_it():
    X, y = easy(40)
    model = small(target="identity", dtype="float64").fit(X, y)
    _, covariance = model.predict(X[:6], return_cov=True)
    x = torch.from_numpy(model.fitted_.preprocessor.transform(X[:6]))
    drawn, scale, size = [], model.calibration_.mean_scale, model.fitted_.target.scale
    for member in model.fitted_.models:  # as many from each
        functions = member.sample_functions(20_000, generator=torch.Generator().manual_seed(0))(x)
        drawn.append(torch.lerp(member.mean_at(x), functions, scale**0.5).detach().numpy() * size)
    expected = np.cov(np.concatenate(drawn).T) + scale * model.noise_.mean() * np.eye(6)
    np.testing.assert_allclose(covariance, expected, atol=0.03 * covariance.max())  # chance: 1 / sqrt(40,000)


def test_before_any_row_is_seen_it_is_the_full_kernel():
    """q(w) = N(0, I): the basis gives Phi Phi^T, and the correction of Eq. 4 the rest of the kernel."""
    model = build("sv-rbf", 2, rank=5, seed=0).double()
    model.posterior.set_(torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64))
    x = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.covariance(x), model.expansion.kernel(x, x), rtol=1e-9, atol=1e-9)


def test_what_has_no_covariance_is_refused():
    X, y = easy(40)
    model = small(target="warp").fit(X, y)
    with pytest.raises(InputError, match="return_cov is for a target that is not transformed"):
        model.predict(X, return_cov=True)
    with pytest.raises(InputError, match="cannot both"):
        model.predict(X, return_std=True, return_cov=True)
