"""From the files that a command names to what the estimator takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbasis.commands.wording import FROM_0, rows_explained
from deepbasis.errors import InputError
from deepbasis.tables import files

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from deepbasis.estimator import DeepBasisRegressor


def check_roles(target: str, weight: str | None, groups: str | None, drop: Sequence[str]) -> None:
    """A column has one part to play."""
    roles: dict[str, str] = {}
    named = [("--target", target), ("--weight", weight), ("--groups", groups), *(("--drop", column) for column in drop)]
    for option, column in named:
        if column is None:
            continue
        if column in roles:
            twice = f"{option} names the column '{column}', which {roles[column]} names already"
            raise InputError(f"{twice}: a column can have one part only")
        roles[column] = option


def check_model_path(out: str, inputs: Iterable[str | None]) -> None:
    if out == files.STANDARD:
        raise InputError("--out cannot be standard output: a model is a file; give a name such as model.safetensors")
    if out.lower().endswith(files.ENDINGS):
        raise InputError(f"--out '{out}' has the name of a table, and a model is none: let it end in .safetensors")
    files.check_output(out, inputs=inputs)


def training_table(
    train: str, target: str, weight: str | None, groups: str | None, drop: Sequence[str]
) -> tuple[pd.DataFrame, np.ndarray[Any, Any], np.ndarray[Any, Any] | None, Any]:
    table = files.read_table(train, drop=drop)
    beside = [column for column in (target, weight, groups) if column is not None]
    files.check_columns(table, beside, files.display_name(train))
    X = table.drop(columns=beside)
    if X.shape[1] == 0:
        raise InputError(
            f"{files.display_name(train)} has no column left to predict '{target}' from: it needs one at least"
        )
    y = target_values(table, target, train)
    sample_weight = None if weight is None else column_of_numbers(table, weight, train, "weight column")
    return X, y, sample_weight, None if groups is None else table[groups].to_numpy()


def validation_table(validation: str, target: str, X: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """The columns of the training table X; what is text there is text here, whatever stands in it."""
    from pandas.api.types import is_string_dtype

    types = {name: getattr(X[name].dtype, "categories", X[name]).dtype for name in X.columns}
    text = [name for name, type_ in types.items() if is_string_dtype(type_)]
    table = files.read_table(validation, [*X.columns, target], text=text)
    return table[list(X.columns)], target_values(table, target, validation)


def new_table(model: DeepBasisRegressor, new: files.Loaded, beside: Sequence[str]) -> pd.DataFrame:
    """The model's columns of a table, in the model's order; what it knows as text is text.

    A model that knows no names, fitted in Python on an array, takes all columns but those in `beside`.
    """
    from deepbasis.tables.sources import text_columns

    encodings = model.preprocessor_.encodings
    names = model.preprocessor_.input_columns
    columns = names or list(new.table(drop=beside).columns)
    if len(columns) != len(encodings):
        raise InputError(
            f"{new.name} has {len(columns)} columns beside those named by options, but the model "
            f"was fitted on an array of {len(encodings)} without names: give exactly those, in their order"
        )
    X = new.table(columns, text=text_columns(columns, encodings))
    return X if names else X.set_axis(range(len(columns)), axis=1)


def target_values(table: pd.DataFrame, column: str, path: str) -> np.ndarray[Any, Any]:
    from deepbasis.tables.targets import check_target

    role = "target column"
    with rows_explained():
        return check_target(
            column_of_numbers(table, column, path, role), f"{role} '{column}' of {files.display_name(path)}"
        )


def column_of_numbers(table: pd.DataFrame, column: str, path: str, role: str) -> np.ndarray[Any, Any]:
    """As float64, NaN where missing. One cell of text makes a column of a CSV text: it is the one to be named."""
    import numpy as np
    import pandas as pd

    values = table[column]
    if not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)):
        cells = values.astype(object)
        odd = pd.to_numeric(cells, errors="coerce").isna() & cells.notna()
        row = int(np.argmax(odd.to_numpy()))
        raise InputError(
            f"{role} '{column}' of {files.display_name(path)} must hold numbers, got '{cells.iloc[row]!s:.40}' "
            f"in row {row} {FROM_0}; mend that cell, or choose another column"
        )
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def load_model(path: str) -> DeepBasisRegressor:
    place = Path(path)
    if place.is_dir():
        raise InputError(f"MODEL '{path}' is a folder: give the name of the file that 'deepbasis fit' wrote")
    if not place.exists():
        raise InputError(f"MODEL '{path}' does not exist: check the path; 'deepbasis fit' makes one")
    from deepbasis.estimator import DeepBasisRegressor

    return DeepBasisRegressor.load(path)
