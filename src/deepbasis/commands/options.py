"""Options that mean the same in every command, and the words for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

AUTO = "auto"
EMBEDDINGS = (AUTO, "none", "periodic", "fourier")
METHODS = (AUTO, "dbk-silu", "dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf", "sv-rbf-linear", "dnn")
"""For the help and the shell's completion, which must not import torch; a test compares them with the real table."""
OBJECTIVES = ("dppgp", "dppgp-detached", "ppgp", "elbo", "mse", "mml")
RECIPES = ("default", "paper")
TRENDS = (AUTO, "none", "linear")

TABLE = "CSV (.csv, .csv.gz) or Parquet (.parquet); '-' reads CSV from standard input."
MODEL, TRAINING, ROLES, SCALE, OUTPUT = "The model", "Training", "Columns", "Large tables", "Output"
"""The panels of the help."""


def choice(words: Sequence[str], help: str, panel: str) -> Any:
    return typer.Option(
        metavar="|".join(words),
        help=help,
        rich_help_panel=panel,
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


def option(metavar: str, help: str, panel: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=panel, **more)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print nothing but errors: no progress, no summary, no warnings.", rich_help_panel=OUTPUT
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)]
Target = Annotated[
    str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.", rich_help_panel=ROLES)
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model that 'deepbasis fit' wrote.", show_default=False)]
