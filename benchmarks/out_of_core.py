"""A table larger than the memory that is given: statistics, training and prediction, each in a process of its own.

    python benchmarks/out_of_core.py                  # 50 million rows -> benchmarks/results/out-of-core-cpu.json
    python benchmarks/out_of_core.py --rows 2e6       # fewer
    python benchmarks/out_of_core.py --quick          # does it run? half a minute, nothing written

Recorded are the seconds and the peak memory of each process (the kernel's VmHWM), and how fast streamed steps are
beside steps on resident rows: epochs of one process, of the same batch size, one kind after the other. The table is
generated in a temporary folder, which is removed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from _machine import describe, one_line, peak_mib
from deepbasis.fitting.budget import parse_memory

RESULT = Path(__file__).parent / "results" / "out-of-core-cpu.json"
GROUP_ROWS = 250_000
FILE_ROWS = 2_500_000
MODEL = {"members": 1, "alpha": 0.1, "beta": 0.1, "random_state": 0}


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    if arguments.phase:
        record = PHASES[arguments.phase](arguments)
        Path(arguments.report).write_text(json.dumps({**record, "peak_mib": round(peak_mib(True), 1)}))
        return
    machine = describe("cpu")
    with tempfile.TemporaryDirectory(prefix="deepbasis-", dir=arguments.folder) as folder:
        report = measured(Path(folder), arguments)
    report = {"machine": machine, **report}
    print(one_line(machine))
    if not arguments.quick:
        Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=50e6)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--steps", type=int, default=2_000, help="training steps of the fit")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the reader is one more")
    parser.add_argument("--rounds", type=int, default=9, help="of streamed and resident epochs")
    parser.add_argument("--folder", default=None, help="where the table is generated")
    parser.add_argument("--out", default=str(RESULT))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--phase", default="", help=argparse.SUPPRESS)
    parser.add_argument("--table", default="", help=argparse.SUPPRESS)
    parser.add_argument("--report", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.steps, arguments.rounds = min(arguments.rows, 300_000), 100, 3
    return arguments


def measured(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    table = folder / "table"
    start = time.perf_counter()
    size = generate(table, int(arguments.rows), 2 if arguments.quick else None)
    print(f"{int(arguments.rows):,} rows, {size / 2**30:.2f} GiB, in {time.perf_counter() - start:.0f} s", flush=True)
    limit = (parse_memory(arguments.memory) or 0) / 2**20
    report: dict[str, Any] = {"rows": int(arguments.rows), "columns": 10, "bytes": size, "limit_mib": limit}
    for phase in PHASES:
        words = [sys.executable, __file__, *sys.argv[1:], "--phase", phase, "--table", str(table)]
        subprocess.run([*words, "--report", str(folder / phase)], check=True)
        record = json.loads((folder / phase).read_text())
        if phase != "steps":  # which holds resident rows too
            record["within_limit"] = record["peak_mib"] <= limit
        report[phase] = record
        print(f"{phase}: {json.dumps(record)}", flush=True)
    return report


def generate(folder: Path, rows: int, files: int | None) -> int:
    """Eight numbers, a text and a target that depends on them, 2.5 million rows in a file; the size in bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    files = files or max(4, rows // FILE_ROWS)
    for k in range(files):
        rng = np.random.default_rng([7, k])
        left = rows * (k + 1) // files - rows * k // files
        writer = None
        while left:
            n = min(GROUP_ROWS, left)
            left -= n
            X = rng.standard_normal((8, n), dtype=np.float32)
            shop = rng.integers(0, 4, n)
            y = np.sin(2 * X[0]) + X[1] * X[2] + 0.3 * shop + 0.3 * rng.standard_normal(n, dtype=np.float32)
            columns = {f"x{j}": X[j] for j in range(8)}
            text = pa.DictionaryArray.from_arrays(pa.array(shop, pa.int8()), ["a", "b", "c", "d"])
            group = pa.table({**columns, "shop": text, "y": y.astype(np.float32)})
            writer = writer or parquet.ParquetWriter(folder / f"part-{k:03d}.parquet", group.schema)
            writer.write_table(group, row_group_size=GROUP_ROWS)
        if writer is not None:
            writer.close()
    return sum(path.stat().st_size for path in folder.iterdir())


# ---- what each process does ------------------------------------------------------------------------------------------


def statistics(arguments: argparse.Namespace) -> dict[str, Any]:
    """The first pass alone."""
    from deepbasis.fitting.streams import take_survey
    from deepbasis.tables.roles import Roles
    from deepbasis.tables.source import Source

    start = time.perf_counter()
    source = Source.open(arguments.table)
    survey = take_survey(source, Roles.of(source, "y"), 0.1, parse_memory(arguments.memory))
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 2),
        "rows_per_second": round(source.rows / seconds),
        "sampled": len(survey.statistics.hashes),
        "held_out": len(survey.held),
    }


def fit(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `deepbasis fit TABLE --memory 2GiB` does: statistics, training, validation, a model on disk."""
    from deepbasis.fitting.files import prepare_files
    from deepbasis.fitting.spec import RunOptions, Spec

    steps, batch = arguments.steps, arguments.batch_size
    start = time.perf_counter()
    options = RunOptions(memory=arguments.memory, stream=True, max_steps=steps)
    _, run = prepare_files(Spec(**MODEL, batch_size=batch, patience=steps), arguments.table, "y", options=options)
    prepared = time.perf_counter()
    fitted = run()
    training = time.perf_counter() - prepared
    fitted.save(model_of(arguments))
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "training_seconds": round(training, 2),
        "steps": steps,
        "batch": batch,
        "validations": len(fitted.history[0]["validation"]),
        "training_rows_per_second": round(steps * batch / training),
        "rmse": fitted.validation["rmse"],
        "coverage_95": fitted.validation["coverage_95"],
    }


def predict(arguments: argparse.Namespace) -> dict[str, Any]:
    """`deepbasis predict MODEL TABLE --memory 2GiB`, and again: the second run finds every part."""
    out = str(Path(arguments.table).parent / "predictions")
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        command("predict", model_of(arguments), arguments.table, "--out", out, arguments=arguments)
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": round(seconds[0], 2),
        "rows_per_second": round(arguments.rows / seconds[0]),
        "again_seconds": round(seconds[1], 2),
    }


def steps(arguments: argparse.Namespace) -> dict[str, Any]:
    """Epochs of a stream and of resident rows in turn, the same model and batch size; validation left out."""
    from deepbasis.engine.batches import Rows
    from deepbasis.engine.members import Member
    from deepbasis.engine.wave import Wave
    from deepbasis.fitting.decide import make_plan
    from deepbasis.fitting.spec import Spec
    from deepbasis.fitting.start import builder
    from deepbasis.fitting.streams import StreamData
    from deepbasis.tables.roles import Roles
    from deepbasis.tables.source import Source

    spec, source = Spec(**MODEL, batch_size=arguments.batch_size), Source.open(arguments.table)
    data = StreamData.of(spec, source, Roles.of(source, "y"), None, parse_memory(arguments.memory))
    plan = make_plan(spec, data.facts(spec), max_steps=20 * (40 if arguments.quick else 400))
    settings, width = plan.candidates[0].settings, data.preprocessor.width
    validation = data.validation(settings.dtype)
    room, build = data.room(plan, validation), builder(plan.candidates[0].architecture, width)
    times: dict[str, list[float]] = {"resident": [], "streamed": []}
    with data.survey.stream(data.encoder(settings.dtype), plan, room.sizes, 0) as stream:
        x, y = (torch.cat(parts) for parts in zip(*stream.open_epoch(0), strict=True))
        waves = {
            name: Wave(build, [0], [Member()], rows, validation, settings, torch.device(plan.device))
            for name, rows in (("resident", Rows(x, y)), ("streamed", stream))
        }
        for turn in range(arguments.rounds + 1):
            for name, wave in waves.items():
                wave.state.epoch = turn
                start = time.perf_counter()
                wave.train_epoch(lambda: False)
                if turn:  # the first warms up
                    times[name].append(1e3 * (time.perf_counter() - start) / wave.steps_this_epoch)
    return {
        "batch": arguments.batch_size,
        "steps_an_epoch": waves["streamed"].steps_this_epoch,
        "rounds": arguments.rounds,
        "block_rows": room.sizes.block_rows,
        "buffer_rows": room.sizes.buffer_rows,
        **{f"{name}_ms_per_step": round(median(ms), 3) for name, ms in times.items()},
        **{f"{name}_spread": [round(min(ms), 3), round(max(ms), 3)] for name, ms in times.items()},
        "streamed_over_resident_speed": round(
            median(a / b for a, b in zip(times["resident"], times["streamed"], strict=True)), 3
        ),
    }


PHASES = {"statistics": statistics, "fit": fit, "predict": predict, "steps": steps}


def command(*words: str, arguments: argparse.Namespace) -> None:
    """The command itself, in this process."""
    from deepbasis.cli import app

    status = app([*words, "--memory", arguments.memory], standalone_mode=False)
    if status:
        raise SystemExit(status)


def model_of(arguments: argparse.Namespace) -> str:
    return str(Path(arguments.table).parent / "model.safetensors")


if __name__ == "__main__":
    main()
