"""A running average of the parameters, validated, kept and predicted with in their place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Average:
    """mean <- d mean + (1 - d) p after each step t, with d = min(decay, (1 + t) / (10 + t)).

    The smaller d of the first steps makes the start be forgotten soon. The step is counted on the device: nothing is
    read back, and a CUDA graph can hold it all.
    """

    def __init__(self, leaves: Mapping[str, Tensor], decay: float) -> None:
        self.leaves = {name: leaf.detach() for name, leaf in leaves.items()}
        self.mean = {name: leaf.clone() for name, leaf in self.leaves.items()}
        self._aside = {name: torch.empty_like(leaf) for name, leaf in self.leaves.items()}
        first = next(iter(self.leaves.values()))
        self._step = torch.zeros((), dtype=first.dtype, device=first.device)
        self._slowest = 1.0 - decay

    def set_step(self, step: int) -> None:
        self._step.fill_(step)

    @torch.no_grad()
    def update(self) -> None:
        self._step.add_(1.0)
        weight = (9.0 / (10.0 + self._step)).clamp_min(self._slowest)  # 1 - d
        means = list(self.mean.values())
        ahead = torch._foreach_sub(list(self.leaves.values()), means)
        torch._foreach_mul_(ahead, weight)
        torch._foreach_add_(means, ahead)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the parameters are their average."""
        _copy(self.leaves, self._aside)
        _copy(self.mean, self.leaves)
        try:
            yield
        finally:
            _copy(self._aside, self.leaves)


@torch.no_grad()
def _copy(values: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> None:
    torch._foreach_copy_(list(places.values()), list(values.values()))
