"""Backbone, expansions, q(w), noise and the model they make: initialisation, algebra, draws, failures."""

import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp.backbone import Identity, ResNet
from deepbasis.gp.build import build
from deepbasis.gp.expansion import RBF
from deepbasis.gp.likelihoods import NOISE_FLOOR, GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from support.models import TOLERANCE, D, H, R, close, follows, inputs, methods, small, with_weights
from support.own import METHODS, OBJECTIVES, OUTLOOK

# --- initialisation (Appendix B) ---


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
    assert model.noise().item() == pytest.approx(math.nan if method == "dnn" else 1e-2, rel=1e-6, nan_ok=True)
    assert model.likelihood.floor == 1e-6
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
    assert model.corrected == METHODS[method].corrected
    if method == "dnn":
        model.set_residual_variance(0.3)
    assert model.corrected == bool((model.predict(x).variance > t.var + model.noise()).any())


@methods
def test_every_method_trains_every_parameter(method, dtype):
    model = small(method, dtype)
    objective = OBJECTIVES[METHODS[method].objective]
    n, alpha, beta = (torch.tensor(v, dtype=dtype) for v in (100.0, 0.1, 0.5))
    objective(model, inputs(12, dtype), torch.randn(12, dtype=dtype), n, alpha, beta, None).backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert silent == ({"likelihood.raw"} if method == "dnn" else set())
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


def test_the_table_of_methods_is_the_papers_two_more_and_those_of_its_outlook():
    """Appendix B, "Baselines": what each is trained with, and which predict with the correction of Eq. 4."""
    assert {name: (row.objective, row.corrected) for name, row in METHODS.items()} == {
        "dbk-silu": ("dppgp", False),
        "dbk-rbf": ("dppgp", False),
        "vbll": ("elbo", False),
        "sv-dkl": ("elbo", True),
        "pp-dkl": ("ppgp", True),
        "sv-rbf": ("elbo", True),
        "sv-rbf-linear": ("elbo", True),
        "linear": ("elbo", False),
        **dict.fromkeys(OUTLOOK, ("dppgp", False)),
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
    assert all(torch.equal(first[name].nan_to_num(), second[name].nan_to_num()) for name in first)
    assert not torch.equal(first["posterior.m"], other["posterior.m"])


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
        assert torch.equal(mine.double().nan_to_num(), theirs.nan_to_num())  # a DNN's noise is NaN
    x = inputs(30)
    t32, t64 = single(x.float()), double(x)
    for name in ("mean", "var", "prior_var", "correction", "kl"):
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
        ({"likelihood": "gauss"}, "likelihood must be one of .*gaussian"),
        ({"likelihood": partial(GaussianLikelihood, parameterisation="softplus")}, "parameterisation"),
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
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.predictive import Gaussian, mixture
g = Gaussian(torch.zeros(2), torch.ones(2))
calls = '''
build(3, 2); build([], 2); build("dnn", 2.5); build("dnn", "2"); build("dbk-silu", 2, rank=2.5)
build("dbk-silu", 2, rank="8"); build("dbk-silu", 2, rank=None); build("dbk-silu", 2, rank=torch.tensor(2.5))
build("dbk-silu", 2, width=None); build("dbk-silu", 2, blocks=1.5); build("dbk-silu", 2, noise="0.01")
build("dbk-silu", 2, noise=None); build("dbk-silu", 2, noise=[0.1]); build("dbk-silu", 2, likelihood=[])
build("dbk-silu", 2, noise=10**400); GaussianLikelihood(parameterisation=[]); build("dbk-silu", 2, seed="a")
build("dbk-silu", 2, seed=1.5); GaussianLikelihood(0.1, floor="0"); RBF(2, 3, jitter="1e-4"); RBF(2, 3, jitter=-1.0)
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


@pytest.mark.slow
def test_wrong_types_are_input_errors_where_nothing_checks_annotations():
    """In a process of its own: the shape checks of the tests would be faster."""
    run = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True)
    assert run.stdout == ""


# --- predictions, failed factorisations, far away ---


def spoiled(jitter: float, Z: Tensor) -> DeepBasisGP:
    expansion = RBF(D, len(Z))
    expansion.jitter = jitter
    with torch.no_grad():
        expansion.Z.copy_(Z)
    return DeepBasisGP(Identity(D), expansion, WeightPosterior(len(Z)), GaussianLikelihood())


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
    with pytest.raises(NumericalError, match=r"could not be factorised \(pivot \d+\)"):
        model.predict(x)


def test_far_from_the_data_only_the_correction_keeps_the_prior_variance(dtype):
    """The warning of `RBF`: without the correction of Eq. 4 the function is certain where nothing is known."""
    model = small("sv-rbf", dtype)
    with torch.no_grad():
        model.expansion.log_variance.fill_(math.log(2.5))
    noise = model.noise().item()
    x = 1e3 * torch.ones(4, D, dtype=dtype)
    assert model.predict(x).variance.tolist() == pytest.approx([2.5 + noise] * 4, rel=1e-5)
    model.corrected = False
    assert model.predict(x).variance.tolist() == pytest.approx([noise] * 4, rel=1e-5)
    assert model(x).mean.tolist() == pytest.approx([model.mean.item()] * 4)


@pytest.mark.parametrize("method", ["dbk-rbf", "sv-dkl"])
def test_predict_adds_the_noise_and_the_correction_of_its_method(method):
    model, x = small(method).requires_grad_(False), inputs()
    t, predicted = model(x), model.predict(x)
    assert float(t.correction.min()) > 1e-3
    close(predicted.variance, t.var + model.noise() + (t.correction if method == "sv-dkl" else 0.0), 1e-12)
    assert torch.equal(predicted.mean, t.mean)


def test_a_dnn_predicts_no_distribution_before_it_has_its_residual_variance(dtype):
    model, x = small("dnn", dtype, noise=0.3), inputs(6, dtype)
    assert bool(model.noise().isnan())
    with pytest.raises(InputError, match="set_residual_variance"):
        model.predict(x)
    model.set_residual_variance(0.25)
    predicted = model.predict(x)
    assert torch.equal(predicted.mean, model(x).mean)
    close(predicted.variance, torch.full((6,), 0.25), 1e-6)
    model.set_residual_variance(0.0)  # of residuals that are all 0: next to the floor
    assert NOISE_FLOOR < model.noise().item() < 3 * NOISE_FLOOR
    with pytest.raises(InputError, match="noise"):
        model.set_residual_variance(math.nan)


def test_every_parameter_has_a_group():
    model = small("sv-rbf-linear")
    assert model.parameter_groups() == {
        "mean": "plain",
        "expansion.Z": "plain",
        **{f"expansion.{name}": "kernel" for name in ("log_lengthscale", "log_variance", "log_slope")},
        **{f"posterior.{name}": "posterior" for name in ("m", "log_diagonal", "lower")},
        "likelihood.raw": "likelihood",
    }
    deep = small("dbk-silu", embedding="periodic").parameter_groups()
    assert {group for name, group in deep.items() if name.startswith("expansion.")} == {"plain"}
    assert deep.pop("backbone.embedding.c") == "plain"
    hidden = {f"backbone.blocks.{k}.{part}.weight" for k in range(2) for part in ("widen", "narrow")}
    assert {name for name, group in deep.items() if group == "hidden"} == hidden
    assert {deep[name] for name in deep if name.startswith("backbone.") and name not in hidden} == {"network"}


def test_a_shallow_kernel_starts_at_rows_and_one_behind_a_network_does_not():
    x = inputs(30)
    for method in ("sv-rbf", "sv-dkl"):
        model = small(method)
        before = model.expansion.Z.detach().clone()
        model.start_at(x, torch.Generator().manual_seed(0))
        moved = bool((before != model.expansion.Z).all())
        assert moved == (method == "sv-rbf")
