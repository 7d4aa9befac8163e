"""Training a candidate: its members on one set of rows, the best (alpha, beta), and their predictions."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from deepbasis.engine import device as devices
from deepbasis.engine import wire
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import INTERRUPTED, Outcome
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Ensemble
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.errors import NumericalError, UnfinishedError
from deepbasis.fitting.budget import member_bytes
from deepbasis.fitting.held_out import Fold
from deepbasis.fitting.plan import Architecture, Candidate, Plan
from deepbasis.fitting.recipe import HALF
from deepbasis.fitting.start import Line, builder, distinct_rows, starting_members, straight_lines
from deepbasis.gp import exact
from deepbasis.gp.calibration import Calibration, calibrate
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.outputs import OutputsCalibration, calibrate_outputs
from deepbasis.gp.predictive import Gaussian, Predictive
from deepbasis.progress import Progress, ProgressBar


@dataclass(frozen=True)
class Execution:
    """How a fit is run. Apart from a deadline, this does not change what is fitted."""

    checkpoint: str | PathLike[str] | None = None
    """A file to resume from."""
    checkpoint_seconds: float = 60.0
    """Seconds between two writings of it."""
    team: Team = ALONE
    progress: Progress | None = None
    """Called after every epoch, instead of a bar on the terminal."""
    member_room: int | None = None
    """Bytes that members in training may take together; by default most of what is free."""
    deadline: float | None = None
    """When a fit with a time limit must have ended, by `time.monotonic`; this does change what is fitted."""

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def share_of(self, fits: float) -> Execution:
        """For the next of so many fits, which share the time that is left."""
        if self.deadline is None or fits == 1:
            return self
        now = time.monotonic()
        return replace(self, deadline=now + (self.deadline - now) / fits)


HERE = Execution()

FAR_WORSE = 2.0
"""Times the CRPS of the members without a straight line: from there on those with one are left out."""


def deadline(time_limit: float | None, since: float | None = None) -> float | None:
    """So many seconds from now, or since a moment of `time.monotonic`."""
    return None if time_limit is None else (time.monotonic() if since is None else since) + time_limit


wire.allow(Line)


@dataclass(frozen=True)
class Trained:
    """The outcome of training a candidate."""

    candidate: Candidate
    architecture: Architecture
    """As it was built: a kernel has no more inducing points than there are distinct rows."""
    outcomes: tuple[Outcome, ...]
    """Of the members that could be trained, for the best (alpha, beta)."""
    places: tuple[int, ...]
    """Of these among all members."""
    models: tuple[DeepBasisGP, ...]
    device: torch.device
    interrupted: bool
    calibration: Calibration | OutputsCalibration | None = None

    def of(self, fold: int, folds: int) -> Trained:
        """The members that hold out a fold, where they hold out so many in turn."""
        return self._some([k for k, place in enumerate(self.places) if place % folds == fold])

    def beside(self, others: Trained) -> Trained:
        """With members of the same candidate, which hold out the same rows in the same order."""
        return replace(
            self,
            outcomes=(*self.outcomes, *others.outcomes),
            places=(*self.places, *others.places),
            models=(*self.models, *others.models),
        )

    @property
    def complete(self) -> bool:
        """Whether nothing cut its training short, not even a deadline."""
        return all(outcome.status != INTERRUPTED for outcome in self.outcomes)

    def without_misled(self) -> Trained:
        """Without the members that have a straight line for their prior mean, if it has made them far worse.

        A line that explains most of the target can still mislead a network, where many columns say the same. The rows
        to select on show it.
        """
        misled = [any(outcome.member.slope) for outcome in self.outcomes]
        if self.architecture.trend != HALF or self.candidate.settings.selection != "crps" or len(set(misled)) == 1:
            return self
        scores = np.array([outcome.best_score for outcome in self.outcomes])
        if scores[misled].mean() <= FAR_WORSE * scores[np.logical_not(misled)].mean():
            return self
        return self._some([k for k, one in enumerate(misled) if not one])

    def _some(self, mine: Sequence[int]) -> Trained:
        return replace(
            self,
            outcomes=tuple(self.outcomes[k] for k in mine),
            places=tuple(self.places[k] for k in mine),
            models=tuple(self.models[k] for k in mine),
        )

    @property
    def ensemble(self) -> Ensemble:
        return Ensemble(self.models, device=self.device, dtype=self.candidate.settings.dtype)

    @property
    def calibration_numbers(self) -> int:
        """That were fitted: scales, and their weights, which sum to 1."""
        return 2 * len(self.calibration.scales) - 1 if isinstance(self.calibration, Calibration) else 0

    def predict(self, x: torch.Tensor) -> Predictive:
        """Before calibration."""
        return self.ensemble.predict(x)

    def predict_calibrated(self, x: torch.Tensor) -> Predictive:
        predicted = self.predict(x)
        return predicted if self.calibration is None else self.calibration.apply(predicted)

    def given(self, rows: Rows) -> Trained:
        """The same kernels, with the posterior of exact inference given these rows."""
        models = deepcopy(self.models)
        for model in models:
            exact.fit_posterior(model, lambda: [(rows.x, rows.y, rows.weight)])
        return replace(self, models=models)

    def predict_one_by_one(self, rows: Rows) -> Predictive:
        """Each of these rows by the kernel's posterior given the others."""
        mean, variance = exact.leave_one_out(self.models[0], rows.x, rows.number, rows.weight)
        return Gaussian(mean.to(rows.x), variance.to(rows.x))

    def calibrated(self, predicted: Predictive, rows: Rows) -> tuple[Trained, Predictive]:
        """Calibrated on the predictions for held-out rows, if wanted; the same at every worker, since each has all of
        these rows."""
        scales, several = self.candidate.calibrate, self.architecture.outputs > 0
        if not scales and not several:
            return self, predicted
        found: Calibration | OutputsCalibration
        if several:
            found = calibrate_outputs(predicted, rows.y, rows.weight, scales=scales)
        else:
            found = calibrate(predicted, rows.y, rows.weight)
        return replace(self, calibration=found), found.apply(predicted)


@dataclass(frozen=True)
class Runner:
    """Trains candidates of one plan."""

    plan: Plan
    columns: int
    execution: Execution = HERE
    verbose: bool = False
    started: float = field(default_factory=time.monotonic)
    stage: str = ""
    """For people: what its trainings are for, such as "race"."""
    slopes: torch.Tensor | None = None
    """Of networks, along each column: where the lengthscales of kernels start, if there are any."""

    def name_of(self, candidate: Candidate) -> str:
        """For people: the method, and which of the plan's candidates it is, however long it is trained."""
        place, count = self.plan.place_of(candidate), len(self.plan.candidates)
        number = [] if place is None or count == 1 else [f"candidate {1 + place} of {count}"]
        words = [self.stage] * bool(self.stage) + number
        return candidate.architecture.method + (f" ({', '.join(words)})" if words else "")

    def train(
        self,
        candidate: Candidate,
        seeds: Sequence[int],
        data: Rows | Stream,
        selecting: Rows,
        checkpoint: str | PathLike[str] | None = None,
        *,
        start: Rows | None = None,
        wave_size: int | None = None,
    ) -> Trained:
        """Every member, for every (alpha, beta), in one run. `start` are rows to start from, for a stream.

        Rows may have weights for each member; they are the same for every (alpha, beta).
        """
        team = self.execution.team
        rows = data if isinstance(data, Rows) else start if start is not None else selecting
        architecture = candidate.architecture
        from_rows = architecture.is_shallow and self.plan.start_from_data and not METHODS[architecture.method].is_line
        if from_rows and isinstance(data, Rows):
            architecture = replace(architecture, rank=min(architecture.rank, distinct_rows(rows)))
        lines: list[Line] = []
        if self.plan.start_from_data or architecture.trend == "linear":
            lines = team.broadcast_object(straight_lines(rows, architecture.outputs))
        members = starting_members(candidate, team.broadcast_object(list(seeds)), lines, self.plan.start_from_data)
        again = list(range(len(seeds))) * len(candidate.weights)
        data = data.seen_by(again) if isinstance(data, Rows) else data
        validation = selecting.seen_by(again)
        at = rows if from_rows or architecture.embedding != "none" else None
        build = builder(architecture, self.columns, at, self.slopes)
        device = torch.device(self.plan.device)
        in_threads = self.plan.member_threads and team.alone
        room = self.execution.member_room
        if room is not None and wave_size is None and device.type == "cpu":
            fitting = max(1, room // member_bytes(candidate, self.columns))
            if fitting < len(members):
                wave_size, in_threads = fitting, False

        show_bar = self.verbose and self.execution.progress is None and team.first
        with (
            ProgressBar(what=self.name_of(candidate), since=self.started)
            if show_bar
            else nullcontext(self.execution.progress) as progress
        ):
            outcomes = train(
                build,
                members,
                data,
                validation,
                candidate.settings,
                device=device,
                progress=progress,
                checkpoint=checkpoint,
                checkpoint_seconds=self.execution.checkpoint_seconds,
                wave_size=wave_size,
                threads=(self.plan.jobs or devices.usual_threads()) if in_threads else None,
                team=team,
                deadline=self.execution.deadline,
            )
        chosen = _best_weights(outcomes, len(candidate.weights))
        models = tuple(outcomes[k].model(lambda member: architecture.build(self.columns, member)) for k in chosen)
        late = self.execution.deadline is not None and team.agree(self.execution.out_of_time)  # clocks differ
        interrupted = any(outcome.status == INTERRUPTED for outcome in outcomes) and not late
        places = tuple(k % len(seeds) for k in chosen)
        found = Trained(
            candidate, architecture, tuple(outcomes[k] for k in chosen), places, models, device, interrupted
        )
        if candidate.settings.objective == "mse":
            _give_residual_variance(found, selecting)
        return found


def _best_weights(outcomes: list[Outcome], pairs: int) -> list[int]:
    """The places of the members of the (alpha, beta) with fewest failures, then with the best mean score."""
    size = len(outcomes) // pairs
    usable = [
        [place for place in range(k, k + size) if outcomes[place].best_epoch > 0] for k in range(0, len(outcomes), size)
    ]
    best = min(
        usable, key=lambda some: (-len(some), np.mean([outcomes[k].best_score for k in some]) if some else math.inf)
    )
    if best:
        return best
    if any(outcome.status == INTERRUPTED for outcome in outcomes):
        raise UnfinishedError("the fit was interrupted before its first epoch had ended")
    reasons = sorted({outcome.reason or outcome.status for outcome in outcomes})
    raise NumericalError(f"no member could be trained: {'; '.join(reasons)}; try a smaller learning_rate")


def _give_residual_variance(found: Trained, rows: Rows) -> None:
    """A DNN has no variance of its own: each member predicts with that of its residuals on the held-out rows.

    NOTE[DIFF]: the paper's DNN predicts no distribution.
    """
    with torch.no_grad():
        for place, model, mean in zip(found.places, found.models, found.ensemble.means(rows.x), strict=True):
            weight = rows.weight[place] if rows.weight is not None and rows.of_members else rows.weight
            model.set_residual_variance(float(weighted_mean((rows.y - mean).square(), weight)))


def drawn(rows: Rows, most: int | None) -> Rows:
    """These rows, or so many of them."""
    if most is None or len(rows) <= most:
        return rows
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return rows.where(order < most)


def by_folds(found: Trained, folds: list[Fold]) -> list[tuple[Trained, Fold]]:
    """Each fold with the members that hold it out, if there are any."""
    parts = [(found.of(k, len(folds)), fold) for k, fold in enumerate(folds)]
    return [(members, fold) for members, fold in parts if members.models]


def predict_held_out(parts: Sequence[tuple[Trained, Fold]]) -> Predictive:
    """The rows that each fold holds out, predicted by its own members: as many for each row as all folds have."""
    count = min(len(found.models) for found, _ in parts)
    first, *others = (replace(found, models=found.models[:count]).predict(fold.held_out.x) for found, fold in parts)
    return first.followed_by(others)


def draw_seeds(random_state: Any, count: int) -> list[int]:
    """From None, an integer or a numpy RandomState. None is numpy's global state: `np.random.seed` holds."""
    if not isinstance(random_state, int):
        drawn = (np.random if random_state is None else random_state).randint(2**31 - 1, size=count)
        return [int(seed) for seed in drawn]
    return [int(seed) for seed in np.random.default_rng(random_state).integers(2**31, size=count)]
