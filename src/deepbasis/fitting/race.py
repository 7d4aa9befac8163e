"""A short race between ways to train networks: the winner is then trained in full."""

from __future__ import annotations

from dataclasses import replace
from os import fspath

from torch import Tensor

from deepbasis.errors import NumericalError, UnfinishedError
from deepbasis.fitting.held_out import Fold, mean_and_error
from deepbasis.fitting.plan import Candidate
from deepbasis.fitting.recipe import RECIPES, average_decay
from deepbasis.fitting.train import Runner, Trained
from deepbasis.gp.classes import Classes


def race(runner: Runner, seed: int, fold: Fold) -> tuple[Candidate, Trained | None]:
    """The winner of the plan's networks, and what there is of the first if the race was interrupted.

    Each trains one member for a few steps. The first wins unless another has a CRPS, of classes a log loss, on the rows
    to select on that is lower by two standard errors of the difference.
    """
    first, *others = runner.plan.racing
    if not others:
        return first, None
    runner = replace(runner, stage="race")
    short = _trained(runner, first, 0, seed, fold)
    so_far = replace(short, candidate=first, interrupted=True)
    if short.interrupted:
        return first, so_far
    to_beat, winner = _loss(short, fold), first
    for number, other in enumerate(others, 1):
        try:
            found = _trained(runner, other, number, seed, fold)
        except NumericalError:
            continue
        except UnfinishedError:
            return first, so_far
        if found.interrupted:
            return first, so_far
        theirs = _loss(found, fold)
        gain, error = mean_and_error(to_beat - theirs, fold.selecting.weight)
        if runner.execution.team.broadcast_object(gain > 2.0 * error):
            to_beat, winner = theirs, other
    return winner, None


def _trained(runner: Runner, candidate: Candidate, number: int, seed: int, fold: Fold) -> Trained:
    plan, settings = runner.plan, candidate.settings
    steps_an_epoch = -(-len(fold.data) // settings.batch_size) * settings.passes
    epochs = max(1, round(plan.race_steps / steps_an_epoch))
    share = RECIPES[plan.recipe].average
    average = None if share is None else average_decay(share, epochs * steps_an_epoch)
    short = replace(candidate, members=1, settings=replace(settings, epochs=epochs, average=average))
    checkpoint = runner.execution.checkpoint
    path = None if checkpoint is None else f"{fspath(checkpoint)}.race{number + 1}"
    return runner.train(short, [seed], fold.data, fold.selecting, path)


def _loss(found: Trained, fold: Fold) -> Tensor:
    rows = fold.selecting
    _, predicted = found.calibrated(found.predict(rows.x), rows)
    exactly, y = predicted.double(), rows.y.double()
    if isinstance(exactly, Classes):
        return -exactly.log_prob(y)
    loss = exactly.crps(y)
    return loss if loss.dim() == 1 else loss.mean(1)  # over several outputs
