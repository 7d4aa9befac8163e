"""`deepbasis evaluate`: predictions against the targets of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepbasis.commands.failures import notices
from deepbasis.commands.options import TABLE, Debug, Json, Model, Target
from deepbasis.commands.printing import console, print_json, text_table
from deepbasis.commands.tables import load_model, new_table
from deepbasis.commands.wording import table_named
from deepbasis.errors import InputError
from deepbasis.tables.places import is_many, load


def evaluate(
    model: Model,
    test: Annotated[str, typer.Argument(metavar="TEST", help=f"Rows with their targets: {TABLE}", show_default=False)],
    target: Target,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predictions with the targets of a table: accuracy, likelihood, calibration.

    [bold]deepbasis evaluate[/bold] model.safetensors test.csv --target price

    [bold]deepbasis evaluate[/bold] model.safetensors test.parquet -t price --json | jq .nll
    """
    if is_many(test):
        raise InputError(f"TEST '{test}' is a folder or a pattern, and evaluate takes one file: give the name of one")
    with notices(quiet=False):
        regressor = load_model(model)
        from deepbasis.tables.roles import read_target

        table = load(test)
        _, X = new_table(regressor, table, [target])
        y = read_target(table, target)
        with table_named(test):
            scores = regressor.evaluate(X, y)
    if as_json:
        print_json({"rows": len(X), **scores})
    else:
        print_scores(scores, f"{Path(model).name} on {len(X):,} rows of {Path(test).name}")


_WORDS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "nll": "NLL, nats a row",
    "crps": "CRPS",
    "coverage_95": "targets in their 95 % intervals",
    "width_95": "width of the 95 % intervals",
    "calibration_error": "calibration error",
}


def print_scores(scores: dict[str, float], title: str) -> None:
    table = text_table(title, ["", "value"])
    for name, value in scores.items():
        table.add_row(_WORDS.get(name, name), f"{100 * value:.1f} %" if name == "coverage_95" else f"{value:.5g}")
    console().print(table)
