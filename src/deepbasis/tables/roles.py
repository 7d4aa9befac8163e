"""The role of each column of a table in files, and the one place that checks roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import InputError, counted, first_of
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.cells import Rule
from deepbasis.tables.columns import MISSING, Array, Column, Mask, joined
from deepbasis.tables.encoders import no_numbers
from deepbasis.tables.labels import Labels, column_labels, label_cells
from deepbasis.tables.places import check_present
from deepbasis.tables.reading import numbers
from deepbasis.tables.recognition import number_rule
from deepbasis.tables.source import Source
from deepbasis.tables.table import HeldOut, Table
from deepbasis.tables.targets import REMOVE, check_bounds, check_exposure, check_target, check_weight, check_weights

_NUMBERS = ("numeric", "boolean", MISSING)
_ROWS_AT_A_TIME = 65_536
DROP = "leave such rows out with drop_missing_target=True, or remove them"


def check_distinct(
    target: str | Sequence[str],
    weight: str | None = None,
    groups: str | None = None,
    drop: Sequence[str] = (),
    named: Callable[[str], str] = str,
    lower: str | None = None,
    upper: str | None = None,
    exposure: str | None = None,
) -> None:
    """A column has one role. `named` is how the user calls a role: target, or --target."""
    roles: dict[str, str] = {}
    once = (("weight", weight), ("groups", groups), ("lower", lower), ("upper", upper), ("exposure", exposure))
    targets = (("target", one) for one in _listed(target))
    for role, column in (*targets, *once, *(("drop", one) for one in drop)):
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
    labels: Labels | None = None
    """Of a target that is a class."""
    lower: str | None = None
    upper: str | None = None
    """Bounds of a censored target."""
    target_rule: Rule | None = None
    """How the target is read, where it is written as $7,182."""
    drop_missing_target: bool = False
    """Whether rows without a target are left out, and not refused."""
    outputs: tuple[str, ...] = ()
    """All columns of several outputs, of which `target` is the first."""
    exposure: str | None = None
    """How long, or over how much, a target that is a count was counted."""
    remedy: str = REMOVE
    """What to do about rows without a target."""

    def __post_init__(self) -> None:
        if self.outputs and self.drop_missing_target:
            raise InputError(f"drop_missing_target is for one target, and there are {len(self.outputs)}: leave it out")
        if self.is_censored and self.labels is not None:
            raise InputError("lower and upper are bounds of a number, and the target is a class: leave them out")
        if self.is_censored and self.drop_missing_target:
            raise InputError("drop_missing_target is for a target without bounds: remove the rows without one yourself")
        if self.exposure is not None and (self.labels is not None or self.outputs or self.is_censored):
            raise InputError("exposure is for one target that is a count, and known exactly: leave it out")

    @classmethod
    def of(
        cls,
        source: Source,
        target: str | Sequence[str],
        weight: str | None = None,
        groups: str | None = None,
        classes: bool | None = False,
        lower: str | None = None,
        upper: str | None = None,
        drop_missing_target: bool = False,
        exposure: str | None = None,
    ) -> Roles:
        """Every other column is a feature. `classes` says whether the target is one; None: if it holds no numbers."""
        check_distinct(target, weight, groups, lower=lower, upper=upper, exposure=exposure)
        name, targets = source.files[0].place.name, _listed(target)
        target, outputs = targets[0], tuple(targets) if len(targets) > 1 else ()
        if outputs and classes:
            raise InputError(f"a class is for one target, and there are {len(outputs)}: fit one model for each")
        if outputs and (lower is not None or upper is not None):
            raise InputError(f"lower and upper are bounds of one target, and there are {len(outputs)}: leave them out")
        beside = [column for column in (*targets, weight, groups, lower, upper, exposure) if column is not None]
        check_present(source.names, beside, name)
        features = [column for column in source.names if column not in beside]
        if not features:
            raise InputError(f"{name} has no column left to predict '{target}' from: it needs one at least")
        labels, rule = None, None if classes or outputs else _number_rule(source, target, drop_missing_target)
        if classes or (not outputs and classes is None and rule is None and _holds_classes(source, target)):
            labels = _read_labels(source, target, drop_missing_target)
        droppable = not outputs and lower is None and upper is None
        roles = cls(
            *(features, target, weight, groups, labels, lower, upper, rule, drop_missing_target, outputs, exposure),
            remedy=DROP if droppable else REMOVE,
        )
        roles.check_numbers(source)
        return roles

    def check_numbers(self, source: Source) -> None:
        """Of the table that is trained on, or of another: target, weight and bounds must be numbers."""
        is_number = self.labels is None and self.target_rule is None
        beside = [(role, getattr(self, role)) for role in ("weight", "lower", "upper", "exposure")]
        for role, column in (*beside, *((("target", one) for one in self.targets) if is_number else ())):
            if column is not None:
                check_holds_numbers(source, role, column)

    @property
    def targets(self) -> tuple[str, ...]:
        return self.outputs or (self.target,)

    def for_validation(self) -> Roles:
        """Of another table, whose rows count once each."""
        return replace(self, weight=None, groups=None, lower=None, upper=None, drop_missing_target=False, remedy=REMOVE)

    @property
    def columns(self) -> list[str]:
        beside = (self.weight, self.groups, self.lower, self.upper, self.exposure)
        return [*self.features, *self.targets, *(column for column in beside if column is not None)]

    def table(self, source: Source, places: NDArray[np.int64] | None = None, keep_gaps: bool = False) -> Table:
        """All of a table in memory, or the rows at these places, in order; all rows are checked.

        Rows without a target are left out, or, to keep the order, have the target NaN.
        """
        source.check_rows()
        self.check_numbers(source)
        pieces: list[tuple[Any, ...]] = []
        seen = 0
        for block in source.all_blocks(self.columns, _ROWS_AT_A_TIME):
            group = None if self.groups is None else self.groups_of(block)
            known = self.target_of(block), self.weight_of(block), self.bounds_of(block), self.exposure_of(block)
            piece = (self.features_of(block), *known, group)
            if places is not None:
                first, end = np.searchsorted(places, [seen, seen + len(block)])
                piece = tuple(_sampled(part, places[first:end] - seen) for part in piece)
            pieces.append(piece)
            seen += len(block)
        features, y, weights, bounds, exposures, groups = zip(*pieces, strict=True)
        weight = None
        if self.weight is not None:
            weight = check_weight(np.concatenate(weights), sum(map(len, y)), f"weight column '{self.weight}'")
        table = Table(
            list(self.features),
            tuple(joined(parts) for parts in zip(*features, strict=True)),
            np.concatenate(y),
            weight,
            None if self.groups is None else joined(groups).cells(),
            self.labels,
            None if bounds[0] is None else np.concatenate(bounds),
            source.decimal,
            None if self.exposure is None else np.concatenate(exposures),
            self.exposure,
            self.outputs,
            (self.lower, self.upper),
        )
        gaps = np.isnan(table.y) if table.y.ndim == 1 else np.zeros(len(table), dtype=bool)
        if gaps.all():
            raise InputError(f"target column '{self.target}' of {source.name} has no value at all")
        return table.rows(~gaps) if gaps.any() and not keep_gaps else table

    def target_of(self, block: FileBlock) -> Array:
        """[n], or [n, m] of several outputs."""
        with block.located():
            if self.outputs:
                columns = [check_target(numbers(block.table.column(one)), _named(block, one)) for one in self.outputs]
                return np.stack(columns, 1)
            name, rule = _named(block, self.target), self.target_rule
            if self.labels is not None:
                column = block.column(self.target)
                known = ~column.missing if self.drop_missing_target else np.ones(len(block), dtype=bool)
                y = np.full(len(block), np.nan)
                y[known] = self.labels.codes(column_labels(column.rows(known)), name) if known.any() else y[known]
                return y
            cells = block.table.column(self.target)
            y = numbers(cells) if rule is None else rule.column(block.column(self.target)).values
            known = ~np.isnan(y)
            if self.drop_missing_target and known.any():
                check_target(y[known], name)
            return y if self.drop_missing_target else check_target(y, name, self.remedy)

    def weight_of(self, block: FileBlock) -> Array | None:
        if self.weight is None:
            return None
        with block.located():
            return check_weights(
                numbers(block.table.column(self.weight)), f"weight column '{self.weight}' of {block.name}"
            )

    def bounds_of(self, block: FileBlock) -> Array | None:
        """Of the target; a cell without a value is no bound."""
        columns = (self.lower, self.upper)
        with block.located():
            ends = (None if column is None else numbers(block.table.column(column)) for column in columns)
            return check_bounds(self.target_of(block), *ends)

    def exposure_of(self, block: FileBlock) -> Array | None:
        return None if self.exposure is None else read_exposure(block, self.exposure)

    def observed_of(self, block: FileBlock) -> Array:
        """What is known of the target: [n], [n, m] of several outputs, y and its bounds, [n, 3], or y and its
        exposure, [n, 2]."""
        y, bounds, exposure = self.target_of(block), self.bounds_of(block), self.exposure_of(block)
        beside = bounds if exposure is None else exposure
        return y if beside is None else np.column_stack([y, beside])

    @property
    def observed_numbers(self) -> int:
        """Columns of it; 0 if it is [n]."""
        return 3 if self.is_censored else len(self.outputs) if self.exposure is None else 2

    @property
    def is_censored(self) -> bool:
        return self.lower is not None or self.upper is not None

    def features_of(self, block: FileBlock) -> list[Column]:
        with block.located():
            return [block.column(name) for name in self.features]

    def groups_of(self, block: FileBlock) -> Column:
        with block.located():
            column = block.column(str(self.groups))
            if column.missing.any():
                count, row = int(column.missing.sum()), int(np.argmax(column.missing))
                raise InputError(
                    f"X: {column.label} names groups and has {counted(count, 'missing value')}, "
                    f"{first_of(count, row)}; give each such row a group of its own"
                )
            return column

    def held_out_of(self, block: FileBlock, file: int, held_out: HeldOut) -> Mask:
        """Whether each row is held out."""
        if self.groups is None:
            return held_out.of(file, block.first_row, len(block))
        return held_out.of_groups(self.groups_of(block))


def _sampled(part: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows, with memory of their own: the rest of the block can go."""
    if part is None:
        return None
    if isinstance(part, list):
        return [_sampled(column, rows) for column in part]
    return part.sampled(rows) if isinstance(part, Column) else part[rows]


def _listed(target: str | Sequence[str]) -> list[str]:
    found = [target] if isinstance(target, str) else list(target)
    if not found:
        raise InputError("target must name a column, or several")
    return found


def read_exposure(block: FileBlock, column: str) -> Array:
    with block.located():
        name = f"exposure column '{column}' of {block.name}"
        return check_exposure(numbers(block.table.column(column)), len(block), name)


def read_known(data: Any, roles: Roles, places: NDArray[np.int64] | None = None) -> Table:
    """The columns of a table that have a role, without features; of all rows, or of those at these places, in order.

    A target that is missing, and need not be there, is NaN.
    """
    columns, labels = list(roles.outputs) or [roles.target], roles.labels
    source = Source.open(data, roles.columns, text=columns if labels is not None and labels.are_text else [])
    gaps = roles.drop_missing_target
    rule = None if labels is not None or roles.outputs else _number_rule(source, columns[0], gaps)
    return replace(roles, target_rule=rule).table(source, places, keep_gaps=gaps)


def _named(block: FileBlock, column: str) -> str:
    return f"target column '{column}' of {block.name}"


def _holds_classes(source: Source, column: str) -> bool:
    """Truth values, or texts of which none is a number: one cell makes a CSV column text."""
    if source.kinds[column] != "categorical":
        return source.kinds[column] == "boolean"
    cells = (block.column(column) for block in source.all_blocks([column], _ROWS_AT_A_TIME))
    return all(bool((no_numbers(one).missing == one.missing).all()) for one in cells)


def _read_labels(source: Source, column: str, without_gaps: bool) -> Labels:
    found: set[Any] = set()
    for block in source.all_blocks([column], _ROWS_AT_A_TIME):
        with block.located():
            cells = block.column(column)
            cells = cells.rows(~cells.missing) if without_gaps else cells
            found |= set(label_cells(column_labels(cells), _named(block, column), DROP))
    return Labels.of(found, name=f"target column '{column}' of {source.name}")


def _number_rule(source: Source, target: str, gaps: bool = False) -> Rule | None:
    """How the cells of a target that is text are read as numbers, if all of the first ones are.

    Of as many rows in every file, however it is cut into blocks; a cell further down may still be refused.
    """
    if source.kinds[target] != "categorical":
        return None
    first: list[Column] = []
    for block in source.all_blocks([target], _ROWS_AT_A_TIME):
        first.append(block.column(target))
        if sum(len(part.values) for part in first) >= _ROWS_AT_A_TIME:
            break
    return number_rule(joined(first).rows(slice(_ROWS_AT_A_TIME)), source.decimal, gaps) if first else None


def check_holds_numbers(source: Source, role: str, column: str) -> None:
    """Refuse a column of anything else, with the first value that is not a number: one cell makes a CSV column text."""
    if source.kinds[column] in _NUMBERS:
        return
    remedy = "or choose another column"
    for block in source.all_blocks([column], _ROWS_AT_A_TIME):
        with block.located():
            cells = block.column(column)
            found = no_numbers(cells) if cells.kind == "categorical" else cells
            if cells.kind not in _NUMBERS and not found.missing.all():
                named = f"{role} column '{column}' of {block.name}"
                raise InputError(f"{named} must hold numbers, got {found.example()}; correct that, {remedy}")
    named = f"{role} column '{column}' of {source.name}"
    raise InputError(f"{named} must hold numbers, and holds them as text; convert it, {remedy}")
