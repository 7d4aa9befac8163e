"""`deepbasis predict`: from a model and a table to a table of predictions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from deepbasis.cli.common import load_model, quantile_levels, table_at, workers
from deepbasis.cli.failures import notices
from deepbasis.cli.options import (
    OUTPUT,
    ROLES,
    SCALE,
    TABLE,
    Debug,
    Decimal,
    Encoding,
    Model,
    Quiet,
    SafeCsv,
    Separator,
    option,
    options_named,
)
from deepbasis.errors import InputError, check_share
from deepbasis.registry import FORMATS
from deepbasis.tables.output import check_out_folder, check_output
from deepbasis.tables.places import STANDARD, is_many


def predict(
    model: Model,
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            help=f"The rows to predict: {TABLE} Or a folder of such files, or a pattern.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        option(
            "FILE",
            "Where to write: .csv, .tsv, .csv.gz or .parquet, or a folder if NEW is one; '-' is CSV on stdout.",
            OUTPUT,
        ),
    ] = STANDARD,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="A column of NEW to copy unchanged to the front; may be given several times.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        option("NUMBER", "Share of targets that the interval should contain.", OUTPUT, show_default="0.95"),
    ] = None,
    quantiles: Annotated[
        str | None, option("Q,Q,...", "Quantiles instead of the interval, such as 0.1,0.5,0.9.", OUTPUT)
    ] = None,
    guarantee: Annotated[
        bool,
        typer.Option(
            "--guarantee",
            help="Intervals with a guaranteed coverage; needs fit --calibrate conformal or cross-conformal.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    novelty: Annotated[
        bool,
        typer.Option(
            "--novelty",
            help="Add a column novelty, of p-values: low ones mark rows unlike those of the fit.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    groups: Annotated[
        str | None,
        option("COLUMN", "Group of each row, with --guarantee: the coverage is then that of each group.", ROLES),
    ] = None,
    exposure: Annotated[
        str | None,
        option(
            "COLUMN", "How long, or over how much, to predict each count, for a model of rates; by default 1.", ROLES
        ),
    ] = None,
    safe_csv: SafeCsv = False,
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    memory: Annotated[str | None, option("SIZE", "Memory limit of the whole command, such as 2GiB.", SCALE)] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table: the columns mean, std, lower_95 and upper_95, after those named by --id.

    A model of classes gives the probability of each class instead, in a column p_CLASS. A model of several targets
    gives mean_NAME, std_NAME, ... for each.

    Columns are found by name; those that the model does not know, such as the target, are ignored. A folder is
    read and written piece by piece, a Parquet file for each of its files; a run that was stopped continues where it
    left off.

    [bold]deepbasis predict[/bold] model.safetensors new.csv --id order --out predictions.csv

    [bold]deepbasis predict[/bold] model.safetensors - --quantiles 0.1,0.5,0.9 < new.csv | head

    [bold]deepbasis predict[/bold] model.safetensors years/ --out predictions/ --memory 2GiB
    """
    from deepbasis.fitting.budget import parse_memory
    from deepbasis.tables.predictions import ClassColumns, PredictionColumns

    levels = () if quantiles is None else quantile_levels(quantiles)
    interval = check_share("--coverage", coverage) if coverage is not None else None if levels else 0.95
    if guarantee and interval is None:
        raise InputError("--guarantee is for the interval, and --quantiles takes its place: give --coverage too")
    if groups is not None and not guarantee:
        raise InputError("--groups is for guaranteed intervals: give --guarantee with it, or leave it out")
    columns: PredictionColumns | ClassColumns = PredictionColumns(interval, levels, novelty, guarantee)
    copied = ids or []
    _check_ids(copied, columns.names)
    with options_named():
        parse_memory(memory)
    many = is_many(new)
    if safe_csv and (many or out.lower().endswith(".parquet")):
        raise InputError("--safe-csv is for predictions that are written as CSV: leave it out")
    if many and out == STANDARD:
        raise InputError(
            f"--out must be a folder if NEW is one ('{new}'): each of its files gives a file of predictions"
        )
    if many:
        check_out_folder(out)
    elif out != STANDARD:
        check_output(out, endings=tuple(FORMATS), inputs=[model, new])
    with workers() as team, notices(quiet=quiet or not team.first), options_named():
        fitted = load_model(model)
        from deepbasis.fitting.files import class_columns, predict_file, predict_files

        if fitted.target.classes:
            if coverage is not None or levels or guarantee:
                raise InputError("--coverage, --quantiles and --guarantee are for numbers: this model predicts classes")
            columns = class_columns(fitted, novelty)
        read = partial(table_at, new, separator, decimal, encoding)
        if many:
            how: Any = {"memory": memory, "team": team, "visible": not quiet}
            predict_files(fitted, read(), out, columns, ids=copied, exposure=exposure, groups=groups, **how)
        elif team.first:
            how = {"memory": memory, "safe_csv": safe_csv}
            predict_file(fitted, read(), out, columns, ids=copied, exposure=exposure, groups=groups, **how)


def _check_ids(ids: list[str], predicted: list[str]) -> None:
    for k, column in enumerate(ids):
        if column in ids[:k]:
            raise InputError(f"--id names the column '{column}' twice: name it once")
        if column in predicted:
            raise InputError(f"--id '{column}' is also the name of a predicted column: rename it in the table")
