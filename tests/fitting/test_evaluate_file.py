"""Scores of one file are those of the same rows in memory, also for a model that knows its columns by place."""

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor
from deepbasis.fitting.files import evaluate_file


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", [["a", "b"], None])
def test_scores_of_a_file_are_those_of_its_rows(tmp_path, names):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0] + 0.1 * X[:, 1]
    table = X if names is None else pd.DataFrame(X, columns=names)
    model = DeepBasisRegressor(method="dbk-silu", epochs=2, members=1, rank=4, width=4, random_state=0).fit(table, y)
    pd.DataFrame(X, columns=["a", "b"]).assign(y=y).to_parquet(tmp_path / "t.parquet", index=False)
    rows, scores = evaluate_file(model.fitted_, tmp_path / "t.parquet", "y")
    assert rows == 60
    assert scores == pytest.approx(model.evaluate(table, y), rel=1e-9)
