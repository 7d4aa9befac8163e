"""The sections of a report about predictions of a number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbasis import plots
from deepbasis.errors import per_cent
from deepbasis.explain import Sample
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp import censored, metrics
from deepbasis.report.html import UNUSUAL, figure, novel, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

SCORES = {
    "mae": "MAE: mean absolute error",
    "rmse": "RMSE: root mean squared error",
    "nll": "NLL: minus the log of the predicted density, in nats a row",
    "crps": "CRPS: an absolute error for distributions",
    "coverage_95": "Share of targets in their 95 % intervals",
    "width_95": "Mean width of the 95 % intervals",
    "calibration_error": "Calibration error: mean distance from the diagonal below",
    "concordance": "Concordance: share of pairs of rows in the right order, where that is known",
    "integrated_brier_score": "Integrated Brier score: squared errors of the probability of later targets",
}
_INTERVALS, _POINTS = 80, 1_000
_LEVELS = 201  # at which a share of targets is counted


def summary(scores: dict[str, float], y: Floats, sample: Sample) -> str:
    left, note = 0 if sample.bounds is None else int((sample.bounds[:, 0] < sample.bounds[:, 1]).sum()), ""
    if left:
        note = (
            f" Of {left:,} targets only bounds are known: they count in the NLL, the calibration, the concordance and "
            "the unusual rows, and nowhere else."
        )
    return (
        f"The 95 % intervals hold <strong>{100 * scores['coverage_95']:.1f} %</strong> of the targets. Predicted means "
        f"are off by <strong>{scores['mae']:.4g}</strong> on average; the standard deviation of the targets is "
        f"{y.std():.4g}.{note}"
    )


def calibration(fitted: Fitted, dist: PredictiveDistribution, y: Floats, sample: Sample) -> Iterable[str]:
    levels = np.linspace(0.0, 1.0, _LEVELS)
    share = metrics.pit_shares(*_pit(dist, y, sample), torch.from_numpy(levels)).numpy()
    gap = np.abs(share - levels).max()
    first, last = np.interp(0.1, levels, share), 1.0 - np.interp(0.9, levels, share)
    pit = np.interp((np.arange(len(y)) + 0.5) / len(y), share, levels)  # as many numbers, with these shares
    yield "<div class='side'>"
    yield figure(
        "Reliability: on the diagonal, within the grey band of chance, is good.",
        f"Share of targets below each predicted quantile: at most {gap:.2f} from the diagonal.",
        lambda ax: plots.calibration_curve(ax, pit),
        4.0,
        4.0,
    )
    yield figure(
        "PIT: flat is good; a valley says that intervals are too narrow, a hump too wide.",
        f"Histogram of the predicted probability below the target: {per_cent(first)} of the rows in the lowest tenth, "
        f"{per_cent(last)} in the highest; 10 % each is good.",
        lambda ax: plots.pit_histogram(ax, pit),
        4.0,
        4.0,
    )
    yield "</div>"


def errors(fitted: Fitted, dist: PredictiveDistribution, y: Floats, sample: Sample) -> Iterable[str]:
    dist, y = dist[sample.exact], y[sample.exact]
    some = slice(None, None, -(-len(y) // _POINTS))
    far = np.mean(np.abs(y - dist.mean) > 2 * dist.std)
    yield figure(
        "Residuals: a shapeless cloud, mostly inside of the grey band of two standard deviations, is good.",
        f"Residuals in predicted standard deviations over the predicted mean; {per_cent(far, 1)} lie beyond two.",
        lambda ax: plots.residuals(ax, dist.mean[some], dist.std[some], y[some]),
    )
    shown = np.unique(np.linspace(0, len(y) - 1, _INTERVALS).astype(int))
    shown = shown[np.argsort(dist.mean[shown], kind="stable")]
    rows, lower, upper = dist[shown], *dist[shown].interval()
    outside = int(((y[shown] < lower) | (y[shown] > upper)).sum())

    def draw(ax: Axes) -> None:
        plots.intervals(ax, rows.mean, lower, upper, y=y[shown]).legend(frameon=False, fontsize=8)
        ax.set(xlabel="rows, in the order of their means", ylabel=plots.plain(fitted.target_name or "target"))

    yield figure(
        f"Intervals and targets of {len(shown)} rows.",
        f"95 % intervals of {len(shown)} rows with their targets, of which {outside} lie outside.",
        draw,
    )


def unusual(fitted: Fitted, dist: PredictiveDistribution, y: Floats, sample: Sample) -> Iterable[str]:
    low, high = (one.numpy() for one in _pit(dist, y, sample))
    tail = np.minimum(1.0, 2.0 * np.minimum(high, 1.0 - low))
    worst = np.argsort(tail, kind="stable")[:UNUSUAL]
    novelty = sample.novelty(fitted)
    lower, upper = dist.interval()
    yield (
        f"<p>The {len(worst)} targets that the model finds least likely; rows are counted from 0. Of {len(y):,} rows, "
        f"about {0.01 * len(y):.3g} should have a chance below 0.01: more are errors in the table, or something that "
        "its columns do not say.</p>"
    )
    yield novel(novelty)
    yield table(
        "Unusual rows",
        ["row", "target", "mean", "95 % interval", "chance", "novelty"],
        [
            [
                f"{sample.places[row]:,}",
                _target(y, sample, row),
                f"{dist.mean[row]:.4g}",
                f"{lower[row]:.4g} to {upper[row]:.4g}",
                f"{tail[row]:.2g}",
                f"{novelty[row]:.2g}",
            ]
            for row in worst
        ],
    )


def _pit(dist: PredictiveDistribution, y: Floats, sample: Sample) -> tuple[Tensor, Tensor]:
    """The ends of what the probability integral transform of each target is spread over."""
    if sample.bounds is None:
        return metrics.pit(dist.tensors, torch.from_numpy(y))
    return censored.pit(dist.tensors, torch.from_numpy(y), *torch.from_numpy(sample.bounds).unbind(1))


def _target(y: Floats, sample: Sample, row: int) -> str:
    low, high = (y[row], y[row]) if sample.bounds is None else sample.bounds[row]
    if low == high:
        return f"{y[row]:.4g}"
    if np.isfinite(low) and np.isfinite(high):
        return f"{low:.4g} to {high:.4g}"
    return f"above {low:.4g}" if np.isfinite(low) else f"up to {high:.4g}"
