"""`deepbasis explain`: which columns the predictions and their uncertainty depend on, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepbasis.cli.common import console, load_model, one_table, print_json, table_at, text_table
from deepbasis.cli.failures import notices, one_line
from deepbasis.cli.options import (
    OUTPUT,
    TABLE,
    Debug,
    Decimal,
    Encoding,
    Json,
    KnownExposure,
    KnownTarget,
    Model,
    SafeCsv,
    Separator,
    option,
    options_named,
)
from deepbasis.errors import InputError, counted
from deepbasis.registry import FORMATS
from deepbasis.tables.output import check_output, write_tables, writing

if TYPE_CHECKING:
    from deepbasis.explain import Importance

_EXPLAINING = "Explaining"


def explain(
    model: Model,
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"Rows to explain: {TABLE}", show_default=False)],
    target: KnownTarget = None,
    exposure: KnownExposure = None,
    out: Annotated[str | None, option("FILE", "Where to write the importances: .csv or .parquet.", OUTPUT)] = None,
    plot: Annotated[str | None, option("FILE", "Where to draw importances and effects: .png.", OUTPUT)] = None,
    top: Annotated[
        int, option("INTEGER", "Columns whose effects are drawn and printed as JSON.", OUTPUT, min=1, max=24)
    ] = 6,
    rows: Annotated[int, option("INTEGER", "Rows of TABLE to use at most, evenly spaced.", _EXPLAINING, min=2)] = 1_000,
    repeats: Annotated[int, option("INTEGER", "Shuffles of each column.", _EXPLAINING, min=1)] = 5,
    seed: Annotated[int, option("INTEGER", "Seed of the shuffles.", _EXPLAINING, min=0)] = 0,
    safe_csv: SafeCsv = False,
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say how far predictions and their uncertainty move when a column's values are shuffled between the rows.

    All numbers are in the target's units. If TABLE has the target, a third number says how much worse the
    predictions become (CRPS). The figure also shows effects: the mean prediction if all rows had the same value. Of
    classes, probabilities and their entropy move, the third number is the log loss, and effects are probabilities.

    [bold]deepbasis explain[/bold] model.safetensors test.csv --plot effects.png

    [bold]deepbasis explain[/bold] model.safetensors test.csv --json | jq '.importance[0].column'
    """
    one_table(table, "explain", "TABLE")
    if safe_csv and (out is None or out.lower().endswith(".parquet")):
        raise InputError("--safe-csv is for importances that are written as CSV: leave it out, or give --out FILE.csv")
    for path, endings in ((out, tuple(FORMATS)), (plot, (".png",))):
        if path is not None:
            check_output(path, endings=endings, inputs=[model, table])
    if plot is not None:
        from deepbasis import plots

        plots.new_figure(1, 1)  # fail before the work, not after it, if matplotlib is missing
    with notices(quiet=False), options_named():
        fitted = load_model(model)
        from deepbasis import explain as explaining

        read = table_at(table, separator, decimal, encoding)
        sample = explaining.Sample.of_file(fitted, read, target, rows, exposure=exposure)
        found = explaining.importance(fitted, sample, repeats=repeats, random_state=seed)
        words = explaining.OF_CLASSES if fitted.target.classes else explaining.OF_NUMBERS
        shown = [one.column for one in found if one.mean > 0][:top] if as_json or plot else []
        draw = None
        if fitted.target.classes:
            from deepbasis import class_effects

            each, draw = (
                [class_effects.effects(fitted, sample, name, random_state=seed) for name in shown],
                class_effects.draw,
            )
            effects = [one for some in each for one in some]
        else:
            effects = [explaining.effect(fitted, sample, name, random_state=seed) for name in shown]
        if plot is not None:
            picture = plots.png(explaining.figure(found, effects, words=words, draw=draw))
            with writing(plot) as file:
                file.write(picture)
    if out is not None:
        import pandas as pd

        from deepbasis.tables.predictions import without_formulas

        told = pd.DataFrame([asdict(one) for one in found]).dropna(axis=1)
        write_tables([without_formulas(told, ["column"]) if safe_csv else told], out)
    if as_json:
        print_json(
            {
                "rows": len(sample),
                "importance": [asdict(one) for one in found],
                "effects": [{k: getattr(v, "tolist", lambda v=v: v)() for k, v in asdict(e).items()} for e in effects],
            }
        )
    else:
        _print_importance(
            found, f"{Path(model).name} on {len(sample):,} of {counted(sample.rows_of_table, 'row')}", words
        )


def _print_importance(found: list[Importance], title: str, words: Sequence[str]) -> None:
    from rich.text import Text

    scored = found[0].score is not None
    table = text_table(
        title, ["", f"moves the {words[0]} by", f"moves the {words[1]} by", *[f"{words[2]} rises by"] * scored]
    )
    for one in found:
        pairs: list[tuple[Any, Any]] = [(one.mean, one.mean_spread), (one.std, one.std_spread)]
        pairs += [(one.score, one.score_spread)] * scored
        table.add_row(Text(one_line(one.column)), *(f"{value:.3g} ± {spread:.1g}" for value, spread in pairs))
    console().print(table)
