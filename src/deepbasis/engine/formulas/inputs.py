"""What the projection sees: the columns, and perhaps others made of them."""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from deepbasis.gp.embedding import Fourier, PeriodicLinear

TURN = 2.0 * math.pi

Parameters = Mapping[str, Tensor]
"""Stacked, [E, ...], by name."""


class InputBuffers(Protocol):
    """What is needed of `network.Buffers` here."""

    x: Tensor
    """[E, d, b], as all that follows it."""
    made: Tensor
    dmade: Tensor
    waves: Tensor
    slopes: Tensor


def centred(W: Tensor) -> Tensor:
    """A layer [E, h, ...] that writes to the residual stream; or its gradient, since this is a projection."""
    return W - W.mean(1, keepdim=True)


class Inputs:
    """The columns alone."""

    made = angles = 0
    """How many more there are, and of how many angles they are made."""

    def __init__(self, p: Parameters, buffers: Parameters) -> None:
        self.projection = centred(p["backbone.project.weight"])
        """[E, h, d + made]."""

    def forwards(self, at: InputBuffers) -> None:
        """From columns `x` to `made`."""

    def gradients(self, dprojection: Tensor, at: InputBuffers) -> dict[str, Tensor]:
        """From `dmade`, too."""
        return {"backbone.project.weight": centred(dprojection)}


class PeriodicInputs(Inputs):
    """`PeriodicLinear`: W_j cos(2 pi (c_j x_j + b_j))."""

    def __init__(self, p: Parameters, buffers: Parameters) -> None:
        super().__init__(p, buffers)
        c, b, W = (p[f"backbone.embedding.{name}"] for name in "cbW")
        self.d, self.k, outputs = W.shape[1:]
        self.made, self.angles = self.d * outputs, self.d * self.k
        self.W = W.flatten(0, 1)  # [E d, k, o]
        self.turns, self.start = (TURN * c)[..., None], (TURN * b)[..., None]

    def _by_column(self, values: Tensor) -> Tensor:
        """[E d, k or o, b] of [E, d k or d o, b]."""
        return values.unflatten(1, (self.d, -1)).flatten(0, 1)

    def forwards(self, at: InputBuffers) -> None:
        torch.addcmul(self.start, at.x[:, :, None], self.turns, out=at.slopes.unflatten(1, (self.d, self.k)))
        torch.cos(at.slopes, out=at.waves)
        at.slopes.sin_()  # but for the sign
        torch.bmm(self.W.mT, self._by_column(at.waves), out=self._by_column(at.dmade))
        at.made.copy_(at.dmade)  # which has room, and is not in the way yet: `made` is a part of F

    def gradients(self, dprojection: Tensor, at: InputBuffers) -> dict[str, Tensor]:
        dmade = self._by_column(at.dmade)
        dW = torch.bmm(self._by_column(at.waves), dmade.mT).view(len(at.x), self.d, self.k, -1)
        torch.bmm(self.W, dmade, out=self._by_column(at.waves))
        dangles = at.waves.mul_(at.slopes).unflatten(1, (self.d, self.k))
        return {
            **super().gradients(dprojection, at),
            "backbone.embedding.W": dW,
            "backbone.embedding.b": -TURN * dangles.sum(3),
            "backbone.embedding.c": -TURN * dangles.mul_(at.x[:, :, None]).sum(3),
        }


class FourierInputs(Inputs):
    """`Fourier`: a sin(2 pi B x) and a cos(2 pi B x), whose sizes a go into the projection."""

    def __init__(self, p: Parameters, buffers: Parameters) -> None:
        super().__init__(p, buffers)
        self.turns = TURN * p["backbone.embedding.B"].mT  # [E, k, d]
        self.half, d = self.turns.shape[1:]
        self.made = self.angles = 2 * self.half
        a = buffers["backbone.embedding.amplitude"].to(self.turns)
        self.sizes = torch.cat([a.new_ones(len(a), d), a, a], 1)[:, None]
        self.projection *= self.sizes

    def forwards(self, at: InputBuffers) -> None:
        sines, cosines = at.made.split(self.half, 1)
        of_sines, of_cosines = at.slopes.split(self.half, 1)
        angles = torch.bmm(self.turns, at.x)
        torch.sin(angles, out=sines)
        torch.cos(angles, out=cosines)
        of_sines.copy_(cosines)
        torch.neg(sines, out=of_cosines)

    def gradients(self, dprojection: Tensor, at: InputBuffers) -> dict[str, Tensor]:
        of_sines, of_cosines = at.dmade.mul_(at.slopes).split(self.half, 1)
        return {
            **super().gradients(dprojection * self.sizes, at),
            "backbone.embedding.B": TURN * torch.bmm(at.x, of_sines.add_(of_cosines).mT),
        }


INPUTS: dict[type, type[Inputs]] = {type(None): Inputs, PeriodicLinear: PeriodicInputs, Fourier: FourierInputs}
