"""Several small tables of one page in one file: JSON with a line for each row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd


def read_parts(file: Path) -> dict[str, pd.DataFrame]:
    return {name: pd.DataFrame(rows) for name, rows in json.loads(file.read_text()).items()} if file.exists() else {}


def write_part(file: Path, name: str, table: pd.DataFrame) -> None:
    """In place of what was there under this name; numbers have four digits behind the point."""
    parts = []
    for part, found in {**read_parts(file), name: table.round(4)}.items():
        rows = found.astype(object).replace(np.nan, None).to_dict("records")
        parts.append(f" {json.dumps(part)}: [\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]")
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")
