"""Categories of many levels: ours beside CatBoost, and beside itself without the effects of levels.

    python benchmarks/categories.py --data-dir DATA    # -> benchmarks/results/categories-cpu.json
    python benchmarks/categories.py --quick            # does it run? nothing written

Made-up tables have shops with an effect each, an input and noise; the map is Puerto Rico's mobile download speeds by
the name of the tile, year and quarter, its logarithm as the target. A split is a draw of rows to fit (a tenth of them
stops CatBoost, which has the same rows) and 5,000 others. "32 levels" is ours, given all but the 31 most frequent
levels as one: what an encoding by indicators alone knows. New levels: the same test rows under a name that nobody has
seen. CatBoost (RMSEWithUncertainty, depth 6, up to 2,000 trees), if it is installed, is given the column as a category.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from _machine import describe, one_line
from deepbasis import DeepBasisRegressor
from deepbasis.gp.metrics import evaluate
from deepbasis.gp.predictive import Gaussian

RESULTS = Path(__file__).parent / "results" / "categories-cpu.json"
TEST_ROWS, SEEDS, MANY = 5_000, 2, 31
NEW = "a name that nobody has seen"

Table = tuple[pd.DataFrame, np.ndarray]


def shops(rows: int, levels: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    effect = rng.normal(size=levels)
    shop = np.minimum(rng.exponential(0.4, rows) * levels, levels - 1).astype(int)  # few are frequent, many are rare
    z = rng.normal(size=rows)
    y = effect[shop] + 0.5 * np.sin(2.0 * z) + 0.3 * rng.normal(size=rows)
    return pd.DataFrame({"level": [f"shop {k}" for k in shop], "z": z}), y


def tiles(folder: Path, rows: int, seed: int) -> Table:
    with np.load(folder / "ookla" / "mobile_puerto_rico.npz") as found:
        some = np.random.default_rng(seed).permutation(len(found["d_kbps"]))[:rows]
        names = [f"{key:016d}"[:14] for key in found["quadkey"][some]]
        when = {"year": found["year"][some], "quarter": found["quarter"][some]}
        y = np.log(found["d_kbps"][some].astype(np.float64))
    return pd.DataFrame({"level": names, **when}), (y - y.mean()) / y.std()


def cases(folder: Path | None) -> Iterator[tuple[str, int, Callable[[int], Table]]]:
    for rows, levels in ((1_500, 300), (10_000, 400), (10_000, 3_000)):
        yield (
            f"{rows:,} rows, {levels:,} shops",
            rows,
            lambda seed, n=rows, k=levels: shops(n + TEST_ROWS, k, seed),  # type: ignore[misc]
        )
    if folder is not None:
        yield "20,000 rows, tiles of Puerto Rico", 20_000, lambda seed: tiles(folder, 20_000 + TEST_ROWS, seed)


def frequent(X: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    kept = set(train["level"].value_counts().index[:MANY])
    return X.assign(level=[name if name in kept else "rest" for name in X["level"]])


def ours(train: Table, tests: list[Table]) -> list[dict[str, float]]:
    model = DeepBasisRegressor(random_state=0).fit(*train)
    return [model.evaluate(*test) for test in tests]


def without(train: Table, tests: list[Table]) -> list[dict[str, float]]:
    return ours((frequent(train[0], train[0]), train[1]), [(frequent(X, train[0]), y) for X, y in tests])


def catboost(train: Table, tests: list[Table]) -> list[dict[str, float]]:
    from catboost import CatBoostRegressor

    X, y = train
    cut = len(y) - len(y) // 10
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", iterations=2_000, depth=6, early_stopping_rounds=100, thread_count=2,
        random_seed=0, verbose=False, allow_writing_files=False, cat_features=["level"],
    )  # fmt: skip
    model.fit(X[:cut], y[:cut], eval_set=(X[cut:], y[cut:]))
    found = []
    for X_test, y_test in tests:
        mean, variance = torch.from_numpy(model.predict(X_test)).double().unbind(1)
        found.append(evaluate(Gaussian(mean, variance), torch.from_numpy(y_test)))
    return found


MODELS = {"deepbasis": ours, "deepbasis, 32 levels": without, "catboost": catboost}


def measured(name: str, rows: int, draw: Callable[[int], Table], seeds: int, models: list[str]) -> Iterator[dict]:
    for seed in range(1, seeds + 1):
        X, y = draw(seed)
        train, test = (X[:rows], y[:rows]), (X[rows:], y[rows:])
        for model in models:
            start = time.perf_counter()
            known, new = MODELS[model](train, [test, (test[0].assign(level=NEW), test[1])])
            seconds = time.perf_counter() - start
            scores = {score: known[score] for score in ("crps", "nll", "rmse", "coverage_95")}
            scores |= {f"new_{score}": new[score] for score in ("crps", "nll", "coverage_95")}
            print(name, seed, model, {key: round(float(value), 4) for key, value in scores.items()}, flush=True)
            yield {"case": name, "seed": seed, "model": model, **scores, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    models = [name for name in MODELS if name != "catboost" or find_spec("catboost")]
    folder = None if arguments.data_dir is None else Path(arguments.data_dir)
    if arguments.quick:
        list(measured("300 rows, 60 shops", 300, lambda seed: shops(400, 60, seed), 1, models))
        return
    found: list[dict[str, Any]] = []
    for case in cases(folder):
        found += measured(*case, SEEDS, models)
        kept = {"machine": describe(), "scores": found}
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")  # a run may be ended early
    table = pd.DataFrame(found).drop(columns="seed").groupby(["case", "model"], sort=False).mean().round(4)
    print(table.reset_index().to_markdown(index=False) if find_spec("tabulate") else table.to_string())
    print(one_line(describe()))


if __name__ == "__main__":
    main()
