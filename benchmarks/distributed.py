"""One process against two, on this machine's CPU with one thread each; interleaved rounds, medians with their spread.

    python benchmarks/distributed.py              # -> benchmarks/results/distributed-cpu.json
    python benchmarks/distributed.py --quick      # does it run? nothing written

A step is timed in five ways: one process with the whole batch ("one") and with half of it ("half"), two that share the
batch ("strong") and that have one of this size each ("weak"), and two that have nothing to do with each other
("apart"). What "apart" loses is the machine's; between "half" and "strong" lie the collectives, whose time alone is
measured too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from _machine import describe
from deepbasis.engine import distributed
from deepbasis.engine.batches import Rows
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build

D, H, R = 26, 64, 128
STEPS = 16  # an epoch
CELLS = [("dbk-silu", 1, 1024), ("dbk-rbf", 1, 1024), ("dbk-silu", 1, 200), ("dbk-silu", 8, 1024)]
OUT = Path(__file__).parent / "results" / "distributed-cpu.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds, of which the median is taken")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": describe("cpu"), "steps": [], "agreement": []}
    with tempfile.TemporaryDirectory() as directory:
        crews = [Crew(size, Path(directory) / f"store{size}") for size in (1, 2)]
        try:
            for cell in CELLS[:1] if arguments.quick else CELLS:
                report["steps"].append(measure(*crews, *cell, rounds=2 if arguments.quick else arguments.rounds))
            report["agreement"] = agreement(*crews, quick=arguments.quick)
        finally:
            for crew in crews:
                crew.stop()
    if not arguments.quick:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


class Crew:
    """Processes of one team that do what they are told, all at once, and sleep in between."""

    def __init__(self, size: int, store: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            self.processes.append(context.Process(target=serve, args=(rank, size, str(store), theirs), daemon=True))
            self.processes[-1].start()
            self.pipes.append(mine)

    def do(self, task: str, **options: Any) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((task, options))
        return [pipe.recv() for pipe in self.pipes]

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(60)


def measure(one: Crew, two: Crew, method: str, members: int, batch: int, rounds: int) -> dict[str, Any]:
    ways = {
        "one": (one, batch, True),
        "half": (one, batch // 2, True),
        "strong": (two, batch, True),
        "weak": (two, 2 * batch, True),
        "apart": (two, batch, False),
    }
    for name, (crew, rows, together) in ways.items():
        crew.do("prepare", name=name, method=method, members=members, batch=rows, together=together)
    times: dict[str, list[float]] = {name: [] for name in (*ways, "collectives", "smallest")}
    for _ in range(rounds):
        for name, (crew, _, _) in ways.items():
            times[name].append(max(crew.do("step", name=name)))
        for kind in ("collectives", "smallest"):
            times[kind].append(max(two.do("collective", name="strong", kind=kind)))
    ms = {name: median(values) for name, values in times.items()}
    traffic = two.do("traffic", name="strong")[0]
    row = {"method": method, "members": members, "batch": batch, "ms_per_step": ms, **traffic}
    row["spread"] = {name: spread(values) for name, values in times.items()}
    rows_per_step = {"one": batch, "half": batch // 2, "strong": batch, "weak": 2 * batch, "apart": 2 * batch}
    row["rows_per_second"] = {name: 1e3 * rows * members / ms[name] for name, rows in rows_per_step.items()}
    row["efficiency"] = {
        "strong": ms["one"] / (2.0 * ms["strong"]),
        "weak": ms["one"] / ms["weak"],
        "apart": ms["one"] / ms["apart"],
    }
    print(f"{method} E={members} batch {batch}: " + "  ".join(f"{name} {value:.2f} ms" for name, value in ms.items()))
    said = "  ".join(f"{name} {value:.0%}" for name, value in row["efficiency"].items())
    print(f"  efficiency {said}; {traffic['collectives_per_step']} collectives of {traffic['bytes_per_step']:,} bytes")
    return row


def agreement(one: Crew, two: Crew, quick: bool) -> list[dict[str, Any]]:
    """Trained from streams: two workers have a shard each, so their batches are others than one worker's."""
    size = {"rows": 2_000, "epochs": 2, "members": 2} if quick else {"rows": 20_000, "epochs": 15, "members": 8}
    found = []
    for workers, crew in ((1, one), (2, two)):
        scores = crew.do("stream", **size)[0]
        row = {"workers": workers, **size, "nll": scores, "mean": mean(scores), "sd": stdev(scores)}
        spoken = f"validation NLL {row['mean']:.4f} +- {row['sd']:.4f} over {len(scores)} seeds"
        print(f"{workers} workers from shards: {spoken}")
        found.append(row)
    return found


def spread(values: list[float]) -> list[float]:
    """The quartiles."""
    low, _, high = quantiles(values, n=4) if len(values) > 2 else (min(values), 0.0, max(values))
    return [low, high]


# ---- in the processes --------------------------------------------------------------------------------------------


def serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    worker = Worker(distributed.start())
    while (message := pipe.recv()) is not None:
        task, options = message
        pipe.send(getattr(worker, task)(**options))
    distributed.stop()


@dataclass
class Worker:
    team: Team

    def __post_init__(self) -> None:
        self.waves: dict[str, Wave] = {}

    def prepare(self, name: str, method: str, members: int, batch: int, together: bool) -> None:
        self.waves[name] = Wave(
            lambda member: build(method, D, rank=R, width=H, seed=member.seed),
            list(range(members)),
            [Member(seed=k, alpha=0.1, beta=0.1) for k in range(members)],
            table(STEPS * batch),
            table(100),
            settings_for(method, batch_size=batch, epochs=10_000),
            torch.device("cpu"),
            self.team if together else ALONE,
        )
        self.step(name)

    def step(self, name: str) -> float:
        """Milliseconds, the mean over an epoch; shuffling and validation are not in it."""
        wave = self.waves[name]
        wave.source.start_epoch(0)
        return self.timed(lambda: wave.source.advance() and wave.step(), STEPS)

    def collective(self, name: str, kind: str) -> float:
        """Milliseconds of a step's collectives by themselves, or of the smallest one there is."""
        wave = self.waves[name]
        small = torch.zeros(wave.stack.size)
        leaves = list(wave.descent.leaves.values())

        def all_of_a_step() -> None:
            distributed.global_max(small)  # forwards
            self.team.sum_(torch.stack([small, small]))  # and backwards
            self.team.mean_gradients(leaves)

        return self.timed(all_of_a_step if kind == "collectives" else lambda: self.team.sum_(small), 50)

    def timed(self, work: Callable[[], Any], times: int) -> float:
        self.team.barrier()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.team.barrier()
        return 1e3 * (time.perf_counter() - start) / times

    def traffic(self, name: str) -> dict[str, int]:
        """What a step hands to `all_reduce`."""
        seen: list[int] = []
        plain = dist.all_reduce

        def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
            seen.append(tensor.numel() * tensor.element_size())
            return plain(tensor, *arguments, **options)

        wave = self.waves[name]
        wave.source.start_epoch(0)
        wave.source.advance()
        dist.all_reduce = counted
        try:
            wave.step()
        finally:
            dist.all_reduce = plain
        parameters = sum(leaf.numel() for leaf in wave.stack.leaves.values()) // wave.stack.size
        return {"collectives_per_step": len(seen), "bytes_per_step": sum(seen), "parameters_per_member": parameters}

    def stream(self, rows: int, epochs: int, members: int) -> list[float]:
        """The best validation NLL of each member."""
        data, batch = table(rows), self.team.share(256)

        def open_epoch(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            shard = torch.arange(self.team.rank, rows, self.team.size)
            generator = torch.Generator().manual_seed(1000 * epoch + self.team.rank)
            order = shard[torch.randperm(len(shard), generator=generator)]
            return ((data.x[part], data.y[part]) for part in order.split(batch))

        outcomes = train(
            lambda member: build("dbk-silu", D, rank=32, width=32, seed=member.seed),
            [Member(seed=k, alpha=0.1, beta=0.1) for k in range(members)],
            Stream(open_epoch, rows=rows, columns=D, name="generated"),
            table(2_000),
            settings_for("dbk-silu", batch_size=256, epochs=epochs, learning_rate=3e-3, noise_learning_rate=2e-2),
            team=self.team,
        )
        return [outcome.best_score for outcome in outcomes]


def table(rows: int) -> Rows:
    generator = torch.Generator().manual_seed(rows)
    x = torch.rand(rows, D, generator=generator) * 2.0 - 1.0
    y = torch.sin(3.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(rows, generator=generator)
    return Rows(x, y)


if __name__ == "__main__":
    main()
