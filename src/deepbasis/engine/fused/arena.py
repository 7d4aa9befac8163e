"""Arenas: all numbers of a member in one row, so that a kernel finds each at a place that it knows (`layout.py`)."""

from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor

from deepbasis.engine.fused.layout import Launch, Layout, columns_of
from deepbasis.gp.backbone import ResNet
from deepbasis.gp.embedding import PeriodicLinear
from deepbasis.gp.expansion import RBF, SiLU
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP, Terms
from deepbasis.gp.posterior import WeightPosterior

_ROWS, _WARPS = 32, 4  # of a tile that predicts
_WIDTHS = (16, 32, 64, 128)
_INNER = (16, 32, 64, 128, 256)
_FREQUENCIES, _OUTPUTS = 8, 3


def why_not(model: DeepBasisGP) -> str | None:
    """Why the kernels cannot train a model of this kind; None if they can."""
    backbone, expansion, likelihood = model.backbone, model.expansion, model.likelihood
    if type(backbone) is not ResNet or not (type(expansion) is SiLU or type(expansion) is RBF):
        return "they are for a ResNet with a SiLU or an RBF expansion"
    embedding = backbone.embedding
    if embedding is not None and isinstance(expansion, RBF):
        return "they know no embedding before an RBF expansion"
    if embedding is not None and type(embedding) is not PeriodicLinear:
        return f"they do not know the embedding {type(embedding).__name__}"
    if embedding is not None and tuple(embedding.W.shape[1:]) != (_FREQUENCIES, _OUTPUTS):
        return f"they know embeddings of {_FREQUENCIES} waves and {_OUTPUTS} numbers a column"
    if embedding is not None and embedding.numbers < embedding.columns:
        return "they know no embedding of columns of 0 and 1"
    if type(likelihood) is not GaussianLikelihood or likelihood.parameterisation != "log":
        return "they know a Gaussian likelihood alone, with the logarithm of its noise"
    if type(model.posterior) is not WeightPosterior or model.posterior.m.dim() != 1:
        return "they know one function, with one q(w)"
    inner = backbone.blocks[0].widen.out_features  # type: ignore[union-attr]
    if backbone.width not in _WIDTHS or inner not in _INNER or expansion.rank not in _WIDTHS:
        return f"they know widths and ranks of {_WIDTHS[0]} to {_WIDTHS[-1]} and {_INNER[-1]} inside, powers of two"
    return _why_no_kernel(expansion, backbone.width, int(inner)) if isinstance(expansion, RBF) else None


def _why_no_kernel(expansion: RBF, width: int, inner: int) -> str | None:
    if expansion.log_slope is not None:
        return "they know the RBF kernel alone"
    if width > min(64, inner) or expansion.rank not in (width, 2 * width):
        points = "once or twice as many inducing points"
        return f"they know an RBF basis of up to 64 columns, no more than inside a block, with {points}"
    return None


def predicts(model: DeepBasisGP) -> bool:
    """Whether there is a kernel that predicts, of models of a kind that the kernels can train."""
    return isinstance(model.expansion, SiLU)


class Arena:
    """The parameters of E stacked models in one tensor [E, numbers]; once bound, the leaves are parts of it.

    The leaves of one model have no member axis: they are its own parameters.
    """

    def __init__(self, template: DeepBasisGP, leaves: dict[str, Tensor], members: int) -> None:
        self.layout = Layout.of(template)
        device = next(iter(leaves.values())).device
        self.parameters = torch.zeros(members, self.layout.numbers, device=device)
        self._leaves, self._stacked = leaves, members > 1
        self._memories: list[dict[str, Tensor]] = []
        assert isinstance(template.backbone, ResNet)
        self._columns, _ = columns_of(template.backbone)
        for name, view in self.views(self.parameters, leaves).items():
            view.copy_(leaves[name].detach())

    def bind(self) -> None:
        """Leaves become parts of the arena."""
        for name, view in self.views(self.parameters, self._leaves).items():
            self._leaves[name].data = view

    def views(self, arena: Tensor, leaves: Iterable[str]) -> dict[str, Tensor]:
        """The leaves' parts of an arena [E, numbers], shaped as they are."""
        found = {}
        for name in leaves:
            shape = self._leaves[name].shape[1:] if self._stacked else self._leaves[name].shape
            place = self.layout.places[name]
            part = arena[:, place : place + prod(shape)].unflatten(1, shape) if shape else arena[:, place]
            found[name] = part if self._stacked else part[0]
        return found

    def rebind(self, memory: dict[str, Tensor]) -> Tensor:
        """An arena of an optimiser's memory by leaf, which becomes parts of it, with their values."""
        arena = torch.zeros_like(self.parameters)
        for name, view in self.views(arena, memory).items():
            view.copy_(memory[name])
            memory[name] = view
        self._memories.append(memory)
        return arena

    def release(self) -> None:
        """Leaves and memories get places of their own again: steps by torch's fused AdamW want them contiguous."""
        for leaf in self._leaves.values():
            leaf.data = leaf.data.clone(memory_format=torch.contiguous_format)
        for memory in self._memories:
            memory |= {name: part.clone(memory_format=torch.contiguous_format) for name, part in memory.items()}

    def slopes(self, slope: Tensor | None, d: int) -> Tensor:
        """Of the members' prior means [E, d]; zeros if they are constants."""
        if slope is None:
            return self.parameters.new_zeros(len(self.parameters), d)
        return slope.to(self.parameters).reshape(len(self.parameters), d).contiguous()

    def terms(self, x: Tensor, slope: Tensor | None) -> Terms:
        """What every member says of rows x [n, d], in full float32; without the KL, which no prediction needs."""
        x = x.contiguous()
        launch = self.launch(x, self.slopes(slope, x.shape[1]))
        launch.go()
        mean, var, prior = launch.arguments[3:6]
        nothing = torch.zeros(len(mean), device=x.device)
        return Terms(mean, var, prior, torch.zeros_like(mean), nothing, nothing.int())

    def trial(self) -> "Launch":
        """A launch to compile: that of one row, which is like any other."""
        return self.launch(self.parameters.new_zeros(1, self._columns), self.slopes(None, self._columns))

    def launch(self, x: Tensor, slopes: Tensor) -> "Launch":
        from deepbasis.engine.fused import tiles  # Triton takes a moment, and few processes need it

        (n, d), members = x.shape, len(self.parameters)
        # Each at a multiple of 16 bytes, for any number of rows: one kernel is compiled for all.
        found = torch.empty(3, -(-members * n // 4) * 4, device=x.device)[:, : members * n].unflatten(1, (members, n))
        arguments = (self.parameters, x, slopes, *found, self.layout.numbers, n, d, *self.layout.arguments.values())
        constants = {**self.layout.constants, "ROWS": _ROWS, "PRECISION": "tf32x3", "HEAD": "tf32x3"}
        grid = (-(-n // _ROWS), members)
        return Launch(tiles.tile_terms, grid, arguments, {**constants, "num_warps": _WARPS, "num_stages": 1})
