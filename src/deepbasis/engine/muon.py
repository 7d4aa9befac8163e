"""Muon for the matrices inside a network: momentum, made orthogonal before each step (Jordan et al., 2024).

NOTE[DIFF]: the paper trains with AdamW alone, as `optimiser="adamw"` and `recipe="paper"` do.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from deepbasis.engine.device import compiled

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values end between 0.7 and 1.2 after five steps
ITERATIONS = 5
SMALLEST = 1e-15  # norm that is made 1: squares of float32 numbers below 1e-19 lose their digits, or are 0


class Muon:
    """W <- (1 - rate decay) W - rate sqrt(max(1, m / n)) U V^T, where the momentum's matrix [m, n] is U S V^T.

    All singular values of a step are about 1, where Adam's are dominated by a few: directions in which the gradient is
    small are learnt as fast as the others. Leaves are [..., m, n], so that stacked members are stepped together; each
    matrix is made orthogonal by itself.
    """

    def __init__(self, leaves: Mapping[str, Tensor], *, learning_rate: float, weight_decay: float = 0.0) -> None:
        self.leaves = dict(leaves)
        self.momentum = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        first = next(iter(leaves.values()))
        self._rate, self._decay = torch.tensor(learning_rate, device=first.device, dtype=first.dtype), weight_decay
        self._step: Callable[[], None] = self._plain_step

    @property
    def rates(self) -> list[Tensor]:
        return [self._rate]

    def memory(self) -> dict[str, dict[str, Tensor]]:
        return {"momentum": self.momentum}

    def set_step(self, step: int) -> None:
        """It does not depend on the number of steps."""

    def compile(self) -> None:
        self._step = compiled(self._plain_step, self._rate.device)

    def step(self) -> None:
        self._step()

    @torch.no_grad()
    def _plain_step(self) -> None:
        leaves, momenta = list(self.leaves.values()), list(self.momentum.values())
        gradients: list[Tensor] = [leaf.grad for leaf in leaves]  # type: ignore[misc]
        torch._foreach_lerp_(momenta, gradients, 1.0 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov's
        torch._foreach_mul_(leaves, 1.0 - self._rate * self._decay)
        shapes: dict[tuple[int, int], list[int]] = {}
        for k, leaf in enumerate(leaves):
            shapes.setdefault((min(leaf.shape[-2:]), max(leaf.shape[-2:])), []).append(k)
        for alike in shapes.values():  # those of one shape in one product, the tall ones lying down
            steps = orthogonal(torch.stack([_lying(ahead[k]) for k in alike]))
            for k, step in zip(alike, steps, strict=True):
                m, n = leaves[k].shape[-2:]
                leaves[k].sub_((step.mT if m > n else step) * (self._rate * math.sqrt(max(1.0, m / n))))


def _lying(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[-2] > matrix.shape[-1] else matrix


def orthogonal(matrices: Tensor) -> Tensor:
    """About U V^T for each U S V^T of [..., m, n], m <= n, by Newton and Schulz' iteration: products alone."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.flatten(0, -3)
    x = x / x.square().sum((-2, -1), keepdim=True).sqrt().clamp_min(SMALLEST)
    for _ in range(ITERATIONS):  # x <- a x + (b x x^T + c (x x^T)^2) x
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.view(matrices.shape)
