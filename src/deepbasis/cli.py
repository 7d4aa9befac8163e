"""The command: `deepbasis fit | predict | evaluate | demo | reproduce`.

The door alone: the commands are in `commands/`, a file for each. What can go wrong on purpose (a `DeepBasisError`, the
system's refusals) is one line on stderr and exit status 2, with nothing written; the unforeseen is one line and status
1, with its traceback under `--debug`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from deepbasis import __version__
from deepbasis.commands.demo import demo
from deepbasis.commands.evaluate import evaluate
from deepbasis.commands.failures import Group
from deepbasis.commands.fit import fit
from deepbasis.commands.options import METHODS as METHODS
from deepbasis.commands.options import OBJECTIVES as OBJECTIVES
from deepbasis.commands.options import RECIPES as RECIPES
from deepbasis.commands.predict import predict
from deepbasis.commands.reproduce import reproduce

app = typer.Typer(
    cls=Group,
    name="deepbasis",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepbasis {__version__}")
        raise typer.Exit


@app.callback()
def deepbasis(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Regression with calibrated uncertainty on tables: Gaussian processes with deep basis kernels.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors

    [bold]deepbasis predict[/bold] model.safetensors new.csv --out predictions.csv
    """


# In the order in which the help shows them.
for command in (fit, predict, evaluate, demo, reproduce):
    app.command()(command)


def main() -> None:
    app(prog_name="deepbasis")
