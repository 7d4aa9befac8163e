"""Many threads, one model: every answer must be, to the last bit, the one that a single thread gets.

Models of 1, 4 and 16 members, as fitted and as loaded from their files, are asked by 8 threads, 1,000 times each, for
means, distributions, intervals and draws of tables of 1 to 256 rows; once more through a small HTTP server on the
loopback; and once while another thread updates the model again and again, where an answer must be that of the model
before or after. The second part is throughput: calls a second by two threads beside one thread, where the target is 1.6
times as many on two cores. Two processes beside one are what the machine itself can give at that moment.

    python benchmarks/soak.py           # at most ten minutes; writes results/soak/soak.json
    python benchmarks/soak.py --quick   # at most a minute, writes nothing

Each call computes with one torch thread. The load of the machine before we begin is recorded too: throughput on a busy
machine says little. The exit status is 1 if any answer differs.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

import _machine
from deepbasis import DeepBasisRegressor
from deepbasis.storage import write_atomically

RESULT = Path(__file__).parents[1] / "results" / "soak" / "soak.json"
THREADS, MEMBERS, TARGET = 8, (1, 4, 16), 1.6

Question = tuple[str, int]
"""What is asked for, and of which of the tables."""
Answer = list[Any]


def mean_and_quantiles(found: Any) -> tuple[Any, Any]:
    return found.mean, found.quantile([0.1, 0.9])


QUESTIONS: dict[str, Callable[[DeepBasisRegressor, Any], Any]] = {
    "predict": lambda model, X: model.predict(X, return_std=True),
    "predict_dist": lambda model, X: mean_and_quantiles(model.predict_dist(X)),
    "predict_interval": lambda model, X: model.predict_interval(X),
    "sample_y": lambda model, X: model.sample_y(X, 3, random_state=1),
}


def answer(model: DeepBasisRegressor, name: str, X: Any) -> Answer:
    """As JSON gives it back: numbers by the digits that tell them from any other."""
    found = QUESTIONS[name](model, X)
    return [part.tolist() for part in (found if isinstance(found, tuple) else (found,))]


@dataclass
class Score:
    """What the threads have seen."""

    calls: int = 0
    different: int = 0
    failed: list[str] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def row(self) -> dict[str, Any]:
        times = self.milliseconds or [0.0]
        return {
            "calls": self.calls,
            "different": self.different,
            "failed": len(self.failed),
            "errors": sorted(set(self.failed))[:3],
            "median_ms": round(statistics.median(times), 2),
            "p99_ms": round(float(np.quantile(times, 0.99)), 2),
        }


def soak(
    ask: Callable[[], Callable[[str, int], Answer]], expected: dict[Question, list[Answer]], calls: int, until: float
) -> dict[str, Any]:
    """`THREADS` threads, each with an `ask()` of its own, until all calls are made or the time is over."""
    score = Score()
    ready = threading.Barrier(THREADS)

    def work(seed: int) -> None:
        rng, mine, put = random.Random(seed), Score(), ask()
        ready.wait()
        while mine.calls < calls and time.monotonic() < until:
            question = rng.choice(list(expected))
            start = time.perf_counter()
            try:
                mine.different += put(*question) not in expected[question]
            except Exception as error:
                mine.failed.append(f"{type(error).__name__}: {error}"[:200])
            mine.milliseconds.append(1e3 * (time.perf_counter() - start))
            mine.calls += 1
        with score.lock:
            score.calls += mine.calls
            score.different += mine.different
            score.failed += mine.failed
            score.milliseconds += mine.milliseconds

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return score.row()


@contextmanager
def served(model: DeepBasisRegressor, tables: list[Any], expected: Any):
    """A server on the loopback, one thread for each connection; gives what makes a client."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the body waits 40 ms for the answer to the header

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer(model, asked["question"], np.array(asked["rows"]))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def client() -> Callable[[str, int], Answer]:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)

        def put(name: str, table: int) -> Answer:
            connection.request("POST", "/", json.dumps({"question": name, "rows": tables[table].tolist()}))
            return json.loads(connection.getresponse().read())

        return put

    try:
        yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def direct(model: DeepBasisRegressor, tables: list[Any]) -> Callable[[], Callable[[str, int], Answer]]:
    """A client without a server."""
    return lambda: lambda name, table: answer(model, name, tables[table])


def answers(model: DeepBasisRegressor, tables: list[Any]) -> dict[Question, Answer]:
    return {(name, k): answer(model, name, X) for name in QUESTIONS for k, X in enumerate(tables)}


@contextmanager
def updated(model: DeepBasisRegressor, tables: list[Any], expected: dict[Question, list[Answer]]):
    """A client of a model that learns some rows, forgets them all at once, and learns them again; gives its client."""
    before, stop = model.fitted_, threading.Event()
    rows = tables[-1], np.cos(tables[-1][:, 0])
    for question, found in answers(model.update(*rows), tables).items():
        expected[question].append(found)

    def work() -> None:
        while not stop.is_set():
            model.fitted_ = before
            model.update(*rows)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield direct(model, tables)
    finally:
        stop.set()
        thread.join()
        model.fitted_ = before


def rate(model: DeepBasisRegressor, X: Any, threads: int, seconds: float) -> float:
    """Calls of `predict` a second by so many threads."""
    counts, until = [0] * threads, time.monotonic() + seconds

    def work(k: int) -> None:
        while time.monotonic() < until:
            model.predict(X, return_std=True)
            counts[k] += 1

    begun = time.monotonic()
    started = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sum(counts) / (time.monotonic() - begun)


@contextmanager
def other_processes(count: int):
    """Processes that share nothing, ready to work. No forks: a thread that has just ended may still hold MKL's lock."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, _begin, (context.Barrier(count),)) as pool:
        yield pool


def _begin(everybody: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    everybody.wait()


def rate_of_processes(pool: Any, model: DeepBasisRegressor, X: Any, processes: int, seconds: float) -> float:
    """The same by so many processes of the pool."""
    return sum(pool.starmap(rate, [(model, X, 1, seconds)] * processes, chunksize=1))


def throughput(model: DeepBasisRegressor, rows: int, seconds: float, rounds: int) -> dict[str, Any]:
    """By turns, so that a busy moment hits all alike."""
    X = np.random.default_rng(2).normal(size=(rows, 6))
    model.predict(X)
    one, two, processes, process = [], [], [], []
    with other_processes(2) as pool:
        for _ in range(rounds):
            one.append(rate(model, X, 1, seconds))
            two.append(rate(model, X, 2, seconds))
            process.append(rate_of_processes(pool, model, X, 1, seconds))
            processes.append(rate_of_processes(pool, model, X, 2, seconds))
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    return {
        "rows": rows,
        "members": len(model.fitted_.models),
        "one_thread_calls_a_second": round(statistics.median(one), 1),
        "two_threads_calls_a_second": round(statistics.median(two), 1),
        "two_threads_beside_one": round(statistics.median(ratios), 2),
        "of_each_round": [round(ratio, 2) for ratio in ratios],
        "two_processes_beside_one": round(statistics.median(b / a for a, b in zip(process, processes, strict=True)), 2),
    }


def fitted(members: int) -> DeepBasisRegressor:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    model = DeepBasisRegressor(
        method="dbk-silu", members=members, epochs=5, rank=64, width=64, blocks=2, random_state=0, device="cpu"
    )
    return model.fit(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=400))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="at most a minute; writes nothing")
    quick = parser.parse_args().quick
    calls, limit = (60, 30.0) if quick else (1_000, 500.0)  # seconds for the first part
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load = os.getloadavg()[0]  # of others: before we begin
    rng = np.random.default_rng(1)
    tables = [rng.normal(size=(rows, 6)) for rows in (1, 1, 7, 64, 256)]
    models = {members: fitted(members) for members in MEMBERS}
    stages, end = [], time.monotonic() + limit
    cases = [(members, how) for members in MEMBERS for how in ("fresh", "loaded", "http", "updated")]
    clients = {"http": served, "updated": updated}
    with tempfile.TemporaryDirectory() as folder:
        for number, (members, how) in enumerate(cases):
            model = models[members]
            expected = {question: [found] for question, found in answers(model, tables).items()}
            if how != "fresh":
                model.save(Path(folder) / "model.safetensors")
                model = DeepBasisRegressor.load(Path(folder) / "model.safetensors", device="cpu")
            until = time.monotonic() + max(1.0, (end - time.monotonic()) / (len(cases) - number))
            make = clients.get(how, lambda model, tables, expected: nullcontext(direct(model, tables)))
            with make(model, tables, expected) as client:
                stages.append({"members": members, "model": how, **soak(client, expected, calls, until)})
            print(", ".join(f"{name} {value}" for name, value in stages[-1].items() if name != "errors"), flush=True)
    sizes = [(4, 4_096)] if quick else [(4, 64), (4, 4_096), (16, 4_096)]
    measured = [throughput(models[members], rows, *((0.5, 3) if quick else (2.0, 3))) for members, rows in sizes]
    for row in measured:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    bad = sum(stage["different"] + stage["failed"] for stage in stages)
    asked = calls * THREADS
    short = [stage for stage in stages if stage["calls"] < asked]
    print(f"{sum(stage['calls'] for stage in stages):,} calls by {THREADS} threads, {bad} of them wrong; ", end="")
    print(f"{len(short)} of {len(stages)} stages cut short by the clock; load before: {load:.1f}, target {TARGET}")
    if not quick:
        record = {"machine": _machine.describe(), "load_before": round(load, 2), "threads": THREADS}
        record |= {"calls_asked_of_a_stage": asked, "stages": stages, "target_ratio": TARGET, "throughput": measured}
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(RESULT, (json.dumps(record, indent=1) + "\n").encode())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
