"""Blocks of a table in files, as a model's members take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deepbasis.fitting.fitted import Fitted
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.cells import OddCells


@dataclass(frozen=True)
class Encode:
    """From a block of a file to what the model's members take."""

    fitted: Fitted
    names: Sequence[str]
    odd: OddCells = field(default_factory=OddCells)

    def __call__(self, block: FileBlock) -> torch.Tensor:
        with block.located():
            found = self.fitted.preprocessor.completed(map(block.column, self.names), len(block))
            x = self.fitted.preprocessor.encoded(found, self.odd)
        return torch.from_numpy(x).to(self.fitted.dtype)


def components(fitted: Fitted) -> int:
    """How many components the prediction of a row is a mixture of, in all outputs together."""
    scales = 1 if fitted.calibration is None else len(fitted.calibration.scales)
    return max(1, len(fitted.target.outputs)) * len(fitted.models) * scales
