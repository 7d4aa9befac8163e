"""Conformal intervals: their promise over many draws, per group, for counts, and while rows drift."""

import math

import numpy as np
import pytest
import torch

from deepbasis.errors import InputError
from deepbasis.gp.conformal import AdaptiveIntervals, Conformal, central, depths
from deepbasis.gp.discrete import Discrete, Steps
from deepbasis.gp.predictive import Gaussian, Predictive

DRAWS = 400


def rows(n: int, rng: np.random.Generator) -> tuple[Gaussian, torch.Tensor]:
    """Predictions that are wrong in mean and spread, of targets with heavy tails."""
    x = torch.from_numpy(rng.normal(size=n))
    y = x + torch.from_numpy((0.2 + 0.5 * (x.numpy() > 0)) * rng.standard_t(3, size=n))
    return Gaussian(0.9 * x + 0.1, torch.full_like(x, 0.1)), y


def of_rows(predicted: Predictive, y: torch.Tensor) -> Conformal:
    return Conformal(depths(predicted, y), torch.zeros(len(y), dtype=torch.int64))


@pytest.mark.parametrize(("n", "coverage"), [(19, 0.95), (100, 0.8), (200, 0.95), (37, 0.9)])
def test_coverage_over_many_draws_is_what_is_said(n: int, coverage: float) -> None:
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(DRAWS):
        conformal = of_rows(*rows(n, rng))
        predicted, y = rows(50, rng)
        covered.append(float((depths(predicted, y) >= conformal.level(coverage)).double().mean()))
    error = float(np.std(covered)) / math.sqrt(DRAWS)
    exact = 1.0 - math.floor((n + 1) * (1.0 - coverage) + 1e-9) / (n + 1)
    assert exact >= coverage
    assert abs(np.mean(covered) - exact) < 3 * error


def test_each_group_is_covered() -> None:
    """One group's targets are far noisier than the predictions say: a common level would cover it too seldom."""
    rng = np.random.default_rng(0)
    covered, together = [], []
    for _ in range(DRAWS):
        group = torch.from_numpy(rng.integers(0, 2, 300))
        y = torch.from_numpy(rng.normal(size=300)) * (1 + 4 * group)
        predicted = Gaussian(torch.zeros_like(y), torch.ones_like(y))
        known = slice(0, 200)
        conformal = Conformal(depths(predicted, y)[known], group[known], ("calm", "wild"))
        wild = group[200:] == 1
        depth = depths(predicted, y)[200:][wild]
        covered.append(float((depth >= conformal.level(0.9, "wild")).double().mean()))
        together.append(float((depth >= conformal.level(0.9)).double().mean()))
    assert 0.9 - 3 * np.std(covered) / math.sqrt(DRAWS) < np.mean(covered) < 0.92
    assert np.mean(together) < 0.85


def test_an_interval_holds_what_is_deep_enough_and_groups_have_their_own() -> None:
    rng = np.random.default_rng(1)
    predicted, y = rows(400, rng)
    depth = depths(predicted, y)
    for t in (0.4, 0.1, 1e-3, 0.0):
        lower, upper = central(predicted, t)
        assert torch.equal((lower <= y) & (y <= upper), depth >= t)
    group = torch.arange(400) % 2
    conformal = Conformal(depth, group, ("a", "b"))
    names = [conformal.groups[k] for k in group]
    lower, upper = conformal.interval(predicted, 0.9, names)
    for k, name in enumerate(conformal.groups):
        expected = central(predicted[(group == k).numpy()], conformal.level(0.9, name))
        torch.testing.assert_close((lower[group == k], upper[group == k]), expected)


def test_a_count_at_the_end_of_its_interval_is_inside() -> None:
    rng = np.random.default_rng(2)
    steps = Steps("count", (0.0, 1.0, 2.0, 3.0), (-0.5, 0.5, 1.5))
    u = torch.from_numpy(rng.normal(size=2_000))
    predicted = Discrete(Gaussian(0.3 * u, torch.ones_like(u)), steps)
    y = steps.inverse(0.3 * u + 2.0 * torch.from_numpy(rng.normal(size=2_000)))
    conformal = of_rows(predicted[:1_000], y[:1_000])
    lower, upper = conformal.interval(predicted[1_000:], 0.9)
    inside = (lower <= y[1_000:]) & (y[1_000:] <= upper)
    assert float(inside.double().mean()) > 0.9 - 3 * math.sqrt(0.09 / 1_000 + 0.09 / 1_000)
    level = conformal.level(0.9)
    assert torch.equal(inside, depths(predicted[1_000:], y[1_000:]) >= level * (1 - 1e-9))


def test_what_cannot_be_promised_is_refused() -> None:
    conformal = of_rows(*rows(18, np.random.default_rng(0)))
    with pytest.raises(InputError, match=r"from 19 rows on, and the promise of this fit rests on 18;"):
        conformal.level(0.95)
    assert conformal.level(0.94) > 0.0
    named = Conformal(conformal.depths, torch.arange(18) % 9, tuple("abcdefghi"))
    with pytest.raises(InputError, match="rests on 2 of the group 'b'"):
        named.level(0.9, "b")
    with pytest.raises(InputError, match="rests on no row of the group 'z'"):
        named.level(0.9, "z")


# ---- rows in the order of time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [25, 100])
def test_coverage_holds_in_every_tenth_of_a_drifting_stream(batch: int) -> None:
    """Noise that swings by a factor of six, and a bias that comes and goes."""
    rng = np.random.default_rng(0)
    n = 50_000
    time = np.linspace(0, 1, n)
    y = torch.from_numpy(np.sin(9 * time) + np.exp(0.9 * np.sin(40 * time)) * rng.normal(size=n))
    predicted = Gaussian(torch.zeros_like(y), torch.ones_like(y))
    adaptive, inside = AdaptiveIntervals(coverage=0.9), []
    depth = depths(predicted, y)
    for k in range(0, n, batch):
        some = slice(k, k + batch)
        inside += (depth[some] >= adaptive.level()).tolist()
        adaptive.update(predicted[some], y[some])
    tenths = np.array(inside).reshape(10, -1).mean(1)
    assert (np.abs(tenths - 0.9) < 0.02).all(), tenths


def test_after_misses_intervals_are_wider_and_in_the_end_everything() -> None:
    predicted, y = Gaussian(torch.zeros(1), torch.ones(1)), torch.tensor([50.0])
    adaptive, widths = AdaptiveIntervals(coverage=0.9, rate=0.05), []
    for _ in range(5):
        lower, upper = adaptive.interval(predicted)
        widths.append(float(upper - lower))
        adaptive.update(predicted, y)
    assert widths == sorted(widths)
    assert widths[-1] == math.inf
    with pytest.raises(InputError, match="coverage"):
        AdaptiveIntervals(coverage=1.0)
