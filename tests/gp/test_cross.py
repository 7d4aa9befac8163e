"""Cross-conformal intervals: CV+ by its definition, what it promises, per group, for counts."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.conformal import Conformal, depths, tails
from deepbasis.gp.cross import CrossConformal
from deepbasis.gp.discrete import Discrete, Steps
from deepbasis.gp.predictive import Gaussian, GaussianMixture, Predictive

SIZES = (11, 9, 12, 8)


def made_up(seed: int, sizes: Sequence[int] = SIZES, new: int = 30) -> tuple[CrossConformal, list[Predictive]]:
    """Depths of rows in parts, and what the model of each part predicts for new rows."""
    rng = np.random.default_rng(seed)
    parts = tuple(Conformal(torch.from_numpy(0.5 * rng.random(n)), torch.zeros(n, dtype=torch.int64)) for n in sizes)
    predicted: list[Predictive] = []
    for k in range(len(sizes)):
        means = torch.from_numpy(rng.normal(size=(2, new)))
        variances = torch.from_numpy(rng.uniform(0.5, 2.0, (2, new)))
        predicted.append(GaussianMixture(means, variances) if k % 2 else Gaussian(means[0], variances[0]))
    return CrossConformal(parts), predicted


def ends_of_all_rows(cross: CrossConformal, predicted: Sequence[Predictive]) -> tuple[Tensor, Tensor]:
    """[rows, new]: what each row would take a new y into."""
    pairs = [(one, float(d)) for part, one in zip(cross.parts, predicted, strict=True) for d in part.depths]
    return (
        torch.stack([one.quantile(d) for one, d in pairs]),
        torch.stack([one.quantile(1 - d) for one, d in pairs]),
    )


def holds(cross: CrossConformal, predicted: Sequence[Predictive], y: Tensor, coverage: float) -> Tensor:
    """Whether y is beyond the ends, on either side, of fewer rows than it takes."""
    sides = [0, 0]
    for part, one in zip(cross.parts, predicted, strict=True):
        for side, tail in enumerate(tails(one, y)):
            sides[side] = sides[side] + (part.depths[:, None] > tail).sum(0)
    n = sum(len(part.depths) for part in cross.parts)
    needed = n + 1 - math.floor((n + 1) * (1 - coverage) + 1e-9)
    return torch.maximum(*map(torch.as_tensor, sides)) < needed


@pytest.mark.parametrize("coverage", [0.95, 0.9, 0.6])
def test_it_is_cv_plus(coverage: float) -> None:
    cross, predicted = made_up(0)
    low, high = ends_of_all_rows(cross, predicted)
    k = math.floor((sum(SIZES) + 1) * (1 - coverage) + 1e-9)
    lower, upper = cross.interval(predicted, coverage)
    torch.testing.assert_close(lower, low.sort(0).values[k - 1], rtol=0, atol=1e-9)
    torch.testing.assert_close(upper, high.sort(0, descending=True).values[k - 1], rtol=0, atol=1e-9)
    for y in torch.linspace(-4, 4, 40, dtype=torch.float64)[:, None].expand(-1, 30):
        assert torch.equal(holds(cross, predicted, y, coverage), (lower <= y) & (y <= upper))


@pytest.mark.parametrize("coverage", [0.95, 0.8])
def test_a_mean_of_p_values_is_low_for_whatever_is_outside(coverage: float) -> None:
    """The promise is from there: P(mean <= a) <= 2 a. And it is tight: just outside the mean is close to a."""
    cross, predicted = made_up(1)
    lower, upper = cross.interval(predicted, coverage)
    most = (1 - cross.promise(coverage)) / 2
    found = []
    for beyond in (1e-6, 0.1, 1.0, 10.0):
        for y in (lower - beyond, upper + beyond):
            total = torch.zeros_like(y)
            for part, one in zip(cross.parts, predicted, strict=True):
                as_deep = part.depths[:, None] <= depths(one, y)
                p = (1 + as_deep.sum(0)) / (len(part.depths) + 1)
                total += (len(part.depths) + 1) * p
            found.append(total / (sum(SIZES) + len(SIZES)))
    assert float(torch.stack(found).max()) <= most + 1e-12
    assert float(torch.stack(found[:2]).max()) > most - 1.5 / sum(SIZES)


def test_a_mean_of_p_values_below_a_has_a_chance_of_two_a_at_most() -> None:
    """Weighted, and for the worst dependence that is known: U and 2 a - U, where U is below 2 a."""
    rng = np.random.default_rng(0)
    u, a = rng.random(200_000), 0.1
    other = np.where(u < 2 * a, 2 * a - u, u)
    assert abs(np.mean(0.5 * u + 0.5 * other <= a + 1e-12) - 2 * a) < 0.004
    for weights in ((0.3, 0.7), (0.9, 0.1)):
        assert np.mean(weights[0] * u + weights[1] * other <= a) <= 2 * a


def test_what_is_promised_is_about_one_minus_two_alpha_and_never_more() -> None:
    cross = made_up(0, (20,) * 5)[0]
    assert cross.promise(0.9) == pytest.approx(1 - 2 * 14 / 105)
    large = made_up(0, (2_000,) * 5)[0]
    for coverage in (0.6, 0.8, 0.9, 0.95):
        assert 1 - 2 * (1 - coverage) - 0.001 < large.promise(coverage) <= 1 - 2 * (1 - coverage)
        assert cross.promise(coverage) < large.promise(coverage)
    assert made_up(0, (3, 3, 3))[0].promise(0.4) == 0.0


def fitted_line(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> Gaussian:
    """Least squares of a polynomial that has many terms for its rows, and the variance of its residuals: too small."""
    design, at_new = (np.vander(one, 8) for one in (x, new))
    weights = np.linalg.lstsq(design, y, rcond=None)[0]
    mean = torch.from_numpy(at_new @ weights)
    return Gaussian(mean, torch.full_like(mean, float(np.mean((y - design @ weights) ** 2)) + 1e-12))


def test_coverage_over_many_tables_is_about_what_is_asked_for() -> None:
    """40 rows, heavy tails; the plain interval of the same model holds far less, since it has too many terms."""
    rng = np.random.default_rng(3)
    part, asked = np.arange(40) % 5, (0.9, 0.8)
    inside: list[list[float]] = []
    plain = []
    for _ in range(200):
        x = rng.uniform(-1, 1, 70)
        y = np.sin(3 * x) + 0.3 * rng.standard_t(3, 70)
        known, new, y_new = slice(0, 40), x[40:], torch.from_numpy(y[40:])
        promises, predicted = [], []
        for k in range(5):
            out = part == k
            both = fitted_line(x[known][~out], y[known][~out], np.concatenate([x[known][out], new]))
            promises.append(Conformal.of(both[: out.sum()], torch.from_numpy(y[known][out])))
            predicted.append(both[out.sum() :])
        cross = CrossConformal(tuple(promises))
        inside.append([float(holds(cross, predicted, y_new, one).double().mean()) for one in asked])
        lower, upper = fitted_line(x[known], y[known], new).interval(asked[0])
        plain.append(float(((lower <= y_new) & (y_new <= upper)).double().mean()))
    error = np.std(inside, 0) / math.sqrt(len(inside))
    assert np.mean(plain) < asked[0] - 0.03
    for k, one in enumerate(asked):
        assert cross.promise(one) < one - 3 * error[k] < np.mean(inside, 0)[k] < one + 0.06


def test_a_group_has_its_own_intervals() -> None:
    rng = np.random.default_rng(0)
    names = np.array(["calm", "wild"])
    promises, predicted = [], []
    for _ in range(3):
        group = torch.from_numpy(rng.integers(0, 2, 60))
        y = torch.from_numpy(rng.normal(size=60)) * (1 + 4 * group)
        standard = Gaussian(torch.zeros_like(y), torch.ones_like(y))
        promises.append(Conformal.of(standard, y, names[group.numpy()].tolist()))
        predicted.append(standard[:4])
    cross = CrossConformal(tuple(promises))
    lower, upper = cross.interval(predicted, 0.9, ["calm", "wild", "wild", "calm"])
    width = upper - lower
    assert float(width[1] / width[0]) > 2
    assert bool((width[[0, 1]] == width[[3, 2]]).all())
    calm = CrossConformal(
        tuple(Conformal(one.depths_of("calm"), torch.zeros(len(one.depths_of("calm")), dtype=int)) for one in promises)
    )
    torch.testing.assert_close((lower[:1], upper[:1]), calm.interval([one[:1] for one in predicted], 0.9))
    assert cross.promise(0.9, "calm") == calm.promise(0.9)
    with pytest.raises(InputError, match="rests on no row of the group 'z'"):
        cross.interval(predicted, 0.9, ["z"] * 4)
    with pytest.raises(InputError, match="fitted without groups"):
        calm.interval(predicted, 0.9, ["calm"] * 4)


def test_ends_of_counts_are_values_and_hold_what_is_as_deep() -> None:
    rng = np.random.default_rng(4)
    promises, predicted = [], []
    for k in range(3):
        steps = Steps("count", (0.0, 1.0, 2.0, 3.0, 5.0 + k), (-0.5, 0.5, 1.5, 2.5))
        u = torch.from_numpy(rng.normal(size=40))
        one = Discrete(Gaussian(u, torch.ones_like(u)), steps)
        promises.append(Conformal.of(one[:20], steps.inverse(u[:20] + torch.from_numpy(rng.normal(size=20)))))
        predicted.append(one[20:])
    cross = CrossConformal(tuple(promises))
    lower, upper = cross.interval(predicted, 0.8)
    for y in (0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0):
        inside = holds(cross, predicted, torch.full((20,), y, dtype=torch.float64), 0.8)
        assert torch.equal(inside, (lower <= y) & (y <= upper)), y
    assert set(torch.cat([lower, upper]).tolist()) <= {0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0}


def test_rows_beyond_everything_make_an_interval_of_everything() -> None:
    cross, predicted = made_up(0)
    lost = Conformal(torch.zeros_like(cross.parts[0].depths), cross.parts[0].group)
    lower, upper = CrossConformal((lost, *cross.parts[1:])).interval(predicted, 0.9)
    assert bool((lower == -math.inf).all() and (upper == math.inf).all())
    lower, upper = CrossConformal((lost, *cross.parts[1:])).interval(predicted, 0.6)  # 16 rows may be outside
    assert bool((lower.isfinite() & upper.isfinite()).all())


def test_models_that_contradict_each_other_still_give_an_interval() -> None:
    """Neither is believed by half of the rows, and less is asked for: no y is as deep as it takes."""
    half = Conformal(torch.full((10,), 0.4, dtype=torch.float64), torch.zeros(10, dtype=torch.int64))
    one, other = (Gaussian(torch.tensor([at]).double(), torch.tensor([1e-2]).double()) for at in (-5.0, 5.0))
    lower, upper = CrossConformal((half, half)).interval([one, other], 0.3)
    assert -5.2 < float(lower) < float(upper) < 5.2


def test_what_cannot_be_promised_is_refused() -> None:
    cross, predicted = made_up(0)
    with pytest.raises(InputError, match=r"from 99 rows on, and the promise of this fit rests on 40;"):
        cross.interval(predicted, 0.99)
    with pytest.raises(InputError, match="two parts"):
        CrossConformal(cross.parts[:1])


def test_a_row_that_is_hardly_inside_anything_does_no_harm() -> None:
    """A depth of 1e-20 has no digits in 1 - depth: its interval is everything."""
    one = Gaussian(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    deep = Conformal.of(one, torch.tensor([-9.5, 0.0, 1.0]))
    assert 0.0 < float(deep.depths[0]) < 1e-20
    lower, upper = deep.interval(one, 0.7)
    assert bool((lower == -math.inf).all() and (upper == math.inf).all())
