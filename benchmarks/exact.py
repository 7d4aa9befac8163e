"""Exact inference: time and memory of one likelihood and its gradient against the number of rows, on the CPU.

Two claims are checked: the time per row stays within 20 % of its value at 10,000 rows (linear cost), and the memory on
top of the data stays below 1 GiB at a million rows. Beside it stands the dense exact GP of GPyTorch (RBF kernel,
Cholesky) at the sizes that it can still do: another model, so compare how the two grow, not row by row.

    python benchmarks/exact.py           # full size; writes benchmarks/results/exact-cpu.json
    python benchmarks/exact.py --quick   # seconds, writes nothing

Times are medians over repetitions that go round all sizes, so that a busy moment hits every size alike. Memory is the
peak resident set minus the resident set just before, each in a process of its own, with the data made beforehand.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import _machine
from deepbasis import DeepBasisGP, build
from deepbasis.gp import exact
from deepbasis.storage import write_atomically

D, H, R = 26, 64, 128
RESULT = Path(__file__).parent / "results" / "exact-cpu.json"
LINEAR_WITHIN = 0.20
MEMORY_BELOW_MIB = 1024.0
SHORTEST = 100_000
"""Smaller sizes are evaluated several times in a row, to time about as many rows."""


@dataclass(frozen=True)
class Size:
    rows: tuple[int, ...]
    repetitions: int
    chunks: tuple[int, ...]
    chunk_rows: int
    """Rows on which the chunk sizes are compared."""
    dense_rows: tuple[int, ...]
    dense_repetitions: int
    memory_rows: tuple[int, ...]
    dense_memory_rows: tuple[int, ...]


FULL = Size(
    rows=(10_000, 30_000, 100_000, 300_000, 1_000_000),
    repetitions=9,
    chunks=(512, 1024, 2048, 4096, 8192, 16384, 32768),
    chunk_rows=100_000,
    dense_rows=(500, 1_000, 2_000, 4_000, 8_000),
    dense_repetitions=5,
    memory_rows=(10_000, 100_000, 1_000_000),
    dense_memory_rows=(1_000, 2_000, 4_000, 8_000),
)
QUICK = Size(
    rows=(5_000, 10_000),
    repetitions=3,
    chunks=(1024, 4096),
    chunk_rows=5_000,
    dense_rows=(250, 500),
    dense_repetitions=2,
    memory_rows=(10_000,),
    dense_memory_rows=(),
)


def data(n: int) -> tuple[Tensor, Tensor]:
    """Inputs and a noisy target, made in place: nothing of the making is left in memory."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, D, generator=generator).mul_(2.0).sub_(1.0)
    y = torch.randn(n, generator=generator).mul_(0.1).add_(x[:, 0]).add_(x[:, 1])
    return x, y


def low_rank(x: Tensor, y: Tensor, chunk: int) -> Callable[[], None]:
    """One evaluation of Eq. 11 and of its gradient in every parameter, network in float32."""
    model: DeepBasisGP = build("dbk-silu", D, rank=R, width=H, seed=0)

    def chunks() -> Iterator[tuple[Tensor, Tensor]]:
        return zip(x.split(chunk), y.split(chunk), strict=True)

    def evaluate() -> None:
        model.zero_grad(set_to_none=True)
        exact.accumulate_gradient(model, chunks)

    return evaluate


def dense(x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same of GPyTorch's exact GP: RBF kernel with ARD, Cholesky, float32."""
    import gpytorch

    class ExactGP(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=D))

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 1e-2
    model = ExactGP(likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def evaluate() -> None:
        model.zero_grad(set_to_none=True)
        with gpytorch.settings.fast_computations(False, False, False):
            objective(model(x), y).backward()

    return evaluate


def seconds(evaluate: Callable[[], None], times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        evaluate()
    return (time.perf_counter() - start) / times


def interleaved(
    candidates: dict[int, Callable[[], None]], repetitions: int, times: Callable[[int], int] = lambda _: 1
) -> dict[int, list[float]]:
    """Every candidate once to warm up, then `repetitions` rounds over all of them."""
    for evaluate in candidates.values():
        evaluate()
    measured: dict[int, list[float]] = {key: [] for key in candidates}
    for _ in range(repetitions):
        for key, evaluate in candidates.items():
            measured[key].append(seconds(evaluate, times(key)))
    return measured


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "seconds_median": round(statistics.median(values), 6),
        "seconds_min": round(min(values), 6),
        "seconds_max": round(max(values), 6),
    }


def print_memory(kind: str, n: int, chunk: int) -> None:
    """In a process of its own: the first evaluation's peak, what the libraries allocate on first use included."""
    x, y = data(n)
    evaluate = dense(x, y) if kind == "dense" else low_rank(x, y, chunk)
    was_reset = _machine.reset_peak()
    before = _machine.resident_mib()
    evaluate()
    print(json.dumps(_machine.peak_mib(was_reset) - before))


def extra_mib(kind: str, n: int, chunk: int) -> float:
    command = [sys.executable, __file__, "--memory-of", kind, str(n), str(chunk)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return round(json.loads(run.stdout), 1)


def choose_chunk(size: Size) -> tuple[int, list[dict[str, float]]]:
    """The smallest chunk within 5 % of the fastest: it costs nothing and needs the least memory."""
    x, y = data(size.chunk_rows)
    measured = interleaved({chunk: low_rank(x, y, chunk) for chunk in size.chunks}, size.repetitions)
    medians = {chunk: statistics.median(values) for chunk, values in measured.items()}
    best = min(chunk for chunk, median in medians.items() if median <= 1.05 * min(medians.values()))
    return best, [{"chunk": chunk, **spread(values)} for chunk, values in measured.items()]


def measure_low_rank(size: Size, chunk: int) -> list[dict[str, float | None]]:
    x, y = data(max(size.rows))
    candidates = {n: low_rank(x[:n], y[:n], chunk) for n in size.rows}
    measured = interleaved(candidates, size.repetitions, lambda n: max(1, SHORTEST // n if size is FULL else 1))
    per_row = {n: statistics.median(values) / n for n, values in measured.items()}
    base = per_row[size.rows[0]]
    return [
        {
            "n": n,
            **spread(values),
            "microseconds_per_row": round(1e6 * per_row[n], 3),
            "per_row_relative": round(per_row[n] / base, 3),
            "extra_memory_mib": extra_mib("low-rank", n, chunk) if n in size.memory_rows else None,
        }
        for n, values in measured.items()
    ]


def measure_dense(size: Size) -> list[dict[str, float | None]]:
    candidates = {n: dense(*data(n)) for n in size.dense_rows}
    measured = interleaved(candidates, size.dense_repetitions, lambda n: max(1, 2_000 // n) ** 2)
    return [
        {
            "n": n,
            **spread(values),
            "microseconds_per_row": round(1e6 * statistics.median(values) / n, 3),
            "extra_memory_mib": extra_mib("dense", n, 0) if n in size.dense_memory_rows else None,
        }
        for n, values in measured.items()
    ]


def check_claims(rows: list[dict[str, Any]]) -> dict[str, Any]:
    largest = rows[-1]
    worst = max(abs(row["per_row_relative"] - 1.0) for row in rows)
    return {
        "linear_within_20_percent": worst <= LINEAR_WITHIN,
        "largest_deviation_of_time_per_row": round(worst, 3),
        "extra_memory_below_1_gib": largest["extra_memory_mib"] < MEMORY_BELOW_MIB,
        "extra_memory_mib_at_largest_n": largest["extra_memory_mib"],
    }


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for name in ("n", "seconds", "min to max", "µs a row", "relative", "extra MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['n']:,}",
            f"{row['seconds_median']:.3f}",
            f"{row['seconds_min']:.3f} to {row['seconds_max']:.3f}",
            f"{row['microseconds_per_row']:.2f}",
            f"{row['per_row_relative']:.2f}" if "per_row_relative" in row else "",
            f"{row['extra_memory_mib']:.0f}" if row["extra_memory_mib"] is not None else "",
        )
    console.print(table)


def run(size: Size, out: Path | None) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    machine = _machine.describe("cpu")
    console.print(_machine.one_line(machine), highlight=False)
    chunk, sweep = choose_chunk(size)
    console.print(f"chunk: {chunk} rows; medians at {size.chunk_rows:,} rows:", highlight=False)
    console.print(", ".join(f"{row['chunk']}: {row['seconds_median']:.3f} s" for row in sweep), highlight=False)
    rows = measure_low_rank(size, chunk)
    show(console, f"deepbasis, DBK-SiLU, d={D}, h={H}, r={R}: log p(y) and its gradient", rows)
    dense_rows = measure_dense(size)
    show(console, f"GPyTorch {machine['gpytorch']}, dense exact GP, RBF, Cholesky: the same", dense_rows)
    claims = check_claims(rows)
    for claim, value in claims.items() if size is FULL else [("quick", "sizes too small to check the claims")]:
        console.print(f"{claim}: {value}", highlight=False)
    if out is not None:
        record = {
            "machine": machine,
            "load_average_1min_at_end": round(os.getloadavg()[0], 2),
            "setting": {"method": "dbk-silu", "d": D, "h": H, "r": R, "dtype": "float32", "chunk": chunk},
            "repetitions": size.repetitions,
            "dense_repetitions": size.dense_repetitions,
            "chunk_rows": size.chunk_rows,
            "chunks": sweep,
            "rows": rows,
            "dense": dense_rows,
            "claims": claims if size is FULL else None,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, (json.dumps(record, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--out", type=Path, help="where the record goes; without it a quick run writes none")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        kind, n, chunk = arguments.memory_of
        print_memory(kind, int(n), int(chunk))
    elif arguments.quick:
        torch.set_num_threads(1)  # on a busy machine a second thread can cost a hundred times what it gains
        run(QUICK, arguments.out)
    else:
        run(FULL, arguments.out or RESULT)


if __name__ == "__main__":
    main()
