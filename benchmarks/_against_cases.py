"""Small generated tables and the fits to compare on them; and what is timed. `against.py` runs it, for each commit.

    PYTHONPATH=SOMEWHERE/src python benchmarks/_against_cases.py predictions OUT.npz
    PYTHONPATH=SOMEWHERE/src python benchmarks/_against_cases.py seconds OUT.json

It only uses what a user of the estimator would, so that it runs on older and newer commits alike.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

METHODS = ("dbk-silu", "dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf", "sv-rbf-linear", "dnn")
EXACT_METHODS = ("dbk-silu", "dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf", "sv-rbf-linear")
"""Those that objective="mml" is tried with."""
LEVELS = (0.05, 0.5, 0.95)
ROUNDING = {"float64": 1e-10, "float32": 1e-4}
"""Differences up to here, relative to the target's standard deviation, are taken for rounding. Training carries a
rounding of float32 (6e-8) further with every step."""


@dataclass(frozen=True)
class Case:
    """A fit and the rows to predict."""

    name: str
    make: Callable[[], dict[str, Any]]
    """X, y, X_new, and perhaps further arguments of `fit`."""
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    """What it is computed in: the tolerance follows from it."""
    streamed: bool = False


def cases() -> Iterator[Case]:
    short = {"members": 2, "epochs": 30}
    smaller = {"members": 2, "epochs": 20, "rank": 24}
    for method in METHODS:
        yield Case(f"{method}, 120 x 3", lambda: numbers(120, 3), {"method": method, **short})
    for method in EXACT_METHODS:
        settings = {"method": method, "objective": "mml", "members": 1, "epochs": 30}
        yield Case(f"{method} mml, 120 x 3", lambda: numbers(120, 3), settings)
    yield Case("default, 120 x 3", lambda: numbers(120, 3))
    yield Case("default, 120 x 3, float32", lambda: numbers(120, 3), smaller, "float32")
    yield Case("default, 300 x 3, float64", lambda: numbers(300, 3), {"dtype": "float64", **smaller})
    yield Case("default, 300 x 3, float32", lambda: numbers(300, 3), smaller, "float32")
    yield Case("default, 150 rows of mixed columns", lambda: mixed(150), smaller)
    yield Case("dbk-silu, 150 rows of mixed columns", lambda: mixed(150), {"method": "dbk-silu", **short})
    yield Case("default, weights", lambda: weighted(120), smaller)
    yield Case("dbk-silu, weights", lambda: weighted(120), {"method": "dbk-silu", **short})
    yield Case("default, groups", lambda: grouped(120), smaller)
    yield Case("default, weights and groups", lambda: {**weighted(120), **grouped(120)}, smaller)
    yield Case("default, validation rows given", lambda: with_validation(120), smaller)
    yield Case("default, 2,500 x 4, float32", lambda: numbers(2_500, 4), {"epochs": 3}, "float32")
    yield Case("default, 2,500 x 4, float64", lambda: numbers(2_500, 4), {"epochs": 3, "dtype": "float64"})
    yield Case("default, a map of 2,500, float32", lambda: a_map(2_500), {"epochs": 3}, "float32")
    yield Case("default, a map of 2,500, float64", lambda: a_map(2_500), {"epochs": 3, "dtype": "float64"})
    yield Case("trend=linear, 120 x 3", lambda: numbers(120, 3), {"trend": "linear", **short})
    yield Case("trend=auto, 2,500 x 3, a line", lambda: line(2_500), {"epochs": 3, "dtype": "float64"})
    yield Case("embedding=periodic, 120 x 3", lambda: numbers(120, 3), {"embedding": "periodic", **short})
    yield Case("recipe=paper, 120 x 3", lambda: numbers(120, 3), {"recipe": "paper", **short})
    # A commit without the argument standardises.
    standard = {"recipe": "paper", "scaling": "standard", **short}
    yield Case("recipe=paper, inputs standardised, 120 x 3", lambda: numbers(120, 3), standard)
    yield Case(
        "recipe=paper, sv-dkl, 120 x 3", lambda: numbers(120, 3), {"recipe": "paper", "method": "sv-dkl", **short}
    )
    yield Case("streamed, 3,000 x 4", lambda: numbers(3_000, 4), {"dtype": "float64", "members": 2}, streamed=True)
    yield Case("streamed, mixed columns", lambda: mixed(3_000), {"dtype": "float64", "members": 2}, streamed=True)


# ---- tables ----------------------------------------------------------------------------------------------------------


def numbers(rows: int, columns: int) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(rows + columns)
    X = rng.uniform(-1.0, 1.0, (rows + 50, columns))
    y = np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, -1] + (0.1 + 0.2 * np.abs(X[:, 0])) * rng.standard_normal(len(X))
    return {"X": X[:rows], "y": 10.0 + 5.0 * y[:rows], "X_new": X[rows:]}


def a_map(rows: int) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(1)
    X = rng.uniform(0.0, 1.0, (rows + 50, 2))
    y = np.sin(12.0 * X[:, 0]) * np.cos(9.0 * X[:, 1]) + 0.2 * rng.standard_normal(len(X))
    return {"X": X[:rows], "y": y[:rows], "X_new": X[rows:]}


def line(rows: int) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(2)
    X = rng.standard_normal((rows + 50, 3))
    y = X @ [3.0, -2.0, 1.0] + 0.3 * rng.standard_normal(len(X))
    return {"X": X[:rows], "y": y[:rows], "X_new": X[rows:]}


def mixed(rows: int) -> dict[str, Any]:
    """A DataFrame of numbers, text, truth values and dates, with cells missing."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(3)
    n = rows + 50
    size, town = rng.lognormal(size=n), rng.choice(["north", "south", "east"], n)
    day = rng.integers(0, 700, n)
    y = np.log(size) + (town == "north") + np.sin(2.0 * np.pi * day / 365.0) + 0.2 * rng.standard_normal(n)
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, size),
            "count": rng.integers(0, 9, n),
            "town": np.where(rng.random(n) < 0.1, None, town),
            "new": rng.random(n) < 0.5,
            "sold": pd.Timestamp("2023-01-01") + pd.to_timedelta(day, unit="D"),
        }
    )
    return {"X": frame.iloc[:rows], "y": y[:rows], "X_new": frame.iloc[rows:]}


def weighted(rows: int) -> dict[str, Any]:
    import numpy as np

    return {**numbers(rows, 3), "sample_weight": np.random.default_rng(4).integers(0, 4, rows).astype(float)}


def grouped(rows: int) -> dict[str, Any]:
    import numpy as np

    return {**numbers(rows, 3), "groups": np.random.default_rng(5).integers(0, 12, rows)}


def with_validation(rows: int) -> dict[str, Any]:
    table = numbers(rows + 40, 3)
    X, y = table.pop("X"), table.pop("y")
    return {**table, "X": X[:rows], "y": y[:rows], "X_val": X[rows:], "y_val": y[rows:]}


# ---- predictions -----------------------------------------------------------------------------------------------------


def predictions(out: Path) -> None:
    """Of every case: mean, std and quantiles [50, 5], in units of the target's standard deviation; or the error."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    found = {}
    for case in cases():
        try:
            found[case.name] = predicted(case)
        except Exception as error:  # a case that one of the two cannot do is told in the table
            found[case.name] = np.array(f"{type(error).__name__}: {error}")
    np.savez(out, **found)


def predicted(case: Case) -> Any:
    import numpy as np

    from deepbasis import DeepBasisRegressor

    table = case.make()
    X_new = table.pop("X_new")
    settings = {"random_state": 0, "device": "cpu", "compile": False, **case.settings}
    if case.dtype == "float32":
        settings = {"dtype": "float32", **settings}
    known = DeepBasisRegressor().get_params()
    model = DeepBasisRegressor(**{name: value for name, value in settings.items() if name in known})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short fits are warned about
        if case.streamed:
            fit_streamed(model, **table)
        else:
            model.fit(**table)
        mean, std = model.predict(X_new, return_std=True)
        every = np.column_stack([mean, std, model.predict_quantiles(X_new, LEVELS)])
    return every / np.std(table["y"])


def fit_streamed(model: Any, X: Any, y: Any) -> None:
    import pandas as pd

    frame = pd.DataFrame(X)
    frame = frame.rename(columns=str).assign(y=y)
    with tempfile.TemporaryDirectory() as folder:
        frame.to_parquet(Path(folder) / "table.parquet", row_group_size=500)
        model.fit_dataset(folder, "y", stream=True, max_steps=30)


# ---- seconds ---------------------------------------------------------------------------------------------------------


@dataclass
class Stopwatch:
    """Seconds of the clock, and of the processor, which says more where others use the machine too."""

    start: tuple[float, float] = (0.0, 0.0)

    def __enter__(self) -> Stopwatch:
        self.start = (time.perf_counter(), time.process_time())
        return self

    def __exit__(self, *error: object) -> None:
        self.wall, self.processor = self.so_far()

    def so_far(self) -> tuple[float, float]:
        return time.perf_counter() - self.start[0], time.process_time() - self.start[1]


def seconds(out: Path) -> None:
    """Each figure as [clock, processor]: imports first, in a process where nothing has been imported yet."""
    found: dict[str, tuple[float, float]] = {}
    with Stopwatch() as watch:
        import deepbasis
    found["import deepbasis"] = (watch.wall, watch.processor)
    with Stopwatch() as rest:
        _ = deepbasis.DeepBasisRegressor
    found["import DeepBasisRegressor"] = (watch.wall + rest.wall, watch.processor + rest.processor)
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    array, frame, larger = numbers(300, 3), mixed(300), numbers(3_000, 5)
    firsts: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("300 x 3", array, {}),
        ("300 x 3, dbk-silu", array, {"method": "dbk-silu", "members": 1}),
        ("300 mixed rows", frame, {}),
    )
    for name, table, settings in firsts:
        found[f"first step, {name}"] = to_first_step(table, settings)
    one = {"method": "dbk-silu", "members": 1, "epochs": 1}
    found["fit of one epoch, 300 x 3"] = middle([once(array, one)[1] for _ in range(5)])
    model, took = once(larger, {"epochs": 5, "members": 2})
    found["fit 3,000 x 5, 5 epochs"] = took
    runs = []
    for _ in range(5):
        with Stopwatch() as watch:
            model.predict(larger["X"], return_std=True)
        runs.append((watch.wall, watch.processor))
    found["predict 3,000 x 5"] = middle(runs)
    out.write_text(json.dumps(found))


def once(table: dict[str, Any], settings: dict[str, Any]) -> tuple[Any, tuple[float, float]]:
    from deepbasis import DeepBasisRegressor

    model = DeepBasisRegressor(random_state=0, device="cpu", compile=False, **settings)
    with Stopwatch() as watch:
        model.fit(table["X"], table["y"])
    return model, (watch.wall, watch.processor)


class FirstStep(BaseException):  # no error: nothing that looks after failed members may catch it
    """Ends a fit at its first backward pass."""


def to_first_step(table: dict[str, Any], settings: dict[str, Any]) -> tuple[float, float]:
    """From `fit` to the first gradient of a training: the median of nine, after one that warms up."""
    import torch

    from deepbasis import DeepBasisRegressor

    watch = Stopwatch()
    taken: list[tuple[float, float]] = []
    backward = torch.Tensor.backward

    def stop(*_: object, **__: object) -> None:
        taken.append(watch.so_far())
        raise FirstStep

    torch.Tensor.backward = stop  # type: ignore[method-assign]  # from outside: the same for every commit
    try:
        for _ in range(10):
            model = DeepBasisRegressor(random_state=0, device="cpu", compile=False, epochs=1, **settings)
            try:
                with watch:
                    model.fit(table["X"], table["y"])
            except FirstStep:
                pass
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
    return middle(taken[1:])


def middle(runs: list[tuple[float, float]]) -> tuple[float, float]:
    from statistics import median

    return median(wall for wall, _ in runs), median(processor for _, processor in runs)


if __name__ == "__main__":
    {"predictions": predictions, "seconds": seconds}[sys.argv[1]](Path(sys.argv[2]))
