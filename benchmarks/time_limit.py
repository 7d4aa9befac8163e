"""What a fit with a time limit takes, and what it predicts beside the same fit without one.

    python benchmarks/time_limit.py           # this machine's CPU -> benchmarks/results/time-limit.json
    python benchmarks/time_limit.py --quick   # does it run? nothing written

Made-up tables of six number columns: a wave, a line, a product of two columns, and noise of a tenth; 5,000 test rows,
one seed. Each size is fitted without a limit and with each of the limits, by the defaults of `DeepBasisRegressor`.
"taken" is the wall time of `fit` as a share of the limit; the CRPS of the test rows is relative to that without a
limit. Since a busy machine changes both, the load before each fit is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _machine import describe, one_line
from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError, NoveltyWarning
from deepbasis.paper.parts import markdown_table

RESULTS = Path(__file__).parent / "results" / "time-limit.json"
ROWS, LIMITS = (200, 1_500, 3_000, 10_000), (3.0, 6.0, 12.0, 30.0)
TEST_ROWS, COLUMNS, NOISE = 5_000, 6, 0.1

Floats = NDArray[np.float64]


def drawn(rows: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, COLUMNS))
    f = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.3 * X[:, 2] * X[:, 3]
    return X, f + NOISE * rng.normal(size=rows)


def fitted(rows: int, limit: float | None) -> dict[str, Any]:
    """The limit's row of the table; one that is too short has no scores."""
    X, y = drawn(rows, 0)
    row: dict[str, Any] = {"rows": rows, "limit": limit, "load": os.getloadavg()[0]}
    begun = time.monotonic()
    try:
        model = DeepBasisRegressor(device="cpu", random_state=0, time_limit=limit).fit(X, y)
    except InputError as error:
        return {**row, "seconds": time.monotonic() - begun, "error": str(error)}
    row["seconds"] = time.monotonic() - begun
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoveltyWarning)  # of 150 rows
        scores = model.evaluate(*drawn(TEST_ROWS, 1))
    return {**row, "method": model.method_, "crps": scores["crps"], "nll": scores["nll"]}


def in_words(found: list[dict[str, Any]]) -> str:
    free = {row["rows"]: row for row in found if row["limit"] is None}
    lines = []
    for row in found:
        limit, rows = row["limit"], f"{row['rows']:,}"
        taken = "" if limit is None else f"{row['seconds'] / limit:.2f}"
        words = [rows, "none" if limit is None else f"{limit:g} s", f"{row['seconds']:.1f} s", taken]
        if "error" in row:
            lines.append([*words, "too short", "", ""])
        else:
            lines.append([*words, row["method"], f"{row['crps'] / free[row['rows']]['crps']:.3f}", f"{row['nll']:.3f}"])
    return markdown_table(["rows", "limit", "seconds", "taken", "method", "CRPS, relative", "NLL"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--limits", type=float, nargs="+", default=LIMITS)
    parser.add_argument("--beside", default="", help="what else the machine did meanwhile")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    sizes, limits = ((150,), (2.0,)) if arguments.quick else (arguments.rows, arguments.limits)
    fitted(60, None)  # what the first fit of a process loads is not counted
    found = [fitted(rows, limit) for rows in sizes for limit in (None, *limits)]
    print(in_words(found))
    print(one_line(describe()))
    if not arguments.quick:
        facts = {**describe(), "columns": COLUMNS, "test_rows": TEST_ROWS, "beside": arguments.beside}
        arguments.out.write_text(json.dumps({"machine": facts, "fits": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
