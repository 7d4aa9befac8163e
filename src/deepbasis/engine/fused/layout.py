"""Where a kernel finds each number of a member, and what it is given.

First come the parameters whose shapes do not depend on the table, in the order that the kernels know (`layers.py`);
then the projection and the embedding. Each begins at a multiple of 16 numbers, for wide loads.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from deepbasis.gp.backbone import ResNet
from deepbasis.gp.expansion import RBF

_WAVES = ("backbone.embedding.c", "backbone.embedding.b", "backbone.embedding.W")


def columns_of(backbone: ResNet) -> tuple[int, int]:
    """Of the table, and of what the projection takes."""
    width, embedding = backbone.project.in_features, backbone.embedding
    return (width if embedding is None else embedding.columns), width  # type: ignore[return-value]


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a model begins in its row, and what the kernels must know of it."""

    places: dict[str, int]
    numbers: int
    """In a row."""
    constants: dict[str, int]
    """Widths, which are compiled into a kernel."""
    arguments: dict[str, int]
    """Places and the ends of loops, in the kernels' order."""
    rbf: bool
    """Whether the basis is an RBF kernel's."""

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        backbone, rank = model.backbone, model.get_submodule("expansion").rank
        assert isinstance(backbone, ResNet)
        assert isinstance(rank, int)
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        inner = shapes["backbone.blocks.0.widen.weight"][0]
        count = len(backbone.blocks)
        order = [
            f"backbone.blocks.{k}.{part}"
            for k in range(count)
            for part in ("norm.weight", "norm.bias", "narrow.bias", "widen.bias", "widen.weight", "narrow.weight")
        ]
        order += ["backbone.norm.weight", "backbone.norm.bias"]
        rbf = isinstance(model.get_submodule("expansion"), RBF)
        of_basis = ("Z", "log_lengthscale", "log_variance") if rbf else ("linear.bias", "scale", "linear.weight")
        order += [f"expansion.{name}" for name in of_basis]
        order += ["posterior.m", "posterior.log_diagonal", "posterior.lower"]
        order += ["backbone.project.bias", "likelihood.raw", "mean", "backbone.project.weight"]
        waves = _WAVES if backbone.embedding is not None else ()
        places, at = {}, 0
        for name in (*order, *waves):
            places[name] = at
            at += -(-prod(shapes[name]) // 16) * 16
        assert set(places) == set(shapes), "a parameter has no place"
        constants = {"H": backbone.width, "CHUNK": min(inner, 64), "R": rank, "PART": min(rank, 64)}
        columns, width = columns_of(backbone)
        arguments = {
            "waved": columns if waves else 0,
            "bias": places["backbone.project.bias"],
            "project": places["backbone.project.weight"],
            "width": width,
            **{key: places.get(name, 0) for key, name in zip(("waves", "turns_at", "mixing"), _WAVES, strict=True)},
            "norm": places["backbone.norm.weight"],
            "expansion": places[f"expansion.{of_basis[0]}"],
            "posterior": places["posterior.m"],
            "noise_at": places["likelihood.raw"],
            "mean_at": places["mean"],
            "count": count,
            "inner": inner,
            "rank": rank,
        }
        return cls(places, at, constants, arguments, rbf)

    def filled(self, value: float, values: dict[str, float], dtype: torch.dtype, device: torch.device) -> Tensor:
        """One number for each of a row: that of its parameter, or `value` where there is none."""
        sizes = sorted((place, name) for name, place in self.places.items())
        row = torch.full((self.numbers,), value, dtype=dtype)
        ends = [place for place, _ in sizes[1:]] + [self.numbers]
        for (place, name), end in zip(sizes, ends, strict=True):
            row[place:end] = values[name]
        return row.to(device)


@dataclass(frozen=True)
class Launch:
    """A kernel, and what it is given."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    def go(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.constants)

    def compile(self) -> None:
        """And load it, which before Triton 3.7 asks a C compiler for a few lines that launch it."""
        with torch.cuda.device_of(self.arguments[0]):  # a thread's own is the first
            compiled = self.kernel.warmup(*self.arguments, grid=self.grid, **self.constants)
            getattr(compiled, "run", None)
