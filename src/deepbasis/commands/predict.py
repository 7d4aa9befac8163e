"""`deepbasis predict`: from a model and a table to a table of predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from deepbasis.commands.failures import notices
from deepbasis.commands.options import OUTPUT, TABLE, Debug, Model, option
from deepbasis.commands.tables import load_model, new_table
from deepbasis.commands.wording import table_named
from deepbasis.errors import InputError
from deepbasis.tables import files


def predict(
    model: Model,
    new: Annotated[str, typer.Argument(metavar="NEW", help=f"The rows to predict: {TABLE}", show_default=False)],
    out: Annotated[
        str, option("FILE", "Where to write: .csv, .csv.gz or .parquet; '-' is CSV on standard output.", OUTPUT)
    ] = files.STANDARD,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="A column of NEW to copy to the front; may be given several times.",
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
    debug: Debug = False,
) -> None:
    """Predict the rows of a table: the columns mean, std, lower_95 and upper_95, after those named by --id.

    Columns are found by name; those that the model does not know, the target among them, are left alone.

    [bold]deepbasis predict[/bold] model.safetensors new.csv --id order --out predictions.csv

    [bold]deepbasis predict[/bold] model.safetensors - --quantiles 0.1,0.5,0.9 < new.csv | head
    """
    levels = None if quantiles is None else _levels(quantiles)
    interval = _coverage(coverage) if coverage is not None else None if levels else 0.95
    columns = _predicted_columns(interval, levels or [])
    _check_ids(ids or [], columns)
    if out != files.STANDARD:
        files.check_output(out, endings=files.ENDINGS, inputs=[model, new])
    with notices(quiet=False):
        import numpy as np
        import pandas as pd

        regressor = load_model(model)
        X, kept = new_table(regressor, new, ids or [])
        with table_named(new):
            predicted = regressor.predict_dist(X)
        numbers = [predicted.mean, predicted.std]
        numbers += [] if interval is None else predicted.interval(interval)
        numbers += [predicted.quantile(level) for level in levels or []]
        table = pd.DataFrame({name: np.asarray(values) for name, values in zip(columns, numbers, strict=True)})
        table = pd.concat([kept, table], axis=1)
    files.write_table(table, out)


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


def _predicted_columns(interval: float | None, levels: Sequence[float]) -> list[str]:
    """mean, std, lower_95, upper_95, q_0.1 ..."""
    percent = None if interval is None else f"{100.0 * interval:.12g}"
    ends = [] if percent is None else [f"lower_{percent}", f"upper_{percent}"]
    return ["mean", "std", *ends, *(f"q_{level:.12g}" for level in levels)]


def _check_ids(ids: Sequence[str], predicted: Sequence[str]) -> None:
    for k, column in enumerate(ids):
        if column in ids[:k]:
            raise InputError(f"--id names the column '{column}' twice: name it once")
        if column in predicted:
            raise InputError(f"--id '{column}' is also the name of a predicted column: rename it in the table")
