"""Few rows, constant columns, wild numbers: there is always an answer."""

import math
from typing import Any

import numpy as np
import pytest

from support.recipes import FEW_STEPS
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("rows", [2, 3, 10, 20])
@pytest.mark.parametrize("method", ["auto", "dbk-silu", "dbk-rbf", "sv-rbf", "dnn"])
def test_few_rows(method: str, rows: int) -> None:
    X, y = easy(rows)
    model = small(method=method, recipe=FEW_STEPS, epochs=2).fit(X, y)
    assert np.isfinite(model.predict(X, return_std=True)).all()
    assert all(math.isfinite(value) for value in model.validation_.values())


def hard_tables() -> dict[str, tuple[Any, Floats]]:
    X, y = easy(25)
    return {
        "one row many times": (np.repeat(X[:1], 25, axis=0), y),
        "two rows many times": (np.repeat(X[:2], 12, axis=0), y[:24]),
        "constant y": (X, np.full(25, 3.0)),
        "constant y, huge": (X, np.full(25, 1e12)),
        "constant X": (np.ones((25, 3)), y),
        "constant both": (np.ones((25, 3)), np.ones(25)),
        "wild X": (np.exp(100 * X), y),
        "huge y": (X, 1e100 * y),
        "tiny y": (X, 1e-100 * y),
        "far y": (X, 1e9 + y),
        "more columns than rows": (np.random.default_rng(0).normal(size=(25, 60)), y),
        "integers": (np.round(10 * X).astype(np.int64), np.round(10 * y).astype(np.int64)),
        "mostly missing": (np.where(np.arange(75).reshape(25, 3) % 12 == 0, X, np.nan) + np.eye(25, 3) * 0, y),
    }


@pytest.mark.parametrize("name", hard_tables())
@pytest.mark.parametrize("method", ["auto", "dbk-silu", "dnn", "sv-rbf"])
def test_hard_tables(method: str, name: str) -> None:
    X, y = hard_tables()[name]
    if name == "mostly missing":
        X[0] = [1.0, 2.0, 3.0]
        X[1] = [2.0, 1.0, 5.0]
    model = small(method=method, recipe=FEW_STEPS, epochs=2, objective="mml" if method == "sv-rbf" else None).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    spread = np.ptp(y.astype(float)) or 1.0
    assert (np.abs(mean - y.mean()) < 10 * spread).all()
