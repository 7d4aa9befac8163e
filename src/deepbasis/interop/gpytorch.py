"""GPyTorch: the kernel of a trained basis, and a model whose q(w) is an `ApproximateGP`.

Both share their parameters with the model that they are made of. They take encoded rows: of a fit
`fitted_.preprocessor.transform(X)`, with one of `fitted_.models`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deepbasis.errors import InputError
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import WeightPosterior

try:
    import gpytorch
    from gpytorch.distributions import MultivariateNormal
    from linear_operator import to_linear_operator
    from linear_operator.operators import MatmulLinearOperator, RootLinearOperator
except ModuleNotFoundError:
    raise ModuleNotFoundError("deepbasis.interop.gpytorch needs GPyTorch: pip install 'deepbasis[gpytorch]'") from None


class BasisKernel(gpytorch.kernels.Kernel):
    """k(x, x') = <phi(x), phi(x')> (Eq. 8), of low rank to GPyTorch's solvers."""

    has_lengthscale = False

    def __init__(self, model: DeepBasisGP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        phi1 = self._basis(x1)
        if diag:
            return (phi1 * self._basis(x2)).sum(-1)
        if x1.shape == x2.shape and torch.equal(x1, x2):
            return RootLinearOperator(phi1)
        return MatmulLinearOperator(phi1, self._basis(x2).mT)

    def _basis(self, x: Tensor) -> Tensor:
        phi: Tensor = self.model.basis(x.reshape(-1, x.shape[-1]))
        return phi.reshape(*x.shape[:-1], -1)


class WeightSpaceStrategy(nn.Module):
    """What GPyTorch calls a variational strategy: f(x) = mean(x) + <w, phi(x)>, w ~ q(w), with the prior N(0, I)."""

    def __init__(self, model: DeepBasisGP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, prior: bool = False, **kwargs: Any) -> Any:
        if prior:
            mean = self.model.prior_mean(x)
            return MultivariateNormal(mean.expand(len(x)), RootLinearOperator(self.model.basis(x)))
        # As a linear operator: it is factorised only if need be, and with jitter, since its rank is that of the basis.
        return MultivariateNormal(self.model.mean_at(x), to_linear_operator(self.model.covariance(x)))

    def kl_divergence(self) -> Tensor:
        return self.model.posterior.kl()


class BasisGP(gpytorch.models.ApproximateGP):
    """A model as GPyTorch's: `BasisGP(model)(x)` is the distribution of f, and `VariationalELBO` trains it further."""

    def __init__(self, model: DeepBasisGP) -> None:
        if not isinstance(model.posterior, WeightPosterior) or model.posterior.functions > 1:
            raise InputError("an ApproximateGP needs a model of one function with a distribution over its weights")
        super().__init__(WeightSpaceStrategy(model))


def gaussian_likelihood(model: DeepBasisGP) -> Any:
    """GPyTorch's Gaussian likelihood with the noise of the model, as a parameter of its own."""
    if type(model.likelihood) is not GaussianLikelihood:
        raise InputError(f"the model's likelihood is {type(model.likelihood).__name__}, not Gaussian")
    below = gpytorch.constraints.GreaterThan(0.5 * model.likelihood.floor)
    found = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=below).to(model.mean.dtype)
    found.noise = model.noise().detach()
    return found
