"""The expansions of the paper's outlook, against the kernels that they converge to, and their gradients."""

import math

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import Kernel
from sklearn.gaussian_process.kernels import Matern as SklearnMatern
from torch import Tensor

from deepbasis.gp.expansion import ArcCos, BSplines, FourierFeatures, Matern, matern_features
from deepbasis.registry import EXPANSIONS
from support.models import TOLERANCE, H, R, close
from support.own import METHODS, OUTLOOK

NAMES = sorted(METHODS[method].expansion for method in OUTLOOK)
MANY = 40_000
ERROR = 5.0 / math.sqrt(MANY / 2)
"""Five standard errors of a mean of products that are about 1 in size."""


def points(n: int, dtype: torch.dtype = torch.float64, seed: int = 5) -> Tensor:
    return torch.randn(n, H, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inner(expansion: torch.nn.Module, g: Tensor) -> np.ndarray:
    with torch.no_grad():
        expansion.log_variance.fill_(math.log(2.5))
        phi = expansion.double()(g).phi
    return (phi @ phi.mT).numpy()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize(
    ("make", "kernel"),
    [(FourierFeatures, SklearnRBF(math.sqrt(H))), (matern_features, SklearnMatern(math.sqrt(H), nu=2.5))],
    ids=["RBF", "Matern"],
)
@pytest.mark.parametrize("odd", [0, 1])
def test_fourier_features_converge_to_their_kernel(make, kernel: Kernel, odd: int):
    g = points(20)
    np.testing.assert_allclose(inner(make(H, MANY + odd), g), 2.5 * kernel(g.numpy()), atol=2.5 * ERROR)


def test_the_two_spectra_differ_by_more_than_that():
    g = points(20)
    kernels = [kernel(g.numpy()) for kernel in (SklearnRBF(math.sqrt(H)), SklearnMatern(math.sqrt(H), nu=2.5))]
    assert np.abs(kernels[0] - kernels[1]).max() > ERROR


@pytest.mark.parametrize("rank", [1, 6, 7])
def test_a_row_of_fourier_features_has_the_same_length_everywhere(rank: int, dtype: torch.dtype):
    features = FourierFeatures(H, rank).to(dtype)(100.0 * points(30, dtype))
    assert features.phi.shape == (30, rank)
    if rank % 2 == 0:
        close(features.prior_var, torch.ones(30), TOLERANCE[dtype])
    assert features.prior_var.max() <= 1.0 + 1e-6


def cardinal(degree: int) -> BSpline:
    """The B-spline of unit knots about 0."""
    return BSpline.basis_element(np.arange(degree + 2) - (degree + 1) / 2, extrapolate=False)


def test_bsplines_are_those_of_scipy(dtype: torch.dtype):
    expansion = BSplines(1, 2).to(dtype)
    with torch.no_grad():
        expansion.W.fill_(1.0)
        expansion.b.copy_(torch.tensor([0.0, 0.25]))
    g = torch.linspace(-3.0, 3.0, 101, dtype=dtype)
    t = g.double().numpy()
    expected = np.nan_to_num(np.stack([cardinal(3)(t), cardinal(3)(t + 0.25)], 1))
    scale = math.sqrt(2.0 * BSplines.REACH / 2 / cardinal(7)(0.0))
    close(expansion(g[:, None]).phi, torch.from_numpy(scale * expected), TOLERANCE[dtype])


def test_bsplines_converge_to_their_kernel():
    """E B_7(d z) / B_7(0), z ~ N(0, 1), d^2 = |g - g'|^2 / h: by quadrature. Near the origin all is within reach."""
    g = 0.3 * points(20)
    distance = torch.cdist(g, g).numpy() / math.sqrt(H)
    z = np.linspace(-8.0, 8.0, 2001)
    density = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    expected = np.nan_to_num(cardinal(7)(distance[..., None] * z)) @ density / cardinal(7)(0.0)
    assert expected.min() < 0.97
    np.testing.assert_allclose(inner(BSplines(H, MANY), g), 2.5 * expected, atol=2.5 * 2.0 * ERROR)


def test_a_layer_of_relus_converges_to_the_arc_cosine_kernel():
    g = points(20)
    z = np.concatenate([g.numpy() / math.sqrt(H), np.ones((20, 1))], 1)
    norms = np.linalg.norm(z, axis=1)
    angle = np.arccos(np.clip(z @ z.T / np.outer(norms, norms), -1.0, 1.0))
    expected = np.outer(norms, norms) * (np.sin(angle) + (math.pi - angle) * np.cos(angle)) / math.pi
    size = np.outer(norms, norms)
    np.testing.assert_allclose(inner(ArcCos(H, MANY), g) / size, 2.5 * expected / size, atol=2.5 * 3.0 * ERROR)


def spread_out(rank: int, dtype: torch.dtype = torch.float64, **options: float) -> Matern:
    expansion = Matern(H, rank, **options).to(dtype)
    with torch.no_grad():
        expansion.log_lengthscale.copy_(torch.linspace(-0.5, 0.7, H))
        expansion.log_variance.fill_(math.log(2.5))
    return expansion


def test_the_matern_kernel_is_sklearns(dtype: torch.dtype):
    expansion, g = spread_out(R, dtype), points(12, dtype)
    lengthscale = expansion.log_lengthscale.detach().double().exp().numpy()
    expected = 2.5 * SklearnMatern(lengthscale, nu=2.5)(g.double().numpy())
    close(expansion.kernel(g, g), torch.from_numpy(expected), TOLERANCE[dtype])


def test_the_matern_basis_is_nystroms_approximation(dtype: torch.dtype):
    """And of an inducing point at every row it is scikit-learn's GP: the dense kernel itself."""
    expansion, g = spread_out(R, dtype), points(30, dtype)
    features, reference = expansion(g), spread_out(R)
    reference.load_state_dict(expansion.state_dict())
    Z, rows = reference.Z, g.double()
    K_gZ = reference.kernel(rows, Z)
    nystrom = K_gZ @ torch.linalg.solve(reference.kernel(Z, Z) + 2.5e-4 * torch.eye(R, dtype=torch.float64), K_gZ.mT)
    close(features.phi @ features.phi.mT, nystrom, TOLERANCE[dtype])
    close(features.correction, 2.5 - nystrom.diagonal(), TOLERANCE[dtype])
    at_all = spread_out(30, jitter=1e-12)
    with torch.no_grad():
        at_all.Z.copy_(rows)
    phi, y = at_all(rows).phi.detach(), torch.sin(rows[:, 0])
    lengthscale = at_all.log_lengthscale.detach().exp().numpy()
    peer = GaussianProcessRegressor(2.5 * SklearnMatern(lengthscale, nu=2.5), alpha=0.1, optimizer=None)
    peer.fit(rows.numpy(), y.numpy())
    mean = phi @ torch.linalg.solve(phi.mT @ phi + 0.1 * torch.eye(30, dtype=torch.float64), phi.mT @ y)
    np.testing.assert_allclose(mean, peer.predict(rows.numpy()), atol=1e-7)


@pytest.mark.parametrize("copies", [1, 2, R], ids=["distinct", "a duplicate", "all equal"])
def test_the_matern_gradient_is_that_of_dense_algebra(copies: int, dtype: torch.dtype):
    """Of the kernel's own formula, through a Cholesky factor; finite where points coincide with each other or rows."""
    expansion = spread_out(R, dtype)
    with torch.no_grad():
        expansion.Z[:copies] = expansion.Z[0].clone()
    g = torch.cat([points(30, dtype), expansion.Z.detach()[-2:]])
    weight = torch.randn(len(g), R, dtype=dtype)
    (weight * expansion(g).phi).sum().backward()
    assert all(
        bool(parameter.grad.isfinite().all()) for parameter in expansion.parameters() if parameter.grad is not None
    )
    if dtype == torch.float32:
        return
    jitter = expansion.jitter * expansion.log_variance.exp() * torch.eye(R, dtype=dtype)
    L = torch.linalg.cholesky(expansion.kernel(expansion.Z, expansion.Z) + jitter)
    phi = torch.linalg.solve_triangular(L, expansion.kernel(expansion.Z, g), upper=False).mT
    named = dict(expansion.named_parameters())
    theirs = torch.autograd.grad((weight * phi).sum(), list(named.values()))
    for name, expected in zip(named, theirs, strict=True):
        close(named[name].grad / expected.abs().max(), expected / expected.abs().max(), 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_differences(name: str):
    expansion, g = EXPANSIONS[name](H, R, jitter=1e-4).double(), points(4).requires_grad_()
    names = [one for one, _ in expansion.named_parameters()]

    def basis(g: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(expansion, dict(zip(names, values, strict=True)), (g,)).phi

    values = [value.detach().clone().requires_grad_() for value in expansion.parameters()]
    assert torch.autograd.gradcheck(basis, (g, *values))


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_near_to_float64(name: str):
    expansion, g = EXPANSIONS[name](H, R, jitter=1e-4), points(50, torch.float32)
    single = expansion(g)
    double = expansion.double()(g.double())
    assert int(single.info) == 0
    close(single.prior_var, double.prior_var, 1e-4)
    close(single.prior_var, single.phi.square().sum(-1), 1e-5)
    assert (single.correction >= 0).all()
