"""Where the operands of many members lie, and which products they are for: of the kernels in `many` and `products`.

Each tensor of a tile's rows has a plane [rows, T] for every T of its columns. They lie in this order: the table's
columns; of each block the normalised rows, u, silu(u), the gradient in u, and that in what the block adds to; of the
head the normalised rows, s, t, silu(t), the gradients in L^T phi and in t; the gradient in the first block's g. Of the
head of an RBF basis, which has other planes of its own (`rbf_tiles.py`), they are the normalised rows, phi and the
gradient in L^T phi.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from deepbasis.engine.fused.layout import Layout


class GradientTask(NamedTuple):
    """Parts [T, T] of a weight's gradient, one below the other: left^T right, of two planes."""

    left: int
    """The first part's: each part has the next one."""
    right: int
    begin: int
    """In a member's row of numbers."""
    row_size: int
    columns: int
    """How many of the T there are."""
    bias: int
    """Where the sums of the left planes' rows go; nowhere if -1."""
    norm: int
    """Where the weights of a norm lie, whose result is what is really on the right, its biases H behind; or -1."""
    parts: int


class WeightPiece(NamedTuple):
    """T rows or columns of a weight, for `half.prepare`; or a part [T, T] of L."""

    begin: int
    """In a member's row of numbers."""
    row_size: int
    width: int
    """Of the block."""
    columns: int
    """How many of them there are."""
    norm: int = -1
    """Where the weights of a norm lie that are taken into the block."""
    bias: int = -1
    """Where the biases lie to which those of the norm are added, times the block."""
    shift: int = -1
    """Where the sum goes."""
    scale: int = -1
    """Of a part of L: where the scales of its rows lie, if it has any."""
    diagonal: int = -1
    """And of a part on its diagonal: where the logarithms of that lie."""


@dataclass(frozen=True)
class Planes:
    """The planes of a model, as many as there are of each kind."""

    T: int
    of_columns: int
    of_width: int
    of_inner: int
    of_rank: int
    blocks: int
    rbf: bool

    @classmethod
    def of(cls, layout: Layout, columns: int) -> "Planes":
        H, R = layout.constants["H"], layout.constants["R"]
        inner = layout.arguments["inner"]
        T = min(64, H, R, inner)
        return cls(T, ceil(columns / T), H // T, inner // T, R // T, layout.arguments["count"], layout.rbf)

    @property
    def of_block(self) -> int:
        return 2 * self.of_width + 3 * self.of_inner

    @property
    def head(self) -> int:
        return self.of_columns + self.blocks * self.of_block

    @property
    def phi(self) -> int:
        """Of the basis, but for its scales."""
        return self.head + (self.of_width if self.rbf else 2 * self.of_width + self.of_rank)

    @property
    def of_v(self) -> int:
        return self.phi + self.of_rank

    @property
    def of_project(self) -> int:
        return self.of_v + (1 if self.rbf else 2) * self.of_rank

    @property
    def count(self) -> int:
        return self.of_project + self.of_width

    @property
    def of_L(self) -> int:
        """The first of its weights."""
        return self.of_columns + 2 * self.blocks * self.of_inner + (0 if self.rbf else self.of_rank)

    def tasks(self, layout: Layout, columns: int) -> list[GradientTask]:
        """All weights but L."""
        T, H, places, found = self.T, layout.constants["H"], layout.places, list[GradientTask]()

        def product(left: int, parts: int, right: int, weight: str, size: int, norm: int = -1) -> None:
            """The left planes and as many right ones as rows of `size` numbers have."""
            for j in range(-(-size // T)):
                bias = -1 if j else places[weight + ".bias"]
                begin, there = places[weight + ".weight"] + j * T, min(T, size - j * T)
                if norm >= 0:
                    found.append(GradientTask(left, right + j, begin, size, there, bias, norm + j * T, parts))
                    continue
                for i in range(parts):
                    to = -1 if j else bias + i * T
                    found.append(GradientTask(left + i, right + j, begin + i * T * size, size, there, to, -1, 1))

        for k in range(self.blocks):
            name, rescaled = f"backbone.blocks.{k}.", self.of_columns + k * self.of_block
            a = rescaled + self.of_width + self.of_inner
            of_u, back = a + self.of_inner, a + 2 * self.of_inner
            product(of_u, self.of_inner, rescaled, name + "widen", H, places[name + "norm.weight"])
            product(back, self.of_width, a, name + "narrow", self.of_inner * T)
        if not self.rbf:
            product(self.of_v + self.of_rank, self.of_rank, self.head + self.of_width, "expansion.linear", H)
        product(self.of_project, self.of_width, 0, "backbone.project", columns)
        return found

    def weights(self, layout: Layout, columns: int) -> list[WeightPiece]:
        """The blocks of all weights, in the kernels' order."""
        T, H, R, places = self.T, layout.constants["H"], layout.constants["R"], layout.places
        inner = self.of_inner * T
        project = places["backbone.project.weight"]
        found = [WeightPiece(project + j * T, columns, T, min(T, columns - j * T)) for j in range(self.of_columns)]
        for k in range(self.blocks):
            name = f"backbone.blocks.{k}."
            widen, narrow = places[name + "widen.weight"], places[name + "narrow.weight"]
            norm, bias = places[name + "norm.weight"], places[name + "widen.bias"]
            parts = range(self.of_inner)
            found += [WeightPiece(widen + j * T * H, H, H, H, norm, bias + j * T, k * inner + j * T) for j in parts]
            found += [WeightPiece(narrow + j * T, inner, T, T) for j in parts]
        if not self.rbf:
            expansion = places["expansion.linear.weight"]
            found += [WeightPiece(expansion + j * T * H, H, H, H) for j in range(self.of_rank)]
        for i in range(self.of_rank):
            for j in range(i + 1):
                begin = places["posterior.lower"] + i * T * R + j * T
                scale = -1 if self.rbf else places["expansion.scale"] + i * T
                diagonal = places["posterior.log_diagonal"] + i * T if i == j else -1
                found.append(WeightPiece(begin, R, T, T, scale=scale, diagonal=diagonal))
        return found
