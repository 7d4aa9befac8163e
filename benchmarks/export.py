"""onnxruntime beside the Python prediction of the same model: mean, std and five quantiles, one thread each.

    python benchmarks/export.py          # -> results/export
    python benchmarks/export.py --quick  # does it run? nothing is written

The two take turns, and the ratio is the median over the rounds of CPU time: a busy machine slows both. The networks are
the default (4 members, rank 32, 64 inside) of 8 columns, calibrated, after one epoch: only their size counts. The
kernel is what a fit of 500 rows may choose (sv-rbf, with its target warped).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from _machine import describe, one_line
from deepbasis import DeepBasisRegressor
from deepbasis.interop.onnx import LEVELS, export_onnx

RESULTS = Path(__file__).resolve().parent.parent / "results" / "export"


NETWORK = {"members": 4, "inner": 64, "rank": 32, "embedding": "periodic-linear", "method": "dbk-silu", "epochs": 1}
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "network": (3_000, {**NETWORK, "target": "identity"}),
    "network, warp": (3_000, {**NETWORK, "target": "warp"}),
    "kernel, warp": (500, {"method": "sv-rbf", "target": "warp"}),
}


def fitted(rows: int, options: dict[str, Any]) -> DeepBasisRegressor:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 8))
    y = np.exp(np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows))
    return DeepBasisRegressor(random_state=0, **options).fit(X, y)


def seconds(call: Callable[[], Any], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    lines = [
        "# ONNX beside Python",
        "",
        "Milliseconds of CPU for mean, std and five quantiles; the ratio is of rounds.",
        "",
    ]
    lines += [
        "| model | rows | Python | onnxruntime | onnxruntime / Python [quartiles] | largest difference, in std |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("network",) if given.quick else MODELS:
        model = fitted(*MODELS[name])
        with tempfile.TemporaryDirectory() as folder:
            export_onnx(model.fitted_, Path(folder) / "model.onnx")
            session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", options)
        for rows, times in ((1, 100), (100, 20), (4_096, 2)):
            X = np.random.default_rng(1).normal(size=(rows, 8))

            def python(X: np.ndarray = X) -> tuple[Any, ...]:
                found = model.predict_dist(X)  # noqa: B023  is called at once
                return found.mean, found.std, found.quantile(LEVELS)

            def onnx(X: np.ndarray = X) -> list[Any]:
                return session.run(None, {"X": X})  # noqa: B023

            ours, theirs = python(), onnx()
            difference = max(float(np.abs((a.T - b.T) / ours[1]).max()) for a, b in zip(ours, theirs, strict=True))
            rounds = [(seconds(python, times), seconds(onnx, times)) for _ in range(2 if given.quick else 9)]
            low, middle, high = np.quantile([b / a for a, b in rounds], [0.25, 0.5, 0.75])
            a, b = (1e3 * float(np.median(one)) for one in zip(*rounds, strict=True))
            lines.append(
                f"| {name} | {rows} | {a:.3g} | {b:.3g} | {middle:.2f} [{low:.2f}, {high:.2f}] | {difference:.1g} |"
            )
            print(lines[-1], flush=True)
    if not given.quick:
        lines += ["", f"`python benchmarks/export.py`, onnxruntime {onnxruntime.__version__}; {one_line(describe())}"]
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
