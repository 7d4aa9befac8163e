"""`StudentLikelihood`: heavy tails in the objective itself, so that outliers do not pull the function."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from deepbasis.gp.likelihoods import GaussianLikelihood, Moments, Target
from deepbasis.gp.predictive import GaussianMixture, Predictive, gaussian_nll
from deepbasis.gp.warps import normal_rule

_FEWEST, _MOST = math.log(2.5), math.log(100.0)  # degrees of freedom: fewer have hardly a variance, more are a Gaussian
_START = 8.0
_ROWS = 65  # of the table of precisions
_FARTHEST, _NODES = 6.0, 17


def _precisions() -> tuple[Float[Tensor, "d q"], Float[Tensor, " q"]]:
    """log of lambda ~ Gamma(nu / 2, nu / 2) at normal scores z, for evenly spaced log nu; and the shares of the z."""
    special: Any = import_module("scipy.special")
    z = np.linspace(-_FARTHEST, _FARTHEST, _NODES)
    half = 0.5 * np.exp(np.linspace(_FEWEST, _MOST, _ROWS))[:, None]
    lower, upper = special.gammaincinv(half, special.ndtr(z)), special.gammainccinv(half, special.ndtr(-z))
    shares = np.exp(-0.5 * z**2)
    found = np.log(np.where(z < 0, lower, upper) / half)  # each with the digits of its tail
    return torch.from_numpy(found), torch.from_numpy(shares / shares.sum())


_TABLE, _SHARES = _precisions()


class StudentLikelihood(GaussianLikelihood):
    """y = f + noise of Student's t: a mixture of Gaussians of the variances c / lambda, lambda ~ Gamma(nu / 2, nu / 2).

    The noise is the variance of the mixture, as of a Gaussian. The degrees of freedom nu are trained beside it. With 17
    values of lambda, of fixed shares, a prediction is a mixture of as many Gaussians, with a closed form for all that
    follows. Its log density is that of Student's t to a few hundredths, where that is not below -8.
    """

    table: Tensor
    log_shares: Tensor

    def __init__(self, noise: float | None = 1e-2) -> None:
        super().__init__(noise)
        share = (math.log(_START) - _FEWEST) / (_MOST - _FEWEST)
        self.raw_degrees = nn.Parameter(torch.tensor(math.log(share / (1.0 - share))))
        self.register_buffer("table", _TABLE.float(), persistent=False)  # on the device: a step copies nothing to it
        self.register_buffer("log_shares", _SHARES.log().float(), persistent=False)

    def log_degrees(self) -> Float[Tensor, ""]:
        """log nu"""
        return _FEWEST + (_MOST - _FEWEST) * self.raw_degrees.sigmoid()

    def variances(self) -> Float[Tensor, " q"]:
        """Of the noise, for each lambda; their mean is the noise."""
        table, shares = self.table.to(self.raw.dtype), self.log_shares.to(self.raw.dtype).softmax(0)
        place = (self.log_degrees() - _FEWEST) * ((_ROWS - 1) / (_MOST - _FEWEST))
        row = place.detach().floor().clamp(0, _ROWS - 2).long()
        log_precision = torch.lerp(table[row], table[row + 1], place - row)
        relative = (-log_precision).exp()
        return self.noise() * relative / (shares @ relative)

    def log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """log sum_q share_q N(y; mean, var + s_q)"""
        each = -gaussian_nll(y, mean, var + self.variances()[:, None])
        return torch.logsumexp(each + self.log_shares.to(mean.dtype)[:, None], 0)

    def expected_log_density(self, y: Target, mean: Moments, var: Moments) -> Float[Tensor, " b"]:
        """By quadrature over f."""
        nodes, shares = normal_rule(mean)
        f = mean + var.sqrt() * nodes[:, None]
        each = -gaussian_nll(y, f, self.variances()[:, None, None])
        return shares @ torch.logsumexp(each + self.log_shares.to(mean.dtype)[:, None, None], 0)

    def curvature(self, var: Moments) -> Moments:
        """In the middle, where it is largest: the mean of 1 / v_q by share_q / sqrt(v_q), with v_q = var + s_q."""
        v = var + self.variances()[:, None]
        shares = (self.log_shares.to(var.dtype)[:, None] - 0.5 * v.log()).softmax(0)
        return (shares / v).sum(0)

    def predictive(self, mean: Moments, var: Moments) -> tuple[Tensor, Tensor]:
        return mean, var[:, None] + self.variances()

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        means, variances = parts if parts[0].dim() == 2 else (part[None] for part in parts)
        shares = _SHARES.to(means.device).repeat_interleave(len(means)) / len(means)
        return GaussianMixture(means.repeat(_NODES, 1), torch.cat(variances.unbind(-1)), shares)
