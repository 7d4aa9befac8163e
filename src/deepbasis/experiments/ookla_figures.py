"""The figures of Sec. 4.3 from the Ookla experiment's parts: interval widths, kernel slices, maps of uncertainty."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbasis import plots
from deepbasis.datasets.ookla import ATTRIBUTION
from deepbasis.datasets.splits import Floats
from deepbasis.experiments import ookla_maps
from deepbasis.experiments.ookla_tables import LABELS, STRATA, kind, predicted_std, title
from deepbasis.experiments.parts import Folder, Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAPPED = "dbk-rbf"
CLIP = 0.995
"""The quantile at which the maps' common scale of colours ends (caption of the paper's map of uncertainty)."""

_NORMAL_95 = 3.919928  # the width of a normal's central 95 % in standard deviations

Group = Mapping[str, Part]
"""The parts of one data set and target, by method."""


def write(folder: Folder, parts: Sequence[Part]) -> None:
    """Every figure that these parts allow."""
    groups = grouped(parts)
    if groups:
        folder.write("interval_widths.png", plots.png(interval_widths(groups)))
    for name in dict.fromkeys(dataset for dataset, _ in groups):
        mapped = [group[MAPPED] for (dataset, _), group in groups.items() if dataset == name and MAPPED in group]
        if mapped:
            folder.write(f"kernels_{name}.png", plots.png(kernel_slices(mapped)))
            folder.write(f"uncertainty_{name}.png", plots.png(uncertainty(mapped)))


def grouped(parts: Sequence[Part]) -> dict[tuple[str, str], dict[str, Part]]:
    """By data set and target, without the parts that came to nothing."""
    groups: dict[tuple[str, str], dict[str, Part]] = {}
    for part in parts:
        v = part.values
        if v["shown"] is not None:
            groups.setdefault((v["dataset"], v["target"]), {})[v["method"]] = part
    return groups


def interval_widths(groups: Mapping[tuple[str, str], Group]) -> Figure:
    """Violins of the 95 % intervals' widths on the test rows: a row for each data set, a column for each target."""
    datasets, targets = (list(dict.fromkeys(key[k] for key in groups)) for k in (0, 1))
    page = plots.new_figure(5.2 * len(targets), 0.7 + 2.9 * len(datasets))
    axes: Any = page.subplots(len(datasets), len(targets), squeeze=False)
    for ax, (dataset, target) in zip(axes.flat, ((d, t) for d in datasets for t in targets), strict=True):
        if (dataset, target) not in groups:
            ax.set_visible(False)
            continue
        group = groups[(dataset, target)]
        plots.paired_violins(ax, {LABELS[method]: _widths(part) for method, part in group.items()})
        ax.set_title(title(next(iter(group.values())).values), fontsize=10)
        ax.set_ylim(bottom=0)
        ax.set_ylabel("width of the 95 % interval", fontsize=9)
    shown = {body.get_label(): body for body in axes.flat[0].collections if body.get_label() in STRATA}
    handles = {name: shown[name] for name in STRATA if name in shown}
    page.legend(handles.values(), handles, loc="outside upper center", ncols=2, frameon=False, fontsize=10)
    _attribute(page, "Standardised log10 of the speed; test rows; the line is the median.")
    return page


def _widths(part: Part) -> dict[str, Floats]:
    urban = part.arrays["urban"].bool().numpy()
    widths = _NORMAL_95 * part.arrays["std"][part.values["shown"]].double().numpy()
    return {name: widths[rows] for name, rows in zip(STRATA, (urban, ~urban), strict=True) if rows.any()}


def kernel_slices(parts: Sequence[Part]) -> Figure:
    """k(., x_ref) of DBK at an urban, a rural and a remote place: a row for each target."""
    places = ookla_maps.PLACES[parts[0].values["state"]]
    page, axes = _maps(parts[0], rows=len(parts), columns=len(places))
    for part, line in zip(parts, axes, strict=True):
        a = part.arrays
        for ax, place, values, own in zip(line, places, a["slices"].numpy(), a["slices_at"].tolist(), strict=True):
            _picture(ax, part, a["grid_lon"], a["grid_lat"], values / own, low=-1.0, high=1.0, colours="RdBu_r")
            ax.plot(place.lon, place.lat, "*", color="black", markersize=11, markeredgecolor="white")
            ax.set_title(f"{place.kind}: {place.name}", fontsize=10)
        line[0].set_ylabel(part.values["target"], fontsize=11)
        bar = page.colorbar(line[-1].collections[0], ax=list(line), shrink=0.8, ticks=[-1, 0, 1], pad=0.01)
        bar.set_label("k(x, x_ref) / k(x_ref, x_ref)", fontsize=9)
    _finish(page, parts, "Kernel slices k(x, x_ref)", "The star is x_ref.")
    return page


def uncertainty(parts: Sequence[Part]) -> Figure:
    """Empirical std of the training rows, predicted std of the test rows, and predicted std everywhere."""
    page, axes = _maps(parts[0], rows=len(parts), columns=3)
    for part, line in zip(parts, axes, strict=True):
        a = part.arrays
        empirical, (tested, predicted) = a["cell_std"].numpy(), predicted_std(part)
        low, high = (float(q) for q in np.quantile(np.concatenate([empirical, predicted]), [1.0 - CLIP, CLIP]))
        _picture(line[0], part, *raster(a["cells"].numpy(), empirical), low=low, high=high)
        _picture(line[1], part, *raster(tested, predicted), low=low, high=high)
        _picture(line[2], part, a["grid_lon"], a["grid_lat"], a["grid_std"], low=low, high=high)
        headings = ("empirical, training rows", "predicted, test rows", "predicted, everywhere")
        for ax, heading in zip(line, headings, strict=True):
            ax.set_title(heading, fontsize=10)
        line[0].set_ylabel(part.values["target"], fontsize=11)
        bar = page.colorbar(line[-1].collections[0], ax=list(line), shrink=0.8, extend="both", pad=0.01)
        bar.set_label("standard deviation", fontsize=9)
    _finish(
        page,
        parts,
        "Uncertainty",
        f"Standardised log10 of the speed; the left two in cells of {ookla_maps.CELL}°; colours end at {CLIP:.1%}.",
    )
    return page


def _maps(part: Part, rows: int, columns: int) -> tuple[Figure, Any]:
    """A page of axes in the shape of the part's state."""
    lon, lat = part.arrays["grid_lon"], part.arrays["grid_lat"]
    middle = np.radians(float(lat[0] + lat[-1]) / 2.0)
    shape = float((lat[-1] - lat[0]) / ((lon[-1] - lon[0]) * np.cos(middle)))
    width = 3.6
    page = plots.new_figure(width * columns + 1.0, 0.9 + (width * shape + 0.35) * rows)
    return page, page.subplots(rows, columns, squeeze=False)


def _picture(ax: Any, part: Part, lon: Any, lat: Any, values: Any, **colours: Any) -> None:
    plots.map_picture(ax, lon, lat, values, outline=part.arrays["outline"], **colours)


def raster(corner: Any, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Cells as a grid: longitudes, latitudes, and values [latitudes, longitudes] with NaN where there is no cell."""
    if len(corner) == 0:
        return np.zeros(1), np.zeros(1), np.full((1, 1), np.nan)
    west, south = corner.min(axis=0)
    columns, rows = corner.max(axis=0) - corner.min(axis=0) + 1
    picture = np.full((rows, columns), np.nan)
    picture[corner[:, 1] - south, corner[:, 0] - west] = values
    lon, lat = ((first + np.arange(n) + 0.5) * ookla_maps.CELL for first, n in ((west, columns), (south, rows)))
    return lon, lat, picture


def _finish(page: Figure, parts: Sequence[Part], what: str, note: str) -> None:
    v = parts[0].values
    page.suptitle(f"{what}: {v['state']}, DBK-RBF ({kind(v)})", fontsize=12)
    _attribute(page, note)


def _attribute(page: Figure, note: str) -> None:
    """Every figure says whose data it shows, and under which licence."""
    width = int(page.get_figwidth() * 17)  # letters of a line, at the size of a footnote
    plots.footnote(page, "\n".join([note, *textwrap.wrap(ATTRIBUTION, width)]))
