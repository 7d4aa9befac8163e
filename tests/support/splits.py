"""Which rows of X and y a fit holds out, found by its rule and not by its way through the columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from deepbasis.tables import table as splits
from deepbasis.tables.columns import Mask
from deepbasis.tables.preprocessing import Preprocessor


@dataclass(frozen=True)
class Table:
    X: Any
    y: NDArray[np.float64]
    weight: NDArray[np.float64] | None = None
    groups: NDArray[Any] | None = None

    def split(self, fraction: float) -> tuple["Table", "Table"]:
        return self._without(splits.held_out_mask(self._labels(), self.weight, fraction))

    def folds(self, count: int) -> list[tuple["Table", "Table"]]:
        return [self._without(mask) for mask in splits.fold_masks(self._labels(), self.weight, count)]

    def rows(self, index: Any) -> "Table":
        picked = [None if part is None else part[index] for part in (self.weight, self.groups)]
        return Table(_safe_indexing(self.X, index), self.y[index], *picked)

    def _labels(self) -> NDArray[np.int64]:
        table = splits.Table.read(self.X, self.y)
        preprocessor = Preprocessor.fit(table.names, table.columns, self.weight)
        return splits.row_labels(preprocessor.encoded(table.columns), self.groups)

    def _without(self, held_out: Mask) -> tuple["Table", "Table"]:
        if not held_out.any():
            return self, self
        return self.rows(np.flatnonzero(~held_out)), self.rows(np.flatnonzero(held_out))
