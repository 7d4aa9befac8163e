"""Likelihoods p(y | f): what a target is, given the value f of the function.

A likelihood is a module for one model and one batch, without a Python branch on a tensor's value, so that it can be
stacked, compiled and captured. A new one is a class and a registration: see CONTRIBUTING.md.
"""

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from deepbasis.errors import check_choice, check_number
from deepbasis.gp.predictive import Gaussian, GaussianMixture, Predictive, gaussian_nll

NOISE_FLOOR = 1e-6
"""Appendix B: sigma_eps^2 is "constrained to be no smaller than 1e-6"."""

Target = Shaped[Tensor, "b *k"]
"""Of each row of a batch: a number [b], or whatever the likelihood takes."""
Moments = Float[Tensor, " b"]
"""Means or variances of f, row by row."""


@runtime_checkable
class Likelihood(Protocol):
    """Made as `cls(noise=...)`, where `noise` is what it starts from."""

    target: str
    """The kind of target that it takes: "number" or "class". One with a number `latents` has so many functions f: means
    are then [b, latents], and the variance is that of each; with `own_covariances` variances are [b, latents], too."""

    def noise(self) -> Float[Tensor, ""]:
        """The variance that the trace regulariser is measured in: sigma_eps^2 of a Gaussian."""

    def log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """log E p(y | f) for f ~ N(mean, var): the fit of Eq. 6 and 15."""

    def expected_log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """E log p(y | f) for f ~ N(mean, var): the fit of Eq. 5."""

    def predictive(self, mean: Moments, var: Moments) -> tuple[Tensor, ...]:
        """What the distribution of y is made of, for f ~ N(mean, var): tensors with a row for each of the batch."""

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        """The distribution of y from such tensors: of one model, [n, ...], or of an ensemble, [E, n, ...]."""

    @staticmethod
    def starting_noise(variance_left: float) -> float:
        """A noise to start from, where a straight line leaves this much of the target's variance."""


class GaussianLikelihood(nn.Module):
    """y ~ N(f, sigma_eps^2), with a noise variance no smaller than its floor.

    NOTE[GAP]: the paper does not say how it is parameterised, and it matters more than anything else that the paper
    leaves open. "log": floor + exp(raw), the default. "clamp": the variance itself, cut off at the floor; its gradient
    is zero once it is below, so it stays there.

    Without a `noise` it is not known yet, which is NaN: a loss that does not learn it leaves it at that.
    """

    target = "number"

    def __init__(
        self, noise: float | None = 1e-2, *, floor: float = NOISE_FLOOR, parameterisation: str = "log"
    ) -> None:
        super().__init__()
        self.floor = check_number("noise floor", floor, at_least=0.0)
        self.parameterisation = check_choice("noise parameterisation", parameterisation, {"log", "clamp"})
        self.raw = nn.Parameter(torch.tensor(math.nan))
        if noise is not None:
            self.set_noise(noise)

    @torch.no_grad()
    def set_noise(self, noise: float) -> None:
        noise = check_number("noise", noise, above=self.floor)
        self.raw.fill_(math.log(noise - self.floor) if self.parameterisation == "log" else noise)

    def noise(self) -> Float[Tensor, ""]:
        if self.parameterisation == "log":
            return self.floor + self.raw.exp()
        return self.raw.clamp_min(self.floor)

    def log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """log N(y; mean, var + s)"""
        return -gaussian_nll(y, mean, var + self.noise())

    def expected_log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """log N(y; mean, s) - var / (2 s)"""
        s = self.noise()
        return -gaussian_nll(y, mean, s) - var / (2.0 * s)

    def curvature(self, var: Moments) -> Moments:
        """1 / (var + s): of -`log_density` in the mean; of an interval of y it is the bound, reached far from it."""
        return 1.0 / (var + self.noise())

    def predictive(self, mean: Moments, var: Moments) -> tuple[Moments, Moments]:
        """N(mean, var + s), by its mean and variance."""
        return mean, var + self.noise()

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        return Gaussian(*parts) if parts[0].dim() == 1 else GaussianMixture(*parts)

    @staticmethod
    def starting_noise(variance_left: float) -> float:
        """Half of it. A network leaves less than a linear function does; how much less is not known yet.

        NOTE[DIFF]: the paper starts at 0.01 whatever the data.
        """
        return min(max(0.5 * variance_left, 1e-4), 0.5)
