"""Effects on classes: the mean probability of each, if all rows had the same value of one column, with bands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepbasis import plots
from deepbasis.explain import Effect, Floats, Sample, at_each_value
from deepbasis.fitting.distribution import generator
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp.classes import Classes
from deepbasis.gp.model import DeepBasisGP

SHOWN = 4
"""Classes, the most frequent ones, unless others are asked for."""
COLOURS = (plots.BLUE, plots.VERMILLION, plots.GREEN, plots.ORANGE)

_ROWS, _DRAWS = 100, 25
_MOST_NUMBERS = 4e6  # probabilities of drawn functions: many classes have fewer rows


def effects(
    fitted: Fitted, sample: Sample, column: str, *, most: int = SHOWN, random_state: int | None = 0
) -> list[Effect]:
    """Of one column, on at most 100 of the rows, for each of the `most` frequent classes; of two, for the second."""
    names, count = fitted.target.labels.names, fitted.target.classes
    rows = int(np.clip(_MOST_NUMBERS / (len(fitted.models) * _DRAWS * 21 * count), 10, _ROWS))
    kind, values, labels, x = at_each_value(fitted, sample, column, rows)
    predicted = fitted.predict_encoded([x])
    assert isinstance(predicted, Classes)
    p = predicted.probabilities
    curves, stds = (_by_value(one, len(values)).mean(1).numpy() for one in (p, (p * (1.0 - p)).sqrt()))
    drawn = drawn_curves(fitted, x, len(values), random_state)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0) - drawn.mean(0)  # [points, classes]
    return [
        Effect(
            *(column, kind, values, labels, curves[:, k]),
            np.clip(curves[:, k] + low[:, k], 0.0, 1.0),
            np.clip(curves[:, k] + high[:, k], 0.0, 1.0),
            *(stds[:, k], names[k]),
        )
        for k in ([1] if count == 2 else _frequent(sample, curves, most))
    ]


@torch.no_grad()
def drawn_curves(fitted: Fitted, x: Tensor, points: int, random_state: int | None) -> Floats:
    """Curves [draws, points, k] of functions drawn from the members."""
    draws_from = generator(random_state)
    scale = 1.0 if fitted.calibration is None else fitted.calibration.mean_scale
    found = []
    for model in fitted.models:
        for f in _functions(model, x, scale, draws_from):
            p = Classes(f[None], f.new_full((1, len(f)), scale)).probabilities
            found.append(_by_value(p, points).mean(1))
    return torch.stack(found).numpy()


def draw(on: Any, found: Sequence[Effect], across: int = 3) -> None:
    """A panel for each column, with a curve for each class, on a figure or a part of one."""
    columns = [list(some) for _, some in groupby(found, lambda one: one.column)]
    across = min(across, len(columns))
    panels = on.subplots(-(-len(columns) // across), across, squeeze=False, sharey=True).ravel()
    for ax, curves in zip(panels, columns, strict=False):
        _draw_column(ax, curves)
    for ax in panels[::across]:
        ax.set_ylabel("mean probability")
    for ax in panels[len(columns) :]:
        ax.set_visible(False)


def _draw_column(ax: Any, curves: Sequence[Effect]) -> None:
    first = curves[0]
    for k, one in enumerate(curves):
        beside = 0.12 * (k - 0.5 * (len(curves) - 1)) if one.labels else 0.0  # dots beside each other
        plots.effect(
            *(ax, one.values + beside, one.mean, one.lower, one.upper),
            labels=one.labels,
            dates=one.kind == "datetime",
            colour=COLOURS[k % len(COLOURS)],
        )
    if first.labels:
        ax.set_xticks(range(len(first.labels)), [label.get_text() for label in ax.get_xticklabels()])
    drawn = ax.containers if first.labels else ax.lines
    ax.legend(drawn[: len(curves)], [plots.plain(one.of) for one in curves], frameon=False, fontsize=8)
    ax.set(xlabel=plots.plain(first.column), ylim=(0.0, 1.0))


def _frequent(sample: Sample, curves: Floats, most: int) -> list[int]:
    """Of these rows, or, where they have no targets, the most probable ones; the first of them first."""
    count = curves.shape[1]
    often = curves.mean(0) if sample.y is None else np.bincount(sample.y.astype(int), minlength=count)
    return np.argsort(-often, kind="stable")[:most].tolist()


def _by_value(p: Tensor, points: int) -> Tensor:
    """[n, k] -> [points, rows, k]."""
    return p.unflatten(0, (points, -1))


def _functions(model: DeepBasisGP, x: Tensor, scale: float, draws_from: torch.Generator) -> Tensor:
    """Draws of the latent functions [draws, n, l]: their variance is as calibrated as the noise's."""
    q: Any = model.posterior
    mean = model(x).mean  # [n, l]
    e = torch.randn(_DRAWS, mean.shape[1], q.rank, dtype=x.dtype, generator=draws_from).to(x.device)
    away = torch.einsum("nr,rs,dls->dnl", model.basis(x), q.L(), e)
    return mean + scale**0.5 * away
