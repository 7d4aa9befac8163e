"""An observation that is an interval of a latent Gaussian: counts, ratings, rounded numbers.

With f ~ N(mean, var) and Gaussian noise s the probability of a < y <= b has a closed form,
Phi((b - mean) / sqrt(var + s)) - Phi((a - mean) / sqrt(var + s)), so that dPPGP stays what it is.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.likelihoods import GaussianLikelihood, Moments, Target
from deepbasis.gp.predictive import Predictive, as_mixture
from deepbasis.gp.warps import normal_rule

FARTHEST = 1e3
"""Where the first interval begins and the last one ends, in standard deviations of the target."""
_NARROW = 1e-2  # relative to the scale on which the density changes


def log_interval(a: Float[Tensor, "*n"], b: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """log(Phi(b) - Phi(a)) for a < b, with its digits wherever the interval lies and however narrow it is.

    On one side of 0, with 0 <= l < h the nearer and the farther end, and erfcx(x) = exp(x^2) erfc(x):

        Phi(h) - Phi(l) = exp(-l^2 / 2) / 2 (erfcx(l / sqrt 2) - exp((l - h) (l + h) / 2) erfcx(h / sqrt 2))

    What is narrow is its width times the density in the middle, with a correction of second order.
    """
    root = math.sqrt(0.5)
    middle, width = 0.5 * (a + b), b - a
    narrow = width * (1.0 + middle.abs()) < _NARROW
    beside = (a > 0) | (b < 0)
    low, high = torch.where(a > 0, a, -b), torch.where(a > 0, b, -a)
    low, high = torch.where(beside & ~narrow, low, 1.0), torch.where(beside & ~narrow, high, 2.0)  # for the gradients
    nearer = torch.special.erfcx(root * low)
    farther = torch.exp(0.5 * (low - high) * (low + high)) * torch.special.erfcx(root * high)
    one_sided = -0.5 * low.square() + (0.5 * (nearer - farther)).log()
    around = torch.where(beside | narrow, -1.0, a), torch.where(beside | narrow, 1.0, b)
    both_sided = (0.5 * (torch.erf(root * around[1]) - torch.erf(root * around[0]))).log()
    m, w = torch.where(narrow, middle, 0.0), torch.where(narrow, width, 1.0)
    small = w.log() - 0.5 * (m.square() + math.log(2.0 * math.pi)) + torch.log1p((m.square() - 1.0) * w.square() / 24.0)
    return torch.where(narrow, small, torch.where(beside, one_sided, both_sided))


def log_mass(predicted: Predictive, low: Float[Tensor, " n"], high: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log P(low < Y <= high) of a Gaussian or a mixture of them; the ends may be infinite."""
    members = as_mixture(predicted)
    stds = members.variances.sqrt()
    far = 10.0 * FARTHEST  # a finite end: its distance from everything is all that counts
    found = log_interval(
        ((low - members.means) / stds).clamp(-far, far - 1.0), ((high - members.means) / stds).clamp(1.0 - far, far)
    )
    return torch.logsumexp(found + members.shares.to(found).log()[:, None], 0)


class IntervalLikelihood(GaussianLikelihood):
    """a < f + noise <= b, where a and b are the `edges` around y; the noise is Gaussian.

    A model predicts the distribution of f + noise. What it means for the target, its scaler knows.
    """

    edges: Tensor

    def __init__(self, noise: float | None = 1e-2, *, edges: Sequence[float] = ()) -> None:
        super().__init__(noise)
        ends = [-FARTHEST, *edges, FARTHEST]
        if not edges or not all(one < other for one, other in pairwise(ends)):
            raise InputError(
                'likelihood "interval" needs edges that increase: it is what target="count" and target="ordinal" train '
                "with; give one of these instead"
            )
        self.register_buffer("edges", torch.tensor(ends))

    def _around(self, y: Target) -> tuple[Tensor, Tensor]:
        k = (y[:, None] > self.edges[1:-1]).sum(1)  # members have edges of their own: no search that stacks is quicker
        return self.edges[k], self.edges[k + 1]

    def log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """log(Phi((b - mean) / d) - Phi((a - mean) / d)), d^2 = var + s"""
        (a, b), d = self._around(y), (var + self.noise()).sqrt()
        return log_interval((a - mean) / d, (b - mean) / d)

    def expected_log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """By quadrature over f."""
        (a, b), s = self._around(y), self.noise().sqrt()
        nodes, shares = normal_rule(mean)
        f = mean + var.sqrt() * nodes[:, None]
        return shares @ log_interval((a - f) / s, (b - f) / s)
