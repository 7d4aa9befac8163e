"""Where the operands of many members' weight gradients lie, and which products make them: for the kernels in `many.py`.

Each tensor of a tile's rows has a plane [rows, T] for every T of its columns. They lie in this order: the table's
columns; of each block the normalised rows, u, silu(u), the gradient in u, and that in what the block adds to; of the
head the normalised rows, s, t, phi, the gradients in L^T phi and in t; the gradient in the first block's g.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.engine.fused.arena import Layout


class Task(NamedTuple):
    """A part [T, T] of a weight's gradient: left^T right, of two planes."""

    left: int
    right: int
    begin: int
    """In a member's row of numbers."""
    row_size: int
    columns: int
    """How many of the T there are."""
    bias: int = -1
    """Where the sum of the left plane's rows goes; nowhere if -1."""
    affine: int = -1
    """Where the weights of a norm lie, whose result is what is really on the right; its biases lie H behind."""
    diagonal: int = -1
    """Of a part on L's diagonal: where the logarithms of the diagonal lie."""


@dataclass(frozen=True)
class Planes:
    """The planes of a model, as many as there are of each kind."""

    T: int
    of_columns: int
    of_width: int
    of_inner: int
    of_rank: int
    blocks: int

    @classmethod
    def of(cls, layout: Layout, columns: int) -> "Planes":
        H, R = layout.constants["H"], layout.constants["R"]
        inner = layout.arguments["inner"]
        T = min(64, H, R, inner)
        return cls(T, ceil(columns / T), H // T, inner // T, R // T, layout.arguments["count"])

    @property
    def of_block(self) -> int:
        return 2 * self.of_width + 3 * self.of_inner

    @property
    def head(self) -> int:
        return self.of_columns + self.blocks * self.of_block

    @property
    def count(self) -> int:
        return self.head + 3 * self.of_width + 4 * self.of_rank

    def tasks(self, layout: Layout, columns: int) -> Tensor:
        """[tasks, 8]: those of `Task`."""
        T, H, R, inner = self.T, layout.constants["H"], layout.constants["R"], layout.arguments["inner"]
        places, found = layout.places, []

        def product(parts: int, left: int, right: int, weight: str, bias: str, size: int, affine: int = -1) -> None:
            """Of `parts` planes on the left, and as many on the right as rows of `size` numbers have."""
            for i in range(parts):
                for j in range(-(-size // T)):
                    to = -1 if j else places[bias] + i * T
                    norm = -1 if affine < 0 else affine + j * T
                    begin = places[weight] + i * T * size + j * T
                    found.append(Task(left + i, right + j, begin, size, min(T, size - j * T), to, norm))

        before = self.head + 2 * self.of_width + 4 * self.of_rank
        product(self.of_width, before, 0, "backbone.project.weight", "backbone.project.bias", columns)
        for k in range(self.blocks):
            name, unit = f"backbone.blocks.{k}.", self.of_columns + k * self.of_block
            a = unit + self.of_width + self.of_inner
            of_u, slope = a + self.of_inner, a + 2 * self.of_inner
            norm = places[name + "norm.weight"]
            product(self.of_inner, of_u, unit, name + "widen.weight", name + "widen.bias", H, norm)
            product(self.of_width, slope, a, name + "narrow.weight", name + "narrow.bias", inner)
        t = self.head + 2 * self.of_width
        phi, of_v, of_t = (t + k * self.of_rank for k in (1, 2, 3))
        s = self.head + self.of_width
        product(self.of_rank, of_t, s, "expansion.linear.weight", "expansion.linear.bias", H)
        for i in range(self.of_rank):
            for j in range(i + 1):
                begin = places["posterior.lower"] + i * T * R + j * T
                diagonal = places["posterior.log_diagonal"] + i * T if i == j else -1
                found.append(Task(phi + i, of_v + j, begin, R, T, diagonal=diagonal))
        return torch.tensor(found, dtype=torch.int32)
