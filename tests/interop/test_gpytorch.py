"""A basis inside of GPyTorch is the same Gaussian process: its kernel, its predictions, its bound, its training."""

import gpytorch
import pytest
import torch

from deepbasis.errors import InputError
from deepbasis.gp import exact, objectives
from deepbasis.interop.gpytorch import BasisGP, BasisKernel, gaussian_likelihood
from support.models import close, inputs, small

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # GPyTorch uses what is deprecated in torch


@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_the_kernel_is_the_inner_product_of_the_basis(method: str) -> None:
    model, x, x2 = small(method), inputs(6), inputs(4, seed=1)
    kernel = BasisKernel(model)
    close(kernel(x, x2).to_dense(), model.basis(x) @ model.basis(x2).mT, 1e-12)
    close(kernel(x).to_dense(), model.kernel(x), 1e-12)
    close(kernel(x, diag=True), model.features(x).prior_var, 1e-12)
    batch = torch.stack([x, x + 1.0])
    close(kernel(batch).to_dense()[1], model.kernel(x + 1.0), 1e-12)


def test_an_exact_gp_with_the_kernel_has_our_marginal_likelihood() -> None:
    model, x = small("dbk-silu", rank=4), inputs(12)
    y = torch.sin(x[:, 0])
    likelihood = gaussian_likelihood(model)

    class Exact(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.kernel = BasisKernel(model)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(model.mean.expand(len(x)), self.kernel(x))

    theirs = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, Exact())(Exact()(x), y) * len(x)
    close(theirs, exact.log_marginal_likelihood(model.basis(x), y - model.mean, model.noise()), 1e-8)


@pytest.mark.parametrize("method", ["dbk-silu", "sv-dkl", "sv-rbf-linear"])  # two with the correction of Eq. 4
def test_predictions_are_ours(method: str) -> None:
    model, x = small(method), inputs(7)
    ours = model.predict(x)
    gp, likelihood = BasisGP(model).eval(), gaussian_likelihood(model).eval()
    theirs = likelihood(gp(x))
    close(theirs.mean, ours.mean, 1e-10)
    close(theirs.variance, ours.variance, 1e-8)
    prior = gp(x, prior=True)
    close(prior.covariance_matrix, model.kernel(x), 1e-10)


def test_their_bound_is_ours_and_trains_the_same_parameters() -> None:
    model, x = small("dbk-silu"), inputs(15)
    y = torch.cos(x[:, 1])
    gp, likelihood = BasisGP(model), gaussian_likelihood(model)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp, num_data=15)(gp(x), y)
    close(-bound, objectives.elbo(model, x, y, n=torch.tensor(15.0), alpha=0.0, beta=1.0), 1e-9)
    (-bound).backward()
    assert float(model.posterior.m.grad.abs().sum()) > 0.0
    assert {id(one) for one in model.posterior.parameters()} <= {id(one) for one in gp.parameters()}


def test_what_has_no_distribution_is_refused() -> None:
    with pytest.raises(InputError, match="distribution over its weights"):
        BasisGP(small("dnn"))
    with pytest.raises(InputError, match="StudentLikelihood"):
        gaussian_likelihood(small("dbk-silu", likelihood="student"))
