"""Two ways to a member's gradients: `Shares` for a few members, `Products` for many. docs/engine.md shows both."""

from dataclasses import dataclass
from math import ceil, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepbasis.engine.batches import Numbered, Rows
from deepbasis.engine.fused.layout import Launch, Layout
from deepbasis.engine.fused.operands import Planes
from deepbasis.engine.fused.rbf import RBFBasis

FULL = "tf32x3"
"""The precision of products that are as exact as float32."""
_MULTIPROCESSORS = 132  # of an H100 or H200
_MANY_ROWS = {1: 4_096, 2: 1_024}  # of a step, by the parts of the basis: from there on products are the faster way
_MEASURED = 64  # columns of a plane: of width and rank, and inside a block, at least
_SLICES = (1, 8), (4, 4), (16, 2)  # members at most, and the slices of their rows
_MANY_TILES = 2_000  # of them three on an SM are faster than two with more registers


class Tiling(NamedTuple):
    """Of a few members: rows in a tile, tiles that a program takes one after another, and the warps of a program."""

    rows: int
    tiles: int
    warps: int

    @classmethod
    def chosen(cls, members: int, batch: int) -> "Tiling":
        """Many small tiles for a few members, which have an SM each; larger ones, and several a program, for more."""
        rows = 16 if members * ceil(batch / 16) <= 2 * _MULTIPROCESSORS else 32
        tiles = max(1, members * ceil(batch / rows) // (4 * _MULTIPROCESSORS))
        return cls(rows, tiles, 8)


class ManyTiling(NamedTuple):
    """Of many members: rows in a tile and the warps of its program; rows at a time, warps and stages of a product."""

    rows: int = 64
    warps: int = 4
    step: int = 64
    product_warps: int = 4
    stages: int = 3
    registers: int | None = None
    """That a thread of a tile may have."""
    product_registers: int | None = 128
    slices: int = 1
    """Of the rows, with a program each for a product."""

    @classmethod
    def chosen(cls, members: int, batch: int, precisions: tuple[str, str], rbf: bool = False) -> "ManyTiling":
        """What was fastest on an H200: `benchmarks/fused.py`, docs/engine.md."""
        slices = 1 if rbf else next((slices for most, slices in _SLICES if members <= most), 1)
        for rows in (32,) if rbf else (16, 32):
            if members * ceil(batch / rows) <= _MULTIPROCESSORS:  # one SM each
                return cls(rows=rows, step=rows, stages=4, slices=min(slices, ceil(batch / rows)))
        if precisions[0] == FULL:
            return cls(product_registers=None, slices=slices)
        tiles = members * ceil(batch / 64)
        few_registers = rbf or tiles > _MANY_TILES  # the tiles of a network alone need fewer
        stages = 4 if tiles <= 2 * _MULTIPROCESSORS else 3
        return cls(stages=stages, registers=168 if few_registers else None, slices=slices)


@dataclass(frozen=True)
class Given:
    """What a step is made from."""

    layout: Layout
    parameters: Tensor
    data: Rows
    slopes: Tensor
    batches: Numbered
    count: Tensor
    """[1]: the steps that were taken."""
    alphas: Tensor
    kl_weights: Tensor
    floor: float
    trace: bool
    """Whether any alpha is not 0."""
    through: bool
    """Whether the gradient passes through the maximum of the trace term."""
    expected: bool
    """Whether the fit is E log p (Eq. 5), not log E p (Eq. 6)."""
    corrected: bool
    """Whether the variance has what an RBF basis misses of its kernel (Eq. 4)."""
    precisions: tuple[str, str]
    """Of the network's products, and of those behind it."""
    jitter: float
    """Of K_ZZ, if the basis is an RBF kernel's."""

    @property
    def constants(self) -> dict[str, object]:
        weights = self.batches.weights
        return {
            **self.layout.constants,
            "WEIGHTS": 0 if weights is None else weights.dim(),
            "PRECISION": self.precisions[0],
            "HEAD": self.precisions[1],
        }

    @property
    def rows(self) -> tuple[Tensor, ...]:
        b = self.batches
        return b.order, self.alphas if b.weights is None else b.weights, b.mask, b.step

    def places(self, *names: str) -> tuple[int, ...]:
        return tuple(self.layout.arguments[name] for name in names)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(len(self.parameters), *shape, dtype=dtype, device=self.parameters.device)


class Shares:
    """A program takes a few tiles through all layers and back, and has its own share of every gradient."""

    def __init__(self, given: Given, tiling: Tiling) -> None:
        from deepbasis.engine.fused import tiles  # Triton takes a moment, and few processes need it

        self._kernels, self._given, self._tiling = tiles, given, tiling
        self._tiles = ceil(given.batches.order.shape[-1] / tiling.rows)
        self.slices = programs = ceil(self._tiles / tiling.tiles)
        layout = given.layout
        self.shares = given.zeros(programs, layout.numbers)
        self.losses = given.zeros(programs)
        H, kept = layout.constants["H"], layout.arguments["count"] + 1
        self._kept = given.zeros(self._tiles, kept, tiling.rows, H)
        self._found = given.zeros(self._tiles), given.zeros(self._tiles, dtype=torch.int32)

    def launches(self) -> list[Launch]:
        g, tiling, kernels, constants = self._given, self._tiling, self._kernels, self._given.constants
        members, data, mask = len(g.parameters), g.data, g.batches.mask
        (n, d), (order, _, _, step) = data.x.shape, g.rows
        numbers, batch = g.layout.numbers, g.batches.order.shape[-1]
        sizes = (numbers, members, batch, n, d, self._tiles, *mask.stride()[:2])
        of_input = g.places("waved", "bias", "project", "width", "waves", "turns_at", "mixing")
        of_head = g.places("norm", "expansion", "posterior", "noise_at", "mean_at", "count")
        inner, rank = g.places("inner", "rank")

        def launch(kernel: Any, programs: int, arguments: tuple[Any, ...], names: str, **more: Any) -> Launch:
            chosen = {name: constants[name] for name in names.split()}
            how = {"ROWS": tiling.rows, "num_warps": tiling.warps, "num_stages": 1}
            return Launch(kernel, (members, programs), arguments, {**chosen, **more, **how})

        arguments: tuple[Any, ...] = (
            g.parameters, self._kept, data.x, *g.rows, g.count, *self._found, *sizes, *of_input, *of_head, inner, rank,
        )  # fmt: skip
        names = "WEIGHTS H CHUNK R PRECISION HEAD"
        launches = [launch(kernels.tile_forward, self._tiles, arguments, names, TRACE=g.trace)]
        arguments = (
            g.parameters, self.shares, self._kept, self.losses, data.x, data.y, g.slopes, *g.rows, g.alphas,
            *self._found, *sizes, *of_head, rank, g.floor,
        )  # fmt: skip
        objective = {"TRACE": g.trace, "THROUGH": g.through, "EXPECTED": g.expected}
        of_tiles = {"TILES": tiling.tiles, "MOST_TILES": power(self._tiles)}
        names = "WEIGHTS H R PART HEAD"
        launches += [launch(kernels.tile_losses, self.slices, arguments, names, **objective, **of_tiles)]
        arguments = (
            g.parameters, self.shares, self._kept, data.x, order, step, numbers, members, batch, d, self._tiles,
            *of_input, *g.places("count", "inner"),
        )  # fmt: skip
        names = "H CHUNK PRECISION"
        return [*launches, launch(kernels.tile_gradients, self.slices, arguments, names, TILES=tiling.tiles)]


class Products:
    """Tiles forward, tiles back, and then each weight's gradient as one product over all rows, with that of the KL."""

    @staticmethod
    def pay(layout: Layout, members: int, batch: int) -> bool:
        """Whether they can be had, without an embedding, and were faster where they were measured.

        An RBF basis has no other way.
        """
        if layout.rbf:
            return True
        planes = Planes.of(layout, 1)
        if layout.arguments["waved"] or planes.of_rank not in _MANY_ROWS or planes.T != _MEASURED:
            return False
        return members * batch >= _MANY_ROWS[planes.of_rank]

    def __init__(self, given: Given, gradients: Tensor, tiling: ManyTiling) -> None:
        from deepbasis.engine.fused import half, many, products

        self._kernels = half.prepare, many.forward, many.backward, products.weight_gradients
        self._given, self._tiling = given, tiling
        layout, columns = given.layout, given.data.x.shape[1]
        device, members, blocks = given.parameters.device, len(given.parameters), layout.arguments["count"]
        self._planes = planes = Planes.of(layout, columns)
        self._tiles = tiles = ceil(given.batches.order.shape[-1] / tiling.rows)
        self._rows = rows = tiles * tiling.rows
        self._split = given.precisions[0] == FULL
        self._tasks = torch.tensor(planes.tasks(layout, columns), dtype=torch.int32, device=device)
        self._blocks = torch.tensor(planes.weights(layout, columns), dtype=torch.int32, device=device)
        halves: dict[str, Any] = {"dtype": torch.float16, "device": device}
        units = len(self._blocks)
        H = layout.constants["H"]
        self._weights = torch.zeros(1 + self._split, members, units, planes.T * H, **halves)
        self._weight_scales, self._wholes = given.zeros(units), given.zeros()
        self._shifts = given.zeros(blocks * layout.arguments["inner"])
        self._operands = torch.zeros(1 + self._split, members, planes.count, rows, planes.T, **halves)
        self._scales = given.zeros(planes.count, tiles)
        self._by_row = given.zeros(blocks + 4, rows)
        self._vectors, self._sums = given.zeros(tiles, 2 * H), given.zeros(tiles, 4)
        self._found = given.zeros(tiles), given.zeros(tiles, dtype=torch.int32)
        self.slices = tiling.slices
        """Rows of `shares` that a member has."""
        self.shares = gradients if self.slices == 1 else given.zeros(self.slices, layout.numbers)
        self.losses = given.zeros(1)
        self._rbf = None
        if layout.rbf:
            self._rbf = RBFBasis(layout, given.parameters, given.jitter, planes, tiles, rows)

    def launches(self) -> list[Launch]:
        g, tiling, planes = self._given, self._tiling, self._planes
        prepare, forward, backward, weight_gradients = self._kernels
        members, data, tiles, rows, units = len(g.parameters), g.data, self._tiles, self._rows, len(self._blocks)
        numbers, batch = g.layout.numbers, g.batches.order.shape[-1]
        second, second_weights, of_shifts = self._operands[0].numel(), self._weights[0].numel(), self._shifts.shape[1]
        weights, kept = (self._weights, self._weight_scales), (self._operands, self._scales, self._by_row)
        shape = {"SPLIT": self._split, "T": planes.T, "H": g.layout.constants["H"]}
        features = self._by_row if self._rbf is None else self._rbf.features  # without a basis that takes them, unread
        strides = g.batches.mask.stride()[:2]
        arguments: tuple[Any, ...] = (
            g.parameters, *weights, self._shifts, self._wholes, self._blocks, *g.rows, numbers, units, second_weights,
            of_shifts, members, batch, len(data), *strides,
        )  # fmt: skip
        of_rows = {"WEIGHTS": g.constants["WEIGHTS"]}
        launches = [Launch(prepare, (units + 1, members), arguments, {**shape, **of_rows, "num_warps": 4})]
        shape |= {"PARTS": planes.of_inner, "R": g.layout.constants["R"], "ROWS": tiling.rows}
        shape |= {"RBF": g.layout.rbf, "TRACE": g.trace}
        of_tiles = {
            **shape,
            "PARTS": planes.of_inner,
            "num_warps": tiling.warps,
            "num_stages": 1,
            "maxnreg": tiling.registers,
        }
        arguments = (
            g.parameters, *weights, self._shifts, self._wholes, *kept, self._sums, features, data.x, data.y, g.slopes,
            *g.rows, g.count, g.alphas, *self._found, numbers, members, batch, len(data), data.x.shape[1], tiles, rows,
            *strides, planes.count, units, second, second_weights, of_shifts,
            *g.places("bias", "norm", "expansion", "posterior", "noise_at", "mean_at", "count", "inner"), g.floor,
        )  # fmt: skip
        constants = {**of_tiles, **of_rows, "EXPECTED": g.expected}
        there = Launch(forward, (tiles, members), arguments, constants)
        arguments = (
            g.parameters, *weights, *kept, self._vectors, features, g.alphas, *self._found, numbers, tiles, rows,
            planes.count, units, planes.of_columns, planes.of_columns, second, second_weights,
            *g.places("norm", "expansion", "posterior", "noise_at", "count", "inner"), g.floor,
        )  # fmt: skip
        constants = {**of_tiles, "THROUGH": g.through, "MOST_TILES": power(tiles)}
        back = Launch(backward, (tiles, members), arguments, constants)
        arguments = (
            g.parameters, self.shares, self.losses, *kept, self._vectors, self._sums, g.alphas, self._found[0],
            self._tasks, g.kl_weights, g.batches.step, int(g.batches.advance), numbers, tiles, rows, planes.count,
            second, planes.phi, planes.of_v,
            *g.places("norm", "expansion", "posterior", "noise_at", "mean_at", "count"), g.floor,
        )  # fmt: skip
        of_tiles |= {"EXPECTED": g.expected, "THROUGH": g.through, "CORRECTED": g.corrected, "MOST_TILES": power(tiles)}
        constants = {**shape, "STEP": min(tiling.step, tiling.rows), "MOST_TILES": power(tiles)}
        constants |= {"num_warps": tiling.product_warps, "num_stages": tiling.stages}
        constants |= {"maxnreg": tiling.product_registers}
        programs = planes.of_rank + len(self._tasks) + 1
        sliced = {**constants, "SLICES": self.slices}
        of_weights = Launch(weight_gradients, (programs, members, self.slices), arguments, sliced)
        if self._rbf is None:
            return [*launches, there, back, of_weights]
        trace, sizes = (g.alphas, *self._found), (tiles, rows, planes.count, units, second, second_weights)
        basis = self._rbf.tiles(weights, kept, self._sums, trace, sizes, g.floor, of_tiles)
        of_kernel = self._rbf.gradients(self.shares, constants)
        return [*launches, *self._rbf.factors(), there, *basis, back, of_weights, *of_kernel]


def power(number: int) -> int:
    """The smallest power of two that is not smaller, and at least 128: fewer kernels to compile."""
    return 1 << max(7, ceil(log2(max(2, number))))
