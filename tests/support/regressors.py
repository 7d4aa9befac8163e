"""Small tables, and a regressor that fits them in a fraction of a second."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor

Floats = NDArray[np.float64]


def small(**changes: Any) -> DeepBasisRegressor:
    """A regressor that fits in a fraction of a second."""
    settings = {
        "method": "dbk-silu",
        "members": 2,
        "validation_fraction": 0.1,
        "epochs": 5,
        "rank": 8,
        "width": 8,
        "blocks": 1,
        "embedding": "none",
        "alpha": 0.1,
        "beta": 0.1,
        "random_state": 0,
        "device": "cpu",
    }
    return DeepBasisRegressor(**{**settings, **changes})


def easy(rows: int = 120, seed: int = 0, noise: float = 0.1) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + noise * rng.normal(size=rows)


def mixed(rows: int = 120, seed: int = 0) -> tuple[pd.DataFrame, Floats]:
    """Numbers, text, truth values and dates, all with holes, one constant, one wild."""
    rng = np.random.default_rng(seed)
    color = rng.choice(["red", "blue", "green"], rows)
    size = rng.normal(size=rows)
    table = pd.DataFrame(
        {
            "size": size,
            "color": pd.Series(color, dtype=object),
            "sold": rng.random(rows) < 0.5,
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 500, rows), unit="D"),
            "wild": np.exp(20 * rng.normal(size=rows)),
            "same": 7,
        }
    )
    for position, column in enumerate(["size", "color", "when"]):
        table.loc[table.index[position::11], column] = None
    return table, np.where(color == "red", 3.0, 0.0) + 0.3 * size + 0.05 * rng.normal(size=rows)


@dataclass(frozen=True)
class Fitted:
    """Data and models that tests only look at."""

    X: Floats
    y: Floats
    table: pd.DataFrame
    y_table: Floats
    model: DeepBasisRegressor
    of_table: DeepBasisRegressor


def close(a: Any, b: Any, rtol: float = 1e-9, atol: float = 0.0) -> None:
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
