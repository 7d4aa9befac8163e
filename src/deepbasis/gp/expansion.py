"""Expansions: from the backbone's output g(x) in R^h to the r basis functions phi(x) (Eq. 12, 13, 16).

An expansion is any module, made as `cls(h, rank, jitter=...)`, with an attribute `rank`, whose `forward(g)` returns
`Features`. It may name its `kernel_parameters`, which have a learning rate of their own, have a method
`start_at(g, generator)` if it starts from data, and `log_prior()` if its parameters have one in exact training.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from deepbasis.errors import check_number, check_positive_int
from deepbasis.gp.precision import full_product

JITTER = 1e-4
"""On the diagonal of K_ZZ, relative to it: in float32 a smaller one leaves fewer correct digits in a whitened basis."""

ALIKE = 0.3
"""How far the logarithms of lengthscales are from their mean without cost; docs/recipe.md."""

_LEAST_SHARE = 1e-3  # of the slopes: such a column hardly counts


class Features(NamedTuple):
    phi: Float[Tensor, "b r"]
    prior_var: Float[Tensor, " b"]
    """k(x, x) = ||phi(x)||^2."""
    correction: Float[Tensor, " b"]
    """k~(x, x) - ||phi(x)||^2 >= 0 (Eq. 4): what phi misses of the full kernel k~; zero if there is none."""
    info: Int[Tensor, ""]
    """0, or the pivot at which a factorisation failed; phi is then NaN. Check it outside a compiled graph."""


class SiLU(nn.Module):
    """phi(x) = s * silu(W g(x) + b) (Eq. 13), the expansion of DBK-SiLU and VBLL.

    The diagonal factor s starts as a random sign over sqrt(r) (Appendix B). There is no full kernel behind this basis.
    """

    def __init__(self, h: int, rank: int, *, jitter: float = JITTER) -> None:
        super().__init__()
        check_positive_int("h", h)
        self.rank = check_positive_int("rank", rank)
        self.linear = nn.Linear(h, rank)
        sign = torch.randint(0, 2, (rank,)) * 2.0 - 1.0
        self.scale = nn.Parameter(sign / math.sqrt(rank))

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        phi = silu(self.linear(g)) * self.scale
        return _without_correction(phi)


class RBF(nn.Module):
    """phi(x) = K_ZZ^(-1/2) k_Z(g(x)) (Eq. 12), with the ARD kernel of Eq. 16 and r learnable inducing points Z.

    Far from every inducing point phi(x) -> 0. A prediction with this basis alone is then *certain* (its function
    variance goes to 0) exactly where nothing is known. Only with the correction of Eq. 4, which SV-DKL and PP-DKL
    predict with, does the variance return to its prior value sigma_k^2. DBK-RBF predicts without it.

    NOTE[GAP]: the paper says neither which root K_ZZ^(-1/2) is nor its jitter. We take the inverse Cholesky factor,
    which gives the same kernel as the symmetric root, and a jitter relative to the mean diagonal of K_ZZ.
    NOTE[GAP]: the initial sigma_k^2 is not given; we start at 1.

    With `linear` there is a linear kernel beside it, k~(x, x') = Eq. 16 + a^2 sum_j g_j(x) g_j(x') / l_j^2. That needs
    no inducing points: its h basis functions a g_j(x) / l_j are exact, and come after the r others, so that the
    correction stays that of Eq. 16.

    NOTE[DIFF]: the paper has no linear kernel. An RBF kernel alone says a straight line by a variance and lengthscales
    that have no end.

    Squared distances are ||a||^2 + ||b||^2 - 2 <a, b>, a matrix product. About 100 lengthscales away from the middle of
    the inducing points float32 has lost their digits, and ||phi||^2 may pass sigma_k^2. A backbone's output never comes
    near that; the inputs of a shallow kernel should be scaled.
    """

    kernel_parameters = ("log_lengthscale", "log_variance", "log_slope")

    def __init__(self, h: int, rank: int, *, linear: bool = False, jitter: float = JITTER) -> None:
        super().__init__()
        check_positive_int("h", h)
        self.rank = check_positive_int("rank", rank) + (h if linear else 0)
        self.jitter = check_number("jitter", jitter, at_least=0.0)
        self.Z = nn.Parameter(torch.rand(rank, h) * 2.0 - 1.0)  # uniform in [-1, 1]^h
        self.log_lengthscale = nn.Parameter(torch.full((h,), 0.5 * math.log(h)))  # l_j = sqrt(h)
        self.log_variance = nn.Parameter(torch.zeros(()))
        # At the start the variances of the slopes sum to 1 / h.
        self.log_slope = nn.Parameter(torch.tensor(-0.5 * math.log(h))) if linear else None

    @torch.no_grad()
    def start_at(self, g: Float[Tensor, "n h"], generator: torch.Generator) -> None:
        """Put the inducing points at distinct rows, drawn at random.

        The draw depends neither on the order of the rows nor on copies. If there are too few rows, the remaining points
        stay where they are.

        NOTE[DIFF]: the paper starts them uniformly in [-1, 1]^h, where with a shallow kernel no data may be.
        """
        distinct = torch.unique(g, dim=0)
        order = torch.randperm(len(distinct), generator=generator)[: len(self.Z)]
        self.Z[: len(order)] = distinct[order].to(self.Z)

    @torch.no_grad()
    def start_as_steep_as(self, slopes: Float[Tensor, " h"]) -> None:
        """Lengthscales by how steep a function is along each column: l_j = ||s|| / s_j, sqrt(h) if all are alike.

        NOTE[DIFF]: the paper starts them all alike. Where few of many columns count, the likelihood has next to no
        slope there. A network's slopes tell which these are.
        """
        share = (slopes / slopes.norm()).clamp_min(_LEAST_SHARE)
        if bool(share.isfinite().all()):  # a constant says nothing
            self.log_lengthscale.copy_(-share.log())

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        root, info = self._inverse_root()
        phi = full_product(self._cross_kernel(g), root.mT)
        prior_var = (phi * phi).sum(-1)
        correction = (self.log_variance.exp() - prior_var).clamp_min(0.0)
        if self.log_slope is not None:
            lines = g * (self.log_slope - self.log_lengthscale).exp()
            phi, prior_var = torch.cat([phi, lines], -1), prior_var + (lines * lines).sum(-1)
        return Features(phi, prior_var, correction, info)

    def kernel(self, g: Float[Tensor, "a h"], g2: Float[Tensor, "b h"]) -> Float[Tensor, "a b"]:
        """Eq. 16, the full kernel k~ itself, from direct differences; with the linear one, if there is one."""
        difference = (g[:, None, :] - g2[None, :, :]) / self.log_lengthscale.exp()
        smooth = self.log_variance.exp() * torch.exp(self.log_correlation(difference.square().sum(-1)))
        if self.log_slope is None:
            return smooth
        return smooth + (g * (2.0 * (self.log_slope - self.log_lengthscale)).exp()) @ g2.mT

    def log_prior(self) -> Float[Tensor, ""]:
        """Columns are alike until the rows say otherwise: -sum_j log(1 + (log l_j - mean)^2 / c^2), with c = 0.3.

        Cauchy's density of each, but for a constant. How long they are in all is free. Its tails are heavy: a column
        that does not count costs about five nats, once, however many rows there are.

        NOTE[DIFF]: the paper has no prior. A lengthscale for each column then fits any few rows.
        """
        apart = (self.log_lengthscale - self.log_lengthscale.mean()) / ALIKE
        return -torch.log1p(apart * apart).sum()

    def log_correlation(self, squared_distance: Tensor) -> Tensor:
        """Of f at points this far apart, in lengthscales."""
        return -0.5 * squared_distance

    def _scaled(self, g: Tensor) -> Tensor:
        # Distances do not change when both sides move: near the origin ||a||^2 + ||b||^2 - 2ab cancels least.
        return (g - self.Z.mean(0)) / self.log_lengthscale.exp()

    def _cross_kernel(self, g: Float[Tensor, "b h"]) -> Float[Tensor, "b r"]:
        return torch.exp(
            self.log_variance + self.log_correlation(_squared_distance(self._scaled(g), self._scaled(self.Z)))
        )

    def _inverse_root(self) -> tuple[Float[Tensor, "r r"], Int[Tensor, ""]]:
        """The inverse Cholesky factor of K_ZZ + jitter. Its value is always computed in float64: it decides a variance.

        One inverse, then a product with each batch, costs half of a triangular solve with each batch.
        """
        Z = self._scaled(self.Z).double()
        variance = self.log_variance.exp().double()
        eye = torch.eye(len(Z), dtype=torch.float64, device=Z.device)
        squared_distance = _squared_distance(Z, Z) * (1.0 - eye)  # exactly zero on the diagonal
        # Rounding errs by about eps ||z||^2 in each distance: nothing, except for points 10^6 lengthscales out.
        rounding = len(Z) * torch.finfo(torch.float64).eps * (Z.detach() * Z.detach()).sum(-1).amax()
        K = variance * (torch.exp(self.log_correlation(squared_distance)) + (self.jitter + rounding) * eye)
        return _inverse_cholesky(K, self.Z.dtype)


rbf_linear = partial(RBF, linear=True)


class Matern(RBF):
    """The same with a Matern kernel of smoothness 5/2, whose functions have two derivatives: for rougher ones.

    k~ = sigma_k^2 (1 + a + a^2 / 3) exp(-a), where a is sqrt(5) times the distance in lengthscales.
    """

    def log_correlation(self, squared_distance: Tensor) -> Tensor:
        # The root has no derivative at 0, where k~ has one, 0: points nearer than rounding do not move each other.
        a = (5.0 * squared_distance.clamp_min(torch.finfo(squared_distance.dtype).eps)).sqrt()
        return torch.log1p(a + a * a / 3.0) - a


class Columns(nn.Module):
    """phi(x) = [a g(x), 1], of rank h + 1: a straight line with slopes from N(0, a^2), as a ridge regression has them.

    The intercept is from N(0, 1). Without it centred columns and a centred target have a direction in which nothing is
    left, and with more columns than rows the likelihood would find that there is no noise.

    NOTE[DIFF]: not in the paper. On few rows, or where a line is all that there is, nothing is better.
    """

    kernel_parameters = ("log_slope",)

    def __init__(self, h: int, rank: int | None = None, *, jitter: float = JITTER) -> None:
        super().__init__()
        self.rank = check_positive_int("h", h) + 1
        self.log_slope = nn.Parameter(torch.tensor(-0.5 * math.log(h)))  # the variances of the slopes sum to 1

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        return _without_correction(torch.cat([g * self.log_slope.exp(), torch.ones_like(g[:, :1])], 1))


class FourierFeatures(nn.Module):
    """phi(x) = sigma_k / sqrt(p) [cos(W g(x)), sin(W g(x))], p waves of random directions (Rahimi and Recht, 2007).

    At the start <phi(x), phi(x')> is, as the rank grows, the RBF kernel of Eq. 16 with lengthscales sqrt(h), or, with
    `degrees`, the Matern kernel of half that smoothness. W is then trained, as in a sparse spectrum GP (Lazaro-Gredilla
    et al., 2010). ||phi(x)||^2 is the same for every x. If the rank is odd, the last wave is a cosine alone.
    """

    kernel_parameters = ("log_variance",)

    def __init__(self, h: int, rank: int, *, degrees: int | None = None, jitter: float = JITTER) -> None:
        super().__init__()
        check_positive_int("h", h)
        self.rank = check_positive_int("rank", rank)
        waves = -(-rank // 2)
        W = torch.randn(waves, h)
        if degrees is not None:  # of freedom, of Student's t
            W = W / torch.randn(waves, check_positive_int("degrees", degrees)).square().mean(1, keepdim=True).sqrt()
        self.W = nn.Parameter(W / math.sqrt(h))
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        angle = full_product(g, self.W.mT)  # in tf32 the phase would be lost
        waves = torch.cat([angle.cos(), angle.sin()], 1)[:, : self.rank]
        return _without_correction(waves * (0.5 * self.log_variance).exp() / math.sqrt(len(self.W)))


matern_features = partial(FourierFeatures, degrees=5)


class BSplines(nn.Module):
    """phi_i(x) = c sigma_k B(<w_i, g(x)> + b_i): cubic B-splines along random directions, with knots spread evenly.

    B is 0 beyond 2. At the start <phi(x), phi(x')> is, as the rank grows, sigma_k^2 E B_7(<w, g(x) - g(x')>) / B_7(0),
    w ~ N(0, I / h), with B_7 the spline of degree 7 that B's correlation with itself is; where |<w, g(x)>| is below
    `REACH` - 2. Directions and knots are then trained.
    """

    kernel_parameters = ("log_variance",)
    REACH = 3.0

    def __init__(self, h: int, rank: int, *, jitter: float = JITTER) -> None:
        super().__init__()
        check_positive_int("h", h)
        self.rank = check_positive_int("rank", rank)
        self.W = nn.Parameter(torch.randn(rank, h) / math.sqrt(h))
        self.b = nn.Parameter(self.REACH * (2.0 * (torch.arange(rank) + torch.rand(rank)) / rank - 1.0))
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        t = linear(g, self.W, self.b).abs()
        # (2 - t)^3 / 6 - 4 (1 - t)^3 / 6, of what is positive
        spline = ((2.0 - t).clamp_min(0.0) ** 3 - 4.0 * (1.0 - t).clamp_min(0.0) ** 3) / 6.0
        c = math.sqrt(2.0 * self.REACH / self.rank * 315.0 / 151.0)  # B_7(0) = 151 / 315
        return _without_correction(c * (0.5 * self.log_variance).exp() * spline)


class ArcCos(nn.Module):
    """phi(x) = sigma_k sqrt(2 / r) relu(W g(x) + b), a wide layer of ReLUs (Cho and Saul, 2009).

    At the start <phi(x), phi(x')> is, as the rank grows, the arc-cosine kernel of order 1 of z = [g(x) / sqrt(h), 1]:
    sigma_k^2 |z| |z'| (sin t + (pi - t) cos t) / pi, with t the angle between z and z'. W and b are then trained.
    """

    kernel_parameters = ("log_variance",)

    def __init__(self, h: int, rank: int, *, jitter: float = JITTER) -> None:
        super().__init__()
        check_positive_int("h", h)
        self.rank = check_positive_int("rank", rank)
        self.W = nn.Parameter(torch.randn(rank, h) / math.sqrt(h))
        self.b = nn.Parameter(torch.randn(rank))
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        phi = linear(g, self.W, self.b).relu() * math.sqrt(2.0 / self.rank)
        return _without_correction(phi * (0.5 * self.log_variance).exp())


class PassThrough(nn.Module):
    """phi(x) = g(x), of rank h: the last layer of a plain network acts on the backbone's output itself (DNN)."""

    def __init__(self, h: int, rank: int | None = None, *, jitter: float = JITTER) -> None:
        super().__init__()
        self.rank = check_positive_int("h", h)

    def forward(self, g: Float[Tensor, "b h"]) -> Features:
        return _without_correction(g)


def _inverse_cholesky(K: Float[Tensor, "r r"], dtype: torch.dtype) -> tuple[Float[Tensor, "r r"], Tensor]:
    """R = L^-1 where K = L L^T, with its first derivative; NaN, and the pivot in `info`, if K is not positive definite.

    R is found without a graph; a change of K is then put through one Newton step towards the factor. With
    S = R dK R^T the factor of I + S is I + half(S) to first order, half(S) being the lower triangle with half of the
    diagonal, so that R - half(S) R has the first derivative of L^-1; and its value is R, since dK = K - K is zero. The
    gradient is then a few matrix products, where that of a Cholesky factor and an inverse is a chain of triangular
    solves. Second derivatives are not those of L^-1. The value is found in the precision of K; the result and the
    products that carry its derivative are in `dtype`.
    """
    L, info = torch.linalg.cholesky_ex(K.detach())
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    R = torch.linalg.solve_triangular(L, eye, upper=False)
    R = torch.where(info == 0, R, math.nan).to(dtype)
    S = full_product(full_product(R, (K - K.detach()).to(dtype)), R.mT)
    half = S.tril() - 0.5 * torch.diag_embed(S.diagonal())
    return R - full_product(half, R), info


def _squared_distance(a: Float[Tensor, "a h"], b: Float[Tensor, "b h"]) -> Float[Tensor, "a b"]:
    product = full_product(a, b.mT)
    return (a.square().sum(-1)[:, None] + b.square().sum(-1)[None, :] - 2.0 * product).clamp_min(0.0)


def _without_correction(phi: Float[Tensor, "b r"]) -> Features:
    prior_var = (phi * phi).sum(-1)
    no_failure = torch.zeros((), dtype=torch.int32, device=phi.device)
    return Features(phi, prior_var, torch.zeros_like(prior_var), no_failure)
