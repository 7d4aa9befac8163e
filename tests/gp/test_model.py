"""Backbone, expansions, q(w), noise and the model they make: initialisation, algebra, draws, failures."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp import exact
from deepbasis.gp.backbone import Identity, ResNet
from deepbasis.gp.build import build
from deepbasis.gp.expansion import RBF, SiLU
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import NOISE_FLOOR, DeepBasisGP, Noise
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from deepbasis.gp.predictive import predict
from deepbasis.registry import OBJECTIVES

D, R, H = 3, 10, 8
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
methods = pytest.mark.parametrize("method", list(METHODS))
with_weights = pytest.mark.parametrize("method", [m for m in METHODS if m != "dnn"])


def small(method: str, dtype: torch.dtype = torch.float64, **options: object) -> DeepBasisGP:
    return build(method, D, **{"rank": R, "width": H, "seed": 0, **options}).to(dtype)


def inputs(n: int = 20, dtype: torch.dtype = torch.float64, seed: int = 5) -> Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def follows(values: Tensor, law: str, *parameters: float) -> bool:
    return stats.kstest(values.detach().double().flatten().numpy(), law, args=parameters).pvalue > 1e-3


# --- initialisation (Appendix B) ---


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


def test_weight_posterior_starts_as_the_paper_says():
    r = 300
    q = WeightPosterior(r)
    below = torch.tril_indices(r, r, -1)
    assert follows(q.m, "norm")
    assert follows(q.log_diagonal + 0.5 * math.log(r), "norm")
    assert follows(q.lower[below[0], below[1]] * r, "norm")
    assert torch.equal(q.L().triu(1), torch.zeros(r, r))


def test_point_weights_start_as_a_linear_layer():
    r = 2000
    m = PointWeights(r).m
    assert follows(m, "uniform", -(r**-0.5), 2 * r**-0.5)


@methods
def test_noise_starts_at_one_hundredth_and_the_mean_at_zero(method):
    model = small(method)
    assert model.noise().item() == pytest.approx(1e-2, rel=1e-6)
    assert model.noise.floor == 1e-6
    assert model.mean.item() == 0.0


# --- backbone ---


def layer_norm(g: np.ndarray, norm: torch.nn.LayerNorm) -> np.ndarray:
    centred = g - g.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def linear(g: np.ndarray, layer: torch.nn.Linear) -> np.ndarray:
    return g @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def silu(g: np.ndarray) -> np.ndarray:
    return g / (1 + np.exp(-g))


@pytest.mark.parametrize("inner", [None, 5])
def test_resnet_is_pre_norm_with_a_final_norm_and_silu(inner):
    net = ResNet(D, H, blocks=3, inner=inner).double()
    for parameter in net.parameters():  # norms that do something
        torch.nn.init.normal_(parameter)
    x = inputs()
    g = linear(x.numpy(), net.project)
    for block in net.blocks:
        g = g + linear(silu(linear(layer_norm(g, block.norm), block.widen)), block.narrow)
    close(net(x), torch.from_numpy(silu(layer_norm(g, net.norm))), 1e-10)
    assert net.width == H


@pytest.mark.parametrize("compute", [torch.bfloat16, None])
def test_autocast_is_the_backbones_alone(dtype, compute):
    torch.manual_seed(0)
    net = ResNet(D, 32).to(dtype)
    x = inputs(200, dtype)
    full = net(x)
    net.autocast = compute
    low = net(x)
    assert low.dtype == dtype
    assert (low - full).abs().max() < 0.05 * full.abs().max()
    if compute is None or dtype == torch.float64:  # autocast leaves float64 alone
        assert torch.equal(low, full)
    else:
        assert not torch.equal(low, full)


def test_build_passes_autocast_on():
    model, reduced = small("dbk-silu", torch.float32), small("dbk-silu", torch.float32, autocast=torch.bfloat16)
    x = inputs(50, torch.float32)
    assert reduced(x).mean.dtype == torch.float32
    assert not torch.equal(reduced(x).mean, model(x).mean)
    assert (reduced.basis(x) - model.basis(x)).abs().max() < 0.05 * model.basis(x).abs().max()


def test_identity_is_one():
    x = inputs()
    assert torch.equal(Identity(D)(x), x)


# --- basis and kernel ---


@methods
def test_kernel_is_the_inner_product_of_the_basis_and_psd(method, dtype):
    model = small(method, dtype)
    x, x2 = inputs(25, dtype), inputs(7, dtype, seed=6)
    K = model.kernel(x, x2)
    by_pairs = torch.stack([torch.stack([torch.dot(a, b) for b in model.basis(x2)]) for a in model.basis(x)])
    close(K, by_pairs, TOLERANCE[dtype])
    square = model.kernel(x).detach()
    close(square, model.kernel(x, x), TOLERANCE[dtype])
    close(square.diagonal(), model(x).prior_var, TOLERANCE[dtype])
    eigenvalues = torch.linalg.eigvalsh(square)
    assert eigenvalues[0] > -10 * torch.finfo(dtype).eps * eigenvalues[-1] * len(x)


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
    expected = silu(linear(g.numpy(), expansion.linear)) * expansion.scale.detach().numpy()
    close(phi, torch.from_numpy(expected), TOLERANCE[dtype])
    close(prior_var, phi.square().sum(-1), TOLERANCE[dtype])
    assert torch.equal(correction, torch.zeros_like(correction))
    assert int(info) == 0


# --- q(w) ---


def posterior(dtype: torch.dtype) -> WeightPosterior:
    """With values above the diagonal, which must not matter."""
    q = WeightPosterior(R).to(dtype)
    with torch.no_grad():
        q.lower.copy_(torch.randn(R, R) * 0.3)
    return q


def test_L_is_lower_triangular_with_a_positive_diagonal(dtype):
    q = posterior(dtype)
    L = q.L()
    assert torch.equal(L, L.tril())
    assert (L.diagonal() > 0).all()
    close(L.diagonal(), q.log_diagonal.exp(), TOLERANCE[dtype])
    assert torch.equal(L.tril(-1), q.lower.tril(-1))


def test_mean_variance_and_kl_equal_the_dense_ones(dtype):
    q, phi = posterior(dtype), torch.randn(15, R, dtype=dtype)
    m, L = q.m.detach().double(), q.L().detach().double()
    mean, var = q(phi)
    close(mean, phi.double() @ m, TOLERANCE[dtype])
    close(var, (phi.double() @ L @ L.mT @ phi.double().mT).diagonal(), TOLERANCE[dtype])
    prior = MultivariateNormal(torch.zeros(R, dtype=torch.float64), scale_tril=torch.eye(R, dtype=torch.float64))
    close(q.kl(), kl_divergence(MultivariateNormal(m, scale_tril=L), prior), TOLERANCE[dtype])


def test_no_gradient_reaches_above_the_diagonal():
    q, phi = posterior(torch.float64), torch.randn(15, R, dtype=torch.float64)
    (q(phi)[1].sum() + q.kl()).backward()
    assert torch.equal(q.lower.grad.triu(), torch.zeros(R, R, dtype=torch.float64))
    assert (q.lower.grad.tril(-1) != 0).sum() == R * (R - 1) / 2


def test_draws_of_w_have_its_mean_and_covariance():
    q, n = posterior(torch.float64), 40_000
    w = q.sample(n, torch.Generator().manual_seed(0)).detach()
    covariance = (q.L() @ q.L().mT).detach()
    variances = covariance.diagonal()
    assert ((w.mean(0) - q.m).abs() < 5 * (variances / n).sqrt()).all()
    error_of_covariance = ((covariance.square() + variances[:, None] * variances) / n).sqrt()
    assert ((w.mT.cov() - covariance).abs() < 5 * error_of_covariance).all()
    phi = torch.randn(6, R, dtype=torch.float64)
    mean, var = (t.detach() for t in q(phi))
    f = w @ phi.mT
    assert ((f.mean(0) - mean).abs() < 5 * (var / n).sqrt()).all()
    assert ((f.var(0) / var - 1).abs() < 5 * math.sqrt(2 / n)).all()


def test_set_takes_over_mean_and_covariance(dtype):
    source, q = posterior(torch.float64), WeightPosterior(R).to(dtype)
    covariance = (source.L() @ source.L().mT).detach()
    q.set_(source.m.detach(), covariance)
    close(q.m, source.m, TOLERANCE[dtype])
    close(q.L(), source.L(), TOLERANCE[dtype])
    close(q.L() @ q.L().mT, covariance, TOLERANCE[dtype])
    assert all(p.requires_grad and p.dtype == dtype for p in q.parameters())


def test_point_weights_have_no_variance():
    q, phi = PointWeights(R).double(), torch.randn(5, R, dtype=torch.float64)
    mean, var = q(phi)
    close(mean, phi @ q.m, 1e-12)
    assert torch.equal(var, torch.zeros_like(var))
    assert q.kl().item() == 0.0
    assert torch.equal(q.sample(3), q.m.expand(3, R))


# --- the model ---


@methods
def test_terms_are_those_of_the_parts(method, dtype):
    model = small(method, dtype)
    with torch.no_grad():
        model.mean.fill_(0.7)
    x = inputs(12, dtype)
    t, features = model(x), model.features(x)
    mean, var = model.posterior(features.phi)
    close(t.mean, mean + 0.7, TOLERANCE[dtype])
    close(t.var, var, TOLERANCE[dtype])
    close(t.kl, model.posterior.kl(), TOLERANCE[dtype])
    assert torch.equal(t.correction, features.correction)
    assert torch.equal(t.noise, model.noise())
    corrected = METHODS[method].corrected
    assert corrected == bool((predict(t, corrected=corrected).variance > t.var + t.noise).any())


@methods
def test_every_method_trains_every_parameter(method, dtype):
    model = small(method, dtype)
    objective = OBJECTIVES[METHODS[method].objective]
    n, alpha, beta = (torch.tensor(v, dtype=dtype) for v in (100.0, 0.1, 0.5))
    objective(model, inputs(12, dtype), torch.randn(12, dtype=dtype), n, alpha, beta, None).backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert silent == ({"noise.raw"} if method == "dnn" else set())
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


@methods
def test_rows_do_not_see_each_other(method, dtype):
    model, x = small(method, dtype), inputs(9, dtype)
    whole, alone = model(x), model(x[4:5])
    for name in ("mean", "var", "prior_var", "correction"):
        close(getattr(whole, name)[4:5], getattr(alone, name), TOLERANCE[dtype])


@pytest.mark.parametrize("family", [("dbk-silu", "vbll"), ("dbk-rbf", "sv-dkl", "pp-dkl")])
def test_methods_of_a_family_differ_only_in_how_they_are_trained_and_read(family):
    first, *others = (small(method).state_dict() for method in family)
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)
    assert len({METHODS[method].objective for method in family}) == len(family)


def test_the_table_of_methods_is_the_papers_and_one_more():
    """Appendix B, "Baselines": what each is trained with, and which predict with the correction of Eq. 4."""
    assert {name: (row.objective, row.corrected) for name, row in METHODS.items()} == {
        "dbk-silu": ("dppgp", False),
        "dbk-rbf": ("dppgp", False),
        "vbll": ("elbo", False),
        "sv-dkl": ("elbo", True),
        "pp-dkl": ("ppgp", True),
        "sv-rbf": ("elbo", True),
        "sv-rbf-linear": ("elbo", True),
        "dnn": ("mse", False),
    }


def test_prior_draws_have_the_kernel_as_their_covariance():
    model, count = small("dbk-silu"), 40_000
    with torch.no_grad():
        model.mean.fill_(2.0)
    x = inputs(6)
    draws = model.sample_functions(count, prior=True, generator=torch.Generator().manual_seed(0))(x)
    K = model.kernel(x).detach()
    variances = K.diagonal()
    error = ((K.square() + variances[:, None] * variances) / count).sqrt()
    assert ((draws.mT.cov() - K).abs() < 5 * error).all()
    assert ((draws.mean(0) - 2.0).abs() < 5 * (variances / count).sqrt()).all()


@with_weights
def test_posterior_draws_have_the_models_mean_and_variance(method):
    model, count = small(method), 20_000
    with torch.no_grad():
        model.mean.fill_(-1.0)
    x = inputs(5)
    draws = model.sample_functions(count, generator=torch.Generator().manual_seed(0))(x)
    t = model(x)
    assert ((draws.mean(0) - t.mean).abs() < 5 * (t.var / count).sqrt()).all()
    assert ((draws.var(0) / t.var - 1).abs() < 5 * math.sqrt(2 / count)).all()


@methods
@pytest.mark.parametrize("prior", [False, True])
def test_a_drawn_function_is_one_function(method, prior, dtype):
    model, x = small(method, dtype), inputs(10, dtype)
    functions = model.sample_functions(4, prior=prior, generator=torch.Generator().manual_seed(0))
    f = functions(x)
    assert torch.equal(f, functions(x))
    close(torch.cat([functions(x[:3]), functions(x[3:])], dim=1), f, TOLERANCE[dtype])
    again = model.sample_functions(4, prior=prior, generator=torch.Generator().manual_seed(0))(x)
    assert torch.equal(again, f)
    assert not f.requires_grad
    if prior or method != "dnn":
        assert not torch.equal(f[0], f[1])


# --- build ---


@methods
def test_a_seed_decides_the_parameters_and_leaves_the_global_state(method):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = small(method).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    second, other = small(method).state_dict(), small(method, seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_without_a_seed_the_global_state_decides():
    torch.manual_seed(4)
    first, next_one = (build("dbk-silu", D, rank=R, width=H) for _ in range(2))
    torch.manual_seed(4)
    again = build("dbk-silu", D, rank=R, width=H)
    assert torch.equal(first.posterior.m, again.posterior.m)
    assert not torch.equal(first.posterior.m, next_one.posterior.m)


@methods
def test_the_start_is_the_same_in_both_precisions(method):
    single, double = small(method, torch.float32), small(method, torch.float64)
    assert all(p.dtype == torch.float32 for p in build(method, D, rank=R, width=H, seed=0).parameters())
    for mine, theirs in zip(single.parameters(), double.parameters(), strict=True):
        assert torch.equal(mine.double(), theirs)
    x = inputs(30)
    t32, t64 = single(x.float()), double(x)
    for name in ("mean", "var", "prior_var", "correction", "noise", "kl"):
        close(getattr(t32, name), getattr(t64, name), 1e-3)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "svgp"}, "method"),
        ({"d": 0}, "d must"),
        ({"rank": 0}, "rank"),
        ({"rank": -3}, "rank"),
        ({"rank": True}, "rank"),
        ({"width": 0}, "h must|width"),
        ({"blocks": 0}, "blocks"),
        ({"noise": 0.0}, "noise"),
        ({"noise": NOISE_FLOOR}, "noise"),
        ({"noise": -1.0}, "noise"),
        ({"noise": math.nan}, "noise"),
        ({"noise": math.inf}, "noise"),
        ({"noise_parameterisation": "softplus"}, "parameterisation"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**64)}, "seed"),
    ],
    ids=str,
)
def test_build_refuses(options, word):
    arguments = {"method": "dbk-silu", "d": D, "rank": R, "width": H, **options}
    with pytest.raises(InputError, match=word):
        build(**arguments)


@pytest.mark.parametrize("count", [0, -1, True])
def test_function_draws_refuse_a_bad_count(count):
    with pytest.raises(InputError, match="count"):
        small("dbk-silu").sample_functions(count)


WRONG_TYPES = """
import torch
from deepbasis.errors import InputError
from deepbasis.gp.expansion import RBF
from deepbasis.gp.build import build
from deepbasis.gp.model import Noise
from deepbasis.gp.predictive import Gaussian, mixture
g = Gaussian(torch.zeros(2), torch.ones(2))
calls = '''
build(3, 2); build([], 2); build("dnn", 2.5); build("dnn", "2"); build("dbk-silu", 2, rank=2.5)
build("dbk-silu", 2, rank="8"); build("dbk-silu", 2, rank=None); build("dbk-silu", 2, rank=torch.tensor(2.5))
build("dbk-silu", 2, width=None); build("dbk-silu", 2, blocks=1.5); build("dbk-silu", 2, noise="0.01")
build("dbk-silu", 2, noise=None); build("dbk-silu", 2, noise=[0.1])
build("dbk-silu", 2, noise=10**400); build("dbk-silu", 2, noise_parameterisation=[]); build("dbk-silu", 2, seed="a")
build("dbk-silu", 2, seed=1.5); Noise(0.1, floor="0"); RBF(2, 3, jitter="1e-4"); RBF(2, 3, jitter=-1.0)
g.quantile("0.5"); mixture([g]).quantile("0.5"); g.quantile(None); g.interval("0.9"); g.interval([0.9])
g.sample(1.5); g.sample("3"); mixture([g]).sample(None)
'''
for call in calls.replace(chr(10), ";").split(";"):
    if not call.strip():
        continue
    try:
        eval(call)
    except InputError:
        continue
    except Exception as error:
        print(f"{call.strip()}: {type(error).__name__}: {error}")
    else:
        print(f"{call.strip()}: accepted")
"""


def test_wrong_types_are_input_errors_where_nothing_checks_annotations():
    """In a process of its own: the shape checks of the tests would be faster."""
    run = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True)
    assert run.stdout == ""


# --- noise ---


@pytest.mark.parametrize("parameterisation", ["log", "clamp"])
@pytest.mark.parametrize("initial", [2e-6, 1e-2, 3.0])
def test_noise_starts_where_it_is_told(dtype, parameterisation, initial):
    noise = Noise(initial, parameterisation=parameterisation).to(dtype)
    assert noise().item() == pytest.approx(initial, rel=2e-6)
    assert noise().dtype == dtype


@pytest.mark.parametrize("parameterisation", ["log", "clamp"])
@pytest.mark.parametrize("raw", [-1e4, -30.0, -1.0, 0.0])
def test_noise_respects_its_floor(dtype, parameterisation, raw):
    noise = Noise(parameterisation=parameterisation).to(dtype)
    with torch.no_grad():
        noise.raw.fill_(raw)
    assert noise() >= torch.tensor(NOISE_FLOOR, dtype=dtype)
    floor = Noise(0.5, floor=0.2, parameterisation=parameterisation).to(dtype)
    with torch.no_grad():
        floor.raw.fill_(raw)
    assert floor() >= torch.tensor(0.2, dtype=dtype)


def gradient(parameterisation: str, raw: float) -> float:
    noise = Noise(parameterisation=parameterisation).double()
    with torch.no_grad():
        noise.raw.fill_(raw)
    noise().backward()
    return float(noise.raw.grad)


def test_gradients_of_the_two_parameterisations():
    assert gradient("clamp", 0.5) == 1.0
    assert gradient("clamp", NOISE_FLOOR / 2) == 0.0
    assert gradient("clamp", -1.0) == 0.0
    assert gradient("log", -2.0) == pytest.approx(math.exp(-2.0))
    assert gradient("log", -20.0) > 0.0


def test_build_passes_the_noise_on():
    model = small("dbk-silu", noise=0.3, noise_parameterisation="clamp")
    assert model.noise.raw.item() == pytest.approx(0.3)
    assert model(inputs()).noise.item() == pytest.approx(0.3)


# --- failed factorisations, duplicates, far away ---


def spoiled(jitter: float, Z: Tensor) -> DeepBasisGP:
    expansion = RBF(D, len(Z))
    expansion.jitter = jitter
    with torch.no_grad():
        expansion.Z.copy_(Z)
    return DeepBasisGP(Identity(D), expansion, WeightPosterior(len(Z)), Noise())


FAILURES = {
    "nan": (1e-4, torch.tensor([[0.0, 0.0, 0.0], [math.nan, 0.0, 0.0]])),
    "infinite": (1e-4, torch.tensor([[0.0, 0.0, 0.0], [math.inf, 0.0, 0.0]])),
    "duplicates without jitter": (0.0, torch.ones(2, D)),
    "a negative pivot, all else finite": (-0.5, torch.ones(3, D)),
}


@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_failed_factorisation_is_reported_not_raised(failure, dtype):
    model, x = spoiled(*FAILURES[failure]).to(dtype), inputs(5, dtype)
    features, t = model.features(x), model(x)
    assert int(features.info) > 0
    assert bool(features.phi.isnan().all())
    assert int(t.info) == int(features.info)
    assert bool(t.mean.isnan().all())
    for corrected in (False, True):
        with pytest.raises(NumericalError, match=r"could not be factorised \(pivot \d+\)"):
            predict(t, corrected=corrected)


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
    predicted = predict(model(new), corrected=True)
    np.testing.assert_allclose(predicted.mean.detach(), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(predicted.variance.detach(), std**2, rtol=1e-5)


def test_far_from_the_data_only_the_correction_keeps_the_prior_variance(dtype):
    """The warning of `RBF`: without the correction of Eq. 4 the function is certain where nothing is known."""
    model = small("sv-rbf", dtype)
    with torch.no_grad():
        model.expansion.log_variance.fill_(math.log(2.5))
    noise = model.noise().item()
    t = model(1e3 * torch.ones(4, D, dtype=dtype))
    assert predict(t, corrected=True).variance.tolist() == pytest.approx([2.5 + noise] * 4, rel=1e-5)
    assert predict(t, corrected=False).variance.tolist() == pytest.approx([noise] * 4, rel=1e-5)
    assert t.mean.tolist() == pytest.approx([model.mean.item()] * 4)


def test_at_an_inducing_point_the_correction_is_the_jitters(dtype):
    expansion = RBF(D, R).to(dtype)
    correction = expansion(expansion.Z.detach()).correction
    assert correction.max() < 2e-4
    assert correction.min() >= 0.0


def test_predict_adds_the_noise_and_the_correction_it_is_told_to():
    t = small("sv-dkl")(inputs())
    close(predict(t, corrected=True).variance, t.var + t.correction + t.noise, 1e-12)
    close(predict(t, corrected=False).variance, t.var + t.noise, 1e-12)
    assert torch.equal(predict(t, corrected=True).mean, t.mean)
