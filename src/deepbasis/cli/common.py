"""What commands share: the model's file, several workers, tables for people and JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepbasis.cli.failures import one_line
from deepbasis.errors import InputError, per_cent
from deepbasis.registry import FORMATS
from deepbasis.tables.dialect import Dialect, TablePath
from deepbasis.tables.output import cannot_write, check_output
from deepbasis.tables.places import STANDARD, Place, is_many, load

if TYPE_CHECKING:
    from deepbasis.engine.distributed import Team
    from deepbasis.fitting.fitted import Fitted


def load_model(path: str) -> Fitted:
    place = Path(path)
    if place.is_dir():
        raise InputError(f"MODEL '{path}' is a folder: give the name of the file that 'deepbasis fit' wrote")
    if not place.exists():
        raise InputError(f"MODEL '{path}' does not exist: check the path; 'deepbasis fit' makes one")
    from deepbasis.engine import device as devices
    from deepbasis.fitting import saved

    return saved.load(path, devices.present("auto"))


def check_model_path(out: str | None, inputs: Sequence[str | None]) -> None:
    if out is None:
        raise InputError("Missing option '--out': say where to write the model, such as --out model.safetensors")
    if out == STANDARD:
        raise InputError("--out cannot be standard output: a model is a file; give a name such as model.safetensors")
    if out.lower().endswith(tuple(FORMATS)):
        raise InputError(f"--out '{out}' has the name of a table, not of a model: use one that ends in .safetensors")
    check_output(out, inputs=inputs)


def save_model(fitted: Fitted, out: str) -> None:
    try:
        fitted.save(out)
    except OSError as error:
        raise cannot_write(out, error) from None


def table_at(path: str, separator: str = "", decimal: str = "", encoding: str = "") -> str | TablePath | Place:
    """A table by its name; standard input, which can be read only once, is in memory from here on."""
    dialect = Dialect({"tab": "\t", "\\t": "\t"}.get(separator, separator), decimal, encoding)
    if path == STANDARD:
        return load(path, dialect)
    return path if dialect == Dialect() else TablePath(path, dialect)


def one_table(path: str, command: str, argument: str) -> None:
    """Refuse a folder or a pattern."""
    if is_many(path):
        raise InputError(f"{argument} '{path}' is a folder or a pattern, but {command} takes one file: give its name")


def quantile_levels(text: str) -> tuple[float, ...]:
    """What --quantiles names."""
    levels: list[float] = []
    for word in text.split(","):
        try:
            level = float(word)
        except ValueError:
            level = 0.0
        if not 0.0 < level < 1.0:
            got = f"'{word.strip()}'"
            raise InputError(f"--quantiles must be numbers between 0 and 1, separated by commas, got {got} in '{text}'")
        if level in levels:
            raise InputError(f"--quantiles has {level:g} twice: name each quantile once")
        levels.append(level)
    return tuple(levels)


@contextmanager
def workers(device: str = "auto") -> Iterator[Team]:
    """The workers of this run; a single one unless torchrun has started several."""
    from deepbasis.engine import distributed

    try:
        yield distributed.start(device)
    finally:
        distributed.stop()


def print_json(record: dict[str, Any]) -> None:
    text = json.dumps(_finite(record), allow_nan=False, indent=2, ensure_ascii=False)
    typer.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_table(title: str, columns: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_style="bold", title_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    return table


def score_table(title: str, scores: Mapping[str, float]) -> Any:
    from rich.text import Text

    table = text_table(title, ["", "value"])
    for name in sorted(scores, key=[*_SCORES, *scores].index):
        # "mae_claims" is the MAE of the output claims
        metric = max((one for one in _SCORES if name == one or name.startswith(f"{one}_")), key=len, default="")
        words, output = _SCORES.get(metric, name), name.removeprefix(metric).removeprefix("_") if metric else ""
        value = per_cent(scores[name], 1) if metric in _SHARES else f"{scores[name]:.5g}"
        table.add_row(Text(one_line(f"{words}: {output}" if output else words)), value)
    return table


_SHARES = ("coverage_95", "accuracy")
_SCORES = {
    "log_loss": "log loss, nats per row",
    "log_loss_constant": "log loss of the classes' shares",
    "brier": "Brier score",
    "ece": "ECE of the likeliest class",
    "auc": "AUC, mean over classes",
    "accuracy": "rows in their likeliest class",
    "mae": "MAE",
    "rmse": "RMSE",
    "nll": "NLL, nats per row",
    "nll_constant": "NLL of one Gaussian for all rows",
    "crps": "CRPS",
    "coverage_95": "targets in their 95 % intervals",
    "width_95": "width of the 95 % intervals",
    "calibration_error": "calibration error",
    "concordance": "concordance",
    "integrated_brier_score": "integrated Brier score",
}


def console() -> Any:
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=100)
