"""The mixture of scales of the predictive variance: EM's promises, densities that are known, weights, refusals."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch import Tensor

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp import metrics
from deepbasis.gp.calibration import MOST_ROWS, MOST_SCALES, PRIOR_SCALES, PRIOR_WEIGHTS, Calibration, calibrate
from deepbasis.gp.predictive import Gaussian, GaussianMixture

ROWS = 200


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uneven(rows: int = ROWS) -> Tensor:
    """Variances and weights that differ between rows."""
    return drawn(rows, seed=7).mul(0.7).exp()


def ensemble(members: int = 4, rows: int = ROWS) -> GaussianMixture:
    return GaussianMixture(0.8 * drawn(members, rows, seed=1), drawn(members, rows, seed=2).exp() * uneven(rows))


def gaussian(rows: int = ROWS) -> Gaussian:
    return Gaussian(drawn(rows, seed=1), uneven(rows))


def part(predicted: GaussianMixture, rows: Tensor) -> GaussianMixture:
    return GaussianMixture(predicted.means[:, rows], predicted.variances[:, rows], predicted.weights)


def assert_alike(one: Calibration, other: Calibration, tolerance: float) -> None:
    assert one.scales == pytest.approx(other.scales, rel=tolerance)
    assert one.weights == pytest.approx(other.weights, rel=tolerance)


def objective(c: Calibration, predicted: GaussianMixture, y: Tensor, weight: Tensor) -> float:
    """The penalised log likelihood, by scipy's densities."""
    means, variances = predicted.means.numpy(), predicted.variances.numpy()
    shares = np.full(len(means), 1 / len(means)) if predicted.weights is None else predicted.weights.numpy()
    s, pi = np.array(c.scales), np.array(c.weights)
    logs = stats.norm.logpdf(y.numpy(), means, np.sqrt(s[:, None, None] * variances))
    density = logsumexp(logs, axis=(0, 1), b=pi[:, None, None] * shares[:, None])
    prior = 6.0 * (np.array(PRIOR_WEIGHTS) * np.log(pi)).sum() - 5.0 * (np.log(s) + np.array(PRIOR_SCALES) / s).sum()
    return float(weight.numpy() @ density + prior)


# --- EM


@pytest.mark.parametrize("shares", [None, torch.tensor([0.1, 0.2, 0.3, 0.4]).double()], ids=["equal", "shares"])
@pytest.mark.parametrize("error", [0.2, 1.0, 5.0])
def test_every_step_raises_the_penalised_likelihood(error, shares):
    predicted, y = ensemble(), error * drawn(ROWS, seed=3) * uneven()
    predicted, weight = GaussianMixture(predicted.means, predicted.variances, shares), uneven().flip(0)
    found = [calibrate(predicted, y, weight, steps=steps) for steps in range(60)]
    values = [objective(one, predicted, y, weight) for one in found]
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] > values[0] + 1.0


def test_it_ends_where_the_penalised_likelihood_is_stationary():
    predicted, y, weight = ensemble(), 3.0 * drawn(ROWS, seed=3), uneven()
    best = calibrate(predicted, y, weight, steps=3_000)
    top = objective(best, predicted, y, weight)
    for k in range(3):
        for factor in (0.99, 1.01):
            scales = tuple(s * (factor if j == k else 1.0) for j, s in enumerate(best.scales))
            assert objective(Calibration(scales, best.weights), predicted, y, weight) < top
            moved = np.array([w * (factor if j == k else 1.0) for j, w in enumerate(best.weights)])
            other = Calibration(best.scales, tuple(moved / moved.sum()))
            assert objective(other, predicted, y, weight) < top


def test_no_step_is_the_prior():
    assert calibrate(gaussian(), drawn(ROWS), steps=0) == Calibration(PRIOR_SCALES, PRIOR_WEIGHTS, float(ROWS))


def test_a_calibration_goes_on_from_another_as_if_it_had_all_rows():
    """To within what is lost when the first rows are not asked again; without new rows it stays."""
    predicted, y = ensemble(), 3.0 * drawn(ROWS, seed=3)
    half = ROWS // 2
    together = calibrate(predicted, y)
    first = calibrate(predicted[:half], y[:half])
    then = calibrate(predicted[half:], y[half:], before=first)
    assert then.rows == together.rows == ROWS
    assert abs(then.mean_scale - together.mean_scale) < 0.6 * abs(first.mean_scale - together.mean_scale)
    nothing = calibrate(predicted, y, torch.full((ROWS,), 1e-12, dtype=torch.float64), before=first)
    np.testing.assert_allclose(nothing.scales, first.scales, rtol=1e-9)
    np.testing.assert_allclose(nothing.weights, first.weights, rtol=1e-9)


# --- densities that are known


@pytest.mark.parametrize("true", [0.25, 1.0, 4.0])
def test_gaussian_residuals_of_another_scale(true):
    rows = 10_000
    predicted = gaussian(rows)
    y, fresh = (predicted.mean + math.sqrt(true) * predicted.std * drawn(rows, seed=seed) for seed in (5, 6))
    found = calibrate(predicted, y)
    assert abs(found.mean_scale / true - 1.0) < 4 * math.sqrt(2.0 / rows) + 0.02  # the prior is 2 in 1,000 rows
    scaled = found.apply(predicted)
    assert (scaled.variance / predicted.variance).numpy() == pytest.approx(found.mean_scale)
    assert abs(float(metrics.coverage(scaled, fresh)) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / rows)
    right = Gaussian(predicted.mean, true * predicted.variance)
    assert float(metrics.nll(scaled, fresh) - metrics.nll(right, fresh)) < 3e-3


@pytest.mark.parametrize("members", [1, 4])
def test_heavy_tails_are_learnt(members):
    """Student's t with 3 degrees of freedom, of which each member sees the right mean and scale."""
    rows = 10_000
    one = gaussian(rows)
    predicted = GaussianMixture(one.mean.expand(members, rows), one.variance.expand(members, rows))
    y, fresh = (one.mean + one.std * torch.from_numpy(stats.t.rvs(3, size=rows, random_state=seed)) for seed in (0, 1))
    truth = -stats.t.logpdf(fresh, 3, one.mean, one.std).mean()
    raw = float(metrics.nll(predicted, fresh))
    scaled = calibrate(predicted, y).apply(predicted)
    found = float(metrics.nll(scaled, fresh))
    assert abs(found - truth) < 0.02
    assert raw > truth + 0.3
    assert abs(float(metrics.coverage(scaled, fresh)) - 0.95) < 0.015
    assert metrics.crps(scaled, fresh) < metrics.crps(predicted, fresh)


@pytest.mark.parametrize("seed", range(4))
def test_five_rows_stay_near_the_prior_and_do_little_harm(seed):
    predicted = gaussian(5)
    found = calibrate(predicted, predicted.mean + predicted.std * drawn(5, seed=seed))
    assert found.scales == pytest.approx(PRIOR_SCALES, rel=0.5)
    assert found.weights == pytest.approx(PRIOR_WEIGHTS, abs=0.25)
    many = gaussian(10_000)
    fresh = many.mean + many.std * drawn(10_000, seed=9)
    assert float(metrics.nll(found.apply(many), fresh) - metrics.nll(many, fresh)) < 0.15


# --- rows and weights


def test_a_weight_is_a_repetition():
    predicted, y = ensemble(), 3.0 * drawn(ROWS, seed=3)
    counts = torch.arange(ROWS) % 4
    repeated = torch.arange(ROWS).repeat_interleave(counts)
    weighted = calibrate(predicted, y, counts.double())
    assert_alike(weighted, calibrate(part(predicted, repeated), y[repeated]), 1e-9)
    assert weighted.scales != pytest.approx(calibrate(predicted, y).scales, rel=1e-3)


def test_the_order_of_the_rows_is_nothing():
    predicted, y = ensemble(), 3.0 * drawn(ROWS, seed=3)
    other = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    expected = calibrate(predicted, y, uneven())
    assert_alike(calibrate(part(predicted, other), y[other], uneven()[other]), expected, 1e-9)


def test_of_many_rows_every_other_is_used():
    rows = MOST_ROWS + 5
    predicted, y = ensemble(1, rows), 2.0 * drawn(rows, seed=3)
    half = torch.arange(0, rows, 2)
    expected = calibrate(part(predicted, half), y[half], uneven(rows)[half])
    assert calibrate(predicted, y, uneven(rows)) == expected


def test_equal_members_are_one_and_shares_are_copies():
    one, y = gaussian(), 2.0 * drawn(ROWS, seed=2)
    equal = GaussianMixture(one.mean.expand(3, ROWS), one.variance.expand(3, ROWS))
    assert_alike(calibrate(equal, y), calibrate(one, y), 1e-12)
    two = ensemble(2)
    copies = part(two, torch.arange(ROWS))
    copies = GaussianMixture(copies.means[[0, 1, 1, 1]], copies.variances[[0, 1, 1, 1]])
    shared = GaussianMixture(two.means, two.variances, torch.tensor([0.25, 0.75]).double())
    assert_alike(calibrate(shared, y), calibrate(copies, y), 1e-12)


def test_single_precision_is_computed_in_double():
    predicted, y = ensemble(), 3.0 * drawn(ROWS, seed=3)
    single = GaussianMixture(predicted.means.float(), predicted.variances.float())
    double = GaussianMixture(single.means.double(), single.variances.double())
    assert calibrate(single, y.float()) == calibrate(double, y.float().double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("y", [0.0, 1e-30, 1e3, 1e30, -3e38])
@pytest.mark.parametrize("members", [1, 3])
def test_extreme_residuals_give_finite_predictions(members, y, dtype):
    predicted = GaussianMixture(torch.zeros(members, 50, dtype=dtype), torch.full((members, 50), 1e-6, dtype=dtype))
    target = torch.full((50,), y, dtype=dtype)
    for mixed in (target, torch.where(torch.arange(50) < 1, target, torch.zeros(50, dtype=dtype))):
        scaled = calibrate(predicted, mixed).apply(predicted)
        assert bool((scaled.variance > 0).all())
        for found in (scaled.variances, scaled.std, *scaled.interval()):
            assert bool(found.isfinite().all())


# --- what it does to a prediction


def test_it_makes_a_component_of_every_scale_of_every_member(dtype):
    members = ensemble()
    members = GaussianMixture(members.means.to(dtype), members.variances.to(dtype))
    scaled = Calibration((0.5, 2.0), (0.75, 0.25)).apply(members)
    assert scaled.means.dtype == scaled.variances.dtype == dtype
    assert torch.equal(scaled.means, torch.cat([members.means, members.means]))
    assert torch.equal(scaled.variances, torch.cat([0.5 * members.variances, 2.0 * members.variances]))
    assert scaled.weights.tolist() == [0.75 / 4] * 4 + [0.25 / 4] * 4
    torch.testing.assert_close(scaled.mean, members.mean)


def test_shares_of_the_members_are_kept():
    members = GaussianMixture(drawn(2, 3), drawn(2, 3).exp(), torch.tensor([0.2, 0.8]).double())
    scaled = Calibration((0.5, 2.0), (0.75, 0.25)).apply(members)
    assert scaled.weights.tolist() == pytest.approx([0.15, 0.6, 0.05, 0.2])


def test_a_single_scale_of_1_changes_nothing():
    y, members = drawn(ROWS), ensemble()
    same = Calibration((1.0,), (1.0,)).apply(members)
    torch.testing.assert_close(same.log_prob(y), members.log_prob(y))
    torch.testing.assert_close(same.quantile(0.1), members.quantile(0.1))


# --- what is refused


def test_what_is_refused():
    predicted, y = ensemble(), drawn(ROWS)
    with pytest.raises(InputError, match="rows but"):
        calibrate(predicted, y[:-1])
    with pytest.raises(InputError, match="not finite"):
        calibrate(predicted, y * math.nan)
    for means, variances in ((math.nan, 1.0), (math.inf, 1.0), (0.0, math.inf), (0.0, 0.0)):
        bad = GaussianMixture(predicted.means + means, predicted.variances * variances)
        with pytest.raises(NumericalError, match="not finite"):
            calibrate(bad, y)


@pytest.mark.parametrize(
    ("scales", "weights", "told"),
    [
        ((), (), "from 1 to"),
        ((1.0, 2.0), (1.0,), "2 and 1"),
        ((1.0,) * (MOST_SCALES + 1), (1.0 / (MOST_SCALES + 1),) * (MOST_SCALES + 1), "from 1 to"),
        ((0.0,), (1.0,), "a scale must be"),
        ((math.inf,), (1.0,), "a scale must be"),
        ((math.nan,), (1.0,), "a scale must be"),
        ((1.0, 1.0), (1.5, -0.5), "weight must be"),
        ((1.0, 1.0), (0.5, math.nan), "weight must be"),
        ((1.0, 1.0), (0.5, 0.49), "sum to 1"),
    ],
)
def test_calibrations_that_make_no_sense(scales, weights, told):
    with pytest.raises(InputError, match=told):
        Calibration(scales, weights)
