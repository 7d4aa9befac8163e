"""`deepbasis fit`: from a table to a model."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepbasis.cli.common import check_model_path, print_json, save_model, table_at, workers
from deepbasis.cli.failures import complain, notices
from deepbasis.cli.options import (
    OUTPUT,
    ROLES,
    TABLE,
    Debug,
    Decimal,
    DropMissingTarget,
    Encoding,
    Json,
    Quiet,
    Separator,
    Target,
    as_options,
    option,
    options_named,
    read_fit_options,
    with_fit_options,
)
from deepbasis.errors import InputError, counted
from deepbasis.fitting.spec import TRAINING
from deepbasis.tables.output import check_output
from deepbasis.tables.places import MEANINGS, STANDARD, either

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
    weight: Annotated[str | None, option("COLUMN", "Weight of each row, 0 or more.", ROLES)] = None,
    groups: Annotated[
        str | None, option("COLUMN", "Group of each row; rows of one group are held out together.", ROLES)
    ] = None,
    lower: Annotated[
        str | None, option("COLUMN", "Lower bounds of a censored target; where a cell is empty there is none.", ROLES)
    ] = None,
    upper: Annotated[
        str | None,
        option("COLUMN", "Upper bounds of a censored target; empty where only a lower bound is known.", ROLES),
    ] = None,
    exposure: Annotated[
        str | None,
        option(
            "COLUMN",
            "How long, or over how much, each count was taken; for --likelihood poisson or negative-binomial.",
            ROLES,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, option("COLUMN,...", "Columns to leave out; may be given several times.", ROLES)
    ] = None,
    drop_missing_target: DropMissingTarget = False,
    meant: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="COLUMN=KIND",
            help=f"How to read a column: {either(MEANINGS)}; may be given several times.",
            rich_help_panel=ROLES,
        ),
    ] = None,
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    validation: Annotated[
        str | None, option("FILE", "Table to validate on; by default part of TRAIN is held out.", TRAINING)
    ] = None,
    keep_interrupted: Annotated[
        bool,
        typer.Option(
            "--keep-interrupted/--discard-interrupted",
            help="Whether Ctrl-C saves the best model so far; the exit status is 130 either way.",
            rich_help_panel=OUTPUT,
        ),
    ] = True,
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

    Columns may hold numbers, true and false, dates or text, and may have gaps; the target may not. A target of texts,
    or of true and false, is a class, and the probability of each class is predicted.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors --seed 0

    [bold]deepbasis fit[/bold] sales.parquet -t units --groups shop --drop row_id --members 8 --out sales.safetensors

    [bold]deepbasis fit[/bold] years/ -t units --memory 2GiB --checkpoint years.ckpt --out years.safetensors
    """
    start = time.monotonic()  # before what takes long to import
    from deepbasis.tables.roles import check_distinct

    if train == validation == STANDARD:
        raise InputError("TRAIN and --validation cannot both be standard input: give one of them as a file")
    check_distinct(target, weight, groups, drop or [], lambda role: f"--{role}", lower, upper, exposure)
    if not explain_plan:
        check_model_path(out, [train, validation])
    with options_named():
        arguments, options = read_fit_options(given)
        arguments["columns"] = _meanings(meant or [])
        _check_options(options, train, out)
    with workers(arguments["device"]) as team:
        if team.size > 1 and STANDARD in (train, validation):
            raise InputError("standard input cannot be read by several workers: give it as a file")
        with notices(quiet or not team.first) as warned, options_named():
            from deepbasis.fitting.files import prepare_files
            from deepbasis.fitting.finish import INTERRUPTED_FIT
            from deepbasis.fitting.kinds import AUTO, CLASSES
            from deepbasis.fitting.spec import GAUSSIAN, Spec

            spec = Spec(**arguments, verbose=not quiet)  # before the table is read
            number = spec.likelihood != GAUSSIAN or spec.target != AUTO
            notes: list[str] = []

            def say(note: str) -> None:
                notes.append(as_options(note))
                if team.first and not quiet:
                    complain(notes[-1], "note")

            read = partial(table_at, separator=separator, decimal=decimal, encoding=encoding)
            plan, run = prepare_files(
                spec,
                read(train),
                target,
                weight=weight,
                groups=groups,
                lower=lower,
                upper=upper,
                exposure=exposure,
                drop=drop or [],
                drop_missing_target=drop_missing_target,
                validation=None if validation is None else read(validation),
                options=options,
                team=team,
                classes=True if spec.target == CLASSES else False if number else None,
                say=say,
                since=start,
            )
            if plan.target == CLASSES and not quiet and team.first:
                typer.echo(f"target '{target[0]}' has {plan.target_because}", err=True)
            if explain_plan:
                if team.first:
                    print_json(plan.to_json()) if as_json else typer.echo(str(plan))
                return
            fitted = run()
            if fitted.interrupted and not keep_interrupted:
                raise KeyboardInterrupt
            warned += [text for text in fitted.warnings if text != INTERRUPTED_FIT]
        # The progress bar was for this terminal and is not part of the model.
        team.from_first(lambda: save_model(replace(fitted, spec=replace(spec, verbose=False)), str(out)))
    if fitted.interrupted:
        raise KeyboardInterrupt(f"interrupted: the best model so far is in {out}")
    if not quiet and team.first:
        _print_fit(fitted, str(out), time.monotonic() - start, list(warned), notes, as_json)


def _meanings(meant: list[str]) -> dict[str, str] | None:
    """What each --as says, such as price=number."""
    found = {}
    for text in meant:
        column, _, meaning = text.rpartition("=")
        if not column or meaning not in MEANINGS:
            raise InputError(
                f"--as must be a column and one of {', '.join(MEANINGS)}, such as price=number, got '{text}'"
            )
        found[column] = meaning
    return found or None


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


def _print_fit(fitted: Fitted, out: str, seconds: float, warned: list[str], notes: list[str], as_json: bool) -> None:
    from deepbasis.fitting.promise import in_words

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
                "promise": in_words(fitted) or None,
                "diagnosis": None if fitted.diagnosis is None else asdict(fitted.diagnosis),
                "notes": notes,
                "warnings": warned,
            }
        )
        return
    models, rows, wide = counted(members, "model"), counted(fitted.rows, "row"), counted(columns, "column")
    typer.echo(f"{out}: {models} ({architecture.method}) fitted to {rows} of {wide} in {seconds:.1f} s")
    if fitted.target.classes:
        typer.echo(
            f"validation: log loss {scores['log_loss']:.4g}, Brier {scores['brier']:.4g}, ECE {scores['ece']:.4g}, "
            f"{100 * scores['accuracy']:.1f} % of the rows in their likeliest class"
        )
        return
    typer.echo(
        f"validation: NLL {scores['nll']:.4g}, CRPS {scores['crps']:.4g}, MAE {scores['mae']:.4g}, "
        f"{100 * scores['coverage_95']:.1f} % of the targets in their 95 % intervals"
    )
    if promise := in_words(fitted):
        typer.echo(promise)
    if fitted.diagnosis is not None:
        typer.echo(as_options(str(fitted.diagnosis)))
