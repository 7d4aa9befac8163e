"""Optimisers, sizes, embeddings and lengths of training for tables of more than 2,000 rows: many trials in one stack.

    python benchmarks/trials.py --data-dir DATA --out results/recipe/trials     # on a GPU, a quarter of an hour
    python benchmarks/trials.py --data-dir DATA --sets kin40k --lengths 300

Members of one stack may differ in what a run of the engine has once: optimiser, rates, decay, length. So a stack of a
hundred costs little more than one of four, and a trial is three members that predict together, calibrated on the rows
to select on. Rows are those that are in none of the test parts of splits 1 to 5 (nor copies of a few of them), split
8:1:1 by input into rows to fit, to select on and to score. It decides about the recipe; it reads no test row.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepbasis.engine import device as devices
from deepbasis.engine import wave as wave_module
from deepbasis.engine.batches import Rows
from deepbasis.engine.distributed import ALONE
from deepbasis.engine.members import Member, Stack
from deepbasis.engine.muon import orthogonal
from deepbasis.engine.settings import settings_for
from deepbasis.fitting.held_out import limit_copies
from deepbasis.fitting.start import straight_line
from deepbasis.gp import metrics
from deepbasis.gp.build import build
from deepbasis.gp.calibration import calibrate
from deepbasis.gp.embedding import Fourier, Periodic, PeriodicLinear
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import mixture
from deepbasis.paper import data_ookla, data_uci
from deepbasis.paper.data_download import data_folder
from deepbasis.paper.runs import fit
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns

UCI = ("kin40k", "protein", "pol", "keggundirected", "elevators")
TABLES = ("pumadyn32nm", "sml", "skillcraft", "gas")
MAP = "fixed-new-mexico"
SEEDS = 3
SCORES = ("crps", "nll", "crps_select", "nll_select")


@dataclass(frozen=True)
class Network:
    inner: int = 128
    rank: int = 64
    blocks: int = 2
    batch_size: int = 512
    embedding: str = "none"
    """Or "periodic:SCALE:FREQUENCIES", "linear:SCALE:FREQUENCIES"; a map always has Fourier features."""
    rows: int | None = None
    """To fit, at most."""


@dataclass(frozen=True)
class Trial:
    steps: int = 2_700
    muon: float | None = 0.05
    """Its rate; None is AdamW for everything."""
    rate: float = 1e-2
    """Of AdamW."""
    noise_rate: float = 2e-2
    decay: float = 1e-2
    alpha: float = 0.0
    beta: float = 1.0


ADAMW = Trial(muon=None, rate=3e-3, alpha=0.1)
TRIALS = {
    "adamw": ADAMW,
    "adamw, rate 1e-2": replace(ADAMW, rate=1e-2),
    "muon": Trial(),
    "muon 0.02": Trial(muon=0.02),
    "muon 0.1": Trial(muon=0.1),
    "muon, rate 3e-3": Trial(rate=3e-3),
    "muon, rate 2e-2": Trial(rate=2e-2),
    "muon, alpha 0.01": Trial(alpha=0.01),
    "muon, alpha 0.1": Trial(alpha=0.1),
    "muon, alpha 1": Trial(alpha=1.0),
    "muon, beta 0.1": Trial(beta=0.1),
    "muon, beta 10": Trial(beta=10.0),
    "muon, decay 0.1": Trial(decay=0.1),
    "muon, decay 1": Trial(decay=1.0),
    "muon, noise 5e-2": Trial(noise_rate=5e-2),
}
FEW = ("adamw", "muon", "muon, decay 0.1", "muon, decay 1")
WIDE = ("muon", "muon 0.02", "muon, alpha 0.1", "muon, decay 0.1", "muon, rate 3e-3")
SMALL = Network(inner=64, rank=32)
NETWORKS: dict[str, tuple[Network, tuple[str, ...]]] = {
    "2 blocks of 128, rank 64": (Network(), tuple(TRIALS)),
    "2 blocks of 256, rank 128": (Network(inner=256, rank=128), FEW),
    "2 blocks of 64, rank 64": (Network(inner=64), FEW),
    "2 blocks of 64, rank 32": (SMALL, FEW),
    "3 blocks of 64, rank 64": (Network(inner=64, blocks=3), FEW),
    "2 blocks of 128, rank 64, batches of 256": (Network(batch_size=256), FEW),
    "2 blocks of 128, rank 64, periodic 0.1": (Network(embedding="periodic:0.1:8"), FEW),
    "2 blocks of 128, rank 64, periodic-linear 0.1 of 16": (Network(embedding="linear:0.1:16"), FEW),
    "2 blocks of 128, rank 64, periodic-linear 0.3 of 16": (Network(embedding="linear:0.3:16"), FEW),
    "2 blocks of 64, rank 32, periodic-linear 0.3 of 8": (replace(SMALL, embedding="linear:0.3:8"), tuple(TRIALS)),
    "3 blocks of 64, rank 32, periodic-linear 0.3 of 8": (replace(SMALL, blocks=3, embedding="linear:0.3:8"), FEW),
    "2 blocks of 128, rank 64, periodic-linear 0.3 of 8": (Network(embedding="linear:0.3:8"), WIDE),
    "2 blocks of 256, rank 64, periodic-linear 0.3 of 8": (Network(inner=256, embedding="linear:0.3:8"), WIDE),
    "2 blocks of 256, rank 64": (Network(inner=256), WIDE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/recipe/trials"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default=";".join(NETWORKS), help="networks, separated by semicolons")
    parser.add_argument("--sets", default=",".join((*UCI, *TABLES, MAP)))
    parser.add_argument("--precision", help="of a training step: tf32 on a GPU, float32 on a CPU, if it is not given")
    parser.add_argument("--trials", help="fewer than those of a network, separated by semicolons")
    parser.add_argument("--lengths", default="300,900,2700")
    arguments = parser.parse_args()
    device = devices.present(arguments.device)
    arguments.out.mkdir(parents=True, exist_ok=True)
    lengths = [int(number) for number in arguments.lengths.split(",")]
    with open(arguments.out / "trials.csv", "a", newline="") as file:
        table = csv.writer(file)
        if file.tell() == 0:
            table.writerow(["set", "network", *(one.name for one in fields(Trial)), *SCORES])
        for name in arguments.sets.split(","):
            data = load(name, arguments.data_dir)
            for words in arguments.only.split(";"):
                network, some = NETWORKS[words]
                some = tuple(arguments.trials.split(";")) if arguments.trials else some
                trials = [replace(TRIALS[trial], steps=steps) for trial in some for steps in lengths]
                what = (data, name == MAP, network, trials)
                for trial, scores in zip(trials, run(*what, device, arguments.precision), strict=True):
                    numbers = (f"{scores[score]:.5g}" for score in SCORES)
                    table.writerow([name, words, *asdict(trial).values(), *numbers])
                file.flush()


def load(name: str, data_dir: Path | None) -> dict[str, Rows]:
    if name in UCI:
        X, y = data_uci.load(name, data_dir)
    elif name == MAP:
        tiles = data_ookla.load(name, data_dir)
        X, y = tiles.X, tiles.download
    else:
        folder = data_folder(data_dir)
        assert folder is not None, "where are the tables? name their folder by --data-dir"
        values = np.genfromtxt(folder / "tables" / f"{name}.csv.gz", delimiter=",", skip_header=1)
        X, y = values[:, :-1], values[:, -1]
    kind = np.unique(X, axis=0, return_inverse=True)[1].reshape(-1)
    kept = np.ones(len(y), dtype=bool)
    for split in range(1, 6):
        kept[np.random.default_rng(split).permutation(len(y))[len(y) - len(y) // 10 :]] = False
    tested = np.unique(kind[~kept])
    kept &= ~np.isin(kind, tested[np.bincount(kind)[tested] <= 3])
    part = np.random.default_rng(100).permutation(kind.max() + 1)[kind] / (kind.max() + 1)
    sides = {"fit": kept & (part < 0.8), "select": kept & (part >= 0.8) & (part < 0.9), "score": kept & (part >= 0.9)}
    encode = Preprocessor.fit(*read_columns(X[sides["fit"]])).transform
    mean, std = y[sides["fit"]].mean(), y[sides["fit"]].std()
    return {
        side: Rows(torch.from_numpy(encode(X[own])).float(), torch.from_numpy((y[own] - mean) / std).float())
        for side, own in sides.items()
    }


def run(
    data: dict[str, Rows],
    is_map: bool,
    network: Network,
    trials: list[Trial],
    device: torch.device,
    precision: str | None = None,
) -> Iterator[dict[str, float]]:
    to_fit, select, score = data["fit"], limit_copies(data["select"], 3.0), data["score"]
    if network.rows is not None:
        to_fit = Rows(to_fit.x[: network.rows], to_fit.y[: network.rows])
    columns, noise = to_fit.x.shape[1], GaussianLikelihood.starting_noise(straight_line(to_fit).variance_left)
    kind, *numbers = ("fourier" if is_map else network.embedding).split(":")
    embeddings = {
        "none": lambda: None,
        "fourier": lambda: Fourier(columns),
        "periodic": lambda: Periodic(columns, int(numbers[1]), scale=float(numbers[0])),
        "linear": lambda: PeriodicLinear(columns, int(numbers[1]), scale=float(numbers[0])),
    }

    def make(member: Member) -> DeepBasisGP:
        return build(
            "dbk-silu",
            columns,
            rank=network.rank,
            blocks=network.blocks,
            inner=network.inner,
            embedding=None if kind == "none" else embeddings[kind],
            noise=member.noise,
            seed=member.seed,
        )

    steps_a_pass = -(-len(to_fit) // network.batch_size)
    passes = max(1, 10 // steps_a_pass)
    settings = settings_for(
        "dbk-silu",
        schedule="cosine",
        average=0.9,
        selection="crps",
        batch_size=network.batch_size,
        epochs=-(-max(trial.steps for trial in trials) // (passes * steps_a_pass)),
        passes=passes,
        precision=precision or ("tf32" if device.type == "cuda" else "float32"),
        fused=False,  # its optimiser is that of the run
    )
    each = [trial for trial in trials for _ in range(SEEDS)]
    members = [Member(seed=k % SEEDS, alpha=trial.alpha, beta=trial.beta, noise=noise) for k, trial in enumerate(each)]
    with many_descents(each):
        done = fit(make, members, to_fit, select, settings, device=device)
    selected, scored = done.predict(select.x, device), done.predict(score.x, device)
    for first in range(0, len(each), SEEDS):
        own = slice(first, first + SEEDS)
        found = calibrate(mixture(selected[own]), select.y, select.weight)
        here = metrics.evaluate(found.apply(mixture(selected[own])), select.y)
        there = metrics.evaluate(found.apply(mixture(scored[own])), score.y)
        yield {"crps": there["crps"], "nll": there["nll"], "crps_select": here["crps"], "nll_select": here["nll"]}


@contextmanager
def many_descents(trials: list[Trial]) -> Iterator[None]:
    plain = wave_module.Descent
    wave_module.Descent = lambda stack, settings, steps, team: Descents(stack, steps, trials)  # type: ignore
    try:
        yield
    finally:
        wave_module.Descent = plain  # type: ignore


class Descents:
    """As the engine's `Descent`, with rates, decay, optimiser and length of its own for each member."""

    def __init__(self, stack: Stack, steps: int, trials: list[Trial]) -> None:
        self.stack, self.team, self.leaves = stack, ALONE, dict(stack.leaves)
        self.average = self
        groups, size = stack.template.parameter_groups(), stack.size

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=stack.device)

        muon = column([float(trial.muon is not None) for trial in trials])
        rates, decays = [], []
        for name, leaf in self.leaves.items():
            group = groups[name]
            rate = column([trial.noise_rate if group == "likelihood" else trial.rate for trial in trials])
            decay = column([trial.decay * (group in ("network", "hidden")) for trial in trials])
            rate = rate * (1.0 - muon) if group == "hidden" else rate
            for values, of in ((rates, rate), (decays, decay)):
                values.append(of[:, None].expand(size, leaf[0].numel()))
        self._rate, self._decay = torch.cat(rates, 1), torch.cat(decays, 1)
        self._first, self._second = torch.zeros_like(self._rate), torch.zeros_like(self._rate)
        self._sizes = [leaf[0].numel() for leaf in self.leaves.values()]
        self._hidden = {name: torch.zeros_like(self.leaves[name]) for name in self.leaves if groups[name] == "hidden"}
        self._muon_rate = column([trial.muon or 0.0 for trial in trials])[:, None, None]
        self._muon_decay = column([trial.decay for trial in trials])[:, None, None]
        self._mean = self._flat().clone()
        self._slowest = column([13.5 / trial.steps for trial in trials])
        factors = [
            [0.5 + 0.5 * math.cos(math.pi * min(1.0, step / trial.steps)) for trial in trials] for step in range(steps)
        ]
        self._factors = column(factors)  # type: ignore[arg-type]
        self._step = torch.zeros(1, dtype=torch.int64, device=stack.device)

    def _flat(self) -> Tensor:
        return torch.cat([leaf.detach().reshape(len(leaf), -1) for leaf in self.leaves.values()], 1)

    def _place(self, flat: Tensor) -> None:
        for leaf, part in zip(self.leaves.values(), flat.split(self._sizes, 1), strict=True):
            leaf.copy_(part.reshape(leaf.shape))

    @torch.no_grad()
    def step(self) -> None:
        gradients: Any = torch.cat([leaf.grad.reshape(len(leaf), -1) for leaf in self.leaves.values()], 1)  # type: ignore
        now = self._factors.index_select(0, self._step.clamp_max(len(self._factors) - 1))[0]
        self._step.add_(1)
        t = self._step.float()
        flat, rate = self._flat(), self._rate * now[:, None]
        self._first.lerp_(gradients, 0.1)
        self._second.lerp_(gradients.square(), 0.001)
        flat.mul_(1.0 - rate * self._decay)
        flat.sub_(rate * (self._first / (1 - 0.9**t)) / ((self._second / (1 - 0.999**t)).sqrt() + 1e-8))
        self._place(flat)
        for name, momentum in self._hidden.items():
            leaf, rate = self.leaves[name], self._muon_rate * now[:, None, None]
            momentum.lerp_(leaf.grad, 0.05)  # type: ignore[arg-type]
            ahead = leaf.grad.lerp(momentum, 0.95)  # type: ignore[union-attr]
            m, n = leaf.shape[-2:]
            moved = orthogonal(ahead.mT).mT if m > n else orthogonal(ahead)
            leaf.mul_(1.0 - rate * self._muon_decay).sub_(moved * rate * math.sqrt(max(1.0, m / n)))
        weight = torch.maximum(9.0 / (10.0 + t), self._slowest)
        self._mean.add_((self._flat() - self._mean) * weight[:, None])

    def zero_grad(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None

    def set_step(self, step: int) -> None:
        self._step.fill_(step)

    def memory(self) -> dict[str, dict[str, Tensor]]:
        return {"all": {"first": self._first, "second": self._second, "mean": self._mean}, "momentum": self._hidden}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with torch.no_grad():
            before = self._flat().clone()
            self._place(self._mean)
            try:
                yield
            finally:
                self._place(before)


if __name__ == "__main__":
    main()
