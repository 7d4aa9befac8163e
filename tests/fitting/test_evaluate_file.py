"""Rows of files whose targets are known: scores of one file are those of the same rows in memory, also for a model that
knows its columns by place; and of very many rows only so much is held as there is room for."""

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError
from deepbasis.explain import Sample
from deepbasis.fitting.budget import Machine
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.known import evaluate_file, update_file
from deepbasis.fitting.update import NewRows, update

MIB = 2**20
SMALL: Any = {"method": "dbk-silu", "epochs": 2, "members": 1, "rank": 4, "width": 4, "random_state": 0}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", [["a", "b"], None])
def test_scores_of_a_file_are_those_of_its_rows(tmp_path, names):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0] + 0.1 * X[:, 1]
    table = X if names is None else pd.DataFrame(X, columns=names)
    model = DeepBasisRegressor(**SMALL).fit(table, y)
    pd.DataFrame(X, columns=["a", "b"]).assign(y=y).to_parquet(tmp_path / "t.parquet", index=False)
    rows, scores = evaluate_file(model.fitted_, tmp_path / "t.parquet", "y")
    assert rows == 60
    assert scores == pytest.approx(model.evaluate(table, y), rel=1e-9)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    x = np.random.default_rng(0).normal(size=60)
    return DeepBasisRegressor(**SMALL).fit(pd.DataFrame({"a": x}), pd.Series(2.0 * x, name="y")).fitted_


@pytest.fixture(scope="module")
def long_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400,000 rows: of each column 3.1 MiB."""
    path = tmp_path_factory.mktemp("long") / "t.parquet"
    x = np.arange(400_000.0) % 7
    pd.DataFrame({"a": x, "y": 2.0 * x}).to_parquet(path, index=False, row_group_size=50_000)
    return path


@pytest.mark.parametrize("use", [evaluate_file, update_file])
def test_rows_that_do_not_fit_into_memory_are_refused_before_they_are_read(
    fitted: Fitted, long_table: Path, use: Callable[..., Any]
) -> None:
    tracemalloc.start()
    with pytest.raises(InputError, match=r"t.parquet' has 400,000 rows, which take about .* MiB.* sample .* or split"):
        use(fitted, long_table, machine=Machine(free=8 * MIB, taken=0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


def test_an_explanation_holds_the_rows_of_its_sample_alone(fitted: Fitted, long_table: Path) -> None:
    Sample.of_file(fitted, long_table, rows=10)  # what is imported on the way
    tracemalloc.start()
    sample = Sample.of_file(fitted, long_table, rows=1_000)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sample) == len(sample.y) == 1_000
    np.testing.assert_array_equal(sample.y, 2.0 * sample.columns[0].values)
    assert held < MIB / 4
    assert peak < 4 * MIB  # a few copies of the rows of a block


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_update_holds_the_rows_that_are_scored_alone() -> None:
    columns, rows, chunks = 256, 8_192, 10  # in float64 16 MiB each, of which a fifth is scored
    X = np.random.default_rng(0).normal(size=(60, columns))
    model = DeepBasisRegressor(**SMALL).fit(X, X[:, 0]).fitted_
    taken, x = [], torch.randn(rows, columns, dtype=model.dtype)

    def read() -> Iterator[torch.Tensor]:
        for _ in range(chunks):
            taken.append(Machine.now().taken)
            yield x.clone()

    update(model, NewRows(np.random.default_rng(1).normal(size=rows * chunks), read()))
    assert taken[-1] - taken[1] < 70 * MIB  # all of them would be 128
