"""What `predict_dist` gives: numpy in, numpy out, and the same numbers as the mixture of torch tensors behind it."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from deepbasis import DeepBasisRegressor, Gaussian, GaussianMixture, InputError
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.gp.counts import Counts
from deepbasis.gp.discrete import Discrete, Steps
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import Log
from deepbasis.tables.warps import quantile_warp


@pytest.fixture
def dist() -> PredictiveDistribution:
    rng = np.random.default_rng(0)
    means, variances = rng.normal(size=(3, 7)), rng.uniform(0.1, 2.0, size=(3, 7))
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    return PredictiveDistribution(GaussianMixture(torch.from_numpy(means), torch.from_numpy(variances), weights))


def by_scipy(dist: PredictiveDistribution, what: str, y: np.ndarray) -> np.ndarray:
    parts = getattr(stats.norm, what)(y, dist.tensors.means.numpy(), dist.tensors.variances.sqrt().numpy())
    return dist.tensors.weights.numpy() @ parts


def test_densities_and_probabilities_are_scipys(dist):
    y = np.linspace(-2.0, 2.0, 7)
    np.testing.assert_allclose(dist.cdf(y), by_scipy(dist, "cdf", y), rtol=1e-12)
    np.testing.assert_allclose(dist.pdf(y), by_scipy(dist, "pdf", y), rtol=1e-12)
    np.testing.assert_allclose(dist.log_prob(y), np.log(dist.pdf(y)), rtol=1e-12)


def test_numpy_in_numpy_out(dist):
    y = np.linspace(-2.0, 2.0, 7)
    found = [
        dist.mean, dist.std, dist.variance, dist.quantile(0.3), dist.cdf(y), dist.pdf(y), dist.log_prob(y),
        dist.crps(y), y - dist.mean, *dist.interval(0.9),
    ]  # fmt: skip
    assert all(type(values) is np.ndarray and values.dtype == np.float64 and values.shape == (7,) for values in found)
    np.testing.assert_allclose(dist.std**2, dist.variance)
    np.testing.assert_array_equal(dist.crps(list(y)), dist.crps(y))


def test_several_quantiles_at_once_are_those_one_by_one_and_invert_the_cdf(dist):
    levels = [0.9, 0.01, 0.5]
    together = dist.quantile(levels)
    assert together.shape == (7, 3)
    for k, level in enumerate(levels):
        np.testing.assert_allclose(together[:, k], dist.quantile(level), rtol=1e-12)
        np.testing.assert_allclose(dist.cdf(together[:, k]), level, rtol=1e-10)
    lower, upper = dist.interval(0.8)
    np.testing.assert_allclose(dist.cdf(upper) - dist.cdf(lower), 0.8, rtol=1e-10)


@pytest.mark.parametrize("rows", [slice(2, 5), [4, 0], np.arange(7) % 2 == 0, 3, -1], ids=str)
def test_some_of_the_rows_are_a_distribution_too(dist, rows):
    some = dist[rows]
    expected = np.atleast_1d(dist.mean[rows])
    assert len(some) == len(expected)
    np.testing.assert_array_equal(some.mean, expected)
    np.testing.assert_allclose(some.quantile(0.2), np.atleast_1d(dist.quantile(0.2)[rows]))
    with pytest.raises(IndexError):
        dist[7]


def test_draws_have_the_distribution(dist):
    drawn = dist.sample(20_000, random_state=0)
    assert drawn.shape == (7, 20_000)
    np.testing.assert_array_equal(drawn, dist.sample(20_000, random_state=0))
    for row, sample in enumerate(drawn):
        one = dist[row]
        pit = by_scipy_row(one, sample)
        assert stats.kstest(pit, "uniform").pvalue > 1e-4


def by_scipy_row(one: PredictiveDistribution, y: np.ndarray) -> np.ndarray:
    means, stds = one.tensors.means.numpy(), one.tensors.variances.sqrt().numpy()
    return one.tensors.weights.numpy() @ stats.norm.cdf(y, means, stds)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, "half", [], [0.1, 2.0], [[0.1]]], ids=str)
def test_levels_that_are_none_are_refused(dist, q):
    with pytest.raises(InputError):
        dist.quantile(q)


def test_torch_for_those_who_ask():
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = DeepBasisRegressor(
        method="dbk-silu", members=2, epochs=2, rank=4, width=4, blocks=1, random_state=0, device="cpu"
    ).fit(X, X[:, 0])
    tensors = model.predict_dist(X, as_tensor=True)
    assert isinstance(tensors, GaussianMixture)
    np.testing.assert_array_equal(tensors.mean.numpy(), model.predict_dist(X).mean)
    assert repr(model.predict_dist(X)) == "PredictiveDistribution(40 rows)"


def test_the_entropy_is_the_integral_of_its_definition(dist):
    y = np.linspace(-25.0, 25.0, 20_001)
    for row in range(len(dist)):
        p = by_scipy_rows(dist[row], y)
        integral = np.trapezoid(-p * np.log(np.maximum(p, 1e-300)), y)
        assert dist.entropy()[row] == pytest.approx(integral, abs=1e-6)


def by_scipy_rows(one: PredictiveDistribution, y: np.ndarray) -> np.ndarray:
    means, stds = one.tensors.means.numpy(), one.tensors.variances.sqrt().numpy()
    return one.tensors.weights.numpy() @ stats.norm.pdf(y, means, stds)


def test_the_entropy_of_a_warped_target_is_that_of_a_lognormal():
    mean, std = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, 1.5], dtype=torch.float64)
    warped = PredictiveDistribution(Warped(Gaussian(mean, std.square()), Log(100.0)))
    expected = stats.lognorm(std.numpy(), scale=mean.exp().numpy()).entropy()
    np.testing.assert_allclose(warped.entropy(), expected, rtol=1e-6)


def test_the_entropy_of_a_count_is_that_of_its_probabilities():
    steps = Steps("count", (0.0, 1.0, 2.0), (-0.5, 0.5))
    base = Gaussian(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    count = PredictiveDistribution(Discrete(base, steps))
    np.testing.assert_allclose(count.entropy(), stats.entropy(count.pmf, axis=1))


def test_a_frame_has_the_columns_of_the_command(dist):
    frame = dist.to_frame(coverage=0.9, quantiles=[0.1], index=list("abcdefg"))
    assert list(frame.columns) == ["mean", "std", "lower_90", "upper_90", "q_0.1"]
    assert list(frame.index) == list("abcdefg")
    np.testing.assert_array_equal(frame["upper_90"], dist.interval(0.9)[1])
    assert list(dist.to_frame(coverage=None).columns) == ["mean", "std"]
    with pytest.raises(InputError, match="coverage must lie"):
        dist.to_frame(coverage=95)


def test_a_notebook_shows_the_first_rows(dist):
    shown = dist._repr_html_()
    assert shown.count("<tr") == 1 + 5
    assert "<th>upper_95</th>" in shown
    assert f"{dist.mean[4]:.4g}" in shown
    assert shown.endswith("<p>7 rows</p>")


def test_a_plot_shows_each_rows_interval_and_which_targets_lie_outside(dist):
    lower, upper = dist.interval(0.8)
    y = dist.mean.copy()
    y[2] = upper[2] + 1.0
    ax = dist.plot(y=y, coverage=0.8)
    drawn = {line.get_label(): line.get_xydata() for line in ax.lines}
    np.testing.assert_array_equal(drawn["target outside"], [[2, y[2]]])
    assert len(drawn["target"]) == 6
    ends = np.array([path.vertices[:, 1] for path in ax.collections[0].get_paths()])
    np.testing.assert_allclose(ends, np.stack([lower, upper], 1))
    assert dist.plot(ax) is ax


KINDS = {
    "mixture": lambda base: base,
    "log": lambda base: Warped(base, Log(3.0)),
    "warp": lambda base: Warped(base, quantile_warp(np.random.default_rng(0).gamma(2.0, size=200), None)),
    "ordinal": lambda base: Discrete(base, Steps("ordinal", (0.0, 1.0, 2.5), (-1.0, 0.5))),
    "counts": lambda base: Counts(base.means, base.variances, torch.zeros_like(base.means)),
}


@pytest.fixture(params=KINDS)
def any_dist(request, dist) -> PredictiveDistribution:
    base = dist.tensors
    return PredictiveDistribution(KINDS[request.param](GaussianMixture(base.means, base.variances)))


@pytest.mark.slow
def test_one_number_is_that_of_every_row(any_dist):
    for name in ("cdf", "pdf", "log_prob", "crps"):
        of = getattr(any_dist, name)
        for one in (1, 1.0, np.float64(1.0), np.array(1.0), torch.tensor(1.0)):
            np.testing.assert_array_equal(of(one), of(np.ones(7)))
    np.testing.assert_allclose(any_dist.survival(1.0), 1.0 - any_dist.cdf(1.0))


def test_a_target_that_is_missing_has_no_score(any_dist):
    y = np.array([1.0, np.nan, 1.0, 1.0, 1.0, 1.0, 1.0])
    with_density = not isinstance(any_dist.tensors, Discrete | Counts)  # NaN is no value: its probability is 0
    for name in ("cdf", "crps", *(["log_prob"] if with_density else [])):
        found = getattr(any_dist, name)(y)
        assert np.isnan(found[1])
        np.testing.assert_array_equal(np.delete(found, 1), np.delete(getattr(any_dist, name)(np.ones(7)), 1))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "rows are taken by their numbers, a mask or a slice, and at least one"),
        ("a", "rows are taken by their numbers, a mask or a slice"),
        ([0.5], "rows are taken by their numbers, a mask or a slice"),
        (True, "rows are taken by their numbers, a mask or a slice"),
        ([[0, 1]], "rows are taken by their numbers, a mask or a slice"),
        (np.ones(3, dtype=bool), "a mask must say yes or no to each of 7 rows, got 3"),
        ([0, 9], "there is no row 9: there are 7"),
    ],
)
def test_rows_that_are_not_there_are_refused_in_plain_words(any_dist, rows, words):
    with pytest.raises(InputError, match=words):
        any_dist[rows]


def test_rows_by_a_pandas_mask(any_dist):
    """Which torch may not write to: it has nothing to warn of."""
    mask = pd.Series(np.arange(7)) % 2 == 0
    mask.to_numpy().flags.writeable = False
    np.testing.assert_array_equal(any_dist[mask].mean, any_dist[[0, 2, 4, 6]].mean)
    np.testing.assert_allclose(any_dist[np.int64(-1)].mean, any_dist.mean[-1:], rtol=1e-12)


def test_draws_start_from_numpys_generator_too(any_dist):
    def drawn(seed: int) -> np.ndarray:
        return any_dist.sample(2, random_state=np.random.default_rng(seed))

    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert not np.array_equal(drawn(3), drawn(4))
    going_on = np.random.default_rng(3)
    np.testing.assert_array_equal(any_dist.sample(2, random_state=going_on), drawn(3))
    assert not np.array_equal(any_dist.sample(2, random_state=going_on), drawn(3))
