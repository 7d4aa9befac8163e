"""`DeepBasisGP`: backbone, expansion, q(w), noise and a mean, put together (Eq. 8)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from deepbasis.errors import check_choice, check_number, check_positive_int
from deepbasis.gp.expansion import Features
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from deepbasis.gp.precision import full_product

NOISE_FLOOR = 1e-6
"""Appendix B: sigma_eps^2 is "constrained to be no smaller than 1e-6"."""


class Terms(NamedTuple):
    """All that an objective or a prediction needs of a batch."""

    mean: Float[Tensor, " b"]
    var: Float[Tensor, " b"]
    """Variance of f under q(w), without the correction and without the noise: ||L^T phi(x)||^2."""
    prior_var: Float[Tensor, " b"]
    """k(x, x) = ||phi(x)||^2."""
    correction: Float[Tensor, " b"]
    """k~(x, x) - ||phi(x)||^2 >= 0 of Eq. 4; zero for a basis without a full kernel behind it."""
    noise: Float[Tensor, ""]
    """sigma_eps^2."""
    kl: Float[Tensor, ""]
    info: Int[Tensor, ""]
    """Not 0 if a factorisation failed; everything else is then NaN."""


class Noise(nn.Module):
    """The noise variance sigma_eps^2, no smaller than its floor.

    NOTE[GAP]: the paper does not say how it is parameterised, and it matters more than anything else that is unsaid.
    "log": floor + exp(raw), the default. "clamp": the variance itself, cut off at the floor; its gradient is zero once
    it is below, so it stays there.
    """

    def __init__(self, initial: float = 1e-2, *, floor: float = NOISE_FLOOR, parameterisation: str = "log") -> None:
        super().__init__()
        self.floor = check_number("noise floor", floor, at_least=0.0)
        initial = check_number("noise", initial, above=self.floor)
        self.parameterisation = check_choice("noise parameterisation", parameterisation, {"log", "clamp"})
        raw = math.log(initial - self.floor) if parameterisation == "log" else initial
        self.raw = nn.Parameter(torch.tensor(raw))

    def forward(self) -> Float[Tensor, ""]:
        if self.parameterisation == "log":
            return self.floor + self.raw.exp()
        return self.raw.clamp_min(self.floor)


class DeepBasisGP(nn.Module):
    """A Gaussian process with the kernel k(x, x') = <phi(x), phi(x')>, phi = expansion o backbone (Eq. 8).

    `posterior` is q(w): what training fits, or what `exact.fit_posterior` gives in closed form. `build` makes a
    model of the paper by its name.

    The prior mean is a constant, which is trained, or with a `slope` [d], which is not, a straight line.
    NOTE[DIFF]: the paper's is a constant. A network that ends in a norm is bounded, and a basis of it cannot go on
    along a line where the rows end.
    """

    slope: Float[Tensor, " d"] | None

    def __init__(
        self,
        backbone: nn.Module,
        expansion: nn.Module,
        posterior: WeightPosterior | PointWeights,
        noise: Noise,
        slope: Float[Tensor, " d"] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.expansion = expansion
        self.posterior: WeightPosterior | PointWeights = posterior
        self.noise = noise
        self.mean = nn.Parameter(torch.zeros(()))
        self.register_buffer("slope", slope)

    def features(self, x: Float[Tensor, "b d"]) -> Features:
        features: Features = self.expansion(self.backbone(x))
        return features

    def basis(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b r"]:
        return self.features(x).phi

    def kernel(self, x: Float[Tensor, "a d"], x2: Float[Tensor, "b d"] | None = None) -> Float[Tensor, "a b"]:
        """Eq. 8, without the noise."""
        phi = self.basis(x)
        return phi @ (phi if x2 is None else self.basis(x2)).mT

    def prior_mean(self, x: Float[Tensor, "b d"]) -> Float[Tensor, ""] | Float[Tensor, " b"]:
        """The mean of f before any row is seen: a number, or one for each row."""
        if self.slope is None:
            return self.mean
        # In full precision: the target that it is taken from is, too.
        return self.mean + full_product(x, self.slope.to(x.dtype)[:, None])[:, 0]

    def forward(self, x: Float[Tensor, "b d"]) -> Terms:
        phi, prior_var, correction, info = self.features(x)
        mean, var = self.posterior(phi)
        return Terms(self.prior_mean(x) + mean, var, prior_var, correction, self.noise(), self.posterior.kl(), info)

    def sample_functions(
        self, count: int, *, prior: bool = False, generator: torch.Generator | None = None
    ) -> Callable[[Float[Tensor, "b d"]], Float[Tensor, "s b"]]:
        """Draws of f from q(w), or from the prior w ~ N(0, I): x -> f(x) = mean(x) + <w, phi(x)>, one row a draw.

        The weights are drawn once, so the functions are the same ones at every call, and smooth where phi is. They are
        draws of f, without noise and without the correction of Eq. 4, which has no weights behind it.
        """
        check_positive_int("count", count)
        with torch.no_grad():
            w = self.posterior.sample(count, generator)
            if prior:
                w = torch.randn(w.shape, dtype=w.dtype, device=w.device, generator=generator)

        def functions(x: Float[Tensor, "b d"]) -> Float[Tensor, "s b"]:
            with torch.no_grad():
                return self.prior_mean(x) + w @ self.basis(x).mT

        return functions
