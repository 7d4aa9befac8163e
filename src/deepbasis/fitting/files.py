"""Tables in files: a fit in memory or by a stream, whichever their size asks for; and predictions into files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from deepbasis.engine import device as devices
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.errors import InputError
from deepbasis.fitting.budget import Budget, fits_in_memory, parse_memory
from deepbasis.fitting.data import TableData
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.fitting.fitted import ROWS_AT_A_TIME, Fitted
from deepbasis.fitting.kinds import SHARE
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.run import fit_stream, fit_table
from deepbasis.fitting.spec import RunOptions, Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.fitting.train import Execution
from deepbasis.gp import metrics
from deepbasis.progress import RowCounter
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.output import write_table
from deepbasis.tables.predictions import PartFiles, PredictionColumns, input_names, open_inputs, part_paths
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles, read_target
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table


def prepare_files(
    spec: Spec,
    data: Any,
    target: str,
    *,
    weight: str | None = None,
    groups: str | None = None,
    drop: Collection[str] = (),
    validation: Any = None,
    options: RunOptions,
    team: Team = ALONE,
) -> tuple[Plan, Callable[[], Fitted]]:
    """The plan for a table in files, and a function that carries it out."""
    limit = parse_memory(options.memory)
    if options.checkpoint is not None and spec.random_state is None:
        raise InputError("checkpoint needs a random_state (--seed): only a run with the same seed can be resumed")
    devices.present(spec.device)
    source = Source.open(data, drop=drop)
    roles = Roles.of(source, target, weight, groups)
    aside = None
    if validation is not None:
        text = [name for name in source.text_columns() if name in roles.features]
        aside = Source.open(validation, [*roles.features, roles.target], text=text)
    streamed = options.stream
    if streamed is None:  # workers may have different amounts of memory, and must do the same
        streamed = team.agree(not fits_in_memory(source.rows, source.row_bytes(), limit))
    if streamed:
        stream = StreamData.of(spec, source, roles, aside, limit, team)
        plan = make_plan(spec, stream.facts(spec), options.max_steps)
        return plan, partial(fit_stream, spec, plan, stream, Execution(options.checkpoint, team=team))
    read_aside = None if aside is None else partial(_read_validation, aside, roles.for_validation())
    with source.located():
        resident = TableData.of(spec, roles.table(source), read_aside)
    plan = make_plan(spec, resident.facts(spec), options.max_steps)
    return plan, partial(fit_table, spec, plan, resident, Execution(options.checkpoint, team=team))


def _read_validation(source: Source, roles: Roles, like: Preprocessor) -> Table:
    table = roles.table(source)
    with source.located():
        return replace(table, columns=like.checked(table.columns))


def predict_files(
    fitted: Fitted,
    data: Any,
    out: str | PathLike[str],
    columns: PredictionColumns,
    *,
    ids: Sequence[str] = (),
    memory: int | str | None = None,
    team: Team = ALONE,
    visible: bool = False,
) -> list[Path]:
    """Every file of a table into one of the same name in the folder `out`; workers of a team share them."""
    source = open_inputs(data, fitted.preprocessor, ids)
    paths = part_paths(source, out)
    mine = range(team.rank, len(paths), team.size)
    with RowCounter(sum(source.file_rows[file] for file in mine), visible and team.first, "predicting") as progress:
        parts = part_files(fitted, source, columns, ids, memory, progress)
        for file in mine:
            parts.write(file, paths[file])
    return [paths[file] for file in mine]


def predict_file(
    fitted: Fitted,
    data: Any,
    out: str,
    columns: PredictionColumns,
    *,
    ids: Sequence[str] = (),
    memory: int | str | None = None,
) -> None:
    """One file into one file; "-" is standard output."""
    source = open_inputs(data, fitted.preprocessor, ids)
    source.check_rows()
    parts = part_files(fitted, source, columns, ids, memory)
    if out.lower().endswith(".parquet"):
        parts.write(0, Path(out))
    else:
        write_table(parts.frame(0), out)


def evaluate_file(fitted: Fitted, data: Any, target: str) -> tuple[int, dict[str, float]]:
    """The number of rows of one file, and the scores of their predictions."""
    beside = [] if fitted.preprocessor.input_columns else [target]  # of an array: all columns but the target
    source = open_inputs(data, fitted.preprocessor, beside)
    y, encode = read_target(data, target), _Encode(fitted, input_names(source, fitted.preprocessor, beside))
    predicted = fitted.predict_encoded(encode(block) for block in source.all_blocks(encode.names, ROWS_AT_A_TIME))
    return len(y), metrics.evaluate(predicted, torch.from_numpy(y))


@dataclass(frozen=True)
class _Encode:
    """From a block of a file to what the model's members take."""

    fitted: Fitted
    names: Sequence[str]

    def __call__(self, block: FileBlock) -> torch.Tensor:
        with block.located():
            x = self.fitted.preprocessor.encoded([block.column(name) for name in self.names])
        return torch.from_numpy(x).to(self.fitted.ensemble.stack.dtype)


def part_files(
    fitted: Fitted,
    source: Source,
    columns: PredictionColumns,
    ids: Sequence[str] = (),
    memory: int | str | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> PartFiles:
    """The predictions of this model for a source, read and written in blocks that fit into memory."""
    encode = _Encode(fitted, input_names(source, fitted.preprocessor, ids))
    components = len(fitted.models) * (1 if fitted.calibration is None else len(fitted.calibration.scales))
    numbers = fitted.preprocessor.width + 4 * components + len(columns.names)
    sizes = Budget.of(parse_memory(memory)).sizes(source.row_bytes(), len(source.names), numbers, 8)

    def predict(block: FileBlock) -> PredictiveDistribution:
        return PredictiveDistribution(fitted.predict_encoded([encode(block)]))

    return PartFiles(source, encode.names, predict, columns, ids, fitted.fingerprint, sizes.block_rows, progress)


def prediction_columns(coverage: float | None, quantiles: Sequence[float]) -> PredictionColumns:
    """The columns of a prediction, once their levels are checked."""
    levels = tuple(SHARE.check("a quantile's level q", level) for level in quantiles)
    return PredictionColumns(None if coverage is None else SHARE.check("coverage", coverage), levels)
