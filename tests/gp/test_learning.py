"""Learning on equals dense algebra and exact inference from all rows; and, of dPPGP, its own stationary point."""

import math

import pytest
import torch

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp import exact, learning, objectives
from deepbasis.gp.build import build
from deepbasis.gp.censored import CensoredLikelihood
from deepbasis.gp.exact import Statistics
from deepbasis.gp.intervals import IntervalLikelihood
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.outputs import OutputsLikelihood
from deepbasis.gp.student import StudentLikelihood

ROWS, RANK = 80, 12


def data(seed: int = 0, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=draws, dtype=torch.float64)
    y = x[:, 0].sin() + 0.3 * torch.randn(rows, generator=draws, dtype=torch.float64)
    return x, y, 0.5 + torch.rand(rows, generator=draws, dtype=torch.float64)


def model(method: str = "dbk-silu", likelihood: object = "gaussian", **more: object) -> DeepBasisGP:
    made = build(method, 3, rank=RANK, width=8, blocks=1, seed=1, likelihood=likelihood, noise=0.1, **more).double()
    with torch.no_grad():
        made.mean.fill_(0.3)
    return made


@pytest.mark.parametrize("method", ["sv-rbf", "dbk-silu"])
@pytest.mark.parametrize("forget", [1.0, 0.7])
def test_of_a_posterior_it_is_exact_inference_from_all_rows_and_dense_algebra(method: str, forget: float) -> None:
    x, y, weight = data()
    first, then = slice(0, 50), slice(50, None)
    one, all_at_once = model(method), model(method)
    counted = torch.cat([forget * weight[first], weight[then]])
    exact.fit_posterior(one, lambda: [(x[first], y[first], weight[first])])
    exact.fit_posterior(all_at_once, lambda: [(x, y, counted)])
    known = exact.posterior(one, lambda: [(x[first], y[first], weight[first])])[0]
    _, more = learning.look(one, x[then], y[then], weight[then], posterior=True)
    found = learning.moved(one, known.times(forget).plus(more), beta=0.0, posterior=True)
    for mine, other in zip(found.posterior.parameters(), all_at_once.posterior.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    # Dense: q(w) = N(m, S), S^-1 = I + Phi^T W Phi / s, S^-1 m = Phi^T W (y - mean) / s.
    with torch.no_grad():
        Phi, s = one.basis(x), one.noise()
        precision = torch.eye(Phi.shape[1], dtype=torch.float64) + Phi.mT @ (counted[:, None] * Phi) / s
        m = torch.linalg.solve(precision, Phi.mT @ (counted * (y - one.prior_mean(x))) / s)
        L = found.posterior.L()
    torch.testing.assert_close(found.posterior.m.detach(), m, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(L @ L.mT, torch.linalg.inv(precision), rtol=1e-10, atol=1e-10)


def test_sums_from_a_posterior_are_those_of_its_rows() -> None:
    """What the ELBO goes on from: q(w) itself."""
    x, y, _ = data()
    one = model()
    exact.fit_posterior(one, lambda: [(x, y)])
    known, found = exact.posterior(one, lambda: [(x, y)])[0], learning.start_from(one)
    torch.testing.assert_close(found.gram, known.gram, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.projection, known.projection, rtol=1e-8, atol=1e-8)


LIKELIHOODS = {
    "gaussian": GaussianLikelihood,
    "student": StudentLikelihood,
    "interval": lambda noise: IntervalLikelihood(noise, edges=(-1.0, -0.3, 0.4, 1.1)),
    "censored": CensoredLikelihood,
}


def targets(name: str, y: torch.Tensor) -> torch.Tensor:
    upper = torch.where(torch.arange(len(y)) % 3 == 0, 1e3, y)
    return torch.stack([y, y, upper], 1) if name == "censored" else y


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_under_dppgp_it_goes_where_the_objective_is_stationary(name: str) -> None:
    """Of a Gaussian at once. Of others round by round, each lower: the weight of a row bounds its curvature."""
    x, y, weight = data()
    observed, beta, one = targets(name, y), 0.5, model(likelihood=LIKELIHOODS[name])
    L, losses, slopes = one.posterior.L(), [], []
    for _ in range(12):
        loss = objectives.dppgp(one, x, observed, float(weight.sum()), 0.0, beta, weight)
        (gradient,) = torch.autograd.grad(loss, one.posterior.m)
        losses.append(loss.item())
        slopes.append(gradient.norm().item())
        _, sums = learning.look(one, x, observed, weight, posterior=False)
        one = learning.moved(one, sums, beta, posterior=False)
    assert losses == sorted(losses, reverse=True) or name == "gaussian"
    assert slopes[1 if name == "gaussian" else -1] < (1e-10 if name == "gaussian" else 0.1) * slopes[0]
    torch.testing.assert_close(one.posterior.L(), L, rtol=0, atol=0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_curvature_is_a_bound_that_is_reached(name: str) -> None:
    """Of the second derivative of -log p in the mean, by autograd, over a wide range of means."""
    made, var = LIKELIHOODS[name](0.1).double(), torch.full((4001,), 0.2, dtype=torch.float64)
    y = targets(name, torch.zeros_like(var))
    mean = torch.linspace(-8.0, 8.0, 4001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(made.log_density(y, mean, var).sum(), mean, create_graph=True)
    (second,) = torch.autograd.grad(-slope.sum(), mean)
    bound = float(made.curvature(var)[0].detach())
    assert float(second.max()) <= bound * (1 + 1e-6)
    assert float(second.max()) > 0.9 * bound
    if name == "gaussian":
        torch.testing.assert_close(second, made.curvature(var).detach())


def test_rows_that_say_what_the_model_says_change_nothing() -> None:
    one = model()
    x, y, weight = data()
    known = learning.start(one, learning.of_fit(one, x, weight), beta=0.5)
    found = learning.moved(one, known, 0.5, posterior=False)
    torch.testing.assert_close(found.posterior.m, one.posterior.m, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        said = one(x).mean
    _, more = learning.look(one, x, said, posterior=False)
    again = learning.moved(one, known.plus(more), 0.5, posterior=False)
    shrunk = learning.moved(one, known.plus(learning.look(one, x, y, posterior=False)[1]), 0.5, posterior=False)
    assert (again.posterior.m - one.posterior.m).norm() < 0.02 * (shrunk.posterior.m - one.posterior.m).norm()


def test_a_triangle_is_enough_and_anything_else_is_refused() -> None:
    x, y, weight = data()
    found = learning.look(model(), x, y, weight, posterior=False)[1]
    packed = learning.packed(found)
    assert packed["gram"].numel() == RANK * (RANK + 1) // 2
    for mine, other in zip(learning.unpacked(packed, RANK), found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-15, atol=1e-15)
    for name, wrong in {
        "gram": packed["gram"][1:],
        "projection": packed["projection"].float(),
        "n": torch.tensor(math.nan, dtype=torch.float64),
    }.items():
        with pytest.raises(ValueError, match="sums"):
            learning.unpacked({**packed, name: wrong}, RANK)


def test_sums_without_a_solution_are_an_error_and_so_is_a_likelihood_that_cannot() -> None:
    nothing = torch.zeros(RANK, dtype=torch.float64)
    wrong = Statistics(-torch.eye(RANK, dtype=torch.float64), nothing, nothing[0])
    with pytest.raises(NumericalError, match="fit the model again"):
        learning.moved(model(), wrong, 0.0, posterior=False)
    with pytest.raises(InputError, match="PoissonLikelihood"):
        learning.check_learns(model(likelihood="poisson"))


# ---- several outputs -------------------------------------------------------------------------------------------------


def several() -> tuple[DeepBasisGP, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three outputs of different noise, each with a q(w) of its own."""
    one = model(likelihood=lambda noise: OutputsLikelihood(noise, outputs=3))
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        one.likelihood.raw.copy_(torch.tensor([-3.0, -1.0, 0.5]))
        one.posterior.log_diagonal.add_(0.3 * torch.randn(3, RANK, generator=draws, dtype=torch.float64))
    x, y, weight = data()
    return one, x, torch.stack([y, y.square(), x[:, 1] - y], 1), weight


def test_of_several_outputs_each_goes_where_the_objective_is_stationary_at_once() -> None:
    one, x, y, weight = several()
    beta, L = 0.5, one.posterior.L()
    _, sums = learning.look(one, x, y, weight, posterior=False)
    found = learning.moved(one, sums, beta, posterior=False)
    for made, bound in ((one, 1e-3), (found, 1e-10)):
        loss = objectives.dppgp(made, x, y, float(weight.sum()), 0.0, beta, weight)
        (gradient,) = torch.autograd.grad(loss, made.posterior.m)
        assert (float(gradient.norm()) < 1e-10) == (bound == 1e-10)
    torch.testing.assert_close(found.posterior.L(), L, rtol=0, atol=0)


def test_of_several_outputs_a_posterior_is_that_of_each_alone() -> None:
    """Dense algebra for each, with its own noise; from sums of its rows, and from q(w) itself."""
    one, x, y, weight = several()
    _, sums = learning.look(one, x, y, weight, posterior=True)
    found = learning.moved(one, sums, 0.0, posterior=True)
    with torch.no_grad():
        Phi, noises, L = one.basis(x), one.likelihood.noises(), found.posterior.L()
        for k in range(3):
            precision = torch.eye(RANK, dtype=torch.float64) + Phi.mT @ (weight[:, None] * Phi) / noises[k]
            m = torch.linalg.solve(precision, Phi.mT @ (weight * (y[:, k] - one.mean[k])) / noises[k])
            torch.testing.assert_close(found.posterior.m[k], m, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(L[k] @ L[k].mT, torch.linalg.inv(precision), rtol=1e-9, atol=1e-9)
    again = learning.start_from(found)
    torch.testing.assert_close(again.gram, sums.gram, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(again.projection, sums.projection, rtol=1e-8, atol=1e-8)


def test_sums_of_several_outputs_are_kept_as_triangles() -> None:
    one, x, _, weight = several()
    known = learning.start(one, learning.of_fit(one, x, weight), beta=0.5)
    still = learning.moved(one, known, 0.5, posterior=False)
    torch.testing.assert_close(still.posterior.m, one.posterior.m, rtol=1e-9, atol=1e-9)
    packed = learning.packed(known)
    for mine, other in zip(learning.unpacked(packed, RANK, 3), known, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-15, atol=1e-15)
    for outputs in (0, 2):
        with pytest.raises(ValueError, match="sums"):
            learning.unpacked(packed, RANK, outputs)
