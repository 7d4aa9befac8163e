"""From a plan and data to a `Fitted`: train the candidates, choose between them, calibrate, score.

Kernels compete by likelihood; the best kernel and the networks by how they predict rows that they have not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

import numpy as np
import torch

from deepbasis.engine import device as devices
from deepbasis.engine.batches import Rows
from deepbasis.errors import InputError, NumericalError, UnfinishedError
from deepbasis.fitting.criteria import found_little, is_as_good, schwarz_criterion
from deepbasis.fitting.data import TableData
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.diagnosis import diagnose
from deepbasis.fitting.distance import AS_GOOD, FEWEST_ROWS, KERNEL_ROWS, Distance, Kernel
from deepbasis.fitting.finish import INTERRUPTED_FIT, finished
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.held_out import Fold, baseline, class_shares, join_rows, limit_copies, scores_and_doubt
from deepbasis.fitting.kinds import AUTO
from deepbasis.fitting.pace import before_scoring, has_time_to_race, share_of_networks, trained_in_time, trainings_of
from deepbasis.fitting.plan import Candidate, Plan
from deepbasis.fitting.race import race
from deepbasis.fitting.slopes import STEEP_ROWS, steepness
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.fitting.train import HERE, Execution, Runner, Trained, by_folds, draw_seeds, drawn, predict_held_out
from deepbasis.fitting.update import learned, learned_from_stream, log_likelihoods, promised
from deepbasis.gp import metrics
from deepbasis.gp.expansion import RBF
from deepbasis.gp.outputs import Outputs
from deepbasis.gp.predictive import Gaussian, Predictive


def fit_table(
    spec: Spec, plan: Plan, data: TableData, execution: Execution = HERE, max_steps: int | None = None
) -> Fitted:
    """Fit a table in memory; of a cross-conformal promise also without each part of its rows, by a plan of its own."""
    found, folds = _fit_rows(spec, plan, data, execution.share_of(1 + len(data.without))), []
    for k, part in enumerate(data.without):
        interrupted = found.interrupted
        if not interrupted:
            again = replace(execution.share_of(len(data.without) - k), checkpoint=None)
            try:
                folds.append(_fit_rows(spec, make_plan(spec, part.facts(spec), max_steps), part, again))
                interrupted = folds[-1].interrupted
            except UnfinishedError:
                interrupted = True
        if interrupted:
            return replace(found, interrupted=True, warnings=(*dict.fromkeys((*found.warnings, INTERRUPTED_FIT)),))
    return replace(found, folds=tuple(folds))


def _fit_rows(spec: Spec, plan: Plan, data: TableData, execution: Execution) -> Fitted:
    runner = Runner(plan, data.preprocessor.width, before_scoring(execution, data.rows_given), spec.verbose)
    parts = folds = data.folds(plan)
    with devices.torch_threads(plan.threads):
        networks, predicted, folds = _train_networks(runner, spec, data, folds)
        held_out = join_rows([fold.held_out for fold in folds])
        selecting = folds[0].selecting if len(folds) == 1 else limit_copies(held_out, plan.copies_limit)
        best, predicted = networks.calibrated(predicted, selecting)
        several = bool(plan.kernels) or len(data.held_out) > 1  # else a large table is not held twice
        everything = data.everything(folds[0].data.x.dtype) if several else folds[0].data
        if plan.kernels and not best.interrupted:
            with devices.torch_threads(1):  # a line of a long table is little work too
                best, predicted = _try_kernels(runner, spec, data, best, predicted, folds, selecting)
        known, outputs = everything if len(data.held_out) > 1 else folds[0].data, len(data.target.outputs)
        constant = class_shares(known, data.target.classes) if data.target.classes else baseline(known, outputs)
        scores, doubt = scores_and_doubt(predicted, held_out, constant, data.target)
        novelty, far = data.novelty(), None
        if plan.distance is not None:
            judging, far = folds[0].held_out, Distance.fit(data.encoded.x, data.preprocessor, best.models)
            far = _with_kernel(far, runner, best, folds[0].data, judging, predicted[: len(judging)])
        health = diagnose(predicted, held_out, known, best.predict_calibrated, data.target, data.preprocessor)
        fitted_to = [everything if best.candidate.on_all_rows else parts[k % len(parts)].data for k in best.places]
        objective = best.candidate.settings.objective
        sums = learned(best.models, objective, best.outcomes[0].member.beta, fitted_to)
        likely = log_likelihoods(best.models, objective, fitted_to, data.target)
    found = finished(spec, plan, best, data.preprocessor, data.target, novelty, scores, data.rows_given, [doubt])
    found = replace(found, diagnosis=health, statistics=sums, distance=far, log_likelihoods=likely)
    return promised(found, data.apart)


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
        beta = best.outcomes[0].member.beta
        sums = learned_from_stream(best.models, candidate.settings.objective, beta, stream, validation, team)
    best, _ = best.calibrated(best.predict(selecting.x), selecting)
    predicted = best.predict(validation.x)
    if best.calibration is not None:
        predicted = best.calibration.apply(predicted)
    if data.target.classes:
        constant: Gaussian | Outputs | torch.Tensor = class_shares(validation, data.target.classes)
    elif data.target.outputs:
        constant = baseline(validation, len(data.target.outputs))
    else:
        spread = data.survey.statistics.target_moments.std / data.target.scale if data.target.warp is None else 1.0
        constant = Gaussian(validation.number.new_zeros(1), validation.number.new_full((1,), spread).square())
    scores, doubt = scores_and_doubt(predicted, validation, constant, data.target)
    novelty, rows = data.novelty(validation), data.survey.source.rows
    found = finished(spec, plan, best, data.preprocessor, data.target, novelty, scores, rows, [doubt])
    health = diagnose(predicted, validation, validation, best.predict_calibrated, data.target, data.preprocessor)
    far = None
    if plan.distance is not None:
        known = torch.arange(len(validation)) % 2 == 0  # a stream has no other rows at hand
        far = Distance.fit(data.some, data.preprocessor, best.models)
        far = _with_kernel(far, runner, best, validation.where(known), validation.where(~known), predicted[~known])
    return promised(replace(found, diagnosis=health, statistics=sums, distance=far), data.apart())


def _with_kernel(
    distance: Distance, runner: Runner, networks: Trained, rows: Rows, held_out: Rows, predicted: Predictive
) -> Distance:
    """The same with the plan's kernel of some rows, if it predicts the held-out ones about as well as the networks."""
    candidate = None if runner.plan.distance is None else runner.plan.distance.kernel
    needless = networks.candidate.architecture.is_shallow or networks.interrupted
    if candidate is None or needless or min(len(rows), len(held_out)) < FEWEST_ROWS:
        return distance
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    some = rows.where(order.argsort() < KERNEL_ROWS)
    with suppress(NumericalError, UnfinishedError):
        kernel = trained_in_time(runner, candidate, [0], some, held_out)
        if kernel is None:
            return distance
        found = kernel.predict(held_out.x)
        ours, theirs = (
            float(metrics.crps(one.double(), held_out.y.double(), held_out.weight)) for one in (found, predicted)
        )
        if runner.execution.team.broadcast_object(not kernel.interrupted and ours <= AS_GOOD * theirs):
            return replace(distance, kernel=Kernel.of(kernel.models[0].cpu(), kernel.architecture, found))
    return distance


def _train_networks(
    runner: Runner, spec: Spec, data: TableData, folds: list[Fold]
) -> tuple[Trained, Predictive, list[Fold]]:
    """The best network, some members for each fold: what they predict for rows that they hold out, and their folds.

    A fold whose members fail is left out and the others are kept.
    """
    candidate = runner.plan.candidates[0]
    count = candidate.members
    limited = spec.members == AUTO and runner.execution.deadline is not None
    drawn = draw_seeds(spec.random_state, 2 * count if limited else count)
    seeds, spare = drawn[:count], drawn[count:]
    racing = has_time_to_race(runner, seeds[0], folds[0])
    winner, found = race(runner, seeds[0], folds[0]) if racing else (candidate, None)
    several = len(folds) > 1
    rows = data.by_turns(folds, len(seeds)) if several else (folds[0].data, folds[0].selecting)
    if found is None:
        share = share_of_networks(runner, seeds[0], folds)
        found = trained_in_time(runner, winner, seeds, *rows, share, runner.execution.checkpoint, spare)
        found = found or runner.train(winner, seeds, *rows)
        found = found if several else found.without_misled()
    found = _or_another(runner, found, seeds, *rows)
    if not several:
        return found, found.predict(folds[0].held_out.x), folds
    parts = by_folds(found, folds)
    return found, predict_held_out(parts), [fold for _, fold in parts]


def _or_another(runner: Runner, found: Trained, seeds: list[int], data: Rows, selecting: Rows) -> Trained:
    """What was trained, or an alternative whose members have better scores on the rows that they hold out."""
    for candidate in runner.plan.alternatives:
        if found.interrupted:
            break
        try:
            other = trained_in_time(runner, candidate, seeds, data, selecting)
        except (InputError, NumericalError):  # there is no time for it, or it failed
            continue
        except UnfinishedError:
            return replace(found, interrupted=True)
        if other is None:
            continue
        if other.interrupted:
            return replace(found, interrupted=True)
        ours, theirs = (fmean(outcome.best_score for outcome in one.outcomes) for one in (found, other))
        if runner.execution.team.broadcast_object(theirs < ours):
            found = other
    return found


def _try_kernels(
    runner: Runner,
    spec: Spec,
    data: TableData,
    networks: Trained,
    predicted: Predictive,
    folds: list[Fold],
    selecting: Rows,
) -> tuple[Trained, Predictive]:
    """The networks, or the likeliest kernel if it predicts the held-out rows at least as well."""
    everything = data.everything(folds[0].data.x.dtype)
    seed = spec.random_state
    if not isinstance(seed, int):  # all kernels start from the same seed
        seed = draw_seeds(seed, networks.candidate.members)[0]
    fitted, interrupted = _trained_kernels(runner, runner.plan.kernels, data, seed, folds, selecting)
    if fitted and not interrupted:
        runner, fitted, interrupted = _perhaps_started_again(
            runner, networks, predicted, fitted, data, seed, folds, selecting
        )
    if interrupted or not fitted:
        return replace(networks, interrupted=interrupted), predicted
    judged: list[tuple[Trained, Predictive]] = []
    try:
        for kernel in _finalists(runner, fitted):
            with suppress(NumericalError):  # the others are kept
                parts = _without_their_folds(runner, data, kernel, seed, folds)
                if any(members.interrupted for members, _ in parts):
                    return replace(networks, interrupted=True), predicted
                if len(parts) < len(folds):
                    continue
                held_out = join_rows([fold.held_out for fold in folds])
                if kernel.candidate.one_by_one and data.holds_each_out_alone(held_out):
                    found = kernel.predict_one_by_one(held_out)
                else:
                    found = predict_held_out([(members.given(fold.data), fold) for members, fold in parts])
                judged.append(kernel.given(everything).calibrated(found, selecting))
    except UnfinishedError:
        return replace(networks, interrupted=True), predicted
    scores = [float(metrics.nll(theirs, selecting.y, selecting.weight)) for _, theirs in judged]
    best = int(np.argmin(np.nan_to_num(scores, nan=np.inf))) if judged else 0
    if len(judged) > 1:
        best = runner.execution.team.broadcast_object(best)
    as_good = False
    if judged:
        fitted_to_them = networks.calibration_numbers - judged[best][0].calibration_numbers
        as_good = is_as_good(judged[best][1], predicted, selecting, fitted_to_them)
    return judged[best] if runner.execution.team.broadcast_object(as_good) else (networks, predicted)


def _trained_kernels(
    runner: Runner, kernels: Sequence[Candidate], data: TableData, seed: int, folds: list[Fold], selecting: Rows
) -> tuple[list[tuple[float, Trained]], bool]:
    """Each kernel that could be trained, with its criterion, and whether they were interrupted."""
    fitted: list[tuple[float, Trained]] = []
    everything = data.everything(folds[0].data.x.dtype)
    for number, candidate in enumerate(kernels):
        rows = everything if candidate.learns_from is None else drawn(folds[0].data, candidate.learns_from)
        share = 1.0 / max(1, trainings_of(kernels[number:], len(folds) if data.held_out else 0))
        with suppress(NumericalError):  # the others are kept
            try:
                kernel = trained_in_time(runner, candidate, draw_seeds(seed, candidate.members), rows, selecting, share)
            except UnfinishedError:
                return fitted, True
            if kernel is None:
                continue
            if kernel.interrupted:
                return fitted, True
            criterion = schwarz_criterion(kernel, rows)
            if math.isfinite(criterion):
                fitted.append((criterion, kernel))
    return fitted, False


def _perhaps_started_again(
    runner: Runner,
    networks: Trained,
    predicted: Predictive,
    fitted: list[tuple[float, Trained]],
    data: TableData,
    seed: int,
    folds: list[Fold],
    selecting: Rows,
) -> tuple[Runner, list[tuple[float, Trained]], bool]:
    """Kernels that have found little, trained from where the networks tell them to start, if that makes them likelier.

    The squares of slopes tell what networks of few rows have hardly learnt; of others they leave out what counts less.
    And what is to train them without their folds, and whether they were interrupted.
    """
    team = runner.execution.team
    smooth, lines = ([one for one in fitted if one[1].candidate.one_by_one is line] for line in (False, True))
    if not team.broadcast_object(bool(smooth) and found_little([one for _, one in smooth], predicted, selecting)):
        return runner, fitted, False
    everything = data.everything(folds[0].data.x.dtype)
    slopes = team.broadcast_object(steepness(networks.models, drawn(everything, STEEP_ROWS).x))
    best, candidates = smooth, [one.candidate for _, one in smooth]
    for told in (replace(runner, slopes=slopes), replace(runner, slopes=slopes.square())):
        others, interrupted = _trained_kernels(told, candidates, data, seed, folds, selecting)
        if interrupted:
            return runner, fitted, True
        now, before = (min((criterion for criterion, _ in some), default=math.inf) for some in (others, best))
        if team.broadcast_object(now < before):
            runner, best = told, others
    return runner, [*best, *lines], False


def _finalists(runner: Runner, fitted: list[tuple[float, Trained]]) -> list[Trained]:
    """The likeliest kernel with lengthscales, and the straight line: held-out rows choose between these.

    Schwarz' criterion would take the line too often. Lengthscales that are alike are no parameters of their own.
    """
    lines = [kernel for _, kernel in fitted if kernel.candidate.one_by_one]
    others = [(criterion, kernel) for criterion, kernel in fitted if not kernel.candidate.one_by_one]
    if not others:
        return lines
    likeliest = runner.execution.team.broadcast_object(int(np.argmin([criterion for criterion, _ in others])))
    return [others[likeliest][1], *lines]


def _without_their_folds(
    runner: Runner, data: TableData, kernel: Trained, seed: int, folds: list[Fold]
) -> list[tuple[Trained, Fold]]:
    """The kernel, perhaps trained again for each fold without the rows that are to judge it."""
    if not data.held_out or not kernel.candidate.trained_apart:
        return [(kernel, fold) for fold in folds]
    expansion = kernel.models[0].expansion
    if runner.slopes is not None and isinstance(expansion, RBF):  # fewer rows may not find again what it has found
        runner = replace(runner, slopes=(-expansion.log_lengthscale.detach().cpu()).exp())
    seeds, rows = draw_seeds(seed, 1) * len(folds), data.by_turns(folds, len(folds))
    found = trained_in_time(runner, kernel.candidate, seeds, *rows)
    return [] if found is None else by_folds(found, folds)
