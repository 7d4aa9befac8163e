"""Learning on: rows that come after a fit move q(w); the basis, the noise and the prior mean stay as they are.

Two cases, by what q(w) is:

- The posterior under a Gaussian likelihood (exact training, or the ELBO): the sums of Eq. 10 go on over the new rows,
  and q(w) is the posterior given all of them.
- Anything else. Under dPPGP the covariance of q(w) also models noise that depends on the input. Precision added to it
  would make that noise vanish: it stays. The mean moves. Where the gradient of Eq. 15 in m is zero, v being the
  predicted variance and a sum being over rows,

      (sum phi phi^T / v + beta I) m = sum phi y / v,

  so m goes on as in least squares with a weight of 1 / v a row, from the m that training has found. Of a likelihood
  that is not Gaussian y is the working response of a Newton step, with a bound on the curvature in place of 1 / v.

Of several outputs each has sums of its own, [m, r, r] and [m, r], and learns by itself.

NOTE[DIFF]: the paper fits once.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp import exact
from deepbasis.gp.exact import Statistics, Weight
from deepbasis.gp.likelihoods import GaussianLikelihood, Target
from deepbasis.gp.model import DeepBasisGP, Terms
from deepbasis.gp.posterior import WeightPosterior

LARGEST_SUM = 1e30
"""No sum over rows comes near it: the curvature of a row is at most 10^6, and a basis function of order 1."""

_LEAST_RIDGE = 1e-8  # of the mean diagonal of the sums, where beta is smaller


def is_posterior(model: DeepBasisGP, objective: str) -> bool:
    """Whether q(w) is the posterior, or was trained to be it, so that its covariance may learn too."""
    gaussian = GaussianLikelihood.expected_log_density
    conjugate = getattr(type(model.likelihood), "expected_log_density", None) is gaussian or _separable(model)
    return objective in ("mml", "elbo") and conjugate and isinstance(model.posterior, WeightPosterior)


def learns(model: DeepBasisGP) -> bool:
    """Whether its likelihood says how: it bounds its curvature, and has one function, or several that are separate."""
    several = getattr(model.likelihood, "latents", 0) and not _separable(model)
    return hasattr(model.likelihood, "curvature") and not several


def _separable(model: DeepBasisGP) -> bool:
    return getattr(model.likelihood, "separable", False)


def check_learns(model: DeepBasisGP) -> None:
    if not learns(model):
        name = type(model.likelihood).__name__
        raise InputError(f"{name} does not say how to take in more rows: train the model again with all of them")


# ---- what rows say ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def look(
    model: DeepBasisGP, x: Float[Tensor, "b d"], y: Target, weight: Weight = None, *, posterior: bool
) -> tuple[Terms, Statistics]:
    """What the model says of rows, and the sums that it learns from them. `posterior`: whether q(w) is one."""
    features = model.features(x)
    terms = model.terms(x, features)
    if posterior:
        return terms, _sums(features.phi, y - model.prior_mean(x), None, weight)
    curvature = model.curvature(terms)
    response = terms.mean - model.prior_mean(x) + _slope(model, terms, y) / curvature
    return terms, _sums(features.phi, response, curvature, weight)


def _sums(phi: Tensor, y: Float[Tensor, "b *m"], curvature: Float[Tensor, "b *m"] | None, weight: Weight) -> Statistics:
    """Over rows that count for their curvature times their weight; of several outputs, of each."""
    if y.dim() > 1:
        columns = [None] * y.shape[1] if curvature is None else curvature.unbind(1)
        each = (_sums(phi, own, c, weight) for own, c in zip(y.unbind(1), columns, strict=True))
        return Statistics(*map(torch.stack, zip(*each, strict=True)))
    if curvature is not None:
        weight = curvature if weight is None else weight * curvature
    return exact.statistics(phi, y, weight)


def _slope(model: DeepBasisGP, terms: Terms, y: Target) -> Float[Tensor, "b *m"]:
    """d log p(y) / d mean: of a Gaussian (y - mean) / v."""
    with torch.enable_grad():
        mean = terms.mean.detach().requires_grad_()
        density = model.log_density(terms._replace(mean=mean), y)
        (slope,) = torch.autograd.grad(density.sum(), mean)
    return slope


@torch.no_grad()
def of_fit(model: DeepBasisGP, x: Float[Tensor, "b d"], weight: Weight = None) -> Statistics:
    """Of rows that the model was trained on: as if each said what the model says already."""
    features = model.features(x)
    terms = model.terms(x, features)
    curvature = model.curvature(terms)
    return _sums(features.phi, terms.mean - model.prior_mean(x), curvature, weight)


@torch.no_grad()
def start(model: DeepBasisGP, found: Statistics, beta: float) -> Statistics:
    """What `of_fit` gave, with what the prior takes away from it: these sums lead to the m that training has found."""
    ridge = _ridge(model, found, beta, posterior=False)
    return found._replace(projection=found.projection + ridge[..., None] * model.posterior.m.double())


@torch.no_grad()
def start_from(model: DeepBasisGP) -> Statistics:
    """The sums that have q(w) = N(m, L L^T) for their posterior: L L^T = s (gram + s I)^-1. Of how many rows, it cannot
    say."""
    q, s = model.posterior, _noise(model)
    assert isinstance(q, WeightPosterior)  # see `is_posterior`
    eye = torch.eye(q.rank, dtype=torch.float64, device=s.device)
    root = torch.linalg.solve_triangular(q.L().double(), eye, upper=False)
    of_each = s[..., None, None]
    Lambda = of_each * (root.mT @ root)
    return Statistics(Lambda - of_each * eye, (Lambda * q.m.double()[..., None, :]).sum(-1), torch.zeros_like(s))


# ---- what follows from it --------------------------------------------------------------------------------------------


@torch.no_grad()
def moved(model: DeepBasisGP, total: Statistics, beta: float, *, posterior: bool) -> DeepBasisGP:
    """A copy of the model with the q(w) of these sums."""
    ridge = _ridge(model, total, beta, posterior=posterior)
    each, ridges = ([total], [ridge]) if not ridge.dim() else (map(Statistics._make, zip(*total, strict=True)), ridge)
    solutions = [exact.solve(own, r) for own, r in zip(each, ridges, strict=True)]
    if any(int(one.info) or not bool(one.w.isfinite().all()) for one in solutions):
        raise NumericalError("the new rows and those of the fit have no common solution: fit the model again")
    found = deepcopy(model)
    w, covariance = (
        torch.stack(parts).reshape(*ridge.shape, *parts[0].shape)
        for parts in zip(*((one.w, r * one.Lambda_inv) for one, r in zip(solutions, ridges, strict=True)), strict=True)
    )
    if posterior:
        assert isinstance(found.posterior, WeightPosterior)  # see `is_posterior`
        found.posterior.set_(w, covariance)
    else:
        found.posterior.m.copy_(w)
    return found


def _noise(model: DeepBasisGP) -> Float[Tensor, "*m"]:
    """That of each output, where there are several."""
    return (cast(Any, model.likelihood).noises() if _separable(model) else model.noise()).double()


def _ridge(model: DeepBasisGP, total: Statistics, beta: float, *, posterior: bool) -> Float[Tensor, "*m"]:
    """What the prior w ~ N(0, I) adds to the sums: the noise, or the weight of the KL divergence."""
    if posterior:
        return _noise(model)
    return (_LEAST_RIDGE * total.gram.diagonal(dim1=-2, dim2=-1).mean(-1)).clamp_min(beta)


# ---- the file --------------------------------------------------------------------------------------------------------


def in_bounds(found: Statistics) -> bool:
    return all(bool((part.abs() <= LARGEST_SUM).all()) for part in found)


def packed(found: Statistics) -> dict[str, Tensor]:
    """The lower triangle of the symmetric `gram`, row by row, and the rest as it is."""
    rows, columns = torch.tril_indices(*found.gram.shape[-2:])
    return {**found._asdict(), "gram": found.gram[..., rows, columns]}


def unpacked(found: Mapping[str, Tensor], rank: int, outputs: int = 0) -> Statistics:
    """What `packed` gave, of a model of this rank and so many outputs; anything else is a `ValueError`."""
    several = (outputs,) * (outputs > 0)
    shapes = {"gram": (*several, rank * (rank + 1) // 2), "projection": (*several, rank), "n": several}
    if {name: tuple(part.shape) for name, part in found.items()} != shapes:
        raise ValueError("the sums over its rows have other parts or sizes")
    if any(part.dtype != torch.float64 for part in found.values()):
        raise ValueError("the sums over its rows are not of float64")
    gram = torch.zeros(*several, rank, rank, dtype=torch.float64)
    rows, columns = torch.tril_indices(rank, rank)
    gram[..., rows, columns] = gram[..., columns, rows] = found["gram"]
    made = Statistics(gram, found["projection"], found["n"])
    if not in_bounds(made) or not bool((made.n >= 0).all()):
        raise ValueError(f"the sums over its rows are not finite, or beyond {LARGEST_SUM:g}, or of less than no rows")
    return made
