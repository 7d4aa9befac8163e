"""A fit within a time limit: as many steps as there is time for, by the speed of a few.

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

import torch

from deepbasis.engine.batches import Rows
from deepbasis.errors import InputError, UnfinishedError
from deepbasis.fitting.held_out import Fold
from deepbasis.fitting.plan import Candidate
from deepbasis.fitting.recipe import RECIPES, average_decay
from deepbasis.fitting.train import Runner

_TRIAL_STEPS = 8
_MOST = 4.0  # times the steps of a fit without a limit: more would hardly help
_KEPT = 0.9  # of the time that is left; the rest is for what comes after, and for a machine that gets busier
_TRIAL = 0.02  # of the time left, for a short training
_TRIAL_EPOCHS = 12
_RACE = 0.15  # of the time left, for a race
_FEWEST_EXACT = 100  # steps, below which a kernel is not worth its time


def in_time(
    runner: Runner, candidate: Candidate, seeds: Sequence[int], data: Rows, selecting: Rows, share: float = 1.0
) -> Candidate | None:
    """The candidate with as many epochs as this share of the time left has room for.

    None: a kernel that there is too little time for.
    """
    deadline, settings = runner.execution.deadline, candidate.settings
    if deadline is None:
        return candidate
    an_epoch = _seconds_of_an_epoch(runner, candidate, seeds, data, selecting)
    left = share * _KEPT * (deadline - time.monotonic())
    epochs = int(left / max(an_epoch, 1e-9))
    epochs = runner.execution.team.broadcast_object(epochs)  # clocks differ
    if settings.exact:
        enough = epochs >= _FEWEST_EXACT
        return replace(candidate, settings=replace(settings, epochs=min(epochs, settings.epochs))) if enough else None
    if epochs < 1:
        raise InputError(
            f"time_limit is too short: {settings.passes} passes over the {len(data)} rows to fit take about "
            f"{an_epoch:.2g} s here, of {max(0.0, left):.2g} s that are left for them; give more, or fewer rows"
        )
    epochs = min(epochs, round(_MOST * settings.epochs))
    recipe = RECIPES[runner.plan.recipe]
    steps = epochs * settings.passes * -(-len(data) // settings.batch_size)
    changed = replace(
        settings,
        epochs=epochs,
        patience=None if settings.patience is None else max(1, round(settings.patience * epochs / settings.epochs)),
        average=None if recipe.average is None else average_decay(recipe.average, steps),
    )
    return replace(candidate, settings=changed)


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


def _seconds_of_an_epoch(
    runner: Runner, candidate: Candidate, seeds: Sequence[int], data: Rows, selecting: Rows
) -> float:
    """From short trainings on few rows: an epoch of p passes takes p s + v, of which s and v are wanted."""
    settings = candidate.settings
    few = data
    if not settings.exact and len(data) > _TRIAL_STEPS * settings.batch_size:
        few = data.where(torch.arange(len(data)) < _TRIAL_STEPS * settings.batch_size)

    def seconds(passes: int) -> float:
        """Of an epoch: the median of a few, without what comes before the first if there are more."""
        ends = [time.monotonic()]
        last = ends[0] + _TRIAL * ((runner.execution.deadline or math.inf) - ends[0])
        watching = replace(runner.execution, progress=lambda report: ends.append(time.monotonic()), deadline=last)
        quiet = replace(runner, verbose=False, execution=watching)
        trial = replace(settings, epochs=_TRIAL_EPOCHS, passes=passes, patience=None)
        with suppress(UnfinishedError):
            quiet.train(replace(candidate, settings=trial), seeds, few, selecting)
        taken = [end - begin for begin, end in pairwise([*ends, time.monotonic()])]
        return statistics.median(taken[1:-1] or taken)

    if settings.exact:
        return seconds(1)
    one, three = seconds(1), seconds(3)
    a_pass = max(0.0, three - one) / 2
    steps, of_few = (-(-len(rows) // settings.batch_size) for rows in (data, few))
    return settings.passes * a_pass * steps / of_few + max(0.0, one - a_pass)
