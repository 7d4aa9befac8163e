"""Rows of a file that lie together, as Arrow holds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deepbasis.errors import InputError
from deepbasis.tables.columns import Column
from deepbasis.tables.reading import arrow_column

FROM_0 = "(counting from 0)"


@dataclass(frozen=True)
class Block:
    """Some rows of a file that lie together."""

    name: str
    """How messages call the file: "'sales/2021.parquet'"."""
    first_row: int
    """In the file, counting from 0."""
    table: Any
    """A pyarrow Table or RecordBatch."""
    copied: Any = None
    """Columns of the same rows that are handed on and not looked at, as another; None where there are none."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, column: str) -> Column:
        return arrow_column(f"column {column!r}", self.table.column(column))

    @contextmanager
    def located(self) -> Iterator[None]:
        """What is wrong with "X" in "row 3" is wrong with the file, in that row of it."""
        try:
            yield
        except InputError as error:
            text = re.sub(r"^X(?=[: ])", self.name, str(error))
            text = re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + self.first_row} {FROM_0}", text, count=1)
            raise type(error)(text) from None
