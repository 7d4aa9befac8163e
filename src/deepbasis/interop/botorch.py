"""BoTorch: a fit as a `Model`, for Bayesian optimisation."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor

from deepbasis.errors import InputError, NumericalError
from deepbasis.fitting.distance import check_none
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.interop.encoding import NumberEncoding, number_columns

try:
    from botorch.models.model import FantasizeMixin, Model
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from gpytorch.constraints import GreaterThan
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.likelihoods import GaussianLikelihood as GaussianNoise
    from linear_operator import to_linear_operator
except ModuleNotFoundError:
    raise ModuleNotFoundError("deepbasis.interop.botorch needs BoTorch: pip install 'deepbasis[botorch]'") from None


class DeepBasisModel(Model, FantasizeMixin):
    """The function that a fit has found, with the joint distribution of several points, in the target's units.

    It takes the columns of the fit, numbers all, as tensors [..., q, d], and has one output; `ModelList` puts several
    together. Members are put together as in `predict(X, return_cov=True)`: the mean of their covariances, times the
    mean scale of the calibration, and the covariance of their means. Everything is float64 and differentiable in X.

    Conditioning is that of Gaussian processes, in closed form and for each member: what the fit has left uncertain is
    the prior, members keep equal shares, and nothing is trained. If q(w) is exact (a fit with objective="mml"), that is
    the posterior of all rows together.
    """

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        check_none(fitted.distance, "a BoTorch model")
        if fitted.target.warp is not None or type(fitted.models[0].likelihood) is not GaussianLikelihood:
            raise InputError(
                f"BoTorch needs a Gaussian target that is not transformed, and this one is {fitted.target.name!r} "
                f"with {type(fitted.models[0].likelihood).__name__}: fit with target='identity'"
            )
        self.encoding = NumberEncoding(number_columns(fitted.preprocessor, "a BoTorch model")[1])
        self.members = torch.nn.ModuleList(deepcopy(model).cpu().double() for model in fitted.models)
        self.members.requires_grad_(False)
        self.target_mean, self.target_scale = fitted.target.mean, fitted.target.scale
        self.wider = 1.0 if fitted.calibration is None else fitted.calibration.mean_scale
        noise = torch.stack([model.noise() for model in fitted.models]).mean().double() * self.wider
        self.likelihood = GaussianNoise(noise_constraint=GreaterThan(0.0)).double()  # where BoTorch looks for the noise
        self.likelihood.noise = noise * self.target_scale**2
        self.likelihood.requires_grad_(False)
        self.observed: tuple[Tensor, Tensor] | None = None

    @property
    def num_outputs(self) -> int:
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        if self.observed is None:
            return torch.Size()
        X, y = self.observed
        return torch.broadcast_shapes(X.shape[:-2], y.shape[:-1])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Of X [..., q, d]: jointly Gaussian over the q points."""
        if isinstance(observation_noise, Tensor):
            raise InputError("observation_noise must be True or False: the fit has found the noise")
        mean, covariance = self._moments(self.transform_inputs(X).double(), observation_noise)
        found = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))
        return found if posterior_transform is None else posterior_transform(found)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> DeepBasisModel:
        """A model that has seen Y [..., n, 1] at X [..., n, d] too; this one stays as it is."""
        if kwargs.get("noise") is not None:
            raise InputError("noise cannot be given: the fit has found it")
        if Y.shape[-2:] != (X.shape[-2], 1):
            raise InputError(f"Y must be [..., {X.shape[-2]}, 1] for X {list(X.shape)}, got {list(Y.shape)}")
        X, y = X.double(), Y[..., 0].double()
        if self.observed is not None:
            X, y = _appended(self.observed[0], X, 2), _appended(self.observed[1], y, 1)
        found = copy(self)
        found.observed = X, y
        return found

    def _moments(self, X: Tensor, noisy: bool) -> tuple[Tensor, Tensor]:
        """Mean [..., q] and covariance [..., q, q] of the mixture of members."""
        q = X.shape[-2]
        seen = None
        if self.observed is not None:
            shape = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
            there, y = self.observed
            X = _appended(there, X, 2).expand(*shape, -1, -1)
            seen = (y.expand(*shape, -1) - self.target_mean) / self.target_scale
        each: Any = self.members
        members = [self._member(model, X, seen, q, noisy) for model in each]
        means, covariances = (torch.stack(parts) for parts in zip(*members, strict=True))
        away = means - means.mean(0)
        covariance = self.wider * covariances.mean(0) + (away[..., :, None] * away[..., None, :]).mean(0)
        return means.mean(0) * self.target_scale + self.target_mean, covariance * self.target_scale**2

    def _member(self, model: DeepBasisGP, X: Tensor, seen: Tensor | None, q: int, noisy: bool) -> tuple[Tensor, Tensor]:
        """Of the last q points, given the targets of those before them."""
        x = self.encoding(X.reshape(-1, X.shape[-1]))
        mean = model.mean_at(x).reshape(X.shape[:-1])
        covariance = torch.vmap(model.covariance)(x.reshape(-1, X.shape[-2], x.shape[-1]))
        covariance = covariance.reshape(*X.shape[:-1], X.shape[-2])
        noise = model.noise()
        if seen is not None:
            n = X.shape[-2] - q
            eye = torch.eye(n, dtype=x.dtype)
            root, info = torch.linalg.cholesky_ex(covariance[..., :n, :n] + noise * eye)
            if bool(info.any()):
                raise NumericalError("the covariance of the new observations could not be factorised: leave out copies")
            cross = torch.linalg.solve_triangular(root, covariance[..., :n, n:], upper=False)
            residual = torch.linalg.solve_triangular(root, (seen - mean[..., :n])[..., None], upper=False)
            mean = mean[..., n:] + (cross.mT @ residual)[..., 0]
            covariance = covariance[..., n:, n:] - cross.mT @ cross
        return mean, covariance + noise * torch.eye(q, dtype=x.dtype) if noisy else covariance


def _appended(first: Tensor, second: Tensor, inner: int) -> Tensor:
    """Points after points, with a common batch; `inner` is the number of dimensions that are not of the batch."""
    shape = torch.broadcast_shapes(first.shape[:-inner], second.shape[:-inner])
    parts = (one.expand(*shape, *one.shape[-inner:]) for one in (first, second))
    return torch.cat(list(parts), -inner)
