"""Classes: a row belongs to the class whose latent number is the largest (the multinomial probit).

Class k has f_k + noise, with its own mean, and the variance d^2 = var + 1 that all classes share: one basis, and q(w)
with a mean for each class. With a_k = mean_k / d the probability of class k is a single integral,

    P(k) = int N(t; 0, 1) prod_{j != k} Phi(t + a_k - a_j) dt.

Two classes have one latent number, and P(1) = Phi(a): the probit in closed form.

NOTE[DIFF]: the paper has numbers alone, and leaves other likelihoods to future work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from deepbasis.errors import InputError
from deepbasis.gp.predictive import Predictive, Rows, Targets, as_targets, at_rows, ndtr, shares_of

MOST_CLASSES = 256

_NEWTON_STEPS = 4
_REACH, _STRETCH = 7.0, 0.2  # of the integral over t: its nodes lie at the sinh of equal steps
_NODES = {torch.float64: 27, torch.float32: 17}  # errors up to 1e-8, and 1e-5
_FAR = -12.0  # where the normal cdf is still a number in float32
_BELOW, _ABOVE, _GRID = -7.0, 7.6, 41  # of all integrals at once: around the largest mean, in units of d
_MOST_NUMBERS = 1 << 22  # held at a time


def log_largest(a: Float[Tensor, "n k"], y: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log P(a_y + e_y > a_j + e_j for all j != y) with independent e ~ N(0, 1), with its digits far out.

    What is integrated is log-concave. From t = 0 Newton's method goes up to its largest value without a step too far,
    since the slope is convex. The trapezoidal rule around it is as good as any.
    """
    lead = a.gather(1, y[:, None]) - a
    others = torch.arange(a.shape[1], device=a.device) != y[:, None]
    t = torch.zeros_like(lead[:, :1])
    fixed, bend = lead.detach(), torch.ones_like(t)
    for _ in range(_NEWTON_STEPS):
        z = t + fixed
        mills = torch.where(others, torch.exp(-0.5 * z.square() - log_ndtr(z)) / math.sqrt(2.0 * math.pi), 0.0)
        bend = 1.0 + (mills * (z + mills)).sum(1, keepdim=True)
        t = t + (mills.sum(1, keepdim=True) - t) / bend
    width, count = bend.rsqrt(), _NODES[a.dtype]
    s = torch.linspace(-_REACH, _REACH, count, dtype=a.dtype, device=a.device)
    t = t + width * torch.sinh(_STRETCH * s) / _STRETCH  # [n, q]
    above = log_ndtr(t[:, :, None] + lead[:, None, :])
    logs = torch.where(others[:, None, :], above, 0.0).sum(2) - 0.5 * t.square() + torch.cosh(_STRETCH * s).log()
    step = 2.0 * _REACH / (count - 1) / math.sqrt(2.0 * math.pi)
    return torch.logsumexp(logs, 1) + (width[:, 0] * step).log()


def log_ndtr(z: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """log Phi(z), three times as fast as torch's: by erfc, and far below 0 by its asymptotic series."""
    far = z < _FAR
    near = ndtr(torch.where(far, 0.0, z)).log()
    low = torch.where(far, z, _FAR)
    x = low.square().reciprocal()
    series = 1.0 - x * (1.0 - 3.0 * x * (1.0 - 5.0 * x * (1.0 - 7.0 * x * (1.0 - 9.0 * x))))
    below = -0.5 * low.square() + (series / (-low * math.sqrt(2.0 * math.pi))).log()
    return torch.where(far, below, near)


def probabilities_of_largest(a: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """P(a_k + e_k is the largest) for every k: all integrals on one grid, that of the largest number.

    The largest number is hardly ever below the largest mean by more than 7, nor above it. They sum to 1.
    """
    top = a.amax(1, keepdim=True)
    grid = torch.linspace(_BELOW, _ABOVE, _GRID, dtype=a.dtype, device=a.device)
    z = grid[:, None] + (top - a)[:, None, :]  # [n, q, k], from -7
    below = ndtr(z)
    each = (torch.exp(-0.5 * z.square()) * below.prod(2, keepdim=True) / below).sum(1)
    return each / each.sum(1, keepdim=True)


class ClassLikelihood(nn.Module):
    """The class of the largest of f_k + noise; the noise is N(0, 1), since only its size relative to f counts."""

    target = "class"
    one: Tensor

    def __init__(self, noise: float | None = 1.0, *, classes: int = 0) -> None:
        super().__init__()
        if not 2 <= classes <= MOST_CLASSES:
            raise InputError(
                f'likelihood "classes" is for 2 to {MOST_CLASSES} classes, got {classes}: it is what '
                "DeepBasisClassifier trains with; use that"
            )
        self.latents = 1 if classes == 2 else classes
        self.register_buffer("one", torch.ones((), device="cpu"), persistent=False)  # no file can have another

    def noise(self) -> Float[Tensor, ""]:
        return self.one

    def log_density(
        self, y: Float[Tensor, " b"], mean: Float[Tensor, "b l"], var: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """log P(y), for the numbers 0, 1, ... of classes."""
        return log_class(mean / (var + self.noise()).sqrt()[:, None], y)

    def expected_log_density(
        self, y: Float[Tensor, " b"], mean: Float[Tensor, "b l"], var: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        raise InputError("classes are trained by the probability of y: use the objective dppgp or ppgp, not the ELBO")

    def predictive(self, mean: Float[Tensor, "b l"], var: Float[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        """The latent numbers, noise included: their means, and the variance that they share."""
        return mean, var + self.noise()

    @staticmethod
    def distribution(*parts: Tensor) -> "Classes":
        means, variances = parts
        return Classes(means, variances) if means.dim() == 3 else Classes(means[None], variances[None])

    @staticmethod
    def starting_noise(variance_left: float) -> float:
        return 1.0


def log_class(a: Float[Tensor, "n l"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log P(y) from the means of the latent numbers in units of their standard deviation."""
    if a.shape[1] == 1:
        return log_ndtr(a[:, 0] * (2.0 * y - 1.0))
    return log_largest(a, y.long())


@dataclass(frozen=True)
class Classes(Predictive):
    """An ensemble's prediction of a class for each of n rows; the members count the same, or by weights that sum to 1.

    Where a `Predictive` takes a target, it is the number of a class: 0, 1, ...
    """

    means: Float[Tensor, "e n l"]
    """Of the latent numbers: one for two classes, otherwise one for each."""
    variances: Float[Tensor, "e n"]
    """Noise included."""
    weights: Float[Tensor, " e"] | None = None

    def __len__(self) -> int:
        return self.means.shape[1]

    def __getitem__(self, rows: Rows) -> "Classes":
        at = at_rows(rows, len(self))
        return Classes(self.means[:, at], self.variances[:, at], self.weights)

    def double(self) -> "Classes":
        return replace(self, means=self.means.double(), variances=self.variances.double())

    def followed_by(self, others: Sequence[Predictive]) -> "Classes":
        alike = [self, *(other for other in others if isinstance(other, Classes))]
        means, variances = zip(*((one.means, one.variances) for one in alike), strict=True)
        if len(alike) <= len(others) or len({(len(one), one.shape[2]) for one in means}) > 1:
            raise InputError("rows can only be followed by rows of one kind: some of these are of other classes")
        return replace(self, means=torch.cat(means, 1), variances=torch.cat(variances, 1))

    @property
    def shares(self) -> Float[Tensor, " e"]:
        """The weight of each member, in float64."""
        return shares_of(self.weights, self.means)

    @cached_property
    def probabilities(self) -> Float[Tensor, "n k"]:
        """Of every class, in float64."""
        at_a_time = max(1, _MOST_NUMBERS // (_GRID * self.means.shape[2]))
        total: Tensor | float = 0.0
        for share, means, variances in zip(self.shares, self.means.double(), self.variances.double(), strict=True):
            a = means / variances.sqrt()[:, None]
            if a.shape[1] == 1:
                found = ndtr(torch.cat([-a, a], 1))
            else:
                found = torch.cat([probabilities_of_largest(some) for some in a.split(at_a_time)])
            total = total + share * found
        assert isinstance(total, Tensor)  # there is a member
        return total

    def log_prob(self, y: Targets) -> Float[Tensor, " n"]:
        """The log of the probability of class y."""
        y = as_targets(y, self.variances[0]).to(self.means.dtype)
        logs = torch.stack([self._log_of_one(k, y) for k in range(len(self.means))])
        return torch.logsumexp(logs + self.shares.log()[:, None].to(logs.dtype), 0)

    def _log_of_one(self, member: int, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        a = self.means[member] / self.variances[member].sqrt()[:, None]
        at_a_time = max(1, _MOST_NUMBERS // (max(_NODES.values()) * a.shape[1]))
        return torch.cat([log_class(*some) for some in zip(a.split(at_a_time), y.split(at_a_time), strict=True)])
