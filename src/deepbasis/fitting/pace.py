"""A fit within a time limit: as many steps as there is time for, by the speed of a few, and then more members.

Without a limit nothing here is done, and nothing depends on the clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from os import PathLike

import torch

from deepbasis.engine import device as devices
from deepbasis.engine.batches import Rows
from deepbasis.errors import InputError, NumericalError, UnfinishedError
from deepbasis.fitting.held_out import Fold
from deepbasis.fitting.plan import Candidate
from deepbasis.fitting.recipe import FEWEST_PATIENCE, RECIPES, average_decay
from deepbasis.fitting.train import Execution, Runner, Trained, drawn
from deepbasis.progress import EpochReport

_TRIAL_STEPS = 8
_MOST = 4.0  # times the steps of a fit without a limit: more would hardly help
_KEPT = 0.9  # of the time that is left; the rest is for a machine that gets busier
_AFTER, _AFTER_A_ROW = 0.2, 2e-5  # seconds to calibrate, score and diagnose
_MOST_AFTER = 0.2  # of the time left
_TRIAL = 0.05  # of the time left, for short trainings
_TRIAL_EPOCHS = 12
_RACE = 0.2  # of the time left, for a race
_FEWEST_EXACT = 100  # steps of AdamW, below which a kernel is not worth its time
_USUAL_SEARCH = 60  # evaluations of L-BFGS until the likelihood no longer grows
_LEAST_OF_NETWORKS, _MOST_OF_NETWORKS = 0.5, 0.9  # of the time left, where kernels follow


def before_scoring(execution: Execution, rows: int) -> Execution:
    """With an earlier deadline, for trainings alone: time to calibrate, score and diagnose is left after it."""
    if execution.deadline is None:
        return execution
    left = max(0.0, execution.deadline - time.monotonic())
    return replace(execution, deadline=execution.deadline - min(_seconds_after(rows), _MOST_AFTER * left))


def trained_in_time(
    runner: Runner,
    candidate: Candidate,
    seeds: Sequence[int],
    data: Rows,
    selecting: Rows,
    share: float = 1.0,
    checkpoint: str | PathLike[str] | None = None,
    spare: Sequence[int] = (),
) -> Trained | None:
    """Trained in full, or for as long as this share of what is left of a time limit lets it.

    If time is left then, members of the spare seeds join those of the others. None: a kernel that there is too little
    time for.
    """
    if runner.execution.deadline is None:
        return runner.train(candidate, seeds, data, selecting, checkpoint)
    is_search = candidate.settings.optimiser == "lbfgs"
    own = replace(runner, execution=runner.execution.share_of(1.0 / (_KEPT * share if is_search else share)))
    if not is_search:
        planned = in_time(own, candidate, seeds, data, selecting)
        if planned is None:
            return None
        begun = time.monotonic()
        found = own.train(planned, seeds, data, selecting)
        if spare:
            found = _with_more(own, found, spare, data, selecting, time.monotonic() - begun)
        return replace(found, candidate=candidate)
    try:  # L-BFGS has no schedule: it can end at any time
        return own.train(candidate, seeds, data, selecting)
    except UnfinishedError:
        if runner.execution.team.agree(own.execution.out_of_time):
            return None
        raise


def _with_more(
    runner: Runner, found: Trained, spare: Sequence[int], data: Rows, selecting: Rows, taken: float
) -> Trained:
    """Members of the spare seeds beside the others, if there is time to train them in full: those took `taken`."""
    left = _KEPT * ((runner.execution.deadline or math.inf) - time.monotonic())
    if found.interrupted or not runner.execution.team.broadcast_object(taken <= left):
        return found
    best = found.outcomes[0].member
    again = replace(found.candidate, weights=((best.alpha, best.beta),))
    with suppress(NumericalError, UnfinishedError):
        more = runner.train(again, spare, data, selecting)
        if more.interrupted:
            return replace(found, interrupted=True)
        if not runner.execution.team.agree(not more.complete):
            return found.beside(more)
    return found


def in_time(
    runner: Runner, candidate: Candidate, seeds: Sequence[int], data: Rows, selecting: Rows
) -> Candidate | None:
    """The candidate with as many epochs as there is time for; None: a kernel that there is too little time for."""
    deadline, settings = runner.execution.deadline, candidate.settings
    if deadline is None:
        return candidate
    an_epoch = _seconds_of_an_epoch(runner, candidate, seeds, data, selecting)
    left = _KEPT * (deadline - time.monotonic())
    epochs = int(left / max(an_epoch, 1e-9))
    epochs = runner.execution.team.broadcast_object(epochs)  # clocks differ
    if settings.exact:
        enough = epochs >= min(_FEWEST_EXACT, settings.epochs)
        return replace(candidate, settings=replace(settings, epochs=min(epochs, settings.epochs))) if enough else None
    if epochs < 1:
        raise InputError(
            f"time_limit is too short: {settings.passes} passes over the {len(data)} rows to fit take about "
            f"{an_epoch:.2g} s here, of {max(0.0, left):.2g} s that are left for them; give more, or fewer rows"
        )
    epochs = min(epochs, round(_MOST * settings.epochs))
    recipe = RECIPES[runner.plan.recipe]
    steps = epochs * settings.passes * -(-len(data) // settings.batch_size)

    patience = settings.patience
    if patience is not None:
        patience = max(min(patience, FEWEST_PATIENCE), round(patience * epochs / settings.epochs))
    changed = replace(
        settings,
        epochs=epochs,
        patience=patience,
        average=None if recipe.average is None else average_decay(recipe.average, steps),
    )
    return replace(candidate, settings=changed)


def share_of_networks(runner: Runner, seed: int, folds: Sequence[Fold]) -> float:
    """What the first network has of the time left: what kernels will not need, by the speed of the first of them."""
    deadline, plan = runner.execution.deadline, runner.plan
    if deadline is None or not plan.kernels:
        return 0.5 if plan.alternatives else 1.0
    kernel, fold = plan.kernels[0], folds[0]
    with devices.torch_threads(1):
        data = drawn(fold.data, kernel.learns_from)
        an_evaluation = _seconds_of_an_epoch(runner, kernel, [seed], data, fold.selecting)
    evaluations = _USUAL_SEARCH if kernel.settings.optimiser == "lbfgs" else kernel.settings.epochs
    needed = max(1, trainings_of(plan.kernels, len(folds))) * min(evaluations, kernel.settings.epochs) * an_evaluation
    needed += _seconds_after(len(fold.data))  # their calibration, which comes before the kernels
    share = 1.0 - needed / max(_KEPT * (deadline - time.monotonic()), 1e-9)
    share = min(max(share, _LEAST_OF_NETWORKS), _MOST_OF_NETWORKS)
    return float(runner.execution.team.broadcast_object(share))


def trainings_of(kernels: Sequence[Candidate], folds: int) -> int:
    """How many long trainings these kernels are: one each, and one for each fold if they are judged apart; a straight
    line takes next to no time."""
    long = [kernel for kernel in kernels if not kernel.one_by_one]
    return len(long) + (folds if any(kernel.trained_apart for kernel in long) else 0)


def has_time_to_race(runner: Runner, seed: int, fold: Fold) -> bool:
    """Whether the race between networks takes a small part of the time left."""
    deadline, plan = runner.execution.deadline, runner.plan
    if deadline is None or len(plan.racing) == 1:
        return True
    settings = plan.networks[0].settings
    an_epoch = _seconds_of_an_epoch(runner, plan.networks[0], [seed], fold.data, fold.selecting)
    epochs = plan.race_steps / (settings.passes * -(-len(fold.data) // settings.batch_size))
    enough = len(plan.networks) * max(1.0, epochs) * an_epoch <= _RACE * (deadline - time.monotonic())
    return bool(runner.execution.team.broadcast_object(enough))


def _seconds_after(rows: int) -> float:
    return _AFTER + _AFTER_A_ROW * rows


def _seconds_of_an_epoch(
    runner: Runner, candidate: Candidate, seeds: Sequence[int], data: Rows, selecting: Rows
) -> float:
    """From a short training, or from two on few rows: an epoch of p passes takes p s + v, of which s and v are wanted.

    Of all members: where some are trained after others, their epochs count together.
    """
    settings, turns = candidate.settings, [1]
    few = data
    if not settings.exact and len(data) > _TRIAL_STEPS * settings.batch_size:
        few = data.where(torch.arange(len(data)) < _TRIAL_STEPS * settings.batch_size)

    def seconds(passes: int, share: float) -> float:
        """Of an epoch: the median of a few, without what comes before the first if there are more."""
        ends = [time.monotonic()]
        last = ends[0] + share * ((runner.execution.deadline or math.inf) - ends[0])

        def note(report: EpochReport) -> None:
            ends.append(time.monotonic())
            turns.append(report.turns)

        watching = replace(runner.execution, progress=note, deadline=last)
        quiet = replace(runner, verbose=False, execution=watching)
        trial = replace(settings, epochs=_TRIAL_EPOCHS, passes=passes, patience=None)
        with suppress(UnfinishedError):
            quiet.train(replace(candidate, settings=trial), seeds, few, selecting)
        taken = [end - begin for begin, end in pairwise([*ends, time.monotonic()])]
        return statistics.median(taken[1:-1] or taken[:1])

    if few is data:
        return seconds(settings.passes, _TRIAL) * max(turns)
    one, three = seconds(1, 0.5 * _TRIAL), seconds(3, 0.5 * _TRIAL)
    a_pass = max(0.0, three - one) / 2
    steps, of_few = (-(-len(rows) // settings.batch_size) for rows in (data, few))
    return max(turns) * (settings.passes * a_pass * steps / of_few + max(0.0, one - a_pass))
