"""How fast a fitted model predicts on a CPU, beside another commit: mean, 95 % interval and 19 quantiles.

    python benchmarks/predict.py COMMIT                    # a table on the screen
    python benchmarks/predict.py COMMIT --out FILE.json    # and a file

Ten columns; the default model, and one with narrower blocks and fewer basis functions. Both commits run in turns, in
processes of their own. Each trains its models for two epochs, once: what a prediction costs does not depend on how good
it is. Ratios are of the same round, above 1 where this checkout takes less. Processor time counts the work of all
threads; on a busy machine it says more than seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from _machine import describe, one_line
from against import BEFORE, NOW, ROOT, resolved, run, spread, told, unpacked

MODELS: dict[str, dict[str, Any]] = {"default": {}, "narrow": {"inner": 64, "rank": 32}}
ROWS, COLUMNS = 50_000, 10
LEVELS = np.linspace(0.05, 0.95, 19)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": describe(), "commit": resolved(arguments.commit), "threads": arguments.threads}
    print(f"{report['commit'][:12]} and this checkout ({report['machine']['revision']}), {arguments.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        sources = {BEFORE: unpacked(report["commit"], Path(folder)), NOW: ROOT / "src"}
        found: dict[str, list[dict[str, list[float]]]] = {BEFORE: [], NOW: []}
        for k in range(arguments.rounds):
            for version in (BEFORE, NOW) if k % 2 == 0 else (NOW, BEFORE):
                place = Path(folder) / f"models-{version}"
                place.mkdir(exist_ok=True)
                run(sources[version], __file__, "--worker", str(place), str(arguments.threads))
                found[version].append(json.loads((place / "times.json").read_text()))
    report["rows"] = [compared(name, found) for name in found[NOW][0]]
    print(one_line(report["machine"]))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def compared(name: str, found: dict[str, list[dict[str, list[float]]]]) -> dict[str, Any]:
    """Of wall-clock and of processor time: each side in microseconds a row, and their ratios."""
    row: dict[str, Any] = {"what": name}
    for clock, of in enumerate(("wall", "processor")):
        sides = {version: [one[name][clock] for one in runs] for version, runs in found.items()}
        ratio = spread([a / b for a, b in zip(sides[BEFORE], sides[NOW], strict=True)])
        row[of] = {**{version: spread(values) for version, values in sides.items()}, "ratio": ratio}
    shown = (f"{told(row[of][NOW], 1):>26} us, x{told(row[of]['ratio'], 1):<16}" for of in ("wall", "processor"))
    print(f"{name:<28} {'  '.join(shown)} (wall; processor)")
    return row


# ---- in a process of its own -----------------------------------------------------------------------------------------


def work(folder: Path, threads: int) -> None:
    import torch

    from deepbasis import DeepBasisRegressor

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    draw = np.random.default_rng(0)
    X = draw.standard_normal((ROWS, COLUMNS))
    times: dict[str, list[float]] = {}
    for name, settings in MODELS.items():
        file = folder / f"{name}.safetensors"
        if not file.exists():
            y = np.sin(2 * X[:3_000, 0]) + X[:3_000, 1] * X[:3_000, 2] + 0.3 * draw.standard_t(4, 3_000)
            DeepBasisRegressor(epochs=2, random_state=0, **settings).fit(X[:3_000], y).save(file)
        model = DeepBasisRegressor.load(file, device="cpu")
        jobs: dict[str, Callable[[Any], Any]] = {
            "mean": model.predict,
            "interval": model.predict_interval,
            "19 quantiles": lambda rows, model=model: model.predict_quantiles(rows, LEVELS),
        }
        for job, predict in jobs.items():
            times[f"{name}, {job}"] = microseconds(lambda predict=predict: predict(X), 1, ROWS)
            times[f"{name}, {job}, one row"] = microseconds(lambda predict=predict: predict(X[:1]), 100, 1)
    (folder / "times.json").write_text(json.dumps(times))


def microseconds(call: Callable[[], Any], repeats: int, rows: int) -> list[float]:
    """A row, by the clock and of processor time; after a call that is not counted."""
    call()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        call()
    taken = (time.perf_counter() - wall, time.process_time() - processor)
    return [1e6 * seconds / repeats / rows for seconds in taken]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
