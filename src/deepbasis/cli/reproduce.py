"""`deepbasis reproduce`: the paper's experiments, side by side with the paper's own numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from deepbasis.cli.options import OUTPUT, Debug, choice, option
from deepbasis.errors import InputError, check_choice

EXPERIMENTS = ("step1d", "uci", "ookla")

_COMPUTING = "Computing"


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="|".join(EXPERIMENTS),
            help="The 1-D example (Sec. 4.1), UCI regression (Table 1), or internet speeds (Table 2).",
            show_default=False,
        ),
    ],
    out: Annotated[
        str | None, option("FOLDER", "Where parts, tables and figures go; results/EXPERIMENT by default.", OUTPUT)
    ] = None,
    data_dir: Annotated[
        str | None, option("FOLDER", "Where the data sets are; $DEEPBASIS_DATA by default.", _COMPUTING)
    ] = None,
    device: Annotated[str, choice(("auto", "cpu", "cuda"), "Where to train.", _COMPUTING)] = "auto",
    only: Annotated[
        list[str] | None,
        option("PREFIX", "Compute only the parts whose names begin with this; may be repeated.", _COMPUTING),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute or two: does it run? The figures mean nothing.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Make the paper's experiments: tables beside the paper's numbers, and figures.

    An experiment is a set of parts, each recorded when it is done. A run that was cut short continues where it left
    off.

    Several calls may work on one folder side by side, each with its own --only; a last one draws what is there.

    [bold]deepbasis reproduce step1d[/bold] --quick --out /tmp/step1d

    [bold]deepbasis reproduce uci[/bold] --device cuda --only paper-pol
    """
    check_choice("experiment", experiment, EXPERIMENTS)
    place = Path(out) if out is not None else Path("build/quick" if quick else "results") / experiment
    if place.exists() and not place.is_dir():
        raise InputError(f"--out '{place}' is a file: give a folder")
    folder_of_data = None if data_dir is None else Path(data_dir)
    if folder_of_data is not None and not folder_of_data.is_dir():
        raise InputError(f"--data-dir '{data_dir}' is not a folder")
    from deepbasis import plots

    plots.new_figure(1, 1)  # fail before the work, not after it, if matplotlib is missing
    from deepbasis.engine import device as devices
    from deepbasis.paper.parts import Folder
    from deepbasis.progress import ProgressBar

    with ProgressBar() as bar:
        folder = Folder(place, devices.present(device), tuple(only or ()), bar, tell=typer.echo)
        if experiment == "step1d":
            from deepbasis.paper import step1d, step1d_sizes

            step1d.run(folder, step1d_sizes.QUICK if quick else step1d_sizes.FULL)
        elif experiment == "uci":
            from deepbasis.paper import data_uci, uci

            uci.run(folder, uci.QUICK if quick else uci.FULL, partial(data_uci.load, folder=folder_of_data))
        else:
            from deepbasis.paper import ookla

            ookla.run(folder, ookla.QUICK if quick else ookla.FULL, folder_of_data)
    typer.echo(f"Tables and figures are in {place}")
