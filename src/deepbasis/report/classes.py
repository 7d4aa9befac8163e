"""The sections of a report about predictions of a class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from deepbasis import plots
from deepbasis.errors import per_cent
from deepbasis.explain import Sample
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp.classes import Classes
from deepbasis.report.html import UNUSUAL, WIDTH, figure, novel, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

SCORES = {
    "log_loss": "Log loss: minus the log of the probability of the right class, in nats a row",
    "brier": "Brier score: squared errors of the probabilities, summed over classes",
    "ece": "ECE: mean distance of the likeliest class from the diagonal below",
    "auc": "AUC: how well each class is told from the others; 1 is best",
    "accuracy": "Share of rows in their likeliest class",
}
_LINES, _FIELDS, _LISTED = 4, 10, 30  # classes that are drawn as lines, in the square of mistakes, and listed
_COLOURS = (plots.BLUE, plots.VERMILLION, plots.GREEN, plots.ORANGE)


def summary(scores: dict[str, float], y: Floats, sample: Sample) -> str:
    most = np.unique(y, return_counts=True)[1].max() / len(y)
    return (
        f"The likeliest class is right in <strong>{100 * scores['accuracy']:.1f} %</strong> of the rows; the most "
        f"frequent class alone would be in {100 * most:.1f} %."
    )


def calibration(fitted: Fitted, dist: PredictiveDistribution, y: Floats, sample: Sample) -> Iterable[str]:
    p, names = _probabilities(dist), fitted.target.labels.names
    sure, right = p.max(1), (p.argmax(1) == y).astype(float)
    yield "<div class='side'>"
    yield figure(
        "The likeliest class: on the diagonal, up to the bars of two standard errors, is good; below it the model is "
        "too sure.",
        f"The likeliest class has a probability of {per_cent(sure.mean(), 1)} on average, and is right in "
        f"{per_cent(right.mean(), 1)} of the rows.",
        lambda ax: plots.reliability(ax, sure, right, label="likeliest class"),
        4.0,
        4.0,
    )
    shown = [1] if p.shape[1] == 2 else _frequent(y, _LINES)
    told = ", ".join(f"{names[k]} {per_cent(p[:, k].mean(), 1)} and {per_cent(np.mean(y == k), 1)}" for k in shown)

    def lines(ax: Axes) -> None:
        for k, colour in zip(shown, _COLOURS, strict=False):
            plots.reliability(ax, p[:, k], y == k, bins=8, colour=colour, label=plots.plain(names[k]))
        ax.legend(frameon=False, fontsize=8)

    yield figure(
        "Each class: how often it is the right one where it has such a probability"
        + ("." if len(shown) == p.shape[1] or p.shape[1] == 2 else f", of the {len(shown)} most frequent ones."),
        f"Mean probability and share of rows: {told}.",
        lines,
        4.0,
        4.0,
    )
    yield "</div>"


def errors(fitted: Fitted, dist: PredictiveDistribution, y: Floats, sample: Sample) -> Iterable[str]:
    p, names = _probabilities(dist), fitted.target.labels.names
    taken, here = p.argmax(1), _frequent(y, _LISTED)
    shown = sorted(here[:_FIELDS])
    shares = np.array([[np.mean(taken[y == k] == j) for j in shown] for k in shown])
    size = 1.6 + 0.38 * len(shown)
    yield figure(
        "Of the rows of each class (down), per cent that are taken for each (across).",
        "; ".join(f"{names[k]} is found in {per_cent(shares[row, row])} of its rows" for row, k in enumerate(shown)),
        lambda ax: plots.confusion(ax, shares, [names[k] for k in shown]),
        min(WIDTH, size + 1.0),
        min(WIDTH, size),
    )
    all_of_them = "" if len(np.unique(y)) == len(here) else ", the most frequent ones"
    yield table(
        f"Classes of these rows{all_of_them}",
        ["class", "rows", "share", "mean probability", "found", "most often taken for"],
        [
            [
                names[k],
                f"{np.sum(y == k):,}",
                per_cent(np.mean(y == k), 1),
                per_cent(p[:, k].mean(), 1),
                per_cent(np.mean(taken[y == k] == k), 1),
                _mistaken(taken[y == k], k, names),
            ]
            for k in here
        ],
    )


def _mistaken(taken: NDArray[np.int64], k: int, names: list[str]) -> str:
    others = np.bincount(taken[taken != k], minlength=len(names))
    return names[int(others.argmax())] if others.any() else ""


def unusual(fitted: Fitted, dist: PredictiveDistribution, y: Floats, sample: Sample) -> Iterable[str]:
    p, names, novelty = _probabilities(dist), fitted.target.labels.names, sample.novelty(fitted)
    own = p[np.arange(len(p)), y.astype(int)]
    worst = np.argsort(own, kind="stable")[:UNUSUAL]
    yield (
        f"<p>The {len(worst)} rows whose class the model finds least likely; rows are counted from 0. Look there "
        "for errors in the table, or for something that its columns do not say.</p>"
    )
    yield novel(novelty)
    yield table(
        "Unusual rows",
        ["row", "class", "its probability", "likeliest class", "its probability", "novelty"],
        [
            [
                f"{sample.places[row]:,}",
                names[int(y[row])],
                f"{own[row]:.2g}",
                names[int(p[row].argmax())],
                f"{p[row].max():.2g}",
                f"{novelty[row]:.2g}",
            ]
            for row in worst
        ],
    )


def _probabilities(dist: PredictiveDistribution) -> Floats:
    assert isinstance(dist.tensors, Classes)  # the model's target is a class
    return dist.tensors.probabilities.numpy()


def _frequent(y: Floats, most: int) -> list[int]:
    """The classes of these rows, the most frequent ones first."""
    found, count = np.unique(y.astype(int), return_counts=True)
    return found[np.argsort(-count, kind="stable")][:most].tolist()
