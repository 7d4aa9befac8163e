"""`deepbasis evaluate`: predictions against the targets of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepbasis.cli.common import console, load_model, print_json, text_table
from deepbasis.cli.failures import notices
from deepbasis.cli.options import TABLE, Debug, Json, Model, Target
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
        raise InputError(f"TEST '{test}' is a folder or a pattern, but evaluate takes one file: give its name")
    with notices(quiet=False):
        fitted = load_model(model)
        from deepbasis.fitting.files import evaluate_file

        rows, scores = evaluate_file(fitted, load(test), target)
    if as_json:
        print_json({"rows": rows, **scores})
        return
    table = text_table(f"{Path(model).name} on {rows:,} rows of {Path(test).name}", ["", "value"])
    for name, value in scores.items():
        table.add_row(_WORDS.get(name, name), f"{100 * value:.1f} %" if name == "coverage_95" else f"{value:.5g}")
    console().print(table)


_WORDS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "nll": "NLL, nats per row",
    "crps": "CRPS",
    "coverage_95": "targets in their 95 % intervals",
    "width_95": "width of the 95 % intervals",
    "calibration_error": "calibration error",
}
