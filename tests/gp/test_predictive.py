"""The predictive distributions against quadrature, scoringrules, scipy and torch.distributions."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from deepbasis.errors import InputError
from deepbasis.gp.predictive import Gaussian, GaussianMixture, mixture

ROWS = 12
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
"""Relative, for a formula evaluated in the dtype against a float64 oracle at the same parameters."""


def gaussian(dtype: torch.dtype) -> Gaussian:
    g = torch.Generator().manual_seed(1)
    mean = torch.randn(ROWS, generator=g) * 3
    variance = torch.rand(ROWS, generator=g) * 4 + 0.05
    return Gaussian(mean.to(dtype), variance.to(dtype))


def ensemble(dtype: torch.dtype, members: int = 4) -> GaussianMixture:
    g = torch.Generator().manual_seed(2)
    means = torch.randn(members, ROWS, generator=g) * 3
    variances = torch.rand(members, ROWS, generator=g) * 4 + 0.05
    return GaussianMixture(means.to(dtype), variances.to(dtype))


def targets(dtype: torch.dtype) -> Tensor:
    return (torch.randn(ROWS, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)


def weighted(dtype: torch.dtype) -> GaussianMixture:
    """Four means with variances of three scales each, as a calibration makes them, and weights that all differ."""
    p = ensemble(dtype)
    weights = torch.linspace(1.0, 3.0, 12, dtype=torch.float64)
    variances = torch.cat([scale * p.variances for scale in (0.25, 1.0, 16.0)])
    return GaussianMixture(p.means.repeat(3, 1), variances, weights / weights.sum())


KINDS = {"gaussian": gaussian, "mixture": ensemble, "weighted": weighted}


@pytest.fixture(params=list(KINDS))
def predictive(request: pytest.FixtureRequest, dtype: torch.dtype) -> Gaussian | GaussianMixture:
    return KINDS[request.param](dtype)


def components(p: Gaussian | GaussianMixture) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations [e, n] in float64."""
    means, variances = (p.means, p.variances) if isinstance(p, GaussianMixture) else (p.mean[None], p.variance[None])
    return means.double().numpy(), variances.double().sqrt().numpy()


def shares(p: Gaussian | GaussianMixture) -> np.ndarray:
    """The weights [e] of the components."""
    count = len(components(p)[0])
    given = p.weights if isinstance(p, GaussianMixture) else None
    return np.full(count, 1 / count) if given is None else given.double().numpy()


def oracle(p: Gaussian | GaussianMixture) -> MixtureSameFamily:
    means, stds = (torch.from_numpy(a.T.copy()) for a in components(p))
    return MixtureSameFamily(Categorical(torch.from_numpy(shares(p)).expand_as(means)), Normal(means, stds))


def dtype_of(p: Gaussian | GaussianMixture) -> torch.dtype:
    return p.mean.dtype


def assert_close(actual: Tensor, expected: Tensor | np.ndarray, tolerance: float, *, scale: float = 1.0) -> None:
    """`tolerance` relative to the entry, and absolute relative to `scale`."""
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance * scale)


# --- values ---


def test_crps_equals_quadrature(predictive):
    y = targets(dtype_of(predictive))
    means, stds = components(predictive)

    def cdf(z: float, row: int) -> float:
        return float(stats.norm.cdf(z, means[:, row], stds[:, row]) @ shares(predictive))

    def crps(row: int) -> float:
        """integral of (F(z) - 1{z >= y})^2, in two smooth pieces."""
        target = float(y[row])
        low = min(float((means[:, row] - 12 * stds[:, row]).min()), target)
        high = max(float((means[:, row] + 12 * stds[:, row]).max()), target)
        below = integrate.quad(lambda z: cdf(z, row) ** 2, low, target, epsabs=1e-9, epsrel=1e-9, limit=200)[0]
        above = integrate.quad(lambda z: (1 - cdf(z, row)) ** 2, target, high, epsabs=1e-9, epsrel=1e-9, limit=200)[0]
        return below + above

    rows = range(4)
    expected = np.array([crps(row) for row in rows])
    assert_close(predictive.crps(y)[: len(rows)], expected, max(TOLERANCE[y.dtype], 1e-7))


def test_crps_equals_scoringrules(predictive):
    import scoringrules  # compiles for seconds when it is imported

    y = targets(dtype_of(predictive))
    means, stds = components(predictive)
    if isinstance(predictive, Gaussian):
        expected = scoringrules.crps_normal(y.double().numpy(), means[0], stds[0], backend="numpy")
    else:
        w = np.broadcast_to(shares(predictive)[:, None], means.shape)
        expected = scoringrules.crps_mixnorm(y.double().numpy(), means, stds, w, m_axis=0, backend="numpy")
    assert_close(predictive.crps(y), expected, TOLERANCE[y.dtype])


def test_log_prob_and_cdf_equal_torch_distributions(predictive):
    y = targets(dtype_of(predictive))
    expected = oracle(predictive)
    assert_close(predictive.log_prob(y), expected.log_prob(y.double()), TOLERANCE[y.dtype])
    assert_close(predictive.cdf(y), expected.cdf(y.double()), TOLERANCE[y.dtype])


def test_log_prob_far_out_does_not_underflow(predictive):
    y = predictive.mean + 1e3 * predictive.std
    expected = oracle(predictive).log_prob(y.double())
    assert expected.max() < -1e4
    assert_close(predictive.log_prob(y), expected, TOLERANCE[y.dtype])


def test_gaussian_equals_torch_normal(dtype):
    p, y = gaussian(dtype), targets(dtype)
    expected = Normal(p.mean, p.variance.sqrt())
    assert_close(p.log_prob(y), expected.log_prob(y), TOLERANCE[dtype])
    assert_close(p.cdf(y), expected.cdf(y), TOLERANCE[dtype])
    assert torch.equal(p.std, expected.stddev)


@pytest.mark.parametrize("z", [-3.0, -5.0, -6.0, -8.0])
def test_cdf_has_its_digits_in_the_lower_tail(dtype, z):
    """1/2 (1 + erf) cancels there: float32 would have no digit left at z = -5.5, float64 none at z = -8.3."""
    p = gaussian(dtype)
    y = p.mean + z * p.std
    expected = stats.norm.cdf((y.double() - p.mean.double()) / p.variance.double().sqrt())
    condition = 1 + z**2 * float((p.mean.abs() / p.std).max())
    relative = np.abs(p.cdf(y).double().numpy() / expected - 1)
    assert relative.max() < 8 * torch.finfo(dtype).eps * condition


def test_mean_and_variance_equal_torch_distributions(predictive):
    expected = oracle(predictive)
    tolerance = TOLERANCE[dtype_of(predictive)]
    assert_close(predictive.mean, expected.mean, tolerance)
    assert_close(predictive.variance, expected.variance, tolerance)
    assert_close(predictive.std, expected.variance.sqrt(), tolerance)


def test_law_of_total_variance(dtype):
    p = ensemble(dtype)
    means, stds = components(p)
    assert_close(p.variance, (stds**2).mean(0) + means.var(0), TOLERANCE[dtype])


@pytest.mark.parametrize("weights", [None, torch.tensor([0.125, 0.125, 0.25, 0.5])], ids=["equal", "weights"])
def test_variance_of_members_that_agree_far_from_zero_is_theirs(dtype, weights):
    """Means of 1e4 with a spread of 0: E[mean^2] - E[mean]^2 would lose every digit of a variance of 1e-4."""
    p = GaussianMixture(torch.full((4, ROWS), 1e4, dtype=dtype), torch.full((4, ROWS), 1e-4, dtype=dtype), weights)
    assert_close(p.variance, np.full(ROWS, 1e-4), TOLERANCE[dtype])


def test_a_weight_of_3_in_5_is_3_of_5_equal_members(dtype):
    p, y = ensemble(dtype, 2), targets(dtype)
    weighted = GaussianMixture(p.means, p.variances, torch.tensor([0.6, 0.4], dtype=dtype))
    repeated = GaussianMixture(p.means[[0, 0, 0, 1, 1]], p.variances[[0, 0, 0, 1, 1]])
    tolerance = TOLERANCE[dtype]
    for one, other in (
        (weighted.mean, repeated.mean),
        (weighted.variance, repeated.variance),
        (weighted.cdf(y), repeated.cdf(y)),
        (weighted.log_prob(y), repeated.log_prob(y)),
        (weighted.crps(y), repeated.crps(y)),
        (weighted.quantile(0.3), repeated.quantile(0.3)),
    ):
        assert_close(one, other.double(), tolerance)


def test_equal_weights_are_none(dtype):
    p, y = ensemble(dtype), targets(dtype)
    same = GaussianMixture(p.means, p.variances, torch.full((4,), 0.25, dtype=dtype))
    for name in ("cdf", "log_prob", "crps"):
        assert_close(getattr(same, name)(y), getattr(p, name)(y).double(), TOLERANCE[dtype])
    assert_close(same.variance, p.variance.double(), TOLERANCE[dtype])
    assert_close(torch.stack(same.interval()), torch.stack(p.interval()).double(), TOLERANCE[dtype])


def test_a_component_of_weight_0_is_none(dtype):
    p, y = ensemble(dtype, 3), targets(dtype)
    without = GaussianMixture(p.means[:2], p.variances[:2])
    silent = GaussianMixture(p.means, p.variances, torch.tensor([0.5, 0.5, 0.0], dtype=dtype))
    for name in ("cdf", "log_prob", "crps"):
        assert_close(getattr(silent, name)(y), getattr(without, name)(y).double(), TOLERANCE[dtype])
    assert_close(silent.quantile(0.01), without.quantile(0.01).double(), TOLERANCE[dtype])


# --- quantiles ---

LEVELS = [1e-6, 1e-4, 0.025, 0.2, 0.5, 0.7, 0.975, 1 - 1e-4, 1 - 1e-6]


@pytest.mark.parametrize("q", LEVELS)
def test_gaussian_quantile_equals_scipy(dtype, q):
    p = gaussian(dtype)
    means, stds = components(p)
    assert_close(p.quantile(q), stats.norm.ppf(q, means[0], stds[0]), TOLERANCE[dtype])


@pytest.mark.parametrize("q", [*LEVELS, 1e-9, 1 - 1e-9])
def test_both_tails_have_their_digits(predictive, q):
    """The q-quantile of Y and the (1 - q)-quantile of -Y are each other's negative, far out too, and finite."""
    here, mirrored = predictive.quantile(q), predictive.affine(-1.0, 0.0).quantile(1.0 - q)
    assert torch.isfinite(here).all()
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-8}[here.dtype]  # 1 - q itself has 1e-16 / 1e-9 of error
    assert_close(here, -mirrored.double(), tolerance)


@pytest.mark.parametrize("q", LEVELS)
def test_one_member_has_the_gaussians_quantiles(dtype, q):
    p = gaussian(dtype)
    assert_close(mixture([p]).quantile(q), p.quantile(q).double(), TOLERANCE[dtype])


@pytest.mark.parametrize("q", LEVELS)
def test_quantile_of_equal_members_is_theirs(dtype, q):
    p = gaussian(dtype)
    assert_close(mixture([p, p, p]).quantile(q), p.quantile(q).double(), TOLERANCE[dtype])


def assert_inverts_cdf(p: GaussianMixture, q: float, log_tolerance: float) -> None:
    """q lies between the cdf (scipy, float64) just below and just above the quantile.

    "Just" is 16 units in the last place of the numbers that went into it, and q may be off by `log_tolerance`,
    relative to the nearer tail.
    """
    x = p.quantile(q)
    means, stds = components(p)
    at = x.double().numpy()
    step = 16 * torch.finfo(x.dtype).eps * (np.abs(at) + np.abs(means).max(0))
    tail, sign = (q, 1.0) if q <= 0.5 else (1.0 - q, -1.0)

    def tail_mass(z: np.ndarray) -> np.ndarray:
        return shares(p) @ stats.norm.cdf(sign * (z - means) / stds)

    assert np.isfinite(at).all()
    assert (tail_mass(at - sign * step) <= tail * (1 + log_tolerance)).all()
    assert (tail_mass(at + sign * step) >= tail * (1 - log_tolerance)).all()


INVERSION = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Relative to the nearer tail's mass: eps times the condition z^2 of a tail, z = 5, with room; 1 - q for float64."""


@pytest.mark.parametrize("q", LEVELS)
@pytest.mark.parametrize("kind", ["mixture", "weighted"])
def test_mixture_quantile_inverts_the_cdf(dtype, q, kind):
    assert_inverts_cdf(KINDS[kind](dtype), q, INVERSION[dtype])


levels = st.one_of(st.floats(1e-6, 1 - 1e-6), st.sampled_from(LEVELS))
log10 = st.floats(-4, 4)
member = st.tuples(st.floats(-1e4, 1e4), log10)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(q=levels, members=st.lists(member, min_size=1, max_size=6), single=st.booleans(), uneven=st.booleans())
@example(q=0.5, members=[(-1e4, -4.0), (1e4, -4.0)], single=True, uneven=False)  # the cdf is flat between them
@example(q=1 - 1e-6, members=[(0.0, -4.0), (0.0, 4.0)], single=True, uneven=False)
@example(q=0.3, members=[(0.0, -4.0), (0.0, 4.0), (1e4, 0.0)], single=False, uneven=True)
def test_mixture_quantile_inverts_the_cdf_of_far_and_unequal_members(q, members, single, uneven):
    dtype = torch.float32 if single else torch.float64
    means = torch.tensor([m for m, _ in members], dtype=dtype)
    variances = torch.tensor([10.0 ** (2 * s) for _, s in members], dtype=dtype)
    weights = torch.softmax(torch.arange(len(members)).double(), 0) if uneven else None
    assert_inverts_cdf(GaussianMixture(means[:, None], variances[:, None], weights), q, INVERSION[dtype])


@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), spread=log10, uneven=st.booleans())
def test_quantiles_of_many_rows_are_those_of_each_row(seed, spread, uneven):
    """Easy rows and hard ones, whose members are far from each other and of unequal size; many take another way."""
    g = torch.Generator().manual_seed(seed)
    means, log_stds = torch.randn(2, 3, 400, generator=g, dtype=torch.float64)
    hard = torch.rand(400, generator=g) < 0.3
    means, log_stds = torch.where(hard, 10.0**spread * means, means), torch.where(hard, 4.0 * log_stds, 0.3 * log_stds)
    weights = torch.tensor([0.2, 0.7, 0.1]).double() if uneven else None
    many = GaussianMixture(means, (2.0 * log_stds).exp(), weights)
    for q in (0.3, [0.025, 0.975], [1e-9, 1e-4, 0.5]):
        some = list(range(0, 400, 40))
        alone = torch.cat([many[row].quantile(q) for row in some])
        size = (many.means.abs() + many.variances.sqrt()).amax(0)[some]
        error = (many.quantile(q)[some] - alone).abs().reshape(len(some), -1).amax(1)
        assert bool((error <= 1e-12 * size).all())


def test_quantiles_rise_with_their_level(predictive):
    quantiles = torch.stack([predictive.quantile(q) for q in LEVELS])
    assert (quantiles.diff(dim=0) > 0).all()


@pytest.mark.parametrize("coverage", [0.05, 0.5, 0.9, 0.95, 0.999])
def test_interval_is_central(predictive, coverage):
    lower, upper = predictive.interval(coverage)
    expected, tail = oracle(predictive), torch.full((ROWS,), (1 - coverage) / 2, dtype=torch.float64)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12}[lower.dtype]
    assert_close(expected.cdf(lower.double()), tail, tolerance)
    assert_close(1 - expected.cdf(upper.double()), tail, tolerance)


def test_interval_is_95_percent_unless_told(predictive):
    assert all(map(torch.equal, predictive.interval(), predictive.interval(0.95)))


SEVERAL = [0.5, 1e-9, 0.975, 0.3, 1.0 - 1e-9, 0.3, 0.025]


@pytest.mark.parametrize("kind", [list, np.array, lambda q: torch.tensor(q).double()], ids=["list", "numpy", "torch"])
def test_several_levels_at_once_are_each_of_them(predictive, kind):
    levels = kind([0.5, 0.25, 0.875]) if kind is not list else SEVERAL  # numbers that float32 has too
    together = predictive.quantile(levels)
    alone = torch.stack([predictive.quantile(float(level)) for level in levels], 1)
    assert_close(together, alone.double(), 8 * torch.finfo(dtype_of(predictive)).eps, scale=float(alone.abs().max()))


def test_quantiles_never_fall_as_the_level_rises(predictive):
    """Levels so close to each other that rounding decides."""
    levels = 0.3 + 1e-12 * torch.arange(40, dtype=torch.float64)
    together = predictive.quantile(levels)
    assert bool((together.diff(dim=1) >= 0).all())
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    tolerance = 8 * torch.finfo(dtype_of(predictive)).eps
    assert_close(predictive.quantile(levels[order]), together[:, order].double(), tolerance, scale=10.0)


# --- densities, rows ---


@pytest.mark.parametrize(("far", "spread"), [(1e12, 1e-3), (1e15, 0.5), (-1e15, 0.5)])
@pytest.mark.parametrize("rows", [3, 300])  # few are done by numpy
def test_a_narrow_interval_holds_the_median_near_the_grid_of_floats(far, spread, rows):
    """Each is a call of its own, so nothing but the way they are computed can put them in order."""
    rng = np.random.default_rng(0)
    means = torch.from_numpy(far + spread * rng.normal(size=(4, rows)))
    predicted = GaussianMixture(means, torch.from_numpy((spread * rng.uniform(0.5, 2.0, (4, rows))) ** 2))
    median = predicted.quantile(0.5)
    for coverage in (0.9, 0.1, 1e-2, 1e-3, 1e-6):
        low, high = predicted.interval(coverage)
        assert (low <= median).all()
        assert (median <= high).all()


def test_pdf_is_the_derivative_of_the_cdf(predictive):
    p, y = predictive, targets(torch.float64)
    p = type(p)(*(None if t is None else t.double() for t in vars(p).values()))
    step = 1e-4
    assert_close(p.pdf(y), (p.cdf(y + step) - p.cdf(y - step)) / (2 * step), 1e-6)
    assert torch.equal(p.pdf(y), p.log_prob(y).exp())


SOME = {"slice": slice(2, 7), "steps": slice(None, None, 3), "list": [4, 1, 1], "mask": np.arange(ROWS) % 2 == 0}


@pytest.mark.parametrize("rows", SOME.values(), ids=SOME)
def test_some_rows_are_predicted_as_among_all(predictive, rows):
    part, y = predictive[rows], targets(dtype_of(predictive))
    assert len(predictive) == ROWS
    assert len(part) == len(predictive.mean[rows])
    tolerance = 8 * torch.finfo(dtype_of(predictive)).eps  # sums over components may be added up in another order
    assert_close(part.mean, predictive.mean[rows].double(), tolerance, scale=10.0)
    assert_close(part.log_prob(y[rows]), predictive.log_prob(y)[rows].double(), tolerance, scale=100.0)
    assert_close(part.quantile([0.1, 0.9]), predictive.quantile([0.1, 0.9])[rows].double(), tolerance, scale=10.0)


def test_a_row_by_its_number_is_a_distribution_of_one(predictive):
    assert [len(one) for one in predictive] == [1] * ROWS
    assert_close(torch.cat([one.mean for one in predictive]), predictive.mean.double(), 1e-6, scale=10.0)
    assert torch.equal(predictive[-1].mean, predictive[ROWS - 1].mean)
    with pytest.raises(IndexError):
        predictive[ROWS]


# --- samples ---


def test_samples_follow_the_distribution(predictive):
    draws = predictive.sample(4000, torch.Generator().manual_seed(0)).double()
    expected = oracle(predictive)
    uniform = expected.cdf(draws).numpy()
    p_values = [stats.kstest(uniform[:, row], "uniform").pvalue for row in range(ROWS)]
    assert min(p_values) > 1e-3 / ROWS
    standard_error = predictive.std.double() / math.sqrt(4000)
    assert ((draws.mean(0) - predictive.mean).abs() < 5 * standard_error).all()
    assert_close(draws.var(0) / predictive.variance, np.ones(ROWS), 0.15)


def test_rows_and_draws_are_independent(predictive):
    draws = predictive.sample(4000, torch.Generator().manual_seed(0)).double()
    between_rows = torch.corrcoef(draws.mT) - torch.eye(ROWS)
    next_draw = torch.stack([torch.corrcoef(torch.stack([c[1:], c[:-1]]))[0, 1] for c in draws.mT])
    assert max(between_rows.abs().max(), next_draw.abs().max()) < 5 / math.sqrt(4000)


def test_sampling_is_reproducible_and_leaves_the_global_state(predictive):
    before = torch.get_rng_state()
    first, second, other = (predictive.sample(7, torch.Generator().manual_seed(s)) for s in (5, 5, 6))
    assert torch.equal(first, second)
    assert not (first == other).any()
    assert torch.equal(torch.get_rng_state(), before)


def test_sampling_without_a_generator_uses_the_global_one(predictive):
    torch.manual_seed(3)
    first = predictive.sample(5)
    torch.manual_seed(3)
    assert torch.equal(first, predictive.sample(5))


# --- a change of units ---


@pytest.mark.parametrize(("scale", "shift"), [(2.5, -7.0), (1e-3, 0.2), (1e4, 30.0), (-2.5, 7.0)])
def test_affine_changes_the_units_of_everything(predictive, scale, shift):
    p, y = predictive, targets(dtype_of(predictive))
    changed, y_changed = p.affine(scale, shift), scale * y + shift
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10}[y.dtype]

    def agree(actual: Tensor, expected: Tensor, unit: float = 1.0) -> None:
        assert_close(actual, expected.double(), tolerance, scale=unit)

    size = abs(scale) + abs(shift)
    agree(changed.mean, scale * p.mean + shift, size)
    agree(changed.variance, scale**2 * p.variance)
    agree(changed.std, abs(scale) * p.std)
    agree(changed.crps(y_changed), abs(scale) * p.crps(y), size)
    agree(changed.log_prob(y_changed), p.log_prob(y) - math.log(abs(scale)))
    agree(changed.cdf(y_changed), p.cdf(y) if scale > 0 else 1 - p.cdf(y))
    agree(changed.quantile(0.1), scale * p.quantile(0.1 if scale > 0 else 0.9) + shift, size)
    ends = torch.stack(p.interval(0.8)) * scale + shift
    agree(torch.stack(changed.interval(0.8)), ends if scale > 0 else ends.flip(0), size)
    draws = changed.sample(5, torch.Generator().manual_seed(1))
    same = p.sample(5, torch.Generator().manual_seed(1))
    if scale > 0:
        agree(draws, scale * same + shift, size)


# --- what is refused ---


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf, -math.inf])
def test_bad_levels_are_refused(predictive, level):
    with pytest.raises(InputError, match=r"level|q must"):
        predictive.quantile(level)
    with pytest.raises(InputError, match="coverage"):
        predictive.interval(level)


@pytest.mark.parametrize("count", [0, -1, True])
def test_bad_counts_are_refused(predictive, count):
    with pytest.raises(InputError, match="count must be a positive integer"):
        predictive.sample(count)


@pytest.mark.parametrize(
    "weights", [[0.5, 0.5, 0.5, -0.5], [0.25, 0.25, 0.25, 0.2], [0.5] * 4, [math.nan] * 4, [math.inf, 0.0, 0.0, 0.0]]
)
def test_bad_weights_are_refused(dtype, weights):
    p = ensemble(dtype)
    with pytest.raises(InputError, match="weights"):
        GaussianMixture(p.means, p.variances, torch.tensor(weights, dtype=dtype))


@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.2] * 5])
def test_weights_of_other_components_are_refused(dtype, weights):
    p = ensemble(dtype)
    with pytest.raises((InputError, TypeCheckError), match="weights"):  # in tests the shapes are looked at before
        GaussianMixture(p.means, p.variances, torch.tensor(weights, dtype=dtype))


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(InputError, match="at least one member"):
        mixture([])


def test_mixture_stacks_its_members(dtype):
    p = ensemble(dtype)
    members = [Gaussian(m, v) for m, v in zip(p.means, p.variances, strict=True)]
    y = targets(dtype)
    assert torch.equal(mixture(members).crps(y), p.crps(y))
    assert torch.equal(mixture(members).means, p.means)


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("name", ["cdf", "log_prob", "crps"])
def test_targets_may_be_what_numpy_takes(name: str, components: int) -> None:
    means = torch.randn(components, 5, dtype=torch.float64)
    y = torch.randn(5, dtype=torch.float64)
    for told in (Gaussian(means[0], means[0].exp()), GaussianMixture(means, means.exp())):
        function = getattr(told, name)
        for same in (y.numpy(), y.tolist(), pd.Series(y.numpy(), index=range(3, 8))):
            torch.testing.assert_close(function(same), function(y), rtol=0.0, atol=0.0)
        for wrong in (y.numpy()[:, None], y.numpy()[:4], [1.0]):
            with pytest.raises(InputError, match="each of 5 rows"):
                function(wrong)


@pytest.mark.parametrize("weights", [None, torch.tensor([0.2, 0.5, 0.3])], ids=["equal", "weighted"])
def test_rows_in_pieces_one_after_another_are_the_rows(weights):
    generator = torch.Generator().manual_seed(0)
    means, variances = torch.randn(3, 7, generator=generator), torch.rand(3, 7, generator=generator) + 0.1
    whole = GaussianMixture(means, variances, weights)
    again = whole[:2].followed_by([whole[2:5], whole[5:]])
    y = torch.linspace(-2.0, 2.0, 7)
    assert torch.equal(again.log_prob(y), whole.log_prob(y))
    assert again.double().means.dtype == torch.float64
    torch.testing.assert_close(again.double().mean.float(), whole.mean)


def test_rows_of_one_gaussian_after_another():
    whole = Gaussian(torch.randn(7), torch.rand(7) + 0.1)
    again = whole[:2].followed_by([whole[2:5], whole[5:]]).double()
    assert (again.mean.dtype, again.variance.dtype) == (torch.float64, torch.float64)
    assert torch.equal(again.mean.float(), whole.mean)
    assert torch.equal(again.variance.float(), whole.variance)


def test_rows_of_another_kind_are_refused_and_never_lost():
    mixture = GaussianMixture(torch.randn(2, 3), torch.rand(2, 3) + 0.1)
    weighted = GaussianMixture(mixture.means, mixture.variances, torch.tensor([0.3, 0.7]))
    more = GaussianMixture(torch.randn(3, 3), torch.rand(3, 3) + 0.1)
    for other in (Gaussian(torch.zeros(3), torch.ones(3)), weighted, more):
        with pytest.raises(InputError, match="components"):
            mixture.followed_by([mixture, other])
    with pytest.raises(InputError, match="one kind"):
        Gaussian(torch.zeros(3), torch.ones(3)).followed_by([mixture])
