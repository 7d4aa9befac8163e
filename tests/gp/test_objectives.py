"""The mini-batch objectives (Eq. 5, 6, 15) and the KL term: values written out, gradients, and weights per row."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call

from deepbasis.gp import exact, objectives
from deepbasis.gp.build import build
from deepbasis.gp.model import DeepBasisGP, Terms
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from support.own import OBJECTIVES

N = 50.0  # rows of the training set, of which a batch is a part
ALPHA, BETA = 0.3, 0.7
EXPANSIONS = {"silu": "dbk-silu", "rbf": "dbk-rbf", "none": "dnn"}

Objective = Callable[[DeepBasisGP, Tensor, Tensor, Tensor | None], Tensor]


def objective(name: str) -> Objective:
    """By its name in the table of methods, with this file's n, alpha and beta."""
    chosen = OBJECTIVES[name]
    scalars = torch.tensor([N, ALPHA, BETA], dtype=torch.float64)
    return lambda model, x, y, weight: chosen(model, x, y, *scalars.to(y.dtype), weight)


def with_terms(model: DeepBasisGP, terms: Terms) -> DeepBasisGP:
    """The model, with these terms whatever the batch."""
    given = copy.copy(model)
    given.forward = lambda x: terms
    return given


CASES = pytest.mark.parametrize(
    ("name", "expansion"),
    [(name, expansion) for name in ("dppgp", "ppgp", "elbo", "mse") for expansion in ("silu", "rbf")]
    + [("mse", "none")],
)


def small_model(expansion: str, dtype: torch.dtype = torch.float64) -> DeepBasisGP:
    model = build(EXPANSIONS[expansion], 2, rank=3, width=4, blocks=1, noise=0.2, seed=3).to(dtype)
    with torch.no_grad():
        model.mean.fill_(0.4)
    return model


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 2, dtype=torch.float64) * 2.0 - 1.0
    return x.to(dtype), torch.randn(6, dtype=torch.float64).to(dtype)


def gradients(model: DeepBasisGP, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


# Values ---------------------------------------------------------------------------------------------------------------


def written_out(name: str, t: Terms, y: Tensor, s: float) -> float:
    """Eq. 5, 6 and 15 for one row after the other, with scalars."""
    total = 0.0
    biggest = max(float(v) for v in t.prior_var)
    for y_i, mean, var, prior, correction in zip(y, t.mean, t.var, t.prior_var, t.correction, strict=True):
        error2, var, prior, correction = float(y_i - mean) ** 2, float(var), float(prior), float(correction)
        spread = {"elbo": s, "ppgp": var + correction + s, "dppgp": var + s}[name]
        total += 0.5 * math.log(2.0 * math.pi * spread) + 0.5 * error2 / spread
        total += {"elbo": (var + correction) / (2.0 * s), "ppgp": 0.0, "dppgp": ALPHA * (biggest - prior) / (2.0 * s)}[
            name
        ]
    return total / len(y) + (1.0 if name == "elbo" else BETA) / N * float(t.kl)


@pytest.mark.parametrize("expansion", ["silu", "rbf"])
@pytest.mark.parametrize("name", ["elbo", "ppgp", "dppgp"])
def test_value_is_the_equation(name: str, expansion: str, dtype: torch.dtype) -> None:
    model, (x, y) = small_model(expansion, dtype), batch(dtype)
    with torch.no_grad():
        t = model(x)
        rel = 1e-12 if dtype == torch.float64 else 1e-5
        expected = written_out(name, t, y, float(model.noise()))
        assert float(objective(name)(model, x, y, None)) == pytest.approx(expected, rel=rel)


def test_mse_is_of_the_mean(dtype: torch.dtype) -> None:
    model, (x, y) = small_model("none", dtype), batch(dtype)
    with torch.no_grad():
        mean = model.mean + model.backbone(x) @ model.posterior.m
        torch.testing.assert_close(objectives.mse(model, x, y), (y - mean).square().mean())


def test_elbo_of_vbll_is_the_expected_likelihood_minus_kl() -> None:
    """VBLL: E_q(w)[log N(y; <w, phi>, s)] - KL / n, with the expectation by Gauss-Hermite (exact for a quadratic)."""
    model, (x, y) = small_model("silu"), batch()
    nodes, masses = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(5))
    with torch.no_grad():
        phi, q, s = model.basis(x), model.posterior, model.noise()
        S = q.L() @ q.L().mT
        std = torch.einsum("bi,ij,bj->b", phi, S, phi).sqrt()
        f = model.mean + (phi @ q.m)[:, None] + std[:, None] * nodes  # [b, nodes]
        log_density = -0.5 * (torch.log(2.0 * math.pi * s) + (y[:, None] - f).square() / s)
        expected = (log_density @ masses / masses.sum()).mean() - q.kl() / N
        torch.testing.assert_close(-objectives.elbo(model, x, y, N), expected, rtol=1e-12, atol=0.0)


def test_ppgp_is_the_log_of_the_expected_likelihood() -> None:
    """Eq. 6 moves the log of Eq. 5 outside the expectation: log E_q[N(y; <w, phi>, s)], here by Gauss-Hermite."""
    model, (x, y) = small_model("silu"), batch()
    nodes, masses = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(150))
    with torch.no_grad():
        t = model(x)
        f = t.mean[:, None] + t.var.sqrt()[:, None] * nodes
        s = model.noise()
        density = torch.exp(-0.5 * (y[:, None] - f).square() / s) / torch.sqrt(2.0 * math.pi * s)
        expected = (density @ masses / masses.sum()).log().mean() - BETA * t.kl / N
        torch.testing.assert_close(-objectives.ppgp(model, x, y, N, beta=BETA), expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("expansion", ["silu", "rbf"])
def test_ppgp_is_below_elbo(expansion: str) -> None:
    """Jensen, log E >= E log: as losses, Eq. 6 with beta = 1 <= Eq. 5."""
    model, (x, y) = small_model(expansion), batch()
    with torch.no_grad():
        for noise in (1e-4, 1e-2, 1.0, 100.0):
            model.likelihood.set_noise(noise)
            assert objectives.ppgp(model, x, y, N) < objectives.elbo(model, x, y, N)


def test_dppgp_without_trace_is_ppgp_without_correction() -> None:
    x, y = batch()
    with torch.no_grad():
        silu, rbf = small_model("silu"), small_model("rbf")
        assert torch.equal(objectives.dppgp(silu, x, y, N, 0.0, BETA), objectives.ppgp(silu, x, y, N, beta=BETA))
        uncorrected = with_terms(rbf, rbf(x)._replace(correction=torch.zeros_like(y)))
        dppgp = objectives.dppgp(rbf, x, y, N, 0.0, BETA)
        assert torch.equal(dppgp, objectives.ppgp(uncorrected, x, y, N, beta=BETA))
        assert abs(dppgp - objectives.ppgp(rbf, x, y, N, beta=BETA)) > 1e-3  # the correction is there, and it matters


def test_trace_is_zero_only_for_a_uniform_prior_variance() -> None:
    with torch.no_grad():
        prior_var = small_model("silu")(batch()[0]).prior_var
        assert objectives.trace(torch.full_like(prior_var, 2.0)) == 0.0
        assert objectives.trace(prior_var) > 0.0
        torch.testing.assert_close(objectives.trace(2.0 * prior_var), 2.0 * objectives.trace(prior_var))


# KL -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 16])
def test_kl_is_that_of_torch(rank: int, dtype: torch.dtype) -> None:
    q = WeightPosterior(rank).to(dtype)
    with torch.no_grad():
        q.lower += torch.randn(rank, rank, dtype=dtype)  # also above the diagonal, which must count for nothing
        prior = MultivariateNormal(torch.zeros(rank, dtype=dtype), torch.eye(rank, dtype=dtype))
        expected = kl_divergence(MultivariateNormal(q.m, scale_tril=q.L()), prior)
        rtol = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(q.kl(), expected, rtol=rtol, atol=0.0)


def test_kl_vanishes_at_the_prior_alone(dtype: torch.dtype) -> None:
    q = WeightPosterior(4).to(dtype)
    assert q.kl() > 0.0
    q.set_(torch.zeros(4, dtype=dtype), torch.eye(4, dtype=dtype))
    assert q.kl() == 0.0
    assert PointWeights(4).to(dtype).kl() == 0.0


# Gradients ------------------------------------------------------------------------------------------------------------


class NegativeLikelihood(nn.Module):
    """-Eq. 11 / n as a function of a model's parameters."""

    def __init__(self, model: DeepBasisGP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        likelihood = exact.log_marginal_likelihood(self.model.basis(x), y - self.model.mean, self.model.noise())
        return -likelihood / len(y)


class Loss(nn.Module):
    """An objective as a function of a model's parameters."""

    def __init__(self, model: DeepBasisGP, name: str) -> None:
        super().__init__()
        self.model, self.objective = model, objective(name)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.objective(self.model, x, y, None)


def passes_gradcheck(loss: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Central differences in every entry of every parameter: 1e-6 absolute, 1e-5 relative."""
    known = {name: p for name, p in loss.named_parameters() if not bool(p.isnan().any())}  # the noise of a DNN is not
    names, parameters = zip(*known.items(), strict=True)

    def value(*values: Tensor) -> Tensor:
        return functional_call(loss, dict(zip(names, values, strict=True)), (x, y))

    return torch.autograd.gradcheck(value, parameters, eps=1e-6, atol=1e-6, rtol=1e-5)


@CASES
def test_gradcheck_of_objectives(name: str, expansion: str) -> None:
    assert passes_gradcheck(Loss(small_model(expansion), name), *batch())


@pytest.mark.parametrize("expansion", ["silu", "rbf"])
def test_gradcheck_of_the_likelihood(expansion: str) -> None:
    assert passes_gradcheck(NegativeLikelihood(small_model(expansion)), *batch())


@pytest.mark.parametrize("expansion", ["silu", "rbf"])
def test_gradient_through_the_maximum(expansion: str) -> None:
    """The two readings of the trace have one value; their gradients differ by alpha / (2 s) d max ||phi||^2."""
    model, (x, y) = small_model(expansion), batch()
    s = model.noise().detach()

    def loss(through: bool) -> Tensor:
        return objectives.dppgp(model, x, y, N, ALPHA, BETA, through_maximum=through)

    assert torch.equal(loss(True), loss(False))
    through, stopped = gradients(model, loss(True)), gradients(model, loss(False))
    maximum = gradients(model, ALPHA / (2.0 * s) * model.features(x).prior_var.max())
    assert max(float(g.abs().max()) for g in maximum.values()) > 1e-3
    for name, gradient in through.items():
        expected = stopped[name] + maximum.get(name, 0.0)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


# Weights --------------------------------------------------------------------------------------------------------------


def assert_same(model: DeepBasisGP, one: Callable[[], Tensor], other: Callable[[], Tensor], dtype: torch.dtype) -> None:
    """Equal values and gradients."""
    rtol, atol = (1e-10, 1e-12) if dtype == torch.float64 else (1e-4, 1e-5)
    torch.testing.assert_close(one(), other(), rtol=rtol, atol=atol)
    expected = gradients(model, other())
    for name, gradient in gradients(model, one()).items():
        torch.testing.assert_close(gradient, expected[name], rtol=rtol, atol=atol, msg=name)


@CASES
def test_whole_weights_are_repeated_rows(name: str, expansion: str, dtype: torch.dtype) -> None:
    model, (x, y), loss = small_model(expansion, dtype), batch(dtype), objective(name)
    times = torch.tensor([1, 3, 2, 1, 4, 1])
    assert_same(
        model,
        lambda: loss(model, x, y, times.to(dtype)),
        lambda: loss(model, x.repeat_interleave(times, 0), y.repeat_interleave(times), None),
        dtype,
    )


@CASES
def test_rows_of_weight_zero_are_absent(name: str, expansion: str, dtype: torch.dtype) -> None:
    """Among them the row with the largest prior variance, which the trace's maximum must then not see."""
    model, (x, y), loss = small_model(expansion, dtype), batch(dtype), objective(name)
    with torch.no_grad():
        prior_var = model(x).prior_var
    weight = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0, 3.0], dtype=dtype)
    weight[prior_var.argmax()] = 0.0
    kept = weight > 0
    assert prior_var.max() > prior_var[kept].max()
    assert_same(
        model,
        lambda: loss(model, x, y, weight),
        lambda: loss(model, x[kept], y[kept], weight[kept]),
        dtype,
    )


@CASES
def test_only_the_ratios_of_weights_matter(name: str, expansion: str) -> None:
    model, (x, y), loss = small_model(expansion), batch(), objective(name)
    weight = torch.rand(6, dtype=torch.float64) + 0.1
    assert_same(model, lambda: loss(model, x, y, weight), lambda: loss(model, x, y, 1000.0 * weight), torch.float64)
    assert_same(
        model, lambda: loss(model, x, y, None), lambda: loss(model, x, y, torch.full_like(weight, 0.2)), torch.float64
    )
