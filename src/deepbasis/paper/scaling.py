"""What a model is given of a data set: the three sides of a split in float32, with the target standardised."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.paper.splits import Floats, Rows, Split


class Side(NamedTuple):
    x: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]


class Scaled(NamedTuple):
    train: Side
    validation: Side
    test: Side
    target_std: float
    """A target times this, plus the mean, is the target as it was."""
    target_mean: float


def standardised(X: Floats, y: Floats, split: Split) -> Scaled:
    """Inputs as they are; the target to mean 0 and variance 1 on the training rows.

    NOTE[GAP]: the paper says "normalized to zero mean and unit variance", not on which rows.
    """
    mean, std = float(y[split.train].mean()), float(y[split.train].std())
    if not std > 0.0:
        raise InputError(f"the target is {mean:g} in all {len(split.train)} training rows: there is nothing to learn")

    def side(rows: Rows) -> Side:
        return Side(torch.from_numpy(X[rows]).float(), torch.from_numpy((y[rows] - mean) / std).float())

    return Scaled(side(split.train), side(split.validation), side(split.test), std, mean)
