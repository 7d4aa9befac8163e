"""Every metric by hand in numpy and scipy, and what calibration and rank must say of known cases."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp import metrics
from deepbasis.gp.counts import Counts
from deepbasis.gp.discrete import Discrete, Steps
from deepbasis.gp.predictive import Gaussian, GaussianMixture

N = 500
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}


def case(dtype: torch.dtype) -> tuple[Gaussian, Tensor]:
    g = torch.Generator().manual_seed(1)
    mean, variance = torch.randn(N, generator=g) * 3, torch.rand(N, generator=g) + 0.1
    y = mean + 1.3 * variance.sqrt() * torch.randn(N, generator=g) + 0.2
    return Gaussian(mean.to(dtype), variance.to(dtype)), y.to(dtype)


def normal_crps(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Gneiting and Raftery (2007), Eq. 21."""
    z = (y - mean) / std
    return std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))


def by_hand(p: Gaussian, target: Tensor) -> dict[str, float]:
    y, mean, std = (t.double().numpy() for t in (target, p.mean, p.variance.double().sqrt()))
    low, high = stats.norm.interval(0.95, mean, std)
    levels = np.arange(1, 20) / 20
    shares = np.array([(y <= stats.norm.ppf(q, mean, std)).mean() for q in levels])
    return {
        "mae": np.abs(y - mean).mean(),
        "rmse": math.sqrt(((y - mean) ** 2).mean()),
        "nll": -stats.norm.logpdf(y, mean, std).mean(),
        "crps": normal_crps(y, mean, std).mean(),
        "coverage_95": ((low <= y) & (y <= high)).mean(),
        "width_95": (high - low).mean(),
        "calibration_error": np.abs(shares - levels).mean(),
    }


def test_evaluate_equals_the_metrics_by_hand(dtype):
    p, y = case(dtype)
    scores, expected = metrics.evaluate(p, y), by_hand(p, y)
    assert scores.keys() == expected.keys()
    assert scores == pytest.approx(expected, rel=TOLERANCE[dtype])
    assert all(type(score) is float for score in scores.values())


def test_evaluate_names_the_metrics_of_this_module(dtype):
    p, y = case(dtype)
    scores = metrics.evaluate(p, y)
    for name in ("mae", "rmse", "nll", "crps", "calibration_error"):
        assert scores[name] == float(getattr(metrics, name)(p, y)), name
    assert scores["coverage_95"] == float(metrics.coverage(p, y, 0.95))
    assert scores["width_95"] == float(metrics.width(p, 0.95))


def test_a_mixture_of_equal_members_scores_like_one(dtype):
    p, y = case(dtype)
    together = GaussianMixture(p.mean.expand(3, N), p.variance.expand(3, N))
    assert metrics.evaluate(together, y) == pytest.approx(metrics.evaluate(p, y), rel=TOLERANCE[dtype])


@pytest.mark.parametrize("level", [0.5, 0.8, 0.99])
def test_coverage_and_width_at_other_levels(dtype, level):
    p, y = case(dtype)
    low, high = stats.norm.interval(level, p.mean.double().numpy(), p.variance.double().sqrt().numpy())
    target = y.double().numpy()
    assert float(metrics.coverage(p, y, level)) == pytest.approx(((low <= target) & (target <= high)).mean())
    assert float(metrics.width(p, level)) == pytest.approx((high - low).mean(), rel=TOLERANCE[dtype])


def unit(n: int) -> Gaussian:
    return Gaussian(torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64))


def quantiles(n: int) -> Tensor:
    """n targets whose probabilities under N(0, 1) are evenly spread: a perfectly calibrated forecast of them."""
    return torch.from_numpy(stats.norm.ppf((np.arange(n) + 0.5) / n))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_a_calibrated_forecast_covers_what_it_says(level):
    n = 10_000
    assert float(metrics.coverage(unit(n), quantiles(n), level)) == pytest.approx(level, abs=2 / n)
    assert float(metrics.calibration_error(unit(n), quantiles(n))) <= 1 / n


def test_a_sample_of_the_forecast_is_calibrated_within_its_error():
    n = 20_000
    y = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert float(metrics.calibration_error(unit(n), y)) < 3 * 0.5 / math.sqrt(n)
    assert float(metrics.coverage(unit(n), y)) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / n))


def poisson(n: int, rate: float) -> Counts:
    """Of one rate: the variance of its logarithm is next to nothing."""
    mean = torch.full((1, n), math.log(rate), dtype=torch.float64)
    return Counts(mean, torch.full_like(mean, 1e-12), torch.zeros_like(mean))


def rating(n: int) -> Discrete:
    mean = torch.linspace(-2.0, 2.0, n, dtype=torch.float64)
    return Discrete(Gaussian(mean, torch.ones_like(mean)), Steps("ordinal", (0.0, 1.0, 2.5, 7.0), (-1.0, 0.2, 1.5)))


@pytest.mark.parametrize("forecast", [lambda n: poisson(n, 1.0), lambda n: poisson(n, 12.0), rating])
def test_a_sample_of_a_forecast_of_values_is_calibrated_within_its_error(forecast):
    """The steps of a cdf are as high as the probabilities of values; that is no error of the forecast."""
    n = 20_000
    p = forecast(n)
    y = p.sample(1, torch.Generator().manual_seed(0))[0]
    assert float(metrics.calibration_error(p, y)) < 3 * 0.5 / math.sqrt(n)
    low, high = metrics.pit(p, y)
    torch.testing.assert_close(high - low, p.pdf(y), rtol=1e-6, atol=1e-9)
    share = metrics.pit_shares(low, high, torch.tensor([0.1, 0.5, 0.9]).double())
    np.testing.assert_allclose(share, [0.1, 0.5, 0.9], atol=4 * 0.5 / math.sqrt(n))


def test_a_forecast_of_values_that_is_wrong_is_found():
    """Counts of rate 2, taken for counts of rate 1: by their definition, level by level."""
    n, levels = 4_000, np.arange(1, 20) / 20
    y = torch.from_numpy(np.random.default_rng(0).poisson(2.0, n)).double()
    ends = stats.poisson(1.0).cdf(y - 1.0), stats.poisson(1.0).cdf(y)
    shares = np.array([np.clip((p - ends[0]) / (ends[1] - ends[0]), 0.0, 1.0).mean() for p in levels])
    error = float(metrics.calibration_error(poisson(n, 1.0), y))
    assert error == pytest.approx(np.abs(shares - levels).mean(), rel=1e-6)
    assert error > 0.15


def test_a_forecast_twice_too_certain_is_found():
    """y has twice the std that is forecast: the share below the p-quantile is Phi(z_p / 2)."""
    n, levels = 10_000, np.arange(1, 20) / 20
    y = 2 * quantiles(n)
    expected = np.abs(stats.norm.cdf(stats.norm.ppf(levels) / 2) - levels).mean()
    assert float(metrics.calibration_error(unit(n), y)) == pytest.approx(expected, abs=2 / n)
    assert float(metrics.coverage(unit(n), y)) == pytest.approx(2 * stats.norm.cdf(1.959964 / 2) - 1, abs=3 / n)


@pytest.mark.parametrize(("where", "expected"), [(-50.0, 0.5), (50.0, 0.5)])
def test_a_forecast_that_misses_on_one_side_has_the_largest_calibration_error(where, expected):
    y = torch.full((N,), where, dtype=torch.float64)
    assert float(metrics.calibration_error(unit(N), y)) == pytest.approx(expected)
    assert float(metrics.coverage(unit(N), y)) == 0.0


def test_a_certain_forecast_that_misses_on_both_sides():
    """Half of the targets below every quantile and half above: mean |1/2 - p| over 19 levels."""
    y = torch.tensor([-50.0, 50.0] * N, dtype=torch.float64)
    expected = np.abs(0.5 - np.arange(1, 20) / 20).mean()
    assert float(metrics.calibration_error(unit(2 * N), y)) == pytest.approx(expected)


def test_calibration_error_takes_the_levels_it_is_told():
    y = 2 * quantiles(10_000)
    levels = np.arange(1, 4) / 4
    expected = np.abs(stats.norm.cdf(stats.norm.ppf(levels) / 2) - levels).mean()
    assert float(metrics.calibration_error(unit(10_000), y, levels=3)) == pytest.approx(expected, abs=2e-4)


def test_a_target_at_its_quantile_counts_as_below_it():
    """Half of the targets far below, half at the median: shares 1/2, 1, 1 at the levels 1/4, 1/2, 3/4."""
    y = torch.tensor([-50.0, 0.0] * N, dtype=torch.float64)
    assert float(metrics.calibration_error(unit(2 * N), y, levels=3)) == pytest.approx((0.25 + 0.5 + 0.25) / 3)


def test_a_target_on_the_edge_is_covered():
    p = unit(2)
    assert float(metrics.coverage(p, torch.stack([p.interval()[0][0], p.interval()[1][0]]))) == 1.0


# --- spectra ---


def test_effective_rank_of_known_spectra(dtype):
    one, r = torch.zeros(10, dtype=dtype), 7
    one[0] = 4.0
    assert float(metrics.effective_rank(one)) == pytest.approx(1.0)
    assert float(metrics.effective_rank(torch.full((r,), 0.3, dtype=dtype))) == pytest.approx(r, rel=1e-5)
    two_to_one = torch.tensor([2.0, 1.0], dtype=dtype)  # exp(-2/3 log 2/3 - 1/3 log 1/3) = 3 / 2^(2/3)
    assert float(metrics.effective_rank(two_to_one)) == pytest.approx(3 / 2 ** (2 / 3), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_effective_rank_does_not_depend_on_scale_or_on_zeros(dtype, scale):
    eigenvalues = torch.rand(20, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = stats.entropy(eigenvalues.double().numpy())
    padded = torch.cat([scale * eigenvalues, torch.zeros(5, dtype=dtype)])
    assert float(metrics.effective_rank(padded).log()) == pytest.approx(expected, rel=TOLERANCE[dtype])


@pytest.mark.parametrize(("n", "r"), [(30, 6), (6, 30), (9, 9)])
def test_basis_spectrum_is_the_nonzero_part_of_the_kernels(dtype, n, r):
    phi = torch.randn(n, r, generator=torch.Generator().manual_seed(0)).to(dtype)
    small, full = metrics.basis_spectrum(phi), metrics.spectrum(phi @ phi.mT)
    scale = float(full[0])
    k = min(n, r)
    tolerance = 20 * torch.finfo(dtype).eps * scale
    torch.testing.assert_close(small, full[:k], rtol=0, atol=tolerance)
    assert float(full[k:].sum()) <= tolerance * n
    assert (small.diff() <= 0).all()
    assert (full.diff() <= 0).all()
    assert (full >= 0).all()
    expected = float(metrics.effective_rank(full))
    assert float(metrics.effective_rank(small)) == pytest.approx(expected, rel=1e-3 if dtype == torch.float32 else 1e-9)


def test_spectrum_equals_numpys(dtype):
    A = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    K = A @ A.mT
    expected = np.linalg.eigvalsh(K.double().numpy())[::-1].clip(0)
    tolerance = 20 * torch.finfo(dtype).eps * expected[0]
    np.testing.assert_allclose(metrics.spectrum(K).double().numpy(), expected, rtol=0, atol=tolerance)


def test_a_collapsed_basis_has_effective_rank_one():
    direction = torch.randn(1, 8, dtype=torch.float64)
    phi = torch.randn(40, 1, dtype=torch.float64) * direction
    assert float(metrics.effective_rank(metrics.basis_spectrum(phi))) == pytest.approx(1.0)


# --- what is refused ---


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.zeros(N - 1), [f"{N - 1} rows", f"{N}"]),
        (torch.full((N,), math.nan), [f"{N} entries", "not finite", "[0]"]),
        (torch.cat([torch.zeros(N - 1), torch.tensor([math.inf])]), ["1 entries", f"[{N - 1}]"]),
        (torch.zeros(0), ["empty"]),
    ],
    ids=["length", "nan", "inf", "empty"],
)
def test_evaluate_refuses_targets_it_cannot_score(y, words):
    p, _ = case(torch.float32)
    with pytest.raises(InputError) as caught:
        metrics.evaluate(p, y)
    assert all(word in str(caught.value) for word in words), caught.value


def test_effective_rank_of_nothing_is_zero(dtype):
    assert float(metrics.effective_rank(torch.zeros(5, dtype=dtype))) == 0.0
