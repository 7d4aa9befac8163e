"""`Glance`: how many of some rows deserve a closer look, in some hundredths of a millisecond.

It is the distance of `fitting.novelty` to a few of the reference rows, in numpy: for so few numbers that takes a third
of torch's time. The other reference rows say which distances are usual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from deepbasis.tables.preprocessing import GAP

_NEAR, _OTHERS = 1_000, 1_000  # reference rows: those that distances are to, and those that say how large these are
_USUAL = 0.99  # of them have a smaller distance

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Glance:
    knots: Float[Tensor, "d q"]
    lines: Array
    """[3, d (q - 1)]: between two knots, the first of them, its mark, and the slope from there."""
    first: NDArray[np.int64]
    """[d, 1]: where those of each column begin, less 1."""
    mapping: Array | None
    near: Array
    """[d, k]: -2 times some reference rows, and their squares."""
    sizes: Array
    usual: float
    """The square of a distance that few reference rows have to them."""
    farthest: float

    @classmethod
    def of(cls, knots: Tensor, marks: Tensor, mapping: Tensor, reference: Tensor, farthest: float) -> Glance:
        """From the parts of a `Novelty`."""
        slopes = marks.diff() / knots.diff()
        lines = torch.stack([knots[:, :-1], marks[:, :-1], slopes]).flatten(1).numpy()
        first = np.arange(len(knots))[:, None] * (knots.shape[1] - 1) - 1
        count = max(1, min(_NEAR, len(reference) // 2))
        near, others = reference[:count].numpy(), reference[count : count + _OTHERS].numpy()
        own: dict[str, Any] = {"near": -2.0 * near.T, "sizes": (near * near).sum(1), "farthest": farthest}
        found = cls(knots, lines, first, mapping.numpy() if len(mapping) else None, usual=-1.0, **own)
        usual = float(np.quantile(found._squares(others), _USUAL)) if len(others) else -1.0
        return replace(found, usual=usual)

    def strange(self, x: Float[Tensor, "b d"]) -> int:
        """How many of these encoded rows are not as near to the rows of the fit as most, or have gaps of their own."""
        columns = x.float().mT.contiguous()
        place = torch.searchsorted(self.knots, columns).clamp_(1, self.knots.shape[1] - 1).numpy() + self.first
        values, (knot, mark, slope) = columns.numpy(), (line.take(place) for line in self.lines)
        z = np.minimum(np.maximum(mark + (values - knot) * slope, -self.farthest), self.farthest).T
        far = self._squares(z if self.mapping is None else z @ self.mapping) > self.usual
        return int(np.count_nonzero(far | (values == GAP).any(0)))

    def _squares(self, z: Array) -> Array:
        """The squares of the distances to the nearest: |z - r|^2 = |z|^2 + (|r|^2 - 2 z r)."""
        found: Array = (z @ self.near + self.sizes).min(1) + np.einsum("bd,bd->b", z, z)
        return found
