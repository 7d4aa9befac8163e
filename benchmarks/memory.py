"""Is `--memory` kept? The peak of each command's memory on tables that make it hard.

    python benchmarks/memory.py                     # every table -> results/memory/memory.json
    python benchmarks/memory.py texts small-files   # some of them, measured again
    python benchmarks/memory.py --quick             # does it run? four small tables, nothing written

Each command is a process of its own. Its peak is the kernel's high-water mark (VmHWM), the interpreter and torch
included. A limit is kept if the peak is within 5 % of it, and the run was not refused, or within 15 seconds of a
processor's time (imports take half of them). The tables are generated in a temporary folder, which is removed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from _machine import describe, one_line
from deepbasis.fitting.budget import parse_memory

RESULT = Path(__file__).parent.parent / "results" / "memory" / "memory.json"
TOLERANCE = 1.05
REFUSED_WITHIN = 15.0  # seconds of a processor: other work may go on beside it
FIT = ["--target", "y", "--members", "2", "--max-steps", "40", "--seed", "0", "--quiet"]


@dataclass(frozen=True)
class Case:
    """A table and the commands that are run on it, one after the other."""

    what: str
    write: Callable[[Path, float], str]
    """Writes the table into a folder, `share` of its rows, and gives its name."""
    memory: str
    options: tuple[str, ...] = ()
    """Of the fit."""
    predict: str = ""
    """The name of what is predicted to; nothing is predicted without one."""


# ---- tables ----------------------------------------------------------------------------------------------------------


def numbers(rows: int, columns: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((columns, rows), dtype=np.float32)
    y = np.sin(2 * X[0]) + X[1 % columns] + 0.3 * rng.standard_normal(rows, dtype=np.float32)
    return {**{f"x{k}": column for k, column in enumerate(X)}, "y": y.astype(np.float32)}


def wide(folder: Path, share: float) -> str:
    parquet.write_table(pa.table(numbers(20_000, int(5_000 * share))), folder / "wide.parquet", row_group_size=5_000)
    return "wide.parquet"


def wide_csv(folder: Path, share: float) -> str:
    arrow_csv.write_csv(pa.table(numbers(int(30_000 * share), 500)), folder / "wide.csv")
    return "wide.csv"


def texts(folder: Path, share: float, distinct: int = 20, length: int = 20_000, columns: int = 1) -> str:
    rows = int(400_000 * share)
    rng = np.random.default_rng(0)
    table = numbers(rows, 2)
    for k in range(columns):
        words = [f"{rng.integers(2**62):x}".ljust(length, "abcdefg "[k]) for _ in range(distinct)]
        codes = pa.array(rng.integers(0, distinct, rows), pa.int32())
        table[f"t{k}"] = pa.DictionaryArray.from_arrays(codes, words)
    parquet.write_table(pa.table(table), folder / "texts.parquet", row_group_size=100_000, store_schema=False)
    return "texts.parquet"


def text_heavy(folder: Path, share: float) -> str:
    return texts(folder, share / 2, distinct=800, length=300, columns=8)


def packed_parquet(folder: Path, share: float) -> str:
    """Values that hardly ever change take no room in the file."""
    group = 1_000_000
    with parquet.ParquetWriter(folder / "packed.parquet", pa.schema({"x0": pa.float64(), "y": pa.float64()})) as writer:
        for k in range(int(60 * share)):
            steps = np.repeat(np.arange(4.0) + k, group // 4)
            writer.write_table(pa.table({"x0": steps, "y": steps**2}), row_group_size=group)
    return "packed.parquet"


def packed_csv(folder: Path, share: float) -> str:
    lines = b"".join(b"%d.000000000000000000,%d.00000000000000000\n" % (k, k % 7) for k in range(64)) * 1024
    with gzip.open(folder / "packed.csv.gz", "wb", 9) as file:
        file.write(b"x0,y\n")
        for _ in range(int(2e9 * share / len(lines))):
            file.write(lines)
    return "packed.csv.gz"


def ordinary(folder: Path, share: float) -> str:
    table = pa.table(numbers(int(300_000 * share), 10))
    colours = np.random.default_rng(1).choice(["red", "green", "blue"], len(table))
    parquet.write_table(table.append_column("colour", [colours]), folder / "ordinary.parquet")
    return "ordinary.parquet"


def long_csv(folder: Path, share: float) -> str:
    table = pa.table(numbers(int(1_500_000 * share), 6))
    arrow_csv.write_csv(table, folder / "long.csv")
    return "long.csv"


def small_files(folder: Path, share: float) -> str:
    (folder / "many").mkdir()
    whole = pa.table(numbers(int(2_000 * share) * 100, 20))
    for k in range(0, len(whole), 100):
        parquet.write_table(whole.slice(k, 100), folder / "many" / f"{k:07d}.parquet")
    return "many"


CASES = {
    "wide": Case("20,000 rows of 5,000 numbers, Parquet, streamed", wide, "1GiB", ("--stream",)),
    "wide-roomy": Case("the same, with the memory that it asks for", wide, "1280MiB", ("--stream",)),
    "texts": Case("20 distinct texts of 20 kB in 400,000 rows, Parquet", texts, "700MiB", (), "p.csv"),
    "packed-parquet": Case("60 million rows in 1 MB of Parquet", packed_parquet, "700MiB"),
    "packed-csv": Case("2 GB of CSV in 3 MB of gzip", packed_csv, "700MiB"),
    "wide-csv": Case("30,000 rows of 500 numbers, CSV", wide_csv, "700MiB", (), "p.csv"),
    "text-heavy": Case("eight columns of 800 texts of 300 bytes, 200,000 rows", text_heavy, "700MiB", (), "p.parquet"),
    "small-files": Case("2,000 files of 100 rows of 20 numbers", small_files, "700MiB", (), "p"),
    "ordinary": Case("300,000 rows of ten numbers and a text, Parquet", ordinary, "1GiB", (), "p.parquet"),
    "long-csv": Case("1.5 million rows of six numbers, CSV, predicted to CSV", long_csv, "700MiB", (), "p.csv"),
}
QUICK = ("texts", "packed-parquet", "small-files", "long-csv")


# ---- measurement -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TABLE", help=f"of {', '.join(CASES)}; by default all")
    parser.add_argument("--folder", default=None, help="where the tables are generated")
    parser.add_argument("--share", type=float, default=1.0, help="of the rows, or of the columns of the widest table")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    share = 0.02 if arguments.quick else arguments.share
    records = []
    for name in arguments.names or (QUICK if arguments.quick else CASES):
        with tempfile.TemporaryDirectory(prefix="deepbasis-", dir=arguments.folder) as folder:
            for record in measured(name, CASES[name], Path(folder), share):
                print(json.dumps(record), flush=True)
                records.append(record)
    machine = describe("cpu")
    print(one_line(machine))
    if share == 1.0:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
        again = {record["table"] for record in records}
        runs = [*(record for record in before if record["table"] not in again), *records]
        runs.sort(key=lambda record: list(CASES).index(record["table"]))
        RESULT.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")
    if not all(record["kept"] for record in records):
        sys.exit(1)


def measured(name: str, case: Case, folder: Path, share: float) -> list[dict[str, Any]]:
    writer = f"import memory; memory.CASES[{name!r}].write(memory.Path({str(folder)!r}), {share})"
    subprocess.run([sys.executable, "-c", writer], cwd=Path(__file__).parent, check=True)
    (table,) = map(str, folder.iterdir())
    model = str(folder / "model.safetensors")
    commands = [["fit", table, *FIT, *case.options, "--out", model]]
    if case.predict:
        commands.append(["predict", model, table, "--out", str(folder / case.predict)])
    records = []
    for command in commands:
        record = {"table": name, "what": case.what, "command": command[0], **run([*command, "--memory", case.memory])}
        limit = (parse_memory(case.memory) or 0) / 2**20
        refused = record["status"] == 2 and record["processor_seconds"] <= REFUSED_WITHIN
        kept = record["peak_mib"] <= TOLERANCE * limit and (record["status"] == 0 or refused)
        records.append({**record, "limit_mib": limit, "kept": kept})
        if record["status"]:
            break
    shutil.rmtree(folder)
    folder.mkdir()
    return records


def run(words: list[str]) -> dict[str, Any]:
    """Status, seconds, and the high-water mark: as last seen from outside, every 20 ms."""
    start, peak, used = time.perf_counter(), 0.0, processor_seconds()
    process = subprocess.Popen([sys.executable, "-m", "deepbasis", *words], stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        time.sleep(0.02)
    message = (process.stderr.read() if process.stderr else "").strip().splitlines()
    seconds = round(time.perf_counter() - start, 1)
    busy = round(processor_seconds() - used, 1)
    said = {"said": message[-1][:300]} if message and process.returncode else {}
    return {
        "status": process.returncode,
        "seconds": seconds,
        "processor_seconds": busy,
        "peak_mib": round(peak, 1),
        **said,
    }


def processor_seconds() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def high_water(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    except (OSError, StopIteration):  # it has just ended
        return 0.0


if __name__ == "__main__":
    main()
