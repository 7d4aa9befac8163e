"""The command `deepbasis`: fit, predict, evaluate, update, info, explain, report, export, demo and reproduce.

A command is a file of this room. It imports torch, pandas and scikit-learn inside its function, so that `--help`
answers at once. An expected error (a `DeepBasisError`, or a refusal by the system) is one line on stderr and exit
status 2, before anything is written; any other is one line and status 1, with its traceback under `--debug`.
"""

from __future__ import annotations

from typing import Annotated, get_type_hints

import typer

from deepbasis import __version__
from deepbasis.cli.demo import demo
from deepbasis.cli.evaluate import evaluate
from deepbasis.cli.explain import explain
from deepbasis.cli.export import export
from deepbasis.cli.failures import Group
from deepbasis.cli.fit import fit
from deepbasis.cli.info import info
from deepbasis.cli.predict import predict
from deepbasis.cli.report import report
from deepbasis.cli.reproduce import reproduce
from deepbasis.cli.update import update

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
    """Prediction with calibrated uncertainty on tables: Gaussian processes with deep basis kernels.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors

    [bold]deepbasis predict[/bold] model.safetensors new.csv --out predictions.csv
    """


# In the order in which the help shows them.
for command in (fit, predict, evaluate, update, info, explain, report, export, demo, reproduce):
    command.__annotations__ = get_type_hints(command, include_extras=True)  # once, not four times
    app.command()(command)


def main() -> None:
    app(prog_name="deepbasis")
