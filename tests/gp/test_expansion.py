"""Expansions: how they start, their kernels and bases, gradients, and inducing points in awkward places."""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel
from torch import Tensor

from deepbasis.gp import exact
from deepbasis.gp.expansion import RBF, SiLU
from support.models import TOLERANCE, D, H, R, close, follows, inputs, small


def test_silu_scale_starts_as_a_random_sign_over_root_r():
    r = 2000
    scale = SiLU(H, r).scale.detach()
    close(scale.abs(), torch.full((r,), r**-0.5), 1e-6)
    assert abs(scale.sign().sum()) < 4 * math.sqrt(r)
    assert not torch.equal(scale, SiLU(H, r).scale.detach())


def test_rbf_starts_uniform_with_lengthscales_root_h():
    h = 30
    expansion = RBF(h, 200)
    Z = expansion.Z.detach()
    assert float(Z.abs().max()) <= 1.0
    assert follows(Z, "uniform", -1.0, 2.0)
    close(expansion.log_lengthscale.exp(), torch.full((h,), math.sqrt(h)), 1e-6)
    assert float(expansion.log_variance.detach().exp()) == 1.0


def test_lengthscales_start_by_how_steep_a_function_is_along_each_column():
    expansion = RBF(4, 3)
    expansion.start_as_steep_as(torch.full((4,), 0.7))
    close(expansion.log_lengthscale.exp(), torch.full((4,), 2.0), 1e-6)  # sqrt(h), as usual
    expansion.start_as_steep_as(torch.tensor([3.0, 4.0, 0.0, 1e-9]))
    close(expansion.log_lengthscale.exp(), torch.tensor([5 / 3, 5 / 4, 1e3, 1e3]), 1e-5)
    expansion.start_as_steep_as(torch.zeros(4))  # a constant, which says nothing
    close(expansion.log_lengthscale.exp(), torch.tensor([5 / 3, 5 / 4, 1e3, 1e3]), 1e-5)


def started_at(rows: Tensor, rank: int = 6, seed: int = 3) -> Tensor:
    expansion = RBF(D, rank).to(rows.dtype)
    expansion.start_at(rows, torch.Generator().manual_seed(seed))
    return expansion.Z.detach()


def places(Z: Tensor, rows: Tensor) -> list[int]:
    """The one row that each inducing point stands at."""
    there = (Z[:, None] == rows[None]).all(-1)
    assert bool((there.sum(1) == 1).all())
    return there.int().argmax(1).tolist()


def test_inducing_points_start_at_distinct_rows(dtype):
    rows = inputs(40, dtype)
    found = places(started_at(rows), rows)
    assert len(set(found)) == 6
    assert found != places(started_at(rows, seed=4), rows)
    first = {places(started_at(rows, seed=seed), rows)[0] for seed in range(400)}
    assert len(first) == 40  # any row may be drawn


def test_which_rows_they_start_at_depends_on_neither_order_nor_copies():
    rows = inputs(40)
    order = torch.randperm(40)
    copies = torch.cat([rows[order], rows[:7], rows[30:].repeat(3, 1)])
    for other in (rows[order], rows.repeat(2, 1), copies):
        assert torch.equal(started_at(other), started_at(rows))


@pytest.mark.parametrize("count", [1, 4, 6])
def test_inducing_points_that_find_no_row_of_their_own_are_apart(count):
    """Equal ones have equal gradients but for rounding, which would then decide where they go."""
    rows = inputs(count)
    expansion = RBF(D, 6).double()
    expansion.start_at(rows.repeat(3, 1), torch.Generator().manual_seed(3))
    Z = expansion.Z.detach()
    assert (Z[:, None] == rows[None]).all(-1).sum(0).tolist() == [1] * count
    assert len(torch.unique(Z, dim=0)) == 6
    features = expansion(inputs(9, seed=6))
    assert int(features.info) == 0
    assert bool(features.phi.isfinite().all())


def test_starting_points_leave_the_rest_alone():
    expansion = RBF(D, 6)
    before = {name: value.clone() for name, value in expansion.named_parameters() if name != "Z"}
    state = torch.get_rng_state()
    expansion.start_at(inputs(40, torch.float32), torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, expansion.get_parameter(name)) for name, value in before.items())
    assert expansion.Z.requires_grad


def spread_out(expansion: RBF) -> RBF:
    """An RBF expansion whose hyper-parameters are not those of the start."""
    with torch.no_grad():
        expansion.log_lengthscale.copy_(torch.linspace(-0.5, 0.7, H))
        expansion.log_variance.fill_(math.log(2.5))
    return expansion


def test_rbf_kernel_equals_sklearns(dtype):
    expansion = spread_out(RBF(H, R).to(dtype))
    a, b = torch.randn(6, H, dtype=dtype), torch.randn(5, H, dtype=dtype)
    lengthscale = expansion.log_lengthscale.detach().double().exp().numpy()
    expected = 2.5 * SklearnRBF(lengthscale)(a.double().numpy(), b.double().numpy())
    close(expansion.kernel(a, b), torch.from_numpy(expected), TOLERANCE[dtype])


def test_rbf_basis_is_nystroms_approximation(dtype):
    """<phi(a), phi(b)> = k(a, Z) (K_ZZ + jitter)^-1 k(Z, b); the correction is what it misses on the diagonal."""
    expansion = spread_out(RBF(H, R).to(dtype))
    g = torch.randn(30, H, dtype=dtype)
    phi, prior_var, correction, info = expansion(g)
    reference = RBF(H, R).double()
    reference.load_state_dict(expansion.state_dict())
    Z, g64 = reference.Z, g.double()
    K_ZZ = reference.kernel(Z, Z) + 1e-4 * 2.5 * torch.eye(R, dtype=torch.float64)
    K_gZ = reference.kernel(g64, Z)
    nystrom = K_gZ @ torch.linalg.solve(K_ZZ, K_gZ.mT)
    close(phi @ phi.mT, nystrom, TOLERANCE[dtype])
    close(prior_var, nystrom.diagonal(), TOLERANCE[dtype])
    close(correction, 2.5 - nystrom.diagonal(), TOLERANCE[dtype])
    assert (correction >= 0).all()
    assert int(info) == 0


@pytest.mark.parametrize("copies", [1, 2, R], ids=["distinct", "a duplicate", "all equal"])
def test_rbf_gradient_is_that_of_the_inverse_cholesky_factor(copies):
    """Against plain autograd through the kernel, its Cholesky factor and a triangular solve."""
    expansion = spread_out(RBF(H, R).double())
    with torch.no_grad():
        expansion.Z[:copies] = expansion.Z[0].clone()
    g = torch.randn(30, H, dtype=torch.float64, requires_grad=True)
    jitter = expansion.jitter * expansion.log_variance.exp() * torch.eye(R, dtype=torch.float64)
    L = torch.linalg.cholesky(expansion.kernel(expansion.Z, expansion.Z) + jitter)
    expected = torch.linalg.solve_triangular(L, expansion.kernel(expansion.Z, g), upper=False).mT
    phi = expansion(g).phi
    close(phi, expected, 1e-9)
    weight = torch.randn(30, R, dtype=torch.float64)
    leaves = [g, *expansion.parameters()]
    for mine, theirs in zip(*(torch.autograd.grad((weight * f).sum(), leaves) for f in (phi, expected)), strict=True):
        close(mine / theirs.abs().max(), theirs / theirs.abs().max(), 1e-8)


def test_rbf_does_not_care_where_the_origin_is():
    expansion, moved = RBF(D, R), RBF(D, R)
    moved.load_state_dict(expansion.state_dict())
    with torch.no_grad():
        moved.Z += 256.0  # its rounding, 1.5e-5, is all that may be seen
    g = inputs(40, torch.float32)
    close(moved(g + 256.0).prior_var, expansion(g).prior_var, 2e-3)


@pytest.mark.parametrize(
    ("dtype", "spread"),
    [(torch.float32, 1.0), (torch.float32, 10.0), *((torch.float64, spread) for spread in (1.0, 1e2, 1e4))],
)
def test_rbf_basis_never_knows_more_than_its_kernel(dtype, spread):
    """||phi(x)||^2 <= sigma_k^2, for pairs of inducing points that almost coincide while the pairs lie far apart.

    In float32 it holds as far out as the docstring of `RBF` says.
    """
    expansion = RBF(D, 2 * R).to(dtype)
    with torch.no_grad():
        centres = spread * inputs(R, dtype)
        expansion.Z.copy_(torch.cat([centres, centres + 1e-2]))
        expansion.log_lengthscale.zero_()
    g = torch.cat([expansion.Z, centres + 0.3, spread * inputs(200, dtype, seed=8)]).detach()
    with torch.no_grad():
        features = expansion(g)
    assert int(features.info) == 0
    assert features.prior_var.max() <= 1.0 + 1e-3
    assert features.prior_var[: 2 * R].min() >= 1.0 - 1e-3  # at an inducing point it knows all but the jitter


def test_silu_basis_is_eq_13(dtype):
    expansion = SiLU(H, R).to(dtype)
    g = torch.randn(20, H, dtype=dtype)
    phi, prior_var, correction, info = expansion(g)
    layer = expansion.linear
    inner = g.numpy() @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    expected = inner / (1 + np.exp(-inner)) * expansion.scale.detach().numpy()
    close(phi, torch.from_numpy(expected), TOLERANCE[dtype])
    close(prior_var, phi.square().sum(-1), TOLERANCE[dtype])
    assert torch.equal(correction, torch.zeros_like(correction))
    assert int(info) == 0


@pytest.mark.parametrize("copies", [2, R])
def test_duplicate_inducing_points_work_with_the_default_jitter(dtype, copies):
    expansion = RBF(D, R).to(dtype)
    with torch.no_grad():
        expansion.Z[:copies] = expansion.Z[0].clone()
    g = inputs(50, dtype)
    features = expansion(torch.cat([g, expansion.Z.detach()]))
    assert int(features.info) == 0
    assert bool(torch.isfinite(features.phi).all())
    assert features.prior_var.max() <= 1.0 + 1e-3
    reference = RBF(D, R).double()
    reference.load_state_dict(expansion.state_dict())
    close(features.prior_var[:50], reference(g.double()).prior_var, 2e-3)


def test_a_linear_kernel_is_added_without_inducing_points(dtype):
    """phi and the correction together are the diagonal of the full kernel; at the inducing points phi is all of it."""
    expansion = RBF(D, R, linear=True, jitter=0.0).to(dtype)
    with torch.no_grad():
        expansion.log_lengthscale.copy_(torch.linspace(-0.5, 0.7, D))
        expansion.log_slope.fill_(0.3)
    g = inputs(50, dtype)
    features = expansion(g)
    assert features.phi.shape == (50, expansion.rank) == (50, R + D)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    close(features.prior_var, features.phi.square().sum(-1), tolerance)
    close(features.prior_var + features.correction, expansion.kernel(g, g).diagonal(), tolerance)
    Z = expansion.Z.detach()
    phi = expansion(Z).phi
    close(phi @ phi.mT, expansion.kernel(Z, Z), 1e-8 if dtype == torch.float64 else 1e-3)
    scaled = g / expansion.log_lengthscale.detach().exp()
    smooth = RBF(D, R).to(dtype)
    smooth.load_state_dict({name: value for name, value in expansion.state_dict().items() if name != "log_slope"})
    close(expansion.kernel(g, g), smooth.kernel(g, g) + math.exp(0.6) * scaled @ scaled.mT, tolerance)


def test_with_an_inducing_point_at_every_row_it_is_scikit_learns_gp():
    """Likelihood and predictions, far outside the rows too, where the line goes on."""
    x, new = inputs(R), 3.0 * inputs(7, seed=6)
    y = x @ torch.tensor([1.0, -0.5, 0.0][:D] + [0.0] * (D - 3), dtype=torch.float64) + torch.sin(3.0 * x[:, 0])
    model = small("sv-rbf-linear", noise=0.05)
    with torch.no_grad():
        model.expansion.Z.copy_(x)
        model.expansion.jitter = 1e-12
        model.expansion.log_lengthscale.copy_(torch.linspace(-0.3, 0.4, D))
        model.expansion.log_variance.fill_(math.log(0.7))
        model.expansion.log_slope.fill_(math.log(1.3))
    lengthscales = model.expansion.log_lengthscale.detach().exp()  # scikit-learn's linear kernel has none
    kernel = ConstantKernel(0.7) * SklearnRBF(1.0) + ConstantKernel(1.69) * DotProduct(0.0, "fixed")
    peer = GaussianProcessRegressor(kernel + WhiteKernel(model.noise().item()), optimizer=None)
    peer.fit((x / lengthscales).numpy(), y.numpy())
    exact.fit_posterior(model, lambda: [(x, y)])
    features = model.features(x)
    bound = exact.sparse_bound(features.phi, features.correction, y, model.noise())
    assert bound.item() == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-6)
    mean, std = peer.predict((new / lengthscales).numpy(), return_std=True)
    predicted = model.predict(new)
    np.testing.assert_allclose(predicted.mean.detach(), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(predicted.variance.detach(), std**2, rtol=1e-5)


def test_at_an_inducing_point_the_correction_is_the_jitters(dtype):
    expansion = RBF(D, R).to(dtype)
    correction = expansion(expansion.Z.detach()).correction
    assert correction.max() < 2e-4
    assert correction.min() >= 0.0


def test_lengthscales_that_are_alike_cost_nothing_and_one_apart_a_few_nats():
    rbf = RBF(4, 3).double().requires_grad_(False)
    assert float(rbf.log_prior()) == 0.0
    with torch.no_grad():
        rbf.log_lengthscale += 7.0  # how long they are in all is free
        assert float(rbf.log_prior()) == pytest.approx(0.0, abs=1e-9)
        rbf.log_lengthscale[0] += 4.0  # the mean moves by 1
    by_hand = -math.log(1.0 + (3.0 / 0.3) ** 2) - 3.0 * math.log(1.0 + (1.0 / 0.3) ** 2)
    assert float(rbf.log_prior()) == pytest.approx(by_hand)


def test_columns_alone_are_a_bayesian_ridge_regression():
    """Its mean is that of a ridge regression whose penalty is noise / a^2; and noise for the intercept."""
    from sklearn.linear_model import Ridge

    model, x = small("linear", noise=0.05).double(), inputs(30).double()
    y = x @ torch.arange(1.0, D + 1.0, dtype=torch.float64) + 0.1 * torch.sin(7.0 * x[:, 0])
    with torch.no_grad():
        model.mean.zero_()
        model.expansion.log_slope.fill_(-0.7)
    exact.fit_posterior(model, lambda: [(x, y)])
    penalty = float(model.noise().detach()) / math.exp(-1.4)
    with_one = np.column_stack([x.numpy(), np.full(len(x), math.exp(0.7))])  # as a slope of the same penalty
    theirs = Ridge(penalty, fit_intercept=False).fit(with_one, y.numpy()).predict(with_one)
    close(model(x).mean, torch.from_numpy(theirs), 1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_leaving_one_out_is_a_fit_without_each_row(weighted):
    model, x = small("linear", noise=0.05).double(), inputs(9).double()
    y = x @ torch.arange(1.0, x.shape[1] + 1.0, dtype=torch.float64) + torch.sin(5.0 * x[:, 0])
    weight = torch.linspace(0.5, 3.0, 9, dtype=torch.float64) if weighted else None
    mean, variance = exact.leave_one_out(model, x, y, weight)
    for k in range(9):
        rest = torch.arange(9) != k
        exact.fit_posterior(model, lambda rest=rest: [(x[rest], y[rest], None if weight is None else weight[rest])])
        with torch.no_grad():
            expected = model.predictive(model(x[k : k + 1]))
        close(mean[k : k + 1], expected[0].flatten(), 1e-8)
        close(variance[k : k + 1], expected[1].flatten(), 1e-8)
