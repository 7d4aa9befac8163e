"""`Encoder`: from blocks of a table in files to rows of numbers, once its statistics are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepbasis.gp.rates import RATE
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import Array, Column, Mask
from deepbasis.tables.effects import InTraining, position_parts
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.source import Source
from deepbasis.tables.survey import HeldRows
from deepbasis.tables.table import HeldOut, position_hashes
from deepbasis.tables.targets import check_counts, check_precision


@dataclass(frozen=True)
class Encoder:
    """From blocks to rows of numbers: inputs, what the likelihood takes of a target, and the weight where there is one.

    A target is one number in units of its spread; of a censored target, or of a count with a rate, three; of several
    outputs one for each.
    """

    roles: Roles
    preprocessor: Preprocessor
    target: TargetScaler
    dtype: np.dtype[Any]
    censored: bool = False
    """Whether targets have bounds; those of rows without are exact."""
    in_training: InTraining | None = None
    """What is different about the rows that are trained on, where there are categories."""

    def for_validation(self) -> Encoder:
        return replace(self, roles=self.roles.for_validation())

    @property
    def target_numbers(self) -> int:
        return 3 if self.censored or self.target.name == RATE else max(1, len(self.target.outputs))

    @property
    def width(self) -> int:
        return self.preprocessor.width + self.target_numbers + (self.roles.weight is not None)

    def rows(self, block: FileBlock) -> Array:
        """[n, width]."""
        with block.located():
            columns = self.roles.features_of(block)
            return self._encoded(columns, self.roles.observed_of(block), self.roles.weight_of(block))

    def _encoded(self, columns: Sequence[Column], y: Array, weight: Array | None, rows: Array | None = None) -> Array:
        inputs, roles = self.preprocessor.width, self.roles
        out = np.zeros((len(y), self.width), dtype=self.dtype)
        self.preprocessor.encode(columns, out[:, :inputs])
        scaled = self._observed(y)
        self.target.check_precision(scaled, y, f"X: target column '{roles.target}'", self.dtype.name, rows)
        out[:, inputs : inputs + self.target_numbers] = scaled if scaled.ndim > 1 else scaled[:, None]
        if weight is not None:
            check_precision(weight, weight, f"X: weight column '{roles.weight}'", self.dtype.name, rows)
            out[:, -1] = weight
        return out

    def _observed(self, y: Array) -> Array:
        if self.censored:
            known, bounds = (y, np.stack([y, y], 1)) if y.ndim == 1 else (y[:, 0], y[:, 1:])
            return self.target.bounded(known, bounds)
        if self.target.name == RATE:
            counts, exposure = (y, None) if y.ndim == 1 else y.T
            return self.target.counted(check_counts(counts), exposure)
        return self.target.transform(y)

    def present(self, rows: Array) -> Mask:
        """Rows of positive weight."""
        return np.ones(len(rows), dtype=bool) if self.roles.weight is None else rows[:, -1] > 0

    def training_rows(self, source: Source, held_out: HeldOut, unit: int, block_rows: int) -> Iterator[Array]:
        """The rows of a unit that are trained on, in their order."""
        file = source.units[unit].file
        for block in source.blocks(unit, self.roles.columns, block_rows):
            rows = self.rows(block)
            if self.in_training is not None:
                part, hashes = position_parts(position_hashes(file, block.first_row, len(block)))
                with block.located():
                    columns = self.roles.features_of(block)
                    self.in_training.hidden(columns, hashes, self.in_training.crossed(columns, part, rows))
            keep = ~self.roles.held_out_of(block, file, held_out) & self.present(rows)
            yield rows if keep.all() else rows[keep]

    def held_rows(self, held: HeldRows, source: Source) -> Array:
        """Those of positive weight."""
        with source.located():
            first_rows = np.cumsum([0, *source.file_rows])[[source.units[unit].file for unit in held.unit.tolist()]]
            rows = self._encoded(held.columns, held.y, held.weight, first_rows + held.row)
        return rows[self.present(rows)]
