"""A table in memory, each column read once, and which of its rows are held out; the same for tables in files.

In memory, rows are held out by their values: the same rows in another order, or a row of weight 2 in place of two equal
rows, give the same split. In files, rows are held out by a hash of their position, or of the group that they belong to,
so that every run, and every number of workers, holds out the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import InputError, check_same_rows
from deepbasis.hashing import GOLDEN, name_hashes, splitmix64
from deepbasis.tables.columns import Array, Column, Mask, Selection
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns
from deepbasis.tables.targets import (
    Floats,
    check_bounds,
    check_exposure,
    check_groups,
    check_targets,
    check_weight,
    group_codes,
    output_names,
)

if TYPE_CHECKING:  # it needs torch, and a table of numbers does not
    from deepbasis.tables.labels import Labels

MOST_ROWS = 100_000
"""Held out of files at most (on average): they are kept in memory."""

_MOST_CELLS = 10_000_000  # of them, whatever the number of columns
_LEAST_ROWS = 1_000  # enough for a reliable score of many columns
_FEW = 10_000  # up to here the number is exact, beyond it is random (to within a few per cent)
_PIECE = 1 << 20  # rows hashed at a time
_EVERYTHING = 2**64
_ENOUGH_APART, _MOST_APART = 500, 10_000  # rows that a fit does not see


@dataclass(frozen=True)
class Table:
    """Columns as read, with a target, and perhaps a weight and a group, for each row."""

    names: list[str] | None
    """The names of a DataFrame's columns; None for arrays, and for names that are not strings."""
    columns: tuple[Column, ...]
    y: Floats
    weight: Floats | None = None
    groups: Array | None = None
    labels: Labels | None = None
    """Of a target that is a class: y has the numbers of classes."""
    bounds: Floats | None = None
    """[n, 2]: what y lies between, where it is censored; y itself, twice, where it is exact."""
    decimal: str = ""
    """The decimal separator of its cells of text, where that is known."""
    exposure: Floats | None = None
    """Of counts."""
    exposure_name: str | None = None
    """The column, or the series, that it was."""
    outputs: tuple[str, ...] = ()
    """The names of several outputs: y is then [n, m]."""
    bound_names: tuple[str | None, str | None] = (None, None)
    """The columns, or the series, that the lower and the upper bounds were."""

    @classmethod
    def read(
        cls,
        X: Any,
        y: Any,
        weight: Any = None,
        groups: Any = None,
        labels: Labels | None = None,
        lower: Any = None,
        upper: Any = None,
        unread: Collection[str] = (),
        exposure: Any = None,
    ) -> Table:
        """What `fit` was given, each column read once but those `unread`; everything must be of one length."""
        names, columns = read_columns(X, unread)
        target = check_targets(y)
        rows = len(columns[0].values)
        check_same_rows("X", rows, "y", len(target), "inconsistent numbers of samples")
        given = None if groups is None else check_groups(groups, rows)
        weights = None if weight is None else check_weight(weight, rows)
        bounds = check_bounds(target, lower, upper)
        exposed = None if exposure is None else check_exposure(exposure, rows)
        outputs = output_names(y, target.shape[1]) if target.ndim > 1 else ()
        found = cls(names, columns, target, weights, given, labels, bounds, outputs=outputs)
        low, high, counted = (_name(one) for one in (lower, upper, exposure))
        return replace(found, exposure=exposed, exposure_name=counted, bound_names=(low, high))

    @classmethod
    def for_validation(cls, X_val: Any, y_val: Any, like: Preprocessor) -> Table:
        """Rows to validate on, with the columns of the table that `like` was fitted to."""
        y = check_targets(y_val, "y_val")
        try:
            columns = like.read(X_val)
        except InputError as error:
            raise InputError(f"X_val: {error}") from None
        rows = len(columns[0].values)
        check_same_rows("X_val", rows, "y_val", len(y))
        return cls(like.input_columns, columns, y, outputs=output_names(y_val, y.shape[1]) if y.ndim > 1 else ())

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, rows: Selection) -> Table:
        columns = tuple(column.rows(rows) for column in self.columns)
        weight, groups, bounds, exposure = (
            None if part is None else part[rows] for part in (self.weight, self.groups, self.bounds, self.exposure)
        )
        return replace(
            self, columns=columns, y=self.y[rows], weight=weight, groups=groups, bounds=bounds, exposure=exposure
        )

    def weighted(self) -> Table:
        """Without the rows of weight 0; at least two must be left."""
        table = self if self.weight is None or self.weight.all() else self.rows(self.weight > 0)
        if len(table) < 2:
            raise InputError(f"a fit needs at least 2 rows, got n_samples = {len(table)} (1 sample is not enough)")
        return table


def _name(series: Any) -> str | None:
    """An array has none."""
    name = getattr(series, "name", None)
    return name if isinstance(name, str) else None


# --- rows held out of a table in memory


def row_labels(encoded: Array, groups: Array | None = None) -> NDArray[np.int64]:
    """A label [n] for each row of a matrix: equal for identical rows and rows of one group, directly or through others.

    Labels are 0, 1, … in an order that the set of rows decides: neither their order nor how often each is there
    matters, nor what the groups are called. Rows are compared by a 64-bit hash; two different rows that happen to share
    it (once in 10^7 tables of a million rows) share a label, which does no harm to a split. Groups that leave all rows
    together are refused: none could be held out.
    """
    _, rows = np.unique(_row_hashes(encoded), return_inverse=True)
    if groups is None:
        return rows.astype(np.int64)
    codes = group_codes(groups, len(rows))
    sparse: Any = import_module("scipy.sparse")
    n = int(rows.max()) + 1
    nodes = n + int(codes.max()) + 1  # distinct rows, then groups; an edge where a row is in a group
    edges = sparse.coo_array((np.ones(len(rows)), (rows, n + codes)), shape=(nodes, nodes))
    _, component = import_module("scipy.sparse.csgraph").connected_components(edges, directed=False)
    first = np.full(nodes, n)
    np.minimum.at(first, component[:n], np.arange(n))  # name a component by its first distinct row
    _, labels = np.unique(first[component[rows]], return_inverse=True)
    if not labels.any():
        raise InputError(
            "groups puts all rows into one group, so that none can be held out: give more groups, leave groups "
            "out, or give rows to validate on"
        )
    return labels.astype(np.int64)


def set_apart(rows: int) -> Mask:
    """Rows that a fit does not see, at random: a tenth, of a small table up to a quarter, at most 10,000.

    Not by their values: copies of a row may be on both sides, as they may be among new rows.
    """
    count = min(_MOST_APART, max(rows // 10, min(rows // 4, _ENOUGH_APART)))
    return np.random.default_rng(0).permutation(rows) < count


def set_apart_later(before: int, rows: int) -> Mask:
    """Rows that an update does not learn from, of those that come after so many: one of every four, later of every ten.

    Which one a hash of its place says, so that a row is set apart or not whatever the updates that rows come in.
    """
    place = np.arange(before, before + rows)
    found = np.zeros(rows, dtype=bool)
    for pace, mine in ((4, place < 4 * _ENOUGH_APART), (10, place >= 4 * _ENOUGH_APART)):
        first = before // pace
        chosen = position_hashes(pace, first, rows // pace + 2) % np.uint64(pace)
        found |= mine & (chosen[place // pace - first] == (place % pace).astype(np.uint64))
    if found.sum() > _MOST_APART:  # of so many rows that come at once
        found[np.random.default_rng(0).permutation(np.flatnonzero(found))[_MOST_APART:]] = False
    return found


def parts(rows: int, count: int) -> list[Mask]:
    """All rows in `count` parts of about one size, at random, whatever their values."""
    part = np.random.default_rng(0).permutation(rows) % count
    return [part == k for k in range(count)]


def held_out_mask(labels: NDArray[np.int64], weight: Floats | None, fraction: float) -> Mask:
    """The rows to hold out: `fraction` of the weight (of the rows where it is None), and rows of one label together.

    At least one label is held out, and never all: where there is only one, none is.
    """
    total = np.bincount(labels, weight).cumsum()
    count = 1 + int(np.searchsorted(total, fraction * total[-1] * (1.0 - 1e-12)))
    return labels < min(count, len(total) - 1)


def fold_masks(labels: NDArray[np.int64], weight: Floats | None, count: int) -> list[Mask]:
    """`held_out_mask` up to `count` times, with another part of the rows held out each time; one label gives one mask.

    Labels stay together, so the parts differ in size. A part with more than half of all rows is not held out, nor one
    with less than half of its share, unless there is no other: too few rows would be left to fit, or to validate on.
    """
    mass = np.bincount(labels, weight)
    if len(mass) == 1:
        return [np.zeros(len(labels), dtype=bool)]
    middle = (mass.cumsum() - 0.5 * mass) / mass.sum()
    part = np.minimum((count * middle).astype(np.int64), count - 1)
    share = np.bincount(part, mass, count) / mass.sum()
    share[share > 0.5] = 0.0
    kept = np.flatnonzero(share >= min(0.5 / count, share.max()))
    return [part[labels] == k for k in kept]


def _row_hashes(encoded: Array) -> NDArray[np.uint64]:
    """64 bits for each row of float64, from the bits of its cells; 0.0 and -0.0 are the same."""
    hashes = np.zeros(len(encoded), dtype=np.int64)
    for column in range(encoded.shape[1]):
        cells = np.asarray(encoded[:, column], dtype=np.float64) + 0.0
        hashes = splitmix64(hashes + cells.view(np.int64))
    return hashes.view(np.uint64)


# --- rows held out of a table in files


@dataclass(frozen=True)
class HeldOut:
    """The rows whose hash is below `threshold`, an integer up to 2^64; by default none."""

    threshold: int = 0

    @classmethod
    def choose(cls, fraction: float, file_rows: Sequence[int], most: int = MOST_ROWS) -> HeldOut:
        """`fraction` of the rows of files with so many rows each, at most `most`; at least 1, and never all."""
        rows = sum(file_rows)
        wanted = min(max(1, round(fraction * rows)), most, rows - 1)
        if wanted <= 0:
            return cls()
        if wanted > _FEW:
            return cls(int(wanted / rows * _EVERYTHING))
        smallest = np.empty(0, dtype=np.uint64)
        for file, count in enumerate(file_rows):
            for start in range(0, count, _PIECE):
                hashes = position_hashes(file, start, min(_PIECE, count - start))
                smallest = np.sort(np.concatenate([smallest, hashes]))[:wanted]
        return cls(int(smallest[-1]) + 1)

    @classmethod
    def groups(cls, fraction: float, rows: int, most: int = MOST_ROWS) -> HeldOut:
        """As many of the groups; they hold `fraction` of the rows, at most `most`, on average."""
        return cls(int(min(fraction, most / rows) * _EVERYTHING))

    def of_groups(self, column: Column) -> Mask:
        """Whether each row's group is held out."""
        if self.threshold == 0:
            return np.zeros(len(column.values), dtype=bool)
        text = column if column.kind == "categorical" else column.as_text()
        hashes = name_hashes(text.categories)
        return (hashes <= np.uint64(self.threshold - 1))[text.values]

    def of(self, file: int, first_row: int, rows: int) -> Mask:
        """Whether each of these rows is held out."""
        if self.threshold == 0:
            return np.zeros(rows, dtype=bool)
        return position_hashes(file, first_row, rows) <= np.uint64(self.threshold - 1)


def most_rows(columns: int) -> int:
    """Rows to hold out at most: fewer where they are long. A property of the table, not of the machine."""
    return max(_LEAST_ROWS, min(MOST_ROWS, _MOST_CELLS // columns))


def position_hashes(file: int, first_row: int, rows: int) -> NDArray[np.uint64]:
    """64 bits for each of some rows of a file, both counted from 0: SplitMix64 of the row's number, from a start that
    the file's number gives."""
    row = np.arange(first_row, first_row + rows, dtype=np.int64)
    start = splitmix64(np.array([file], dtype=np.int64) * GOLDEN)
    return splitmix64(row * GOLDEN + start).view(np.uint64)
