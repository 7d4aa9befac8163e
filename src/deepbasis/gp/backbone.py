"""Backbones g: R^d -> R^h, the first of the two stages of a deep basis (Appendix B, "Network architecture")."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from deepbasis.errors import InputError, check_positive_int
from deepbasis.gp.norms import NORM_EPSILON


class ResNet(nn.Module):
    """The paper's backbone: a linear projection d -> h, pre-norm residual blocks, a final norm and SiLU.

    `inner` is the width inside a block (the paper's is h). `autocast` (`torch.bfloat16`) is the precision of the
    network's products only; the output has the input's dtype, since everything after it decides a variance. `embedding`
    (`gp/embedding.py`) turns the d columns into new ones, which are then projected.
    """

    def __init__(
        self,
        d: int,
        h: int = 64,
        *,
        blocks: int = 2,
        inner: int | None = None,
        autocast: torch.dtype | None = None,
        embedding: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d", d)
        check_positive_int("h", h)
        check_positive_int("blocks", blocks)
        inner = check_positive_int("inner", h if inner is None else inner)
        self.width = h
        self.autocast = autocast
        self.embedding = embedding
        self.project = nn.Linear(d if embedding is None else _width_of(embedding, d), h)
        self.blocks = nn.ModuleList(Block(h, inner) for _ in range(blocks))
        self.norm = nn.LayerNorm(h, NORM_EPSILON)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b h"]:
        if self.embedding is not None:
            x = self.embedding(x)
        if self.autocast is None:
            return self._network(x)
        with torch.autocast(x.device.type, self.autocast):
            return self._network(x).to(x.dtype)

    def _network(self, x: Float[Tensor, "b w"]) -> Float[Tensor, "b h"]:
        g = self.project(x)
        for block in self.blocks:
            g = g + block(g)
        return silu(self.norm(g))


def _width_of(embedding: nn.Module, d: int) -> int:
    columns = getattr(embedding, "columns", d)
    if columns != d:
        raise InputError(f"the embedding is for {columns} columns, the inputs have {d}")
    return check_positive_int("the embedding's width", getattr(embedding, "width", None))


class Block(nn.Module):
    """Norm, linear, SiLU, linear; the caller adds the residual connection."""

    def __init__(self, h: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(h, NORM_EPSILON)
        self.widen = nn.Linear(h, inner)
        self.narrow = nn.Linear(inner, h)

    def forward(self, g: Float[Tensor, "b h"]) -> Tensor:
        return self.narrow(silu(self.widen(self.norm(g))))


class Identity(nn.Module):
    """g(x) = x: the expansion sees the inputs themselves, which makes a shallow kernel (SV-RBF)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.width = check_positive_int("d", d)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return x
