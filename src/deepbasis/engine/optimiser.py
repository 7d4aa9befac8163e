"""AdamW over stacked members: groups by name, a schedule on the device, gradients clipped per member; an average."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from deepbasis.engine.device import compiled

BETAS = (0.9, 0.999)
"""What Adam keeps of its first and second moments at a step."""
EPSILON = 1e-8
"""Added to the root of the second."""
AVERAGE_START = 10.0
"""Of its first steps t an average keeps (1 + t) / (10 + t)."""


class Optimiser(Protocol):
    """Steps some of the leaves by their gradients."""

    leaves: dict[str, Tensor]

    @property
    def rates(self) -> list[Tensor]:
        """What a schedule multiplies, in place."""

    def memory(self) -> dict[str, dict[str, Tensor]]:
        """What the next step depends on, beside the parameters and the number of steps, by leaf."""

    def set_step(self, step: int) -> None: ...

    def compile(self) -> None: ...

    def step(self) -> None: ...


class AdamW:
    """AdamW (torch's own functional form) over stacked leaves, with its moments by name.

    `groups` says to which group a parameter belongs (`DeepBasisGP.parameter_groups`): "network" and its "hidden"
    matrices have weight decay, the "posterior", the "likelihood" and the "kernel" may have learning rates of their own.
    Those that have the same rate and decay are stepped together. Rates are tensors, so that a schedule can change them
    in a CUDA graph.
    """

    def __init__(
        self,
        leaves: Mapping[str, Tensor],
        groups: Mapping[str, str],
        *,
        learning_rate: float,
        rates: Mapping[str, float] = MappingProxyType({}),
        weight_decay: float = 0.0,
    ) -> None:
        self.leaves = dict(leaves)
        self.first = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        self.second = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        device = next(iter(leaves.values())).device
        self._on_gpu = device.type == "cuda"
        self._count = {name: torch.zeros((), device=device) for name in leaves}  # torch wants one for each
        alike: dict[tuple[float, float], list[str]] = {}
        for name in leaves:
            rate = rates.get(groups[name], learning_rate)
            decay = weight_decay if groups[name] in ("network", "hidden") else 0.0
            alike.setdefault((rate, decay), []).append(name)
        exact = torch.float32 if self._on_gpu else torch.float64  # a fused step on a GPU takes float32 only
        self.groups = [
            (torch.tensor(rate, device=device, dtype=exact), decay, names) for (rate, decay), names in alike.items()
        ]
        self._compiled_step: Callable[[], None] | None = None

    @property
    def rates(self) -> list[Tensor]:
        return [rate for rate, _, _ in self.groups]

    def memory(self) -> dict[str, dict[str, Tensor]]:
        return {"first": self.first, "second": self.second}

    def step(self) -> None:
        (self._compiled_step or self._fused_step)()

    def compile(self) -> None:
        """Inductor's element-wise kernel has several times the bandwidth of the fused one on stacked parameters.

        It computes bias corrections and decay in the precision of the step counts and rates that it is given, where the
        fused one always uses float64: so these are in the precision of the parameters.
        """
        leaf = next(iter(self.leaves.values()))
        self._count = {name: count.to(leaf.dtype) for name, count in self._count.items()}
        self.groups = [(rate.to(leaf.dtype), decay, names) for rate, decay, names in self.groups]
        self._compiled_step = compiled(self._foreach_step, leaf.device)

    def set_step(self, step: int) -> None:
        for count in self._count.values():
            count.fill_(step)

    def _fused_step(self) -> None:
        self._apply(fused=True)

    def _foreach_step(self) -> None:
        self._apply(fused=False)

    @torch.no_grad()
    def _apply(self, *, fused: bool) -> None:
        for rate, decay, names in self.groups:
            moved = [name for name in names if self.leaves[name].grad is not None]
            adamw(
                [self.leaves[name] for name in moved],
                [self.leaves[name].grad for name in moved],  # type: ignore[misc]
                [self.first[name] for name in moved],
                [self.second[name] for name in moved],
                [],
                [self._count[name] for name in moved],
                capturable=self._on_gpu,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
                fused=fused,
                foreach=not fused,
            )


class Schedule:
    """Multiplies every learning rate by a factor of the step: linear warm-up, then constant or cosine down to 0.

    The factors are a table on the device and the step is counted there: nothing is read back.
    """

    def __init__(self, optimisers: Sequence[Optimiser], kind: str, warmup: int, total: int) -> None:
        self.active = bool(optimisers) and (kind != "constant" or warmup > 0)
        if not self.active:
            return
        self._optimisers = optimisers
        self._full = [rate.clone() for rate in self._rates()]
        factors = [factor(step, kind, warmup, total) for step in range(total)]
        self._table = self._full[0].new_tensor(factors)
        self._step = torch.zeros(1, dtype=torch.int64, device=self._table.device)

    def set_step(self, step: int) -> None:
        if self.active:
            self._step.fill_(step)

    def apply(self) -> None:
        """Set the rates for the next step, and count it."""
        if not self.active:
            return
        now = self._table.index_select(0, self._step.clamp_max(len(self._table) - 1))[0]
        for rate, full in zip(self._rates(), self._full, strict=True):
            rate.copy_(full * now)
        self._step.add_(1)

    def _rates(self) -> list[Tensor]:
        return [rate for optimiser in self._optimisers for rate in optimiser.rates]


class Average:
    """mean <- d mean + (1 - d) p after each step t, with d = min(decay, (1 + t) / (10 + t)).

    The smaller d of the first steps makes it forget the start quickly. The step is counted on the device: nothing is
    read back, and a CUDA graph can hold everything.
    """

    def __init__(self, leaves: Mapping[str, Tensor], decay: float) -> None:
        self.leaves = dict(leaves)
        self.mean = {name: leaf.detach().clone() for name, leaf in leaves.items()}
        self._aside = {name: torch.empty_like(leaf) for name, leaf in self.leaves.items()}
        first = next(iter(self.leaves.values()))
        self._step = torch.zeros((), dtype=first.dtype, device=first.device)
        self._slowest = 1.0 - decay

    def set_step(self, step: int) -> None:
        self._step.fill_(step)

    @torch.no_grad()
    def update(self) -> None:
        self._step.add_(1.0)
        weight = ((AVERAGE_START - 1.0) / (AVERAGE_START + self._step)).clamp_min(self._slowest)  # 1 - d
        means = list(self.mean.values())
        ahead = torch._foreach_sub(list(self.leaves.values()), means)
        torch._foreach_mul_(ahead, weight)
        torch._foreach_add_(means, ahead)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this block the parameters are replaced by their average."""
        _copy(self.leaves, self._aside)
        _copy(self.mean, self.leaves)
        try:
            yield
        finally:
            _copy(self._aside, self.leaves)


def factor(step: int, kind: str, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    return 1.0


def clip_per_member(gradients: list[Tensor], limit: float) -> None:
    """Scale each member's gradient to a norm of at most `limit`. A norm over all members would couple them.

    `gradients` have the member axis in front.
    """
    squares = torch.stack([g.square().reshape(len(g), -1).sum(1) for g in gradients]).sum(0)
    scale = (limit / squares.sqrt().clamp_min(1e-30)).clamp_max(1.0)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


@torch.no_grad()
def _copy(values: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> None:
    torch._foreach_copy_(list(places.values()), list(values.values()))
