"""Tables in files: a fit in memory or by a stream, whichever their size asks for; and predictions into files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbasis.engine import device as devices
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.errors import InputError, warn_of_table
from deepbasis.fitting.blocks import Encode, components
from deepbasis.fitting.budget import (
    Budget,
    allowed_memory,
    column_kinds,
    fits_in_memory,
    parse_memory,
    resident_bytes,
    room_for_members,
    words,
)
from deepbasis.fitting.data import CROSS_PARTS, TableData
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.kinds import CROSS, SHARE
from deepbasis.fitting.novelty import Watch
from deepbasis.fitting.outputs import distribution_of
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.promise import check_promised, guaranteed
from deepbasis.fitting.run import fit_stream, fit_table
from deepbasis.fitting.spec import RunOptions, Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.fitting.targets import check_counted
from deepbasis.fitting.train import Execution, deadline
from deepbasis.progress import RowCounter
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.cells import OddCells
from deepbasis.tables.folders import check_not_read_again, part_paths, remove_stale_parts
from deepbasis.tables.output import write_tables
from deepbasis.tables.predictions import (
    ClassColumns,
    Columns,
    OutputColumns,
    PartFiles,
    PredictionColumns,
    input_names,
    open_inputs,
    without_formulas,
)
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles, check_holds_numbers, read_exposure
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table
from deepbasis.tables.targets import group_names


def prepare_files(
    spec: Spec,
    data: Any,
    target: str | Sequence[str],
    *,
    weight: str | None = None,
    groups: str | None = None,
    lower: str | None = None,
    upper: str | None = None,
    exposure: str | None = None,
    drop: Collection[str] = (),
    drop_missing_target: bool = False,
    validation: Any = None,
    options: RunOptions,
    team: Team = ALONE,
    classes: bool | None = False,
    say: Callable[[str], None] = warn_of_table,
    since: float | None = None,
) -> tuple[Plan, Callable[[], Fitted]]:
    """The plan for a table in files, and a function that carries it out.

    `classes` says whether the target is one; None: if it holds no numbers. `say` is told what columns were taken for.
    A time limit counts from now, or `since` a moment of `time.monotonic`.
    """
    limit = allowed_memory(options.memory)
    if options.checkpoint is not None and spec.random_state is None:
        raise InputError("checkpoint needs a random_state (--seed): only a run with the same seed can be resumed")
    if options.checkpoint is not None and spec.time_limit is not None:
        raise InputError("checkpoint and time_limit do not go together: a run that is resumed would have other steps")
    check_counted(spec, exposure is not None)
    until = deadline(spec.time_limit, since)
    devices.present(spec.device)
    meanings = spec.columns or {}
    text = [name for name, meaning in meanings.items() if meaning in ("category", "date", "text")]
    dropped = [name for name, meaning in meanings.items() if meaning == "drop"]
    targets = [target] if isinstance(target, str) else target
    numbers = [name for name in (*targets, weight, groups, lower, upper, exposure) if name is not None]
    source = Source.open(data, drop=[*drop, *dropped], text=text, numbers=numbers)
    for note in source.notes:
        say(note)
    roles = Roles.of(source, target, weight, groups, classes, lower, upper, drop_missing_target, exposure)
    if roles.target_rule is not None:
        say(f"target column '{roles.target}' holds numbers that are written as text, and is read as such")
    aside, name = None, None if roles.outputs else roles.target
    if validation is not None:
        as_text = [*roles.features, *([roles.target] if roles.labels is not None and roles.labels.are_text else [])]
        text = [name for name in source.text_columns() if name in as_text]
        aside = Source.open(validation, roles.for_validation().columns, text=text)
    kinds = column_kinds(source, roles.features, classes=roles.labels is not None)
    more_fits = CROSS_PARTS if spec.calibrate == CROSS else 0
    need = resident_bytes(source.rows, source.row_bytes, kinds, more_fits) + source.open_bytes
    streamed = options.stream
    if streamed is None:  # workers may have different amounts of memory, and must do the same
        streamed = team.agree(not fits_in_memory(need, limit))
    elif not streamed and limit is not None and not fits_in_memory(need, limit):
        raise InputError(
            f"{source.name} takes about {words(need)} in memory, more than the limit of {words(limit)} leaves; allow "
            "it to be streamed, or give more memory"
        )
    if streamed and drop_missing_target:
        raise InputError(
            f"drop_missing_target is for tables in memory, and {source.name} is streamed: remove the rows without a "
            "target from the files"
        )
    if streamed:
        if spec.time_limit is not None:
            raise InputError("time_limit is for tables in memory: of a stream max_steps limits the work")
        if spec.calibrate == CROSS:
            raise InputError(
                f"calibrate='cross-conformal' is for tables in memory, and {source.name} is streamed: use 'conformal'"
            )
        stream = StreamData.of(spec, source, roles, aside, limit, team)
        for note in stream.preprocessor.notes:
            say(note)
        plan = make_plan(spec, stream.facts(spec), options.max_steps)
        execution = Execution(options.checkpoint, team=team)
        return plan, lambda: replace(fit_stream(spec, plan, stream, execution), target_name=name)
    read_aside = None if aside is None else partial(_read_validation, aside, roles.for_validation())
    with source.located():
        resident = TableData.of(spec, roles.table(source), read_aside)
    for note in resident.preprocessor.notes:
        say(note)
    plan = make_plan(spec, resident.facts(spec), options.max_steps)
    room = None if limit is None else room_for_members(limit, need)
    execution = Execution(options.checkpoint, team=team, member_room=room, deadline=until)

    def fit() -> Fitted:
        with source.located():
            return replace(fit_table(spec, plan, resident, execution, options.max_steps), target_name=name)

    return plan, fit


def _read_validation(source: Source, roles: Roles, like: Preprocessor) -> Table:
    table = roles.table(source)
    with source.located():
        return replace(table, columns=like.checked(table.columns))


def predict_files(
    fitted: Fitted,
    data: Any,
    out: str | PathLike[str],
    columns: Columns,
    *,
    ids: Sequence[str] = (),
    exposure: str | None = None,
    groups: str | None = None,
    memory: int | str | None = None,
    team: Team = ALONE,
    visible: bool = False,
) -> list[Path]:
    """Every file of a table into one of the same name in the folder `out`; workers of a team share them.

    Parts of files that are no longer there are removed. `exposure` is the column of what is counted over, `groups` that
    of the groups that each have a promise.
    """
    memory = allowed_memory(memory)
    source = open_inputs(data, fitted.preprocessor, ids, _beside(fitted, exposure, groups))
    paths = part_paths([file.place for file in source.files], out)
    check_not_read_again(data, out, paths)
    mine = range(team.rank, len(paths), team.size)
    with RowCounter(sum(source.file_rows[file] for file in mine), visible and team.first, "predicting") as progress:
        watch, odd = Watch(fitted.novelty, fitted.preprocessor), OddCells()
        parts = part_files(fitted, source, columns, ids, memory, progress, watch, odd, exposure, groups)
        if team.first:
            remove_stale_parts(data, out, paths)
        for file in mine:
            parts.write(file, paths[file])
    watch.warn()
    odd.warn(source.name)
    return [paths[file] for file in mine]


def predict_file(
    fitted: Fitted,
    data: Any,
    out: str,
    columns: Columns,
    *,
    ids: Sequence[str] = (),
    exposure: str | None = None,
    groups: str | None = None,
    memory: int | str | None = None,
    safe_csv: bool = False,
) -> None:
    """One file into one file; "-" is standard output. With `safe_csv` no copied text looks like a formula."""
    memory = allowed_memory(memory)
    source = open_inputs(data, fitted.preprocessor, ids, _beside(fitted, exposure, groups))
    source.check_rows()
    watch, odd = Watch(fitted.novelty, fitted.preprocessor), OddCells()
    parts = part_files(fitted, source, columns, ids, memory, watch=watch, odd=odd, exposure=exposure, groups=groups)
    if out.lower().endswith(".parquet"):
        parts.write(0, Path(out))
    else:
        write_tables((without_formulas(one, ids) if safe_csv else one for one in parts.frames(0)), out)
    watch.warn()
    odd.warn(source.name)


def part_files(
    fitted: Fitted,
    source: Source,
    columns: Columns,
    ids: Sequence[str] = (),
    memory: int | str | None = None,
    progress: Callable[[int], None] = lambda rows: None,
    watch: Watch | None = None,
    odd: OddCells | None = None,
    exposure: str | None = None,
    groups: str | None = None,
) -> PartFiles:
    """The predictions of this model for a source, read and written in blocks that fit into memory."""
    if fitted.target.outputs and isinstance(columns, PredictionColumns):
        columns = OutputColumns(fitted.target.outputs, columns)
    beside = _beside(fitted, exposure, groups)
    names = input_names(source, fitted.preprocessor, [*ids, *beside])
    encode = Encode(fitted, names, odd or OddCells())
    if exposure is not None:
        check_holds_numbers(source, "exposure", exposure)
    of_one = columns.of_each if isinstance(columns, OutputColumns) else columns
    asked = of_one if isinstance(of_one, PredictionColumns) else PredictionColumns(None)
    check_promised(fitted, asked.coverage, asked.guarantee, groups is not None)
    numbers = fitted.preprocessor.width + 4 * components(fitted) * (1 + len(fitted.folds)) + len(columns.names)
    budget = Budget.of(parse_memory(memory), source.open_bytes)
    budget = replace(budget, room=min(budget.room, budget.left))  # blocks of any size give the same predictions
    sizes = budget.sizes(source.row_bytes, len(source.names), numbers, 8)

    def promised(block: FileBlock, found: PredictiveDistribution, coverage: float) -> list[NDArray[np.float64]]:
        of_row = None
        if groups is not None:
            of_row = group_names(Roles([], "", groups=groups).groups_of(block).cells(), len(block))
        ends = guaranteed(fitted, found.tensors, lambda one: [Encode(one, encode.names)(block)], coverage, of_row)
        return [end.numpy() for end in ends]

    def predict(block: FileBlock) -> list[NDArray[np.float64]]:
        x = encode(block)
        if watch is not None:
            watch.look(x)
        found = distribution_of(fitted.target, fitted.predict_encoded([x]), fitted.device)
        found = found if exposure is None else found.exposed(read_exposure(block, exposure))
        return columns.numbers(found, lambda: fitted.novelty.p_values(x).numpy(), partial(promised, block, found))

    inputs = list(dict.fromkeys([*names, *beside]))
    model = fitted.fingerprint if exposure is None else f"{fitted.fingerprint}, exposure {exposure}"
    model = model if groups is None else f"{model}, groups {groups}"
    return PartFiles(source, inputs, predict, columns, ids, model, sizes.block_rows, progress)


def _beside(fitted: Fitted, exposure: str | None, groups: str | None) -> list[str]:
    """The columns that are read beside the inputs."""
    return [*fitted.exposure_columns(exposure), *([] if groups is None else [groups])]


def class_columns(fitted: Fitted, novelty: bool = False) -> ClassColumns:
    return ClassColumns(tuple(fitted.target.labels.names), novelty)


def prediction_columns(
    coverage: float | None, quantiles: Sequence[float], novelty: bool = False, guarantee: bool = False
) -> PredictionColumns:
    """The columns of a prediction, once their levels are checked."""
    levels = tuple(SHARE.check("a quantile's level q", level) for level in quantiles)
    interval = None if coverage is None else SHARE.check("coverage", coverage)
    return PredictionColumns(interval, levels, novelty, guarantee)
