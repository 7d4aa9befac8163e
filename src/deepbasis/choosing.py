"""What a `DeepBasisRegressor` fits and chooses from: networks, and on a small table shallow kernels.

Kernels are chosen between by likelihood; a kernel and the networks by how they predict rows that they have not seen.
"""

import math
from contextlib import suppress
from copy import copy
from dataclasses import replace
from os import fspath
from typing import Any

import numpy as np

from deepbasis.engine.batches import Rows
from deepbasis.errors import NumericalError, UnfinishedError
from deepbasis.gp import metrics
from deepbasis.gp.predictive import GaussianMixture, Predictive
from deepbasis.planning import How
from deepbasis.validating import Fold, joined, joined_predictions


def fit_best(
    regressor: Any, trials: list[dict[str, Any]], everything: Rows, folds: list[Fold], how: How
) -> tuple[GaussianMixture, Rows, bool]:
    """Fit networks to the folds and kernels to `everything`, and make the regressor the best of them.

    `trials` are changes of its parameters. What it predicts for rows held out, these rows, and whether the fit was
    interrupted.
    """
    dtype = str(everything.x.dtype).removeprefix("torch.")  # the same for a part of the rows and for all
    best, *kernels = (copy(regressor).set_params(**changes, dtype=dtype) for changes in trials)
    predicted, folds, interrupted = fit_folds(best, folds, how)
    held_out = joined([fold.held_out for fold in folds])
    judges = folds[0].judges if len(folds) == 1 else regressor._with_fair_say(held_out)
    predicted = best._calibrated(predicted, judges)
    if kernels and not isinstance(regressor.random_state, int | np.integer):  # both start alike
        seed = int(regressor._seeds()[0])
        kernels = [kernel.set_params(random_state=seed) for kernel in kernels]
    fitted: list[tuple[float, Any]] = []
    for kernel in () if interrupted else kernels:
        with suppress(NumericalError):  # the others stand
            try:
                interrupted = kernel._fit_rows(everything, judges, replace(how, checkpoint=None))
            except UnfinishedError:
                interrupted = True
            if interrupted:
                break
            if math.isfinite(criterion := bic(kernel, everything)):
                fitted.append((criterion, kernel))
    if fitted:
        likelier = fitted[how.team.broadcast_object(int(np.argmin([criterion for criterion, _ in fitted])))][1]
        theirs, as_good = predicted, False
        with suppress(NumericalError):
            theirs = likelier._calibrated(leave_out(likelier, folds, everything), judges)
            as_good = is_as_good(theirs, predicted, judges)
        if how.team.broadcast_object(as_good):
            best, predicted = likelier, theirs
    regressor._take_over(best)
    return predicted, held_out, interrupted


def fit_folds(regressor: Any, folds: list[Fold], how: How) -> tuple[GaussianMixture, list[Fold], bool]:
    """Some members for each fold: what they predict for the rows that they hold out, whose folds, and if interrupted.

    A fold that fails, or is not reached, is left out: the others stand. Each has a checkpoint of its own.
    """
    if len(folds) == 1:
        interrupted = regressor._fit_rows(folds[0].data, folds[0].judges, how)
        return regressor.ensemble_.predict(folds[0].held_out.x), folds, interrupted
    seeds, interrupted = regressor._seeds(), False
    fitted: list[tuple[Any, Fold]] = []
    failure: BaseException | None = None
    for k, fold in enumerate(folds[: regressor.members]):
        own = seeds[k :: len(folds)]
        part = copy(regressor).set_params(members=len(own), random_state=int(own[0]))
        path = None if how.checkpoint is None else f"{fspath(how.checkpoint)}.{k + 1}"
        try:
            interrupted = part._fit_rows(fold.data, fold.judges, replace(how, checkpoint=path))
            fitted.append((part, fold))
        except (UnfinishedError, NumericalError) as error:
            failure, interrupted = error, isinstance(error, UnfinishedError)
        if interrupted:
            break
    if failure is not None and not fitted:
        raise failure
    first = fitted[0][0]
    regressor._take_over(first)
    regressor.history_ = [history for part, _ in fitted for history in part.history_]
    stack = first.ensemble_.stack
    regressor._set_models([model for part, _ in fitted for model in part.models_], stack.dtype, stack.device)
    predicted = joined_predictions([part.ensemble_.predict(fold.held_out.x) for part, fold in fitted])
    return predicted, [fold for _, fold in fitted], interrupted


def leave_out(kernel: Any, folds: list[Fold], everything: Rows) -> GaussianMixture:
    """What a kernel predicts for the rows of each fold from the others; in the end its posterior has all rows.

    The posterior of exact inference has a closed form: only the kernel and its inducing points have seen all rows.
    """
    lots = []
    for fold in folds:
        kernel._take_in(fold.data)
        lots.append(kernel.ensemble_.predict(fold.held_out.x))
    kernel._take_in(everything)
    return joined_predictions(lots)


def bic(kernel: Any, data: Rows) -> float:
    """Half of Schwarz' criterion: minus the bound on the likelihood, and log(n) / 2 for each number of the kernel.

    Infinite for one whose training failed before its end.
    """
    last = {name: float(values[-1]) for name, values in kernel.history_[0].items()}
    if not all(map(math.isfinite, last.values())):
        return math.inf
    n = len(data) if data.weight is None else float(data.weight.sum())
    numbers = [value.numel() for name, value in kernel.models_[0].expansion.named_parameters() if name != "Z"]
    return n * last["train_loss"] + 0.5 * math.log(max(n, 1.0)) * sum(numbers)


def is_as_good(shallow: Predictive, deep: Predictive, held_out: Rows) -> bool:
    """Whether a kernel's NLL on the rows held out is not above that of the networks, calibrated on these."""
    ours, theirs = (float(metrics.nll(predicted, held_out.y, held_out.weight)) for predicted in (shallow, deep))
    return math.isfinite(ours) and not ours > theirs
