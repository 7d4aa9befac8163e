"""Learning on: a `Fitted` and more rows give another `Fitted`. Nothing is trained, and the first stays as it was.

The rows are scored by the model as it was. Then they move the weights of its members (`gp.learning`), by sums over rows
that the fit has kept (`Fitted.statistics`), and their scores move the calibration and what counts as a familiar row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.checks import LARGEST
from deepbasis.engine.distributed import Team
from deepbasis.engine.streams import Stream
from deepbasis.errors import FitWarning, InputError, NumericalError, check_number, check_same_rows
from deepbasis.fitting.apart import Apart
from deepbasis.fitting.distance import check_none
from deepbasis.fitting.distribution import scores
from deepbasis.fitting.fitted import ROWS_AT_A_TIME, Fitted
from deepbasis.fitting.spec import CENSORED, EXACT, INPUT_NOISE, INTERVAL
from deepbasis.gp import exact, learning
from deepbasis.gp.calibration import MOST_ROWS, Calibration, calibrate
from deepbasis.gp.conformal import Conformal
from deepbasis.gp.exact import Chunks, Statistics
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.outputs import OutputsCalibration, calibrate_outputs
from deepbasis.gp.predictive import Predictive
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.table import set_apart_later
from deepbasis.tables.targets import Floats, check_bounds, check_precision, check_weight, group_names

_PIECE = 4_096  # rows of a member at a time
_FIT_ROWS = 100_000  # rows of a fit that stand for all, unless its posterior is exact
_STEPS = 25  # of a calibration that moves: it starts where it was
_ABSURD, _LARGE = 5.0, 0.5  # the median error: in predicted standard deviations, and in spreads of the fit's targets

Scores = Callable[[], dict[str, float]]
"""How well the new rows were predicted, if it is asked for."""


# ---- at the end of a fit ---------------------------------------------------------------------------------------------


def learned(
    models: Sequence[DeepBasisGP], objective: str, beta: float, rows: Sequence[Rows], share: float = 1.0
) -> tuple[Statistics, ...]:
    """Sums over the rows that each member was fitted to; or over rows that stand for them, a `share` of as many.

    None if the members cannot learn on: their likelihood does not say how, or the sums are out of bounds.
    """
    if not all(map(learning.learns, models)):
        return ()
    found = tuple(_learned(model, objective, beta, own, share) for model, own in zip(models, rows, strict=True))
    return found if all(map(learning.in_bounds, found)) else ()


def learned_from_stream(
    models: Sequence[DeepBasisGP], objective: str, beta: float, stream: Stream, held_out: Rows, team: Team
) -> tuple[Statistics, ...]:
    """The same of a table that is streamed. Only an exact posterior needs a pass over it: of others held-out rows,
    which are at hand, stand for the rest. Several workers read nothing again: q(w) says it, to fewer digits."""
    if objective == EXACT and (stream.open_pass is None or not team.alone):
        return tuple(map(learning.start_from, models))
    if objective == EXACT and stream.open_pass is not None:
        rows = cast(Chunks, partial(stream.open_pass, _PIECE))
        return tuple(exact.posterior(model, rows)[0] for model in models)
    weight = float(len(held_out)) if held_out.weight is None else float(held_out.weight.sum())
    return learned(models, objective, beta, [held_out] * len(models), weight / (stream.total_weight or stream.rows))


def log_likelihoods(
    models: Sequence[DeepBasisGP], objective: str, rows: Sequence[Rows], target: TargetScaler
) -> tuple[float, ...]:
    """log p(y) of the rows that each member was fitted to, in the target's units; only exact training has it."""
    found = []
    for model, own in zip(models, rows, strict=True) if objective == EXACT else ():
        slope = target.log_slope(own.y)
        if slope is None:
            return ()
        gained = slope.sum() if own.weight is None else (own.weight.double() * slope).sum()
        found.append(exact.log_likelihood(model, partial(_pieces, own)) + float(gained))
    return tuple(found)


def _learned(model: DeepBasisGP, objective: str, beta: float, rows: Rows, share: float) -> Statistics:
    if learning.is_posterior(model, objective):
        if objective == EXACT:
            return exact.posterior(model, partial(_pieces, rows))[0]
        return learning.start_from(model)
    every = -(-len(rows) // _FIT_ROWS)
    some = Rows(rows.x[::every], rows.y[::every], None if rows.weight is None else rows.weight[::every])
    total = reduce(Statistics.plus, (learning.of_fit(model, x, weight) for x, _, weight in _pieces(some)))
    return learning.start(model, total.times(every / share), beta)


def _pieces(rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    for first in range(0, len(rows), _PIECE):
        piece = slice(first, first + _PIECE)
        yield rows.x[piece], rows.y[piece], None if rows.weight is None else rows.weight[piece]


def promised(fitted: Fitted, apart: Apart | None) -> Fitted:
    """The same, with a promise from rows that it has not seen."""
    if apart is None:
        return fitted
    chunks = apart.x.to(fitted.dtype).split(ROWS_AT_A_TIME)
    promise = Conformal.of(fitted.predict_encoded(chunks), torch.from_numpy(apart.y), apart.groups)
    return replace(fitted, conformal=promise, apart=apart)


# ---- more rows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewRows:
    """What is known of rows, and their encoded columns, which come in chunks."""

    y: Floats
    chunks: Iterable[Tensor]
    weight: Floats | None = None
    groups: Sequence[str] | None = None
    bounds: Floats | None = None


@dataclass
class Seen:
    """What the members made of new rows, before they learned from them."""

    sums: list[Statistics]
    """Of each member."""
    rows: list[Tensor] = field(default_factory=list)
    """The places of those that are scored: all, or some of very many."""
    x: list[Tensor] = field(default_factory=list)
    """Their columns, as encoded."""
    parts: list[tuple[Tensor, ...]] = field(default_factory=list)
    """What predictions for them are made of, [E, rows, ...]."""
    apart: list[Tensor] = field(default_factory=list)
    """The columns of rows that nothing is learned from."""


_FIXED = {INTERVAL: "of counts or ratings", INPUT_NOISE: "with noise='input'"}


def check_learns(fitted: Fitted) -> None:
    if fitted.target.classes:
        raise InputError("a model of classes cannot take in more rows: fit it again to all of them")
    if fitted.folds:
        raise InputError("a cross-conformal promise cannot take in more rows: fit it again to all of them")
    check_none(fitted.distance, "taking in more rows")
    if not learning.learns(fitted.models[0]):
        name = fitted.architecture.likelihood
        what = _FIXED.get(name, f"with likelihood={name!r}")
        raise InputError(f"a model {what} cannot take in more rows: fit it again to all of them")
    if not fitted.statistics:
        raise InputError("the model has no sums over its rows to go on from: fit it again to all rows")


def update_table(
    fitted: Fitted,
    X: Any,
    y: Any,
    weight: Any = None,
    groups: Any = None,
    lower: Any = None,
    upper: Any = None,
    forget: float = 1.0,
) -> tuple[Fitted, Scores]:
    """With the rows of a table in memory."""
    check_learns(fitted)
    fitted.check_target_name("y", getattr(y, "name", None))  # of a Series
    target = fitted.target.check(y)
    n = len(target)
    weights = None if weight is None else check_weight(weight, n)
    names = None if groups is None else group_names(groups, n)
    return update(fitted, NewRows(target, fitted.chunks(X), weights, names, check_bounds(target, lower, upper)), forget)


def update(fitted: Fitted, new: NewRows, forget: float = 1.0) -> tuple[Fitted, Scores]:
    """What was known before counts for a share `forget` of what it did."""
    if not 0.0 < check_number("forget", forget) <= 1.0:
        raise InputError(f"forget must lie above 0, and be at most 1, which forgets nothing, got {forget!r}")
    promises = fitted.apart is not None and fitted.apart.groups is not None
    if promises != (new.groups is not None):
        raise InputError("groups of the new rows are for a model that promises something for each group, and only it")
    n, observed = len(new.y), _observed(fitted, new)
    away = torch.from_numpy(np.zeros(n, dtype=bool) if fitted.apart is None else set_apart_later(fitted.rows, n))
    objective = fitted.plan.candidates[fitted.chosen].settings.objective
    posterior = learning.is_posterior(fitted.models[0], objective)
    seen = _look(fitted, new, observed, away, posterior)
    sums = tuple(was.times(forget).plus(more) for was, more in zip(fitted.statistics, seen.sums, strict=True))
    members = zip(fitted.models, sums, strict=True)
    models = tuple(learning.moved(model, total, fitted.beta, posterior=posterior) for model, total in members)
    if not all(map(learning.in_bounds, sums)) or not all(map(_sound, models)):
        raise NumericalError("the new rows lead to weights that are too large: look for wrong values among them")
    some = torch.cat(seen.rows)
    weight = None if new.weight is None else torch.from_numpy(new.weight)[some]
    predicted = _joined(fitted, seen.parts)
    found = replace(
        fitted,
        models=models,
        statistics=sums,
        calibration=_moved(fitted.calibration, predicted, observed[some], weight, forget),
        novelty=fitted.novelty.with_rows(torch.cat(seen.x), n / (n + forget * fitted.rows), fitted.rows),
        log_likelihoods=(),  # of all rows nothing says it
    )
    found = _promised_anew(found, new, seen, away, forget)
    if not len(some):
        return found, partial(_scores_of_all, fitted, new, seen)
    _warn_of_absurd(fitted, predicted, observed[some], weight)
    return found, partial(_scores, fitted, predicted, new, some, weight)


def _promised_anew(fitted: Fitted, new: NewRows, seen: Seen, away: Tensor, forget: float) -> Fitted:
    """The same after the new rows, of which those that are `away` join the promise, if there is one."""
    found = replace(fitted, rows=fitted.rows + len(away), warnings=())
    if fitted.apart is None:
        return found
    names = None if new.groups is None else tuple(new.groups[k] for k in away.nonzero()[:, 0].tolist())
    more = Apart(torch.cat(seen.apart), new.y[away.numpy()], names)
    return promised(found, fitted.apart.followed_by(more, forget))


def _observed(fitted: Fitted, new: NewRows) -> Tensor:
    """What members learn from, as in a fit."""
    dtype = fitted.dtype
    name = str(dtype).removeprefix("torch.")
    if fitted.architecture.likelihood == CENSORED:
        z = fitted.target.bounded(new.y, np.stack([new.y, new.y], 1) if new.bounds is None else new.bounds)
    elif new.bounds is not None:
        raise InputError("lower and upper are for a model that was fitted to such bounds: fit it again to all rows")
    else:
        z = fitted.target.transform(new.y)
    fitted.target.check_precision(z, new.y, "y", name)
    if new.weight is not None:
        check_precision(new.weight, new.weight, "sample_weight", name)
    return torch.from_numpy(z).to(dtype)


def _look(fitted: Fitted, new: NewRows, observed: Tensor, away: Tensor, posterior: bool) -> Seen:
    """All new rows, once. Nothing is learned from those that are `away`."""
    device, n = fitted.device, len(observed)
    models = [model if device.type == "cpu" else deepcopy(model).to(device) for model in fitted.models]
    weight = None if new.weight is None else torch.from_numpy(new.weight).to(observed.dtype)
    seen, every, first = Seen([sums.times(0.0) for sums in fitted.statistics]), -(-n // MOST_ROWS), 0
    for x in (piece for chunk in new.chunks for piece in chunk.split(_PIECE)):
        rows = torch.arange(first, first + len(x))
        first += len(x)
        if first > n:
            continue  # to count them
        far = away[rows]
        seen.apart.append(x[far])
        x, rows = x[~far], rows[~far]
        seen.rows.append(rows[::every].clone())  # a view would hold all of them
        seen.x.append(x[::every].clone())
        given = [part.to(device) for part in (x, observed[rows], *([] if weight is None else [weight[rows]]))]
        parts = []
        for k, model in enumerate(models):
            terms, more = learning.look(model, *given, posterior=posterior)
            seen.sums[k] = seen.sums[k].plus(Statistics(*(part.cpu() for part in more)))
            parts.append([part[::every].to("cpu", copy=True) for part in model.predictive(terms)])
        seen.parts.append(tuple(torch.stack(part) for part in zip(*parts, strict=True)))
    check_same_rows("X", first, "y", n)
    return seen


def _joined(fitted: Fitted, pieces: Sequence[tuple[Tensor, ...]]) -> Predictive:
    """The predictions of the members before calibration, in the units that they are trained in."""
    parts = (torch.cat(some, 1) for some in zip(*pieces, strict=True))
    with torch.no_grad():
        return fitted.models[0].likelihood.distribution(*parts).double()


def _moved(
    before: Calibration | OutputsCalibration | None,
    predicted: Predictive,
    y: Tensor,
    weight: Tensor | None,
    forget: float,
) -> Calibration | OutputsCalibration | None:
    """Towards what fits the new rows, which the model had not seen; a model without a calibration has none after."""
    if before is None:
        return None
    if isinstance(before, Calibration):
        own = replace(before, rows=forget * before.rows)
        return calibrate(predicted, y, weight, steps=_STEPS, before=own) if len(y) else own
    each = tuple(replace(one, rows=forget * one.rows) for one in before.each)
    known = replace(before, each=each, rows=forget * before.rows)
    return calibrate_outputs(predicted, y, weight, scales=len(each) > 0, steps=_STEPS, before=known)


def _warn_of_absurd(fitted: Fitted, predicted: Predictive, y: Tensor, weight: Tensor | None) -> None:
    """Where the model was so wrong about the rows that their targets are hardly those of the fit, in the same units.

    That is by the median over rows, so that some outliers do not matter; of a few rows they might, and it must be more.
    """
    every = -(-len(y) // _PIECE)
    there = slice(None, None, every) if weight is None else (weight > 0).nonzero()[::every, 0]
    y = y[there].double()
    if not len(y):
        return
    calibrated = predicted if fitted.calibration is None else fitted.calibration.apply(predicted)
    some = calibrated[there]
    mean, std = some.mean, some.variance.sqrt()
    low, high = (y[:, 1], y[:, 2]) if fitted.architecture.likelihood == CENSORED else (y, y)
    error = torch.maximum(low - mean, mean - high).clamp_min(0.0)
    enough = error > _LARGE
    worst = float((error / std).where(enough, 0.0).quantile(0.5, dim=0, interpolation="lower").max())
    if worst <= _ABSURD * (1.0 + 9.0 / len(y)):
        return
    name = "their targets are those of the fit" + (f", '{fitted.target_name}'" if fitted.target_name else "")
    warnings.warn(
        f"half of the new rows are more than {worst:.3g} predicted standard deviations away from their predictions: "
        f"check that {name}, in the same units, and that the input columns have the same meaning as then; if not, go "
        "back to the model as it was",
        FitWarning,
        stacklevel=5,
    )


def _scores(
    fitted: Fitted, predicted: Predictive, new: NewRows, some: Tensor, weight: Tensor | None
) -> dict[str, float]:
    """Of the model as it was."""
    calibrated = predicted if fitted.calibration is None else fitted.calibration.apply(predicted)
    places, own_weight = some.numpy(), None if weight is None else weight.numpy()
    bounds = None if new.bounds is None else new.bounds[places]
    return scores(
        fitted.target.distribution(calibrated), new.y[places], bounds, own_weight, outputs=fitted.target.outputs
    )


def _scores_of_all(fitted: Fitted, new: NewRows, seen: Seen) -> dict[str, float]:
    """The same where every row is set apart."""
    return scores(fitted.predict_encoded(seen.apart), new.y, new.bounds, new.weight, outputs=fitted.target.outputs)


def _sound(model: DeepBasisGP) -> bool:
    return all(bool((value.abs() <= LARGEST).all()) for value in model.state_dict().values())
