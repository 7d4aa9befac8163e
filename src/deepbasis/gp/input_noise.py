"""`InputNoiseLikelihood`: noise that is a function of the inputs itself, `noise="input"`."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.predictive import GaussianMixture, Predictive, gaussian_nll

# Of Gauss and Hermite. On the CPU, even if this file is first read while a model is put together on another device.
_NODES = torch.tensor([-math.sqrt(3.0), 0.0, math.sqrt(3.0)], dtype=torch.float64, device="cpu")
_SHARES = torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=torch.float64, device="cpu")
_LEAST, _MOST = -14.0, 12.0  # of the log of the noise


class InputNoiseLikelihood(GaussianLikelihood):
    """y ~ N(f, s e^g), where g is a second function on the basis of f, with a q(w) of its own.

    The expectation over g is a sum over three nodes: log E p(y) = log sum_q share_q N(y; mean_f, var_f + s e^(g_q)).
    So a prediction is a mixture of three Gaussians, wider where little is known about the noise.

    NOTE[DIFF]: the paper's noise is constant, and its q(w) says where the target varies more (Eq. 15).
    """

    latents = 2
    own_covariances = True
    nodes: Tensor
    log_shares: Tensor

    def __init__(self, noise: float | None = 1e-2) -> None:
        super().__init__(noise)
        self.register_buffer("nodes", _NODES.float(), persistent=False)  # on the device: a step copies nothing
        self.register_buffer("log_shares", _SHARES.log().float(), persistent=False)

    def variances(self, mean: Float[Tensor, "b 2"], var: Float[Tensor, "b 2"]) -> Float[Tensor, "b 3"]:
        """Of y, for each node of g."""
        g = mean[:, 1:] + var[:, 1:].sqrt() * self.nodes.to(mean.dtype)
        return var[:, :1] + self.floor + (self.raw + g).clamp(_LEAST, _MOST).exp()

    def log_density(
        self, y: Float[Tensor, " b"], mean: Float[Tensor, "b 2"], var: Float[Tensor, "b 2"]
    ) -> Float[Tensor, " b"]:
        each = -gaussian_nll(y[:, None], mean[:, :1], self.variances(mean, var))
        return torch.logsumexp(each + self.log_shares.to(mean.dtype), 1)

    def expected_log_density(
        self, y: Float[Tensor, " b"], mean: Float[Tensor, "b 2"], var: Float[Tensor, "b 2"]
    ) -> Float[Tensor, " b"]:
        """E log N(y; f, s) = log N(y; mean_f, s) - var_f / (2 s), at each node of g."""
        s = self.variances(mean, torch.stack([torch.zeros_like(var[:, 0]), var[:, 1]], 1))
        each = -gaussian_nll(y[:, None], mean[:, :1], s) - var[:, :1] / (2.0 * s)
        return each @ self.log_shares.to(mean.dtype).exp()

    def predictive(self, mean: Float[Tensor, "b 2"], var: Float[Tensor, "b 2"]) -> tuple[Tensor, Tensor]:
        return mean[:, 0], self.variances(mean, var)

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        means, variances = parts if parts[0].dim() == 2 else (part[None] for part in parts)
        shares = _SHARES.to(means.device).repeat_interleave(len(means))
        return GaussianMixture(means.repeat(len(_NODES), 1), torch.cat(variances.unbind(-1)), shares / len(means))
