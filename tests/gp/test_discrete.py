"""Distributions of counts and ratings against their own definition."""

import math

import numpy as np
import pytest
import torch

from deepbasis.errors import InputError
from deepbasis.gp.discrete import Discrete, Steps
from deepbasis.gp.predictive import Gaussian, GaussianMixture

STEPS = Steps("ordinal", (0.0, 1.0, 2.5, 7.0), (-1.0, 0.2, 1.5))


def gaussian() -> Gaussian:
    return Gaussian(torch.linspace(-2.0, 2.0, 6).double(), torch.linspace(0.1, 2.0, 6).double())


def mixture() -> GaussianMixture:
    g = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    return GaussianMixture(
        torch.randn(3, 6, generator=g).double(), torch.rand(3, 6, generator=g).double() + 0.1, weights
    )


@pytest.fixture(params=[gaussian, mixture])
def discrete(request: pytest.FixtureRequest) -> Discrete:
    return Discrete(request.param(), STEPS)


def test_probabilities(discrete):
    pmf, values = discrete.pmf, torch.tensor(STEPS.values).double()
    np.testing.assert_allclose(pmf.sum(1), np.ones(6), rtol=1e-12)
    np.testing.assert_allclose(discrete.mean, pmf @ values, rtol=1e-12)
    np.testing.assert_allclose(discrete.variance, pmf @ values**2 - (pmf @ values) ** 2, rtol=1e-9)
    for k, value in enumerate(STEPS.values):
        y = torch.full((6,), value).double()
        np.testing.assert_allclose(discrete.pdf(y), pmf[:, k], rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(discrete.cdf(y), pmf[:, : k + 1].sum(1), rtol=1e-12)
        np.testing.assert_allclose(discrete.cdf(y + 0.1), pmf[:, : k + 1].sum(1), rtol=1e-12)
    assert discrete.log_prob([0.5] * 6).tolist() == [-math.inf] * 6
    assert discrete.cdf([-1.0] * 6).tolist() == [0.0] * 6


def test_a_quantile_is_the_smallest_value_that_is_enough(discrete):
    for level in (0.01, 0.3, 0.5, 0.95, 0.999):
        found = discrete.quantile(level)
        assert set(found.tolist()) <= set(STEPS.values)
        assert (discrete.cdf(found) >= level - 1e-9).all()
        assert (discrete.cdf(found - 1e-6) < level).all()


@pytest.mark.parametrize("y", [-1.0, 0.0, 1.0, 1.7, 2.5, 7.0, 9.0])
def test_the_crps_is_the_mean_distance_less_half_the_spread(discrete, y):
    values = torch.tensor(STEPS.values).double()
    apart = (values[:, None] - values).abs()
    expected = discrete.pmf @ (values - y).abs() - 0.5 * ((discrete.pmf @ apart) * discrete.pmf).sum(1)
    np.testing.assert_allclose(discrete.crps([y] * 6), expected, rtol=1e-9)


def test_far_tails_have_probabilities():
    far = Discrete(Gaussian(torch.tensor([-30.0, 30.0]).double(), torch.ones(2).double()), STEPS)
    assert far.log_prob([7.0, 0.0]).isfinite().all()
    assert (far.log_prob([7.0, 0.0]) < -400).all()


def test_draws_have_the_probabilities(discrete):
    draws = discrete.sample(20_000, torch.Generator().manual_seed(0))
    for k, value in enumerate(STEPS.values):
        np.testing.assert_allclose((draws == value).double().mean(0), discrete.pmf[:, k], atol=0.02)


def test_rows_can_be_picked_and_joined(discrete):
    again = discrete[:2].followed_by([discrete[[2, 3]], discrete[4:]])
    np.testing.assert_allclose(again.pmf, discrete.pmf)
    with pytest.raises(InputError, match="other values"):
        discrete.followed_by([discrete.base])


def test_scores_lie_between_the_edges():
    ends = [-math.inf, *STEPS.edges, math.inf]
    for score, low, high in zip(STEPS.scores.tolist(), ends[:-1], ends[1:], strict=True):
        assert low < score < high
        assert math.isfinite(score)
    y = torch.tensor(STEPS.values).double()
    assert STEPS.inverse(STEPS.forward(y)).tolist() == list(STEPS.values)
    far = Steps("count", tuple(map(float, range(5))), (-20.0, 3.0, 12.0, 25.0))
    assert far.scores.isfinite().all()
    assert (far.scores.diff() > 0).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "x"}, {"values": (0.0, 1.0)}, {"values": (0.0, 2.0, 1.0)}, {"edges": (1.0, 0.0)},
        {"edges": (0.0, 99.0)}, {"edges": (math.nan, 1.0)}, {"values": (), "edges": ()},
    ],
)  # fmt: skip
def test_what_are_no_steps_is_refused(changes):
    given = {"kind": "count", "values": (0.0, 1.0, 2.0), "edges": (0.0, 1.0)}
    assert Steps.from_state(Steps(**given).state()) == Steps(**given)
    with pytest.raises(InputError):
        Steps(**{**given, **changes})
