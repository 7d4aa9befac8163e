"""`Slopes`: how much wider predictions are where the nearest rows of the fit are far away.

Two things say how far the members of an ensemble may be from the truth at a row x:

- the way to the nearest row of the fit, by how steep the members are: h^2 = min_i sum_j s_j^2 (x_j - x_ij)^2, where
  s_j^2 is the mean square of their slopes along column j. A column that they do not depend on does not count;
- their disagreement: the standard deviation d of their means.

Each alone is too large somewhere: slopes where all members agree, disagreement on rows that all of them know. So each
variance v_e becomes

    v_e + 2/3 q (h - t / h)_+ d

with the 93 % quantile t of h^2 between rows of the fit, so that familiar rows keep what they have, and the
97.5 % quantile q of Student's distribution: two members say less of how large d is than four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.gp.model import DeepBasisGP

ROWS = 2_000
"""Rows of the fit that distances are to."""

STEEP_ROWS = 500
"""Enough to learn the slopes from."""

_USUAL = 0.93  # of the rows of the fit are nearer to another one
_TIMES = 2.0 / 3.0
_LARGEST_ADDED = 1.0  # about the variance of the target, in the units that it is trained in
_ROWS_AT_A_TIME = 128  # their distances stay in the cache
_TINY = 1e-30


@dataclass(frozen=True)
class Slopes:
    steep: Float[Tensor, " d"]
    """s."""
    rows: Float[Tensor, "m d"]
    """Of the fit, each column times its s."""
    usual: Float[Tensor, " one"]
    """t, the only number of it."""

    @classmethod
    def fit(cls, models: Sequence[DeepBasisGP], x: Float[Tensor, "n d"]) -> Slopes | None:
        """Of the members, and encoded rows of the fit: some at random. None of one member, or of rows all alike."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        some = x[order[:ROWS]].float()
        distinct = torch.unique(some, dim=0)  # beside its copy no row is far from another one
        if min(len(models), len(distinct)) < 2:
            return None
        steep = steepness(models, some[:STEEP_ROWS])
        found = cls(steep, distinct * steep, torch.zeros(1))
        usual = found._nearest(found.rows, others=True).quantile(_USUAL, dim=0, keepdim=True)
        return cls(found.steep, found.rows, usual)

    def added(self, means: Float[Tensor, "e b"], x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """What the variance of each member becomes larger by, from their means at encoded rows."""
        if len(means) == 1 or not len(x):
            return torch.zeros_like(means[0])
        squares = self._nearest(x.float().cpu() * self.steep)
        beyond = (squares - self.usual).clamp_min(0.0) / squares.clamp_min(_TINY).sqrt()
        times = _TIMES * _student(len(means) - 1)
        return (times * beyond.to(means) * means.std(0)).clamp_max(_LARGEST_ADDED)

    @cached_property
    def _sizes(self) -> Float[Tensor, " m"]:
        return self.rows.square().sum(1)

    def _nearest(self, z: Float[Tensor, "b d"], others: bool = False) -> Float[Tensor, " b"]:
        """The squared distance of scaled rows to the nearest of the fit; of these themselves, to the nearest other."""
        found = z.new_empty(len(z))
        for first in range(0, len(z), _ROWS_AT_A_TIME):
            part = z[first : first + _ROWS_AT_A_TIME]
            away = torch.addmm(self._sizes, part, self.rows.mT, alpha=-2.0)  # |z - r|^2 = |z|^2 + (|r|^2 - 2 z r)
            if others:
                away[range(len(part)), range(first, first + len(part))] = torch.inf
            found[first : first + len(part)] = (away.amin(1) + part.square().sum(1)).clamp_min(0.0)
        return found

    # ---- the file ----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {f"slopes.{one.name}": getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_tensors(cls, found: Mapping[str, Tensor], width: int, largest: float) -> Slopes | None:
        """What `tensors` gave, of a model of `width` encoded columns, no number beyond `largest`; None of nothing."""
        if not found:
            return None
        own = {name.removeprefix("slopes."): value for name, value in found.items()}
        sizes = {"steep": (width,), "rows": (*own.get("rows", torch.empty(0)).shape[:1], width), "usual": (1,)}
        if own.keys() != sizes.keys() or not 1 < sizes["rows"][0] <= ROWS:
            raise ValueError("the slopes of its distance have other parts")
        for name, values in own.items():
            if values.dtype != torch.float32 or values.shape != sizes[name]:
                raise ValueError(f"the {name} of its distance has another shape or type")
            if not bool((values.abs() <= largest).all()):
                raise ValueError(f"the {name} of its distance is not finite, or beyond {largest:g}")
        if bool((own["steep"] < 0.0).any()) or bool((own["usual"] < 0.0).any()):
            raise ValueError("the slopes of its distance are below 0")
        return cls(**own)


def steepness(models: Sequence[DeepBasisGP], x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The root mean square of the members' slopes along each column, at these rows."""
    squares = torch.zeros(x.shape[1], dtype=torch.float64)
    for model in models:
        at = x.to(next(model.parameters()), copy=True).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(model.mean_at(at).sum(), at)
        squares += slope.double().square().mean(0).cpu() / len(models)
    return squares.sqrt().float()


@cache
def _student(degrees: int) -> float:
    """The 97.5 % quantile of Student's distribution."""
    special: Any = import_module("scipy.special")
    return float(special.stdtrit(degrees, 0.975))
