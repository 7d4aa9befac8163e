"""Poisson and negative binomial counts: against scipy and GPyTorch, and their distribution against itself."""

import math
import time

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from deepbasis.errors import InputError
from deepbasis.gp import metrics
from deepbasis.gp.classes import ClassLikelihood
from deepbasis.gp.counts import Counts, NegativeBinomialLikelihood, PoissonLikelihood, log_expected, log_probability
from deepbasis.gp.intervals import IntervalLikelihood
from deepbasis.gp.likelihoods import Likelihood

CASES = [  # count, mean and variance of f
    (0, 0.0, 1.0), (3, 0.5, 0.3), (0, -3.0, 0.5), (20, 1.0, 0.2), (500, 6.0, 0.05), (1, 3.0, 2.0), (7, -2.0, 1.0),
    (40, 0.0, 1.0), (0, 2.0, 1.0), (2, 0.7, 1e-6),
]  # fmt: skip
DISPERSIONS = [0.0, 1e-6, 0.02, 0.3, 3.0]


def exact(count: int, mean: float, var: float, a: float) -> float:
    """By a sum over 40,001 evenly spaced f, with scipy's probabilities."""
    f = mean + math.sqrt(var) * np.linspace(-16.0, 16.0, 40_001)
    rate = np.exp(f)
    law = stats.poisson(rate) if a == 0.0 else stats.nbinom(1.0 / a, 1.0 / (1.0 + a * rate))
    inside = law.logpmf(count) + stats.norm(mean, math.sqrt(var)).logpdf(f)
    return float(special.logsumexp(inside) + math.log(f[1] - f[0]))


@pytest.mark.parametrize("a", DISPERSIONS)
def test_the_quadrature_has_its_digits(a: float):
    count, mean, var = torch.tensor(CASES, dtype=torch.float64).T
    mean.requires_grad_()
    found = log_expected(count, mean, var, torch.tensor(a, dtype=torch.float64))
    expected = [exact(int(c), m, v, a) for c, m, v in CASES]
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-8, atol=1e-8)
    (slope,) = torch.autograd.grad(found.sum(), mean)
    step = 1e-4
    difference = [
        (exact(int(c), m + step, v, a) - exact(int(c), m - step, v, a)) / (2.0 * step) for c, m, v in CASES[:4]
    ]
    np.testing.assert_allclose(slope[:4], difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("a", DISPERSIONS)
def test_the_probability_is_scipys(a: float, dtype: torch.dtype):
    count, f = torch.tensor([0.0, 1.0, 5.0, 80.0], dtype=dtype), torch.tensor([-1.0, 0.2, 2.0, 4.0], dtype=dtype)
    found = log_probability(count, f, torch.tensor(a, dtype=dtype))
    rate = f.double().exp().numpy()
    law = stats.poisson(rate) if a == 0.0 else stats.nbinom(1.0 / a, 1.0 / (1.0 + a * rate))
    tolerance = 2e-4 if dtype == torch.float32 else 1e-8
    np.testing.assert_allclose(found, law.logpmf(count.numpy()), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("likelihood", [PoissonLikelihood, NegativeBinomialLikelihood])
def test_float32_tails_have_no_holes(likelihood: type):
    """40 standard deviations of f away from the count, on either side."""
    mean = torch.linspace(-40.0, 40.0, 161, requires_grad=True)
    made = likelihood(0.3)
    for count in (0.0, 1.0, 30.0):
        for var in (1e-4, 1.0):
            for density in (made.log_density, made.expected_log_density):
                mean.grad = None
                found = density(torch.full((161,), count), mean, torch.full((161,), var))
                found.sum().backward()
                assert mean.grad is not None
                assert found.isfinite().all()
                assert mean.grad.isfinite().all()


def test_an_offset_is_a_larger_mean():
    made = NegativeBinomialLikelihood(0.2).double()
    assert isinstance(made, Likelihood)
    count, mean, var = torch.tensor(CASES, dtype=torch.float64).T
    offset = torch.linspace(-1.0, 1.0, len(count), dtype=torch.float64)
    target = torch.stack([torch.full_like(count, math.nan), count, offset], 1)
    for name in ("log_density", "expected_log_density"):
        density = getattr(made, name)
        torch.testing.assert_close(density(target, mean, var), density(count, mean + offset, var))


def test_values_are_those_of_gpytorch_at_the_same_parameters():
    """Its link is softplus: with an exponential one in its place, its quadrature gives what ours does."""
    gpytorch = pytest.importorskip("gpytorch")

    class Exponential(gpytorch.likelihoods.PoissonLikelihood):
        def forward(self, function_samples: Tensor, *args: object, **kwargs: object) -> torch.distributions.Poisson:
            return torch.distributions.Poisson(function_samples.exp())

    count, mean = torch.tensor([0.0, 1.0, 4.0, 9.0]).double(), torch.tensor([-0.5, 0.0, 1.0, 2.0]).double()
    var = torch.tensor([0.1, 0.2, 0.05, 0.1]).double()
    peer, f = Exponential().double(), gpytorch.distributions.MultivariateNormal(mean, torch.diag(var))
    ours = PoissonLikelihood().double()
    with torch.no_grad():
        expected, marginal = peer.expected_log_prob(count, f), peer.log_marginal(count, f)
        torch.testing.assert_close(ours.expected_log_density(count, mean, var), expected, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(ours.log_density(count, mean, var), marginal, rtol=1e-6, atol=1e-6)


def test_two_classes_are_gpytorchs_bernoulli_at_the_same_parameters():
    """Both are a probit. An interval above or below 0, with noise 1, is the same, and has the expectation too.

    GPyTorch's marginal goes by 1 - p, which has 1e-16 / p of its digits: 1e-8 where p > 1e-7. Its expectation is by 20
    nodes of Gauss and Hermite, and is given 100; its log Phi is right to 1e-3 only below -1, and to all digits above.
    Ours has two nodes to a standard deviation of f: at one of 2, where log Phi bends between them, it is right to 1e-7.
    """
    gpytorch = pytest.importorskip("gpytorch")
    y, mean, var = (
        one.reshape(-1)
        for one in torch.meshgrid(
            torch.tensor([0.0, 1.0]).double(),
            torch.linspace(-4.0, 4.0, 9).double(),
            torch.tensor([0.01, 0.3, 1.0, 4.0]).double(),
            indexing="ij",
        )
    )
    with torch.no_grad(), gpytorch.settings.num_gauss_hermite_locs(100):
        peer, f = (
            gpytorch.likelihoods.BernoulliLikelihood().double(),
            gpytorch.distributions.MultivariateNormal(mean, torch.diag(var)),
        )
        marginal, expected = peer.log_marginal(y, f), peer.expected_log_prob(y, f)
        classes = ClassLikelihood(classes=2).double().log_density(y, mean[:, None], var)
        interval = IntervalLikelihood(1.0, edges=(0.0,)).double()
        torch.testing.assert_close(classes, marginal, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(interval.log_density(y - 0.5, mean, var), marginal, rtol=1e-8, atol=1e-8)
        found, sign = interval.expected_log_density(y - 0.5, mean, var), 2.0 * y - 1.0
        exact = peer.quadrature(lambda samples: torch.special.log_ndtr(sign * samples), f)
        narrow = var <= 1.0
        torch.testing.assert_close(found[narrow], exact[narrow], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        above = sign * mean - 7.0 * var.sqrt() > -1.0
        assert above.sum() >= 10
        torch.testing.assert_close(found[above], expected[above], rtol=1e-8, atol=1e-8)


def test_a_poissons_expected_log_density_has_a_closed_form():
    count, mean, var = torch.tensor(CASES, dtype=torch.float64).T
    expected = count * mean - (mean + 0.5 * var).exp() - torch.lgamma(count + 1.0)
    found = PoissonLikelihood().double().expected_log_density(count, mean, var)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_stacked_members_are_members_alone():
    count, mean, var = torch.tensor(CASES, dtype=torch.float64).T

    class Call(torch.nn.Module):
        def __init__(self, a: float) -> None:
            super().__init__()
            self.of = NegativeBinomialLikelihood(a).double()

        def forward(self) -> Tensor:
            return self.of.log_density(count, mean, var)

    members = [Call(0.1), Call(0.5)]
    parameters, _ = stack_module_state(members)
    together = vmap(lambda state: functional_call(members[0], state, ()))(parameters)
    for one, alone in zip(together, members, strict=True):
        torch.testing.assert_close(one, alone(), rtol=1e-12, atol=0.0)


def counts(a: float = 0.2, n: int = 7) -> Counts:
    g = torch.Generator().manual_seed(0)
    means = torch.linspace(-2.0, 3.0, n).double() + 0.2 * torch.randn(3, n, generator=g).double()
    variances = 0.05 + 0.3 * torch.rand(3, n, generator=g).double()
    return Counts(means, variances, torch.full((3, n), a).double())


@pytest.mark.parametrize("a", [0.0, 0.2])
def test_the_distribution_is_its_probabilities(a: float):
    dist = counts(a)
    pmf, values = dist.pmf, dist.values
    torch.testing.assert_close(pmf.sum(1), torch.ones(7).double(), rtol=0.0, atol=1e-7)
    torch.testing.assert_close(pmf @ values, dist.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pmf @ values.square() - (pmf @ values).square(), dist.variance, rtol=1e-3, atol=1e-4)
    for value in (0, 1, 4, 20):
        here = torch.full((7,), float(value)).double()
        torch.testing.assert_close(dist.log_prob(here).exp(), pmf[:, value], rtol=1e-7, atol=1e-12)
        torch.testing.assert_close(dist.cdf(here), pmf[:, : value + 1].sum(1), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(dist.cdf(here + 0.4), dist.cdf(here))
    assert bool((dist.log_prob(torch.full((7,), 0.5).double()) == -math.inf).all())
    y = torch.tensor([0.0, 1.0, 0.3, 5.0, 9.0, 30.0, 4000.0]).double()
    grid = torch.arange(5_000).double()
    below = torch.cat([pmf.cumsum(1), torch.ones(7, 5_000 - pmf.shape[1]).double()], 1)
    share = (y[:, None] - grid).clamp(0.0, 1.0)
    expected = (share * below.square() + (1.0 - share) * (1.0 - below).square()).sum(1)
    torch.testing.assert_close(dist.crps(y), expected, rtol=1e-5, atol=1e-6)
    for q, quantile in zip((0.05, 0.5, 0.95), dist.quantile([0.05, 0.5, 0.95]).T, strict=True):
        assert bool((dist.cdf(quantile) >= q).all())
        assert bool(((quantile == 0) | (dist.cdf(quantile - 1.0) < q)).all())
        torch.testing.assert_close(dist.quantile(q), quantile)


@pytest.mark.parametrize("a", [0.0, 1e-4, 0.2, 2.0])
@pytest.mark.parametrize(("log_rate", "variance"), [(0.5, 0.3), (4.0, 1e-8), (4.5, 0.5), (7.0, 0.02)])
def test_scores_are_those_of_scipys_mixtures(a: float, log_rate: float, variance: float):
    """Of two members, by 6,001 nodes each; the CRPS by a sum over all values. Counts of thousands are no slower.

    1e-10, and beside the CRPS's own size what the ends of the sums leave.
    """
    means = torch.tensor([[log_rate], [log_rate + 0.1]]).double()
    dist = Counts(means, torch.full_like(means, variance), torch.full_like(means, a))
    z = np.linspace(-7.0, 7.0, 6_001)
    rate = np.exp(means.numpy() + math.sqrt(variance) * z)  # [2, q]
    shares = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    law = stats.poisson(rate) if a == 0.0 else stats.nbinom(1.0 / a, 1.0 / (1.0 + a * rate))

    def cdf(value: float) -> float:
        return float((law.cdf(value) @ shares).mean())

    middle = float(dist.quantile(0.5))
    for y in (0.0, np.floor(0.5 * middle), middle, np.ceil(2.5 * middle) + 3.0):
        assert float(dist.cdf([y])) == pytest.approx(cdf(y), rel=1e-10, abs=1e-10)
        assert float(dist.below([y])) == pytest.approx(cdf(y - 1.0), rel=1e-10, abs=1e-10)
    for q in (1e-4, 0.025, 0.5, 0.975, 0.9999):
        found = float(dist.quantile(q))
        assert cdf(found) >= q - 1e-12
        assert cdf(found - 1.0) < q + 1e-12


@pytest.mark.parametrize("a", [0.0, 0.3])
@pytest.mark.parametrize(("log_rate", "variance"), [(0.5, 0.3), (3.5, 1e-8), (4.0, 0.1), (6.0, 0.01)])
def test_the_crps_is_a_sum_over_all_values(a: float, log_rate: float, variance: float):
    """By scipy's probabilities at nodes of f, up to where 1e-13 is left; and far from any value."""
    means = torch.tensor([[log_rate], [log_rate + 0.1]]).double()
    dist = Counts(means, torch.full_like(means, variance), torch.full_like(means, a))
    last = int(dist.quantile(1.0 - 1e-13))
    values = np.arange(last + 1.0)
    z = np.linspace(-7.0, 7.0, 61)
    shares = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    rate = np.exp(means.numpy() + math.sqrt(variance) * z)  # [2, q]
    law = stats.poisson(rate) if a == 0.0 else stats.nbinom(1.0 / a, 1.0 / (1.0 + a * rate))
    below = (law.cdf(values[:, None, None]) @ shares).mean(1)
    for y in (-2.0, 0.0, 0.4, float(dist.mean) // 1, float(dist.mean) + 0.3, 3.0 * last):
        part = np.clip(y - values, 0.0, 1.0)
        expected = (part * below**2 + (1.0 - part) * (1.0 - below) ** 2).sum() + max(-y, 0.0) + max(y - last - 1.0, 0.0)
        assert float(dist.crps([y])) == pytest.approx(expected, rel=1e-10)


def test_large_counts_take_no_longer_than_small_ones():
    """Rates up to 100,000: a walk through all values would take minutes, and more than there is memory for."""
    means = torch.linspace(0.0, math.log(1e5), 8).double()[None].repeat(2, 1)
    dist = Counts(means, torch.full_like(means, 0.02), torch.zeros_like(means))
    y = dist.sample(1, torch.Generator().manual_seed(0))[0]
    began = time.process_time()
    scores = metrics.evaluate(dist, y)
    assert time.process_time() - began < 10.0  # about 1 s
    assert 0.5 < scores["coverage_95"] <= 1.0


@pytest.mark.parametrize("a", [0.0, 0.2])
def test_draws_have_its_moments(a: float):
    dist = counts(a)
    draws = dist.sample(20_000, torch.Generator().manual_seed(0))
    error = (dist.variance / 20_000).sqrt()
    assert ((draws.mean(0) - dist.mean).abs() < 5 * error).all()
    torch.testing.assert_close(draws.var(0), dist.variance, rtol=0.2, atol=0.02)


def test_rows_and_exposures():
    dist = counts()
    torch.testing.assert_close(dist[2:4].mean, dist.mean[2:4])
    torch.testing.assert_close(dist[1].mean, dist.mean[1:2])
    torch.testing.assert_close(dist.exposed(math.log(3.0)).mean, 3.0 * dist.mean)
    torch.testing.assert_close(dist[:3].followed_by([dist[3:]]).variance, dist.variance)
    with pytest.raises(InputError, match="rows of one kind"):
        dist.followed_by([Counts(*(part[:1] for part in (dist.means, dist.variances, dist.dispersions)))])
    large = Counts(torch.tensor([[6.0]]).double(), torch.tensor([[0.1]]).double(), torch.zeros(1, 1).double())
    assert float(large.cdf(large.quantile(0.5))) == pytest.approx(0.5, abs=1e-2)
