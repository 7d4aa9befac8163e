"""The paper's theorems as numbers: Mercer, Karhunen-Loeve, Woodbury, and what maximum likelihood converges to."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepbasis.gp import exact
from deepbasis.gp.backbone import Identity
from deepbasis.gp.expansion import RBF, Features
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.metrics import basis_spectrum, effective_rank, spectrum
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import WeightPosterior

# Woodbury (Eq. 18) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "r"), [(12, 4), (4, 12), (1, 3), (9, 9)])
@pytest.mark.parametrize("noise", [1e-2, 1e-1, 10.0])
def test_woodbury(n: int, r: int, noise: float) -> None:
    """Eq. 18, Sigma^-1 = (I - Phi Lambda^-1 Phi^T) / s, and the lemma |Sigma| = s^(n - r) |Lambda|."""
    Phi, y = torch.randn(n, r, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    s = torch.tensor(noise, dtype=torch.float64)
    Sigma = Phi @ Phi.mT + s * torch.eye(n, dtype=torch.float64)
    solution = exact.solve(exact.statistics(Phi, y), s)
    identity = torch.eye(n, dtype=torch.float64)
    inverse = (identity - Phi @ solution.Lambda_inv @ Phi.mT) / s
    torch.testing.assert_close(inverse @ Sigma, identity, rtol=0.0, atol=1e-8)  # rounding: about eps (|Sigma| / s)^2
    torch.testing.assert_close(solution.logdet_Lambda + (n - r) * s.log(), Sigma.logdet(), rtol=1e-10, atol=1e-10)


# What maximum likelihood converges to (Theorems 2 and 3, Corollary 1) -------------------------------------------------


def oracle(n: int, *, heteroskedastic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A mean mu, variances d (the largest first) and S = E[y y^T] = mu mu^T + diag(d) (Eq. 14)."""
    mu = 1.5 * torch.randn(n, dtype=torch.float64)
    d = torch.rand(n, dtype=torch.float64) + 0.1 if heteroskedastic else torch.full((n,), 0.4, dtype=torch.float64)
    d = d.sort(descending=True).values
    return mu, d, torch.outer(mu, mu) + torch.diag(d)


def expected_likelihood(Sigma: Tensor, S: Tensor) -> Tensor:
    """Eq. 19, E[log N(y; 0, Sigma)] = -1/2 (n log 2 pi + log|Sigma| + tr(Sigma^-1 S))."""
    return -0.5 * (len(S) * math.log(2.0 * math.pi) + Sigma.logdet() + torch.linalg.solve(Sigma, S).trace())


def expected_low_rank_likelihood(phi: Tensor, noise: Tensor, S: Tensor) -> Tensor:
    """Eq. 19 through Eq. 11: S is the mean of y y^T over the n columns y of sqrt(n) S^(1/2)."""
    columns = math.sqrt(len(S)) * torch.linalg.cholesky(S)
    return torch.vmap(exact.log_marginal_likelihood, in_dims=(None, 1, None))(phi, columns, noise).mean()


def maximise(S: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Phi [n, rank] and noise at the maximum of Eq. 19, by L-BFGS from a random start."""
    phi = (0.5 * torch.randn(len(S), rank, dtype=torch.float64)).requires_grad_()
    log_noise = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [phi, log_noise],
        max_iter=2000,
        history_size=20,
        tolerance_grad=1e-11,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -expected_low_rank_likelihood(phi, log_noise.exp(), S)
        loss.backward()
        return loss

    optimiser.step(closure)
    return phi.detach(), log_noise.detach().exp()


def test_expected_likelihood_two_ways() -> None:
    """Eq. 19 dense, and as a mean of Eq. 11."""
    _, _, S = oracle(12, heteroskedastic=True)
    phi, noise = torch.randn(12, 3, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    Sigma = phi @ phi.mT + noise * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(
        expected_low_rank_likelihood(phi, noise, S), expected_likelihood(Sigma, S), rtol=1e-12, atol=0.0
    )


def test_oracle_covariance_is_the_maximum() -> None:
    """Theorem 2: over all Sigma the maximum of Eq. 19 is at S, where its gradient is zero and around which it falls."""
    _, _, S = oracle(12, heteroskedastic=True)
    Sigma = S.clone().requires_grad_()
    top = expected_likelihood(Sigma, S)
    top.backward()
    assert float(Sigma.grad.abs().max()) < 1e-12
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(10):
            A = torch.eye(12, dtype=torch.float64) + scale * torch.randn(12, 12, dtype=torch.float64)
            assert expected_likelihood(A @ S @ A.mT, S) < top.detach() - 1e-3 * scale**2


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_heteroskedastic_optimum(rank: int) -> None:
    """Theorem 3: K* = sum_i (lambda_i - s*) u_i u_i^T over the first r, s* = mean of the other n - r eigenvalues."""
    _, d, S = oracle(12, heteroskedastic=True)
    eigenvalues, U = torch.linalg.eigh(S)
    eigenvalues, U = eigenvalues.flip(0), U.flip(1)
    best_noise = eigenvalues[rank:].mean()
    best_K = (U[:, :rank] * (eigenvalues[:rank] - best_noise)) @ U[:, :rank].mT
    phi, noise = maximise(S, rank)
    torch.testing.assert_close(noise, best_noise, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(basis_spectrum(phi), eigenvalues[:rank] - best_noise, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(phi @ phi.mT, best_K, rtol=1e-5, atol=1e-5)
    assert d.min() < noise < d.max()  # "a scalar average of the ground-truth sigma^2"


def test_homogeneous_noise_gives_rank_one() -> None:
    """Corollary 1: with D = s I, K* = mu mu^T and noise s, whatever the rank that the basis could have.

    The r - 1 other eigenvalues of K vanish only with the square of Phi, where the maximum is flat: 1e-4.
    """
    mu, d, S = oracle(12, heteroskedastic=False)
    assert effective_rank(basis_spectrum(torch.randn(12, 4, dtype=torch.float64))) > 2.5  # as the search starts
    phi, noise = maximise(S, 4)
    K = phi @ phi.mT
    torch.testing.assert_close(K, torch.outer(mu, mu), rtol=0.0, atol=1e-4)
    torch.testing.assert_close(noise, d[0], rtol=1e-4, atol=0.0)
    assert float(effective_rank(spectrum(K))) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("n", [2, 5, 30])
def test_interlacing(n: int) -> None:
    """d_i >= lambda_(i+1) >= d_(i+1), so Theorem 3's noise is an average of values between those of d."""
    for _ in range(20):
        _, d, S = oracle(n, heteroskedastic=True)
        eigenvalues = torch.linalg.eigvalsh(S).flip(0)
        rounding = 1e-13 * float(eigenvalues[0])
        assert (d[:-1] >= eigenvalues[1:] - rounding).all()
        assert (eigenvalues >= d - rounding).all()
        for rank in range(1, n):
            noise = eigenvalues[rank:].mean()
            assert d[rank:].mean() - rounding <= noise <= d[rank - 1 : -1].mean() + rounding


# Mercer and Karhunen-Loeve (Theorems 1 and 4) -------------------------------------------------------------------------


class Mercer(nn.Module):
    """The basis phi_i = sqrt(lambda_i) psi_i of a kernel on [-1, 1], the first r by eigenvalue.

    The eigenpairs of (C g)(x) = int k(x, x') g(x') dx' come from Gauss-Legendre quadrature, which is exact to rounding
    for a kernel this smooth; between its nodes psi_i(x) = 1 / lambda_i sum_j w_j k(x, x_j) psi_i(x_j).
    """

    def __init__(self, kernel: RBF, rank: int, nodes: int = 64) -> None:
        super().__init__()
        self.kernel, self.rank = kernel, rank
        at, weight = np.polynomial.legendre.leggauss(nodes)
        self.at, self.weight = torch.from_numpy(at)[:, None], torch.from_numpy(weight)
        root = self.weight.sqrt()
        eigenvalues, V = torch.linalg.eigh(root[:, None] * kernel.kernel(self.at, self.at) * root)
        self.eigenvalues = eigenvalues.flip(0)[:rank]
        self.psi_at = (V / root[:, None]).flip(1)[:, :rank]

    def psi(self, x: Tensor) -> Tensor:
        return self.kernel.kernel(x, self.at) @ (self.weight[:, None] * self.psi_at) / self.eigenvalues

    def forward(self, x: Tensor) -> Features:
        phi = self.eigenvalues.sqrt() * self.psi(x)
        prior_var = phi.square().sum(-1)
        return Features(phi, prior_var, torch.zeros_like(prior_var), torch.zeros((), dtype=torch.int32))


def rbf_on_interval() -> RBF:
    """k(x, x') = 1.3 exp(-(x - x')^2 / (2 0.4^2))."""
    kernel = RBF(1, 1).double().requires_grad_(False)
    kernel.log_lengthscale.fill_(math.log(0.4))
    kernel.log_variance.fill_(math.log(1.3))
    return kernel


GRID = torch.linspace(-1.0, 1.0, 41, dtype=torch.float64)[:, None]


def test_eigenfunctions_are_orthonormal() -> None:
    """int psi_i psi_j = delta_ij, and the eigenvalues sum up to int k(x, x) dx = 2 sigma_k^2."""
    mercer = Mercer(rbf_on_interval(), 12)
    at, weight = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(90))  # other nodes than its own
    psi = mercer.psi(at[:, None])
    torch.testing.assert_close(
        psi.mT @ (weight[:, None] * psi), torch.eye(12, dtype=torch.float64), rtol=0.0, atol=1e-8
    )
    torch.testing.assert_close(mercer.eigenvalues.sum(), torch.tensor(2.6, dtype=torch.float64), rtol=1e-6, atol=0.0)


def test_mercer_expansion_converges_uniformly() -> None:
    """Theorem 1, Eq. 9: sup |k - sum_(i <= r) lambda_i psi_i psi_i| falls with every r, here below 1e-8 at r = 15.

    What is missing is positive semi-definite, so its supremum is on the diagonal.
    """
    kernel = rbf_on_interval()
    K = kernel.kernel(GRID, GRID)
    phi = Mercer(kernel, 15)(GRID).phi
    last = float(K.max())
    for r in range(1, 16):
        missing = K - phi[:, :r] @ phi[:, :r].mT
        error = float(missing.abs().max())
        assert error < last
        assert error <= float(missing.diagonal().max()) + 1e-10
        last = error
    assert last < 1e-8


def test_features_are_scaled_by_the_eigenvalues() -> None:
    """Sec. 3.1 prints phi = sqrt(r) psi; it is sqrt(lambda) psi that gives the kernel."""
    kernel = rbf_on_interval()
    mercer = Mercer(kernel, 12)
    K, printed = kernel.kernel(GRID, GRID), math.sqrt(12) * mercer.psi(GRID)
    assert float((K - mercer(GRID).phi @ mercer(GRID).phi.mT).abs().max()) < 1e-5
    assert float((K - printed @ printed.mT).abs().max()) > 10.0


def test_karhunen_loeve() -> None:
    """Theorem 4, Eq. 17: draws sum_i w_i sqrt(lambda_i) psi_i, w ~ N(0, I), have mean 0 and covariance k.

    Of 40,000 draws; the standard error of a covariance is at most sigma_k^2 sqrt(2 / draws) = .0092, of a mean .0057,
    and five of them are allowed for.
    """
    kernel, draws = rbf_on_interval(), 40_000
    model = DeepBasisGP(Identity(1), Mercer(kernel, 14), WeightPosterior(14), GaussianLikelihood()).double()
    f = model.sample_functions(draws, prior=True, generator=torch.Generator().manual_seed(0))(GRID)
    covariance = f.mT @ f / draws
    assert float((covariance - kernel.kernel(GRID, GRID)).abs().max()) < 5.0 * 1.3 * math.sqrt(2.0 / draws)
    assert float(f.mean(0).abs().max()) < 5.0 * math.sqrt(1.3 / draws)
    # Gaussian, not of the right covariance alone: E f^4 = 3 var^2 with standard error var^2 sqrt(96 / draws).
    kurtosis = f.pow(4).mean(0) / 1.3**2
    assert float((kurtosis - 3.0).abs().max()) < 5.0 * math.sqrt(96.0 / draws)
