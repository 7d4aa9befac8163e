"""AdamW over stacked members: groups by name, a schedule on the device, gradients clipped per member."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

GROUPS = ("backbone", "posterior", "noise")
"""Parameters are grouped by the first part of their name; what is left (expansion, mean) is the last group."""


def adamw(
    leaves: Mapping[str, Tensor],
    *,
    learning_rate: float,
    posterior_learning_rate: float,
    noise_learning_rate: float,
    weight_decay: float,
    device: torch.device,
) -> torch.optim.AdamW:
    """Weight decay on the backbone alone (Appendix B); one fused kernel for all members.

    Rates are tensors, so that a schedule can change them inside a CUDA graph.
    """
    rates = {"backbone": learning_rate, "posterior": posterior_learning_rate, "noise": noise_learning_rate}
    groups: dict[str, dict[str, Any]] = {}
    for name, leaf in leaves.items():
        part = name.partition(".")[0]
        key = part if part in GROUPS else "rest"
        group = groups.setdefault(key, {"params": [], "name": key})
        group["params"].append(leaf)
    for key, group in groups.items():
        group["lr"] = torch.tensor(rates.get(key, learning_rate), device=device)
        group["weight_decay"] = weight_decay if key == "backbone" else 0.0
    return torch.optim.AdamW(list(groups.values()), fused=True, capturable=device.type == "cuda")


class Schedule:
    """Multiplies every learning rate by a factor of the step: linear warm-up, then constant or cosine down to 0.

    The factors are a table on the device and the step is counted there: nothing is read back.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, kind: str, warmup: int, total: int) -> None:
        self.active = kind != "constant" or warmup > 0
        if not self.active:
            return
        self._rates = [group["lr"] for group in optimiser.param_groups]
        device = self._rates[0].device
        self._full = [rate.clone() for rate in self._rates]
        factors = [factor(step, kind, warmup, total) for step in range(total)]
        self._table = torch.tensor(factors, dtype=self._rates[0].dtype, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)

    def set_step(self, step: int) -> None:
        if self.active:
            self._step.fill_(step)

    def apply(self) -> None:
        """Set the rates for the step that comes, and count it."""
        if not self.active:
            return
        now = self._table.index_select(0, self._step.clamp_max(len(self._table) - 1))[0]
        for rate, full in zip(self._rates, self._full, strict=True):
            rate.copy_(full * now)
        self._step += 1


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
    squares = torch.stack([g.square().flatten(1).sum(1) for g in gradients]).sum(0)
    scale = (limit / squares.sqrt().clamp_min(1e-30)).clamp_max(1.0)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))
