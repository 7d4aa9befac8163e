"""`deepbasis report`: how well a model predicts a table, as a page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepbasis.cli.common import load_model, one_table, table_at
from deepbasis.cli.failures import notices
from deepbasis.cli.options import (
    OUTPUT,
    TABLE,
    Debug,
    Decimal,
    DropMissingTarget,
    Encoding,
    KnownExposure,
    KnownTarget,
    Model,
    Separator,
    option,
    options_named,
)
from deepbasis.tables.output import check_output, writing


def report(
    model: Model,
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"Rows with targets: {TABLE}", show_default=False)],
    out: Annotated[str, option("FILE", "Where to write the page: .html.", OUTPUT)],
    target: KnownTarget = None,
    exposure: KnownExposure = None,
    drop_missing_target: DropMissingTarget = False,
    rows: Annotated[int, option("INTEGER", "Rows of TABLE to use at most, evenly spaced.", OUTPUT, min=2)] = 20_000,
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    debug: Debug = False,
) -> None:
    """Write one page of HTML about a model on a table: scores, calibration, errors, columns, unusual rows, the fit.

    The page needs no network and no other file, and can be sent to anyone.

    [bold]deepbasis report[/bold] model.safetensors test.csv --out report.html
    """
    one_table(table, "report", "TABLE")
    check_output(out, endings=(".html", ".htm"), inputs=[model, table])
    from deepbasis import plots

    plots.new_figure(1, 1)  # fail before the work, not after it, if matplotlib is missing
    with notices(quiet=False), options_named():
        fitted = load_model(model)
        from deepbasis.explain import Sample
        from deepbasis.report.page import report as page

        read = table_at(table, separator, decimal, encoding)
        sample = Sample.of_file(
            fitted, read, target, rows, needs_target=True, exposure=exposure, drop_missing_target=drop_missing_target
        )
        text = page(fitted, sample, model=Path(model).name, table=Path(table).name)
    with writing(out) as file:
        file.write(text.encode())
    typer.echo(f"The report is in {out}")
