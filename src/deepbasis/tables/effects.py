"""Effects: what the levels of a category that has many of them say about the target.

The most frequent levels of a column have an indicator each, and all others share one. So each level of a column that
has others also has its effect, and how well that is known:

    effect = n / (n + k) (mean - overall mean) / s_b,    known = n / (n + k),    k = s_w^2 / s_b^2

with the level's n rows and the spread of the target within and between levels, s_w and s_b, by the moments of a
one-way analysis of variance. This is the best linear prediction of a random effect, in units of its spread. A level
that was not in the fit has 0 and 0.

A row that a model is fitted to must not know its own target: the rows are cut into parts, and the rows of each have the
effects of the other parts. New rows have those of all. A number counts by its normal score, so that neither its scale
nor its tails matter.

Some categories are hidden from a model that is fitted to them, as if they had never been seen before: so it knows how
wide it must be where they have not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.hashing import splitmix64
from deepbasis.tables.columns import Array, Column, Mask
from deepbasis.tables.encoders import Encoding, check_kind, level_slots
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.weighted import masses

PARTS = 5
"""Of the rows, unless there are parts already."""
MAX_LEVELS = 100_000
"""The most frequent levels of a column, whose effects are kept."""

_MOST_RESPONSES = 10  # classes or outputs
_HIDDEN = 25  # one value of so many of a column is hidden, or fewer: never two of a row

Hashes = NDArray[np.int64]


@dataclass(frozen=True)
class InTraining:
    """How the rows that models are fitted to are encoded: by the effects of other parts, some categories hidden."""

    columns: tuple[tuple[int, int, Encoding, Array | None], ...]
    """Of an input column its number, the first of its encoded ones, its encoding and [parts, levels, effects]."""

    def crossed(self, columns: Sequence[Column], part: Array, out: NDArray[Any]) -> NDArray[Any]:
        """`out`, the encoded rows of some columns, with the effects of the other parts; `part` is that of each row."""
        for k, start, encoding, table in self.columns:
            if table is not None:
                slot = level_slots(encoding, check_kind(encoding, columns[k]))
                rows, first = np.flatnonzero(slot >= 0), start + encoding.first_effect
                out[rows, first : first + table.shape[2]] = table[part[rows], slot[rows]]
        return out

    def hidden(self, columns: Sequence[Column], hashes: Hashes, out: NDArray[Any]) -> NDArray[Any]:
        """`out`, the encoded rows of some columns, with some categories hidden, by a hash of each row."""
        chosen = self._chosen(hashes)
        for place, (k, start, encoding, _) in enumerate(self.columns):
            rows = np.flatnonzero((chosen == place) & ~check_kind(encoding, columns[k]).missing)
            first = start + encoding.first_effect
            out[rows, start : first + len(encoding.effects)] = 0.0
            if encoding.other:
                out[rows, first - 1] = 1.0
        return out

    def hides(self, hashes: Hashes) -> Mask:
        """Whether a category of a row is hidden."""
        return self._chosen(hashes) < len(self.columns)

    def _chosen(self, hashes: Hashes) -> NDArray[np.int64]:
        """[n]: the place of the column that is hidden in a row; of at least half of the rows, one beyond them all."""
        return (splitmix64(hashes) >> 20) % max(_HIDDEN, 2 * len(self.columns))


def position_parts(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Hashes]:
    """The parts of rows that are streamed, and what hides some of their categories, by the hashes of their places."""
    return (hashes % np.uint64(PARTS)).astype(np.int64), hashes.view(np.int64)


def in_training(
    preprocessor: Preprocessor,
    columns: Sequence[Column],
    observed: Array,
    weight: Array | None,
    part: Array,
    hide: bool = True,
) -> tuple[Preprocessor, InTraining]:
    """The encoding with the effects of all rows on what is `observed` [n, r] (`responses`), and that of these rows.

    `part` [n] is the number of each row's part. Categories of few levels are hidden, too, where `hide` says so.
    """
    encodings, found, start = [], [], 0
    for k, (encoding, given) in enumerate(zip(preprocessor.encodings, columns, strict=True)):
        table = None
        if encoding.other:
            encoding, table = _of_levels(encoding, given, observed, weight, part)
        if encoding.kind == "categorical" and encoding.varies and (hide or encoding.other):
            found.append((k, start, encoding, table))
        encodings.append(encoding)
        start += encoding.width
    return replace(preprocessor, encodings=tuple(encodings)), InTraining(tuple(found))


def _of_levels(
    encoding: Encoding, given: Column, observed: Array, weight: Array | None, part: Array
) -> tuple[Encoding, Array | None]:
    """With its effects, and those of the other parts; without, if levels do not differ, or no two rows are of one."""
    plain, column = encoding, check_kind(encoding, given)
    rows = np.flatnonzero(~column.missing)
    counts = np.bincount(column.values[rows], None if weight is None else weight[rows], len(column.categories))
    most = sorted((-count, name) for count, name in zip(counts.tolist(), column.categories, strict=True) if count)
    encoding = replace(encoding, levels=tuple(name for _, name in most[:MAX_LEVELS]))
    level = level_slots(encoding, column)
    rows = np.flatnonzero(level >= 0)
    weight = np.ones(len(rows)) if weight is None else weight[rows]  # a weight of k is k rows
    y, level, part = observed[rows], level[rows], part[rows]
    y = y - (weight @ y) / weight.sum()
    levels, parts, r = len(encoding.levels), int(part.max()) + 1, y.shape[1]

    def sums(values: Array) -> Array:
        """[parts, levels]"""
        return np.bincount(part * levels + level, values, parts * levels).reshape(parts, levels)

    n, s = sums(weight), np.stack([sums(weight * one) for one in y.T], 2)
    all_n, all_s = n.sum(0), s.sum(0)
    within, between = _variances(weight, y, all_n, all_s)
    if not (between > 0.0).any():
        return plain, None
    k = within / np.maximum(between, 1e-12 * y.var(0).max())  # where they do not differ the effects are about 0

    def effects(n: Array, s: Array) -> Array:
        """[..., levels, r + 1]"""
        found = np.empty((*n.shape, r + 1))
        found[..., :r] = s / (n[..., None] + k) / np.sqrt(np.where(between > 0.0, between, 1.0))
        found[..., r] = n / (n + max(k.min(), 1e-6))
        return found

    columns = tuple(tuple(one.tolist()) for one in effects(all_n, all_s).T)
    return replace(encoding, effects=columns), effects(all_n - n, all_s - s)


def _variances(weight: Array, y: Array, n: Array, s: Array) -> tuple[Array, Array]:
    """Within and between levels, of each response: s are the sums of the n rows of each level, about the mean."""
    rows, levels = weight.sum(), len(n)
    if rows <= levels + 1e-9 or levels < 2:
        return np.ones(y.shape[1]), np.zeros(y.shape[1])
    of_levels = (s**2 / n[:, None]).sum(0)
    within = np.maximum(weight @ y**2 - of_levels, 0.0) / (rows - levels)
    between = (of_levels - (levels - 1) * within) / (rows - (n**2).sum() / rows)
    return within, np.maximum(between, 0.0)


def responses(y: Array, weight: Array | None, classes: int = 0, exposure: Array | None = None) -> Array:
    """[n, r], what effects are on: the normal scores of a target [n], of several [n, r] or of a rate; or which of the
    most frequent classes each row is, of two whether it is the second."""
    if not classes:
        each = (y if exposure is None else y / exposure).reshape(len(y), -1)[:, :_MOST_RESPONSES]
        return np.stack([_normal_scores(one, weight) for one in each.T], 1)
    counts = np.bincount(y.astype(np.int64), weight, classes)
    named = [1] if classes == 2 else np.sort(np.argsort(-counts, kind="stable")[:_MOST_RESPONSES]).tolist()
    return np.stack([y == one for one in named], 1).astype(np.float64)


def _normal_scores(y: Array, weight: Array | None) -> Array:
    distinct, mass = masses(y, weight)
    special: Any = import_module("scipy.special")
    scores = special.ndtri((np.cumsum(mass) - 0.5 * mass) / mass.sum())
    return np.asarray(scores[np.searchsorted(distinct, y)])
