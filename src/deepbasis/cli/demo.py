"""`deepbasis demo`: the paper's 1-D example, as a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepbasis.cli.common import console, text_table
from deepbasis.cli.options import OUTPUT, Debug, option
from deepbasis.errors import InputError
from deepbasis.tables.output import check_output, writing


def demo(
    out: Annotated[str, option("FOLDER", "Where to write the figure, demo.png.", OUTPUT)] = ".",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few steps only: does it run? The figures mean nothing.")
    ] = False,
    seed: Annotated[int, option("INTEGER", "Seed of the data and of the models.", OUTPUT, min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Fit the paper's 1-D example by three methods: a table of scores, and a figure of what each has learned.

    It takes less than a minute on two cores.

    [bold]deepbasis demo[/bold] --out /tmp
    """
    if not Path(out).is_dir():
        raise InputError(f"--out '{out}' is not a folder: create it, or choose another")
    place = Path(out) / "demo.png"
    check_output(place)
    from deepbasis import plots

    plots.new_figure(1, 1)  # fail before the work, not after it, if matplotlib is missing
    from deepbasis.paper import demo as experiment
    from deepbasis.progress import ProgressBar

    size = experiment.QUICK if quick else experiment.FULL
    with ProgressBar() as bar:
        result = experiment.run(size, seed=seed, progress=lambda name: bar)
    with writing(place) as file:
        file.write(plots.png(experiment.figure(result)))
    _print_demo(result, quick)
    typer.echo(f"The figure is in {place}")


def _print_demo(result: Any, quick: bool) -> None:
    from deepbasis.paper.demo import verdict

    size = result.size
    title = f"The 1-D example: {size.train:,} training rows, {size.test:,} test rows"
    table = text_table(title, ["", "MAE", "NLL", "above oracle", "CRPS", "in 95 %", "rank", "seconds"])
    for row in result.records():
        table.add_row(
            row["name"],
            f"{row['mae']:.4f}",
            f"{row['nll']:.3f}",
            f"{row['nll'] - result.oracle['nll']:.3f}",
            f"{row['crps']:.4f}",
            f"{100 * row['coverage_95']:.1f} %",
            "" if row["rank"] is None else f"{row['rank']:.1f}",
            "" if row["seconds"] is None else f"{row['seconds']:.1f}",
        )
    screen = console()
    screen.print(table)
    lines = ["Quick: far too few steps for these figures to mean anything."] if quick else verdict(result)
    for line in lines:
        screen.print(f"- {line}", highlight=False, soft_wrap=not screen.is_terminal)
