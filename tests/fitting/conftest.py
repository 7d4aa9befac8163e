"""Tables, files and models that tests of a fit only look at, and what they watch it by."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from deepbasis.tables.table import HeldOut
from support import model_files, streams
from support.regressors import Fitted, easy, mixed, small


@pytest.fixture(scope="session")
def fitted() -> Fitted:
    torch.manual_seed(0)
    X, y = easy()
    table, y_table = mixed()
    return Fitted(X, y, table, y_table, small(epochs=30).fit(X, y), small(epochs=30).fit(table, y_table))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a mixed table."""
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    model_files.small().fit(*model_files.mixed()).save(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,100 rows in 4 files, one of them empty, in row groups of 100."""
    folder = tmp_path_factory.mktemp("table")
    for k, n in enumerate(streams.LENGTHS):
        streams.frame(n, k).to_parquet(folder / f"part-{k}.parquet", index=False, row_group_size=100)
    return folder


@pytest.fixture(scope="module")
def whole() -> pd.DataFrame:
    return pd.concat([streams.frame(n, k) for k, n in enumerate(streams.LENGTHS) if n], ignore_index=True)


@pytest.fixture(scope="module")
def held(whole: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows are held out, by the rule and not by the code that applies it to blocks."""
    held_out = HeldOut.choose(0.1, streams.LENGTHS)
    return np.concatenate([held_out.of(file, 0, n) for file, n in enumerate(streams.LENGTHS)])
