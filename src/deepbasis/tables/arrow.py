"""Adjacent rows of a file, as Arrow holds them."""

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
class FileBlock:
    """Adjacent rows of a file."""

    name: str
    """The file's name in messages: "'sales/2021.parquet'"."""
    first_row: int
    """In the file, counting from 0."""
    table: Any
    """A pyarrow Table."""
    copied: Any = None
    """Columns of the same rows that are copied unchanged, as another Table."""

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
            if FROM_0 in str(error):  # it was located already
                raise
            text = re.sub(r"^X(?=[: ])", self.name, str(error))
            text = re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + self.first_row} {FROM_0}", text, count=1)
            if FROM_0 in text and self.name not in text:
                text = f"{self.name}: {text}"
            raise type(error)(text) from None


def check_type(type_: Any, column: str, name: str) -> None:
    """Refuse values that cannot become a column, in the file called `name`."""
    import pyarrow.types as types

    if types.is_dictionary(type_):
        type_ = type_.value_type
    if types.is_nested(type_):
        raise InputError(
            f"{name}: column '{column}' is nested ({type_}); spread it over columns of plain values, or drop it"
        )
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        raise InputError(f"{name}: column '{column}' holds raw bytes; convert it to text or numbers, or drop it")
