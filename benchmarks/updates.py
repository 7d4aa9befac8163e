"""What does `update` cost, what does it keep, and how much of what a new fit would gain does it gain?

    python benchmarks/updates.py --data-dir FOLDER       # everything -> results/trust/updates.md
    python benchmarks/updates.py --quick                 # made-up tables, seconds: tables on the screen
    python benchmarks/updates.py --part drift            # or same, or speed, or page: from the files that are there

Speed: rows a second of one update with 200,000 rows of ten columns, by the clock and by the seconds of all cores,
which a busy machine does not change.

Same: a fit, then ten updates in a row, each with a tenth as many rows of the same kind. NLL and coverage of the 95 %
intervals on test rows, before and after. One table is made up, with noise that depends on the input.

Drift: a fit to the first rows of a stream, then its chunks in order. Each chunk is predicted by the model as it was
fitted (stale), by the one that was updated with every chunk before it, and, before some of the chunks, by new fits: to
all rows so far, and to the latest rows, as many as the first fit had. `share` is what the update gains over the stale
model in NLL, over what the better of the two fits gains, on the chunks that these were made for. All have two members.
Of the made-up streams two change the size of effects that are there from the beginning, and the level; in the third an
effect of a column that had none grows, for which the basis was not made. `forget` was chosen on the first stream
alone; the others are reported once for each value.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from _machine import describe, one_line
from _parts import read_parts, write_part
from _trust_shifts import read
from deepbasis import DeepBasisRegressor

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
FILE = RESULTS / "updates.json"
PARTS = ("speed", "same", "drift", "page")
FORGET = (1.0, 0.9, 0.8, 0.7, 0.5)
CHOSEN_ON = "sizes, seed 0"
Table = tuple[pd.DataFrame, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.quick:
        short = {"epochs": 2, "members": 2, "method": "dbk-silu"}
        print(pd.DataFrame([speed(10_000, short)]).to_string())
        print(pd.DataFrame([same("made up", made_up, 300, short)]).to_string())
        print(pd.DataFrame(drift("made up", *stream(600, 200, 3, 0), [2], short)).to_string())
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    wanted = PARTS if arguments.part is None else (arguments.part,)
    if arguments.data_dir is None and {"same", "drift"} & set(wanted):
        parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
    if "speed" in wanted:
        save("speed", [speed(200_000, {"epochs": 2})])
    if "same" in wanted:
        rows: list[dict[str, Any]] = []
        for name in ("made up", "kin40k", "protein"):
            rows.append(same(name, drawn(name, arguments.data_dir), 4_000))
            save("same", rows)
    if "drift" in wanted:
        rows = []
        for name, made in {
            "sizes, seed 0": lambda: stream(3_000, 300, 12, 0),
            "sizes, seed 1": lambda: stream(3_000, 300, 12, 1),
            "pollution by month": lambda: by_month(arguments.data_dir),
            "new effects": lambda: stream(3_000, 300, 12, 2, new_effects=True),
        }.items():
            rows += drift(name, *made(), [5, 11], {"members": 2})
            save("drift", rows)
    (RESULTS / "updates.md").write_text("\n".join(page()))


def save(part: str, rows: Sequence[dict[str, Any]]) -> None:
    write_part(FILE, part, pd.DataFrame(rows))
    print(pd.DataFrame(rows[-1:]).to_string(), flush=True)


# ---- speed -----------------------------------------------------------------------------------------------------------


def speed(rows: int, changes: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows + 10_000, 10))
    y = np.sin(X[:, 0]) + rng.normal(size=len(X))
    model = DeepBasisRegressor(random_state=0, **changes).fit(X[rows:], y[rows:])
    seconds, cores = [], []
    for _ in range(3):
        clock, work = time.perf_counter(), time.process_time()
        model.update(X[:rows], y[:rows])
        seconds.append(time.perf_counter() - clock)
        cores.append(time.process_time() - work)
    return {
        "rows": rows,
        "members": len(model.fitted_.models),
        "rank": model.rank_,
        "rows_a_second": rows / min(seconds),
        "rows_a_core_second": rows / min(cores),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }


# ---- rows of the same kind -------------------------------------------------------------------------------------------


def made_up(rows: int, seed: int, drifted: float = 0.0, new_effects: bool = False) -> Table:
    """Noise that depends on the first column. With `drifted` from 0 to 1 effects change, and noise grows by half."""
    rng = np.random.default_rng(seed)
    a, b, c, d, e = X = rng.uniform(-2, 2, (5, rows))
    effects = np.stack([np.sin(3 * a), b * c, 0.5 * d, np.ones(rows), np.cos(2 * e)])
    first, last = np.array(
        [[1.0, 1.0, 1.0, 0.0, 0.0], [0.5, 1.0, 1.0, 0.0, 1.0] if new_effects else [0.3, 1.5, 0.0, 1.0, 0.0]]
    )
    noise = (1 + 0.5 * drifted) * (0.1 + 0.4 * np.abs(a)) * rng.normal(size=rows)
    y = (first + drifted * (last - first)) @ effects + noise
    return pd.DataFrame(X.T, columns=list("abcde")), y


def drawn(name: str, folder: Path) -> Callable[[int, int], Table]:
    """Rows of a table, never the same for two seeds, up to 12 of them."""
    if name == "made up":
        return made_up
    X, y = read(name, folder)
    order = np.random.default_rng(0).permutation(len(X))
    taken: dict[int, slice] = {}

    def some(rows: int, seed: int) -> Table:
        start = max([one.stop for one in taken.values()], default=0)
        at = order[taken.setdefault(seed, slice(start, start + rows))]
        return X.iloc[at], y[at]

    return some


def same(
    name: str, draw: Callable[[int, int], Table], rows: int, changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    X, y = draw(rows, 0)
    model = DeepBasisRegressor(random_state=0, **(changes or {})).fit(X, y)
    test = draw(rows, 1)
    before = model.evaluate(*test)
    for k in range(10):
        model.update(*draw(rows // 10, 2 + k))
    after = model.evaluate(*test)
    found: dict[str, Any] = {"table": name, "rows": rows, "test_rows": len(test[1])}
    for score in ("nll", "crps", "coverage_95"):
        found |= {f"{score}_before": before[score], f"{score}_after": after[score]}
    return found


# ---- rows that drift -------------------------------------------------------------------------------------------------


def stream(first: int, chunk: int, chunks: int, seed: int, new_effects: bool = False) -> tuple[Table, list[Table]]:
    later = [made_up(chunk, 1000 * seed + 2 + k, (k + 1) / chunks, new_effects) for k in range(chunks)]
    return made_up(first, 1000 * seed + 1), later


def by_month(folder: Path) -> tuple[Table, list[Table]]:
    """The first year, then twelve months. The column of the time is left out: what it would say is the drift."""
    table = pd.read_csv(folder / "tables" / "pollution.csv.gz", parse_dates=["time"])
    month = (table["time"].dt.year - 2010) * 12 + table["time"].dt.month - 1
    hour, season = table["time"].dt.hour, table["time"].dt.dayofyear
    X = table.iloc[:, 1:-1].assign(hour=hour, season=season)
    y = table.iloc[:, -1].to_numpy(float)

    def some(wanted: Any) -> Table:
        return X[wanted].reset_index(drop=True), y[wanted]

    return some(month < 12), [some(month == 12 + k) for k in range(12)]


def drift(
    name: str, first: Table, chunks: Sequence[Table], fits: Sequence[int], changes: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    settings = {"random_state": 0, **(changes or {})}
    rows = len(first[1])

    def fitted(table: Table) -> tuple[DeepBasisRegressor, float]:
        work = time.process_time()
        return DeepBasisRegressor(**settings).fit(*table), time.process_time() - work

    stale, _ = fitted(first)
    refits: dict[int, dict[str, float]] = {}
    seconds = []
    for k in fits:
        known = joined([first, *chunks[:k]])
        refits[k] = {}
        for kind, table in (("all", known), ("latest", (known[0][-rows:], known[1][-rows:]))):
            model, took = fitted(table)
            refits[k][kind] = model.evaluate(*chunks[k])["nll"]
            seconds.append(took)
            print(name, k, kind, refits[k], round(took, 1), flush=True)
    best = min(("all", "latest"), key=lambda kind: np.mean([refits[k][kind] for k in fits]))
    start = stale.fitted_
    before = [stale.evaluate(*chunk) for chunk in chunks]
    for forget in FORGET:
        stale.fitted_, took, scores = start, [], []
        for chunk in chunks:
            scores.append(stale.evaluate(*chunk))
            work = time.process_time()
            stale.update(*chunk, forget=forget)
            took.append(time.process_time() - work)
        at = {what: np.mean([one[k]["nll"] for k in fits]) for what, one in (("stale", before), ("updated", scores))}
        gained = at["stale"] - np.mean([refits[k][best] for k in fits])
        yield {
            "stream": name,
            "forget": forget,
            "nll_stale": at["stale"],
            "nll_updated": at["updated"],
            **{f"nll_fit_{kind}": np.mean([refits[k][kind] for k in fits]) for kind in ("all", "latest")},
            "share": (at["stale"] - at["updated"]) / gained,
            "coverage_stale": np.mean([one["coverage_95"] for one in before]),
            "coverage_updated": np.mean([one["coverage_95"] for one in scores]),
            "nll_updated_all_chunks": np.mean([one["nll"] for one in scores]),
            "nll_stale_all_chunks": np.mean([one["nll"] for one in before]),
            "update_over_fit_seconds": np.mean(took) / np.mean(seconds),
            "rows": rows,
            "chunk_rows": len(chunks[0][1]),
        }


def joined(tables: Sequence[Table]) -> Table:
    return pd.concat([X for X, _ in tables], ignore_index=True), np.concatenate([y for _, y in tables])


# ---- the page --------------------------------------------------------------------------------------------------------


def page() -> Iterator[str]:
    yield from ("# Learning on: what `update` costs, keeps and gains", "")
    yield from ("`python benchmarks/updates.py` makes this page; its docstring says what is compared.", "")
    known = read_parts(FILE)
    titles = {"speed": "Speed", "same": "Ten updates with rows of the same kind", "drift": "Rows that drift"}
    for part, title in titles.items():
        if part in known:
            table = known[part]
            yield from (f"## {title}", "")
            if part == "drift":
                own = table[table["stream"] == CHOSEN_ON]
                forget = own.loc[own["nll_updated_all_chunks"].idxmin(), "forget"]
                yield from (f"Chosen on {CHOSEN_ON}: forget = {forget:g}.", "")
                table = table.drop(columns=["rows", "chunk_rows"])
            yield from lines(table)
            yield ""
    yield from (one_line(describe()), "")


def lines(table: pd.DataFrame) -> Iterator[str]:
    yield f"| {' | '.join(map(str, table.columns))} |"
    yield "| --- " * table.shape[1] + "|"
    for row in table.to_numpy():
        cells = [cell if isinstance(cell, str) else f"{cell:.4f}".rstrip("0").rstrip(".") for cell in row]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
