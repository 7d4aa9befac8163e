"""Conformal intervals: their promise over many draws, per group, for counts, and while rows drift."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.conformal import AdaptiveIntervals, Conformal, central, depths, stretched, stretches
from deepbasis.gp.discrete import Discrete, Steps
from deepbasis.gp.predictive import Gaussian, Predictive, mixture

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


def streams() -> dict[str, Tensor]:
    """50,000 targets around 0, where they are predicted with a standard deviation of 1."""
    rng = np.random.default_rng(0)
    n = 50_000
    time, noise = np.linspace(0, 1, n), rng.normal(size=n)
    found = {
        "noise that swings by a factor of six, and a bias that comes and goes": np.sin(9 * time)
        + np.exp(0.9 * np.sin(40 * time)) * noise,
        "jumps of eight standard deviations": 8.0 * (np.cumsum(rng.random(n) < 1 / 2_500) % 2) + noise,
        "a trend of thirty standard deviations": 30.0 * time + noise,
        "none": noise,
    }
    return {name: torch.from_numpy(y) for name, y in found.items()}


def followed(y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """The levels of the intervals, and which targets are inside: a score says it (below)."""
    scores = stretches(Gaussian(torch.zeros_like(y), torch.ones_like(y)), y).tolist()
    adaptive, levels = AdaptiveIntervals(coverage=0.9), []
    for k in range(0, len(y), batch):
        some = scores[k : k + batch]
        levels += [adaptive.level()] * len(some)
        adaptive.follow(some)
    level = torch.tensor(levels).double()
    return level, torch.tensor(scores).double() <= level


@pytest.mark.parametrize("drift", streams())
@pytest.mark.parametrize("batch", [1, 25, 100])
def test_coverage_holds_in_every_tenth_of_a_drifting_stream_by_finite_intervals(drift: str, batch: int) -> None:
    y = streams()[drift]
    level, inside = followed(y, batch)
    tenths = inside.double().reshape(10, -1).mean(1)
    assert bool(((tenths - 0.9).abs() < 0.02).all()), tenths
    assert float(level.max()) < 1.5 * float(y.abs().max())
    if drift == "none":
        assert float(level.mean()) < 1.02 * 1.645


@pytest.mark.parametrize("drift", [one for one in streams() if "jumps" not in one])
def test_large_batches_do_not_overshoot(drift: str) -> None:
    """Each has a level of its own only after a thousand rows: what changes within them cannot be followed."""
    level, inside = followed(streams()[drift], 1_000)
    tenths = inside.double().reshape(10, -1).mean(1)
    assert abs(float(inside.double().mean()) - 0.9) < 0.02
    assert bool(((tenths - 0.9).abs() < 0.07).all()), tenths
    assert float(level.max()) < 50.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_far_away_have_scores_in_their_order(dtype: torch.dtype) -> None:
    """Of a Gaussian they are standard deviations from the mean; a target is in the interval of its own score."""
    y = torch.tensor([0.5, 1.0, -2.0, 3.7, 3.8, 8.0, -50.0, 1e6], dtype=dtype)
    one = Gaussian(torch.zeros_like(y), torch.ones_like(y))
    torch.testing.assert_close(stretches(one, y), y.abs().double(), rtol=2e-3, atol=1e-5)
    members = Gaussian(torch.tensor([0.0]), torch.tensor([1.0])), Gaussian(torch.tensor([3.0]), torch.tensor([0.1]))
    for predicted in (mixture(list(members)), Discrete(members[0], Steps("count", (0.0, 1.0, 2.0), (0.0, 9.0)))):
        some = torch.tensor([0.0, 1.0, 2.0, 40.0, 1e5])
        found = [float(stretches(predicted, some[k : k + 1])) for k in range(5)]
        assert all(math.isfinite(one) for one in found)
        assert found[2:] == sorted(found[2:])
        for target, score in zip(some.tolist(), found, strict=True):
            lower, upper = stretched(predicted, score * (1.0 + 1e-6) + 1e-6)
            assert float(lower) <= target <= float(upper)
            if score > 0.1:
                lower, upper = stretched(predicted, 0.99 * score)
                assert not float(lower) <= target <= float(upper)


def test_after_misses_intervals_are_wider_and_never_everything() -> None:
    predicted, y = Gaussian(torch.zeros(1), torch.ones(1)), torch.tensor([50.0])
    adaptive, widths = AdaptiveIntervals(coverage=0.9), []
    torch.testing.assert_close(adaptive.interval(predicted), predicted.interval(0.9), rtol=1e-5, atol=1e-6)
    for _ in range(300):
        lower, upper = adaptive.interval(predicted)
        widths.append(float(upper - lower))
        adaptive.update(predicted, y)
    assert widths[:90] == sorted(widths[:90])
    assert 100.0 <= max(widths) < 150.0
    for wrong in (math.nan, [1.0, 2.0]):
        with pytest.raises(InputError, match="y"):
            adaptive.update(predicted, np.atleast_1d(wrong))
    adaptive.update(predicted, torch.tensor([math.inf]))
    assert math.isfinite(float(adaptive.interval(predicted)[1]))
    with pytest.raises(InputError, match="coverage"):
        AdaptiveIntervals(coverage=1.0)
