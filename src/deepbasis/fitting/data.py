"""From a table in memory to what the engine trains on: every column is parsed once, encoded once or twice, and cut into
the rows that members are fitted to and the rows that they hold out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis.engine.batches import Rows
from deepbasis.fitting.decide import hold_out, needs_line, scaling
from deepbasis.fitting.held_out import Fold, limit_copies
from deepbasis.fitting.plan import Facts, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.start import straight_line
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.table import Table, fold_masks, held_out_mask, row_labels
from deepbasis.tables.targets import TargetScaler

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Encoded:
    """Rows of numbers in float64: inputs as encoded, the target in units of its spread, weights or None."""

    x: Floats
    y: Floats
    weight: Floats | None

    def rows(self, dtype: torch.dtype, keep: Mask | None = None) -> Rows:
        def tensor(array: Floats) -> torch.Tensor:
            return torch.from_numpy(array if keep is None else array[keep]).to(dtype)

        return Rows(tensor(self.x), tensor(self.y), None if self.weight is None else tensor(self.weight))


@dataclass(frozen=True)
class TableData:
    """A table in memory, ready to be fitted."""

    preprocessor: Preprocessor
    target: TargetScaler
    encoded: Encoded
    held_out: tuple[Mask, ...]
    """One mask for each fold; none if validation rows were given."""
    validation: Encoded | None
    grouped: bool
    rows_given: int
    """Those of weight 0 among them."""
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, spec: Spec, given: Table, validation: Callable[[Preprocessor], Table] | None = None) -> TableData:
        """`validation` reads rows to validate on as columns of the same kinds."""
        table, scale = given.weighted(), scaling(spec)
        preprocessor = Preprocessor.fit(table.names, table.columns, table.weight, scaling=scale)
        x = preprocessor.encoded(table.columns)
        masks = _masks(spec, row_labels(x, table.groups), table) if validation is None else ()
        known = table  # the rows that some member is fitted to
        if len(masks) == 1 and masks[0].any():
            known = table.rows(~masks[0])
            preprocessor = Preprocessor.fit(
                table.names, known.columns, known.weight, within=table.columns, scaling=scale
            )
            x = preprocessor.encoded(table.columns)
        target = TargetScaler.fit(known.y, known.weight)
        aside = None
        if validation is not None:
            rows = validation(preprocessor)
            aside = Encoded(preprocessor.encoded(rows.columns), target.transform(rows.y), None)
        return cls(
            preprocessor,
            target,
            Encoded(x, target.transform(table.y), table.weight),
            masks,
            aside,
            table.groups is not None,
            len(given),
            tuple(_numbers_as_text(preprocessor, known)),
        )

    def facts(self, spec: Spec) -> Facts:
        table_rows = len(self.encoded.y)
        rows = max((int((~mask).sum()) or table_rows for mask in self.held_out), default=table_rows)
        line_leaves = None
        if needs_line(spec, rows):
            line_leaves = straight_line(self.encoded.rows(torch.float64, self._inside(0))).share_left
        return Facts(
            table_rows=table_rows,
            rows=rows,
            columns=self.preprocessor.width,
            number_columns=self.preprocessor.coordinates,
            grouped=self.grouped,
            line_leaves=line_leaves,
        )

    def everything(self, dtype: torch.dtype) -> Rows:
        return self.encoded.rows(dtype)

    def folds(self, plan: Plan) -> list[Fold]:
        dtype = plan.candidates[0].settings.dtype
        folds = []
        for k in range(max(1, len(self.held_out))):
            data = self.encoded.rows(dtype, self._inside(k))
            if self.validation is not None:
                outside = self.validation.rows(dtype)
            else:  # if nothing could be held out, all rows are both
                outside = self.encoded.rows(dtype, self.held_out[k] if self.held_out[k].any() else None)
            folds.append(Fold(data, outside, limit_copies(outside, plan.copies_limit)))
        return folds

    def _inside(self, fold: int) -> Mask | None:
        return ~self.held_out[fold] if self.held_out and self.held_out[fold].any() else None


def _masks(spec: Spec, labels: NDArray[np.int64], table: Table) -> tuple[Mask, ...]:
    asked = hold_out(spec, len(table))
    if asked.parts > 1:
        return tuple(fold_masks(labels, table.weight, asked.parts))
    return (held_out_mask(labels, table.weight, asked.fraction),)


def _numbers_as_text(preprocessor: Preprocessor, table: Table) -> list[str]:
    return [
        f"{label} holds text that mostly reads as numbers, except for cells such as {cell!r}: it is read as "
        "categories; if it is meant as numbers, leave such cells empty, or convert it with "
        "pandas.to_numeric(errors='coerce')"
        for label, cell in preprocessor.numbers_as_text(table.columns)
    ]
