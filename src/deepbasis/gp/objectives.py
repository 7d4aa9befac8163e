"""The mini-batch objectives: free functions of a model and a batch, to be minimised (Eq. 5, 6, 15).

All have the same arguments, in the same order, and each takes what it needs. `n` is the number of training rows and
`weight` a weight per row: every mean over the batch is then sum(w l) / sum(w), and a row of weight 0 is as good as
absent. `whole` is for rows that are only a part of the batch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.gp.likelihoods import Target
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import Weight

Scalar = int | float | Float[Tensor, ""]


class Whole(NamedTuple):
    """A whole batch of which these rows are one of K parts. The mean of the parts' objectives is that of the whole."""

    weight: Float[Tensor, ""]
    """The sum of the weights of all its rows, divided by K."""
    largest: Callable[[Tensor], Tensor]
    """From the part's maximum to that of all parts, with its gradient."""


def weighted_mean(values: Float[Tensor, " b"], weight: Weight = None, whole: Whole | None = None) -> Float[Tensor, ""]:
    if whole is None:
        return values.mean() if weight is None else (weight * values).sum() / weight.sum()
    return (values if weight is None else weight * values).sum() / whole.weight


def elbo(
    model: DeepBasisGP,
    x: Float[Tensor, "b d"],
    y: Target,
    n: Scalar,
    alpha: Scalar = 0.0,
    beta: Scalar = 1.0,
    weight: Weight = None,
    whole: Whole | None = None,
) -> Float[Tensor, ""]:
    """Eq. 5, -ELBO / n: SVGP, and VBLL for a basis without a correction. It has neither an alpha nor a beta."""
    t = model(x)
    log_density = model.likelihood.expected_log_density(y, t.mean, t.corrected_var)
    return t.kl / n - weighted_mean(log_density, weight, whole)


def ppgp(
    model: DeepBasisGP,
    x: Float[Tensor, "b d"],
    y: Target,
    n: Scalar,
    alpha: Scalar = 0.0,
    beta: Scalar = 1.0,
    weight: Weight = None,
    whole: Whole | None = None,
) -> Float[Tensor, ""]:
    """Eq. 6: the predictive likelihood, with the corrected variance. It has no alpha."""
    t = model(x)
    log_density = model.likelihood.log_density(y, t.mean, t.corrected_var)
    return beta / n * t.kl - weighted_mean(log_density, weight, whole)


def dppgp(
    model: DeepBasisGP,
    x: Float[Tensor, "b d"],
    y: Target,
    n: Scalar,
    alpha: Scalar,
    beta: Scalar,
    weight: Weight = None,
    whole: Whole | None = None,
    *,
    through_maximum: bool = True,
) -> Float[Tensor, ""]:
    """Eq. 15: the fit uses the uncorrected variance; an in-batch trace regulariser stands in for the correction.

    NOTE[GAP]: the paper does not say whether the gradient passes through the trace's maximum. Here it does;
    `through_maximum=False` (the objective "dppgp-detached") stops it.
    """
    t = model(x)
    log_density = model.likelihood.log_density(y, t.mean, t.var)
    fit = weighted_mean(log_density, weight, whole)
    if isinstance(alpha, int | float) and alpha == 0:
        return beta / n * t.kl - fit
    regulariser = trace(t.prior_var, weight, whole, through_maximum=through_maximum) / (2.0 * model.noise())
    return alpha * regulariser + beta / n * t.kl - fit


dppgp_detached = partial(dppgp, through_maximum=False)


def trace(
    prior_var: Float[Tensor, " b"], weight: Weight = None, whole: Whole | None = None, *, through_maximum: bool = True
) -> Float[Tensor, ""]:
    """The in-batch trace regulariser, before it is divided by the noise: mean of max ||phi||^2 - ||phi(x)||^2."""
    present = prior_var if weight is None else torch.where(weight > 0, prior_var, -math.inf)
    largest = present.max() if through_maximum else present.max().detach()
    if whole is not None:
        largest = whole.largest(largest)
    return weighted_mean(largest - prior_var, weight, whole)


def mse(
    model: DeepBasisGP,
    x: Float[Tensor, "b d"],
    y: Target,
    n: Scalar = 1.0,
    alpha: Scalar = 0.0,
    beta: Scalar = 0.0,
    weight: Weight = None,
    whole: Whole | None = None,
) -> Float[Tensor, ""]:
    """The DNN's loss, of the errors only."""
    return weighted_mean((y - model(x).mean).square(), weight, whole)
