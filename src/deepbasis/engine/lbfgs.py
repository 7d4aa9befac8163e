"""L-BFGS over stacked members, for exact training of shallow kernels: some dozens of evaluations instead of hundreds.

The marginal likelihood of all rows has no noise, and a kernel has few parameters: its curvature can be learnt.

NOTE[DIFF]: the paper trains with AdamW alone, as `optimiser="adamw"` and `recipe="paper"` do.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_MEMORY = 10  # steps that the curvature is known from
_ENOUGH = 1e-4  # of the decrease that the slope promises (Armijo)
_SHORTEST = 1e-5  # of a direction; if no step helps, the curvature is forgotten


class LBFGS:
    """x <- x + t d with d = -H g, where H comes from the last steps (Nocedal and Wright, 2006, Algorithm 7.4).

    A round is one evaluation: `propose` moves the leaves to x + t d, `judge` is told the losses there. A member whose
    loss has fallen enough stays there and gets a new direction. Another goes back, and t becomes shorter. No member
    waits for another, and nothing is read back from the device. `with_axis` puts a leaf's member axis in front.
    """

    def __init__(self, leaves: Mapping[str, Tensor], with_axis: Callable[[Tensor], Tensor]) -> None:
        self.leaves, self._with_axis = list(leaves.values()), with_axis
        self.point = self._flat([leaf.detach() for leaf in self.leaves])
        self.gradient, self.direction = torch.zeros_like(self.point), torch.zeros_like(self.point)
        members, size = self.point.shape
        self.steps = self.point.new_zeros(members, _MEMORY, size)
        self.changes = torch.zeros_like(self.steps)
        """Of the gradient, by each of the steps."""
        self.value = self.point.new_full((members,), torch.inf)
        self.length = self.point.new_ones(members)

    def memory(self) -> dict[str, Tensor]:
        """What the next round depends on, as leaves are: that of a single member without an axis."""
        names = ("point", "gradient", "direction", "steps", "changes", "value", "length")
        parts: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        return parts if len(self.point) > 1 else {name: part[0] for name, part in parts.items()}

    @torch.no_grad()
    def propose(self) -> None:
        self._place(self.point + self.length[:, None] * self.direction)

    @torch.no_grad()
    def judge(self, losses: Tensor) -> Tensor:
        """Which members stay where their leaves are, given the losses and the gradients there; others go back."""
        point = self._flat([leaf.detach() for leaf in self.leaves])
        gradient = self._flat([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.leaves])
        slope = self.length * _dot(self.direction, self.gradient)
        known = losses.isfinite() & gradient.isfinite().all(-1)
        accepted = known & (losses <= self.value + _ENOUGH * slope)

        step, change = point - self.point, gradient - self.gradient
        curvature = _dot(step, change)
        learnt = accepted & (curvature > 1e-10 * (_dot(step, step) * _dot(change, change)).sqrt())
        for history, latest in ((self.steps, step), (self.changes, change)):
            history.copy_(torch.where(learnt[:, None, None], torch.cat([history[:, 1:], latest[:, None]], 1), history))

        # A parabola through the loss and slope at x and the loss at x + t d has its lowest point at
        shorter = self.length * (-0.5 * slope / (losses - self.value - slope)).clamp(0.1, 0.5)
        self.length.copy_(torch.where(accepted, 1.0, torch.where(known, shorter, 0.1 * self.length)))
        lost = ~accepted & (self.length < _SHORTEST)
        self.length.masked_fill_(lost, 1.0)
        self.steps.masked_fill_(lost[:, None, None], 0.0)
        self.changes.masked_fill_(lost[:, None, None], 0.0)

        for kept, new in ((self.point, point), (self.gradient, gradient)):
            kept.copy_(torch.where(accepted[:, None], new, kept))
        self.value.copy_(torch.where(accepted, losses, self.value))
        self.direction.copy_(torch.where((accepted | lost)[:, None], self._new_direction(), self.direction))
        self._place(self.point)
        return accepted

    def _new_direction(self) -> Tensor:
        """-H g by the two loops over past steps; an empty place in the memory changes nothing."""
        curvatures = _dot(self.steps, self.changes)
        inverse = torch.where(curvatures > 0.0, 1.0 / curvatures, 0.0)
        q, shares = self.gradient.clone(), []
        for k in reversed(range(_MEMORY)):
            share = inverse[:, k] * _dot(self.steps[:, k], q)
            q -= share[:, None] * self.changes[:, k]
            shares.append(share)
        length_of_first = (1.0 / self.gradient.abs().sum(-1)).clamp_max(1.0)
        squares = _dot(self.changes[:, -1], self.changes[:, -1])
        q *= torch.where(curvatures[:, -1] > 0.0, curvatures[:, -1] / squares, length_of_first)[:, None]
        for k in range(_MEMORY):
            q += (shares.pop() - inverse[:, k] * _dot(self.changes[:, k], q))[:, None] * self.steps[:, k]
        downhill = _dot(q, self.gradient) > 0.0
        return -torch.where(downhill[:, None], q, length_of_first[:, None] * self.gradient)

    def _flat(self, values: list[Tensor]) -> Tensor:
        stacked = [self._with_axis(value) for value in values]
        return torch.cat([value.reshape(len(value), -1).double() for value in stacked], 1)

    def _place(self, point: Tensor) -> None:
        parts = point.split([leaf.numel() // len(point) for leaf in self.leaves], 1)
        for leaf, part in zip(self.leaves, parts, strict=True):
            leaf.detach().copy_(part.view(leaf.shape))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)
