"""Where methods must coincide or be ordered: the ELBO and Eq. 11, sparse bounds and the full GP, GPyTorch's SVGP."""

import copy
import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from deepbasis.gp import exact, objectives
from deepbasis.gp.backbone import Identity
from deepbasis.gp.build import build
from deepbasis.gp.expansion import RBF
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import WeightPosterior

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)  # what importing linear_operator does
    import gpytorch
    from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

D = 2


def rows(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, D, dtype=torch.float64) * 2.0 - 1.0
    y = torch.sin(3.0 * x).sum(-1) + 0.1 * torch.randn(n, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def relative(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


# The ELBO and the likelihood (Eq. 5, 11, 3) ---------------------------------------------------------------------------


def fitted(method: str, noise: float, x: Tensor, y: Tensor) -> DeepBasisGP:
    """A model whose q(w) is p(w | y) of Eq. 10."""
    model = build(method, D, rank=7, width=5, blocks=1, noise=noise, seed=2).to(x.dtype)
    with torch.no_grad():
        model.mean.fill_(0.2)
    exact.fit_posterior(model, lambda: [(x, y)])
    return model


def bound(model: DeepBasisGP, x: Tensor, y: Tensor) -> Tensor:
    """The right side of Eq. 3; Eq. 11 for a basis without a correction."""
    phi, _, correction, _ = model.features(x)
    return exact.sparse_bound(phi, correction, y - model.mean, model.noise())


@pytest.mark.parametrize("noise", [1e-5, 1e-2, 1.0])
@pytest.mark.parametrize("method", ["vbll", "sv-dkl", "sv-rbf"])
@torch.no_grad()
def test_elbo_at_the_exact_posterior_is_the_likelihood(method: str, noise: float, dtype: torch.dtype) -> None:
    x, y = rows(40, dtype)
    model = fitted(method, noise, x, y)
    terms = model(x)
    elbo = -40 * objectives.elbo(model, x, y, 40.0)
    likelihood = exact.log_marginal_likelihood(model.basis(x), y - model.mean, model.noise())
    rel = 1e-8 if dtype == torch.float64 else 1e-4
    assert float(elbo) == pytest.approx(float(bound(model, x, y)), rel=rel)
    if method == "vbll":
        assert float(elbo) == pytest.approx(float(likelihood), rel=rel)
    else:  # Eq. 3 is below Eq. 11 by the trace of what the basis misses
        missed = terms.correction.double().sum() / (2.0 * model.noise().double())
        assert missed > 1e-3
        assert float(elbo + missed) == pytest.approx(float(likelihood), rel=rel, abs=rel * float(missed))


@pytest.mark.parametrize("method", ["vbll", "sv-dkl"])
@torch.no_grad()
def test_every_other_q_is_below(method: str) -> None:
    """The ELBO has its one maximum at p(w | y): it falls with the square of the step, whatever the direction."""
    x, y = rows(40)
    best = fitted(method, 1e-2, x, y)
    top = float(bound(best, x, y))
    for scale in (1e-3, 1e-2, 0.1, 1.0, 10.0):
        for moved in (["m"], ["log_diagonal"], ["lower"], ["m", "log_diagonal", "lower"]):
            model = copy.deepcopy(best)
            for name in moved:
                parameter = getattr(model.posterior, name)
                parameter += scale * torch.randn_like(parameter)
            below = top + 40 * float(objectives.elbo(model, x, y, 40.0))
            assert below > 1e-9, (scale, moved)


# Sparse bounds and the full GP (Eq. 3, 12) ----------------------------------------------------------------------------


def rbf(Z: Tensor, *, jitter: float = 1e-6) -> RBF:
    """The basis of Eq. 12 with inducing points Z, lengthscales .5 and .7 and variance 1.7."""
    expansion = RBF(Z.shape[1], len(Z), jitter=jitter).to(Z.dtype)
    with torch.no_grad():
        expansion.Z.copy_(Z)
        expansion.log_lengthscale.copy_(torch.tensor([0.5, 0.7]).log())
        expansion.log_variance.fill_(math.log(1.7))
    return expansion


def full_likelihood(expansion: RBF, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """log N(y; 0, K~ + s I), dense."""
    Sigma = expansion.kernel(x, x) + noise * torch.eye(len(x), dtype=x.dtype)
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), Sigma).log_prob(y)


@pytest.mark.parametrize("jitter", [1e-8, 1e-4, 1e-2])
@pytest.mark.parametrize("noise", [1e-3, 1e-1, 1.0])
@torch.no_grad()
def test_more_inducing_points_never_lower_the_bound(noise: float, jitter: float) -> None:
    """Eq. 3 rises with nested Z, up to the full GP's likelihood at most.

    That holds with the jitter too, without a tolerance for it: K_ZZ + jitter belongs to inducing variables that are
    f(Z) plus noise, and those of a subset of Z are a subset of those. 1e-9 relative is for rounding alone.
    """
    x, y = rows(40)
    s = torch.tensor(noise, dtype=torch.float64)
    bounds = []
    for r in (1, 2, 5, 10, 20, 40):
        phi, _, correction, _ = rbf(x[:r], jitter=jitter)(x)
        bounds.append(float(exact.sparse_bound(phi, correction, y, s)))
    bounds.append(float(full_likelihood(rbf(x), x, y, s)))
    for lower, higher in itertools.pairwise(bounds):
        assert lower <= higher + 1e-9 * abs(higher)
    assert bounds[0] < bounds[-1] - 1.0


@pytest.mark.parametrize("jitter", [1e-6, 1e-4, 1e-2])
@torch.no_grad()
def test_basis_at_the_data_is_the_full_gp(jitter: float, dtype: torch.dtype) -> None:
    """Z = X: K (K + j I)^-1 K = K - E with 0 <= E = j K (K + j I)^-1 <= j I, j the jitter times the variance.

    No entry of the kernel is then off by more than j, nor log p by more than j / (2 s) (n + y^T Sigma^-1 y) with Sigma
    the smaller of the two covariances. float32 adds its rounding, of phi by root entries up to j^(-1/2).
    """
    x, y = rows(30, dtype)
    basis = rbf(x, jitter=jitter)
    K, phi = basis.kernel(x, x), basis(x).phi
    j = jitter * 1.7
    rounding = 1e-10 if dtype == torch.float64 else 2e-7 / math.sqrt(jitter)
    missed = torch.linalg.eigvalsh((K - phi @ phi.mT).double())
    assert -rounding < float(missed.min())
    assert float(missed.max()) < j + rounding

    s = torch.tensor(0.1, dtype=torch.float64)
    Phi, target = phi.double(), y.double()
    fit = target @ torch.linalg.solve(Phi @ Phi.mT + s * torch.eye(30, dtype=torch.float64), target)
    difference = exact.log_marginal_likelihood(Phi, target, s) - full_likelihood(basis.double(), x.double(), target, s)
    assert abs(float(difference)) < (j + rounding) / (2.0 * float(s)) * (30 + float(fit))
    if jitter == 1e-6 and dtype == torch.float64:
        assert abs(float(difference)) < 1e-2


# GPyTorch -------------------------------------------------------------------------------------------------------------


class SVGP(gpytorch.models.ApproximateGP):
    """GPyTorch's whitened SVGP on what a backbone returns."""

    def __init__(self, Z: Tensor, jitter: float) -> None:
        r, h = Z.shape
        strategy = VariationalStrategy(self, Z, CholeskyVariationalDistribution(r), jitter_val=jitter)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=h))

    def forward(self, g: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(g), self.covar_module(g))


class Pair:
    """One model, ours and GPyTorch's, with the same kernel, inducing points, q(w), noise and jitters.

    GPyTorch's jitter is absolute and goes to K_ZZ and to K_xx. Ours is relative to the variance and goes to K_ZZ: it is
    made absolute by dividing the variance out (with its gradient), and K_xx's is added to the correction.
    """

    def __init__(self, backbone: nn.Module, rank: int, jitter: float) -> None:
        h, self.jitter = backbone.width, jitter
        self.ours = DeepBasisGP(
            backbone, RBF(h, rank), WeightPosterior(rank), GaussianLikelihood(3e-5), corrected=True
        ).double()
        expansion, q = self.ours.expansion, self.ours.posterior
        with torch.no_grad():
            expansion.log_variance.fill_(math.log(1.7))
            expansion.log_lengthscale += 0.3 * torch.randn(h, dtype=torch.float64)
            self.ours.mean.fill_(0.3)
        self.backbone = copy.deepcopy(backbone)
        self.theirs = SVGP(expansion.Z.detach().clone(), jitter).double()
        constraint = gpytorch.constraints.GreaterThan(1e-10)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint).double()
        self.likelihood.noise = self.ours.noise().detach()
        self.theirs.covar_module.outputscale = expansion.log_variance.exp().detach()
        self.theirs.covar_module.base_kernel.lengthscale = expansion.log_lengthscale.exp().detach()
        self.theirs.mean_module.constant.data.fill_(0.3)
        self.theirs.variational_strategy.variational_params_initialized.fill_(1)
        distribution = self.theirs.variational_strategy._variational_distribution
        distribution.variational_mean.data.copy_(q.m)
        distribution.chol_variational_covar.data.copy_(q.L())

    def our_model(self, x: Tensor) -> DeepBasisGP:
        """Ours with their jitter, for these rows."""
        model = copy.copy(self.ours)
        model.expansion.jitter = self.jitter * (-model.expansion.log_variance).exp()
        terms = model(x)
        terms = terms._replace(correction=terms.correction + self.jitter)
        model.forward = lambda x: terms
        return model

    def our_gradients(self) -> dict[str, Tensor]:
        expansion, q, noise = self.ours.expansion, self.ours.posterior, self.ours.likelihood
        return {
            "Z": expansion.Z.grad,
            "log lengthscale": expansion.log_lengthscale.grad,
            "log variance": expansion.log_variance.grad,
            "m": q.m.grad,
            "L": torch.diag_embed(q.log_diagonal.grad / q.log_diagonal.exp()) + q.lower.grad.tril(-1),
            "noise": noise.raw.grad / noise.raw.exp(),
            "mean": self.ours.mean.grad,
        } | {name: p.grad for name, p in self.ours.backbone.named_parameters()}

    def their_gradients(self) -> dict[str, Tensor]:
        strategy, kernel = self.theirs.variational_strategy, self.theirs.covar_module
        noise, scale, length = self.likelihood.noise_covar, kernel, kernel.base_kernel
        return {
            "Z": strategy.inducing_points.grad,
            "log lengthscale": (softplus_gradient(length.raw_lengthscale) * length.lengthscale)[0],
            "log variance": softplus_gradient(scale.raw_outputscale) * scale.outputscale,
            "m": strategy._variational_distribution.variational_mean.grad,
            "L": strategy._variational_distribution.chol_variational_covar.grad.tril(),
            "noise": softplus_gradient(noise.raw_noise)[0],
            "mean": self.theirs.mean_module.constant.grad,
        } | {name: p.grad for name, p in self.backbone.named_parameters()}


def softplus_gradient(raw: Tensor) -> Tensor:
    """The gradient in v = softplus(raw) + bound, from that in raw."""
    return raw.grad / torch.sigmoid(raw)


def backbone(kind: str) -> nn.Module:
    """The inputs themselves (SVGP, PPGP), or a network (SV-DKL, PP-DKL)."""
    if kind == "none":
        return Identity(D)
    return build("sv-dkl", D, rank=6, width=4, blocks=1, seed=5).backbone.double()


PAIRS = pytest.mark.parametrize(
    ("kind", "jitter", "b"),
    [(kind, jitter, b) for kind in ("none", "network") for jitter in (1e-6, 1e-3) for b in (4, 30)],
)
N = 500.0  # rows of the training set, of which a batch is a part


@PAIRS
@pytest.mark.parametrize(("name", "beta"), [("elbo", 1.0), ("ppgp", 1.0), ("ppgp", 0.05)])
def test_losses_and_gradients_are_those_of_gpytorch(name: str, beta: float, kind: str, jitter: float, b: int) -> None:
    """Eq. 5 is minus VariationalELBO and Eq. 6 minus PredictiveLogLikelihood, in value and gradient, to 1e-9.

    With b below and above the rank (6), for which GPyTorch runs different code.
    """
    pair = Pair(backbone(kind), 6, jitter)
    x, y = rows(b)
    ours = getattr(objectives, name)(pair.our_model(x), x, y, N, beta=beta)
    Loss = VariationalELBO if name == "elbo" else PredictiveLogLikelihood
    theirs = -Loss(pair.likelihood, pair.theirs, num_data=N, beta=beta)(pair.theirs(pair.backbone(x)), y)
    assert relative(ours, theirs) < 1e-9
    ours.backward()
    theirs.backward()
    expected = pair.their_gradients()
    for parameter, gradient in pair.our_gradients().items():
        assert relative(gradient, expected[parameter]) < 1e-9, parameter


@PAIRS
@torch.no_grad()
def test_predictions_are_those_of_gpytorch(kind: str, jitter: float, b: int) -> None:
    """The corrected predictive distribution, Eq. 4 with the noise, to 1e-9; at inducing points and far away too."""
    pair = Pair(backbone(kind), 6, jitter)
    for model in (pair.theirs, pair.likelihood):
        model.eval()
    x = torch.cat([rows(b)[0], 20.0 + rows(b)[0]])
    if kind == "none":
        x = torch.cat([x, pair.ours.expansion.Z])
    theirs = pair.likelihood(pair.theirs(pair.backbone(x)))
    ours = pair.our_model(x).predict(x)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-9, atol=0.0)
    assert float(ours.variance.max()) > 10 * float(ours.variance.min())
