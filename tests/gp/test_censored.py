"""Censored targets: the likelihood against mpmath and quadrature, scores against their own definition."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from deepbasis.gp import metrics
from deepbasis.gp.censored import CensoredLikelihood, concordance, evaluate, integrated_brier_score, log_observed, pit
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.predictive import Gaussian, GaussianMixture
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import Log, Spline

FAR = 1e3
ROWS = [  # y, lower, upper, mean of f
    (0.3, 0.3, 0.3, 0.0), (0.3, 0.3, FAR, 0.0), (0.3, -FAR, 0.3, 0.0), (0.3, -0.2, 0.9, 0.1), (40.0, 40.0, FAR, 0.0),
    (40.0, -FAR, 40.0, 0.0), (-40.0, -FAR, -40.0, 0.0), (-40.0, -40.0, FAR, 0.0), (40.0, 39.9, 40.1, 0.0),
]  # fmt: skip
VAR, NOISE = 0.4, 0.6  # a standard deviation of 1


def tensors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.tensor(ROWS, dtype=dtype)
    return rows[:, :3], rows[:, 3].clone().requires_grad_(), torch.full((len(rows),), VAR, dtype=dtype)


def likelihood(noise: float = NOISE) -> CensoredLikelihood:
    return CensoredLikelihood(noise).double()


def known(y: float, lower: float, upper: float, mean: float) -> mpmath.mpf:
    if lower == upper:
        return mpmath.log(mpmath.npdf(mpmath.mpf(y) - mean))
    a, b = mpmath.mpf(lower) - mean, mpmath.mpf(upper) - mean
    if a + b > 0:
        a, b = -b, -a
    return mpmath.log(mpmath.ncdf(b) - mpmath.ncdf(a))


def test_value_and_gradient_are_mpmaths():
    y, mean, var = tensors(torch.float64)
    found = likelihood().log_density(y, mean, var)
    found.sum().backward()
    assert mean.grad is not None
    with mpmath.workdps(50):
        for row, value, slope in zip(ROWS, found.tolist(), mean.grad.tolist(), strict=True):
            assert value == pytest.approx(float(known(*row)), rel=1e-8, abs=1e-10)
            expected = mpmath.diff(lambda m, row=row: known(*row[:3], m), row[3], h=mpmath.mpf("1e-15"))
            assert slope == pytest.approx(float(expected), rel=1e-6, abs=1e-8)


def test_float32_tails_have_no_holes():
    mean = torch.linspace(-40.0, 40.0, 801, requires_grad=True)
    zero, far = torch.zeros(801), torch.full((801,), FAR)
    for ends in ((zero, zero), (zero, far), (-far, zero), (zero - 0.1, zero + 0.1)):
        y, var = torch.stack([zero, *ends], 1), torch.full((801,), 0.4)
        for density in (CensoredLikelihood(0.6).log_density, CensoredLikelihood(0.6).expected_log_density):
            mean.grad = None
            found = density(y, mean, var)
            found.sum().backward()
            assert mean.grad is not None
            assert found.isfinite().all()
            assert mean.grad.isfinite().all()


@pytest.mark.parametrize("name", ["log_density", "expected_log_density"])
def test_exact_rows_are_those_of_a_gaussian(name):
    mean, var = torch.linspace(-3.0, 3.0, 9).double(), torch.linspace(0.1, 2.0, 9).double()
    y = torch.linspace(2.0, -1.0, 9).double()
    expected = getattr(GaussianLikelihood(NOISE).double(), name)(y, mean, var)
    for given in (y, torch.stack([y, y, y], 1)):
        torch.testing.assert_close(getattr(likelihood(), name)(given, mean, var), expected, rtol=1e-12, atol=0.0)


def test_the_expected_log_density_is_the_mean_over_the_function():
    y = torch.tensor([row[:3] for row in ROWS[:4]]).double()
    mean, var = torch.tensor([0.3, -1.0, 0.5, 0.2]).double(), torch.tensor([0.2, 1.0, 0.3, 0.1]).double()
    nodes, weights = (torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(80))
    each = torch.stack([likelihood().log_density(y, mean + var.sqrt() * node, 0.0 * var) for node in nodes])
    expected = (weights[:, None] * each).sum(0) / math.sqrt(2.0 * math.pi)
    torch.testing.assert_close(likelihood().expected_log_density(y, mean, var), expected, rtol=1e-6, atol=1e-8)


def test_stacked_members_are_members_alone():
    members = [likelihood(noise) for noise in (0.1, 0.4)]
    y, mean, var = tensors(torch.float64)

    class Call(torch.nn.Module):
        def __init__(self, of: CensoredLikelihood) -> None:
            super().__init__()
            self.of = of

        def forward(self) -> Tensor:
            return self.of.log_density(y, mean, var)

    parameters, _ = stack_module_state([Call(one) for one in members])
    together = vmap(lambda state: functional_call(Call(members[0]), state, ()))(parameters)
    for one, alone in zip(together, members, strict=True):
        torch.testing.assert_close(one, alone.log_density(y, mean, var), rtol=1e-12, atol=0.0)


def predictions(n: int = 6) -> list[GaussianMixture | Gaussian | Warped]:
    g = torch.Generator().manual_seed(0)
    several = GaussianMixture(torch.randn(3, n, generator=g).double(), torch.rand(3, n, generator=g).double() + 0.1)
    one = Gaussian(torch.linspace(-1.0, 1.0, n).double(), torch.linspace(0.2, 1.0, n).double())
    spline = Spline(-1.0, 0.5, (0.1, 0.2, 0.5, 1.0, 3.0), 0.0)
    return [one, several, Warped(several, Log(1.0)), Warped(one, spline)]


@pytest.mark.parametrize("which", range(4))
def test_what_is_known_of_a_row_is_a_density_or_a_difference_of_probabilities(which):
    predicted = predictions()[which]
    y = torch.tensor([0.2, 0.5, 0.9, 1.5, 0.4, 0.7]).double()
    infinite = torch.full_like(y, math.inf)
    torch.testing.assert_close(log_observed(predicted, y, y, y), predicted.log_prob(y))
    for lower, upper in ((y, infinite), (-infinite, y), (0.5 * y, 1.5 * y), (torch.zeros_like(y), y)):
        high = torch.where(upper.isfinite(), predicted.cdf(torch.where(upper.isfinite(), upper, y)), 1.0)
        low = torch.where(lower.isfinite(), predicted.cdf(torch.where(lower.isfinite(), lower, y)), 0.0)
        torch.testing.assert_close(log_observed(predicted, y, lower, upper), (high - low).log(), rtol=1e-9, atol=1e-9)


def test_concordance_is_a_share_of_pairs():
    rng = np.random.default_rng(0)
    y, guess = rng.integers(0, 20, 60).astype(float), rng.integers(0, 9, 60).astype(float)
    censored = rng.random(60) < 0.4
    right = pairs = 0.0
    for i in range(60):
        for j in range(60):
            if not censored[i] and (y[i] < y[j] or (y[i] == y[j] and censored[j])):
                pairs += 1
                right += 1.0 if guess[i] < guess[j] else 0.5 if guess[i] == guess[j] else 0.0
    numbers = torch.from_numpy(y)
    upper = torch.from_numpy(np.where(censored, np.inf, y))
    assert concordance(torch.from_numpy(guess), numbers, upper) == pytest.approx(right / pairs)
    assert concordance(numbers, numbers, numbers) == 1.0
    assert concordance(-numbers, numbers, numbers) == 0.0
    assert concordance(numbers, numbers - 1.0, torch.full_like(numbers, math.inf)) == 0.5  # no order is known


def process(n: int, censored: bool) -> tuple[Gaussian, Tensor, Tensor]:
    """Times, some cut off by an independent one; predicted by their own distribution."""
    g = torch.Generator().manual_seed(1)
    mean = torch.randn(n, generator=g, dtype=torch.float64)
    times = mean + 0.5 * torch.randn(n, generator=g, dtype=torch.float64)
    end = torch.randn(n, generator=g, dtype=torch.float64) + (0.5 if censored else 1e6)
    return Gaussian(mean, torch.full_like(mean, 0.25)), times.minimum(end), times <= end


def test_without_censoring_the_brier_score_is_a_mean_of_squares():
    predicted, y, exact = process(200, censored=False)
    assert exact.all()
    times = torch.linspace(float(y.min()), float(y.quantile(0.9)), 100, dtype=torch.float64)
    expected = torch.stack([(predicted.cdf(t.expand_as(y)) - (y <= t).double()).square().mean() for t in times]).mean()
    assert integrated_brier_score(predicted, y, exact) == pytest.approx(float(expected), rel=1e-12)


def test_the_weights_undo_the_censoring():
    """At the same times: half of the rows are censored, and the score hardly moves."""
    predicted, y, exact = process(40_000, censored=True)
    assert 0.3 < 1.0 - exact.double().mean() < 0.6
    found = integrated_brier_score(predicted, y, exact)
    times = torch.linspace(float(y[exact].min()), float(y.quantile(0.9)), 100).double()
    other, all_y, _ = process(40_000, censored=False)
    expected = torch.stack([(other.cdf(t.expand_as(all_y)) - (all_y <= t).double()).square().mean() for t in times])
    assert found == pytest.approx(float(expected.mean()), rel=0.03)


def test_what_predicts_the_times_is_calibrated_however_they_are_cut_off():
    """A row that is cut off is spread over what is left of its distribution; exact rows alone are the early ones."""
    n = 20_000
    predicted, y, exact = process(n, censored=True)
    infinite = torch.full_like(y, math.inf)
    upper = torch.where(exact, y, infinite)
    assert evaluate(predicted, y, y, upper)["calibration_error"] < 3 * 0.5 / math.sqrt(n)
    low, high = pit(predicted, y, y, upper)
    torch.testing.assert_close(low, predicted.cdf(y))
    torch.testing.assert_close(high, torch.where(exact, low, 1.0))
    some = exact.nonzero()[:, 0]
    assert float(metrics.calibration_error(predicted[some], y[some])) > 0.05


def test_the_scores_of_a_censored_target():
    predicted, y, exact = process(500, censored=True)
    infinite = torch.full_like(y, math.inf)
    scores = evaluate(predicted, y, y, torch.where(exact, y, infinite))
    assert scores["nll"] == pytest.approx(float(-log_observed(predicted, y, y, torch.where(exact, y, infinite)).mean()))
    assert scores["mae"] == pytest.approx(float((y - predicted.mean)[exact].abs().mean()))
    assert 0.7 < scores["concordance"] < 1.0
    assert 0.0 < scores["integrated_brier_score"] < 0.25
    left = evaluate(predicted, y, torch.where(exact, y, -infinite), y)
    assert "integrated_brier_score" not in left
    nothing = evaluate(predicted, y, y - 1.0, y + 1.0)
    assert nothing["mae"] == pytest.approx(float((y - predicted.mean).abs().mean()))
