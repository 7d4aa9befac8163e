"""From the files that a command names to what the estimator takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepbasis.errors import InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.output import check_output
from deepbasis.tables.places import STANDARD, Place, load

if TYPE_CHECKING:
    import pandas as pd

    from deepbasis.estimator import DeepBasisRegressor
    from deepbasis.tables.roles import Parts
    from deepbasis.tables.source import Source


def check_model_path(out: str, inputs: Iterable[str | None]) -> None:
    if out == STANDARD:
        raise InputError("--out cannot be standard output: a model is a file; give a name such as model.safetensors")
    if out.lower().endswith(tuple(FORMATS)):
        raise InputError(f"--out '{out}' has the name of a table, and a model is none: let it end in .safetensors")
    check_output(out, inputs=inputs)


def training_table(
    train: str, validation: str | None, target: str, weight: str | None, groups: str | None, drop: Sequence[str]
) -> tuple[Parts, Parts | None]:
    """One file, read at once, and the rows to validate on; what is text in the first is text in the second."""
    from deepbasis.tables.roles import Roles
    from deepbasis.tables.source import Source

    source = Source.open(load(train), drop=drop)
    source.check_rows()
    roles = Roles.of(source, target, weight, groups)
    aside = None
    if validation is not None:
        columns = [*roles.features, roles.target]
        aside = Source.open(load(validation), columns, text=source.text_columns())
    return roles.parts(source), None if aside is None else roles.for_validation().parts(aside)


def new_table(model: DeepBasisRegressor, new: Place, ids: Sequence[str]) -> tuple[Source, pd.DataFrame]:
    """A table in memory, which has the columns of `ids` too, and those that the model takes, in the model's order."""
    from deepbasis.tables.predictions import input_names, open_inputs

    source = open_inputs(new, model.preprocessor_, ids)
    X = source.to_pandas(input_names(source, model.preprocessor_, ids))
    return source, X if model.preprocessor_.input_columns else X.set_axis(range(X.shape[1]), axis=1)


def load_model(path: str) -> DeepBasisRegressor:
    place = Path(path)
    if place.is_dir():
        raise InputError(f"MODEL '{path}' is a folder: give the name of the file that 'deepbasis fit' wrote")
    if not place.exists():
        raise InputError(f"MODEL '{path}' does not exist: check the path; 'deepbasis fit' makes one")
    from deepbasis.estimator import DeepBasisRegressor

    return DeepBasisRegressor.load(path)
