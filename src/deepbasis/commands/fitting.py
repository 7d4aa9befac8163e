"""From the words of `deepbasis fit` to a fit: of one table in memory, or of a table in files of any size."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepbasis.budget import parse_memory
from deepbasis.commands.tables import training_table
from deepbasis.commands.wording import table_named
from deepbasis.errors import InputError
from deepbasis.tables.output import check_output
from deepbasis.tables.places import STANDARD, is_many

if TYPE_CHECKING:
    from deepbasis.engine.distributed import Team
    from deepbasis.estimator import DeepBasisRegressor

_LARGE = 64 * 2**20  # from this size on a file is looked at before it is read


@dataclass(frozen=True)
class Columns:
    """Which part each column plays."""

    target: str
    weight: str | None
    groups: str | None
    drop: list[str]


@dataclass(frozen=True)
class Scale:
    """The options for tables of any size."""

    memory: str | None
    stream: bool | None
    max_steps: int | None
    checkpoint: str | None

    @property
    def wanted(self) -> bool:
        return (self.memory, self.stream, self.max_steps, self.checkpoint) != (None, None, None, None)

    def check(self, train: str, out: str) -> None:
        """Before anything heavy is imported."""
        if train == STANDARD and self.wanted:
            raise InputError(
                "standard input is read at once: --memory, --stream, --max-steps and --checkpoint are for files"
            )
        check_memory(self.memory)
        if self.checkpoint is not None:
            if out == self.checkpoint or re.fullmatch(re.escape(self.checkpoint) + r"\.\d+", out):
                raise InputError("--checkpoint and --out are the same file: give the checkpoint a name of its own")
            check_output(self.checkpoint, inputs=[train])


def check_memory(memory: str | None) -> None:
    try:
        parse_memory(memory)
    except InputError as error:
        raise InputError(f"--{error}") from None


def is_large(path: str | None) -> bool:
    """A folder, a pattern, or a file that may not fit into memory."""
    if path is None or path == STANDARD:
        return False
    return is_many(path) or (os.path.isfile(path) and os.path.getsize(path) >= _LARGE)


def fit_table(model: DeepBasisRegressor, train: str, validation: str | None, columns: Columns) -> None:
    """One table, read at once."""
    table, aside = training_table(train, validation, columns.target, columns.weight, columns.groups, columns.drop)
    X_val, y_val = (None, None) if aside is None else (aside.X, aside.y)
    with table_named(train, validation):
        model.fit(table.X, table.y, table.weight, table.groups, X_val, y_val)


def fit_files(
    model: DeepBasisRegressor, train: str, validation: str | None, columns: Columns, scale: Scale, team: Team
) -> None:
    """A table in files, read at once or piece by piece, by one worker or several."""
    if STANDARD in (train, validation):
        raise InputError("standard input cannot be read beside other files or by several workers: give it as a file")
    with table_named(train, validation):
        model.fit_dataset(
            train,
            columns.target,
            weight=columns.weight,
            groups=columns.groups,
            drop=columns.drop,
            validation=validation,
            memory=scale.memory,
            stream=scale.stream,
            max_steps=scale.max_steps,
            checkpoint=scale.checkpoint,
            team=team,
        )
