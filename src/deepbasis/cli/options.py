"""Options: those that mean the same in every command, and those of a fit, which are made from its arguments.

Messages speak of arguments (`batch_size`); `options_named` makes them speak of options (`--batch-size`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from typing import Annotated, Any

import typer

from deepbasis.errors import InputError
from deepbasis.fitting.spec import RunOptions, arguments

TABLE = "CSV (.csv, .tsv, .csv.gz) or Parquet (.parquet); '-' reads CSV from standard input."
ROLES, TEXT, SCALE, OUTPUT = "Columns", "Files of text", "Large tables", "Output"
"""Panels of the help, beside those of the fit's arguments."""


def option(metavar: str, help: str, panel: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=panel, **more)


def choice(words: Sequence[str], help: str, panel: str, *names: str) -> Any:
    return typer.Option(
        *names,
        metavar="|".join(words),
        help=help,
        rich_help_panel=panel,
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)]
Target = Annotated[
    list[str],
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="The column to predict; give it several times to predict several columns together.",
        rich_help_panel=ROLES,
    ),
]
KnownTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="The column of the targets; by default the one of the fit.",
        rich_help_panel=ROLES,
    ),
]
DropMissingTarget = Annotated[
    bool, typer.Option("--drop-missing-target", help="Leave out rows without a target.", rich_help_panel=ROLES)
]
KnownExposure = Annotated[
    str | None, option("COLUMN", "What counts were counted over; by default the column of the fit.", ROLES)
]
Separator = Annotated[
    str,
    option(
        "CHARACTER", "What separates the fields of a CSV: , ; | or tab; by default detected.", TEXT, show_default=False
    ),
]
Decimal = Annotated[str, option(".|,", "Decimal separator of a CSV; by default detected.", TEXT, show_default=False)]
Encoding = Annotated[
    str, option("NAME", "Encoding of a CSV, such as cp1252; by default detected.", TEXT, show_default=False)
]
SafeCsv = Annotated[
    bool,
    typer.Option(
        "--safe-csv",
        help="Put an apostrophe before text copied to a CSV that a spreadsheet may take for a formula.",
        rich_help_panel=OUTPUT,
    ),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model that 'deepbasis fit' wrote.", show_default=False)]


# ---- the options of a fit --------------------------------------------------------------------------------------------


def option_of(one: Field[Any]) -> str:
    """The argument `target` has --target-transform, since --target is a column."""
    return str(one.metadata["option"]) or f"--{one.name.replace('_', '-')}"


_OPTIONS = {
    **{one.name: option_of(one) for one in arguments()},
    **{one.name: f"--{one.name.replace('_', '-')}" for one in fields(RunOptions)},
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("target", "weight", "groups", "lower", "upper", "exposure", "drop", "drop_missing_target"),
            *("separator", "decimal", "encoding", "forget"),
        )
    },
    "sample_weight": "--weight",
    "columns": "--as",
}


def with_fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose `**given` becomes an option for each argument of a fit that has a panel."""
    own = inspect.signature(command, eval_str=True)
    first = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    made = [_parameter(one) for one in arguments() if one.metadata["panel"]]
    made += [_run_parameter(one) for one in fields(RunOptions)]
    command.__signature__ = own.replace(parameters=[*first, *made])  # type: ignore[attr-defined]
    return command


def read_fit_options(given: dict[str, Any]) -> tuple[dict[str, Any], RunOptions]:
    """Arguments of a fit from what typer has read, which is text if "auto" may stand for a number."""
    read = {}
    for one in arguments():
        name = option_of(one)
        if _parameter_name(name) in given:
            value = given[_parameter_name(name)]
            read[one.name] = one.metadata["kind"].parse(name, value) if isinstance(value, str) else value
    return read, RunOptions(**{one.name: given[one.name] for one in fields(RunOptions)})


def _parameter_name(option: str) -> str:
    return option.strip("-").replace("-", "_")


def _parameter(one: Field[Any]) -> inspect.Parameter:
    kind, name = one.metadata["kind"], option_of(one)
    help = re.split(r"(?<=\.) ", one.metadata["help"], maxsplit=1)[0]
    plain = type(one.default) if isinstance(one.default, int | float) else int if one.name == "random_state" else str
    words = kind.metavar().split("|")
    if not {"INTEGER", "NUMBER"} & set(words):  # a choice, which the shell can complete
        info = choice(words, help, one.metadata["panel"], name)
    else:
        info = typer.Option(name, metavar=kind.metavar(), help=help, rich_help_panel=one.metadata["panel"])
    hint = plain | None if one.default is None else plain
    return inspect.Parameter(
        _parameter_name(name), inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=Annotated[hint, info]
    )


def _run_parameter(one: Field[Any]) -> inspect.Parameter:
    words: Any = {"metavar": one.metadata.get("metavar"), "help": one.metadata["help"], "rich_help_panel": SCALE}
    hint: Any = str | None
    info = typer.Option(_OPTIONS[one.name], **words)
    if one.name == "stream":
        info, hint = typer.Option("--stream/--no-stream", show_default=False, **words), bool | None
    elif one.name == "max_steps":
        info, hint = typer.Option(_OPTIONS[one.name], min=1, **words), int | None
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, info])


_FLAGS = ("drop_missing_target", "guarantee", "stream")


def as_options(message: str) -> str:
    """columns={'price': 'category'} is --as 'price=category' here, and trend='linear' is --trend linear."""

    def option_for(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or found[3]
        if name not in _OPTIONS:
            return found[0]
        called = {one.name: option_of(one) for one in arguments()}.get(name, _OPTIONS[name])
        return called if name in _FLAGS and value == "True" else f"{called} {value.lower()}"

    message = re.sub(r"columns=\{(?:'(.*?)'|\"(.*?)\"): '(\w+)'\}", lambda m: f"--as '{m[1] or m[2]}={m[3]}'", message)
    return re.sub(r"\b(\w+)=(?:'([\w-]+)'|(True|False|\d+(?:\.\d+)?))", option_for, message)


@contextmanager
def options_named() -> Iterator[None]:
    """An argument of the estimator is an option here: batch_size is --batch-size."""
    try:
        yield
    except InputError as error:
        word, separator, rest = as_options(str(error)).partition(" ")
        raise InputError(f"{_OPTIONS.get(word, word)}{separator}{rest}") from error
