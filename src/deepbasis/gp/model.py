"""`DeepBasisGP`: backbone, expansion, q(w), likelihood and a mean, put together (Eq. 8)."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from deepbasis.errors import InputError, NumericalError, check_positive_int
from deepbasis.gp.backbone import Identity
from deepbasis.gp.expansion import Features
from deepbasis.gp.likelihoods import GaussianLikelihood, Likelihood, Target
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from deepbasis.gp.precision import full_product
from deepbasis.gp.predictive import Predictive


class Terms(NamedTuple):
    """Everything that an objective or a prediction needs to know about a batch."""

    mean: Float[Tensor, "b *l"]
    """Of f, or of each of l functions."""
    var: Float[Tensor, "b *k"]
    """Variance of f under q(w), without the correction and without the noise: ||L^T phi(x)||^2. One for each function
    where these have a q(w) each."""
    prior_var: Float[Tensor, " b"]
    """k(x, x) = ||phi(x)||^2."""
    correction: Float[Tensor, " b"]
    """k~(x, x) - ||phi(x)||^2 >= 0 of Eq. 4; zero for a basis without a full kernel behind it."""
    kl: Float[Tensor, ""]
    info: Int[Tensor, ""]
    """Not 0 if a factorisation failed; everything else is then NaN."""

    @property
    def corrected_var(self) -> Float[Tensor, "b *k"]:
        return self.var + (self.correction if self.var.dim() == 1 else self.correction[:, None])


NO_RESIDUAL_VARIANCE = (
    "a model with point weights (a DNN) has no variance of its own: before it predicts a distribution, give it that of "
    "its residuals on rows that it was not trained on, model.set_residual_variance(...); model(x).mean needs none"
)


class DeepBasisGP(nn.Module):
    """A Gaussian process with the kernel k(x, x') = <phi(x), phi(x')>, phi = expansion o backbone (Eq. 8).

    `posterior` is q(w): what training fits, or what `exact.fit_posterior` gives in closed form. `build` makes a
    model of the paper by its name. With `corrected` its predictions carry the variance correction of Eq. 4.

    The prior mean is a trained constant; with a `slope` [d], which is not trained, it is a straight line.
    NOTE[DIFF]: the paper's is a constant. A network that ends in a norm is bounded, so a basis made from it cannot
    follow a line beyond the rows.
    """

    slope: Float[Tensor, " d"] | None

    def __init__(
        self,
        backbone: nn.Module,
        expansion: nn.Module,
        posterior: WeightPosterior | PointWeights,
        likelihood: Likelihood,
        slope: Float[Tensor, " d"] | None = None,
        *,
        corrected: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.expansion = expansion
        self.posterior: WeightPosterior | PointWeights = posterior
        self.likelihood: Likelihood = likelihood
        self.corrected = corrected
        latents = getattr(likelihood, "latents", 0)
        self.mean = nn.Parameter(torch.zeros(latents) if latents else torch.zeros(()))
        self.register_buffer("slope", slope)

    def noise(self) -> Float[Tensor, ""]:
        """sigma_eps^2."""
        return self.likelihood.noise()

    def features(self, x: Float[Tensor, "b d"]) -> Features:
        features: Features = self.expansion(self.backbone(x))
        return features

    def basis(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b r"]:
        return self.features(x).phi

    def kernel(self, x: Float[Tensor, "a d"], x2: Float[Tensor, "b d"] | None = None) -> Float[Tensor, "a b"]:
        """Eq. 8, without the noise."""
        phi = self.basis(x)
        return phi @ (phi if x2 is None else self.basis(x2)).mT

    def prior_mean(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "*l"]:
        """The mean of f before any row is seen: a number, or one for each row, or one for each function."""
        if self.slope is None:
            return self.mean
        # In full precision: the target that it is taken from is, too.
        return self.mean + full_product(x, self.slope.to(x.dtype)[:, None])[:, 0]

    def forward(self, x: Float[Tensor, "b d"]) -> Terms:
        return self.terms(x, self.features(x))

    def terms(self, x: Float[Tensor, "b d"], features: Features) -> Terms:
        phi, prior_var, correction, info = features
        mean, var = self.posterior(phi)
        return Terms(self.prior_mean(x) + mean, var, prior_var, correction, self.posterior.kl(), info)

    def mean_at(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """The mean of f alone, as in `forward`; of several functions, of the first."""
        m = self.posterior.m
        return self._first_mean(x) + (self.basis(x) * (m if m.dim() == 1 else m[0])).sum(-1)

    def _first_mean(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "*b"]:
        return self.mean[0] if self.mean.dim() else self.prior_mean(x)

    def covariance(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b b"]:
        """Of f between rows under q(w), with what the basis misses of the full kernel if `corrected` (Eq. 4)."""
        g, expansion = self.backbone(x), cast(Any, self.expansion)
        phi = expansion(g).phi
        found = self.posterior.covariance(phi)
        return found + (expansion.kernel(g, g) - phi @ phi.mT) if self.corrected else found

    def predictive(self, terms: Terms) -> tuple[Tensor, ...]:
        """Algorithms 2 and 4: what `likelihood.distribution` is made of, with the correction of Eq. 4 if `corrected`.

        This is the one rule for the distribution of y. It looks at no value: stacked members follow it too.
        """
        return self.likelihood.predictive(terms.mean, self._variance(terms))

    def log_density(self, terms: Terms, y: Target) -> Float[Tensor, " b"]:
        """Of y, by the same rule."""
        return self.likelihood.log_density(y, terms.mean, self._variance(terms))

    def curvature(self, terms: Terms) -> Float[Tensor, "b *m"]:
        """A bound on that of -`log_density` in the mean, for a likelihood that has one; of a Gaussian it is exact."""
        found: Tensor = cast(Any, self.likelihood).curvature(self._variance(terms))
        return found

    def _variance(self, terms: Terms) -> Float[Tensor, "b *k"]:
        return terms.corrected_var if self.corrected else terms.var

    def predict(self, x: Float[Tensor, "b d"]) -> Predictive:
        """The distribution of y for each row."""
        terms = self(x)
        if int(terms.info):
            raise NumericalError(
                f"the kernel matrix of the inducing points could not be factorised (pivot {int(terms.info)}); "
                "their locations or lengthscales are not finite or too large: train again with a larger jitter"
            )
        if isinstance(self.posterior, PointWeights) and bool(self.noise().isnan()):
            raise InputError(NO_RESIDUAL_VARIANCE)
        return self.likelihood.distribution(*self.predictive(terms))

    def set_residual_variance(self, variance: float) -> None:
        """The noise of a model whose loss does not learn one (a DNN): the variance of its residuals on other rows."""
        if not isinstance(self.likelihood, GaussianLikelihood):
            raise InputError(f"a residual variance is for a Gaussian likelihood, not {type(self.likelihood).__name__}")
        self.likelihood.set_noise(max(variance, 2.0 * self.likelihood.floor))

    def parameter_groups(self) -> dict[str, str]:
        """The group of each parameter: "network", "hidden", "posterior", "likelihood", "kernel", or "plain".

        A group may have a learning rate of its own. "hidden" are the matrices inside the network's blocks, which Muon
        may step. Weight decay is for the network alone (Appendix B), without its embedding, whose parameters are
        frequencies. NOTE[GAP]: the paper decays "the backbone network parameters" and not the kernel's. The weights of
        a SiLU expansion are the kernel's, and a DNN's last layer comes after the backbone: neither is decayed.
        """
        kernel = {f"expansion.{name}" for name in getattr(self.expansion, "kernel_parameters", ())}
        groups = {"backbone.embedding": "plain", "backbone": "network"}
        groups |= {name: name for name in ("posterior", "likelihood")}

        def group(name: str, parameter: Tensor) -> str:
            if name.startswith("backbone.blocks.") and parameter.dim() == 2:
                return "hidden"
            of_part = (group for part, group in groups.items() if name.startswith(f"{part}."))
            return "kernel" if name in kernel else next(of_part, "plain")

        return {name: group(name, parameter) for name, parameter in self.named_parameters()}

    def start_at(self, x: Float[Tensor, "n d"], generator: torch.Generator) -> None:
        """Let the parts start from rows that can: an embedding, and the expansion of a shallow kernel.

        The expansion behind a network does not: what it sees moves as the network is trained.
        """
        expansion = self.expansion if isinstance(self.backbone, Identity) else None
        for part in (getattr(self.backbone, "embedding", None), expansion):
            start: Any = getattr(part, "start_at", None)
            if start is not None:
                start(x, generator)

    def sample_functions(
        self, count: int, *, prior: bool = False, generator: torch.Generator | None = None
    ) -> Callable[[Float[Tensor, "b d"]], Float[Tensor, "s b"]]:
        """Draws of f from q(w), or from the prior w ~ N(0, I): x -> f(x) = mean(x) + <w, phi(x)>, one row per draw.

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
                return self._first_mean(x) + w @ self.basis(x).mT

        return functions
