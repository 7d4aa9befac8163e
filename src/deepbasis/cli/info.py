"""`deepbasis info`: what a model's file says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepbasis.cli.common import console, load_model, print_json, score_table, text_table
from deepbasis.cli.failures import one_line, printable
from deepbasis.cli.options import Debug, Json, Model
from deepbasis.errors import counted
from deepbasis.tables.places import KINDS

if TYPE_CHECKING:
    from deepbasis.fitting.fitted import Fitted

_TARGETS = {"identity": "number", "log": "number", "warp": "number", "outputs": "several numbers"}


def info(model: Model, as_json: Json = False, debug: Debug = False) -> None:
    """Say what a model predicts, from which columns, how it was fitted and how well.

    [bold]deepbasis info[/bold] model.safetensors

    [bold]deepbasis info[/bold] model.safetensors --json | jq -r .target.name
    """
    known = _record(load_model(model), Path(model))
    if as_json:
        print_json(known)
    else:
        _print_info(known)


def _record(fitted: Fitted, path: Path) -> dict[str, Any]:
    encoder, one = fitted.preprocessor, fitted.architecture
    return {
        "model": str(path),
        "bytes": path.stat().st_size,
        "target": {
            "name": ", ".join(fitted.target.outputs) or fitted.target_name,
            "kind": _TARGETS.get(fitted.target.name, fitted.target.name),
            "transform": fitted.target.name,
            "lower": fitted.target.lower,
            "upper": fitted.target.upper,
            "exposure": fitted.target.exposure,
            "outputs": list(fitted.target.outputs),
        },
        "rows": fitted.rows,
        "columns": [
            {
                "name": name,
                "kind": encoding.kind,
                "gaps": encoding.missing,
                "categories": len(encoding.levels or encoding.categories),
                "encoded": encoding.width,
                "left_out": encoding.is_left_out,
            }
            for name, encoding in zip(encoder.names, encoder.encodings, strict=True)
        ],
        "method": one.method,
        "members": len(fitted.models),
        "rank": one.rank,
        "embedding": one.embedding,
        "trend": one.trend,
        "calibrated": fitted.calibration is not None,
        "alpha": fitted.alpha,
        "beta": fitted.beta,
        "chosen": fitted.chosen + 1,
        "plan": list(fitted.plan.lines()),
        "validation": fitted.validation,
        "versions": dict(fitted.versions),
    }


def _print_info(known: dict[str, Any]) -> None:
    """Names come from a file that anyone may have made: no colour and no control character of theirs is obeyed."""
    from rich.text import Text

    target, columns = known["target"], known["columns"]
    names = target.get("outputs") or ([] if target["name"] is None else [target["name"]])
    name = " and ".join(f"'{one_line(one)}'" for one in names) or "a target without a name"
    transform = (
        ""
        if target["transform"] in ("identity", "outputs", target["kind"])
        else f", trained by its {target['transform']}"
    )
    wide = counted(len(columns), "column")
    typer.echo(f"{known['model']} predicts {name} ({target['kind']}{transform}{_beside(target)})")
    typer.echo(f"fitted to {counted(known['rows'], 'row')} of {wide}; {known['bytes']:,} bytes")
    typer.echo(one_line(", ".join(f"{program} {version}" for program, version in known["versions"].items())))
    table = text_table("Columns", ["", "kind", "gaps", "encoded columns"])
    for column in columns:
        is_category = column["kind"] == "categorical" and not column["left_out"]
        categories = f", {counted(column['categories'], 'value')}" if is_category else ""
        table.add_row(
            Text(one_line(column["name"])),
            KINDS[column["kind"]] + categories,
            "yes" if column["gaps"] else "",
            _outputs(column),
        )
    screen = console()
    screen.print(table)
    screen.print(score_table("Rows held out of the fit", known["validation"]))
    typer.echo("The plan, of which candidate {chosen} was chosen:".format(**known))
    for line in known["plan"]:
        typer.echo(f"  {printable(line)}")


def _beside(target: dict[str, Any]) -> str:
    """The columns of its bounds and of its exposure."""
    words = {"lower": "at least", "upper": "at most", "exposure": "counted over"}
    return "".join(f", {say} '{one_line(target[key])}'" for key, say in words.items() if target[key] is not None)


def _outputs(column: dict[str, Any]) -> str:
    if column["left_out"]:
        return "nothing: it is left out"
    return str(column["encoded"]) if column["encoded"] else "nothing: it has one value"
