"""`deepbasis fit`: from a table to a model."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepbasis.cli.common import print_json, table_at, workers
from deepbasis.cli.failures import notices
from deepbasis.cli.options import (
    OUTPUT,
    ROLES,
    TABLE,
    Debug,
    Json,
    Quiet,
    Target,
    option,
    options_named,
    read_fit_options,
    with_fit_options,
)
from deepbasis.errors import InputError
from deepbasis.fitting.spec import TRAINING
from deepbasis.registry import FORMATS
from deepbasis.tables.output import cannot_write, check_output
from deepbasis.tables.places import STANDARD

if TYPE_CHECKING:
    from deepbasis.fitting.fitted import Fitted
    from deepbasis.fitting.spec import RunOptions


@with_fit_options
def fit(
    train: Annotated[
        str,
        typer.Argument(
            metavar="TRAIN",
            help=f"The training table: {TABLE} Or a folder of such files, or a pattern ('sales/*.parquet').",
            show_default=False,
        ),
    ],
    target: Target,
    out: Annotated[
        str | None, option("MODEL", "Where to write the model, usually a .safetensors file.", OUTPUT)
    ] = None,
    weight: Annotated[str | None, option("COLUMN", "Weights of the rows, 0 or more.", ROLES)] = None,
    groups: Annotated[
        str | None, option("COLUMN", "Rows of one group are never both trained on and held out.", ROLES)
    ] = None,
    drop: Annotated[
        list[str] | None, option("COLUMN", "A column to leave out; may be given several times.", ROLES)
    ] = None,
    validation: Annotated[
        str | None, option("FILE", "Table to validate on; by default part of TRAIN is held out.", TRAINING)
    ] = None,
    explain_plan: Annotated[
        bool,
        typer.Option("--explain-plan", help="Print what would be fitted, and fit nothing.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **given: Any,
) -> None:
    """Fit a model to a table and save it.

    Columns may hold numbers, true and false, dates or text, and may have gaps; the target may not.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors --seed 0

    [bold]deepbasis fit[/bold] sales.parquet -t units --groups shop --drop row_id --members 8 --out sales.safetensors

    [bold]deepbasis fit[/bold] years/ -t units --memory 2GiB --checkpoint years.ckpt --out years.safetensors
    """
    from deepbasis.tables.roles import check_distinct

    if train == validation == STANDARD:
        raise InputError("TRAIN and --validation cannot both be standard input: give one of them as a file")
    check_distinct(target, weight, groups, drop or [], named=lambda role: f"--{role}")
    if not explain_plan:
        _check_model_path(out, [train, validation])
    start = time.perf_counter()
    arguments, options = read_fit_options(given)
    with options_named():
        _check_options(options, train, out)
    with workers(arguments["device"]) as team:
        if team.size > 1 and STANDARD in (train, validation):
            raise InputError("standard input cannot be read by several workers: give it as a file")
        with notices(quiet or not team.first) as warned, options_named():
            from deepbasis.fitting.files import prepare_files
            from deepbasis.fitting.spec import Spec

            spec = Spec(**arguments, verbose=not quiet)  # before the table is read
            plan, run = prepare_files(
                spec,
                table_at(train),
                target,
                weight=weight,
                groups=groups,
                drop=drop or [],
                validation=None if validation is None else table_at(validation),
                options=options,
                team=team,
            )
            if explain_plan:
                if team.first:
                    print_json(plan.to_json()) if as_json else typer.echo(str(plan))
                return
            fitted = run()
            if fitted.interrupted:
                raise KeyboardInterrupt  # a command that was told to stop does not save its partial result
            warned += fitted.warnings
        # The progress bar was for this terminal and is not part of the model.
        team.from_first(lambda: _save(replace(fitted, spec=replace(spec, verbose=False)), str(out)))
    if not quiet and team.first:
        _print_fit(fitted, str(out), time.perf_counter() - start, list(warned), as_json)


def _check_model_path(out: str | None, inputs: list[str | None]) -> None:
    if out is None:
        raise InputError("Missing option '--out': say where to write the model, such as --out model.safetensors")
    if out == STANDARD:
        raise InputError("--out cannot be standard output: a model is a file; give a name such as model.safetensors")
    if out.lower().endswith(tuple(FORMATS)):
        raise InputError(f"--out '{out}' has the name of a table, not of a model: use one that ends in .safetensors")
    check_output(out, inputs=inputs)


def _check_options(options: RunOptions, train: str, out: str | None) -> None:
    """Before anything heavy is imported."""
    from deepbasis.fitting.budget import parse_memory

    parse_memory(options.memory)
    if train == STANDARD and (options.stream or options.checkpoint is not None):
        raise InputError("standard input is read at once: --stream and --checkpoint are for files")
    if options.checkpoint is not None:
        if out is not None and re.fullmatch(re.escape(options.checkpoint) + r"(\.\d+)?", out):
            raise InputError("--checkpoint and --out are the same file: give the checkpoint a name of its own")
        check_output(options.checkpoint, inputs=[train])


def _save(fitted: Fitted, out: str) -> None:
    try:
        fitted.save(out)
    except OSError as error:
        raise cannot_write(out, error) from None


def _print_fit(fitted: Fitted, out: str, seconds: float, warned: list[str], as_json: bool) -> None:
    architecture, scores = fitted.architecture, fitted.validation
    members, columns = len(fitted.models), len(fitted.preprocessor.encodings)
    if as_json:
        print_json(
            {
                "model": out,
                "method": architecture.method,
                "embedding": architecture.embedding,
                "trend": architecture.trend,
                "members": members,
                "rows": fitted.rows,
                "columns": columns,
                "seconds": seconds,
                "alpha": fitted.alpha,
                "beta": fitted.beta,
                "validation": scores,
                "warnings": warned,
            }
        )
        return
    wide = "1 column" if columns == 1 else f"{columns:,} columns"
    models = "1 model" if members == 1 else f"{members} models"
    typer.echo(f"{out}: {models} ({architecture.method}) fitted to {fitted.rows:,} rows of {wide} in {seconds:.1f} s")
    typer.echo(
        f"validation: NLL {scores['nll']:.4g}, CRPS {scores['crps']:.4g}, MAE {scores['mae']:.4g}, "
        f"{100 * scores['coverage_95']:.1f} % of the targets in their 95 % intervals"
    )
