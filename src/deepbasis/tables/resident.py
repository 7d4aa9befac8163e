"""A table in memory: checked, and cut into rows to train on and rows to validate on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing

from deepbasis.errors import InputError
from deepbasis.tables.preprocessing import Preprocessor, check_target, check_weight, row_groups


@dataclass(frozen=True)
class Table:
    """X (a DataFrame or an array) with a target, and perhaps a weight and a group, for each row."""

    X: Any
    y: NDArray[np.float64]
    weight: NDArray[np.float64] | None = None
    groups: NDArray[Any] | None = None

    @classmethod
    def checked(cls, X: Any, y: ArrayLike, weight: ArrayLike | None, groups: ArrayLike | None) -> "Table":
        """Everything of one length."""
        if y is None:
            raise InputError("fit needs a target: requires y to be passed, but the target y is None")
        X = Preprocessor.check(X)
        target = check_target(y)
        rows = len(X)
        if rows != len(target):
            raise InputError(f"X has {rows} rows but y has {len(target)}: inconsistent numbers of samples")
        labels = None if groups is None else np.asarray(groups)
        if labels is not None and labels.shape != (rows,):
            raise InputError(f"groups must be one label per row, [{rows}], got shape {list(labels.shape)}")
        return cls(X, target, None if weight is None else check_weight(weight, rows), labels)

    @classmethod
    def for_validation(cls, X_val: Any, y_val: ArrayLike) -> "Table":
        y = check_target(y_val, "y_val")
        try:
            X = Preprocessor.check(X_val)
        except InputError as error:
            raise InputError(f"X_val: {error}") from None
        if len(X) != len(y):
            raise InputError(f"X_val has {len(X)} rows but y_val has {len(y)}: they must agree")
        return cls(X, y)

    def rows(self, index: NDArray[np.int64]) -> "Table":
        picked = [None if part is None else part[index] for part in (self.weight, self.groups)]
        return Table(_safe_indexing(self.X, index), self.y[index], *picked)

    def weighted(self) -> "Table":
        """Without the rows of weight 0; at least two must be left."""
        table = self if self.weight is None else self.rows(np.flatnonzero(self.weight > 0))
        if len(table.y) < 2:
            raise InputError(f"a fit needs at least 2 rows, got n_samples = {len(table.y)} (1 sample is not enough)")
        return table

    def split(self, fraction: float) -> tuple["Table", "Table"]:
        """Rows to train on, and `fraction` of them to validate on.

        Which rows are held out depends on what stands in them, not on where they stand: the same rows in another order,
        or a row of weight 2 in place of two equal rows, give the same split.
        """
        labels, mass = self._groups()
        total = mass.cumsum()
        held_out = 1 + int(np.searchsorted(total, fraction * total[-1] * (1.0 - 1e-12)))
        held_out = min(held_out, len(mass) - 1)
        if held_out == 0:  # one group alone: there is nothing to hold out
            return self, self
        return self._without(labels < held_out)

    def folds(self, count: int) -> list[tuple["Table", "Table"]]:
        """`split` `count` times, with another part of the rows held out each time.

        Groups stay together, so the parts differ in size. One with more than half of all rows is not held out, nor one
        with less than half of its due, unless there is no other: too few rows to fit, or to stop a training by.
        """
        labels, mass = self._groups()
        if len(mass) == 1:
            return [(self, self)]
        middle = (mass.cumsum() - 0.5 * mass) / mass.sum()
        part = np.minimum((count * middle).astype(np.int64), count - 1)
        share = np.bincount(part, mass, count) / mass.sum()
        share[share > 0.5] = 0.0
        kept = np.flatnonzero(share >= min(0.5 / count, share.max()))
        return [self._without(part[labels] == k) for k in kept]

    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A label for each row, in the order of a hash of what it stands for; and how many rows each label has."""
        labels = row_groups(Preprocessor.fit(self.X, self.weight).transform(self.X), self.groups)
        mass = np.bincount(labels, self.weight).astype(np.float64)
        if len(mass) == 1 and self.groups is not None:
            raise InputError(
                "groups puts all rows into one group, so that none can be held out: give more groups, leave groups "
                "out, or give rows to validate on"
            )
        return labels, mass

    def _without(self, outside: NDArray[np.bool_]) -> tuple["Table", "Table"]:
        return self.rows(np.flatnonzero(~outside)), self.rows(np.flatnonzero(outside))
