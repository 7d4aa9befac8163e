"""The scale of the predictive variance: the closed form for one Gaussian, scipy's minimiser for a mixture."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp.calibration import LARGEST_LOG_SCALE, variance_scale
from deepbasis.gp.predictive import Gaussian, GaussianMixture

ROWS = 200


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uneven(rows: int = ROWS) -> Tensor:
    """Variances and weights that differ between rows."""
    return drawn(rows, seed=7).mul(0.7).exp()


def ensemble(members: int = 4, rows: int = ROWS) -> GaussianMixture:
    return GaussianMixture(0.8 * drawn(members, rows, seed=1), drawn(members, rows, seed=2).exp() * uneven(rows))


def loss(log_scale: float, predicted: GaussianMixture, y: Tensor, weight: Tensor, prior_rows: float) -> float:
    """By scipy's densities."""
    stds = np.exp(0.5 * log_scale) * predicted.variances.sqrt().numpy()
    density = logsumexp(stats.norm.logpdf(y.numpy(), predicted.means.numpy(), stds), axis=0) - math.log(len(stds))
    return float(-(weight.numpy() * density).sum() + prior_rows * 0.5 * (log_scale + math.exp(-log_scale)))


@pytest.mark.parametrize("prior_rows", [1e-9, 20.0, 1e4])
@pytest.mark.parametrize("weight", [None, uneven()], ids=["rows", "weights"])
@pytest.mark.parametrize("error", [0.1, 1.0, 6.0])
def test_one_gaussian_has_a_closed_form(error, weight, prior_rows):
    predicted = Gaussian(drawn(ROWS, seed=1), uneven())
    z = error * drawn(ROWS, seed=2)
    y = predicted.mean + predicted.std * z
    w = torch.ones(ROWS).double() if weight is None else weight
    expected = float(((w * z.square()).sum() + prior_rows) / (w.sum() + prior_rows))
    assert variance_scale(predicted, y, weight, prior_rows=prior_rows) == pytest.approx(expected, rel=1e-12)
    alone = GaussianMixture(predicted.mean[None], predicted.variance[None])
    assert variance_scale(alone, y, weight, prior_rows=prior_rows) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("prior_rows", [1e-3, 20.0, 500.0])
@pytest.mark.parametrize("error", [0.3, 1.0, 8.0])
def test_a_mixture_against_scipy(members, prior_rows, error):
    predicted, y, weight = ensemble(members), error * drawn(ROWS, seed=3), uneven()
    found = variance_scale(predicted, y, weight, prior_rows=prior_rows)
    arguments = (predicted, y, weight, prior_rows)
    expected = minimize_scalar(loss, bounds=(-6, 6), args=arguments, method="bounded", options={"xatol": 1e-9})
    assert math.log(found) == pytest.approx(expected.x, abs=1e-6)
    assert loss(math.log(found), *arguments) <= expected.fun + 1e-9


def test_the_lower_of_two_minima_is_taken():
    """A narrow member that is right at some rows and a wide one that is right at the others."""
    predicted = GaussianMixture(torch.zeros(2, ROWS).double(), torch.tensor([[1e-4], [1.0]]).double().expand(2, ROWS))
    weight = torch.ones(ROWS).double()
    grid = np.linspace(-6, 6, 2001)
    several = []
    for share in (0.2, 0.35, 0.5, 0.65, 0.8):
        y = torch.where(torch.arange(ROWS) < share * ROWS, 0.05, 0.15) * drawn(ROWS, seed=3)
        losses = np.array([loss(t, predicted, y, weight, 1e-3) for t in grid])
        found = variance_scale(predicted, y, prior_rows=1e-3)
        assert loss(math.log(found), predicted, y, weight, 1e-3) <= losses.min() + 1e-9
        several.append(int(((losses[1:-1] < losses[:-2]) & (losses[1:-1] < losses[2:])).sum()))
    assert max(several) > 1


def test_equal_members_are_one():
    one = Gaussian(drawn(ROWS, seed=1), uneven())
    equal = GaussianMixture(one.mean.expand(3, ROWS), one.variance.expand(3, ROWS))
    y = 2.0 * drawn(ROWS, seed=2)
    expected = variance_scale(one, y, prior_rows=20.0)
    assert variance_scale(equal, y, prior_rows=20.0) == pytest.approx(expected, rel=1e-12)


def test_a_weight_is_a_repetition():
    predicted, y = ensemble(), 3.0 * drawn(ROWS, seed=3)
    counts = torch.arange(ROWS) % 4
    repeated = GaussianMixture(*(part.repeat_interleave(counts, 1) for part in (predicted.means, predicted.variances)))
    weighted = variance_scale(predicted, y, counts.double(), prior_rows=20.0)
    assert weighted == pytest.approx(variance_scale(repeated, y.repeat_interleave(counts), prior_rows=20.0), rel=1e-12)
    assert weighted != pytest.approx(variance_scale(predicted, y, prior_rows=20.0), rel=1e-3)


@pytest.mark.parametrize("true", [0.25, 1.0, 4.0])
def test_a_scale_that_is_there_is_found(true):
    """Targets drawn from the mixture itself, with its variances multiplied."""
    rows = 20_000
    predicted = ensemble(4, rows)
    right = GaussianMixture(predicted.means, true * predicted.variances)
    y = right.sample(1, torch.Generator().manual_seed(5))[0]
    assert variance_scale(predicted, y, prior_rows=20.0) == pytest.approx(true, rel=0.05)
    of_one = Gaussian(predicted.means[0], predicted.variances[0])
    y = of_one.mean + math.sqrt(true) * of_one.std * drawn(rows, seed=5)
    sampling_error = true * math.sqrt(2.0 / rows)
    assert abs(variance_scale(of_one, y, prior_rows=20.0) - true) < 4 * sampling_error


def test_many_prior_rows_hold_it_at_one():
    y = 3.0 * drawn(ROWS, seed=3)
    scales = [variance_scale(ensemble(), y, prior_rows=rows) for rows in (1.0, 1e2, 1e4, 1e12)]
    assert scales == sorted(scales, reverse=True)
    assert scales[0] > 2.0
    assert scales[-1] == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("y", [0.0, 1e-200, 1e3, 1e30, 1e160, -1e308])
@pytest.mark.parametrize("members", [1, 3])
def test_extreme_residuals_give_a_bounded_scale(members, y):
    predicted = GaussianMixture(torch.zeros(members, 5).double(), torch.full((members, 5), 1e-6).double())
    target = torch.full((5,), y, dtype=torch.float64)
    for mixed in (target, torch.cat([target[:1], torch.zeros(4)])):
        scale = variance_scale(predicted, mixed, prior_rows=1e-6)
        assert scale == pytest.approx(math.exp(LARGEST_LOG_SCALE if abs(y) > 1.0 else -LARGEST_LOG_SCALE), rel=1e-12)


def test_single_precision_is_computed_in_double():
    predicted, y = ensemble(), 3.0 * drawn(ROWS, seed=3)
    single = GaussianMixture(predicted.means.float(), predicted.variances.float())
    expected = variance_scale(
        GaussianMixture(single.means.double(), single.variances.double()), y.float().double(), prior_rows=20.0
    )
    assert variance_scale(single, y.float(), prior_rows=20.0) == expected


def test_what_is_refused():
    predicted, y = ensemble(), drawn(ROWS)
    for prior_rows in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="prior_rows"):
            variance_scale(predicted, y, prior_rows=prior_rows)
    with pytest.raises(InputError, match="rows but"):
        variance_scale(predicted, y[:-1], prior_rows=20.0)
    with pytest.raises(InputError, match="not finite"):
        variance_scale(predicted, y * math.nan, prior_rows=20.0)
    for means, variances in ((math.nan, 1.0), (math.inf, 1.0), (0.0, math.inf), (0.0, 0.0)):
        bad = GaussianMixture(predicted.means + means, predicted.variances * variances)
        with pytest.raises(NumericalError, match="not finite"):
            variance_scale(bad, y, prior_rows=20.0)
