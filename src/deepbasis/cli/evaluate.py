"""`deepbasis evaluate`: predictions against the targets of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepbasis.cli.common import console, load_model, one_table, print_json, score_table, table_at
from deepbasis.cli.failures import notices
from deepbasis.cli.options import (
    ROLES,
    TABLE,
    Debug,
    Decimal,
    DropMissingTarget,
    Encoding,
    Json,
    KnownExposure,
    KnownTarget,
    Model,
    Separator,
    option,
    options_named,
)
from deepbasis.errors import counted


def evaluate(
    model: Model,
    test: Annotated[str, typer.Argument(metavar="TEST", help=f"Rows with their targets: {TABLE}", show_default=False)],
    target: KnownTarget = None,
    lower: Annotated[
        str | None, option("COLUMN", "Lower bounds of a censored target; by default those of the fit.", ROLES)
    ] = None,
    upper: Annotated[
        str | None, option("COLUMN", "Upper bounds of a censored target; by default those of the fit.", ROLES)
    ] = None,
    exposure: KnownExposure = None,
    drop_missing_target: DropMissingTarget = False,
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predictions with the targets of a table: accuracy, likelihood, calibration.

    [bold]deepbasis evaluate[/bold] model.safetensors test.csv

    [bold]deepbasis evaluate[/bold] model.safetensors test.parquet --json | jq .nll
    """
    one_table(test, "evaluate", "TEST")
    with notices(quiet=False), options_named():
        fitted = load_model(model)
        from deepbasis.fitting.known import evaluate_file

        table = table_at(test, separator, decimal, encoding)
        rows, scores = evaluate_file(
            fitted, table, target, lower, upper, exposure, drop_missing_target=drop_missing_target
        )
    if as_json:
        print_json({"rows": rows, **scores})
    else:
        console().print(score_table(f"{Path(model).name} on {counted(rows, 'row')} of {Path(test).name}", scores))
