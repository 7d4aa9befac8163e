"""From a plan and data to a `Fitted`: train the candidates, choose between them, calibrate, score.

Kernels compete by likelihood; the best kernel and the networks by how they predict rows that they have not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from os import fspath
from typing import Any

import numpy as np

from deepbasis.engine import device as devices
from deepbasis.engine.batches import Rows
from deepbasis.errors import NumericalError, UnfinishedError
from deepbasis.fitting.data import TableData
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.held_out import Fold, baseline, join_rows, limit_copies, scores_and_doubt
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.fitting.train import HERE, Execution, Runner, Trained
from deepbasis.gp import metrics
from deepbasis.gp.predictive import Gaussian, Predictive
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.targets import TargetScaler

INTERRUPTED_FIT = "the fit was interrupted: this is the best so far"


def fit_table(spec: Spec, plan: Plan, data: TableData, execution: Execution = HERE) -> Fitted:
    """Fit a table in memory."""
    runner = Runner(plan, data.preprocessor.width, execution, spec.verbose)
    folds = data.folds(plan)
    with devices.one_thread() if plan.one_thread else nullcontext():
        networks, predicted, folds = _train_networks(runner, spec, folds)
        held_out = join_rows([fold.held_out for fold in folds])
        selecting = folds[0].selecting if len(folds) == 1 else limit_copies(held_out, plan.copies_limit)
        best, predicted = networks.calibrated(predicted, selecting)
        several = len(plan.candidates) > 1 or len(data.held_out) > 1  # else a large table is not held twice
        everything = data.everything(folds[0].data.x.dtype) if several else folds[0].data
        if len(plan.candidates) > 1 and not best.interrupted:
            best, predicted = _try_kernels(runner, spec, best, predicted, everything, folds, selecting)
        known = everything if len(data.held_out) > 1 else folds[0].data
        scores, doubt = scores_and_doubt(predicted, held_out, baseline(known), data.target)
    return _finished(spec, plan, best, data.preprocessor, data.target, scores, data.rows_given, [*data.warnings, doubt])


def fit_stream(spec: Spec, plan: Plan, data: StreamData, execution: Execution = HERE) -> Fitted:
    """Fit a table that does not fit into memory."""
    candidate, team = plan.candidates[0], execution.team
    validation = data.validation(candidate.settings.dtype)
    selecting = limit_copies(validation, plan.copies_limit)
    room = data.room(plan, validation, team)
    seeds = team.broadcast_object(draw_seeds(spec.random_state, candidate.members))
    runner = Runner(plan, data.preprocessor.width, execution, spec.verbose)
    encoder = data.encoder(candidate.settings.dtype)
    with data.survey.stream(encoder, plan, room.sizes, seeds[0], team) as stream:
        best = runner.train(
            candidate, seeds, stream, selecting, execution.checkpoint, start=validation, wave_size=room.members
        )
    best, _ = best.calibrated(best.predict(selecting.x), selecting)
    predicted = best.predict(validation.x)
    if best.calibration is not None:
        predicted = best.calibration.apply(predicted)
    spread = data.survey.statistics.target_moments.std / data.target.scale
    constant = Gaussian(validation.y.new_zeros(1), validation.y.new_full((1,), spread).square())
    scores, doubt = scores_and_doubt(predicted, validation, constant, data.target)
    return _finished(spec, plan, best, data.preprocessor, data.target, scores, data.survey.source.rows, [doubt])


def _finished(
    spec: Spec,
    plan: Plan,
    best: Trained,
    preprocessor: Preprocessor,
    target: TargetScaler,
    scores: dict[str, float],
    rows: int,
    warnings: Sequence[str],
) -> Fitted:
    interrupted = [INTERRUPTED_FIT] * best.interrupted
    member = best.outcomes[0].member
    return Fitted(
        spec=spec,
        plan=plan,
        chosen=plan.candidates.index(best.candidate),
        architecture=best.architecture,
        preprocessor=preprocessor,
        target=target,
        models=best.models,
        calibration=best.calibration,
        alpha=member.alpha,
        beta=member.beta,
        history=tuple({name: v.numpy() for name, v in one.history.items()} for one in best.outcomes),
        validation=scores,
        rows=rows,
        device=best.device,
        interrupted=best.interrupted,
        warnings=tuple(text for text in (*plan.warnings, *interrupted, *warnings) if text),
    )


def _train_networks(runner: Runner, spec: Spec, folds: list[Fold]) -> tuple[Trained, Predictive, list[Fold]]:
    """The first candidate, some members for each fold: what they predict for rows that they hold out, and their folds.

    A fold that fails, or is not reached, is left out and the others are kept. Each has a checkpoint of its own.
    """
    candidate, checkpoint = runner.plan.candidates[0], runner.execution.checkpoint
    seeds = draw_seeds(spec.random_state, candidate.members)
    if len(folds) == 1:
        found = runner.train(candidate, seeds, folds[0].data, folds[0].selecting, checkpoint)
        return found, found.predict(folds[0].held_out.x), folds
    parts: list[tuple[Trained, Fold]] = []
    failure: BaseException | None = None
    interrupted = False
    for k, fold in enumerate(folds[: candidate.members]):
        own = seeds[k :: len(folds)]
        path = None if checkpoint is None else f"{fspath(checkpoint)}.{k + 1}"
        try:
            # A fold is a fit of its own: its seeds are drawn from the first that it has.
            found = runner.train(candidate, draw_seeds(own[0], len(own)), fold.data, fold.selecting, path)
            interrupted = found.interrupted
            parts.append((found, fold))
        except (UnfinishedError, NumericalError) as error:
            failure, interrupted = error, isinstance(error, UnfinishedError)
        if interrupted:
            break
    if failure is not None and not parts:
        raise failure
    predicted = predict_held_out(parts)
    joined = replace(
        parts[0][0],
        outcomes=tuple(outcome for found, _ in parts for outcome in found.outcomes),
        models=tuple(model for found, _ in parts for model in found.models),
        interrupted=interrupted,
    )
    return joined, predicted, [fold for _, fold in parts]


def _try_kernels(
    runner: Runner,
    spec: Spec,
    networks: Trained,
    predicted: Predictive,
    everything: Rows,
    folds: list[Fold],
    selecting: Rows,
) -> tuple[Trained, Predictive]:
    """The networks, or the likeliest kernel if it predicts the held-out rows at least as well."""
    seed = spec.random_state
    if not isinstance(seed, int):  # all kernels start from the same seed
        seed = draw_seeds(seed, networks.candidate.members)[0]
    fitted: list[tuple[float, Trained]] = []
    interrupted = False
    for candidate in runner.plan.candidates[1:]:
        with suppress(NumericalError):  # the others are kept
            try:
                kernel = runner.train(candidate, draw_seeds(seed, candidate.members), everything, selecting)
                interrupted = kernel.interrupted
            except UnfinishedError:
                interrupted = True
            if interrupted:
                break
            criterion = schwarz_criterion(kernel, everything)
            if math.isfinite(criterion):
                fitted.append((criterion, kernel))
    networks = replace(networks, interrupted=interrupted)
    if not fitted:
        return networks, predicted
    _, likelier = fitted[runner.execution.team.broadcast_object(int(np.argmin([criterion for criterion, _ in fitted])))]
    theirs, as_good = predicted, False
    with suppress(NumericalError):
        # The posterior has a closed form: only a kernel's parameters and inducing points have seen the held-out rows.
        found = predict_held_out([(likelier.given(fold.data), fold) for fold in folds])
        likelier, theirs = likelier.given(everything).calibrated(found, selecting)
        likelier = replace(likelier, interrupted=interrupted)
        as_good = is_as_good(theirs, predicted, selecting)
    return (likelier, theirs) if runner.execution.team.broadcast_object(as_good) else (networks, predicted)


def predict_held_out(parts: Sequence[tuple[Trained, Fold]]) -> Predictive:
    """The rows that each fold holds out, predicted by its own members: as many for each row as all folds have."""
    count = min(len(found.models) for found, _ in parts)
    first, *others = (replace(found, models=found.models[:count]).predict(fold.held_out.x) for found, fold in parts)
    return first.followed_by(others)


def schwarz_criterion(kernel: Trained, data: Rows) -> float:
    """Half of it: minus the bound on the likelihood, and log(n) / 2 for each parameter of the kernel.

    Infinite if its training failed.
    """
    last = {name: float(values[-1]) for name, values in kernel.outcomes[0].history.items()}
    if not all(map(math.isfinite, last.values())):
        return math.inf
    n = len(data) if data.weight is None else float(data.weight.sum())
    numbers = sum(value.numel() for name, value in kernel.models[0].expansion.named_parameters() if name != "Z")
    return n * last["train_loss"] + 0.5 * math.log(max(n, 1.0)) * numbers


def is_as_good(kernel: Predictive, networks: Predictive, held_out: Rows) -> bool:
    """Whether its NLL on the held-out rows is no higher than that of the networks, which were calibrated on them."""
    ours, theirs = (float(metrics.nll(predicted, held_out.y, held_out.weight)) for predicted in (kernel, networks))
    return math.isfinite(ours) and not ours > theirs


def draw_seeds(random_state: Any, count: int) -> list[int]:
    """From None, an integer or a numpy RandomState; numpy's global state stays as it was."""
    if isinstance(random_state, np.random.RandomState):
        return [int(seed) for seed in random_state.randint(2**31 - 1, size=count)]
    return [int(seed) for seed in np.random.default_rng(random_state).integers(2**31, size=count)]
