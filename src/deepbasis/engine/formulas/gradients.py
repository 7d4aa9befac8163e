"""`Gradients`: what takes the place of autograd in a step, where formulas cover what a wave trains."""

import logging
import math

import torch
from torch import Tensor

from deepbasis.engine.batches import Batch
from deepbasis.engine.formulas.inputs import INPUTS, TURN
from deepbasis.engine.formulas.network import Buffers, Network
from deepbasis.engine.members import Stack
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Batches
from deepbasis.gp.backbone import ResNet
from deepbasis.gp.embedding import PeriodicLinear
from deepbasis.gp.expansion import SiLU
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP, Terms
from deepbasis.gp.posterior import WeightPosterior

log = logging.getLogger("deepbasis")


def gradients_for(
    stack: Stack, source: Batches, settings: Settings, alpha: Tensor, kl_weight: Tensor
) -> "Gradients | None":
    """Those of a wave's steps, if they are covered; otherwise the log says why not."""
    if not settings.fused or settings.compile or stack.device.type != "cpu":
        return None
    reason = _uncovered(stack.template, source, settings, alpha)
    if reason is None:
        return Gradients(stack, kl_weight)
    log.info("gradients are those of autograd, and not of formulas: %s", reason)
    return None


def _uncovered(model: DeepBasisGP, source: Batches, settings: Settings, alpha: Tensor) -> str | None:
    if settings.objective not in ("dppgp", "dppgp-detached", "ppgp") or settings.precision == "bf16":
        return f"they do not know the objective {settings.objective} in {settings.precision}"
    if settings.objective != "ppgp" and bool((alpha != 0).any()):
        return "they know no trace term (alpha)"
    if not source.team.alone:
        return "they are for one worker"
    backbone, likelihood = model.backbone, model.likelihood
    if type(backbone) is not ResNet or type(model.expansion) is not SiLU:
        return "they are for a ResNet with a SiLU expansion"
    embedding = backbone.embedding
    if type(embedding) not in INPUTS or (
        isinstance(embedding, PeriodicLinear) and embedding.numbers < embedding.columns
    ):
        return f"they do not know this embedding, {type(embedding).__name__}, or columns of 0 and 1 before it"
    if type(likelihood) is not GaussianLikelihood or likelihood.parameterisation != "log":
        return "they know a Gaussian likelihood alone, with the logarithm of its noise"
    if type(model.posterior) is not WeightPosterior or model.posterior.m.dim() != 1:
        return "they know one function, with one q(w)"
    return None


class Gradients:
    """Losses of all members on a batch, whose gradients become those of the leaves."""

    def __init__(self, stack: Stack, kl_weight: Tensor) -> None:
        self._stack, self._kl_weight = stack, kl_weight
        self._buffers_of_models = {name: stack.with_axis(value) for name, value in stack.buffers.items()}
        self._rooms: dict[int, Buffers] = {}
        """By the number of rows."""

    @torch.no_grad()
    def losses(self, batch: Batch) -> Tensor:
        """[E]: Eq. 15 without its trace term."""
        x, y, weight, _ = batch
        share = y.new_ones(()) / y.shape[-1] if weight is None else weight / weight.sum(-1, keepdim=True)
        network, at = self._at(x)
        mean, var = network.forwards(at)
        var += network.noise
        error = y - mean
        scaled = error / var
        loss = 0.5 * (share * (var.log() + error * scaled)).sum(1) + self._kl_weight * network.kl()
        dvar = 0.5 * share * (var.reciprocal() - scaled * scaled)
        for name, gradient in network.gradients(at, -share * scaled, dvar, self._kl_weight).items():
            # Contiguous: torch's fused AdamW takes the numbers of a gradient as they lie, whatever its strides are.
            self._stack.leaves[name].grad = (gradient if self._stack.size > 1 else gradient[0]).contiguous()
        return loss + 0.5 * math.log(TURN)

    def terms(self, x: Tensor) -> Terms:
        """What all members say of rows [n, d]; without the KL, which no prediction needs."""
        network, at = self._at(x)
        mean, var = network.forwards(at)
        prior_var = torch.square(at.a_phi * network.s[:, None]).sum(2)
        nothing = torch.zeros_like(network.exp_raw)
        return Terms(mean, var, prior_var, torch.zeros_like(mean), nothing, nothing.int())

    def _at(self, x: Tensor) -> tuple[Network, Buffers]:
        """The parameters as they are now, and buffers for rows [b, d] or [E, b, d], with these in them."""
        network, rows = Network(self._stack.template, self._stack.stacked(), self._buffers_of_models), x.shape[-2]
        if rows not in self._rooms:
            self._rooms[rows] = Buffers(network, rows)
        at = self._rooms[rows]
        at.x.copy_(x.mT)
        return network, at
