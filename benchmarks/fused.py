"""A training step by the fused kernels: milliseconds, each kernel's share, the error of its gradients, and the floor.

    python benchmarks/fused.py --out benchmarks/results/fused-h200.json     # a GPU; two minutes, most of it compilation
    python benchmarks/fused.py --shares --only members                      # the same by the way of a few members
    python benchmarks/fused.py --only RBF                                   # an RBF basis
    python benchmarks/fused.py --fits --data-dir DATA --out benchmarks/results/fits-h200.json    # whole fits; a minute

Steps are timed as a CUDA graph of four, by events, median of 50. Gradients are compared with autograd's in float64 on
the CPU, the largest relative error of any parameter. The floor is what no version could undercut: the step's
multiplications at the rate of a large product in tf32, or its bytes (parameters, memories and gradients, each read
and written once, and the rows) at the rate of a large copy, both measured here; the larger counts.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

import _machine
from deepbasis import DeepBasisRegressor
from deepbasis.engine.batches import Rows
from deepbasis.engine.fused.ways import Tiling
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build
from deepbasis.gp.model import DeepBasisGP
from deepbasis.paper import data_uci


@dataclass(frozen=True)
class Case:
    members: int = 4
    columns: int = 8
    inner: int = 128
    rank: int = 64
    batch: int = 512
    embedding: str = "periodic-linear"
    optimiser: str = "muon"
    alpha: float = 0.0
    precision: str = "tf32"
    method: str = "dbk-silu"

    @property
    def rbf(self) -> bool:
        return self.method != "dbk-silu"


PAPER = Case(1, 26, 64, 128, 1024, "none", "adamw", 0.01)
RBF = replace(PAPER, method="dbk-rbf")
CASES = {
    "the default: 4 members": Case(),
    "the default in full float32": Case(precision="float32"),
    "one member, the paper's sizes": PAPER,
    "one member in full float32": replace(PAPER, precision="float32"),
    "4 members, the paper's sizes": replace(PAPER, members=4),
    "16 members, the paper's sizes": replace(PAPER, members=16),
    "80 members, the paper's sizes": replace(PAPER, members=80),
    "80 members in full float32": replace(PAPER, members=80, precision="float32"),
    "256 members, the paper's sizes": replace(PAPER, members=256),
    "small tables: 4 members, rank 32": Case(4, 8, 64, 32, 750, "none", "adamw", 0.1),
    "RBF: one member": RBF,
    "RBF: 16 members": replace(RBF, members=16),
    "RBF: 80 members": replace(RBF, members=80),
    "RBF: 80 members in full float32": replace(RBF, members=80, precision="float32"),
    "RBF with its correction: 5 members": replace(RBF, members=5, method="sv-dkl", alpha=0.0),
}


def wave(case: Case, *, fused: bool, precision: str, device: str) -> Wave:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4 * case.batch + 37, case.columns, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(len(x), generator=generator)

    def make(member: Member) -> DeepBasisGP:
        sizes = {"rank": case.rank, "inner": case.inner, "embedding": case.embedding}
        return build(case.method, case.columns, **sizes, noise=0.1, seed=member.seed)

    members = [Member(seed=k, alpha=case.alpha, beta=1.0, noise=0.1) for k in range(case.members)]
    how = {"optimiser": case.optimiser, "schedule": "cosine", "average": 0.99, "selection": "crps", "epochs": 40}
    settings = settings_for(case.method, **how, batch_size=case.batch, precision=precision, fused=fused)
    settings = replace(settings, cuda_graph=False)
    return Wave(make, list(range(case.members)), members, Rows(x, y), Rows(x, y), settings, torch.device(device))


def begin(one: Wave) -> None:
    one.source.start_epoch(0)
    one.source.advance()


def error(case: Case, mine: Wave) -> float:
    reference = wave(case, fused=False, precision="float64", device="cpu")
    begin(reference)
    reference.steps.loss().backward()
    begin(mine)
    mine.step()
    worst = 0.0
    for name, leaf in reference.stack.leaves.items():
        exact, place = reference.stack.with_axis(leaf.grad), mine.fused.layout.places[name]
        found = mine.fused.gradients[:, place : place + exact[0].numel()].double().cpu().view_as(exact)
        worst = max(worst, float((found - exact).norm() / exact.norm()))
    return worst


def milliseconds(step, times: int = 50, steps: int = 4) -> float:
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    found = []
    for _ in range(times):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        found.append(before.elapsed_time(after) / steps)
    return median(found)


def kernels(step) -> dict[str, float]:
    """Microseconds of each, a launch."""
    from torch.profiler import ProfilerActivity, profile

    names = ("prepare", "forward", "backward", "weight_gradients")  # of many members
    names += ("kernel_matrix", "inverse_root", "basis_forward", "basis_backward", "basis_products", "kernel_gradients")
    names += ("tile_forward", "tile_losses", "tile_gradients", "gather", "adamw", "muon")
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    return {e.key: round(e.device_time_total / e.count, 1) for e in seen.key_averages() if e.key in names}


def ceilings() -> tuple[float, float]:
    """Multiply-adds a second in tf32, and bytes a second."""
    torch.backends.cuda.matmul.allow_tf32 = True
    a, big = torch.randn(8192, 8192, device="cuda"), torch.randn(2**28, device="cuda")
    other = torch.empty_like(big)
    products = 8192**3 / (milliseconds(lambda: torch.mm(a, a), 10, 1) / 1e3)
    torch.backends.cuda.matmul.allow_tf32 = False
    return products, 2 * 4 * big.numel() / (milliseconds(lambda: other.copy_(big), 10, 1) / 1e3)


def floor(case: Case, numbers: int, products: float, bandwidth: float) -> tuple[float, str]:
    """Milliseconds, and which of the two it is."""
    h, waves = 64, case.embedding != "none"
    a_row = (1 + 3 * waves) * case.columns * h + waves * 64 * 3 * case.columns
    a_row += 4 * h * case.inner + h * case.rank + (2 if case.rbf else 1) * case.rank**2
    arithmetic = 1e3 * 3 * a_row * case.members * case.batch / products  # forward, and twice as much backward
    memory = 1e3 * 4 * case.members * (9 * numbers + case.batch * case.columns) / bandwidth
    return max((arithmetic, "arithmetic"), (memory, "memory"))


def fits(data_dir: Path | None) -> dict[str, float]:
    """Seconds of whole fits of the default, from Python; the first in this process finds an empty cache of kernels."""
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    X, y = data_uci.load("kin40k", data_dir)
    kept = np.random.default_rng(1).permutation(len(y))[len(y) // 10 :]
    found: dict[str, float] = {}
    for name, rows in [("kin40k", 36_000), ("1,000 rows", 1_000), ("3,000 rows", 3_000), ("10,000 rows", 10_000)]:
        for which in ("first", "second"):
            start = time.perf_counter()
            model = DeepBasisRegressor(random_state=0).fit(X[kept[:rows]], y[kept[:rows]])
            torch.cuda.synchronize()
            found[f"{name}, {which} fit, seconds"] = round(time.perf_counter() - start, 2)
    many, levels = np.repeat(X, 8, 0), np.linspace(0.05, 0.95, 19)
    asked = {
        "means": lambda: model.predict(many),
        "intervals": lambda: model.predict_interval(many),
        "19 quantiles": lambda: model.predict_dist(many).quantile(levels),
    }
    for name, ask in asked.items():
        ask()
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            ask()
            seconds.append(time.perf_counter() - start)
        found[f"{name}, rows a second"] = round(len(many) / median(seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--shares", action="store_true", help="the way of a few members, however many there are")
    parser.add_argument("--fits", action="store_true", help="whole fits and predictions in place of steps")
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(8)
    if arguments.fits:
        whole = {"machine": _machine.describe("cuda"), **fits(arguments.data_dir)}
        print(json.dumps(whole, indent=1))
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(whole, indent=1) + "\n")
        return
    products, bandwidth = ceilings()
    found = {
        "machine": _machine.describe("cuda"),
        "tf32_multiply_adds_a_second": products,
        "bytes_a_second": bandwidth,
        "cases": {},
    }
    for name, case in CASES.items():
        if arguments.only not in name or (arguments.shares and case.rbf):
            continue
        one = wave(case, fused=True, precision=case.precision, device="cuda")
        assert one.fused is not None
        if arguments.shares:
            one.fused.tile(Tiling.chosen(case.members, case.batch))
        one.fused.compile()
        worst = error(case, one)

        def step(one: Wave = one) -> None:
            one.fused.source.numbered().step.zero_()
            one.step()

        least, by = floor(case, one.fused.layout.numbers, products, bandwidth)
        row = {
            **asdict(case),
            "way": type(one.fused.way).__name__.lower(),
            "ms": round(milliseconds(step), 4),
            "us_of_kernels": kernels(step),
            "gradient_error": worst,
        }
        found["cases"][name] = {**row, "floor_ms": round(least, 4), "floor_by": by}
        print(name, row["ms"], row["us_of_kernels"], f"error {worst:.1e}, floor {least:.4f} by {by}", flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
