"""What a training step costs with each likelihood, beside the Gaussian's: the same rows, columns and network.

    python benchmarks/likelihood_cost.py           # this machine's CPU -> benchmarks/results/likelihoods-cpu.json
    python benchmarks/likelihood_cost.py --quick   # does it run? nothing written

A step is gather, forward, backward and optimiser, as a fit of 5,000 rows with 16 number columns makes it: 4 members,
the default's network of a CPU, and the same with a basis of rank 128, as in the paper. Likelihoods take turns, an epoch
each, and the ratio is of epochs of the same turn: the median of the turns, and its quartiles. Seconds are those of the
processor, on one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

from _machine import describe, one_line
from deepbasis import DeepBasisClassifier, DeepBasisRegressor
from deepbasis.engine.wave import Wave
from deepbasis.faces import Prepared
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.start import builder, starting_members, straight_lines
from deepbasis.tables.labels import Labels

RESULTS = Path(__file__).parent / "results" / "likelihoods-cpu.json"
ROWS, COLUMNS, MEMBERS = 5_000, 16, 4
RANKS = ("auto", 128)
GAUSSIAN = "gaussian"

Case = tuple[dict[str, Any], Callable[[np.ndarray, np.random.Generator], Any], dict[str, Any]]


def of_classes(count: int) -> Callable[[np.ndarray, np.random.Generator], Any]:
    """As many rows of each."""
    return lambda f, rng: (np.argsort(np.argsort(f + rng.normal(size=len(f)))) * count) // len(f)


def number(f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return f + 0.3 * rng.normal(size=len(f))


def counts(f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(f)).astype(float)


def ratings(f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.clip(np.round(2.0 * number(f, rng)), -3.0, 3.0)


def outputs(count: int) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    return lambda f, rng: np.stack([number(f * (1.0 + k), rng) for k in range(count)], 1)


CASES: dict[str, Case] = {
    GAUSSIAN: ({"target": "identity"}, number, {}),
    "student": ({"target": "identity", "likelihood": "student"}, number, {}),
    "noise of the inputs": ({"target": "identity", "noise": "input"}, number, {}),
    "censored": ({"target": "identity"}, number, {"censored": True}),
    "count": ({"target": "count"}, counts, {}),
    "ordinal": ({"target": "ordinal"}, ratings, {}),
    "poisson": ({"likelihood": "poisson"}, counts, {}),
    "negative-binomial": ({"likelihood": "negative-binomial"}, counts, {}),
    "2 outputs": ({"target": "identity"}, outputs(2), {}),
    "5 outputs": ({"target": "identity"}, outputs(5), {}),
    "2 classes": ({}, of_classes(2), {"classes": True}),
    "3 classes": ({}, of_classes(3), {"classes": True}),
    "10 classes": ({}, of_classes(10), {"classes": True}),
}


def wave(case: Case, rows: int, rank: int | str) -> Wave:
    """The members of a fit, ready for their first step."""
    changes, target, more = case
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    y = target(np.sin(X[:, 0]) + 0.5 * X[:, 1], rng)
    given: dict[str, Any] = {"classes": partial(Labels.read, class_weight=None)} if "classes" in more else {}
    if "censored" in more:
        given["upper"] = np.where(rng.random(rows) < 0.4, np.inf, y)
    estimator = DeepBasisClassifier if "classes" in more else DeepBasisRegressor
    model = estimator(method="dbk-silu", rank=rank, members=MEMBERS, random_state=0, device="cpu", **changes)
    prepared = Prepared.of(Spec.of(model), X, y, None, None, **given)
    candidate = prepared.plan.candidates[0]
    fold = prepared.data.folds(prepared.plan)[0]
    architecture = candidate.architecture
    members = starting_members(candidate, list(range(MEMBERS)), straight_lines(fold.data, architecture.outputs), True)
    build = builder(architecture, prepared.data.preprocessor.width, fold.data)
    found = Wave(
        build, list(range(MEMBERS)), members, fold.data, fold.selecting, candidate.settings, torch.device("cpu")
    )
    found.prepare()
    return found


def seconds_of_a_step(one: Wave) -> float:
    start = time.process_time()
    one.train_epoch(lambda: False)
    spent = time.process_time() - start
    one.state.epoch += 1
    return spent / one.steps_this_epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--only", default=None, help="such as student,poisson")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = list(CASES) if arguments.only is None else [GAUSSIAN, *arguments.only.split(",")]
    turns, rows = (2, 2_500) if arguments.quick else (arguments.turns, ROWS)
    found = [row for rank in RANKS for row in compared({name: wave(CASES[name], rows, rank) for name in wanted}, turns)]
    print(one_line(describe()))
    if not arguments.quick:
        facts = {**describe(), "rows": ROWS, "columns": COLUMNS, "members": MEMBERS, "turns": arguments.turns}
        arguments.out.write_text(json.dumps({"machine": facts, "steps": found}, indent=1) + "\n", encoding="utf-8")


def compared(waves: dict[str, Wave], turns: int) -> list[dict[str, Any]]:
    spent: dict[str, list[float]] = {name: [] for name in waves}
    for _ in range(1 + turns):  # the first is not counted
        for name, one in waves.items():
            spent[name].append(seconds_of_a_step(one))
    found = []
    for name, every in spent.items():
        ratios = [ours / theirs for ours, theirs in zip(every[1:], spent[GAUSSIAN][1:], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        model = waves[name].stack.template
        row = {"target": name, "likelihood": type(model.likelihood).__name__, "rank": model.posterior.rank}
        row |= {"milliseconds": 1e3 * median(every[1:]), "times_gaussian": median(ratios), "quartiles": [low, high]}
        found.append(row)
        print(
            f"rank {row['rank']:3d}  {name:20s} {row['milliseconds']:7.2f} ms  "
            f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"
        )
    return found


if __name__ == "__main__":
    main()
