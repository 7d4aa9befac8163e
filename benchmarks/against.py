"""This checkout beside another commit of it: are the predictions the same, and how fast is each?

    python benchmarks/against.py COMMIT                    # a table on the screen
    python benchmarks/against.py COMMIT --out FILE.json    # and a file
    python benchmarks/against.py COMMIT --only seconds     # or predictions

The commit's `src/` goes into a temporary folder. Both are run in processes of their own by the same script
(`_against_cases.py`), with one thread each; what is timed runs in turns. Differences are the largest over mean,
standard deviation and quantiles of 50 rows, relative to the target's standard deviation. Seconds are medians with their
quartiles over the rounds; ratios are of the same round, above 1 where this checkout takes less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from _against_cases import ROUNDING, cases
from _machine import describe, one_line

ROOT = Path(__file__).resolve().parent.parent
BEFORE, NOW = "before", "now"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved, of the seconds")
    parser.add_argument("--only", choices=["predictions", "seconds"], default=None)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": describe(), "commit": resolved(arguments.commit)}
    print(f"{report['commit'][:12]} and this checkout ({report['machine']['revision']})")
    with tempfile.TemporaryDirectory() as folder:
        sources = {BEFORE: unpacked(report["commit"], Path(folder)), NOW: ROOT / "src"}
        if arguments.only != "seconds":
            report["predictions"] = compare_predictions(sources, Path(folder))
        if arguments.only != "predictions":
            report["seconds"] = compare_seconds(sources, Path(folder), arguments.rounds)
    print(one_line(report["machine"]))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def resolved(commit: str) -> str:
    words = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{commit} is no commit of {ROOT.name}: see git log")
    return run.stdout.strip()


def unpacked(commit: str, folder: Path) -> Path:
    """The package of a commit, in a folder of its own."""
    archive = folder / "before.tar"
    words = ["git", "-C", str(ROOT), "archive", "--output", str(archive), commit, "src"]
    subprocess.run(words, check=True)
    with tarfile.open(archive) as content:
        content.extractall(folder / BEFORE, filter="data")
    return folder / BEFORE / "src"


def run(source: Path, *words: str) -> float:
    """A Python process that imports the package from `source`: its seconds."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"python {' '.join(words)} with {source} ended with status {done.returncode}:\n{done.stderr}")
    return taken


def worker(source: Path, kind: str, out: Path) -> None:
    run(source, str(ROOT / "benchmarks" / "_against_cases.py"), kind, str(out))


# ---- predictions -----------------------------------------------------------------------------------------------------


def compare_predictions(sources: dict[str, Path], folder: Path) -> list[dict[str, Any]]:
    files = {version: folder / f"{version}.npz" for version in sources}
    with ThreadPoolExecutor() as both:  # at once: nothing is timed here
        list(both.map(lambda version: worker(sources[version], "predictions", files[version]), sources))
    found = {version: dict(np.load(file, allow_pickle=False)) for version, file in files.items()}
    rows = []
    print(f"\n{'predictions':<44} {'difference':>11}  tolerance")
    for case in cases():
        row = compared(found[BEFORE][case.name], found[NOW][case.name], ROUNDING[case.dtype])
        rows.append({"case": case.name, "dtype": case.dtype, **row})
        shown = row["error"] if row["difference"] is None else f"{row['difference']:>11.2e}  {row['tolerance']:.0e}"
        print(f"{case.name:<44} {shown}{'' if row['same'] else '  DIFFERENT'}")
    print(f"{sum(row['same'] for row in rows)} of {len(rows)} the same")
    return rows


def compared(before: np.ndarray, now: np.ndarray, tolerance: float) -> dict[str, Any]:
    row: dict[str, Any] = {"difference": None, "tolerance": tolerance, "error": None}
    errors = [str(one) for one in (before, now) if one.dtype.kind == "U"]
    if errors:
        both = len(errors) == 2 and errors[0] == errors[1]
        return {**row, "error": " / ".join(dict.fromkeys(errors)), "same": both}
    difference = float(np.abs(now - before).max())
    return {**row, "difference": difference, "same": difference <= tolerance}


# ---- seconds ---------------------------------------------------------------------------------------------------------


def compare_seconds(sources: dict[str, Path], folder: Path, rounds: int) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, list[float]]]] = {BEFORE: [], NOW: []}
    for source in sources.values():  # writes the byte code, and warms the disk's cache
        run(source, "-m", "deepbasis", "--help")
        run(source, "-c", "from deepbasis import DeepBasisRegressor")
    for k in range(rounds):
        for version in (BEFORE, NOW) if k % 2 == 0 else (NOW, BEFORE):
            out = folder / "seconds.json"
            worker(sources[version], "seconds", out)
            helped = run(sources[version], "-m", "deepbasis", "--help")
            runs[version].append({**json.loads(out.read_text()), "deepbasis --help": [helped, float("nan")]})
    rows = []
    print(f"\n{'seconds':<28} {'before':>24} {'now':>24} {'ratio':>22}  of processor time")
    for name in runs[NOW][0]:
        sides = {side: [[one[name][clock] for one in runs[side]] for clock in (0, 1)] for side in (BEFORE, NOW)}
        ratio, processor = (
            spread([a / b for a, b in zip(sides[BEFORE][clock], sides[NOW][clock], strict=True)]) for clock in (0, 1)
        )
        before, now = spread(sides[BEFORE][0]), spread(sides[NOW][0])
        known = processor["median"] == processor["median"]
        rows.append({"what": name, BEFORE: before, NOW: now, "ratio": ratio, "processor": processor if known else None})
        print(
            f"{name:<28} {told(before):>24} {told(now):>24} {told(ratio, 2):>22}  {told(processor, 2) if known else ''}"
        )
    return rows


def spread(values: list[float]) -> dict[str, float]:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"median": median(values), "low": low, "high": high}


def told(figure: dict[str, float], digits: int = 4) -> str:
    return f"{figure['median']:.{digits}f} ({figure['low']:.{digits}f}, {figure['high']:.{digits}f})"


if __name__ == "__main__":
    main()
