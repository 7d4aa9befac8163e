"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import typer


def print_json(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(_finite(record), allow_nan=False, indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_table(title: str, columns: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_style="bold", title_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    return table


def console() -> Any:
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=100)
