"""Never worse than a straight line or a constant: drawn tables, on which one of the two is the right model.

    python benchmarks/drawn_tables.py --jobs 14 --minutes 7      # 200 tables -> results/drawn
    python benchmarks/drawn_tables.py --only wide --tables 40    # some of them
    python benchmarks/drawn_tables.py --quick                    # does it run? nothing is kept

Five families, by turns: lines with noise from 1e-3 to 1 of the signal's spread, pure noise, lines with outliers among
the targets, few rows and many columns, and both with heavy tails. 20 to 5,000 rows, 5,000 test rows. A table is good if
the NLL of the default is at most max(.02, 4 / n) nats above the better of a ridge regression (RidgeCV, leave-one-out
variance) and a constant, chosen on these test rows, in their favour. A table that is recorded is not computed again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from _machine import made
from _quality_simple import Line, constant, ridge
from deepbasis import DeepBasisRegressor
from deepbasis.errors import NumericalError
from deepbasis.paper.parts import markdown_table, number
from deepbasis.storage import write_atomically

Floats = NDArray[np.float64]

RESULTS = Path(__file__).resolve().parent.parent / "results" / "drawn"
FAMILIES = ("linear", "noise", "outliers", "wide", "heavy")
TABLES, TEST_ROWS = 200, 5_000
FEWEST, MOST = 20, 5_000
GOOD, GOOD_ROWS = 0.02, 4.0  # nats; nats of all rows


@dataclass(frozen=True)
class Drawn:
    X: Floats
    y: Floats
    X_test: Floats
    y_test: Floats
    noise: float
    """Its standard deviation, that of the signal being 1; of pure noise infinite."""


def family_of(index: int) -> str:
    return FAMILIES[index % len(FAMILIES)]


def draw(index: int, test_rows: int = TEST_ROWS) -> Drawn:
    """Table `index`: it depends on the number alone."""
    rng = np.random.default_rng([20_261, index])
    family = family_of(index)
    rows = round(float(np.exp(rng.uniform(np.log(FEWEST), np.log(MOST)))))
    columns = int(rng.integers(1, 21))
    if family == "wide":  # from half as many columns as rows to three times as many
        rows = round(float(np.exp(rng.uniform(np.log(FEWEST), np.log(200)))))
        columns = max(2, round(rows * float(np.exp(rng.uniform(np.log(0.5), np.log(3.0))))))
    X = rng.standard_normal((rows + test_rows, columns))
    if rng.random() < 0.5:  # columns that depend on each other
        X = X @ (np.eye(columns) + rng.standard_normal((columns, columns)) / np.sqrt(columns))
    slope = rng.standard_normal(columns) * (rng.random(columns) < rng.uniform(0.2, 1.0))
    line = X @ slope
    noise = float(np.exp(rng.uniform(np.log(1e-3), 0.0)))
    if family == "noise" or not line.std() > 0.0:
        line, noise = np.zeros(len(X)), np.inf
    else:
        line = line / line.std()
    left = rng.standard_normal(len(X))
    if family == "outliers":  # two in a hundred, ten times as far away
        left *= np.where(rng.random(len(X)) < 0.02, 10.0, 1.0)
    if family == "heavy":
        left = rng.standard_t(3.0, len(X))
    y = line + (1.0 if np.isinf(noise) else noise) * left
    shift, scale = rng.normal(0.0, 100.0), float(np.exp(rng.uniform(-5.0, 5.0)))
    y = shift + scale * y
    return Drawn(X[:rows], y[:rows], X[rows:], y[rows:], noise)


def compute(index: int) -> dict[str, Any]:
    """The record of a table. NLL in nats a row, of the target in its own units: differences are what counts."""
    torch.set_num_threads(1)
    table = draw(index)
    found: dict[str, Any] = {
        "table": index,
        "family": family_of(index),
        "rows": len(table.y),
        "columns": table.X.shape[1],
        "noise": None if np.isinf(table.noise) else round(table.noise, 6),
    }
    for name, line in (("ridge", ridge(table.X, table.y)), ("constant", constant(table.y))):
        found[name] = line_nll(line, table)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a constant may be as good is what some tables are about
            model = DeepBasisRegressor(random_state=index, device="cpu").fit(table.X, table.y)
        scores = model.evaluate(table.X_test, table.y_test)
        said = model.fitted_.validation
    except NumericalError as error:
        return {**found, "error": str(error)[:200]}
    found |= {"nll": scores["nll"], "coverage": scores["coverage_95"], "held_out_coverage": said["coverage_95"]}
    return {**found, "method": model.method_, "seconds": round(time.perf_counter() - start, 1), "error": None}


def line_nll(line: Line, table: Drawn) -> float:
    squared = np.square(table.y_test - line.predict(table.X_test))
    return float(0.5 * (np.log(2.0 * np.pi * line.variance) + squared / line.variance).mean())


def behind(record: dict[str, Any]) -> float:
    """Nats by which ours is behind the better of the two."""
    return float(record["nll"] - min(record["ridge"], record["constant"]))


def is_good(record: dict[str, Any]) -> bool:
    return record["error"] is None and behind(record) <= max(GOOD, GOOD_ROWS / record["rows"])


# ---- many of them --------------------------------------------------------------------------------------------------


def recorded(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted({line["table"]: line for line in lines}.values(), key=lambda line: line["table"])


def run(file: Path, tables: Sequence[int], jobs: int, seconds: float | None) -> None:
    """A line of the file for each table, as soon as it is there."""
    end = None if seconds is None else time.monotonic() + seconds
    file.parent.mkdir(parents=True, exist_ok=True)
    long_first = sorted(tables, key=lambda index: -len(draw(index, 1).y))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, file.open("a", encoding="utf-8") as out:
        records = pool.imap_unordered(compute, long_first)
        for _ in long_first:
            try:
                record = records.next(None if end is None else max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                print("the time is over", flush=True)
                break
            out.write(json.dumps(record) + "\n")
            out.flush()
            if not is_good(record):
                print(json.dumps(record), flush=True)


def report(records: Sequence[dict[str, Any]], command: str, machine: str) -> str:
    lines = []
    for family in (*FAMILIES, "all"):
        own = [r for r in records if family in (r["family"], "all")]
        usable = [r for r in own if r["error"] is None]
        if not usable:
            continue
        behinds = np.array([behind(r) for r in usable])
        share = sum(map(is_good, own)) / len(own)
        coverage, said = (np.mean([r[key] for r in usable]) for key in ("coverage", "held_out_coverage"))
        lowest = min(r["coverage"] for r in usable)
        middle, high = np.quantile(behinds, [0.5, 0.95])
        numbers = [number(value, digits) for value, digits in ((middle, 4), (high, 4), (behinds.max(), 3))]
        numbers += [number(float(value), 3) for value in (coverage, lowest, said)]
        lines.append([family, str(len(own)), f"{100 * share:.0f} %", *numbers])
    header = ["family", "tables", "good", "behind: median", "95 % of them", "worst", "coverage", "lowest", "said"]
    worst = sorted((r for r in records if r["error"] is None and not is_good(r)), key=behind, reverse=True)
    faults = []
    for r in worst:
        noise = "–" if r["noise"] is None else f"{r['noise']:g}"
        scores = number(behind(r), 3), number(r["coverage"], 3)
        faults.append([str(r["table"]), r["family"], str(r["rows"]), str(r["columns"]), noise, *scores, r["method"]])
    failed = [f"- table {r['table']}: {r['error']}" for r in records if r["error"] is not None]
    text = [
        "# Drawn tables: never worse than a straight line or a constant",
        "",
        "Nats by which the NLL of the default (5,000 test rows) is behind the better of a ridge regression and a "
        "constant, whichever that is on the test rows; below zero it is ahead. Good is at most max(.02, 4 / n) nats. "
        'Coverage is that of 95 % intervals on test rows, the mean and the lowest; "said" is what the rows held out '
        "say about it.",
        "",
        markdown_table(header, lines),
    ]
    if faults:
        columns = ["table", "family", "rows", "columns", "noise", "behind", "coverage", "method"]
        text += ["Tables that are not good:", "", markdown_table(columns, faults)]
    text += ["Fits that broke down:", "", *failed, ""] if failed else []
    seconds = [r["seconds"] for r in records if r["error"] is None]
    text.append(f"`{command}`; {machine}. {sum(seconds):.0f} s of fits, {max(seconds, default=0.0):.0f} s at most.")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=TABLES, help="the first so many")
    parser.add_argument("--only", choices=FAMILIES, action="append", help="a family; may be repeated")
    parser.add_argument("--most-rows", type=int, help="leave out longer tables")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="what is not done then is left for another call")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        wide = [index for index in range(TABLES) if family_of(index) == "wide"][:1]
        print(report([compute(index) for index in wide], "--quick", ""))
        return
    file = given.out / "parts.jsonl"
    there = {record["table"] for record in recorded(file)}
    tables = [index for index in range(given.tables) if given.only is None or family_of(index) in given.only]
    if given.most_rows is not None:
        tables = [index for index in tables if len(draw(index, 1).y) <= given.most_rows]
    missing = [index for index in tables if index not in there]
    if missing:
        run(file, missing, given.jobs, None if given.minutes is None else 60.0 * given.minutes)
    records = recorded(file)
    command = "python benchmarks/drawn_tables.py"
    write_atomically(given.out / "table.md", report(records, command, made()).encode())
    print(f"{len(records)} tables; {sum(map(is_good, records))} good")


if __name__ == "__main__":
    main()
