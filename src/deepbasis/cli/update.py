"""`deepbasis update`: a model and more rows to a model that knows them too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepbasis.cli.common import (
    check_model_path,
    console,
    load_model,
    print_json,
    save_model,
    score_table,
    table_at,
)
from deepbasis.cli.failures import notices
from deepbasis.cli.options import (
    OUTPUT,
    ROLES,
    TABLE,
    Debug,
    Decimal,
    Encoding,
    Json,
    Model,
    Quiet,
    Separator,
    option,
    options_named,
)
from deepbasis.errors import counted


def update(
    model: Model,
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            help=f"More rows with their targets: {TABLE} Or a folder of such files, or a pattern.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str | None, option("FILE", "Where to write the model; by default over MODEL.", OUTPUT, show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="COLUMN",
            help="The column of the targets, for a model that was fitted to an array; others know its name.",
            rich_help_panel=ROLES,
        ),
    ] = None,
    weight: Annotated[str | None, option("COLUMN", "Weight of each row.", ROLES)] = None,
    groups: Annotated[
        str | None, option("COLUMN", "Group of each row, if the model's guarantee is for each group.", ROLES)
    ] = None,
    lower: Annotated[str | None, option("COLUMN", "Lower bounds of a censored target.", ROLES)] = None,
    upper: Annotated[str | None, option("COLUMN", "Upper bounds of a censored target.", ROLES)] = None,
    forget: Annotated[
        float,
        option(
            "NUMBER", "Weight of everything learned before, above 0 and at most 1: below 1 for rows that drift.", OUTPUT
        ),
    ] = 1.0,
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Add rows to what a model has learned, without training it again, and say how well it predicted them before.

    The file is replaced in one step: if the command fails or is stopped, it holds the model as it was.

    [bold]deepbasis update[/bold] model.safetensors july.csv

    [bold]deepbasis update[/bold] model.safetensors july.csv --forget 0.9 --out newer.safetensors
    """
    from deepbasis.tables.roles import check_distinct

    check_distinct(target or "", weight, groups, (), lambda role: f"--{role}", lower, upper)
    place = model if out is None else out
    check_model_path(place, [new])
    from deepbasis.storage import reserved  # brings torch

    with notices(quiet=quiet), options_named(), reserved(place):  # two updates at once would lose one
        fitted = load_model(model)
        from deepbasis.fitting.known import update_file

        found, scores = update_file(
            fitted,
            table_at(new, separator, decimal, encoding),
            target,
            weight=weight,
            groups=groups,
            lower=lower,
            upper=upper,
            forget=forget,
        )
        save_model(found, place)
    rows = found.rows - fitted.rows
    if as_json:
        print_json({"rows": rows, "rows_in_all": found.rows, "before": scores()})
    elif not quiet:
        console().print(score_table(f"{Path(model).name} on {counted(rows, 'row')} of {Path(new).name}", scores()))
        typer.echo(f"These are scores of the model as it was. {place} knows {counted(found.rows, 'row')} now.")
