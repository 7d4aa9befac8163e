"""Exact inference against dense algebra: Eq. 11 and its gradient, Eq. 10 against Eq. 1.

The dense side is computed by mpmath with 40 digits from the very numbers (float32 or float64) that the code is given,
so at small noise it is the code that is tested, not the oracle.
"""

import contextlib
import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepbasis.errors import InputError, NumericalError
from deepbasis.gp import exact
from deepbasis.gp.backbone import Identity
from deepbasis.gp.build import build
from deepbasis.gp.expansion import PassThrough
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import WeightPosterior

DIGITS = 40
NOISES = [1e-6, 1e-3, 1.0, 1e2]
SHAPES = [(5, 9), (9, 9), (24, 5), (1, 6), (8, 1)]  # (n, r): n < r, n = r, n > r, one row, one basis function


def data(n: int, r: int, noise: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the size that the paper's initialisation gives, and targets drawn from the model itself."""
    phi = torch.randn(n, r, dtype=torch.float64) / math.sqrt(r)
    y = phi @ torch.randn(r, dtype=torch.float64) + math.sqrt(noise) * torch.randn(n, dtype=torch.float64)
    return phi.to(dtype), y.to(dtype), torch.tensor(noise, dtype=dtype)


def matrix(tensor: Tensor) -> mp.matrix:
    return mp.matrix(tensor.detach().double().tolist())


def dense_covariance(phi: Tensor, noise: Tensor) -> mp.matrix:
    """Sigma = Phi Phi^T + s I."""
    Phi = matrix(phi)
    return Phi * Phi.T + mp.mpf(float(noise)) * mp.eye(Phi.rows)


def dense_log_density(phi: Tensor, y: Tensor, noise: Tensor) -> mp.mpf:
    """log N(y; 0, Sigma)."""
    with mp.workdps(DIGITS):
        Sigma, target = dense_covariance(phi, noise), matrix(y)
        logdet = 2 * mp.fsum(mp.log(pivot) for pivot in np.diag(mp.cholesky(Sigma).tolist()))
        fit = (target.T * mp.cholesky_solve(Sigma, target))[0]
        return -(len(y) * mp.log(2 * mp.pi) + logdet + fit) / 2


def dense_posterior(phi: Tensor, y: Tensor, noise: Tensor, phi_new: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 1, mean k^T Sigma^-1 y and variance k(x, x) - k^T Sigma^-1 k of f at each new point."""
    with mp.workdps(DIGITS):
        Sigma, target = dense_covariance(phi, noise), matrix(y)
        Phi, New = matrix(phi), matrix(phi_new)
        means, variances = [], []
        for i in range(New.rows):
            k = Phi * New[i, :].T
            solved = mp.cholesky_solve(Sigma, k)
            means.append(float((solved.T * target)[0]))
            variances.append(float((New[i, :] * New[i, :].T)[0] - (solved.T * k)[0]))
    return torch.tensor(means, dtype=torch.float64), torch.tensor(variances, dtype=torch.float64)


def relative(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


# Eq. 11 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("n", "r"), SHAPES)
def test_likelihood_is_the_dense_gaussian_density(n: int, r: int, noise: float, dtype: torch.dtype) -> None:
    phi, y, s = data(n, r, noise, dtype)
    ours = float(exact.log_marginal_likelihood(phi, y, s))
    expected = dense_log_density(phi, y, s)
    # Also in float32, where the features are rounded but what is done with them is not.
    assert ours == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("noise", NOISES)
def test_likelihood_of_a_collapsed_basis(noise: float, dtype: torch.dtype) -> None:
    """Corollary 1's outcome: r columns that are all the same one, so that Lambda is as ill-conditioned as it gets."""
    one, y, s = data(24, 1, noise, dtype)
    phi = one.expand(24, 8) / math.sqrt(8)
    assert float(exact.log_marginal_likelihood(phi, y, s)) == pytest.approx(
        float(dense_log_density(phi, y, s)), rel=1e-8
    )


def printed_eq11(phi: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """Eq. 11 as the paper prints it, in the dtype of its arguments."""
    n, r = phi.shape
    chol = torch.linalg.cholesky(phi.mT @ phi + noise * torch.eye(r, dtype=phi.dtype))
    projected = torch.linalg.solve_triangular(chol, (phi.mT @ y)[:, None], upper=False)[:, 0]
    logdet = 2.0 * chol.diagonal().log().sum()
    fit = (y.square().sum() - projected.square().sum()) / noise
    return -0.5 * (n * math.log(2.0 * math.pi) + (n - r) * noise.log() + logdet + fit)


def extended_eq11(phi: Tensor, y: Tensor, noise: Tensor) -> float:
    """Eq. 11 for many rows: the sums in numpy's longdouble (64 bits of mantissa), the r x r algebra in mpmath."""
    Phi, target = phi.double().numpy().astype(np.longdouble), y.double().numpy().astype(np.longdouble)
    n, r = Phi.shape
    gram = [[exactly(np.sum(Phi[:, i] * Phi[:, j])) for j in range(r)] for i in range(r)]
    projection = mp.matrix([exactly(np.sum(Phi[:, i] * target)) for i in range(r)])
    with mp.workdps(DIGITS):
        s = mp.mpf(float(noise))
        Lambda = mp.matrix(gram) + s * mp.eye(r)
        logdet = 2 * mp.fsum(mp.log(pivot) for pivot in np.diag(mp.cholesky(Lambda).tolist()))
        fit = (exactly(np.sum(target * target)) - (projection.T * mp.cholesky_solve(Lambda, projection))[0]) / s
        return float(-(n * mp.log(2 * mp.pi) + (n - r) * mp.log(s) + logdet + fit) / 2)


def exactly(value: np.longdouble) -> mp.mpf:
    high = float(value)
    with mp.workdps(DIGITS):
        return mp.mpf(high) + mp.mpf(float(value - np.longdouble(high)))


@pytest.mark.parametrize(("noise", "printed_is_off"), [(1e-6, 0.1), (1e-4, 1e-3)])
def test_printed_eq11_cancels_in_float32_and_ours_does_not(noise: float, printed_is_off: float) -> None:
    n = 200_000
    phi, y, s = data(n, 8, noise, torch.float32)
    truth = extended_eq11(phi, y, s)
    ours, printed = (float(f(phi, y, s)) for f in (exact.log_marginal_likelihood, printed_eq11))
    assert ours == pytest.approx(truth, rel=1e-8)
    assert abs(printed - truth) / n > printed_is_off  # nats a row
    assert abs(ours - truth) / n < 1e-8


def test_likelihood_is_differentiable_as_the_appendix_says() -> None:
    """Appendix, d log p / dPhi = -Sigma^-1 Phi + Sigma^-1 y y^T Sigma^-1 Phi, and the same for y and noise."""
    phi, y, s = (t.requires_grad_() for t in data(20, 6, 1e-2, torch.float64))
    exact.log_marginal_likelihood(phi, y, s).backward()
    with torch.no_grad():
        inverse = torch.linalg.inv(phi @ phi.mT + s * torch.eye(20, dtype=torch.float64))
        a = inverse @ y
        assert relative(phi.grad, torch.outer(a, a @ phi) - inverse @ phi) < 1e-10
        assert relative(y.grad, -a) < 1e-10
        assert relative(s.grad, 0.5 * (a @ a - inverse.trace())) < 1e-10


# Statistics -----------------------------------------------------------------------------------------------------------


def test_statistics_add_up_in_any_order(dtype: torch.dtype) -> None:
    phi, y, s = data(60, 7, 1e-2, dtype)
    a, b, c = (exact.statistics(phi[rows], y[rows]) for rows in (slice(0, 1), slice(1, 20), slice(20, 60)))
    whole = exact.statistics(phi, y)
    shuffle = torch.randperm(60)
    others = [a.plus(b).plus(c), c.plus(a.plus(b)), exact.statistics(phi[shuffle], y[shuffle])]
    for other in others:
        for found, expected in zip(other, whole, strict=True):
            assert relative(found, expected) < 1e-14
        assert relative(exact.solve(other, s).w, exact.solve(whole, s).w) < 1e-12


def test_statistics_are_the_sums_they_say() -> None:
    phi, y, _ = data(13, 4, 1e-2, torch.float32)
    gram, projection, n = exact.statistics(phi, y)
    Phi, target = phi.double(), y.double()
    torch.testing.assert_close(gram, torch.einsum("ni,nj->ij", Phi, Phi), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(projection, torch.einsum("ni,n->i", Phi, target), rtol=1e-14, atol=1e-14)
    assert float(n) == 13.0


@pytest.mark.parametrize("times", [[1, 3, 2, 1, 4, 1], [2, 0, 1, 0, 3, 1]], ids=["repeated", "with absent rows"])
def test_whole_weights_are_repeated_rows(times: list[int], dtype: torch.dtype) -> None:
    """In the statistics, and in a chunk's gradient; weight 0 is an absent row."""
    phi, y, s = data(6, 4, 1e-2, dtype)
    count = torch.tensor(times)
    weighted, repeated = exact.statistics(phi, y, count.to(dtype)), exact.statistics(*again(count, phi, y))
    for found, expected in zip(weighted, repeated, strict=True):
        assert relative(found, expected) < 1e-14

    solution = exact.solve(repeated, s)
    leaves = [t.requires_grad_() for t in (phi, y, s)]
    loss, squared = exact.chunk_loss(phi, y, s, solution, count.to(dtype))
    other_loss, other_squared = exact.chunk_loss(*again(count, phi, y), s, solution)
    assert relative(squared, other_squared) < 1e-12
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    expected = torch.autograd.grad(other_loss, leaves)
    for found, other in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert relative(found, other) < tolerance


def again(count: Tensor, phi: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Every row as often as `count` says."""
    return phi.repeat_interleave(count, 0), y.repeat_interleave(count)


# Eq. 10 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("n", "r"), SHAPES)
def test_weight_posterior_is_the_dense_one(n: int, r: int, noise: float) -> None:
    """Eq. 10 carried to new points, phi w and s phi^T Lambda^-1 phi, equals Eq. 1."""
    phi, y, s = data(n, r, noise, torch.float64)
    new = torch.randn(3, r, dtype=torch.float64)
    solution = exact.solve(exact.statistics(phi, y), s)
    mean, var = dense_posterior(phi, y, s, new)
    assert relative(new @ solution.w, mean) < 1e-8
    assert relative(s * (new @ solution.Lambda_inv * new).sum(-1), var) < 1e-8


def small_model(method: str, noise: float, dtype: torch.dtype = torch.float64) -> DeepBasisGP:
    model = build(method, 3, rank=6, width=5, blocks=1, noise=noise, seed=1)
    with torch.no_grad():
        model.mean.fill_(0.3)
    return model.to(dtype)


def rows(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, dtype=torch.float64) * 2.0 - 1.0
    y = torch.sin(3.0 * x).sum(-1) + 0.1 * torch.randn(n, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def chunked(x: Tensor, y: Tensor, size: int) -> exact.Chunks:
    return lambda: zip(x.split(size), y.split(size), strict=True)


@pytest.mark.parametrize("noise", [2e-6, 1e-2, 1.0])
@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_fitted_model_predicts_the_dense_posterior(method: str, noise: float, dtype: torch.dtype) -> None:
    """Algorithm 2: after `fit_posterior` the model's forward is Eq. 1 at new points (float32: of its own features)."""
    model = small_model(method, noise, dtype)
    (x, y), (x_new, _) = rows(24, dtype), rows(5, dtype)
    exact.fit_posterior(model, chunked(x, y, 7))
    with torch.no_grad():
        terms = model(x_new)
        centred = y - model.mean
        mean, var = dense_posterior(model.basis(x), centred, model.noise(), model.basis(x_new))
    # float32 stores m and L rounded, and ||m|| is up to 440 here.
    tolerance = 1e-8 if dtype == torch.float64 else 1e-5
    assert relative(terms.mean - model.mean, mean) < tolerance
    assert relative(terms.var, var) < tolerance


def test_weights_of_rows_are_repetitions_to_the_posterior() -> None:
    """In chunks with weights and chunks without."""
    models = [small_model("dbk-rbf", 1e-2) for _ in range(2)]
    x, y = rows(24)
    count = torch.cat([torch.arange(16) % 4, torch.ones(8, dtype=torch.int64)])
    weight = count.double()
    exact.fit_posterior(
        models[0], lambda: [(x[:9], y[:9], weight[:9]), (x[9:16], y[9:16], weight[9:16]), (x[16:], y[16:])]
    )
    exact.fit_posterior(models[1], lambda: [(*again(count, x, y), None)])
    for mine, theirs in zip(*(model.posterior.parameters() for model in models), strict=True):
        assert relative(mine, theirs) < 1e-9


# The gradient in chunks -----------------------------------------------------------------------------------------------


def plain_loss(model: DeepBasisGP, x: Tensor, y: Tensor) -> Tensor:
    """-log p(y) / n, all rows at once."""
    return -exact.log_marginal_likelihood(model.basis(x), y - model.mean, model.noise()) / len(y)


def gradients(model: DeepBasisGP, step: Callable[[], object]) -> dict[str, Tensor]:
    model.zero_grad()
    step()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("size", [1, 7, 16, 33, 100])  # 33 rows: also uneven, 4 * 7 + 5 and 2 * 16 + 1
@pytest.mark.parametrize("noise", [2e-6, 1e-3, 1e-1, 10.0])
@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_chunked_gradient_is_autograd_of_the_whole(method: str, noise: float, size: int) -> None:
    model = small_model(method, noise)
    x, y = rows(33)
    expected = gradients(model, lambda: plain_loss(model, x, y).backward())
    model.zero_grad()
    value = exact.accumulate_gradient(model, chunked(x, y, size))
    assert value == pytest.approx(-33 * float(plain_loss(model, x, y).detach()), rel=1e-8)
    assert {"mean", "likelihood.raw", "backbone.project.weight"} <= expected.keys()
    for name, p in model.named_parameters():
        assert (p.grad is None) == (name not in expected)
        assert p.grad is None or relative(p.grad, expected[name]) < 1e-8, name


def test_chunked_gradient_with_more_functions_than_rows() -> None:
    model = small_model("dbk-silu", 1e-3)  # r = 6
    x, y = rows(4)
    expected = gradients(model, lambda: plain_loss(model, x, y).backward())
    found = gradients(model, lambda: exact.accumulate_gradient(model, chunked(x, y, 3)))
    for name, gradient in found.items():
        assert relative(gradient, expected[name]) < 1e-8, name


def test_gradient_is_added_to_what_is_there() -> None:
    model = small_model("dbk-silu", 1e-2)
    chunks = chunked(*rows(20), 8)
    once = gradients(model, lambda: exact.accumulate_gradient(model, chunks))
    exact.accumulate_gradient(model, chunks)
    for name, p in model.named_parameters():
        if name in once:
            torch.testing.assert_close(p.grad, 2.0 * once[name], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("n", "r", "rank"), [(500, 8, 8), (8, 16, 8), (500, 8, 2)], ids=["full rank", "n < r", "collapsed"]
)
@pytest.mark.parametrize("noise", [1e-2, 1e-6])
def test_chunk_gradient_of_float32_features(n: int, r: int, rank: int, noise: float) -> None:
    """With y = 0 the gradient of -log p in Phi is its complexity part alone, Sigma^-1 Phi = Phi Lambda^-1.

    Lambda^-1 is about 1/s in the directions that the features do not have: the product cancels, and with float32 in it
    nothing is left where n < r or where MML has collapsed the basis (Corollary 1). 1e-5 leaves room for the rounding
    of the result itself.
    """
    phi = torch.randn(n, rank) @ torch.randn(rank, r) / math.sqrt(r * rank)
    s, y = torch.tensor(noise), torch.zeros(n)
    U, S, Vt = torch.linalg.svd(phi.double(), full_matrices=False)
    expected = (U * (S / (S.square() + s.double()))) @ Vt
    solution = exact.solve(exact.statistics(phi, y), s)
    exact.chunk_loss(phi.requires_grad_(), y, s, solution)[0].backward()
    assert relative(phi.grad, expected) < 1e-5


@pytest.mark.parametrize(("method", "tolerance"), [("dbk-silu", 1e-5), ("dbk-rbf", 1e-3)])
def test_chunked_gradient_in_float32(method: str, tolerance: float) -> None:
    """A chunk's gradient is rounded to float32 on its way through the network, for RBF through K_ZZ^(-1/2) too."""
    model = small_model(method, 1e-2, torch.float32)
    x, y = rows(32, torch.float32)
    expected = gradients(model, lambda: plain_loss(model, x, y).backward())
    found = gradients(model, lambda: exact.accumulate_gradient(model, chunked(x, y, 10)))
    for name, gradient in found.items():
        assert relative(gradient, expected[name]) < tolerance, name


# The bound of Eq. 3 in chunks -----------------------------------------------------------------------------------------


def bound_by_chunks(
    phi: Tensor, correction: Tensor, y: Tensor, noise: Tensor, size: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(a scalar with the gradient of -Eq. 3, the value of Eq. 3), from parts that know of `size` rows each."""
    parts = [t.split(size) for t in (phi, correction, y)]
    weights = [None] * len(parts[0]) if weight is None else weight.split(size)
    with torch.no_grad():
        total = exact.statistics(phi, y, weight)
        solution = exact.solve(total, noise)
    losses, squares = zip(
        *(exact.chunk_loss(a, b, noise, solution, w, c) for a, c, b, w in zip(*parts, weights, strict=True)),
        strict=True,
    )
    loss = torch.stack(losses).sum() + exact.shared_loss(total.n, noise, solution)
    return loss, exact.likelihood(total.n, noise.detach(), solution, torch.stack(squares).sum())


def sparse_data(n: int, r: int, noise: float, dtype: torch.dtype) -> list[Tensor]:
    """phi, its corrections, y and the noise: leaves of their own, to differentiate by."""
    phi, y, s = data(n, r, noise, dtype)
    return [t.requires_grad_() for t in (phi, torch.rand(n, dtype=dtype), y, s)]


@pytest.mark.parametrize("size", [1, 5, 24, 100])
@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(("n", "r"), [(24, 5), (5, 9)])
def test_chunked_bound_is_that_of_the_whole(n: int, r: int, noise: float, size: int) -> None:
    leaves = sparse_data(n, r, noise, torch.float64)
    whole = exact.sparse_bound(*leaves)
    loss, value = bound_by_chunks(*leaves, size)
    assert float(value) == pytest.approx(float(whole.detach()), rel=1e-9)
    expected = torch.autograd.grad(-whole, leaves)
    for found, other in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert relative(found, other) < 1e-8


@pytest.mark.parametrize("times", [[1, 3, 2, 1, 4, 1], [2, 0, 1, 0, 3, 1]], ids=["repeated", "with absent rows"])
def test_bound_of_whole_weights_is_that_of_repeated_rows(times: list[int], dtype: torch.dtype) -> None:
    phi, correction, y, s = leaves = sparse_data(6, 4, 1e-2, dtype)
    count = torch.tensor(times)
    whole = exact.sparse_bound(*(t.repeat_interleave(count, 0) for t in (phi, correction, y)), s)
    loss, value = bound_by_chunks(*leaves, 4, count.to(dtype))
    assert float(value) == pytest.approx(float(whole.detach()), rel=1e-9)
    expected = torch.autograd.grad(-whole, leaves)
    for found, other in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert relative(found, other) < (1e-8 if dtype == torch.float64 else 1e-4)


def test_a_correction_is_felt() -> None:
    """That the tests above can fail: without it value and gradient are others."""
    phi, correction, y, s = leaves = sparse_data(12, 4, 1e-2, torch.float64)
    loss, value = bound_by_chunks(*leaves, 5)
    plain, likelihood = bound_by_chunks(phi, torch.zeros_like(correction), y, s, 5)
    by_s, by_correction = torch.autograd.grad(loss, (s, correction))
    (without,) = torch.autograd.grad(plain, s)
    with torch.no_grad():
        assert relative(likelihood - value, correction.sum() / (2 * s)) < 1e-9
        assert relative(without - by_s, correction.sum() / (2 * s.square())) < 1e-8
        assert relative(by_correction, (0.5 / s).expand(12)) < 1e-12


@pytest.mark.parametrize("size", [1, 7, 33])
@pytest.mark.parametrize("method", ["sv-rbf", "sv-rbf-linear", "sv-dkl", "pp-dkl"])
def test_chunked_gradient_of_a_sparse_method_is_that_of_its_bound(method: str, size: int) -> None:
    """Eq. 3, in value and gradient, to autograd of the whole; Eq. 11 of the same basis is another."""
    model = small_model(method, 1e-2)
    x, y = rows(33)

    def bound() -> Tensor:
        phi, _, correction, _ = model.features(x)
        return exact.sparse_bound(phi, correction, y - model.mean, model.noise())

    expected = gradients(model, lambda: (-bound() / 33).backward())
    plain = gradients(model, lambda: plain_loss(model, x, y).backward())
    found = gradients(model, lambda: exact.accumulate_gradient(model, chunked(x, y, size)))
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert relative(gradient, expected[name]) < 1e-8, name
    assert relative(plain["likelihood.raw"], expected["likelihood.raw"]) > 1e-2
    value = exact.accumulate_gradient(model, chunked(x, y, size))
    assert value == pytest.approx(float(bound().detach()), rel=1e-9)


@pytest.mark.parametrize("method", ["dbk-silu", "sv-rbf"])
def test_weights_of_rows_are_repetitions_to_the_gradient(method: str) -> None:
    model = small_model(method, 1e-2)
    x, y = rows(24)
    count = torch.arange(24) % 4
    parts = list(zip(x.split(9), y.split(9), count.double().split(9), strict=True))
    weighted = gradients(model, lambda: exact.accumulate_gradient(model, lambda: parts))
    repeated = gradients(model, lambda: exact.accumulate_gradient(model, lambda: [again(count, x, y)]))
    for name, gradient in weighted.items():
        assert relative(gradient, repeated[name]) < 1e-9, name


@pytest.mark.parametrize("method", ["dbk-silu", "sv-rbf"])
def test_processes_that_share_the_rows_have_the_gradient_of_all(method: str) -> None:
    """Three threads as processes: one with most rows, one with few, one with none."""
    x, y = rows(24)
    alone, together = small_model(method, 1e-2), [small_model(method, 1e-2) for _ in range(3)]
    value = exact.accumulate_gradient(alone, chunked(x, y, 10))
    barrier, given = threading.Barrier(3), {}
    parts = [[(x[:10], y[:10]), (x[10:19], y[10:19])], [(x[19:], y[19:])], []]

    def worker(k: int) -> float:
        def add_up(*tensors: Tensor) -> None:
            given[k] = [t.clone() for t in tensors]
            barrier.wait(30)
            sums = [sum(others) for others in zip(*given.values(), strict=True)]
            barrier.wait(30)
            for tensor, total in zip(tensors, sums, strict=True):
                tensor.copy_(total)

        return exact.accumulate_gradient(together[k], lambda: parts[k], add_up)

    with ThreadPoolExecutor(3) as pool:
        values = list(pool.map(worker, range(3)))
    assert values == pytest.approx([value] * 3, rel=1e-10)
    for model in together:
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or relative(p.grad, q.grad) < 1e-9, name


def test_exact_inference_is_for_a_gaussian_alone() -> None:
    model = small_model("dbk-silu", 1e-2)
    model.likelihood = nn.Linear(1, 1)
    with pytest.raises(InputError, match="Gaussian likelihood, got Linear"):
        exact.posterior(model, chunked(*rows(5), 5))


# Memory ---------------------------------------------------------------------------------------------------------------


class Holder:
    """What autograd keeps in place of a saved tensor; it dies with the graph that holds it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedMemory:
    """Elements that autograd's graphs hold on to: now, and at most so far."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def pack(self, tensor: Tensor) -> Holder:
        # Scalars count as nothing: with such hooks torch never frees an output saved by a node that no backward visits,
        # and exp(log_variance) of the unused correction is one (one number a chunk, an artefact of the measurement).
        holder, count = Holder(tensor), tensor.numel() if tensor.dim() else 0
        self.now += count
        self.peak = max(self.peak, self.now)
        weakref.finalize(holder, self.release, count)
        return holder

    def release(self, count: int) -> None:
        self.now -= count


def saved_at_most(step: Callable[[], object]) -> int:
    gc.collect()
    memory = SavedMemory()
    with torch.autograd.graph.saved_tensors_hooks(memory.pack, lambda holder: holder.tensor):
        step()
    return memory.peak


@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_memory_is_that_of_one_chunk(method: str) -> None:
    model = small_model(method, 1e-2)

    def chunked_peak(count: int) -> int:
        return saved_at_most(lambda: exact.accumulate_gradient(model, chunked(*rows(20 * count), 20)))

    def plain_peak(count: int) -> int:
        return saved_at_most(lambda: plain_loss(model, *rows(20 * count)).backward())

    assert 0 < chunked_peak(1) == chunked_peak(2) == chunked_peak(16)
    assert plain_peak(16) > 5 * plain_peak(1)  # the measure does see a graph that grows


# Failures -------------------------------------------------------------------------------------------------------------

Use = Callable[[DeepBasisGP, exact.Chunks], object]
USES = pytest.mark.parametrize("use", [exact.fit_posterior, exact.accumulate_gradient], ids=["posterior", "gradient"])


def no_chunks() -> Iterator[tuple[Tensor, Tensor]]:
    return iter(())


@USES
@pytest.mark.parametrize("chunks", [no_chunks, chunked(*rows(0), 1)], ids=["no chunk", "an empty chunk"])
def test_no_rows_is_an_error(use: Use, chunks: exact.Chunks) -> None:
    with pytest.raises(NumericalError, match="at least one row"):
        use(small_model("dbk-silu", 1e-2), chunks)


@USES
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rank", [1, 6])
def test_basis_that_is_not_finite_is_an_error(use: Use, bad: float, rank: int) -> None:
    model = build("dbk-silu", 3, rank=rank, width=5, blocks=1, seed=1).double()
    with torch.no_grad():
        model.expansion.scale[0] = bad
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(NumericalError, match="not finite"):
        use(model, chunked(*rows(12), 5))
    for name, p in model.named_parameters():
        assert p.grad is None
        torch.testing.assert_close(p, before[name], rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("energy", [1e9, 3e10, 1e12])
def test_posterior_is_usable_or_an_error(energy: float) -> None:
    """A basis of rank 1 with ||Phi||^2 / s of 5e14 to 5e17, where float64 ends: never a q(w) that is silently NaN."""
    for rank in (2, 8, 32, 128) * 15:
        model = DeepBasisGP(Identity(rank), PassThrough(rank), WeightPosterior(rank), GaussianLikelihood(2e-6)).double()
        one = torch.outer(torch.randn(50, dtype=torch.float64), torch.randn(rank, dtype=torch.float64))
        chunks = chunked(math.sqrt(energy) * one / one.norm(), torch.randn(50, dtype=torch.float64), 50)
        with contextlib.suppress(NumericalError):
            exact.fit_posterior(model, chunks)
            assert all(bool(p.isfinite().all()) for p in model.posterior.parameters()), rank


def test_point_weights_have_no_posterior_to_fit() -> None:
    model = build("dnn", 3, width=5, blocks=1, seed=1).double()
    m = model.posterior.m.detach().clone()
    with pytest.raises(InputError, match="point weights"):
        exact.fit_posterior(model, chunked(*rows(12), 5))
    assert torch.equal(model.posterior.m, m)


def test_chunks_that_cannot_be_walked_twice_are_an_error():
    """One iterator for both passes would leave the gradient without its data, and no other sign of it."""
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    model = build("dbk-silu", 3, rank=4, width=8, seed=0).double()
    once = iter([(x, y)])
    with pytest.raises(InputError, match="20 rows on the first pass and 0 on the second"):
        exact.accumulate_gradient(model, lambda: once)
