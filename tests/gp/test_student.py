"""Student's t as a mixture of Gaussians: against scipy's, GPyTorch's and quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from deepbasis.gp.likelihoods import GaussianLikelihood, Likelihood
from deepbasis.gp.predictive import GaussianMixture
from deepbasis.gp.student import StudentLikelihood


def student(degrees: float = 5.0, noise: float = 0.6) -> StudentLikelihood:
    made = StudentLikelihood(noise).double()
    share = (math.log(degrees) - math.log(2.5)) / (math.log(100.0) - math.log(2.5))
    with torch.no_grad():
        made.raw_degrees.fill_(math.log(share / (1.0 - share)))
    return made


def law(degrees: float, noise: float = 0.6) -> stats.rv_continuous:
    """Of the same variance."""
    return stats.t(degrees, scale=math.sqrt(noise * (degrees - 2.0) / degrees))


@pytest.mark.parametrize(("degrees", "error"), [(3.0, 0.03), (4.7, 3e-3), (8.0, 1e-3), (30.0, 1e-3)])
def test_its_density_is_scipys(degrees: float, error: float):
    """Down to exp(-8); the variance is that of the noise."""
    y = torch.linspace(-12.0, 12.0, 97).double()
    made = student(degrees)
    assert isinstance(made, Likelihood)
    assert float(made.log_degrees().detach().exp()) == pytest.approx(degrees, rel=1e-5)
    found = made.log_density(y, torch.zeros(97).double(), torch.full((97,), 1e-12).double()).detach()
    expected = law(degrees).logpdf(y.numpy())
    np.testing.assert_allclose(found[expected > -8.0], expected[expected > -8.0], atol=error)


def test_it_is_a_density_of_the_variance_that_it_says():
    made = student(4.0)
    with torch.no_grad():
        dist = made.distribution(*made.predictive(torch.tensor([0.3]).double(), torch.tensor([0.2]).double()))
    assert isinstance(dist, GaussianMixture)
    assert float(dist.mean) == pytest.approx(0.3)
    assert float(dist.variance) == pytest.approx(0.2 + 0.6, rel=1e-6)
    y = torch.linspace(-40.0, 40.0, 80_001).double()
    flat, spread = torch.full_like(y, 0.3), torch.full_like(y, 0.2)
    total = float(made.log_density(y, flat, spread).exp().sum().detach()) * 1e-3
    assert total == pytest.approx(1.0, abs=1e-3)
    at = torch.tensor([1.7]).double()
    torch.testing.assert_close(
        dist.log_prob(at), made.log_density(at, torch.tensor([0.3]).double(), torch.tensor([0.2]).double()).detach()
    )


def test_many_degrees_are_a_gaussian():
    y, var = torch.linspace(-2.0, 2.0, 9).double(), torch.full((9,), 0.3).double()
    expected = GaussianLikelihood(0.6).double().log_density(y, 0.0 * y, var)
    torch.testing.assert_close(student(99.9).log_density(y, 0.0 * y, var), expected, rtol=0.0, atol=0.02)


@pytest.mark.parametrize("name", ["log_density", "expected_log_density"])
def test_gradients_are_those_of_differences(name: str):
    made = student(5.3)
    names = [one for one, _ in made.named_parameters()]
    y = torch.tensor([0.1, -4.0, 9.0]).double()

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of = made

        def forward(self, mean: Tensor, var: Tensor) -> Tensor:
            return getattr(self.of, name)(y, mean, var)

    call = Call()

    def value(mean: Tensor, var: Tensor, *parameters: Tensor) -> Tensor:
        state = {f"of.{one}": parameter for one, parameter in zip(names, parameters, strict=True)}
        return functional_call(call, state, (mean, var))

    parameters = [one.detach().clone().requires_grad_() for one in made.parameters()]
    mean = torch.tensor([0.0, 0.5, 1.0]).double().requires_grad_()
    var = torch.tensor([0.2, 0.4, 0.1]).double().requires_grad_()
    assert torch.autograd.gradcheck(value, (mean, var, *parameters))


def test_the_expected_log_density_is_near_that_of_gpytorch():
    gpytorch = pytest.importorskip("gpytorch")
    peer = gpytorch.likelihoods.StudentTLikelihood().double()
    peer.deg_free, peer.noise = 5.0, 0.6 * 3.0 / 5.0
    y, mean = torch.tensor([0.0, 1.0, -2.0]).double(), torch.tensor([0.1, 0.4, 0.0]).double()
    var = torch.tensor([0.1, 0.3, 0.2]).double()
    f = gpytorch.distributions.MultivariateNormal(mean, torch.diag(var))
    with torch.no_grad():
        found, expected = student().expected_log_density(y, mean, var), peer.expected_log_prob(y, f)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=3e-3)


def test_float32_tails_have_no_holes():
    mean = torch.linspace(-40.0, 40.0, 161, requires_grad=True)
    for density in (StudentLikelihood(1.0).log_density, StudentLikelihood(1.0).expected_log_density):
        mean.grad = None
        found = density(torch.zeros(161), mean, torch.full((161,), 1e-4))
        found.sum().backward()
        assert mean.grad is not None
        assert found.isfinite().all()
        assert mean.grad.isfinite().all()


def test_stacked_members_are_members_alone():
    members = [student(3.0, 0.2), student(20.0, 0.5)]
    y, mean, var = torch.tensor([0.1, -4.0, 9.0]).double(), torch.zeros(3).double(), torch.full((3,), 0.2).double()

    class Call(torch.nn.Module):
        def __init__(self, of: StudentLikelihood) -> None:
            super().__init__()
            self.of = of

        def forward(self) -> Tensor:
            return self.of.log_density(y, mean, var)

    parameters, _ = stack_module_state([Call(one) for one in members])
    together = vmap(lambda state: functional_call(Call(members[0]), state, ()))(parameters)
    for one, alone in zip(together, members, strict=True):
        torch.testing.assert_close(one, alone.log_density(y, mean, var), rtol=1e-12, atol=0.0)
