"""The figures of Sec. 4.3 from the Ookla experiment's parts: interval widths, kernel slices, maps of uncertainty."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbasis import plots
from deepbasis.paper import ookla_maps, panels
from deepbasis.paper.data_ookla import ATTRIBUTION
from deepbasis.paper.ookla_tables import LABELS, MAPPED, STRATA, kind, title
from deepbasis.paper.parts import Folder, Part
from deepbasis.paper.splits import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIP = 0.995
"""The quantile at which the maps' scales of colours end (caption of the paper's map of uncertainty)."""

_NORMAL_95 = 3.919928  # the width of a normal's central 95 % in standard deviations

Group = Mapping[str, Part]
"""The parts of one data set and target, by method."""


def write(folder: Folder, parts: Sequence[Part], dots_per_inch: int = 150) -> None:
    """Every figure that these parts allow."""
    groups = grouped(parts)
    if groups:
        folder.write("interval_widths.png", plots.png(interval_widths(groups), dots_per_inch))
    mapped = [group[MAPPED] for group in groups.values() if MAPPED in group]
    for name in dict.fromkeys(part.values["dataset"] for part in mapped):
        same = [part for part in mapped if part.values["dataset"] == name]
        folder.write(f"kernels_{name}.png", plots.png(kernel_slices(same, lowest_kernel(mapped)), dots_per_inch))
        folder.write(f"uncertainty_{name}.png", plots.png(uncertainty(same), dots_per_inch))


def grouped(parts: Sequence[Part]) -> dict[tuple[str, str], dict[str, Part]]:
    """By data set and target, without the parts that gave no result."""
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
        panels.paired_violins(ax, {LABELS[method]: _widths(part) for method, part in group.items()})
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
    widths = _NORMAL_95 * part.arrays["std"].double().numpy()
    return {name: widths[rows] for name, rows in zip(STRATA, (urban, ~urban), strict=True) if rows.any()}


def lowest_kernel(parts: Sequence[Part]) -> float:
    """Where the colours of all kernel slices begin: the tenth below all but the least of their values."""
    lowest = min(_ends(_relative_slices(part))[0] for part in parts)
    return min(math.floor(10.0 * lowest) / 10.0, 0.9)


def _relative_slices(part: Part) -> Floats:
    """[place, latitudes, longitudes]: k(., x_ref) / k(x_ref, x_ref), NaN outside the state."""
    slices: Floats = part.arrays["slices"].double().numpy()
    return slices


def kernel_slices(parts: Sequence[Part], low: float) -> Figure:
    """k(., x_ref) of DBK at an urban, a rural and a remote place, for each target, in colours from `low` to 1."""
    places = ookla_maps.PLACES[parts[0].values["state"]]
    ends = _ends(*(_relative_slices(part) for part in parts))
    sheet = _Sheet(parts)
    for k, part in enumerate(parts):
        for j, (place, values) in enumerate(zip(places, _relative_slices(part), strict=True)):
            grid = (part.arrays["grid_lon"], part.arrays["grid_lat"], values)
            ax = sheet.draw(k, j, f"{place.kind}: {place.name}", *grid, low=low, high=1.0, colours="magma")
            ax.plot(place.lon, place.lat, "*", color=plots.BLUE, markersize=12, markeredgecolor="white")
        sheet.bar(k, "k(x, x_ref) / k(x_ref, x_ref)")
    note = (
        f"The star is x_ref. The colours run from {low:g} to 1 in every state, not from 0: here k is between "
        f"{ends[0]:.2f} and {ends[1]:.2f} of k(x_ref, x_ref) at {2.0 * CLIP - 1.0:.0%} of the points or more."
    )
    return sheet.finished("Kernel slices k(x, x_ref)", note)


def uncertainty(parts: Sequence[Part]) -> Figure:
    """Empirical std of the training rows, predicted std of the test rows, and predicted std everywhere."""
    sheet = _Sheet(parts)
    for k, part in enumerate(parts):
        a = part.arrays
        corner = a["cells"].int().numpy()
        empirical, predicted = (a[name].double().numpy() for name in ("cell_std", "cell_predicted"))
        low, high = _ends(empirical, predicted, a["grid_std"].numpy())
        pictures = {
            "empirical, training rows": raster(corner, empirical, part.values["cell"]),
            "predicted, test rows": raster(corner, predicted, part.values["cell"]),
            "predicted, everywhere": (a["grid_lon"], a["grid_lat"], a["grid_std"]),
        }
        for j, (heading, picture) in enumerate(pictures.items()):
            sheet.draw(k, j, heading, *picture, low=low, high=high)
        sheet.bar(k, "standard deviation")
    note = (
        f"Standardised log10 of the speed. Cells of {parts[0].values['cell']}° with enough training rows for a "
        'standard deviation and at least one test row; of "everywhere" much is far from any row. The colours hold the '
        f"quantiles {1.0 - CLIP:.1%} to {CLIP:.1%} of every map."
    )
    return sheet.finished("Standard deviation, measured and predicted", note)


def _ends(*pictures: Floats) -> tuple[float, float]:
    """The range that holds all but the least and the most of each picture, whatever its size; NaN does not count."""
    ends = [np.quantile(seen, [1.0 - CLIP, CLIP]) for p in pictures if (seen := p[np.isfinite(p)]).size]
    return float(min(low for low, _ in ends)), float(max(high for _, high in ends))


class _Sheet:
    """Three maps for each of some parts of one state: side by side, or one above the other where the state is flat."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.low, self.high = np.array(parts[0].values["frame"])
        width, height = self.high - self.low
        shape = float(height / (width * np.cos(np.radians((self.low[1] + self.high[1]) / 2.0))))
        self.flat = shape < 0.5
        rows, columns = (3, len(parts)) if self.flat else (len(parts), 3)
        inches = 5.4 if self.flat else 3.6
        sides, ends = (0.3, 1.8) if self.flat else (1.0, 0.9)  # the bar of colours is below or beside
        self.page = plots.new_figure(inches * columns + sides, ends + (inches * shape + 0.3) * rows)
        axes: Any = self.page.subplots(rows, columns, squeeze=False)
        self.axes = axes.T if self.flat else axes

    def draw(self, k: int, j: int, heading: str, lon: Any, lat: Any, values: Any, **colours: Any) -> Any:
        """Map j of part k."""
        from matplotlib.path import Path

        part, ax = self.parts[k], self.axes[k, j]
        ax.set_title(f"{part.values['target']}, {heading}", fontsize=10)
        panels.map_picture(ax, lon, lat, values, outline=part.arrays["outline"], **colours)
        coast = [Path(ring, closed=True) for ring in ookla_maps.rings(part.arrays["outline"])]
        ax.collections[0].set_clip_path(Path.make_compound_path(*coast), ax.transData)
        margin = 0.02 * (self.high - self.low).max()
        (west, south), (east, north) = self.low - margin, self.high + margin
        ax.set(xlim=(west, east), ylim=(south, north))
        return ax

    def bar(self, k: int, label: str) -> None:
        """The colours of part k, which its maps have in common."""
        place: dict[str, Any] = {"location": "bottom", "shrink": 0.6, "aspect": 40} if self.flat else {"shrink": 0.8}
        maps = list(self.axes[k])
        self.page.colorbar(maps[0].collections[0], ax=maps, extend="both", pad=0.01, **place).set_label(
            label, fontsize=9
        )

    def finished(self, what: str, note: str) -> Figure:
        v = self.parts[0].values
        heading = f"{what}: {v['state']}, DBK-RBF ({kind(v)})"
        self.page.suptitle("\n".join(_lines(heading, 9.0 * self.page.get_figwidth())), fontsize=12)
        _attribute(self.page, note)
        return self.page


def raster(corner: Any, values: Floats, cell: float) -> tuple[Floats, Floats, Floats]:
    """Cells of so many degrees as a grid: longitudes, latitudes, and values [latitudes, longitudes]; NaN elsewhere."""
    if len(corner) == 0:
        return np.zeros(1), np.zeros(1), np.full((1, 1), np.nan)
    west, south = corner.min(axis=0)
    columns, rows = corner.max(axis=0) - corner.min(axis=0) + 1
    picture = np.full((rows, columns), np.nan)
    picture[corner[:, 1] - south, corner[:, 0] - west] = values
    lon, lat = ((first + np.arange(n) + 0.5) * cell for first, n in ((west, columns), (south, rows)))
    return lon, lat, picture


def _attribute(page: Figure, note: str) -> None:
    """Every figure says whose data it shows, and under which licence."""
    letters = 17.0 * page.get_figwidth()  # in a line, at the size of a footnote
    panels.footnote(page, "\n".join([*_lines(note, letters), *_lines(ATTRIBUTION, letters)]))


def _lines(text: str, letters: float) -> list[str]:
    """As few lines as fit, about as long as each other."""
    even = math.ceil(len(text) / math.ceil(len(text) / letters)) + 8
    return textwrap.wrap(text, even, break_on_hyphens=False)
