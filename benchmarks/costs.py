"""What fits and predictions of the default cost on this machine's CPU: each part is a table of its own.

    python benchmarks/costs.py                             # --fits and --predictions: five minutes on two quiet cores
    python benchmarks/costs.py --suite --data-dir FOLDER   # the training rows of every table, and of the UCI sets
    python benchmarks/costs.py --busy                      # beside a busy loop on every core, and without
    python benchmarks/costs.py --features                  # the look for novelty, and distance="widen"
    python benchmarks/costs.py --quick                     # small, of all but --suite: does it run? nothing written

A part that is measured again replaces the earlier one in benchmarks/results/costs-cpu.json, and the others stay, each
with the machine and the command that made it. Of the suite single rows are replaced. Numbers are medians, with the
lowest and the highest in brackets. What is compared takes turns, so that a busy moment hits everything alike; a ratio
is of the same turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _machine import describe, made
from _quality_data import FULL as SUITE
from _quality_data import PAPER, TABLE, UCI, Task, folds
from _quality_tables import TABLES
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning
from deepbasis.fitting import distance as far
from deepbasis.fitting.fitted import Fitted
from deepbasis.storage import write_atomically

RESULT = Path(__file__).parent / "results" / "costs-cpu.json"
LEVELS = np.linspace(0.05, 0.95, 19)
QUIET, BUSY = "quiet", "busy"
WAYS: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "n_jobs auto": ({}, {}),
    "n_jobs=1": ({"n_jobs": 1}, {}),
    "OMP_WAIT_POLICY=passive": ({}, {"OMP_WAIT_POLICY": "passive"}),
}
"""Arguments of the fit and the environment of its process."""
BUSY_LOOP = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])])\nwhile True: pass"

Call = Callable[[], Any]
Row = dict[str, Any]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Size:
    tables: tuple[Shape, ...]
    map_rows: int
    fits: int
    """Of each table, and of each way to fit."""
    model: Shape
    """The table of the model that predicts."""
    rows: int
    """That are predicted at a time."""
    turns: int
    one_row: int
    """Predictions of one row in a turn."""
    busy: tuple[Shape, ...]
    looked: tuple[int, ...]
    """Rows of the tables that are looked at for novelty."""
    least: float
    """Seconds that a turn of such a prediction takes, at least, by repeating it."""
    short: Mapping[str, Any]
    """Arguments of every fit."""


FULL = Size(
    tables=((500, 10), (10_000, 10)),
    map_rows=33_800,
    fits=3,
    model=(10_000, 10),
    rows=50_000,
    turns=9,
    one_row=200,
    busy=((3_000, 5), (10_000, 10)),
    looked=(20, 200, 2_500, 50_000),
    least=0.2,
    short={},
)
QUICK = Size(
    tables=((100, 3),),
    map_rows=200,
    fits=1,
    model=(300, 3),
    rows=200,
    turns=2,
    one_row=2,
    busy=((450, 3),),
    looked=(20, 200),
    least=0.0,
    short={"epochs": 2, "method": "dbk-silu", "members": 2},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--only", default=",".join((*TABLES, *UCI)), help="tables of the suite, such as yacht,pol")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.threads = 1  # on a busy machine a second thread can cost a hundred times what it gains
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", FitWarning)
    if unknown := set(arguments.only.split(",")) - {*TABLES, *UCI}:
        parser.error(f"--only names {', '.join(sorted(unknown))}, and there are {', '.join((*TABLES, *UCI))}")
    size = QUICK if arguments.quick else FULL
    wanted = [part for part in PARTS if getattr(arguments, part)]
    if not wanted:
        wanted = [part for part in PARTS if part != "suite"] if arguments.quick else ["fits", "predictions"]
    if "suite" in wanted and arguments.data_dir is None:
        parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
    warm_up()
    for part in wanted:
        facts, rows = {**describe(), "threads": arguments.threads}, []
        for row in PARTS[part](size, arguments):
            rows.append(row)
            if not arguments.quick:
                keep(arguments.out, part, facts, rows)  # as it goes
        print(f"\n{markdown(rows)}\n\n{made()}\n", flush=True)


def keep(path: Path, part: str, facts: Row, rows: list[Row]) -> None:
    """With the other parts of the file. The rows of the suite are of several runs, each with its own facts."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if part == "suite":
        new = [{**row, "machine": facts} for row in rows]
        named = {row["table"] for row in new}
        old = [row for row in found.get(part, {"rows": []})["rows"] if row["table"] not in named]
        found[part] = {"rows": [*old, *new]}
    else:
        found[part] = {"machine": facts, "rows": rows}
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())


# ---- what is measured ------------------------------------------------------------------------------------------------


def fits(size: Size, arguments: argparse.Namespace) -> Iterator[Row]:
    """Made-up tables, one after the other in each turn."""
    tables = {f"{rows:,} x {columns}": table(rows, columns) for rows, columns in size.tables}
    tables[f"map, {size.map_rows:,} x 2"] = map_like(size.map_rows)
    calls = {name: partial(fitted, X, y, **size.short) for name, (X, y) in tables.items()}
    for name, values in in_turns(calls, size.fits).items():
        yield {"table": name, "fits": len(values), "seconds": spread(values)}


def suite(size: Size, arguments: argparse.Namespace) -> Iterator[Row]:
    """One fit each: the training rows of split 1 of a table, and of the paper's split of a UCI set."""
    tasks = [*(Task(TABLE, name) for name in TABLES), *(Task(PAPER, name) for name in UCI)]
    for task in (task for task in tasks if task.dataset in arguments.only.split(",")):
        fold = next(folds(task, SUITE.of_seeds(1), Path(arguments.data_dir)))
        X, y = fold.train.x.numpy(), fold.train.y.numpy() if fold.own is None else fold.own.train
        taken = seconds(partial(fitted, X, y, **size.short))
        row = {"table": task.dataset, "rows": len(y), "columns": fold.columns, "seconds": spread([taken])}
        print(f"{row['table']}: {taken:.1f} s", file=sys.stderr, flush=True)
        yield row


def predictions(size: Size, arguments: argparse.Namespace) -> Iterator[Row]:
    model, X = fitted(*table(*size.model), **size.short), table(size.rows, size.model[1], seed=1)[0]
    kinds: dict[str, Callable[[np.ndarray], Any]] = {
        "mean": model.predict,
        "interval": model.predict_interval,
        "19 quantiles": lambda rows: model.predict_quantiles(rows, LEVELS),
    }
    many = in_turns({name: partial(kind, X) for name, kind in kinds.items()}, size.turns, warm=True)
    one = in_turns(
        {name: repeated(partial(kind, X[:1]), size.one_row) for name, kind in kinds.items()}, size.turns, warm=True
    )
    for name in kinds:
        yield {
            "what": name,
            "rows at a time": size.rows,
            "rows a second": spread([size.rows / taken for taken in many[name]]),
            "one row, ms": spread([1e3 * taken / size.one_row for taken in one[name]]),
        }


def busy(size: Size, arguments: argparse.Namespace) -> Iterator[Row]:
    """Each fit in a process of its own; only the fit counts. Ratios are to the quickest way on quiet cores."""
    for rows, columns in size.busy:
        found: dict[tuple[str, str], list[float]] = {(way, load): [] for way in WAYS for load in (QUIET, BUSY)}
        for _ in range(size.fits):
            for load in (QUIET, BUSY):
                with busy_cores(load == BUSY):
                    for way in WAYS:
                        found[way, load].append(alone(rows, columns, way, size, arguments.threads))
        best = min(statistics.median(found[way, QUIET]) for way in WAYS)
        for (way, load), values in found.items():
            ratio = spread([value / best for value in values])
            yield {
                "table": f"{rows:,} x {columns}",
                "way": way,
                "cores": load,
                "seconds": spread(values),
                "of the best": ratio,
            }


def features(size: Size, arguments: argparse.Namespace) -> Iterator[Row]:
    """Ratios to the same without: predictions that do not look for novelty, and a fit with distance="none"."""
    X, y = table(*size.model)
    new = table(max(size.looked), size.model[1], seed=1)[0]
    both = {name: partial(fitted, X, y, distance=name, target="identity", **size.short) for name in ("none", "widen")}
    models: dict[str, DeepBasisRegressor] = {}

    def fit(name: str) -> None:
        models[name] = both[name]()

    spent = in_turns({name: partial(fit, name) for name in both}, size.fits)
    yield compared('distance="widen"', "fit", size.model[0], spent["none"], spent["widen"])
    none, widen = models["none"], models["widen"]
    for count in size.looked:
        some = new[:count]
        for feature, what, without, beside in (
            ("look for novelty", "mean", partial(without_a_look, none.fitted_, some), partial(none.predict, some)),
            ('distance="widen"', "mean", partial(none.predict, some), partial(widen.predict, some)),
            (
                'distance="widen"',
                "interval",
                partial(none.predict_interval, some),
                partial(widen.predict_interval, some),
            ),
        ):
            times = often(beside, size.least)
            calls = {name: repeated(call, times) for name, call in (("without", without), ("with", beside))}
            found = in_turns(calls, size.turns, warm=True)
            each = ([taken / times for taken in found[name]] for name in ("without", "with"))
            yield compared(feature, what, count, *each)


def without_a_look(model: Fitted, X: np.ndarray) -> np.ndarray:
    """`Fitted.mean` of a target that is not warped, less its `Watch`."""
    means = [far.mean(model.distance, model.ensemble, x, model.preprocessor) for x in model.chunks(X)]
    return model.target.inverse(torch.cat(means)).numpy()


def compared(feature: str, what: str, rows: int, without: Sequence[float], beside: Sequence[float]) -> Row:
    ratios = [one / other for one, other in zip(beside, without, strict=True)]
    milliseconds = {
        f"{name}, ms": spread([1e3 * v for v in of]) for name, of in (("without", without), ("with", beside))
    }
    return {"feature": feature, "what": what, "rows": rows, **milliseconds, "ratio": spread(ratios)}


PARTS: Mapping[str, Callable[[Size, argparse.Namespace], Iterator[Row]]] = {
    "fits": fits,
    "suite": suite,
    "predictions": predictions,
    "busy": busy,
    "features": features,
}


# ---- tables, fits and clocks -----------------------------------------------------------------------------------------


def table(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((rows, columns))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draw.standard_t(4, rows)


def map_like(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Places in 40 towns of different sizes, with hills between them and a level for each town."""
    draw = np.random.default_rng(0)
    town, centres = draw.integers(0, 40, rows), draw.uniform(0.0, 10.0, (40, 2))
    X = centres[town] + draw.uniform(0.05, 0.8, 40)[town, None] * draw.standard_normal((rows, 2))
    hills = np.sin(1.5 * X[:, 0]) * np.cos(X[:, 1]) + 0.5 * np.sin(6.0 * X[:, 0] + 4.0 * X[:, 1])
    return X, hills + 0.5 * draw.standard_normal(40)[town] + 0.5 * draw.standard_normal(rows)


def fitted(X: np.ndarray, y: np.ndarray, **changes: Any) -> DeepBasisRegressor:
    return DeepBasisRegressor(**{"random_state": 0, "device": "cpu", **changes}).fit(X, y)


def warm_up() -> None:
    """What the first fit of a process loads is not counted."""
    fitted(*table(100, 3), **QUICK.short)


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def repeated(call: Call, times: int) -> Call:
    def every() -> None:
        for _ in range(times):
            call()

    return every


def often(call: Call, least: float) -> int:
    """How many calls take so many seconds, about."""
    call()
    return max(1, round(least / seconds(call)))


def in_turns(calls: Mapping[str, Call], turns: int, warm: bool = False) -> dict[str, list[float]]:
    """Seconds of each call. With `warm` a first turn does not count; in every second one the order is reversed."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + warm):
        for name in calls if turn % 2 == 0 else reversed(calls):
            taken = seconds(calls[name])
            if turn >= warm:
                spent[name].append(taken)
    return spent


def spread(values: Sequence[float]) -> dict[str, float]:
    numbers = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


@contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """A process that does nothing but count time on every core."""
    cores = sorted(os.sched_getaffinity(0)) if wanted else []
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(core)]) for core in cores]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def alone(rows: int, columns: int, way: str, size: Size, threads: int) -> float:
    """Seconds of a fit in a process of its own."""
    changes, environment = WAYS[way]
    given = {"rows": rows, "columns": columns, "changes": {**size.short, **changes}}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds"
        words = [sys.executable, __file__, "--worker", json.dumps(given), str(out)]
        plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        subprocess.run(words, env={**plain, "OMP_NUM_THREADS": str(threads), **environment}, check=True)
        return float(out.read_text())


def work(given: str, out: Path) -> None:
    warnings.simplefilter("ignore", FitWarning)
    asked = json.loads(given)
    X, y = table(asked["rows"], asked["columns"])
    warm_up()
    out.write_text(str(seconds(partial(fitted, X, y, **asked["changes"]))))


# ---- the table on the screen -----------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([told(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def told(value: Any) -> str:
    if isinstance(value, dict):
        low, middle, high = (number(value[name]) for name in ("low", "median", "high"))
        return middle if low == high else f"{middle} ({low} to {high})"
    return f"{value:,}" if isinstance(value, int) else str(value)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
