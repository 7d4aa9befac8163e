"""The probability of an interval against mpmath, quadrature and the probit; stacked and in float32 tails."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from deepbasis.errors import InputError
from deepbasis.gp.intervals import IntervalLikelihood, log_interval

ENDS = [
    (-1.0, 1.0), (-0.3, 2.0), (0.0, 1.0), (-1.0, 0.0), (2.0, 2.5), (-2.5, -2.0), (8.0, 8.1), (-40.0, -39.0),
    (39.0, 1e4), (-1e4, -20.0), (-1e4, 3.0), (0.5, 0.5001), (-3.0, -2.9999999), (6.0, 6.000001), (30.0, 30.001),
    (-1e-9, 1e-9),
]  # fmt: skip


def exact(a: float, b: float) -> float:
    with mpmath.workdps(60):
        low, high = (a, b) if a + b < 0 else (-b, -a)  # the tail that mpmath can represent
        return float(mpmath.log(mpmath.ncdf(mpmath.mpf(high)) - mpmath.ncdf(mpmath.mpf(low))))


def slope(a: float, b: float, at: float) -> float:
    """phi(at) / (Phi(b) - Phi(a))"""
    return math.exp(-0.5 * at**2 - 0.5 * math.log(2.0 * math.pi) - exact(a, b))


@pytest.mark.parametrize(("a", "b"), ENDS)
def test_value_and_gradient(a, b):
    ends = torch.tensor([a, b], dtype=torch.float64, requires_grad=True)
    value = log_interval(ends[:1], ends[1:])
    value.sum().backward()
    assert value.item() == pytest.approx(exact(a, b), rel=1e-8, abs=1e-10)
    assert ends.grad is not None
    # A narrow interval's ends have large slopes that cancel: what a model is trained by is how it moves, and its width.
    scale = slope(a, b, a) + slope(a, b, b)
    assert float(-ends.grad[0]) == pytest.approx(slope(a, b, a), rel=1e-6, abs=1e-8 * scale)
    assert float(ends.grad[1]) == pytest.approx(slope(a, b, b), rel=1e-6, abs=1e-8 * scale)


def test_float32_tails_have_no_holes():
    middle = torch.linspace(-60.0, 60.0, 2_401, requires_grad=True)
    for width in (1e-3, 0.1, 5.0, 1e4):
        found = log_interval(middle - width / 2, middle + width / 2)
        found.sum().backward()
        assert found.isfinite().all()
        assert middle.grad is not None
        assert middle.grad.isfinite().all()
        exactly = log_interval(middle.detach().double() - width / 2, middle.detach().double() + width / 2)
        np.testing.assert_allclose(found.detach(), exactly, rtol=2e-4, atol=2e-4)


def test_the_probabilities_of_all_intervals_are_one():
    likelihood = IntervalLikelihood(0.3, edges=[-1.0, -0.2, 0.1, 2.0]).double()
    mean, var = torch.tensor([-3.0, 0.0, 0.4]).double(), torch.tensor([0.1, 2.0, 0.01]).double()
    values = torch.tensor([-1.5, -0.5, 0.0, 1.0, 3.0]).double()
    total = sum(likelihood.log_density(value.expand(3), mean, var).exp() for value in values)
    np.testing.assert_allclose(total.detach(), np.ones(3), rtol=1e-8)


def test_two_intervals_are_the_probit():
    likelihood = IntervalLikelihood(1.0, edges=[0.0]).double()
    mean, var = torch.linspace(-3.0, 3.0, 13).double(), torch.linspace(0.1, 2.0, 13).double()
    expected = torch.special.log_ndtr(mean / (1.0 + var).sqrt())
    np.testing.assert_allclose(likelihood.log_density(torch.ones(13).double(), mean, var).detach(), expected, rtol=1e-7)


def test_it_is_a_gaussian_that_is_rounded():
    """Narrow intervals: the probability is the density times the width."""
    edges = torch.linspace(-3.0, 3.0, 6_001).double()
    interval, density = (
        IntervalLikelihood(0.3, edges=edges.tolist()).double(),
        IntervalLikelihood.__mro__[1](0.3).double(),
    )
    y, mean, var = (
        0.5 * (edges[1:] + edges[:-1])[::500],
        torch.full((12,), 0.4).double(),
        torch.full((12,), 0.2).double(),
    )
    np.testing.assert_allclose(
        interval.log_density(y, mean, var).detach(),
        density.log_density(y, mean, var).detach() + math.log(1e-3),
        rtol=1e-4,
    )


def test_the_expected_log_density_is_the_mean_over_the_function():
    likelihood = IntervalLikelihood(0.5, edges=[-1.0, 0.5]).double()
    mean, var = torch.tensor([0.3, -2.0]).double(), torch.tensor([0.2, 1.0]).double()
    y = torch.tensor([0.0, 1.0]).double()
    nodes, weights = (torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(80))
    f = mean + var.sqrt() * nodes[:, None]
    each = torch.stack([likelihood.log_density(y, row, torch.zeros(2).double()) for row in f])
    expected = (weights[:, None] * each).sum(0) / math.sqrt(2.0 * math.pi)
    np.testing.assert_allclose(likelihood.expected_log_density(y, mean, var).detach(), expected.detach(), rtol=1e-6)


def test_stacked_members_are_members_alone():
    members = [IntervalLikelihood(noise, edges=[-0.5, 0.5]) for noise in (0.1, 0.4)]
    parameters, buffers = stack_module_state(members)
    y, mean, var = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.0, 0.1, 0.2]), torch.tensor([0.3, 0.2, 0.1])

    class Call(torch.nn.Module):
        def __init__(self, of: IntervalLikelihood) -> None:
            super().__init__()
            self.of = of

        def forward(self) -> torch.Tensor:
            return self.of.log_density(y, mean, var)

    call = Call(members[0])
    named = {f"of.{name}": value for name, value in {**parameters, **buffers}.items()}
    together = vmap(lambda state: functional_call(call, state, ()))(named)
    for one, alone in zip(together, members, strict=True):
        torch.testing.assert_close(one, alone.log_density(y, mean, var))


@pytest.mark.parametrize("edges", [[], [1.0, 1.0], [2.0, 1.0], [math.nan], [1e4]])
def test_edges_that_do_not_increase_are_refused(edges):
    with pytest.raises(InputError, match="needs edges that increase"):
        IntervalLikelihood(0.1, edges=edges)
