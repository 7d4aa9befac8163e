"""`Labels`: the classes of a target, and from what the user calls them to the numbers 0, 1, ... and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from deepbasis.errors import FileFormatError, InputError, check_number, which_are
from deepbasis.gp.classes import MOST_CLASSES
from deepbasis.tables.columns import MISSING, Array, Column, is_missing
from deepbasis.tables.targets import REMOVE, Floats, check_weight, one_column

CLASSES = "classes"
BALANCED = "balanced"

_KINDS = (str, bool, int, float)  # of labels: all of a target are of one
_SHOWN = 8  # classes in a message


@dataclass(frozen=True)
class Labels:
    """What the classes are called, in order, and how much each counts."""

    values: tuple[Any, ...]
    class_weight: str | tuple[float, ...] | None = None
    """"balanced", or a weight for each class; None: every row counts the same."""

    def __post_init__(self) -> None:
        kinds = {type(value) for value in self.values}
        if not 2 <= len(self.values) <= MOST_CLASSES or len(kinds) != 1 or not kinds <= set(_KINDS):
            raise InputError(f"labels are 2 to {MOST_CLASSES} texts, whole numbers or truth values, all of one kind")
        if not all(one < other for one, other in zip(self.values, self.values[1:], strict=False)):
            raise InputError("labels must be in order, and each there once")
        if isinstance(self.class_weight, tuple):
            if len(self.class_weight) != len(self.values):
                raise InputError(f"{len(self.values)} classes need as many weights, got {len(self.class_weight)}")
            for weight in self.class_weight:
                check_number("a class's weight", weight, at_least=0.0)
        elif self.class_weight not in (None, BALANCED):
            raise InputError(f"class_weight must be 'balanced', a dict or None, got {self.class_weight!r}")

    @classmethod
    def read(cls, y: Any, weight: Any = None, class_weight: Any = None) -> tuple[Labels, Floats, Floats | None]:
        """The classes of a target, the number of each row's class, and its weight.

        A class without a row of positive weight is none; its rows are not trained on.
        """
        cells = label_cells(y, "y")
        w = None if weight is None else check_weight(weight, len(cells))
        labels = cls.of({cell for k, cell in enumerate(cells) if w is None or w[k] > 0}, class_weight)
        number = {value: float(k) for k, value in enumerate(labels.values)}
        codes = np.array([number.get(cell, 0.0) for cell in cells])
        return labels, codes, labels.weighted(codes, w)

    @classmethod
    def of(cls, found: Collection[Any], class_weight: Any = None, name: str = "y") -> Labels:
        """From all that a target holds."""
        values = sorted(found)
        if len(values) < 2:
            raise InputError(
                f"{name} has one class only, {values[0]!r}, in all rows that count: a classifier needs two classes or "
                "more"
            )
        if len(values) > MOST_CLASSES:
            raise InputError(
                f"{name} has {len(values):,} classes, and {MOST_CLASSES} are the most: is it a number (for "
                "DeepBasisRegressor), or an identifier?"
            )
        return cls(tuple(values), _class_weight(class_weight, values))

    def weighted(self, codes: Floats, weight: Floats | None) -> Floats | None:
        """The weights of rows, times those of their classes."""
        if self.class_weight is None:
            return weight
        rows = np.ones(len(codes)) if weight is None else weight
        if isinstance(self.class_weight, tuple):
            of_class = np.array(self.class_weight)
        else:  # all classes count the same, and the rows as much as they did
            mass = np.bincount(codes.astype(np.int64), rows, len(self.values))
            of_class = rows.sum() / (len(self.values) * np.maximum(mass, np.finfo(float).tiny))
        found: Floats = rows * of_class[codes.astype(np.int64)]
        if len(np.unique(codes[found > 0])) < 2:
            raise InputError("class_weight leaves one class only: a classifier needs two classes or more")
        return found

    @property
    def array(self) -> Array:
        return np.array(self.values)

    @property
    def names(self) -> list[str]:
        """As text, for the names of columns."""
        return [str(value) for value in self.values]

    @property
    def are_text(self) -> bool:
        return isinstance(self.values[0], str)

    def __str__(self) -> str:
        return f"{len(self.values)} classes: {', '.join(self.names[:_SHOWN])}{', ...' * (len(self.values) > _SHOWN)}"

    def codes(self, y: Any, name: str = "y") -> Floats:
        """The number of each row's class; a class that no row to fit has is refused."""
        number = {value: float(k) for k, value in enumerate(self.values)}
        cells = label_cells(y, name)
        for row, cell in enumerate(cells):
            if cell not in number:
                raise InputError(f"{name} is {cell!r} in row {row}, a class that no row of the fit has; it has {self}")
        return np.array([number[cell] for cell in cells])

    def forward(self, y: Tensor) -> Tensor:
        """Numbers of classes are what is trained on."""
        return y

    def inverse(self, u: Tensor) -> Tensor:
        return u

    def state(self) -> dict[str, Any]:
        return {"kind": CLASSES, "values": list(self.values), "class_weight": self.class_weight}

    @classmethod
    def from_state(cls, record: Mapping[str, Any]) -> Labels:
        values, weight = record["values"], record["class_weight"]
        if not isinstance(values, list) or not isinstance(weight, str | list | None):
            raise FileFormatError("the classes of the target must be a list, and their weights another")
        return cls(tuple(values), tuple(weight) if isinstance(weight, list) else weight)


def column_labels(column: Column) -> Array:
    """The cells of a column of a file, for `Labels`; None where one is missing."""
    cells: list[Any] = column.values.tolist()
    if column.kind == "categorical":
        cells = [None if cell < 0 else column.categories[cell] for cell in cells]
    elif column.kind == "boolean":
        cells = [None if cell != cell else bool(cell) for cell in cells]
    elif column.kind in ("numeric", MISSING):
        cells = [None if cell != cell else int(cell) if cell.is_integer() else cell for cell in cells]
    else:
        raise InputError(f"{column.label} must hold texts, whole numbers or truth values, got {column.example()}")
    return np.array(cells, dtype=object)


def label_cells(y: Any, name: str, remedy: str = REMOVE) -> list[Any]:
    """The label of each row as a plain Python value; all are of one kind. `remedy` says what to do about gaps."""
    values = one_column(y, name)
    if values.dtype.kind not in "OUbiuf":
        raise InputError(f"{name} must hold texts, whole numbers or truth values, got {values.dtype}; convert it")
    cells = [cell.item() if isinstance(cell, np.generic) else cell for cell in values.tolist()]
    missing = [row for row, cell in enumerate(cells) if is_missing(cell)]
    if missing:
        found = which_are(len(missing), "label", "NaN (missing)", missing[0])
        raise InputError(f"{name} has {found}; {remedy}: a target cannot be filled in")
    kinds = {type(cell) for cell in cells}
    if kinds <= {int, float} and len(kinds) == 2:
        cells, kinds = [float(cell) for cell in cells], {float}
    if len(kinds) != 1 or not kinds <= set(_KINDS):
        words = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(
            f"Unknown label type: {name} must hold texts, whole numbers or truth values, all of one kind; got {words}"
        )
    if kinds == {float}:
        numbers: NDArray[np.float64] = np.array(cells)
        broken = ~np.isfinite(numbers) | (numbers != np.floor(numbers))
        if broken.any():
            row = int(np.argmax(broken))
            raise InputError(
                f"Unknown label type: {name} is {numbers[row]:g} in row {row}, which names no class: a class is a "
                "text, a whole number or a truth value; for numbers use DeepBasisRegressor"
            )
    return cells


def _class_weight(asked: Any, values: list[Any]) -> str | tuple[float, ...] | None:
    if asked is None or (isinstance(asked, str) and asked == BALANCED):
        return asked
    if not isinstance(asked, Mapping):
        raise InputError(f"class_weight must be 'balanced', a dict from a class to its weight, or None, got {asked!r}")
    unknown = [label for label in asked if label not in values]
    if unknown:
        raise InputError(f"class_weight has a weight for {unknown[0]!r}, which is not a class of y")
    return tuple(check_number(f"class_weight of {value!r}", asked.get(value, 1.0), at_least=0.0) for value in values)
