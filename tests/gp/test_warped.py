"""Warps against their own derivative and inverse; warped distributions against quadrature, scipy and what they warp."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.predictive import Gaussian, GaussianMixture, Levels, Predictive, Targets
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import MOST_KNOTS, Log, Spline, Warp, warp_from_state

LINE = Spline(-2.0, 0.5, tuple(3.0 + 2.0 * (-2.0 + 0.5 * k) for k in range(9)))
SKEWED = Spline(-2.0, 0.4, tuple(math.exp(-2.0 + 0.4 * k) for k in range(11)))
POSITIVE = Spline(-2.0, 0.4, SKEWED.values, low=0.0)
SHARE = Spline(-1.5, 0.5, (0.1, 0.15, 0.3, 0.5, 0.8, 0.85, 0.9), low=0.0, high=1.0)
WARPS: dict[str, Warp] = {"line": LINE, "skewed": SKEWED, "positive": POSITIVE, "share": SHARE, "log": Log(1.3)}


@pytest.fixture(params=list(WARPS))
def warp(request: pytest.FixtureRequest) -> Warp:
    return WARPS[request.param]


def grid(low: float = -4.0, high: float = 4.0, count: int = 401) -> Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)


def mixture(rows: int = 6) -> GaussianMixture:
    """Four members with three scales each, as a calibration makes them."""
    g = torch.Generator().manual_seed(2)
    means = 0.8 * torch.randn(rows, generator=g) + 0.3 * torch.randn(4, rows, generator=g)
    variances = 0.3 * torch.rand(4, rows, generator=g) + 0.01
    weights = torch.linspace(1.0, 3.0, 12, dtype=torch.float64)
    scaled = torch.cat([scale * variances for scale in (0.25, 1.0, 6.0)]).double()
    return GaussianMixture(means.repeat(3, 1).double(), scaled, weights / weights.sum())


def gaussian() -> Gaussian:
    return Gaussian(grid(-1.0, 1.0, 6), torch.linspace(0.02, 1.0, 6, dtype=torch.float64))


BASES: dict[str, Callable[[], Gaussian | GaussianMixture]] = {"gaussian": gaussian, "mixture": mixture}


@pytest.fixture(params=list(BASES))
def base(request: pytest.FixtureRequest) -> Gaussian | GaussianMixture:
    return BASES[request.param]()


def inside(predicted: Warped) -> Tensor:
    """A target for each row, not where the distribution ends."""
    levels = torch.linspace(0.02, 0.98, len(predicted), dtype=torch.float64)
    return predicted.quantile(levels).diagonal()


# ---- warps -----------------------------------------------------------------------------------------------------------


def test_one_direction_undoes_the_other(warp):
    u = grid(-3.0, 3.0)
    np.testing.assert_allclose(warp.forward(warp.inverse(u)), u, atol=1e-9)  # near a bound y has few digits left
    y = warp.inverse(u)
    assert (y.diff() > 0).all()
    np.testing.assert_allclose(warp.inverse(warp.forward(y)), y, rtol=1e-13)


def test_the_slope_is_the_derivative(warp):
    u, h = grid(-3.0, 3.0, 601) + 1e-4, 1e-6  # not at a knot, where an exponential tail bends
    slope = (warp.inverse(u + h) - warp.inverse(u - h)) / (2 * h)
    np.testing.assert_allclose(warp.log_slope(u).exp(), slope, rtol=1e-7)


def test_it_stays_within_its_bounds_however_far_out(warp):
    y = warp.inverse(torch.tensor([-1e3, -40.0, 40.0, 1e3], dtype=torch.float64))
    assert (y >= warp.low).all()
    assert (y <= warp.high).all()
    outside = torch.tensor([-1e9, -1.0, 0.0, 1.0, 1e9], dtype=torch.float64)
    assert warp.forward(outside).isfinite().all()


def test_beyond_its_knots_a_spline_is_a_line():
    u = torch.tensor([3.0, 5.0, 7.0], dtype=torch.float64)
    low, middle, high = SKEWED.inverse(u).tolist()
    assert high - middle == pytest.approx(middle - low, rel=1e-12)
    assert (middle - low) / 2.0 == pytest.approx((SKEWED.values[-1] - SKEWED.values[-2]) / SKEWED.step)


def test_a_spline_has_two_continuous_derivatives_within():
    h = 1e-4
    for knot in SKEWED.knots:
        at = torch.tensor([knot - 2 * h, knot - h, knot, knot + h, knot + 2 * h], dtype=torch.float64)
        bend = SKEWED.inverse(at).diff().diff() / h**2
        assert float(bend[0]) == pytest.approx(float(bend[2]), abs=1e-2)  # digits of the second difference: 1e-16 / h^2


def test_a_warp_is_what_its_record_says(warp):
    assert warp_from_state(warp.state()) == warp


@pytest.mark.parametrize(
    "changes",
    [
        {"values": (1.0,)}, {"values": (1.0, 1.0)}, {"values": (2.0, 1.0)}, {"values": (1.0, math.nan)},
        {"values": (1.0, math.inf)}, {"values": tuple(map(float, range(MOST_KNOTS + 1)))}, {"step": 0.0},
        {"step": math.inf}, {"start": math.nan}, {"low": 1.0}, {"high": 1.5}, {"low": math.nan},
    ],
)  # fmt: skip
def test_what_is_no_spline_is_refused(changes):
    with pytest.raises(InputError):
        Spline(**{"start": 0.0, "step": 1.0, "values": (1.0, 2.0), **changes})


@pytest.mark.parametrize("record", [{"kind": "cubic"}, {"kind": "log", "top": math.inf}])
def test_what_is_no_warp_is_refused(record):
    with pytest.raises(InputError):
        warp_from_state(record)


# ---- distributions ---------------------------------------------------------------------------------------------------


def test_a_straight_warp_changes_units_only(base):
    warped, plain = Warped(base, LINE), base.affine(2.0, 3.0)
    y = inside(warped)
    for method in ("log_prob", "cdf", "pdf"):
        np.testing.assert_allclose(getattr(warped, method)(y), getattr(plain, method)(y), rtol=1e-10)
    np.testing.assert_allclose(warped.crps(y), plain.crps(y), rtol=1e-7)
    np.testing.assert_allclose(warped.mean, plain.mean, rtol=1e-9)
    np.testing.assert_allclose(warped.std, plain.std, rtol=1e-6)
    np.testing.assert_allclose(warped.quantile([0.01, 0.5, 0.9]), plain.quantile([0.01, 0.5, 0.9]), rtol=1e-12)


def test_the_density_is_the_derivative_of_the_cdf(base, warp):
    warped = Warped(base, warp)
    y = inside(warped)
    h = 1e-6 * warped.std
    np.testing.assert_allclose(warped.pdf(y), (warped.cdf(y + h) - warped.cdf(y - h)) / (2 * h), rtol=1e-5)


def test_the_quantile_is_the_inverse_of_the_cdf(base, warp):
    warped = Warped(base, warp)
    for level in (0.001, 0.1, 0.5, 0.95):
        np.testing.assert_allclose(warped.cdf(warped.quantile(level)), level, rtol=1e-8)
    low, high = warped.interval(0.9)
    assert (warp.low <= low).all()
    assert (low < high).all()
    assert (high <= warp.high).all()


def integral(of_u: Callable[[Tensor, Predictive], Tensor], warp: Warp, row: Predictive, *also: float) -> float:
    """Over u, by Gauss and Legendre's rule in many panels that end at every bend."""
    far, mean = 14.0 * float(row.std), float(row.mean)
    bends = [one for one in (*warp.knots, *also) if abs(one - mean) < far]
    ends = torch.cat([torch.tensor(bends, dtype=torch.float64), grid(mean - far, mean + far, 801)]).sort().values
    nodes, weights = (torch.from_numpy(one) for one in np.polynomial.legendre.leggauss(12))
    half = 0.5 * ends.diff()[:, None]
    u = (ends[:-1, None] + half + half * nodes).flatten()
    return float((half * weights).flatten() @ of_u(u, row[[0] * len(u)]))


@pytest.mark.parametrize("name", ["skewed", "share", "log"])
def test_the_mean_and_the_variance_are_those_of_the_target(base, name):
    warp = WARPS[name]
    warped = Warped(base, warp)
    for k in range(len(base)):
        mean = integral(lambda u, row: warp.inverse(u) * row.pdf(u), warp, base[k])
        variance = integral(lambda u, row, m=mean: (warp.inverse(u) - m).square() * row.pdf(u), warp, base[k])
        assert float(warped.mean[k]) == pytest.approx(mean, abs=1e-4 * math.sqrt(variance))
        assert float(warped.variance[k]) == pytest.approx(variance, rel=1e-3)


def test_the_moments_of_a_row_do_not_depend_on_the_others(warp):
    means = torch.tensor([0.3, 0.0], dtype=torch.float64)
    both = Warped(Gaussian(means, torch.tensor([0.2, 9.0], dtype=torch.float64)), warp)
    assert float(both[:1].mean) == pytest.approx(float(both.mean[0]), rel=1e-13)
    assert float(both[:1].variance) == pytest.approx(float(both.variance[0]), rel=1e-13)


@pytest.mark.parametrize("name", ["skewed", "positive", "log"])
def test_the_crps_is_the_integral_of_the_squared_difference_of_cdfs(base, name):
    warp = WARPS[name]
    warped = Warped(base, warp)
    y = inside(warped)
    found = warped.crps(y)
    for k in range(len(base)):
        at = float(warp.forward(y[k : k + 1]))
        expected = integral(
            lambda u, row, at=at: (row.cdf(u) - (u >= at).double()).square() * warp.log_slope(u).exp(),
            warp,
            base[k],
            at,
        )
        assert float(found[k]) == pytest.approx(expected, rel=1e-6)


def test_far_from_everything_the_crps_is_the_distance():
    warped = Warped(gaussian(), SKEWED)
    far = torch.full((6,), 1e6, dtype=torch.float64)
    np.testing.assert_allclose(warped.crps(far), far - warped.mean, rtol=1e-5)


def test_a_warp_by_the_log_is_the_lognormal_distribution():
    base = gaussian()
    warped, known = Warped(base, Log(50.0)), stats.lognorm(s=base.std.numpy(), scale=base.mean.exp().numpy())
    y = inside(warped)
    np.testing.assert_allclose(warped.mean, known.mean(), rtol=1e-7)
    np.testing.assert_allclose(warped.variance, known.var(), rtol=1e-4)
    np.testing.assert_allclose(warped.log_prob(y), known.logpdf(y.numpy()), rtol=1e-10)
    np.testing.assert_allclose(warped.cdf(y), known.cdf(y.numpy()), rtol=1e-10)


def test_nothing_lies_outside_of_the_bounds():
    warped = Warped(gaussian()[:3], SHARE)
    y = [-0.5, 0.0, 1.0]
    assert warped.log_prob(y).tolist() == [-math.inf] * 3
    assert warped.cdf(y).tolist() == [0.0, 0.0, 1.0]
    assert warped.crps(y).isfinite().all()
    np.testing.assert_allclose(warped.crps([-0.5, 0.0, 1.5]) - warped.crps([0.0, 0.0, 1.0]), [0.5, 0.0, 0.5], atol=1e-9)


def test_draws_have_the_distribution(base):
    warped = Warped(base, POSITIVE)
    draws = warped.sample(40_000, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(draws.mean(0), warped.mean, atol=5 * float(warped.std.max()) / 200)
    below = (draws <= warped.quantile(0.3)).double().mean(0)
    np.testing.assert_allclose(below, 0.3, atol=0.012)  # five standard errors


def test_rows_can_be_picked_and_joined(base):
    warped = Warped(base, SKEWED)
    y = inside(warped)
    parts = warped[:2].followed_by([warped[2], warped[[3, 4, 5]]])
    assert (len(parts), len(warped[2])) == (6, 1)
    for found, expected in ((parts.mean, warped.mean), (parts.log_prob(y), warped.log_prob(y))):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(InputError, match="another warp"):
        warped.followed_by([Warped(base, LINE)])
    with pytest.raises(InputError, match="another warp"):
        warped.followed_by([base])


def test_the_rows_at_a_time_change_nothing():
    """Enough rows for several parts."""
    many = mixture(6)[[0, 1, 2, 3, 4, 5] * 300]
    warped = Warped(many, SKEWED)
    y = inside(Warped(mixture(6), SKEWED)).repeat(300)
    np.testing.assert_allclose(warped.crps(y)[-6:], warped.crps(y)[:6], rtol=1e-7)
    np.testing.assert_allclose(warped.mean[-6:], warped.mean[:6], rtol=1e-7)


class Own(Predictive):
    """A normal distribution that does not say that it is one."""

    def __init__(self, of: Gaussian) -> None:
        self.of = of

    @property
    def mean(self) -> Tensor:
        return self.of.mean

    @property
    def variance(self) -> Tensor:
        return self.of.variance

    def cdf(self, y: Targets) -> Tensor:
        return self.of.cdf(y)

    def log_prob(self, y: Targets) -> Tensor:
        return self.of.log_prob(y)

    def quantile(self, q: Levels) -> Tensor:
        return self.of.quantile(q)

    def __getitem__(self, rows: object) -> "Own":
        return Own(self.of[rows])  # type: ignore[index]


def test_a_distribution_of_another_kind_is_warped_too():
    known, own = Warped(gaussian(), POSITIVE), Warped(Own(gaussian()), POSITIVE)
    y = inside(known)
    np.testing.assert_allclose(own.mean, known.mean, rtol=1e-3)
    np.testing.assert_allclose(own.crps(y), known.crps(y), rtol=1e-6)
    np.testing.assert_allclose(own.log_prob(y), known.log_prob(y), rtol=1e-12)
