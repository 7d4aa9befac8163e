"""`deepbasis predict`: from a model and a table to a table of predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from deepbasis.commands.failures import notices
from deepbasis.commands.fitting import check_memory, is_large
from deepbasis.commands.options import OUTPUT, SCALE, TABLE, Debug, Model, option
from deepbasis.commands.tables import load_model, new_table
from deepbasis.commands.together import working_together
from deepbasis.commands.wording import options_named, table_named
from deepbasis.errors import InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.output import check_out_folder, check_output, write_table
from deepbasis.tables.places import STANDARD, is_many, load

if TYPE_CHECKING:
    import pandas as pd

    from deepbasis.estimator import DeepBasisRegressor
    from deepbasis.tables.predictions import PredictionColumns


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
            "Where to write: .csv, .csv.gz or .parquet; '-' is CSV on standard output. For a folder, a folder.",
            OUTPUT,
        ),
    ] = STANDARD,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="A column of NEW to copy to the front, of a CSV as it stands; may be given several times.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        option("NUMBER", "Of the interval: how many of the targets it should hold.", OUTPUT, show_default="0.95"),
    ] = None,
    quantiles: Annotated[
        str | None, option("Q,Q,...", "Quantiles instead of the interval, such as 0.1,0.5,0.9.", OUTPUT)
    ] = None,
    memory: Annotated[
        str | None, option("SIZE", "What the whole command may use for a folder, such as 2GiB.", SCALE)
    ] = None,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table: the columns mean, std, lower_95 and upper_95, after those named by --id.

    Columns are found by name; those that the model does not know, the target among them, are left alone. A folder is
    read and written piece by piece, a Parquet file for each of its files; a run that was stopped goes on where it was.

    [bold]deepbasis predict[/bold] model.safetensors new.csv --id order --out predictions.csv

    [bold]deepbasis predict[/bold] model.safetensors - --quantiles 0.1,0.5,0.9 < new.csv | head

    [bold]deepbasis predict[/bold] model.safetensors years/ --out predictions/ --memory 2GiB
    """
    from deepbasis.tables.predictions import PredictionColumns

    levels = None if quantiles is None else _levels(quantiles)
    interval = _coverage(coverage) if coverage is not None else None if levels else 0.95
    wanted = PredictionColumns(interval, tuple(levels or ()))
    _check_ids(ids or [], wanted.names)
    check_memory(memory)
    if is_many(new):
        _predict_files(model, new, out, wanted, ids or [], memory)
        return
    if out != STANDARD:
        check_output(out, endings=tuple(FORMATS), inputs=[model, new])
    with notices(quiet=False):
        regressor = load_model(model)
        if is_large(new) and out.lower().endswith(".parquet"):
            regressor.predict_file(new, out, wanted, ids or [], memory)
            return
        table = _predicted_table(regressor, new, wanted, ids or [])
    write_table(table, out)


def _predicted_table(
    regressor: DeepBasisRegressor, new: str, wanted: PredictionColumns, ids: Sequence[str]
) -> pd.DataFrame:
    import pandas as pd

    source, X = new_table(regressor, load(new), ids)
    with table_named(new):
        numbers = wanted.numbers(regressor.predict_dist(X))
    return pd.concat([source.copied(ids), pd.DataFrame(dict(zip(wanted.names, numbers, strict=True)))], axis=1)


def _predict_files(
    model: str, new: str, out: str, wanted: PredictionColumns, ids: Sequence[str], memory: str | None
) -> None:
    """Many files to a folder of as many."""
    if out == STANDARD:
        raise InputError(
            f"--out must be a folder where NEW is one ('{new}'): predictions are a file for each of its own"
        )
    check_out_folder(out)
    with working_together() as team, notices(quiet=not team.first), options_named(), table_named(new):
        load_model(model).predict_dataset(
            new,
            out,
            ids=ids,
            coverage=wanted.coverage,
            quantiles=wanted.levels,
            memory=memory,
            team=team,
            visible=True,
        )


def _coverage(value: float) -> float:
    if not 0.0 < value < 1.0:
        hint = f"; for {value:g} % give {value / 100:g}" if 1.0 < value < 100.0 else ""
        raise InputError(f"--coverage must lie between 0 and 1, as 0.95 does, got {value:g}{hint}")
    return value


def _levels(text: str) -> list[float]:
    levels: list[float] = []
    for word in text.split(","):
        try:
            level = float(word)
        except ValueError:
            level = math.nan
        if not 0.0 < level < 1.0:
            got = f"'{word.strip()}'"
            raise InputError(f"--quantiles must be numbers between 0 and 1 with commas between, got {got} in '{text}'")
        if level in levels:
            raise InputError(f"--quantiles has {level:g} twice: name each quantile once")
        levels.append(level)
    return levels


def _check_ids(ids: Sequence[str], predicted: Sequence[str]) -> None:
    for k, column in enumerate(ids):
        if column in ids[:k]:
            raise InputError(f"--id names the column '{column}' twice: name it once")
        if column in predicted:
            raise InputError(f"--id '{column}' is also the name of a predicted column: rename it in the table")
