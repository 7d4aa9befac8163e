"""Exact inference in O(n r^2): marginal likelihood (Eq. 11), its chunked gradient, closed-form posterior (Eq. 10).

With Sigma = Phi Phi^T + s I (n x n, never formed), Lambda = Phi^T Phi + s I (r x r), s = sigma_eps^2, and the
posterior mean w = Lambda^-1 Phi^T y, everything follows from three sums over rows, which may be added up in any order,
over chunks of rows or over processes. Eq. 11 as printed takes the difference of two numbers of size y^T y / s and loses
all digits at small noise; here the sums are float64 and the fit is the equal residual form, a sum of positive terms:

    y^T Sigma^-1 y = ||y - Phi w||^2 / s + ||w||^2.

Throughout, `y` is the target minus the model's prior mean.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import WeightPosterior

Weight = Float[Tensor, " b"] | None
Chunks = Callable[[], Iterable[tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Weight]]]
"""Called once per pass: the rows of the data set as (x [b, d], y [b]), perhaps with weights [b], in the same order."""
AddUp = Callable[..., None]
"""Replaces each tensor, in place, by its sum over all processes; for rows that are spread over them."""


class Statistics(NamedTuple):
    """What exact inference needs of the data, in float64. Statistics of disjoint rows add up."""

    gram: Float[Tensor, "*m r r"]
    """Phi^T Phi. Of several outputs, whose rows count differently, one for each (`learning`)."""
    projection: Float[Tensor, "*m r"]
    """Phi^T y."""
    n: Float[Tensor, "*m"]
    """Number of rows, or sum of their weights; a tensor, so that a stacked function does not depend on its value."""

    def plus(self, other: "Statistics") -> "Statistics":
        return Statistics(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, share: float) -> "Statistics":
        """As if every row had so much of its weight."""
        return Statistics(*(share * mine for mine in self))


class Solution(NamedTuple):
    """The posterior N(w, s Lambda^-1) of Eq. 10, with what Eq. 11 and its gradient need of it, in float64."""

    w: Float[Tensor, " r"]
    Lambda_inv: Float[Tensor, "r r"]
    logdet_Lambda: Float[Tensor, ""]
    info: Int[Tensor, ""]
    """0, or the pivot at which Lambda could not be factorised; the rest is then NaN."""


def statistics(phi: Float[Tensor, "b r"], y: Float[Tensor, " b"], weight: Weight = None) -> Statistics:
    """The sums over a chunk of rows; a row of weight k counts as k equal rows."""
    phi, y = phi.double(), y.double()
    if weight is None:
        n = torch.full((), len(y), dtype=torch.float64, device=y.device)
        return Statistics(phi.mT @ phi, phi.mT @ y, n)
    weight = weight.double()
    weighted = phi * weight[:, None]
    return Statistics(weighted.mT @ phi, weighted.mT @ y, weight.sum())


def solve(stats: Statistics, noise: Float[Tensor, ""]) -> Solution:
    """Eq. 10 from the statistics."""
    eye = torch.eye(stats.gram.shape[-1], dtype=torch.float64, device=stats.gram.device)
    chol, info = torch.linalg.cholesky_ex(stats.gram + noise.double() * eye)
    chol = torch.where(info == 0, chol, math.nan)
    root = torch.linalg.solve_triangular(chol, eye, upper=False)  # `cholesky_solve` cannot be part of a CUDA graph
    w = root.mT @ (root @ stats.projection)
    return Solution(w, root.mT @ root, 2.0 * chol.diagonal().log().sum(), info)


def log_marginal_likelihood(
    phi: Float[Tensor, "n r"], y: Float[Tensor, " n"], noise: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Eq. 11 for all rows at once, differentiable by plain autograd: the short form, in O(n r) memory."""
    stats = statistics(phi, y)
    solution = solve(stats, noise)
    residual = y.double() - phi.double() @ solution.w
    return likelihood(stats.n, noise, solution, residual.square().sum())


def sparse_bound(
    phi: Float[Tensor, "n r"], correction: Float[Tensor, " n"], y: Float[Tensor, " n"], noise: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """The right side of Eq. 3: a lower bound on the likelihood of the full GP that phi approximates."""
    return log_marginal_likelihood(phi, y, noise) - correction.double().sum() / (2.0 * noise.double())


def chunk_loss(
    phi: Float[Tensor, "b r"],
    y: Float[Tensor, " b"],
    noise: Float[Tensor, ""],
    solution: Solution,
    weight: Weight = None,
    correction: Float[Tensor, " b"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """A chunk's part of the gradient of -Eq. 11, as a scalar to differentiate; and its sum of squared residuals.

    Summed over all chunks, with `shared_loss` once, the scalar's gradient in phi, y and noise is that of -log p(y):

        d/dPhi = Sigma^-1 Phi - (Sigma^-1 y)(Sigma^-1 y)^T Phi,   Sigma^-1 Phi = Phi Lambda^-1,
        Sigma^-1 y = (y - Phi w) / s,   (Sigma^-1 y)^T Phi = w^T,

    with w and Lambda^-1 held fixed. Only its gradient has a meaning.

    With the `correction` of a sparse basis it is the gradient of the bound of Eq. 3, which has one term more, -sum of
    corrections / (2 s): as if each were part of its row's squared residual. So it is in the sum that is returned.
    """
    squared = (y.double() - phi.double() @ solution.w).square()
    if correction is not None:
        squared = squared + correction.double()
    complexity = ((phi.detach().double() @ solution.Lambda_inv) * phi).sum(-1)  # float64: Lambda^-1 may be of size 1/s
    if weight is not None:
        squared, complexity = weight * squared, weight * complexity
    return 0.5 * squared.sum() / noise.double() + complexity.sum(), squared.sum().detach()


def shared_loss(n: Float[Tensor, ""], noise: Float[Tensor, ""], solution: Solution) -> Float[Tensor, ""]:
    """The part that `chunk_loss` leaves out because it belongs to no row: 1/2 (n - r) log s + 1/2 s tr Lambda^-1."""
    r = len(solution.w)
    return 0.5 * (n - r) * noise.double().log() + 0.5 * noise.double() * solution.Lambda_inv.diagonal().sum()


def likelihood(n: Tensor, noise: Tensor, solution: Solution, squared_residual: Tensor) -> Float[Tensor, ""]:
    """Eq. 11 in its residual form, with ||y - Phi w||^2 given.

    log p(y) = -n/2 log 2 pi - (n - r)/2 log s - 1/2 log|Lambda| - 1/2 (||y - Phi w||^2 / s + ||w||^2)
    """
    s, r = noise.double(), len(solution.w)
    fit = squared_residual / s + solution.w.square().sum()
    return -0.5 * (n * math.log(2.0 * math.pi) + (n - r) * s.log() + solution.logdet_Lambda + fit)


# ---- of one model: what Algorithm 1 needs, here and in `engine.wave` -------------------------------------------------


def check_exact(model: DeepBasisGP) -> None:
    if not isinstance(model.posterior, WeightPosterior):
        raise InputError("exact inference needs a model with a distribution over its weights; a DNN has point weights")
    if not isinstance(model.likelihood, GaussianLikelihood):
        raise InputError(f"exact inference needs a Gaussian likelihood, got {type(model.likelihood).__name__}")


def model_statistics(model: DeepBasisGP, x: Tensor, y: Tensor, weight: Weight = None) -> Statistics:
    return statistics(model.basis(x), y - model.prior_mean(x), weight)


def model_solution(model: DeepBasisGP, total: Statistics) -> Solution:
    return solve(total, model.noise())


def model_posterior(model: DeepBasisGP, solution: Solution) -> dict[str, Tensor]:
    """The parameters of q(w) = N(w, s Lambda^-1), by name."""
    return WeightPosterior.parameters_of(solution.w, model.noise().double() * solution.Lambda_inv)


def model_chunk_loss(
    model: DeepBasisGP, solution: Solution, x: Tensor, y: Tensor, weight: Weight = None
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """`chunk_loss` of Eq. 11; of Eq. 3 where the model predicts with the correction, as a sparse approximation does."""
    phi, _, correction, _ = model.features(x)
    missed = correction if model.corrected else None
    return chunk_loss(phi, y - model.prior_mean(x), model.noise(), solution, weight, missed)


def model_shared_loss(model: DeepBasisGP, solution: Solution, n: Tensor) -> Float[Tensor, ""]:
    return shared_loss(n, model.noise(), solution)


def model_log_prior(model: DeepBasisGP) -> Float[Tensor, ""]:
    """Of the kernel's parameters; 0 for an expansion without one."""
    log_prior = getattr(model.expansion, "log_prior", None)
    return torch.zeros_like(model.noise()).double() if log_prior is None else log_prior().double()


def model_likelihood(model: DeepBasisGP, solution: Solution, squared: Tensor, n: Tensor) -> Float[Tensor, ""]:
    """Eq. 11, or Eq. 3, with the sum of what `model_chunk_loss` returns second."""
    return likelihood(n, model.noise().detach(), solution, squared)


def accumulate_gradient(model: DeepBasisGP, chunks: Chunks, add_up: AddUp | None = None) -> float:
    """log p(y) of Eq. 11 over all chunks; the gradient of -log p(y) / n is added to the parameters' `.grad`.

    Of a sparse method (SV-RBF, SV-DKL, PP-DKL: `model.corrected`) it is the bound of Eq. 3 in place of log p(y). Two
    passes: the statistics, then chunk by chunk the gradient. Memory is one chunk's activations and O(r^2). With
    `add_up` rows are those of all processes, and every process has the whole gradient.
    """
    total, solution = posterior(model, chunks, add_up)
    before = {p: p.grad for p in model.parameters()}
    for p in before:
        p.grad = None
    squared, rows = torch.zeros_like(total.n), torch.zeros_like(total.n)
    for x, y, *weight in chunks():
        loss, chunk_squared = model_chunk_loss(model, solution, x, y, *weight)
        (loss / total.n).backward()
        squared += chunk_squared
        rows += _weight_of(y, *weight)
    if add_up is not None:
        trained = [p for name, p in model.named_parameters() if model.parameter_groups()[name] != "posterior"]
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # a process may have no rows
        add_up(squared, rows, *(p.grad for p in trained))
    (model_shared_loss(model, solution, total.n) / total.n).backward()
    for p, gradient in before.items():
        if gradient is not None:
            p.grad = gradient if p.grad is None else gradient.add_(p.grad)
    if not torch.isclose(rows, total.n, rtol=1e-9):
        raise InputError(
            f"`chunks` gave {total.n:g} rows on the first pass and {rows:g} on the second: it must be a function that "
            "starts again at each call, not one iterator; the gradients are not to be used"
        )
    return float(model_likelihood(model, solution, squared, total.n))


@torch.no_grad()
def posterior(model: DeepBasisGP, chunks: Chunks, add_up: AddUp | None = None) -> tuple[Statistics, Solution]:
    """Statistics of all chunks, and Eq. 10 (Algorithm 2, line 2)."""
    check_exact(model)
    nothing = model.noise().new_zeros(0)
    total = statistics(nothing.view(0, model.posterior.rank), nothing)
    for x, y, *weight in chunks():
        total = total.plus(model_statistics(model, x, y, *weight))
    if add_up is not None:
        add_up(*total)
    if not bool(total.n > 0):
        raise NumericalError("exact inference needs at least one row, the data set has none")
    solution = model_solution(model, total)
    if int(solution.info) or not bool(solution.w.isfinite().all()):
        raise NumericalError(
            f"Phi^T Phi + noise I could not be factorised (pivot {int(solution.info)}, "
            f"noise {model.noise().item():.3g}): the basis or the target has values that are not finite, or the noise "
            "is too small for them; lower the learning rate or raise the noise floor"
        )
    return total, solution


@torch.no_grad()
def log_likelihood(model: DeepBasisGP, chunks: Chunks) -> float:
    """log p(y) of Eq. 11 over all chunks, or the bound of Eq. 3, as in `accumulate_gradient`, without a gradient."""
    total, solution = posterior(model, chunks)
    squared = torch.zeros_like(total.n)
    for x, y, *weight in chunks():
        squared += model_chunk_loss(model, solution, x, y, *weight)[1]
    return float(model_likelihood(model, solution, squared, total.n))


@torch.no_grad()
def fit_posterior(model: DeepBasisGP, chunks: Chunks, add_up: AddUp | None = None) -> None:
    """Give the model the closed-form posterior of Eq. 10 as its q(w); it then predicts as in Algorithm 2."""
    _, solution = posterior(model, chunks, add_up)
    assert isinstance(model.posterior, WeightPosterior)  # or there were no such posterior
    model.posterior.set_(solution.w, model.noise().double() * solution.Lambda_inv)


@torch.no_grad()
def leave_one_out(
    model: DeepBasisGP, x: Float[Tensor, "n d"], y: Float[Tensor, " n"], weight: Weight = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and variance of each target given all other rows, in float64, without a fit for each of them.

        mean_i = y_i - [Sigma^-1 y]_i / [Sigma^-1]_ii,   variance_i = 1 / [Sigma^-1]_ii,

    with [Sigma^-1 y]_i = (y_i - phi_i w) / s and [Sigma^-1]_ii = (1 - phi_i Lambda^-1 phi_i) / s. The noise of a row of
    weight k is s / k there, and s in its prediction. Copies of a row are others. For a model without a correction.
    """
    _, solution = posterior(model, lambda: [(x, y, weight)])
    phi, s = model.basis(x).double(), model.noise().double()
    k = torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()
    leverage = k * ((phi @ solution.Lambda_inv) * phi).sum(-1)
    precision = k * (1.0 - leverage).clamp_min(1e-9) / s
    residual = y.double() - model.prior_mean(x).double() - phi @ solution.w
    return y.double() - k * residual / s / precision, 1.0 / precision - s / k + s


def _weight_of(y: Tensor, weight: Weight = None) -> Tensor:
    return weight.double().sum() if weight is not None else torch.full((), len(y), dtype=torch.float64, device=y.device)
