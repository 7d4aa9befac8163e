"""Noise that is a function of the inputs: against quadrature and the constant; in tails, and in a stack."""

import math

import pytest
import torch

from deepbasis.engine.members import Ensemble, Stack
from deepbasis.gp.build import build
from deepbasis.gp.input_noise import InputNoiseLikelihood
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.objectives import dppgp
from deepbasis.gp.predictive import gaussian_nll


def moments(n: int = 40, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, and means and variances of f and g."""
    some = torch.randn(5, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return some[0], some[1:3].T.contiguous(), torch.stack([some[3].exp(), spread * some[4].square()], 1)


def models(count: int) -> list[DeepBasisGP]:
    return [build("dbk-silu", 2, rank=4, width=8, likelihood="input-noise", noise=0.3, seed=k) for k in range(count)]


def test_its_density_is_the_integral_over_g():
    likelihood = InputNoiseLikelihood(0.2).double()
    y, mean, var = moments()
    z = torch.linspace(-8.0, 8.0, 4_001, dtype=torch.float64)
    shares = torch.softmax(-0.5 * z.square(), 0)
    g = mean[:, 1:] + var[:, 1:].sqrt() * z
    s = likelihood.floor + (likelihood.raw + g).exp()
    exact = (shares * (-gaussian_nll(y[:, None], mean[:, :1], var[:, :1] + s)).exp()).sum(1).log()
    torch.testing.assert_close(likelihood.log_density(y, mean, var), exact, rtol=0.0, atol=0.02)
    expected = ((-gaussian_nll(y[:, None], mean[:, :1], s) - var[:, :1] / (2.0 * s)) * shares).sum(1)
    torch.testing.assert_close(likelihood.expected_log_density(y, mean, var), expected, rtol=0.02, atol=0.02)


def test_a_g_of_zero_is_constant_noise():
    y, mean, var = moments()
    mean[:, 1], var[:, 1] = 0.0, 0.0
    ours, plain = (kind(0.2).double() for kind in (InputNoiseLikelihood, GaussianLikelihood))
    for name in ("log_density", "expected_log_density"):
        torch.testing.assert_close(
            getattr(ours, name)(y, mean, var), getattr(plain, name)(y, mean[:, 0], var[:, 0]), rtol=1e-6, atol=1e-6
        )


def test_what_is_trained_is_what_is_predicted():
    model = models(1)[0].double()
    x, y = torch.randn(30, 2, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    torch.testing.assert_close(model.predict(x).log_prob(y), model.log_density(model(x), y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.predict(x).mean, model.mean_at(x))
    drawn = model.sample_functions(4_000, generator=torch.Generator().manual_seed(0))(x)
    torch.testing.assert_close(drawn.mean(0), model.mean_at(x), rtol=0.0, atol=0.1)
    torch.testing.assert_close(drawn.var(0), model(x).var[:, 0], rtol=0.15, atol=1e-3)


def test_stacked_members_are_members_alone():
    alone = models(3)
    x, y = torch.randn(20, 2), torch.randn(20)
    stack = Stack(alone, device=torch.device("cpu"), dtype=torch.float32)
    together = stack.map(lambda model, x, y: dppgp(model, x, y, 20, 0.1, 1.0), (), (x, y))
    torch.testing.assert_close(together, torch.stack([dppgp(model, x, y, 20, 0.1, 1.0) for model in alone]))
    mixture = Ensemble(alone).predict(x)
    each = torch.stack([model.predict(x).log_prob(y) for model in alone])
    torch.testing.assert_close(mixture.log_prob(y), each.logsumexp(0) - math.log(3))


@pytest.mark.parametrize("g", [-60.0, 0.0, 60.0])
def test_float32_tails_have_no_holes(g: float):
    mean = torch.stack([torch.linspace(-40.0, 40.0, 161), torch.full((161,), g)], 1).requires_grad_()
    found = InputNoiseLikelihood(1.0).log_density(torch.zeros(161), mean, torch.full((161, 2), 1e-2))
    found.sum().backward()
    assert mean.grad is not None
    assert bool(found.isfinite().all() & mean.grad.isfinite().all())
