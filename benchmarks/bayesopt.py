"""Bayesian optimisation with BoTorch: deepbasis beside SingleTaskGP, the same starts, acquisition and optimiser.

    python benchmarks/bayesopt.py                             # ten seeds, 100 evaluations -> results/bayesopt
    python benchmarks/bayesopt.py --seeds 3 --evaluations 40  # shorter
    python benchmarks/bayesopt.py --seconds                   # what a model of 5,000 rows costs, on the same page
    python benchmarks/bayesopt.py --quick                     # does it run? nothing is written

Hartmann6 and Ackley in 4 dimensions, maximised by LogExpectedImprovement from 20 Sobol points; and the strongest
concrete of a table of 1,030 mixtures (examples/data), from 20 random rows, where the next evaluation is the best of the
rows that are left. Both models are fitted again every ten evaluations and take the results in between by
`condition_on_observations`. Ours is the shallow kernel that small tables get (`method="sv-rbf"`, exact training, one
member, no calibration). The regret is the optimum less the best value so far: medians and quartiles over the seeds.
Nothing was tuned on these functions.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from _machine import made
from deepbasis import DeepBasisRegressor
from deepbasis.interop.botorch import DeepBasisModel

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "bayesopt"
START, REFIT = 20, 10
ROWS, FEWER, ROUNDS, ASKED = 5_000, 1_000, 3, 200  # of `--seconds`
COST = "## A model of"  # where its part of the page begins


class Function:
    """To be maximised over the unit cube."""

    def __init__(self, of: Any) -> None:
        self.of, self.optimum = of.double(), of.optimal_value

    def __call__(self, X: Tensor) -> Tensor:
        low, high = self.of.bounds
        return self.of(low + (high - low) * X)

    def start(self, seed: int) -> Tensor:
        return torch.quasirandom.SobolEngine(self.of.dim, scramble=True, seed=seed).draw(START, dtype=torch.float64)

    def next(self, acquisition: Any, X: Tensor) -> Tensor:
        unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, self.of.dim)
        return optimize_acqf(acquisition, unit, q=1, num_restarts=4, raw_samples=128, options={"maxiter": 50})[0]


class Table:
    """To be maximised over the rows of a table, whose last column is the target."""

    def __init__(self, path: Path) -> None:
        rows = torch.from_numpy(np.genfromtxt(path, delimiter=",", skip_header=1))
        rows = rows[np.unique(rows[:, :-1].numpy(), axis=0, return_index=True)[1]]  # of copies of inputs the first
        X, self.y = rows[:, :-1], rows[:, -1]
        self.X = (X - X.amin(0)) / (X.amax(0) - X.amin(0))
        self.optimum = float(self.y.max())

    def __call__(self, X: Tensor) -> Tensor:
        return self.y[(X[:, None] == self.X).all(-1).float().argmax(1)]

    def start(self, seed: int) -> Tensor:
        return self.X[torch.randperm(len(self.X), generator=torch.Generator().manual_seed(seed))[:START]]

    @torch.no_grad()
    def next(self, acquisition: Any, X: Tensor) -> Tensor:
        left = self.X[~(self.X[:, None] == X).all(-1).any(1)]
        return left[acquisition(left[:, None]).argmax()][None]


def functions() -> dict[str, Any]:
    return {
        "hartmann6": Function(Hartmann(dim=6, negate=True)),
        "ackley4": Function(Ackley(dim=4, negate=True, bounds=[(-10.0, 15.0)] * 4)),
        "concrete": Table(ROOT / "examples" / "data" / "concrete.csv.gz"),
    }


def deepbasis(X: Tensor, y: Tensor, seed: int) -> Any:
    options = {"method": "sv-rbf", "objective": "mml", "members": 1, "calibrate": False, "target": "identity"}
    return DeepBasisModel(DeepBasisRegressor(random_state=seed, **options).fit(X.numpy(), y.numpy()).fitted_)


def single_task_gp(X: Tensor, y: Tensor, seed: int) -> Any:
    model = SingleTaskGP(X, y[:, None], outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


MODELS: dict[str, Callable[[Tensor, Tensor, int], Any]] = {"deepbasis": deepbasis, "SingleTaskGP": single_task_gp}


def regrets(function: Any, fit: Callable[[Tensor, Tensor, int], Any], seed: int, evaluations: int) -> tuple[Any, float]:
    """After each evaluation, and the seconds of this process that fits took."""
    X = function.start(seed)
    y = function(X)
    torch.manual_seed(seed)
    spent = 0.0
    while len(y) < evaluations:
        if (len(y) - START) % REFIT == 0:
            began = time.process_time()
            model = fit(X, y, seed)
            spent += time.process_time() - began
        new = function.next(LogExpectedImprovement(model, best_f=y.max()), X)
        value = function(new)
        X, y = torch.cat([X, new]), torch.cat([y, value])
        with torch.no_grad():
            model.posterior(new)  # an exact GP conditions on what it has cached
            model = model.condition_on_observations(new, value[:, None])
    return function.optimum - np.maximum.accumulate(y.numpy()), spent


def cost(folder: Path) -> None:
    """Of many rows of Hartmann6 with a little noise: our fit, and the exact GP's, in seconds of one thread.

    Its fit is the time of an evaluation of its likelihood with the gradient, times the evaluations that its own fit of
    fewer rows needed; if that is below ten minutes it is run, too. Then a posterior of each. Interleaved, medians.
    """
    function = functions()["hartmann6"]
    X = torch.quasirandom.SobolEngine(6, scramble=True, seed=0).draw(ROWS + ASKED, dtype=torch.float64)
    y = function(X) + 0.01 * torch.randn(len(X), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    asked, truth = X[ROWS:, None], function(X[ROWS:])
    X, y = X[:ROWS], y[:ROWS]
    fewer = Counted(X[:FEWER], y[:FEWER])
    fewer_seconds = _seconds(lambda: fit_gpytorch_mll(fewer))
    errors = [_error(one, asked, truth) for one in (deepbasis(X[:FEWER], y[:FEWER], 0), fewer.model.eval())]
    fits, evaluations, ours, theirs = [], [], [], []
    for turn in range(ROUNDS):
        began = time.perf_counter()
        model = deepbasis(X, y, turn)
        fits.append(time.perf_counter() - began)
        ours.append(_seconds_of_posterior(model, asked))
        own_error = _error(model, asked, truth)
        likelihood = Counted(X, y)
        likelihood.model.train()
        evaluations.append(_seconds(lambda one=likelihood: one.value().backward()))
        theirs.append(_seconds_of_posterior(likelihood.model.eval(), asked))
        print(f"turn {turn}: our fit {fits[-1]:.1f} s, an evaluation {evaluations[-1]:.1f} s", flush=True)
    fit, evaluation, own, other = (float(np.median(one)) for one in (fits, evaluations, ours, theirs))
    estimate = fewer.count * evaluation
    whole = Counted(X, y)
    really = _seconds(lambda: fit_gpytorch_mll(whole)) if estimate < 600.0 else None
    ran = "was not run" if really is None else f"took {really:.0f} s, of {whole.count} evaluations"
    lines = [
        f"{COST} {ROWS:,} rows",
        "",
        f"Hartmann6 with noise of .01; seconds of one thread, medians of {ROUNDS} turns, interleaved.",
        "",
        "| | deepbasis | SingleTaskGP |",
        "| --- | --- | --- |",
        f"| fit | {fit:.1f} | {estimate:.0f} |",
        f"| first posterior of {ASKED:,} points, one by one | {own:.2g} | {other:.2g} |",
        f"| error of the mean there, after a fit of {FEWER:,} rows | {errors[0]:.3f} | {errors[1]:.3f} |",
        f"| after a fit of {ROWS:,} rows | {own_error:.3f} | |",
        "",
        f"SingleTaskGP's fit is estimated: an evaluation of its likelihood and gradient takes {evaluation:.1f} s, and "
        f"its own fit of {FEWER:,} rows needed {fewer.count} ({fewer_seconds:.1f} s). "
        f"The fit of {ROWS:,} rows itself {ran}.",
        "",
        f"`python benchmarks/bayesopt.py --seconds`; {made()}",
    ]
    print("\n".join(lines))
    write_page(folder, cost=lines)


class Counted(ExactMarginalLogLikelihood):
    """That of a new SingleTaskGP; it counts how often it is evaluated."""

    def __init__(self, X: Tensor, y: Tensor) -> None:
        model = SingleTaskGP(X, y[:, None], outcome_transform=Standardize(1))
        super().__init__(model.likelihood, model)
        self.count = 0

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        self.count += 1
        return super().forward(*args, **kwargs)

    def value(self) -> Tensor:
        return self(self.model(*self.model.train_inputs), self.model.train_targets)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@torch.no_grad()
def _error(model: Any, asked: Tensor, truth: Tensor) -> float:
    """The root of its mean square."""
    return float((model.posterior(asked).mean.flatten() - truth).square().mean().sqrt())


@torch.no_grad()
def _seconds_of_posterior(model: Any, asked: Tensor) -> float:
    began = time.perf_counter()
    model.posterior(asked).variance.sum()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    seeds, evaluations = (1, START + 2) if given.quick else (given.seeds, given.evaluations)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.seconds:
        cost(given.out)
        return
    rows = []
    for seed in range(seeds):
        for name, function in functions().items():
            for model, fit in MODELS.items():
                found, seconds = regrets(function, fit, seed, evaluations)
                rows += [
                    {"function": name, "model": model, "seed": seed, "evaluations": k + 1, "regret": regret}
                    for k, regret in enumerate(found.tolist())
                ]
                print(f"{name:10} {model:13} seed {seed}: regret {found[-1]:.4g}, fits {seconds:.1f} s", flush=True)
        if not given.quick:
            write(given.out, rows, seeds=seed + 1, evaluations=evaluations)


def write(folder: Path, rows: list[dict[str, Any]], *, seeds: int, evaluations: int) -> None:
    """After each seed: every regret, and a table to read, which says how it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    shown = sorted({START, (START + evaluations) // 2, evaluations})
    lines = [
        "# Bayesian optimisation: regret",
        "",
        f"Median [quartiles] of {seeds} seeds after so many evaluations.",
        "",
    ]
    lines += [f"| function | model | {' | '.join(map(str, shown))} |", f"| --- | --- |{' --- |' * len(shown)}"]
    for name in functions():
        for model in MODELS:
            cells = []
            for count in shown:
                some = [
                    r["regret"] for r in rows if (r["function"], r["model"], r["evaluations"]) == (name, model, count)
                ]
                low, middle, high = np.quantile(some, [0.25, 0.5, 0.75])
                cells.append(f"{middle:.3g} [{low:.3g}, {high:.3g}]")
            lines.append(f"| {name} | {model} | {' | '.join(cells)} |")
    lines += ["", f"`python benchmarks/bayesopt.py --seeds {seeds} --evaluations {evaluations}`; {made()}"]
    write_page(folder, regret=lines)


def write_page(folder: Path, regret: list[str] | None = None, cost: list[str] | None = None) -> None:
    """A page of two parts, of which each is written by itself and leaves the other as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "table.md"
    first, found, second = (page.read_text(encoding="utf-8") if page.exists() else "").partition(COST)
    first = first if regret is None else "\n".join(regret) + "\n\n"
    second = found + second if cost is None else "\n".join(cost) + "\n"
    page.write_text((first + second).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
