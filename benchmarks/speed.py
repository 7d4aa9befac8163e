"""Speed of the engine beside GPyTorch, in one process, interleaved; medians with their spread.

    python benchmarks/speed.py                    # this machine's CPU -> benchmarks/results/speed-cpu.json
    python benchmarks/speed.py --device cuda      # an H200            -> benchmarks/results/speed-h200.json
    python benchmarks/speed.py --quick            # does it run? a minute, nothing written

A "pure step" is gather, forward, backward and optimiser, with the shuffling, validation and selection left out;
`epoch_overhead` is what whole epochs cost over that. Compilation is timed on its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

import _peers
from _machine import describe, peak_mib, reset_peak, resident_mib
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build

D, H, R = 26, 64, 128
STEPS = 32  # an epoch; the last batch is a smaller one
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = parse()
    _peers.quiet()
    device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads)
    bench = Bench(device, rounds=3 if arguments.quick else arguments.rounds, seconds=0.05 if arguments.quick else 0.25)
    report = Report(None if arguments.quick else Path(arguments.out or RESULTS / f"speed-{bench.name}.json"))
    for name in arguments.sections.split(","):
        {"ratios": ratios, "scaling": scaling, "profile": profile}[name](bench, report, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="torch threads on the CPU")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds, of which the median is taken")
    parser.add_argument("--sections", default="ratios,scaling", help="of: ratios, scaling, profile")
    parser.add_argument("--members", default=None, help="of the ratios; 1 on a CPU, 1,80,256 on a GPU by default")
    parser.add_argument("--out", default=None)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


class Report:
    """What was measured, in a file that is rewritten after each figure: a run that is cut short leaves what it had.

    A section that is run again takes the place of the old one; the others stay.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def start(self, machine: dict[str, Any], *tables: str, under: str | None = None) -> None:
        place = self.content if under is None else self.content.setdefault(under, {})
        place |= {"machine": machine, **{table: [] for table in tables}}

    def add(self, table: str, row: dict[str, Any], under: str | None = None) -> None:
        (self.content if under is None else self.content[under])[table].append(row)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.content, indent=1) + "\n")


@dataclass
class Work:
    """Something to time: `run` does `steps` steps; `setup` comes before it, untimed."""

    run: Callable[[], None]
    steps: int
    setup: Callable[[], None] = lambda: None


class Bench:
    """A device, and how to time on it."""

    def __init__(self, device: torch.device, *, rounds: int, seconds: float) -> None:
        self.device, self.rounds, self.seconds = device, rounds, seconds
        gpu = device.type == "cuda"
        self.name = torch.cuda.get_device_name(device).split()[-1].lower() if gpu else "cpu"

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def milliseconds(self, work: Work) -> float:
        """Per step of one run."""
        work.setup()
        self.synchronise()
        start = time.perf_counter()
        work.run()
        self.synchronise()
        return 1e3 * (time.perf_counter() - start) / work.steps

    def repeated(self, step: Callable[[], None]) -> Work:
        """A loop over `step` that takes about `seconds`."""
        for _ in range(3):
            step()
        one = self.milliseconds(Work(step, 1))
        count = max(3, min(200, int(1e3 * self.seconds / max(one, 1e-3))))

        def loop() -> None:
            for _ in range(count):
                step()

        return Work(loop, count)

    def interleaved(self, works: dict[str, Work]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(self.rounds):
            for name, work in works.items():
                times[name].append(self.milliseconds(work))
        return times


class Ours:
    """A wave of members, ready to step."""

    def __init__(
        self,
        bench: Bench,
        method: str,
        *,
        members: int = 1,
        batch: int = 1024,
        precision: str = "float32",
        rank: int = R,
        steps: int = STEPS,
        compiled: bool = False,
    ) -> None:
        self.steps = steps
        self.rows = steps * batch - batch // 3
        start = time.perf_counter()
        self.wave = Wave(
            lambda member: build(method, D, rank=rank, width=H, seed=member.seed),
            list(range(members)),
            [Member(seed=k, alpha=0.1, beta=0.1) for k in range(members)],
            table(self.rows, bench.device),
            table(max(1, self.rows // 8), bench.device),
            settings_for(method, batch_size=batch, precision=precision, epochs=10_000, compile=compiled),
            bench.device,
        )
        self.wave.prepare()
        bench.synchronise()
        self.preparation_seconds = time.perf_counter() - start
        self.epoch()  # warm

    def pure(self) -> Work:
        """An epoch's steps; the shuffling before them is not timed."""

        def steps() -> None:
            with self.wave.training_precision():
                while self.wave.source.advance():
                    self.wave.step()

        return Work(steps, self.steps, setup=lambda: self.wave.source.start_epoch(0))

    def epoch(self) -> None:
        self.wave.train_epoch(lambda: False)
        self.wave.end_epoch()


def table(rows: int, device: torch.device) -> Rows:
    generator = torch.Generator().manual_seed(rows)
    x = torch.rand(rows, D, generator=generator) * 2.0 - 1.0
    y = torch.sin(3.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(rows, generator=generator)
    return Rows(x.to(device), y.to(device))


def ratios(bench: Bench, report: Report, arguments: argparse.Namespace) -> None:
    """Pure steps against GPyTorch's, and whole epochs against pure steps."""
    gpu = bench.device.type == "cuda"
    report.start(describe(bench.device), "rows", "peers")
    sizes = [int(e) for e in (arguments.members or ("1,80,256" if gpu else "1")).split(",")]
    for batch in [1024] if arguments.quick else [1024, 200]:
        peers = peers_at(bench, batch, arguments.quick)
        for members, method in product(sizes, ("dbk-silu", "dbk-rbf")):
            for precision in ("float32", "tf32") if gpu else ("float32",):
                if members > (1 if batch == 200 else 80 if method == "dbk-rbf" else members):
                    continue  # leave out what nobody needs
                for compiled in (False,) if arguments.quick or gpu else (False, True):  # a GPU has kernels of ours
                    ours = Ours(bench, method, members=members, batch=batch, precision=precision, compiled=compiled)
                    what = {"device": bench.name, "method": method, "members": members, "batch": batch}
                    measure(bench, report, ours, {**what, "precision": precision, "compiled": compiled}, peers)
                    del ours
        if gpu and not arguments.quick and batch == 1024:
            batch_mode(bench, report, batch, members=20)


def peers_at(bench: Bench, batch: int, quick: bool) -> dict[str, Work]:
    """GPyTorch as its users write it, and beside it with every trick that it allows."""
    x, y, _ = vars(table(batch, bench.device)).values()
    sizes = {"h": H, "r": R, "n": STEPS * batch}
    works = {name: bench.repeated(_peers.stepper(name, x, y, **sizes)) for name in _peers.OBJECTIVES}
    fused = "gpytorch-ppgp, fused AdamW"
    works[fused] = bench.repeated(_peers.stepper("gpytorch-ppgp", x, y, **sizes, fused=True))
    if not quick:
        step = _peers.stepper("gpytorch-ppgp", x, y, **sizes, fused=True, compile_backbone=True)
        works[f"{fused}, compiled backbone"] = bench.repeated(step)
    return works


def measure(bench: Bench, report: Report, ours: Ours, what: dict[str, Any], peers: dict[str, Work]) -> None:
    times = bench.interleaved({**peers, "pure": ours.pure(), "epoch": Work(ours.epoch, ours.steps)})
    step, members = median(times["pure"]), what["members"]
    overhead = median(times["epoch"]) / step
    for peer in peers:
        row = {
            **what,
            "peer": peer,
            "ms_per_step": step,
            "ms_per_member_step": step / members,
            "peer_ms_per_step": median(times[peer]),
            "ratio": median(times[peer]) / step * members,
            "spread": spread(times["pure"]),
            "peer_spread": spread(times[peer]),
            "steps_per_epoch": ours.steps,
            "epoch_overhead": overhead,
            "preparation_seconds": ours.preparation_seconds,
        }
        report.add("rows", row)
    against = "  ".join(f"x{median(times[p]) / step * members:.1f} {p.removeprefix('gpytorch-')}" for p in peers)
    name = f"{what['method']} E={members} batch {what['batch']} {what['precision']}{' compiled' * what['compiled']}"
    print(f"{name:44} {step:7.3f} ms  {against}  epoch x{overhead:.2f}  {ours.preparation_seconds:.0f} s", flush=True)


def batch_mode(bench: Bench, report: Report, batch: int, members: int) -> None:
    x, y, _ = vars(table(batch, bench.device)).values()
    step = _peers.batched_stepper("gpytorch-ppgp", x, y, h=H, r=R, n=STEPS * batch, members=members)
    times = bench.interleaved({"it": bench.repeated(step)})["it"]
    row = {"peer": "gpytorch-ppgp, its batch mode, fused AdamW", "members": members, "batch": batch}
    step_ms = {"ms_per_step": median(times), "ms_per_member_step": median(times) / members}
    report.add("peers", {**row, **step_ms, "spread": spread(times)})
    print(f"GPyTorch's batch mode, {members} members: {median(times) / members:.3f} ms a member-step", flush=True)


def scaling(bench: Bench, report: Report, arguments: argparse.Namespace) -> None:
    """Time and memory of a step against members, rank and rows; prediction in rows a second."""
    gpu = bench.device.type == "cuda"
    precision = "tf32" if gpu else "float32"
    sizes: dict[str, list[int]] = {
        "members": [1, 2, 4, 8, 16, 32, 64, 128, 256] if gpu else [1, 2, 4, 8, 16],
        "rank": [32, 128, 512, 1024] if gpu else [32, 64, 128, 256],
        "steps": [10, 100, 1000],
    }
    if arguments.quick:
        sizes = {"members": [1, 2], "rank": [32], "steps": [10]}
    report.start(describe(bench.device), "steps", "prediction", under="scaling")
    for axis, method in product(sizes, ("dbk-silu", "dbk-rbf")):
        for value in sizes[axis]:
            memory = reset_memory(bench)
            ours = Ours(bench, method, precision=precision, **{axis: value})  # type: ignore[arg-type]
            times = bench.interleaved({"pure": ours.pure()})["pure"]
            row = {
                "method": method,
                axis: value,
                "rows": ours.rows,
                "ms_per_step": median(times),
                "spread": spread(times),
            }
            row |= {"precision": precision, "compiled": False, "peak_mib": memory()}
            report.add("steps", row, under="scaling")
            print(f"{method} {axis} {value}: {median(times):.3f} ms a step, {memory()} MiB", flush=True)
            del ours
    if not gpu:
        threads(bench, report)
    for method, members in product(("dbk-silu", "dbk-rbf"), (1, 5)):
        models = [build(method, D, rank=R, width=H, seed=k) for k in range(members)]
        ensemble = Ensemble(models, device=bench.device)
        x = table(20_000 if arguments.quick else 500_000, bench.device).x
        work = Work(lambda x=x, ensemble=ensemble: ensemble.predict(x) and None, len(x))
        times = bench.interleaved({"it": work})["it"]
        row = {"method": method, "members": members, "rows_per_second": 1e3 / median(times), "spread": spread(times)}
        report.add("prediction", row, under="scaling")
        print(f"prediction, {method}, {members} members: {1e3 / median(times):.3g} rows a second", flush=True)


def threads(bench: Bench, report: Report) -> None:
    """One member's step with one torch thread and with two."""
    before = torch.get_num_threads()
    for method, batch in product(("dbk-silu", "dbk-rbf"), (1024, 200)):
        ours = Ours(bench, method, batch=batch)
        pure = ours.pure()
        works = {str(count): replace(pure, setup=with_threads(count, pure.setup)) for count in (1, 2)}
        for count, times in bench.interleaved(works).items():
            row = {"method": method, "batch": batch, "threads": int(count), "ms_per_step": median(times)}
            report.add("steps", {**row, "spread": spread(times)}, under="scaling")
            print(f"{method} batch {batch}, {count} threads: {median(times):.3f} ms a step", flush=True)
    torch.set_num_threads(before)


def with_threads(count: int, setup: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        torch.set_num_threads(count)
        setup()

    return both


def reset_memory(bench: Bench) -> Callable[[], float]:
    """The peak from here on, in MiB: of what tensors take on a GPU, of the process on the CPU."""
    gc.collect()
    if bench.device.type != "cuda":
        before, was_reset = resident_mib(), reset_peak()
        return lambda: round(peak_mib(was_reset) - before, 1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    left = torch.cuda.memory_reserved()  # by what ran before: libraries' workspaces
    return lambda: round((torch.cuda.max_memory_reserved() - left) / 2**20, 1)


def profile(bench: Bench, report: Report, arguments: argparse.Namespace) -> None:
    """Where a step's time goes: kernels (or operators) by their share."""
    gpu = bench.device.type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if gpu else torch.profiler.ProfilerActivity.CPU
    report.start(describe(bench.device), "steps", under="profile")
    sizes = [int(e) for e in (arguments.members or ("1,80,256" if gpu else "1")).split(",")]
    for members, method in product(sizes, ("dbk-silu", "dbk-rbf")):
        ours = Ours(bench, method, members=members, precision="tf32" if gpu else "float32", compiled=gpu)
        work = ours.pure()
        work.setup()
        with torch.profiler.profile(activities=[activity]) as recorded:
            work.run()
            bench.synchronise()
        events = recorded.key_averages()
        key = (lambda e: e.self_device_time_total) if gpu else (lambda e: e.self_cpu_time_total)
        total = sum(key(e) for e in events)
        rows = [
            {"name": e.key[:120], "calls_per_step": e.count / work.steps, "share": key(e) / total}
            for e in sorted(events, key=key, reverse=True)[:40]
        ]
        launches = sum(e.count for e in events if key(e) > 0) / work.steps
        busy = total / 1e3 / work.steps
        print(f"\n{method} E={members}: {launches:.0f} kernels or operators a step, {busy:.3f} ms busy", flush=True)
        for row in rows[:25]:
            print(f"  {row['share']:6.1%} {row['calls_per_step']:5.1f}x {row['name']}", flush=True)
        row = {"method": method, "members": members, "launches_per_step": launches, "busy_ms_per_step": busy}
        report.add("steps", {**row, "top": rows}, under="profile")


def spread(times: list[float]) -> list[float]:
    """The quartiles, in ms."""
    low, _, high = quantiles(times, n=4) if len(times) > 2 else (min(times), 0.0, max(times))
    return [low, high]


if __name__ == "__main__":
    main()
