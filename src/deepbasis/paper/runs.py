"""Training as the experiments do it: a stack of members on one split, and each member's scores on the test rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import INTERRUPTED, Outcome
from deepbasis.engine.members import Build, Ensemble, Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.gp import metrics
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import Gaussian, GaussianMixture
from deepbasis.progress import Progress


@dataclass(frozen=True)
class Run:
    """Members trained together."""

    outcomes: list[Outcome]
    build: Build
    settings: Settings
    seconds: float
    """Of the training, compilation included."""

    def model(self, k: int) -> DeepBasisGP:
        return self.outcomes[k].model(self.build)

    def predict(self, x: Tensor, device: torch.device | str = "cpu") -> list[Gaussian]:
        """Each member's own prediction. A member without usable parameters predicts NaN."""
        usable = [k for k, outcome in enumerate(self.outcomes) if outcome.best_epoch > 0]
        nothing = Gaussian(torch.full_like(x[:, 0], torch.nan), torch.full_like(x[:, 0], torch.nan))
        predictions = [nothing] * len(self.outcomes)
        if usable:
            models = [self.model(k) for k in usable]
            dtype = self.settings.dtype
            ensemble = Ensemble(models, device=device, dtype=dtype)
            if self.settings.objective == "mse":  # a DNN has no distribution
                means = ensemble.means(x)
                variances = torch.full_like(means, torch.nan)
            else:
                mixture = ensemble.predict(x)
                assert isinstance(mixture, GaussianMixture)
                means, variances = mixture.means, mixture.variances
            for k, mean, variance in zip(usable, means, variances, strict=True):
                predictions[k] = Gaussian(mean, variance)
        return predictions

    def records(self, test: Rows, device: torch.device | str = "cpu") -> list[dict[str, Any]]:
        """For each member: seed and weights, its result on the validation rows, its scores on the test rows."""
        return [
            {
                "seed": outcome.member.seed,
                "alpha": outcome.member.alpha,
                "beta": outcome.member.beta,
                "status": outcome.status,
                "best_epoch": outcome.best_epoch,
                "epochs": len(outcome.history["validation"]),
                "validation": outcome.best_score if outcome.best_epoch else None,
                **self._scores(prediction, test.y),
            }
            for outcome, prediction in zip(self.outcomes, self.predict(test.x, device), strict=True)
        ]

    def _scores(self, prediction: Gaussian, y: Tensor) -> dict[str, float | None]:
        if not bool(prediction.mean.isfinite().all()):
            return {"mae": None, "rmse": None, "nll": None, "crps": None}
        scores: dict[str, float | None] = {**metrics.evaluate(prediction, y)}
        if self.settings.objective == "mse":
            return {name: scores[name] for name in ("mae", "rmse")}
        return scores


def fit(
    build: Build,
    members: Sequence[Member],
    data: Rows,
    validation: Rows,
    settings: Settings,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Run:
    """Train; a Ctrl-C is passed on, since a half-trained part is not a part."""
    start = time.monotonic()
    outcomes = train(
        build, members, data, validation, settings, device=device, progress=progress, checkpoint=checkpoint
    )
    if any(outcome.status == INTERRUPTED for outcome in outcomes):
        raise KeyboardInterrupt
    return Run(outcomes, build, settings, time.monotonic() - start)
