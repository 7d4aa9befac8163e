"""What a model of the quality benchmark is, what it may answer with, and how every answer is scored.

A model answers with a distribution (`Predictive`), with quantiles (`Quantiles`) or with numbers alone (`Points`). What
an answer cannot be asked for is None: only a density has an NLL, and numbers alone have no CRPS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from _quality_data import Fold, Own
from deepbasis.errors import NumericalError
from deepbasis.gp import metrics
from deepbasis.gp.discrete import Discrete
from deepbasis.gp.predictive import Gaussian, GaussianMixture, Predictive
from deepbasis.paper.timing import Clock

BREAKDOWNS = (NumericalError, ArithmeticError, np.linalg.LinAlgError, torch.linalg.LinAlgError)
"""What counts as a fit's failure: a full memory or a mistake of ours is nobody's result."""

LEVELS = tuple((k - 0.5) / 40 for k in range(1, 41))
"""Of the quantiles that `crps_40` is made of."""

METRICS = ("nll", "crps", "crps_40", "mae", "rmse", "coverage_95", "width_95")
Scores = dict[str, float | None]


WIDTH, BATCH, LEARNING_RATE = 64, 1024, 1e-3


@dataclass(frozen=True)
class Effort:
    """Where to compute, and how much."""

    device: torch.device
    threads: int = 1
    limit: int | None = None
    """At most so many epochs, trees or stages of any model; none is each one's own number."""
    batch: int = BATCH
    learning_rate: float = LEARNING_RATE

    def at_most(self, wanted: int) -> int:
        return wanted if self.limit is None else min(wanted, self.limit)


@dataclass(frozen=True)
class Quantiles:
    """What a model says of each row at LEVELS. They are put in order: rearranged quantiles are never worse."""

    values: Float[Tensor, "n k"]

    def at(self, level: float) -> Float[Tensor, " n"]:
        """On the straight line between the two levels around it."""
        place = min(max(level * len(LEVELS) - 0.5, 0.0), len(LEVELS) - 1.0)
        below = min(int(place), len(LEVELS) - 2)
        ordered = self.values.sort(1).values
        return ordered[:, below] + (place - below) * (ordered[:, below + 1] - ordered[:, below])


@dataclass(frozen=True)
class Points:
    """A number for each row."""

    mean: Float[Tensor, " n"]


Answer = Predictive | Quantiles | Points


class Trained(NamedTuple):
    predict: Callable[[Float[Tensor, "n d"]], Answer]
    rounds: float | None
    """Epochs, trees or stages that the validation rows chose; a mean over an ensemble's members."""
    seconds: float | None = None
    """That it took, if it was not now: two models may share a training."""
    in_own_units: bool = False
    """Whether it predicts the target as it is, and not scaled."""


@dataclass(frozen=True)
class Model:
    name: str
    what: str
    """For the report."""
    fit: Callable[[Fold, Sequence[int], Effort], list[Trained]]
    """One for each seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What makes a part of this model another than that of the same name."""
    package: str | None = None
    """What must be installed beside deepbasis' own needs."""
    stacked: bool = False
    """Whether all seeds are trained together: their time is then shared out equally."""
    on_gpu: bool = True
    most_rows: int | None = None
    """Training and validation rows; it is left out where there are more."""
    with_model: str | None = None
    """The model whose training it shares: both are computed by one process."""
    with_earlier: bool = False
    """Whether parts that it made with other options are shown too, marked: they are an earlier version's."""

    @property
    def installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None

    def packages(self) -> dict[str, str]:
        """Versions that the result depends on."""
        names = ["scikit-learn"] if self.package == "sklearn" else [self.package] if self.package else []
        try:
            return {name: version(name) for name in names}
        except PackageNotFoundError:
            return {}


def score(model: Model, fold: Fold, effort: Effort) -> list[dict[str, Any]]:
    """Fit and score: a record for each seed. A fit that breaks down numerically is recorded as that."""
    groups = [fold.seeds] if model.stacked else [(seed,) for seed in fold.seeds]
    return [record for seeds in groups for record in _score_group(model, fold, seeds, effort)]


def _score_group(model: Model, fold: Fold, seeds: Sequence[int], effort: Effort) -> list[dict[str, Any]]:
    trained: list[Trained] = []
    error = None

    def work() -> None:
        trained.extend(model.fit(fold, seeds, effort))

    try:
        seconds = Clock(effort.device).seconds(work) / len(seeds)
    except BREAKDOWNS as raised:
        seconds, error = None, f"{type(raised).__name__}: {str(raised)[:200]}"
    records = []
    for k, seed in enumerate(seeds):
        record: dict[str, Any] = {"fold": fold.index, "digest": fold.digest, "seed": seed, "seconds": seconds}
        record |= {"rounds": None, "error": error}
        if error is None:
            answer = trained[k].predict(fold.test.x)
            in_own = trained[k].in_own_units and fold.own is not None
            scores = evaluate_own(answer, fold.own) if in_own else evaluate(answer, fold.test.y)
            finite = all(value is None or math.isfinite(value) for value in scores.values())
            record |= {"rounds": trained[k].rounds, **(scores if finite else {"error": "predictions are not finite"})}
            if trained[k].seconds is not None:
                record["seconds"] = trained[k].seconds
        records.append(record)
    return records


def evaluate(answer: Answer, y: Float[Tensor, " n"]) -> Scores:
    """In float64, on the CPU, by one and the same code for every model."""
    y = y.double().cpu()
    found: Scores = dict.fromkeys(METRICS)
    if isinstance(answer, Predictive):
        predictive = _on_cpu(answer)
        scores = metrics.evaluate(predictive, y)
        found |= {name: scores[name] for name in METRICS if name in scores}
        found["crps_40"] = twice_pinball(predictive.quantile(LEVELS), y)
        if isinstance(predictive, Discrete):
            found["nll"] = None  # that of a probability is not to be compared with a density's
        return found
    if isinstance(answer, Quantiles):
        answer = Quantiles(answer.values.double().cpu().sort(1).values)
        lower, upper = answer.at(0.025), answer.at(0.975)
        found["crps"] = found["crps_40"] = twice_pinball(answer.values, y)
        found["coverage_95"] = float(((lower <= y) & (y <= upper)).double().mean())
        found["width_95"] = float((upper - lower).mean())
        mean = answer.values.mean(1)
    else:
        mean = answer.mean.double().cpu()
    found |= {"mae": float((y - mean).abs().mean()), "rmse": float((y - mean).square().mean().sqrt())}
    return found


def evaluate_own(answer: Answer, own: Own) -> Scores:
    """The scores of the scaled target, whose density is `std` times as large."""
    scores = evaluate(answer, torch.from_numpy(own.test))
    for name in ("crps", "crps_40", "mae", "rmse", "width_95"):
        scores[name] = None if scores[name] is None else scores[name] / own.std
    if scores["nll"] is not None:
        scores["nll"] -= math.log(own.std)
    return scores


def twice_pinball(quantiles: Float[Tensor, "n k"], y: Float[Tensor, " n"]) -> float:
    """Twice the mean pinball loss at LEVELS; with all levels it would be the CRPS = 2 int_0^1 pinball_q dq."""
    levels = torch.tensor(LEVELS, dtype=y.dtype)
    above = y[:, None] - quantiles
    return 2.0 * float(torch.maximum(levels * above, (levels - 1.0) * above).mean())


def _on_cpu(predictive: Predictive) -> Predictive:
    if isinstance(predictive, Gaussian):
        return Gaussian(predictive.mean.double().cpu(), predictive.variance.double().cpu())
    if not isinstance(predictive, GaussianMixture):  # a transformed target: ours alone, and on the CPU
        return predictive.double()
    weights = None if predictive.weights is None else predictive.weights.double().cpu()
    return GaussianMixture(predictive.means.double().cpu(), predictive.variances.double().cpu(), weights)
