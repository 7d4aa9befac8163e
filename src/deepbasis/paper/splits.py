"""Which rows train, validate and test: the paper's 8:1:1 (App. B), and the same with copies kept on one side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import InputError, check_positive_int

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


class Split(NamedTuple):
    train: Rows
    validation: Rows
    test: Rows


def random_split(rows: int, seed: int = 0) -> Split:
    """8:1:1 at random: first a tenth of the rows to test, then a ninth of the others to validate.

    NOTE[GAP]: the paper gives the ratio and the sizes, not the seed nor how they were drawn. scikit-learn's
    `train_test_split`, called twice, leaves n - 2 ceil(n / 10) training rows, which are the paper's on all ten of its
    sets (floor(0.8 n) is not).
    """
    from sklearn.model_selection import train_test_split

    if check_positive_int("rows", rows) < 10:
        raise InputError(f"rows must be at least 10 to be split 8:1:1, got {rows}")
    tenth = -(-rows // 10)  # rounded up, as scikit-learn does; as a count, for 1/9 of the rest is not exact in binary
    rest, test = train_test_split(np.arange(rows, dtype=np.int64), test_size=tenth, random_state=seed)
    train, validation = train_test_split(rest, test_size=tenth, random_state=seed)
    return Split(train, validation, test)


def duplicate_safe(split: Split, X: Floats) -> Split:
    """The same split, but rows with identical inputs all stand where the first of them (the lowest index) stood.

    Without copies in `X` it is the very same split. Rows that move come after those that stay, in rising order.
    """
    _check(split, X)
    sides = np.empty(len(X), dtype=np.int64)
    for side, rows in enumerate(split):
        sides[rows] = side
    goes_to = sides[first_of_its_kind(X)]
    sorted_out = []
    for side, rows in enumerate(split):
        staying = rows[goes_to[rows] == side]
        coming = np.flatnonzero((goes_to == side) & (sides != side)).astype(np.int64)
        sorted_out.append(np.concatenate([staying, coming]))
    return Split(*sorted_out)


def leak(split: Split, X: Floats, y: Floats) -> float:
    """The share of the test rows that stand among the training rows too, inputs and target."""
    _check(split, X)
    kind = first_of_its_kind(np.column_stack([X, y]))
    return float(np.isin(kind[split.test], kind[split.train]).mean())


def first_of_its_kind(X: Floats) -> Rows:
    """For each row, the lowest index of a row equal to it."""
    plain = np.ascontiguousarray(X) + 0.0  # -0 becomes 0: equal numbers must have equal bytes
    as_bytes = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1]))).ravel()
    _, first, kind = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first.astype(np.int64)[kind]


def _check(split: Split, X: Floats) -> None:
    together = np.sort(np.concatenate(split))
    if not np.array_equal(together, np.arange(len(X))):
        raise InputError(
            f"the split holds {len(together)} rows but X has {len(X)}, or some rows stand in it twice: "
            "make it for this table, random_split(len(X))"
        )
