"""Whether target="auto" takes a target for a count or a rating: a number that has values, each with a probability."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis.fitting.kinds import COUNT, ORDINAL, WARP
from deepbasis.fitting.simple import FEWEST_ROWS, SimpleModels, mean_and_error
from deepbasis.gp.calibration import calibrate
from deepbasis.gp.discrete import MOST_VALUES
from deepbasis.gp.predictive import Gaussian, Predictive
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.warps import count_steps, ordinal_steps, quantile_warp

Floats = NDArray[np.float64]

MOST_RATINGS = 20
"""Different values of a rating, at most."""
LEAST_ROWS = 5
"""Of each rating: new rows will hardly have another."""
MOST_LOSS = 0.005
"""Of the CRPS, which the values may cost."""
LEAST_GAIN = 0.02
"""Of the CRPS, which the values must gain where the log score does not."""

_SCALES = (0.5, 0.7, 1.0, 1.4)  # of the variance of a latent number
_LEAST_MASS = 1e-12


def choose_values(x: Floats, y: Floats, weight: Floats, every_y: Floats, otherwise: str) -> tuple[str, str] | None:
    """ "count" or "ordinal" in place of `otherwise`, and why; None where the target stays what it is.

    Simple models predict rows that they have not seen, once the number, calibrated, and once the latent number behind
    its values. A number is scored by the probability of what lies nearer to y than to other values. With the ridge
    regression and with nearest neighbours the log score must gain by two standard errors and the CRPS must not rise;
    or the CRPS must fall by 2 % and by two standard errors, and the log score must not lose by more than one. Ratings
    have as good a density between their values as on them: the CRPS shows what the density wastes there.
    """
    kind = _kind(every_y)
    x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
    if kind is None or len(y) < FEWEST_ROWS:
        return None
    steps = (count_steps if kind == COUNT else ordinal_steps)(y, weight, every_y)
    if steps is None:
        return None
    plain = TargetScaler.fit(y, weight, quantile_warp(y, weight) if otherwise == WARP else None)
    valued, simple, gains = TargetScaler.fit(y, weight, steps), SimpleModels(x, weight), []
    low, high = _ends(np.array(steps.values), y)
    shares = weight / weight.sum()
    for left_of in (simple.left_by_ridge, simple.left_by_neighbours):
        theirs = _calibrated(plain, left_of, y, weight)
        mass = theirs.cdf(torch.from_numpy(high)) - theirs.cdf(torch.from_numpy(low))
        ours = _of_values(valued, left_of, y, weight)
        log_scores = ours.log_prob(y).numpy() - np.log(np.maximum(mass.numpy(), _LEAST_MASS))
        nats, doubt = mean_and_error(log_scores, shares)
        number_crps = theirs.crps(y).numpy()
        lower, error = mean_and_error(number_crps - ours.crps(y).numpy(), shares)
        whole = float(shares @ number_crps)
        likelier = nats > 2.0 * doubt and lower >= -MOST_LOSS * whole
        sharper = lower > max(2.0 * error, LEAST_GAIN * whole) and nats > -doubt
        if not (likelier or sharper):
            return None
        gains.append((likelier, nats, lower / whole))
    clearly, nats, share = map(min, zip(*gains, strict=True))
    words = f"gain {nats:.2g} nats a row" if clearly else f"lower the CRPS by {100 * share:.0f} %"
    return kind, f"probabilities of its values {words} in simple models"


def _kind(every_y: Floats) -> str | None:
    """What the target could be; two values are left alone."""
    values, rows = np.unique(every_y, return_counts=True)
    if len(values) < 3:
        return None
    if every_y.min() >= 0 and every_y.max() < MOST_VALUES - 1 and (every_y == np.floor(every_y)).all():
        return COUNT
    return ORDINAL if len(values) <= MOST_RATINGS and rows.min() >= LEAST_ROWS else None


def _ends(values: Floats, y: Floats) -> tuple[Floats, Floats]:
    """What is nearer to y than to any other value; the first and the last have all that is beyond."""
    middle = 0.5 * (values[1:] + values[:-1])
    place = np.searchsorted(values, y)
    far = 1e3 * (values[-1] - values[0] + 1.0)
    return np.r_[values[0] - far, middle][place], np.r_[middle, values[-1] + far][place]


def _calibrated(target: TargetScaler, left_of: Callable[[Floats], Floats], y: Floats, weight: Floats) -> Predictive:
    """The number, around what is predicted for it."""
    z = target.transform(y)
    found = _around(z, left_of(z), weight)
    how = calibrate(found, torch.from_numpy(z), torch.from_numpy(weight))
    return target.distribution(how.apply(found))


def _of_values(target: TargetScaler, left_of: Callable[[Floats], Floats], y: Floats, weight: Floats) -> Predictive:
    """The values, with the best of some variances of the latent number: its scores lie in the middle of intervals."""
    z = target.transform(y)
    found = _around(z, left_of(z), weight)
    scaled = [target.distribution(Gaussian(found.mean, scale * found.variance)) for scale in _SCALES]
    return max(scaled, key=lambda one: float(weight @ one.log_prob(y).numpy()))


def _around(z: Floats, left: Floats, weight: Floats) -> Gaussian:
    variance = max(float(weight @ np.square(left) / weight.sum()), 1e-6)
    mean = torch.from_numpy(z - left)
    return Gaussian(mean, torch.full_like(mean, variance))
