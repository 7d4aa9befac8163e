"""Panels of the experiments' figures: sweeps, curves over seeds, violins, maps. As in `plots`: an axes and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from deepbasis.errors import InputError
from deepbasis.plots import BLUE, GREY, INK, ORANGE, VERMILLION, as_vectors, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def box_sweep(
    ax: Axes,
    levels: Sequence[float],
    groups: Sequence[ArrayLike],
    *,
    line: float | None = None,
    line_label: str = "",
    colour: str = BLUE,
) -> Axes:
    """A box plot for each level of a setting, evenly spaced; `line` is a value to compare with, dashed."""
    if len(levels) != len(groups) or not levels:
        raise InputError(f"there are {len(levels)} levels and {len(groups)} groups: give one group for each level")
    boxes = ax.boxplot(
        [np.asarray(group, dtype=np.float64) for group in groups],
        tick_labels=[f"{level:g}" for level in levels],
        widths=0.55,
        patch_artist=True,
        flierprops={"marker": ".", "markersize": 4, "markeredgecolor": GREY},
        medianprops={"color": INK, "linewidth": 1.4},
    )
    for box in boxes["boxes"]:
        box.set(facecolor=colour, alpha=0.35, edgecolor=colour)
    if line is not None:
        ax.axhline(line, color=VERMILLION, linewidth=1.2, linestyle=(0, (4, 2)), label=line_label)
    return without_frame(ax)


def curve(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    spread: ArrayLike | None = None,
    *,
    colour: str = BLUE,
    label: str | None = None,
    marker: str = "o",
    bars: bool = False,
) -> Axes:
    """Values over x, joined; `spread` around each (NaN where there is none) as a band, or as error bars."""
    x, mean, spread = as_vectors(x=x, mean=mean, spread=np.zeros_like(np.asarray(mean)) if spread is None else spread)
    order = np.argsort(x, kind="stable")
    x, mean, spread = x[order], mean[order], np.nan_to_num(spread[order])
    if bars:
        ax.errorbar(x, mean, spread, color=colour, linewidth=1.4, capsize=3, marker=marker, markersize=5, label=label)
    else:
        ax.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, mean, color=colour, linewidth=1.4, marker=marker, markersize=5, label=label)
    return without_frame(ax)


def paired_violins(
    ax: Axes, values: Mapping[str, Mapping[str, ArrayLike]], *, colours: Sequence[str] = (BLUE, ORANGE)
) -> Axes:
    """The spread of some values: violins side by side for each group of `values`, in a colour for each kind.

    `values[group][kind]` are numbers; every group has the same kinds. A line across each violin is its median. For a
    legend, `ax.collections` whose label is a kind.
    """
    if not values:
        raise InputError("values is empty: there is no group to draw")
    kinds = list(next(iter(values.values())))
    if len(kinds) > len(colours):
        raise InputError(f"{len(kinds)} kinds of values need as many colours, got {len(colours)}")
    spacing = 0.8 / len(kinds)
    for k, (kind, colour) in enumerate(zip(kinds, colours, strict=False)):
        at = np.arange(len(values)) + spacing * (k - 0.5 * (len(kinds) - 1))
        numbers = [as_vectors(**{kind: group[kind]})[0] for group in values.values()]
        shapes = ax.violinplot(numbers, positions=at, widths=0.92 * spacing, showextrema=False, points=200)
        bodies: Any = shapes["bodies"]
        for body in bodies:
            body.set(facecolor=colour, edgecolor=colour, alpha=0.75, linewidth=0.6)
        bodies[0].set_label(kind)
        ax.hlines([np.median(v) for v in numbers], at - 0.3 * spacing, at + 0.3 * spacing, color=INK, linewidth=1.2)
    ax.set_xticks(np.arange(len(values)), list(values))
    return without_frame(ax)


def map_picture(
    ax: Axes,
    lon: ArrayLike,
    lat: ArrayLike,
    values: ArrayLike,
    *,
    low: float,
    high: float,
    outline: ArrayLike | None = None,
    colours: str = "viridis",
) -> Axes:
    """Values on a grid of longitudes and latitudes [len(lat), len(lon)], in colours from `low` to `high`; NaN is blank.

    `outline` [k, 2] is a line on top, broken where it is NaN. The picture is `ax.collections[0]`, for a colour bar.
    """
    (x,), (y,) = as_vectors(lon=lon), as_vectors(lat=lat)
    picture = np.ma.masked_invalid(np.asarray(values, dtype=np.float64))
    if picture.shape != (len(y), len(x)):
        raise InputError(
            f"values must have a row for each lat and a column for each lon, [{len(y)}, {len(x)}], "
            f"got {list(picture.shape)}"
        )
    ax.pcolormesh(x, y, picture, vmin=low, vmax=high, cmap=colours, shading="nearest", rasterized=True)
    if outline is not None:
        line = np.asarray(outline, dtype=np.float64)
        ax.plot(line[:, 0], line[:, 1], color=INK, linewidth=0.6)
        x, y = line[np.isfinite(line).all(axis=1)].T
    margin = 0.02 * max(np.ptp(x), np.ptp(y))
    ax.set(xlim=(x.min() - margin, x.max() + margin), ylim=(y.min() - margin, y.max() + margin))
    ax.set_aspect(1.0 / np.cos(np.radians(0.5 * (y.min() + y.max()))))  # a degree of longitude is the shorter
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def footnote(figure: Figure, text: str) -> None:
    """A small line below everything, for a source and its licence."""
    figure.supxlabel(text, fontsize=6.5, color=GREY)
