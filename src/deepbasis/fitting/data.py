"""From a table in memory to what the engine trains on: every column is parsed once, encoded once or twice, and cut into
the rows that members are fitted to and the rows that they hold out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis.engine.batches import Rows
from deepbasis.errors import InputError, warn_of_table
from deepbasis.fitting.apart import MOST_APART, Apart
from deepbasis.fitting.candidate import needs_line
from deepbasis.fitting.decide import hides_categories, hold_out, scaling, spikes_above
from deepbasis.fitting.held_out import Fold, limit_copies
from deepbasis.fitting.kinds import CONFORMAL, CROSS
from deepbasis.fitting.novelty import Novelty
from deepbasis.fitting.plan import Facts, Plan
from deepbasis.fitting.spec import OUTPUTS, Spec
from deepbasis.fitting.start import straight_line
from deepbasis.fitting.targets import outputs_scaler, target_scaler
from deepbasis.gp.rates import RATE
from deepbasis.tables.effects import PARTS, in_training, responses
from deepbasis.tables.labels import Labels
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.recognition import constants, recognise
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.table import Table, fold_masks, held_out_mask, parts, row_labels, set_apart
from deepbasis.tables.targets import check_ends, check_precision, group_names

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CROSS_PARTS = 5
"""Of the rows, for a cross-conformal promise: that many more fits."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TableData:
    """A table in memory, ready to be fitted."""

    preprocessor: Preprocessor
    target: TargetScaler
    target_because: str
    encoded: Rows
    """In float64, the target in units of its spread."""
    held_out: tuple[Mask, ...]
    """One mask for each fold; none if validation rows were given."""
    validation: Rows | None
    grouped: bool
    rows_given: int
    """Those of weight 0 among them."""
    row_numbers: NDArray[np.int64] | None = None
    """Of the encoded rows in the table, where some were left out."""
    apart: Apart | None = None
    """Rows that nothing of the fit sees."""
    unlike: Mask | None = None
    """Rows of which some categories are hidden, if any are."""
    without: tuple[TableData, ...] = ()
    """Of a cross-conformal promise: the same without each part of the rows in turn, which it sets apart."""

    @classmethod
    def read(
        cls,
        spec: Spec,
        X: Any,
        y: Any,
        weight: Any = None,
        groups: Any = None,
        labels: Labels | None = None,
        validation: Callable[[Preprocessor], Table] | None = None,
        **bounds: Any,
    ) -> TableData:
        """What an estimator was given. What its columns were taken for is told."""
        unread = [name for name, meaning in (spec.columns or {}).items() if meaning == "drop"]
        data = cls.of(spec, Table.read(X, y, weight, groups, labels, unread=unread, **bounds), validation)
        for note in data.preprocessor.notes:
            warn_of_table(note, 5)
        return data

    @classmethod
    def of(cls, spec: Spec, given: Table, validation: Callable[[Preprocessor], Table] | None = None) -> TableData:
        """`validation` reads rows to validate on as columns of the same kinds."""
        rows = len(given.weighted())
        if spec.calibrate != CROSS:
            return cls._of(spec, given, validation, set_apart(rows) if spec.calibrate == CONFORMAL else None)
        fewest, most = 2 * CROSS_PARTS, CROSS_PARTS * MOST_APART
        if not fewest <= rows <= most:
            raise InputError(
                f"calibrate='cross-conformal' is for {fewest} to {most:,} rows, got {rows:,}: use 'conformal'"
            )
        found = cls._of(spec, given, validation)
        without = tuple(cls._of(spec, given, validation, out) for out in parts(rows, CROSS_PARTS))
        for one in without:
            _check_read_alike(one.preprocessor, found.preprocessor)
        return replace(found, without=without)

    @classmethod
    def _of(
        cls,
        spec: Spec,
        given: Table,
        validation: Callable[[Preprocessor], Table] | None = None,
        out: Mask | None = None,
    ) -> TableData:
        """`out` are rows of positive weight to set apart."""
        table = given.weighted()
        every_column = table.columns
        numbers = None if table is given or given.weight is None else np.flatnonzero(given.weight > 0)
        away = None
        if out is not None:
            numbers = np.flatnonzero(~out) if numbers is None else numbers[~out]
            away, table = table.rows(out), table.rows(~out).weighted()
        meant = recognise(table.names, table.columns, spec.columns, table.decimal)
        table = replace(table, columns=meant.columns)
        how: Any = {"scaling": scaling(spec), "rules": meant.rules}
        how["spikes_above"] = spikes_above(spec, classes=given.labels is not None)
        how["within"] = table.columns if out is None else meant.read(every_column)
        preprocessor = Preprocessor.fit(table.names, table.columns, table.weight, **how)
        notes = (*meant.notes, *constants(table.columns, [one.width > 0 for one in preprocessor.encodings]))
        x = preprocessor.encoded(table.columns)
        more = preprocessor.identities(table.columns)
        labels = row_labels(np.hstack([x, more]) if more.shape[1] else x, table.groups)
        masks = _masks(spec, labels, table) if validation is None else ()
        known = table  # the rows that some member is fitted to
        if len(masks) == 1 and masks[0].any():
            known = table.rows(~masks[0])
            preprocessor = Preprocessor.fit(table.names, known.columns, known.weight, **how)
            x = preprocessor.encoded(table.columns)
        inside = np.arange(len(table)) if known is table else np.flatnonzero(~masks[0])
        training, hide = None, hides_categories(spec, len(table))
        if more.shape[1] or (hide and preprocessor.flags):  # members know no target of a part that they hold out
            part = _part(masks if len(masks) > 1 else fold_masks(_dense(labels[inside]), known.weight, PARTS))
            observed = responses(
                known.y, known.weight, 0 if given.labels is None else len(given.labels.values), known.exposure
            )
            preprocessor, training = in_training(preprocessor, known.columns, observed, known.weight, part, hide)
            x = preprocessor.encoded(table.columns)
            x[inside] = training.crossed(known.columns, part, x[inside])
        rows = None if validation is None else validation(preprocessor)
        if rows is not None and (rows.y.shape[1:] != table.y.shape[1:] or rows.outputs != table.outputs):
            raise InputError("y_val must have the same columns as y, in the same order")
        every_y = table.y if rows is None else np.concatenate([table.y, rows.y])
        censored = table.bounds is not None
        if table.bounds is not None:
            check_ends(table.bounds)
        if given.labels is not None:
            target, because = TargetScaler(0.0, 1.0, given.labels), str(given.labels)
        elif given.outputs:
            if known.exposure is not None:
                raise InputError("exposure is for one target that is a count, and y has several columns: leave it out")
            target, because = outputs_scaler(
                spec, given.outputs, known.y, known.weight, every_y, lambda some: x[inside[some]]
            )
        else:
            target, because = target_scaler(
                spec,
                known.y,
                known.weight,
                every_y,
                lambda some: x[inside[some]],
                censored=censored,
                exposure=known.exposure,
                exposure_name=known.exposure_name,
                bound_names=known.bound_names,
            )
        unlike = None
        if training is not None:  # from here on: how the target is transformed was chosen by all that is known
            x[inside] = training.hidden(known.columns, labels[inside], x[inside])
            unlike = np.zeros(len(x), dtype=bool)
            unlike[inside] = training.hides(labels[inside])
        if rows is not None and table.exposure is not None and rows.exposure is None:
            raise InputError("rows to validate on have no exposure: leave X_val and y_val out, or the exposure")
        aside = None if rows is None else _rows(preprocessor.encoded(rows.columns), _observed(target, rows, censored))
        return cls(
            replace(preprocessor, notes=notes),
            target,
            because,
            _rows(x, _observed(target, table, censored), table.weight),
            masks,
            aside,
            table.groups is not None,
            len(given),
            numbers,
            None if away is None else _apart(away, preprocessor),
            unlike=unlike,
        )

    def facts(self, spec: Spec) -> Facts:
        table_rows = len(self.encoded)
        rows = max((int((~mask).sum()) or table_rows for mask in self.held_out), default=table_rows)
        line_leaves = None
        if needs_line(spec, rows) and not self.target.classes and not self.target.outputs:
            line_leaves = straight_line(self._inside(0)).share_left
        return Facts(
            table_rows=table_rows,
            rows=rows,
            columns=self.preprocessor.width,
            number_columns=self.preprocessor.coordinates,
            flags=self.preprocessor.flags,
            grouped=self.grouped,
            target=self.target.name,
            target_because=self.target_because,
            classes=self.target.classes,
            edges=self.target.edges,
            outputs=len(self.target.outputs),
            censored=self.encoded.y.dim() > 1 and self.target.name not in (RATE, OUTPUTS),
            line_leaves=line_leaves,
        )

    def novelty(self) -> Novelty:
        """Calibrated on rows that are set apart, if any are; or, as new rows may be of new groups, on such."""
        x, held_out = self.encoded.x, None
        if self.grouped and len(self.held_out) > 0:
            held_out = torch.from_numpy(self.held_out[0])
        if self.unlike is not None:
            usual = torch.from_numpy(~self.unlike)
            x, held_out = x[usual], None if held_out is None else held_out[usual]
        if self.apart is not None and held_out is None:
            x, held_out = torch.cat([x, self.apart.x]), torch.arange(len(x) + len(self.apart.x)) >= len(x)
        return Novelty.fit(x, held_out)

    def everything(self, dtype: torch.dtype) -> Rows:
        return self.encoded.to(_CPU, dtype)

    def folds(self, plan: Plan) -> list[Fold]:
        dtype = plan.candidates[0].settings.dtype
        self._check_precision(str(dtype).removeprefix("torch."))
        folds = []
        for k in range(max(1, len(self.held_out))):
            outside = self.validation or self._where(self.held_out[k])
            inside, outside = self._inside(k).to(_CPU, dtype), outside.to(_CPU, dtype)
            folds.append(Fold(inside, outside, limit_copies(outside, plan.copies_limit), k))
        return folds

    def holds_each_out_alone(self, held_out: Rows) -> bool:
        """Whether the held-out rows of all folds are the whole table, each row once and none a copy of another.

        Only then is each row predicted from rows that are all different from it."""
        different = int(row_labels(self.encoded.x.numpy()).max()) + 1
        return len(self.held_out) > 1 and len(held_out) == different == len(self.encoded)

    def by_turns(self, folds: Sequence[Fold], members: int) -> tuple[Rows, Rows]:
        """All rows, twice, for members that hold out these folds in turn: with their weights in each member's training,
        and in its selection."""
        everything = self.everything(folds[0].data.x.dtype)
        inside, outside = [], []
        for fold in folds:
            held_out = torch.from_numpy(self.held_out[fold.number])
            away = held_out if len(fold.held_out) < len(held_out) else torch.zeros_like(held_out)  # else: both are all
            own = torch.ones_like(everything.number) if everything.weight is None else everything.weight
            inside.append(torch.where(away, 0.0, own))
            selecting = fold.selecting.weight
            outside.append(torch.zeros_like(own))
            outside[-1][away | ~away.any()] = own.new_ones(()) if selecting is None else selecting
        turns = [k % len(folds) for k in range(members)]
        return (
            replace(everything, weight=torch.stack(inside)[turns]),
            replace(everything, weight=torch.stack(outside)[turns]),
        )

    def _check_precision(self, dtype: str) -> None:
        """Here, where the rows still have the numbers that the user knows."""
        given = [("y", self.encoded, self.row_numbers)]
        given += [] if self.validation is None else [("y_val", self.validation, None)]
        for name, rows, numbers in given:
            y = rows.y if self.target.outputs else rows.number
            self.target.check_precision(y.numpy(), self.target.inverse(y).numpy(), name, dtype, numbers)
            if rows.weight is not None:
                check_precision(rows.weight.numpy(), rows.weight.numpy(), "sample_weight", dtype, numbers)

    def _inside(self, fold: int) -> Rows:
        return self._where(~self.held_out[fold]) if self.held_out else self.encoded

    def _where(self, mask: Mask) -> Rows:
        """All rows if nothing could be held out: they are fitted and validate."""
        return self.encoded if mask.all() or not mask.any() else self.encoded.where(torch.from_numpy(mask))


def _part(masks: Sequence[Mask]) -> NDArray[np.int64]:
    """[n]: which of the masks each row is in; rows of no mask are a part, too."""
    part = np.full(len(masks[0]), len(masks))
    for k, mask in enumerate(masks):
        part[mask] = k
    return part


def _dense(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(labels, return_inverse=True)[1]


def _observed(target: TargetScaler, table: Table, censored: bool) -> Floats:
    """What is trained on: a number, or a number and its bounds, or a count and its exposure."""
    if target.name == RATE:
        return target.counted(table.y, table.exposure)
    if not censored:
        return target.transform(table.y)
    bounds = np.stack([table.y, table.y], 1) if table.bounds is None else table.bounds
    return target.bounded(table.y, bounds)


def _check_read_alike(some: Preprocessor, whole: Preprocessor) -> None:
    """New rows come as one table: what a cell of it means must not depend on which rows were left out."""
    if some.reads_as(whole):
        return
    pairs = zip(whole.names, some.encodings, whole.encodings, strict=True)
    name = next(name for name, one, other in pairs if (one.kind, one.rule) != (other.kind, other.rule))
    raise InputError(
        f"calibrate='cross-conformal': column '{name}' would be read in another way without some of the rows; say what "
        f"it is with columns={{'{name}': ...}}"
    )


def _apart(table: Table, preprocessor: Preprocessor) -> Apart:
    names = None if table.groups is None else tuple(group_names(table.groups, len(table)))
    return Apart(torch.from_numpy(preprocessor.encoded(table.columns)), table.y, names)


def _rows(x: Floats, y: Floats, weight: Floats | None = None) -> Rows:
    return Rows(torch.from_numpy(x), torch.from_numpy(y), None if weight is None else torch.from_numpy(weight))


def _masks(spec: Spec, labels: NDArray[np.int64], table: Table) -> tuple[Mask, ...]:
    asked = hold_out(spec, len(table))
    if asked.parts > 1:
        return tuple(fold_masks(labels, table.weight, asked.parts))
    return (held_out_mask(labels, table.weight, asked.fraction),)
