"""`Apart`: rows that nothing of a fit has seen. They say what its intervals hold, and go on to say it as it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbasis.gp.conformal import Conformal
from deepbasis.tables.targets import LARGEST

MOST_APART = 10_000
"""Rows that a model keeps."""

_WIDEST = 40.0  # an encoded value is within


@dataclass(frozen=True)
class Apart:
    x: Tensor
    """Encoded, [n, d]."""
    y: NDArray[np.float64]
    """As given."""
    groups: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def some(self, count: int, seed: int = 0) -> Apart:
        """At most so many of them, at random."""
        if len(self) <= count:
            return self
        kept = np.sort(np.random.default_rng(seed).permutation(len(self))[:count])
        names = None if self.groups is None else tuple(self.groups[k] for k in kept)
        return Apart(self.x[torch.from_numpy(kept)], self.y[kept], names)

    def followed_by(self, new: Apart, forget: float) -> Apart:
        """A share `forget` of these, then the new ones; in all as many as a model keeps."""
        old = self.some(round(forget * len(self)), seed=len(new))
        names = None if old.groups is None or new.groups is None else (*old.groups, *new.groups)
        x = torch.cat([old.x, new.x.to(old.x.dtype)])
        return Apart(x, np.concatenate([old.y, new.y]), names).some(MOST_APART, seed=len(new))

    # ---- the file ----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {"x": self.x.float(), "y": torch.from_numpy(self.y)}

    @classmethod
    def restored(cls, found: Mapping[str, Tensor] | None, width: int, promise: Conformal | None) -> Apart | None:
        """What `tensors` gave, of a model of `width` encoded columns that makes this promise from them.

        Anything else is a `ValueError`.
        """
        if found is None and promise is None:
            return None
        if found is None or promise is None or found.keys() != {"x", "y"}:
            raise ValueError("it makes a promise without rows, or has rows set apart without a promise")
        x, y, rows = found["x"], found["y"], len(promise.depths)
        if x.dtype != torch.float32 or y.dtype != torch.float64 or x.shape != (rows, width) or y.shape != (rows,):
            raise ValueError("the rows that it has set apart have another number, or other columns")
        if rows > MOST_APART or not bool((x.abs() <= _WIDEST).all()) or not bool((y.abs() <= LARGEST).all()):
            raise ValueError("the rows that it has set apart are too many, too large, or not finite")
        names = tuple(promise.groups[k] for k in promise.group.tolist()) if promise.groups else None
        return cls(x, y.numpy(), names)
