"""The tables of a data folder, `tables/NAME.csv.gz`, whose last column is a number: all inputs as numbers.

Every model of the benchmark gets the same numbers, so that models are compared and not ways to encode: categories
become a column for each level, a time becomes days since the first, the hour and the month.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from deepbasis.errors import InputError
from deepbasis.paper.data_download import FOLDER, data_folder
from deepbasis.paper.data_uci import RegressionTable

TABLES: Mapping[str, int] = MappingProxyType(
    {
        "yacht": 308,
        "autompg": 392,
        "forest": 517,
        "stock": 536,
        "energy": 768,
        "concrete": 1_030,
        "airfoil": 1_503,
        "wine": 1_599,
        "gas": 2_565,
        "skillcraft": 3_338,
        "sml": 4_137,
        "abalone": 4_177,
        "wine_white": 4_898,
        "doctor_visits": 5_190,
        "pumadyn32nm": 8_192,
        "rwm5yr": 19_609,
        "budget_food": 23_972,
        "pollution": 41_757,
    }
)
"""Name -> rows, with which it is known how many splits it gets before it is read."""


def load_table(name: str, folder: Path | None = None) -> RegressionTable:
    named = data_folder(folder)
    file = None if named is None else named / "tables" / f"{name}.csv.gz"
    if file is None or not file.is_file():
        raise InputError(f"{name}: there is no {file or 'data folder'}; name one by --data-dir or {FOLDER}")
    table = pd.read_csv(file)
    if len(table) != TABLES[name]:
        raise InputError(f"{file} has {len(table)} rows, but {name} has {TABLES[name]}: it is another version")
    columns = [_numbers(table[column]) for column in table.columns[:-1]]
    return RegressionTable(np.column_stack(columns), table.iloc[:, -1].to_numpy(np.float64))


def _numbers(column: pd.Series) -> np.ndarray:
    """[n, k]"""
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64)[:, None]
    if column.name == "time":
        time = pd.to_datetime(column)
        days = (time - time.min()).dt.total_seconds() / 86_400.0
        return np.column_stack([days, time.dt.hour, time.dt.month]).astype(np.float64)
    words = column.astype(str).to_numpy(str)  # a cell that is missing is a level
    return (words[:, None] == np.unique(words)).astype(np.float64)
