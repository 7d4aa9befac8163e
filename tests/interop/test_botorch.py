"""A fit inside of BoTorch: the joint distribution, its gradients, and conditioning, against dense algebra."""

from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient, qLogExpectedImprovement
from botorch.models.model import ModelList
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.fitting.covariance import covariance
from deepbasis.gp import exact
from deepbasis.interop.botorch import DeepBasisModel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # GPyTorch uses what is deprecated in torch
    pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning"),  # models that have hardly been trained
]

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(60, 2))
Y = 3.0 * np.sin(4.0 * X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=60)


def fit(**options: Any) -> DeepBasisRegressor:
    small = {"random_state": 0, "epochs": 5, "members": 2, "rank": 8, "inner": 16, "target": "identity"}
    return DeepBasisRegressor(**{**small, "method": "dbk-silu", **options}).fit(X, Y)


@pytest.fixture(scope="module")
def regressor() -> DeepBasisRegressor:
    return fit()


@pytest.fixture(scope="module")
def model(regressor: DeepBasisRegressor) -> DeepBasisModel:
    return DeepBasisModel(regressor.fitted_)


def points(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(*shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("method", ["dbk-silu", "sv-rbf-linear"])
def test_posteriors_are_those_of_the_regressor(method: str) -> None:
    found = fit(method=method)
    at = points(3, 4)  # a batch of three, of four points each
    joint = DeepBasisModel(found.fitted_).posterior(at, observation_noise=True).distribution
    for k in range(3):
        mean = found.predict(at[k].numpy())
        np.testing.assert_allclose(joint.mean[k], mean, atol=2e-4 * Y.std())  # float64 beside float32
        np.testing.assert_allclose(
            joint.covariance_matrix[k], covariance(found.fitted_, at[k].numpy()), atol=1e-6, rtol=1e-4
        )


def test_gradients_in_x_are_differences(model: DeepBasisModel) -> None:
    def both(at: torch.Tensor) -> torch.Tensor:
        found = model.condition_on_observations(points(3, seed=5), torch.ones(3, 1).double()).posterior(at)
        return torch.cat([found.mean.flatten(), found.variance.flatten(), found.distribution.covariance_matrix[0]])

    assert torch.autograd.gradcheck(both, points(2, seed=2).requires_grad_(), eps=1e-6, atol=1e-5)


def test_conditioning_of_an_exact_posterior_is_that_of_all_rows() -> None:
    """Eq. 10 of some rows, then the others as observations: the same as Eq. 10 of all of them."""
    found = fit(members=1, calibrate=False).fitted_
    encoded = torch.from_numpy(found.preprocessor.transform(X))
    y = torch.from_numpy((Y - found.target.mean) / found.target.scale)

    def after(rows: slice) -> DeepBasisModel:
        model = DeepBasisModel(found)
        exact.fit_posterior(model.members[0], lambda: [(encoded[rows], y[rows])])
        return model

    new, observed = torch.from_numpy(X[40:]), torch.from_numpy(Y[40:, None])
    step_by_step = after(slice(40))
    for k in (slice(0, 5), slice(5, 20)):
        step_by_step = step_by_step.condition_on_observations(new[k], observed[k])
    at = points(5)
    some, whole = (one.posterior(at).distribution for one in (step_by_step, after(slice(None))))
    torch.testing.assert_close(some.mean, whole.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(some.covariance_matrix, whole.covariance_matrix, rtol=1e-6, atol=1e-9)


def test_conditioning_with_the_correction_is_that_of_the_full_kernel() -> None:
    """A corrected method has a covariance of f that no weights explain: one observation takes the variance there."""
    model = DeepBasisModel(fit(method="sv-rbf", members=1, calibrate=False).fitted_)
    at = points(1, seed=3)
    s = float(model.members[0].noise()) * model.target_scale**2
    before = model.posterior(at)
    after = model.condition_on_observations(at, torch.full((1, 1), 7.0).double()).posterior(at)
    v, m = float(before.variance), float(before.mean)
    assert float(after.variance) == pytest.approx(v * s / (v + s), rel=1e-6)
    assert float(after.mean) == pytest.approx(m + v / (v + s) * (7.0 - m), rel=1e-6)


def test_fantasies_have_a_batch_and_leave_the_model_as_it_was(model: DeepBasisModel) -> None:
    at, new = points(2, 3, seed=4), points(4)
    before = model.posterior(new).mean
    fantasy = model.fantasize(at, SobolQMCNormalSampler(torch.Size([5]), seed=0))
    assert fantasy.batch_shape == (5, 2)
    found = fantasy.posterior(new)
    assert found.mean.shape == (5, 2, 4, 1)
    assert float(found.variance.mean()) < float(model.posterior(new).variance.mean())
    torch.testing.assert_close(model.posterior(new).mean, before)


def test_fantasies_of_one_member_change_nothing_on_average() -> None:
    """E[E[f | y]] = E[f] for y drawn from the prediction itself."""
    model, at, new = DeepBasisModel(fit(members=1).fitted_), points(3, seed=4), points(4)
    many = model.fantasize(at, SobolQMCNormalSampler(torch.Size([512]), seed=0)).posterior(new).mean.mean(0)
    torch.testing.assert_close(many, model.posterior(new).mean, atol=0.01 * Y.std(), rtol=0.0)


def test_acquisitions_are_optimised(model: DeepBasisModel) -> None:
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    few = {"bounds": bounds, "num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 5, "seed": 0}}
    for acquisition, q in (
        (LogExpectedImprovement(model, best_f=Y.max()), 1),
        (qLogExpectedImprovement(model, best_f=Y.max()), 2),
        (qKnowledgeGradient(model, num_fantasies=2), 1),
    ):
        found, value = optimize_acqf(acquisition, q=q, **few)
        assert found.shape == (q, 2)
        assert bool(value.isfinite())


def test_several_outputs_are_a_list(model: DeepBasisModel) -> None:
    both = ModelList(model, DeepBasisModel(fit(random_state=1).fitted_))
    at = points(3)
    assert both.num_outputs == 2
    found = both.posterior(at)
    assert found.mean.shape == (3, 2)
    torch.testing.assert_close(found.mean[:, :1], model.posterior(at).mean)
    assert found.rsample(torch.Size([6])).shape == (6, 3, 2)


def test_what_is_not_gaussian_is_refused() -> None:
    with pytest.raises(InputError, match="target='identity'"):
        DeepBasisModel(
            DeepBasisRegressor(epochs=2, members=1, method="dbk-silu", target="log").fit(X, np.exp(Y)).fitted_
        )
