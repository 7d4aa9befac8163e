"""q(w) = N(m, L L^T), the distribution of the weights (Appendix B, "Variational distribution")."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from deepbasis.errors import NumericalError, check_positive_int


class WeightPosterior(nn.Module):
    """q(w) with L lower triangular: its log-diagonal and its strictly lower part are the parameters.

    NOTE[GAP]: the paper gives an "offset of -1/2 log r" for the log-diagonal and a scale 1/r for the rest, which are
    read as m ~ N(0, I), log diag L ~ N(0, 1) - 1/2 log r, off-diagonal ~ N(0, 1)/r. From m = 0 it trains far slower.

    With `latents` there are so many functions on one basis: each has a mean m_k, and all have the covariance L L^T, or
    each an `own` one, L_k L_k^T.
    """

    def __init__(self, rank: int, latents: int = 0, own: bool = False) -> None:
        super().__init__()
        self.rank = r = check_positive_int("rank", rank)
        self.functions, self.covariances = max(1, latents), latents if own else 1
        self.m = nn.Parameter(torch.randn(latents, r) if latents else torch.randn(r))
        of_L = torch.randn(r) - 0.5 * math.log(r), torch.randn(r, r).tril(-1) / r
        if own:  # all start at the same
            of_L = of_L[0].repeat(latents, 1), of_L[1].repeat(latents, 1, 1)
        self.log_diagonal, self.lower = map(nn.Parameter, of_L)

    def L(self) -> Float[Tensor, "*k r r"]:
        return self.lower.tril(-1) + torch.diag_embed(self.log_diagonal.exp())

    def forward(self, phi: Float[Tensor, "b r"]) -> tuple[Float[Tensor, "b *l"], Float[Tensor, "b *k"]]:
        """Mean <m, phi>, of each function, and variance ||L^T phi||^2 of <w, phi>, of each L."""
        L = self.L()
        Lt_phi = phi @ (L if L.dim() == 2 else L.transpose(0, 1).flatten(1))
        mean = (phi * self.m).sum(-1) if self.m.dim() == 1 else phi @ self.m.mT
        return mean, (Lt_phi * Lt_phi).unflatten(-1, (*L.shape[:-2], self.rank)).sum(-1)

    def covariance(self, phi: Float[Tensor, "b r"]) -> Float[Tensor, "b b"]:
        """Of <w, phi> between rows: Phi L L^T Phi^T."""
        Lt_phi = phi @ self.L()
        return Lt_phi @ Lt_phi.mT

    def kl(self) -> Float[Tensor, ""]:
        """KL(q(w) || N(0, I)) = 1/2 (||L||_F^2 + ||m||^2 - r) - sum log diag L, summed over the functions."""
        L2 = self.lower.tril(-1).square().sum() + (2.0 * self.log_diagonal).exp().sum()
        of_each_L = self.functions // self.covariances  # functions
        of_L = 0.5 * L2 - self.log_diagonal.sum()
        return of_each_L * of_L + 0.5 * (self.m.square().sum() - self.functions * self.rank)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s r"]:
        """Independent draws w = m + L e; of several functions, of the first."""
        e = torch.randn(count, self.rank, dtype=self.m.dtype, device=self.m.device, generator=generator)
        L = self.L()
        return (self.m if self.m.dim() == 1 else self.m[0]) + e @ (L if L.dim() == 2 else L[0]).mT

    @staticmethod
    def parameters_of(m: Float[Tensor, "*l r"], covariance: Float[Tensor, "*l r r"]) -> dict[str, Tensor]:
        """The parameters, by name, of a q(w) computed elsewhere; NaN if the covariance cannot be factorised."""
        L, info = torch.linalg.cholesky_ex(covariance.double())
        L = torch.where(info[..., None, None] == 0, L, math.nan)
        return {"m": m, "log_diagonal": L.diagonal(dim1=-2, dim2=-1).log(), "lower": L.tril(-1)}

    @torch.no_grad()
    def set_(self, m: Float[Tensor, "*l r"], covariance: Float[Tensor, "*l r r"]) -> None:
        """Adopt a mean and a covariance computed elsewhere, such as the closed form of Eq. 10."""
        found = self.parameters_of(m, covariance)
        if not all(bool(value.isfinite().all()) for value in found.values()):
            raise NumericalError("q(w) cannot be set: its covariance is not positive definite to working precision")
        for name, value in found.items():
            self.get_parameter(name).copy_(value)


class PointWeights(nn.Module):
    """Weights without a distribution: the last layer of the DNN. Variance and KL are zero.

    NOTE[GAP]: "a linear layer" is PyTorch's, with its initialisation U(-1/sqrt(r), 1/sqrt(r)); its bias is the model's
    constant mean.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = r = check_positive_int("rank", rank)
        self.m = nn.Parameter((torch.rand(r) * 2.0 - 1.0) / math.sqrt(r))

    def forward(self, phi: Float[Tensor, "b r"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        mean = (phi * self.m).sum(-1)
        return mean, torch.zeros_like(mean)

    def covariance(self, phi: Float[Tensor, "b r"]) -> Float[Tensor, "b b"]:
        return phi.new_zeros(len(phi), len(phi))

    def kl(self) -> Float[Tensor, ""]:
        return torch.zeros_like(self.m[0])

    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "s r"]:
        return self.m.expand(count, self.rank)
