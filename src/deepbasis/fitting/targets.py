"""How the target is transformed, and the rule of target="auto"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis.errors import InputError, warn_of_table
from deepbasis.fitting.kinds import AUTO, CLASSES, COUNT, IDENTITY, LOG, ORDINAL, PROMISING, WARP
from deepbasis.fitting.recipe import RECIPES
from deepbasis.fitting.simple import FEWEST_ROWS, SimpleModels, mean_and_error
from deepbasis.fitting.spec import COUNTS, EXACT, GAUSSIAN, INPUT, OUTPUTS, WIDEN, Spec
from deepbasis.fitting.values import choose_values
from deepbasis.gp.methods import METHODS
from deepbasis.gp.rates import Rate
from deepbasis.gp.warps import Log
from deepbasis.tables.scaler import Several, TargetScaler
from deepbasis.tables.source import Source
from deepbasis.tables.targets import check_counts, is_no_count
from deepbasis.tables.warps import count_steps, ordinal_steps, quantile_warp, transformer_warp

Floats = NDArray[np.float64]

LEAST_GAIN = 0.02
"""Of the CRPS of a simple model: below it "auto" leaves the target as it is."""
LEAST_NOISE = 0.35
"""Of the CRPS of a constant, which a simple model must leave."""

_MOST_ROWS = 4_000  # of more rows every m-th is used
_LEVELS = (np.arange(20) + 0.5) / 20


def target_scaler(
    spec: Spec,
    y: Floats,
    weight: Floats | None,
    every_y: Floats,
    inputs: Callable[[NDArray[np.int64]], Floats],
    *,
    censored: bool = False,
    exposure: Floats | None = None,
    exposure_name: str | None = None,
    bound_names: tuple[str | None, str | None] = (None, None),
    complete: bool = True,
) -> tuple[TargetScaler, str]:
    """From the rows to fit: the scaler that was asked for, and why, where "auto" has decided.

    `every_y` is that of all rows, held-out ones too, if it is `complete`. `inputs` gives the encoded inputs of rows.
    """
    if spec.calibrate in PROMISING and (censored or spec.likelihood in COUNTS):
        raise InputError(f"calibrate={spec.calibrate!r} needs targets that are numbers, known exactly: leave it out")
    if spec.likelihood in COUNTS:
        if censored:
            raise InputError(f"likelihood {spec.likelihood!r} cannot be trained by bounds: leave lower and upper out")
        rate = replace(_rate(spec, y, weight, every_y, exposure), exposure=exposure_name, exposed=exposure is not None)
        return TargetScaler(0.0, 1.0, rate), "the log of the rate of a count"
    check_counted(spec, exposure is not None)
    name: Any = RECIPES[spec.recipe].target if isinstance(spec.target, str) and spec.target == AUTO else spec.target
    why, ends = "", (float(every_y.min()), float(every_y.max()))
    if isinstance(name, str) and name == AUTO:
        some = np.arange(0, len(y), -(-len(y) // _MOST_ROWS))
        name, why = IDENTITY, "it is censored: ask for a warp or the log" if censored else ""
        if spec.likelihood == GAUSSIAN and not censored:
            x, w = inputs(some), np.ones(len(some)) if weight is None else weight[some]
            name, why = choose(x, y[some], w)
            if complete and _may_have_values(spec):
                name, why = choose_values(x, y[some], w, every_y, name) or (name, why)
    warp: Any = None
    if not isinstance(name, str):
        warp = transformer_warp(name, y, weight, ends)
    elif name == LOG:
        if ends[0] <= 0.0:
            raise InputError(
                f"the log of a target needs positive numbers, and {_first(every_y <= 0.0, every_y, y, complete)}; use "
                "target='warp', or leave such rows out"
            )
        warp = Log(float(np.log(y.max())))
    elif name == WARP:
        warp = quantile_warp(y, weight, ends)
    elif name == CLASSES:
        raise InputError("target 'classes' is not for a regressor: use DeepBasisClassifier")
    elif name != IDENTITY:
        if censored:
            raise InputError(f"target={name!r} has values, not bounds: leave lower and upper out, or use another")
        wrong = is_no_count(every_y)
        if name == COUNT and wrong.any():
            raise InputError(
                f"target='count' needs whole numbers from 0, and {_first(wrong, every_y, y, complete)}; use "
                "target='ordinal' for ratings, or target='warp'"
            )
        warp = (count_steps if name == COUNT else ordinal_steps)(y, weight, every_y)
    return replace(TargetScaler.fit(y, weight, warp), lower=bound_names[0], upper=bound_names[1]), why


def _first(wrong: NDArray[np.bool_], every_y: Floats, y: Floats, complete: bool) -> str:
    """The first such target, and its row where that is known to the user."""
    row = int(np.argmax(wrong))
    return f"y is {every_y[row]:g} in row {row}" if row < len(y) and complete else f"one is {every_y[row]:g}"


def bound_columns(target: TargetScaler, data: Any, lower: str | None, upper: str | None) -> list[str | None]:
    """The columns of bounds that are named, or else those of the fit, where a table in files has them."""
    if (lower, upper, target.lower, target.upper) == (None,) * 4:
        return [None, None]
    source, found = Source.open(data), []
    for role, given, of_fit in (("lower", lower, target.lower), ("upper", upper, target.upper)):
        if given is None and of_fit is not None and of_fit not in source.names:
            warn_of_table(
                f"{source.name} has no column '{of_fit}', the {role} bounds of the fit: its targets are taken as known "
                f"exactly; if they are not, name the column with {role}"
            )
            of_fit = None
        found.append(of_fit if given is None else given)
    return found


def outputs_scaler(
    spec: Spec,
    names: tuple[str, ...],
    y: Floats,
    weight: Floats | None,
    every_y: Floats,
    inputs: Callable[[NDArray[np.int64]], Floats],
) -> tuple[TargetScaler, str]:
    """The same of several outputs, y [n, m]: each has a scaler of its own."""
    if spec.likelihood not in (GAUSSIAN, OUTPUTS):
        raise InputError(f"likelihood {spec.likelihood!r} is for one target, and y has {len(names)} columns")
    if isinstance(spec.target, str) and spec.target in (COUNT, ORDINAL, CLASSES):
        raise InputError(f"target={spec.target!r} is for one target, and y has {len(names)} columns: fit one for each")
    if spec.calibrate in PROMISING:
        raise InputError(
            f"calibrate={spec.calibrate!r} is for one target, and y has {len(names)} columns: leave it out"
        )
    single = replace(spec, likelihood=GAUSSIAN)
    found = [target_scaler(single, y[:, k], weight, every_y[:, k], inputs, complete=False) for k in range(len(names))]
    words = [f"{name}: {one.name}{f' ({why})' if why else ''}" for name, (one, why) in zip(names, found, strict=True)]
    return TargetScaler(0.0, 1.0, Several(names, tuple(one for one, _ in found))), "; ".join(words)


def check_counted(spec: Spec, exposed: bool) -> None:
    """Only counts have an exposure."""
    if exposed and spec.likelihood not in COUNTS:
        raise InputError(f"exposure is for a likelihood of counts, {' or '.join(COUNTS)}, not {spec.likelihood!r}")


def _rate(spec: Spec, y: Floats, weight: Floats | None, every_y: Floats, exposure: Floats | None) -> Rate:
    if not isinstance(spec.target, str) or spec.target not in (AUTO, IDENTITY):
        raise InputError(f"target={spec.target!r} and likelihood {spec.likelihood!r} do not go together: leave one out")
    check_counts(every_y)
    weights = np.ones(len(y)) if weight is None else weight
    total = float(weights @ (np.ones(len(y)) if exposure is None else exposure))
    return Rate(max(float(weights @ y), 0.5) / total)


def _may_have_values(spec: Spec) -> bool:
    """Whether what else was asked for leaves a prediction of probabilities of values."""
    objective = spec.objective or (METHODS[spec.method].objective if spec.method != AUTO else "")
    asked = spec.calibrate != AUTO or spec.trend == "linear" or spec.noise == INPUT or spec.distance == WIDEN
    return objective not in (EXACT, "mse") and not asked


def choose(x: Floats, y: Floats, weight: Floats | None) -> tuple[str, str]:
    """target="auto": "warp" or "identity", and why.

    Simple models predict rows that they have not seen, once the target itself and once the warped target; around either
    prediction lie the residuals of all rows, made symmetric. The warp must lower the CRPS, in the target's units, by
    2 % and by two standard errors. A ridge regression on the columns and some waves across them is asked first, and the
    nearest neighbours only if it agrees. These must also leave at least 35 % of the CRPS of a constant: where models
    leave less and less, their residuals do not show the shape of the noise, and a warp may do great harm.
    """
    w = np.ones(len(y)) if weight is None else weight
    x, y, w = x[w > 0], y[w > 0], w[w > 0]
    if len(y) < FEWEST_ROWS:
        return IDENTITY, f"fewer than {FEWEST_ROWS} rows"
    warp = quantile_warp(y, w)
    if warp is None:
        return IDENTITY, "it has fewer than three values"
    plain, warped = TargetScaler.fit(y, w), TargetScaler.fit(y, w, warp)
    simple = SimpleModels(x, w)
    gain, clear, _ = _gain(simple.left_by_ridge, plain, warped, y, w)
    words = "raise" if gain < 0 else "lower"
    if not clear:
        return IDENTITY, f"a warp would {words} the CRPS of a simple model by {100 * abs(gain):.1f} %"
    again, clear, left = _gain(simple.left_by_neighbours, plain, warped, y, w)
    if not clear or left < LEAST_NOISE:
        return IDENTITY, (
            f"a warp would lower the CRPS of a simple model by {100 * gain:.1f} %, and by {100 * again:.1f} % that of "
            f"nearest neighbours, which leave {100 * left:.0f} % of a constant's"
        )
    return WARP, f"it lowers the CRPS of simple models by {100 * min(gain, again):.1f} %"


def _gain(
    left_of: Callable[[Floats], Floats], plain: TargetScaler, warped: TargetScaler, y: Floats, w: Floats
) -> tuple[float, bool, float]:
    """By which share a warp lowers a model's CRPS; whether that is clear; and what the model leaves of a constant's."""
    z, u = plain.transform(y), warped.transform(y)
    theirs, ours = _crps(plain, z, left_of(z), y, w), _crps(warped, u, left_of(u), y, w)
    shares = w / w.sum()
    total = float(shares @ theirs)
    gain, error = mean_and_error(theirs - ours, shares)
    constant = float(shares @ _crps(warped, u, u, y, w))
    share = gain / total if total > 0.0 else 0.0  # copies of a row may predict it without an error
    return share, share >= LEAST_GAIN and gain > 2.0 * error, total / constant


def _crps(target: TargetScaler, z: Floats, left: Floats, y: Floats, weight: Floats) -> Floats:
    """Of each row, from 20 quantiles: those of all residuals, made symmetric, around what was predicted."""
    size = np.abs(left)
    order = np.argsort(size)
    mass = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    steps = np.sign(_LEVELS - 0.5) * np.interp(np.abs(2.0 * _LEVELS - 1.0), mass, size[order])
    quantiles = target.inverse(torch.from_numpy((z - left)[:, None] + steps)).numpy()
    error = y[:, None] - quantiles
    return np.asarray(2.0 * np.maximum(_LEVELS * error, (_LEVELS - 1.0) * error).mean(1))
