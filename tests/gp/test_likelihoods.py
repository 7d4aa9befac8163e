"""Likelihoods: the noise of the Gaussian and its densities."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from deepbasis.gp.likelihoods import NOISE_FLOOR, GaussianLikelihood, Likelihood
from deepbasis.registry import LIKELIHOODS
from support.models import small


@pytest.mark.parametrize("parameterisation", ["log", "clamp"])
@pytest.mark.parametrize("initial", [2e-6, 1e-2, 3.0])
def test_noise_starts_where_it_is_told(dtype, parameterisation, initial):
    noise = GaussianLikelihood(initial, parameterisation=parameterisation).to(dtype)
    assert noise.noise().item() == pytest.approx(initial, rel=2e-6)
    assert noise.noise().dtype == dtype


@pytest.mark.parametrize("parameterisation", ["log", "clamp"])
@pytest.mark.parametrize("raw", [-1e4, -30.0, -1.0, 0.0])
def test_noise_respects_its_floor(dtype, parameterisation, raw):
    noise = GaussianLikelihood(parameterisation=parameterisation).to(dtype)
    with torch.no_grad():
        noise.raw.fill_(raw)
    assert noise.noise() >= torch.tensor(NOISE_FLOOR, dtype=dtype)
    floor = GaussianLikelihood(0.5, floor=0.2, parameterisation=parameterisation).to(dtype)
    with torch.no_grad():
        floor.raw.fill_(raw)
    assert floor.noise() >= torch.tensor(0.2, dtype=dtype)


def gradient(parameterisation: str, raw: float) -> float:
    noise = GaussianLikelihood(parameterisation=parameterisation).double()
    with torch.no_grad():
        noise.raw.fill_(raw)
    noise.noise().backward()
    return float(noise.raw.grad)


def test_gradients_of_the_two_parameterisations():
    assert gradient("clamp", 0.5) == 1.0
    assert gradient("clamp", NOISE_FLOOR / 2) == 0.0
    assert gradient("clamp", -1.0) == 0.0
    assert gradient("log", -2.0) == pytest.approx(math.exp(-2.0))
    assert gradient("log", -20.0) > 0.0


def test_build_passes_the_noise_on():
    model = small("dbk-silu", noise=0.3, likelihood=partial(GaussianLikelihood, parameterisation="clamp"))
    assert model.likelihood.raw.item() == pytest.approx(0.3)
    assert model.noise().item() == pytest.approx(0.3)


# --- densities ---


@pytest.mark.parametrize("noise", [1e-3, 0.1, 2.0])
def test_densities_are_expectations_over_f(noise):
    """log E p(y | f) and E log p(y | f) by Gauss-Hermite quadrature; Jensen's inequality holds between them."""
    likelihood = GaussianLikelihood(noise).double()
    nodes, masses = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(120))
    rows = torch.tensor([[0.3, 0.02, 0.2], [-1.0, 0.5, -0.9], [0.0, 1e-3, 0.1]], dtype=torch.float64)
    mean, var, y = rows[:, 0], noise * rows[:, 1], rows[:, 2]
    with torch.no_grad():
        f = mean[:, None] + var.sqrt()[:, None] * nodes
        log_density = torch.distributions.Normal(f, likelihood.noise().sqrt()).log_prob(y[:, None])
        outside = (log_density.exp() @ masses / masses.sum()).log()
        inside = log_density @ masses / masses.sum()
        torch.testing.assert_close(likelihood.log_density(y, mean, var), outside, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(likelihood.expected_log_density(y, mean, var), inside, rtol=1e-9, atol=1e-12)
        assert bool((outside > inside).all())


def test_the_distribution_has_the_density_that_is_trained(dtype):
    likelihood, (mean, y) = GaussianLikelihood(0.2).to(dtype), torch.randn(2, 9, dtype=dtype)
    var = torch.rand(9, dtype=dtype)
    with torch.no_grad():
        one = likelihood.distribution(*likelihood.predictive(mean, var))
        torch.testing.assert_close(one.log_prob(y), likelihood.log_density(y, mean, var))
        both = likelihood.distribution(*(torch.stack([part, part]) for part in likelihood.predictive(mean, var)))
        torch.testing.assert_close(both.log_prob(y), one.log_prob(y))


def test_the_gaussian_is_a_likelihood():
    assert isinstance(GaussianLikelihood(), Likelihood)
    assert LIKELIHOODS["gaussian"] is GaussianLikelihood
    assert not isinstance(torch.nn.Linear(1, 1), Likelihood)


def test_the_starting_noise_is_half_of_what_a_line_leaves():
    assert GaussianLikelihood.starting_noise(0.3) == 0.15
    assert GaussianLikelihood.starting_noise(1e-9) == 1e-4
    assert GaussianLikelihood.starting_noise(7.0) == 0.5
