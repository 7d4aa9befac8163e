"""The role of each column of a table in files, and the one place that checks roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepbasis.errors import InputError
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import MISSING, Array, Column, Mask, joined
from deepbasis.tables.encoders import reads_as
from deepbasis.tables.places import check_present
from deepbasis.tables.reading import numbers
from deepbasis.tables.source import Source
from deepbasis.tables.table import HeldOut, Table
from deepbasis.tables.targets import check_target, check_weight, check_weights

_NUMBERS = ("numeric", "boolean", MISSING)
_SEARCH_ROWS = 65_536


def check_distinct(
    target: str,
    weight: str | None = None,
    groups: str | None = None,
    drop: Sequence[str] = (),
    named: Callable[[str], str] = str,
) -> None:
    """A column has one role. `named` is how the user calls a role: target, or --target."""
    roles: dict[str, str] = {}
    for role, column in (("target", target), ("weight", weight), ("groups", groups), *(("drop", one) for one in drop)):
        if column in roles:
            twice = f"{named(role)} names the column '{column}', which {named(roles[column])} names already"
            raise InputError(f"{twice}: a column can have one part only")
        if column is not None:
            roles[column] = role


@dataclass(frozen=True)
class Roles:
    """The role of each column."""

    features: list[str]
    target: str
    weight: str | None = None
    groups: str | None = None
    """Rows of one group are never both trained on and held out."""

    @classmethod
    def of(cls, source: Source, target: str, weight: str | None = None, groups: str | None = None) -> Roles:
        """Every other column is a feature."""
        check_distinct(target, weight, groups)
        name = source.files[0].place.name
        beside = [column for column in (target, weight, groups) if column is not None]
        check_present(source.names, beside, name)
        features = [column for column in source.names if column not in beside]
        if not features:
            raise InputError(f"{name} has no column left to predict '{target}' from: it needs one at least")
        roles = cls(features, target, weight, groups)
        roles.check_numbers(source)
        return roles

    def check_numbers(self, source: Source) -> None:
        """Of the table that is trained on, or of another: target and weight must be numbers."""
        for role, column in (("target", self.target), ("weight", self.weight)):
            if column is not None:
                _check_numbers(source, role, column)

    def for_validation(self) -> Roles:
        """Of another table, whose rows count once each."""
        return Roles(self.features, self.target)

    @property
    def columns(self) -> list[str]:
        return [*self.features, self.target, *(column for column in (self.weight, self.groups) if column is not None)]

    def table(self, source: Source) -> Table:
        """All of a table in memory."""
        source.check_rows()
        self.check_numbers(source)
        blocks = list(source.all_blocks(self.columns))
        weights = [found for block in blocks if (found := self.weight_of(block)) is not None]
        pieces = zip(*(self.features_of(block) for block in blocks), strict=True)
        groups = None if self.groups is None else joined([self.groups_of(block) for block in blocks])
        return Table(
            list(self.features),
            tuple(joined(parts) for parts in pieces),
            np.concatenate([self.target_of(block) for block in blocks]),
            check_weight(np.concatenate(weights), source.rows, f"weight column '{self.weight}'") if weights else None,
            None if groups is None else groups.values,
        )

    def target_of(self, block: FileBlock) -> Array:
        return _numbers(block, self.target, "target", check_target)

    def weight_of(self, block: FileBlock) -> Array | None:
        return None if self.weight is None else _numbers(block, self.weight, "weight", check_weights)

    def features_of(self, block: FileBlock) -> list[Column]:
        with block.located():
            return [block.column(name) for name in self.features]

    def groups_of(self, block: FileBlock) -> Column:
        with block.located():
            column = block.column(str(self.groups))
            if column.missing.any():
                raise InputError(
                    f"X: {column.label} names groups and has {int(column.missing.sum())} missing value(s), the first "
                    f"in row {int(np.argmax(column.missing))}; give each of those rows a group of its own"
                )
            return column

    def held_out_of(self, block: FileBlock, file: int, held_out: HeldOut) -> Mask:
        """Whether each row is held out."""
        if self.groups is None:
            return held_out.of(file, block.first_row, len(block))
        return held_out.of_groups(self.groups_of(block))


def read_target(data: Any, column: str) -> Array:
    """The targets of a table, to compare predictions with."""
    return Roles([], column).table(Source.open(data, [column])).y


def _numbers(block: FileBlock, column: str, role: str, check: Callable[[Array, str], Array]) -> Array:
    with block.located():
        return check(numbers(block.table.column(column)), f"{role} column '{column}' of {block.name}")


def _check_numbers(source: Source, role: str, column: str) -> None:
    """Refuse a column of anything else, with the first value that is not a number: one cell makes a CSV column text."""
    if source.kinds[column] in _NUMBERS:
        return
    remedy = "or choose another column"
    for block in source.all_blocks([column], _SEARCH_ROWS):
        with block.located():
            found = _first_that_is_no_number(block.column(column))
            if found:
                named = f"{role} column '{column}' of {block.name}"
                raise InputError(f"{named} must hold numbers, got {found}; correct that, {remedy}")
    named = f"{role} column '{column}' of {source.name}"
    raise InputError(f"{named} must hold numbers, and holds them as text; convert it, {remedy}")


def _first_that_is_no_number(column: Column) -> str:
    """As 'red' in row 0; nothing where all are numbers, or missing."""
    if column.kind != "categorical":
        return "" if column.kind in _NUMBERS else column.example()
    words = [position for position, text in enumerate(column.categories) if not reads_as("numeric", text)]
    rows = np.flatnonzero(np.isin(column.values, words))
    return f"{column.categories[int(column.values[rows[0]])]!r} in row {rows[0]}" if len(rows) else ""
