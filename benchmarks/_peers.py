"""GPyTorch's sparse deep kernel learning, as its users write it, with the same backbone and the same sizes as ours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import gpytorch
import torch
from torch import Tensor, nn

from deepbasis.gp.backbone import ResNet

OBJECTIVES = {
    "gpytorch-svgp": gpytorch.mlls.VariationalELBO,
    "gpytorch-ppgp": gpytorch.mlls.PredictiveLogLikelihood,
}


class SparseGP(gpytorch.models.ApproximateGP):
    """Whitened variational GP with learned inducing points; `batch` models at once in GPyTorch's own batch mode."""

    def __init__(self, inducing: Tensor) -> None:
        batch = inducing.shape[:-2]
        distribution = gpytorch.variational.CholeskyVariationalDistribution(inducing.shape[-2], batch_shape=batch)
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution, learn_inducing_locations=True)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        base = gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[-1], batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=batch)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class DeepKernel(nn.Module):
    """Backbone, then the sparse GP on its output."""

    def __init__(self, d: int, h: int, r: int) -> None:
        super().__init__()
        self.backbone = ResNet(d, h)
        self.gp = SparseGP(torch.rand(r, h) * 2.0 - 1.0)
        self.gp.covar_module.base_kernel.lengthscale = math.sqrt(h)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.gp(self.backbone(x))


def stepper(
    objective: str,
    x: Tensor,
    y: Tensor,
    *,
    h: int,
    r: int,
    n: int,
    fused: bool = False,
    compile_backbone: bool = False,
) -> Callable[[], None]:
    """A function that does one training step on the batch (x, y)."""
    torch.manual_seed(0)
    model = DeepKernel(x.shape[1], h, r).to(x.device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x.device)
    mll = OBJECTIVES[objective](likelihood, model.gp, num_data=n)
    optimiser = torch.optim.AdamW([*model.parameters(), *likelihood.parameters()], lr=1e-3, fused=fused or None)
    model.train()
    likelihood.train()
    if compile_backbone:
        model.backbone.compile()

    def step() -> None:
        optimiser.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimiser.step()

    return step


def batched_stepper(
    objective: str, x: Tensor, y: Tensor, *, h: int, r: int, n: int, members: int
) -> Callable[[], None]:
    """The most that GPyTorch allows: `members` GPs in its batch mode, on backbones that run one after another."""
    torch.manual_seed(0)
    backbones = nn.ModuleList(ResNet(x.shape[1], h) for _ in range(members)).to(x.device)
    gp = SparseGP(torch.rand(members, r, h) * 2.0 - 1.0).to(x.device)
    gp.covar_module.base_kernel.lengthscale = math.sqrt(h)
    shape = torch.Size([members])
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape).to(x.device)
    mll = OBJECTIVES[objective](likelihood, gp, num_data=n)
    parameters = [*backbones.parameters(), *gp.parameters(), *likelihood.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        features = torch.stack([backbone(x) for backbone in backbones])
        loss = -mll(gp(features), y.expand(members, -1)).sum()
        loss.backward()
        optimiser.step()

    return step


def quiet() -> None:
    """GPyTorch's numerical warnings are its own business here."""
    warnings.filterwarnings("ignore", module=r"(gpytorch|linear_operator).*")
