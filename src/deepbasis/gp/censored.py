"""Censored targets: some are known exactly, of others only that they lie between two bounds, one perhaps infinite.

A row of such a target is (y, lower, upper); it is exact where lower = upper = y.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from deepbasis.gp import metrics
from deepbasis.gp.intervals import log_interval, log_mass
from deepbasis.gp.likelihoods import GaussianLikelihood, Moments, Target
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.predictive import Gaussian, GaussianMixture, Predictive, Weight
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import normal_rule

Numbers = Float[Tensor, " n"]

MOST_PAIRED = 5_000
"""Of more rows every m-th is compared with every m-th other."""
_TIMES = 100  # at which the Brier score is taken


class CensoredLikelihood(GaussianLikelihood):
    """The density of an exact y, and the probability of the interval of another; the noise is Gaussian.

    Targets are [b, 3]: y, lower and upper, all of them finite. What has no bound has one that is far away.
    """

    def log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """log N(y; mean, d^2), or log(Phi((upper - mean) / d) - Phi((lower - mean) / d)), d^2 = var + s"""
        known, exact, low, high = _parts(y)
        d = (var + self.noise()).sqrt()
        inside = log_interval((low - mean) / d, (high - mean) / d)
        return torch.where(exact, super().log_density(known, mean, var), inside)

    def expected_log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """Of an interval by quadrature over f."""
        known, exact, low, high = _parts(y)
        s = self.noise().sqrt()
        nodes, shares = normal_rule(mean)
        f = mean + var.sqrt() * nodes[:, None]
        inside = shares @ log_interval((low - f) / s, (high - f) / s)
        return torch.where(exact, super().expected_log_density(known, mean, var), inside)


def _parts(y: Target) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, whether it is exact, and an interval that has a width in any case, so that gradients are finite."""
    known, low, high = (y, y, y) if y.dim() == 1 else y.unbind(-1)
    exact = low == high
    return known, exact, low, torch.where(exact, low + 1.0, high)


def log_observed(predicted: Predictive, y: Numbers, lower: Numbers, upper: Numbers) -> Numbers:
    """The log of the density of an exact y, and of the probability of the interval of another."""
    exact = lower == upper
    low, high = lower, torch.where(exact, math.inf, upper)
    base = predicted
    if isinstance(predicted, Warped):
        warp, base = predicted.warp, predicted.base
        ends = [warp.forward(torch.where(end.isfinite(), end, y)) for end in (low, high)]
        low = torch.where(low > warp.low, ends[0], -math.inf)
        high = torch.where(high < warp.high, ends[1], math.inf)
    if isinstance(base, Gaussian | GaussianMixture):
        inside = log_mass(base, low, high)
    else:
        inside = (base.cdf(high) - base.cdf(low)).log()
    return torch.where(exact, predicted.log_prob(y), inside)


def pit(predicted: Predictive, y: Numbers, lower: Numbers, upper: Numbers) -> tuple[Numbers, Numbers]:
    """What `metrics.pit` is, where a row that is not exact is spread over the levels of its bounds."""
    exact = lower == upper
    ends = [torch.where(end.isfinite(), end, y) for end in (lower, upper)]
    below, above = (predicted.cdf(end) for end in ends)
    at = metrics.pit(predicted, y)
    low = torch.where(lower.isfinite(), below, 0.0)
    high = torch.where(upper.isfinite(), above, 1.0)
    return torch.where(exact, at[0], low), torch.where(exact, at[1], high)


def evaluate(
    predicted: Predictive, y: Numbers, lower: Numbers, upper: Numbers, weight: Weight = None
) -> dict[str, float]:
    """The metrics of rows that are known exactly (of all, by their y, if none is), and the NLL, the calibration error
    and the concordance of all.

    If no row has an upper bound but those that are exact, also the integrated Brier score.
    """
    exact = lower == upper
    some = exact if bool(exact.any()) else torch.ones_like(exact)
    scores = metrics.evaluate(predicted[some.nonzero()[:, 0]], y[some], None if weight is None else weight[some])
    scores["nll"] = float(-weighted_mean(log_observed(predicted, y, lower, upper), weight))
    low, high = pit(predicted, y, lower, upper)
    scores["calibration_error"] = float(metrics.distance_from_diagonal(low, high, weight=weight))
    scores["concordance"] = concordance(predicted.quantile(0.5), lower, upper)
    if bool((exact | upper.isposinf()).all()) and bool(exact.any()):
        scores["integrated_brier_score"] = integrated_brier_score(predicted, y, exact)
    return scores


def concordance(predicted: Numbers, lower: Numbers, upper: Numbers) -> float:
    """Harrell's C: of the pairs whose order is known, the share that is predicted in that order; ties count half.

    A row is known to come before another if its upper bound is below the other's lower bound, or equal to it while the
    other is censored. 0.5 if no order is known.
    """
    some = slice(None, None, -(-len(predicted) // MOST_PAIRED))
    predicted, lower, upper = predicted[some], lower[some], upper[some]
    censored = lower < upper
    right = pairs = 0.0
    for p, end in zip(predicted, upper, strict=True):
        later = (end < lower) | ((end == lower) & censored)
        right += float(((p < predicted) + 0.5 * (p == predicted))[later].sum())
        pairs += float(later.sum())
    return right / pairs if pairs else 0.5


def integrated_brier_score(predicted: Predictive, y: Numbers, exact: Bool[Tensor, " n"]) -> float:
    """The mean over times t of the Brier score of S(t), by inverse probability of censoring (Graf et al., 1999).

    A row that is not exact is known to come after its y. At the time t a row counts

        S(t)^2 / G(y-) if y <= t is exact,   (1 - S(t))^2 / G(t) if y > t,   0 if it was censored before,

    where G is the Kaplan-Meier estimate of not being censored, from these rows. The times are evenly spaced, from the
    first exact y to the 90 % quantile of all y: beyond it few rows are left.
    """
    first, last = y[exact].min(), y.quantile(0.9)
    moments, left = _not_censored(y, exact)
    before = left[torch.searchsorted(moments, y)]
    total = 0.0
    for t in torch.linspace(float(first), max(float(first), float(last)), _TIMES, dtype=y.dtype):
        survival = 1.0 - predicted.cdf(t.expand_as(y))
        now = left[torch.searchsorted(moments, t, right=True)]
        happened = torch.where(exact & (y <= t), survival.square() / before, 0.0)
        total += float((happened + torch.where(y > t, (1.0 - survival).square() / now, 0.0)).mean())
    return total / _TIMES


def _not_censored(y: Numbers, exact: Bool[Tensor, " n"]) -> tuple[Float[Tensor, " k"], Float[Tensor, " k+1"]]:
    """Kaplan and Meier's estimate: times, and the probability of not being censored before each, and after the last.

    What happens at the time of a censoring happens before it.
    """
    times, place, count = y.unique(return_inverse=True, return_counts=True)
    censored = torch.zeros_like(times).index_add_(0, place, (~exact).to(y))
    at_risk = count.flip(0).cumsum(0).flip(0) - (count - censored)
    left = (1.0 - censored / at_risk.clamp_min(1.0)).cumprod(0)
    return times, torch.cat([torch.ones_like(left[:1]), left])
