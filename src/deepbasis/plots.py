"""Figures of a model. A function takes an axes and arrays, draws, and returns the axes: it makes and shows no figure.

Nothing here needs a display, imports `pyplot` or changes a global setting. `new_figure` makes a figure to draw on;
matplotlib (the extra `deepbasis[plots]`) is imported when it is called.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deepbasis.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN, ORANGE, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7"
"""Okabe and Ito's colours, which can be distinguished by the colour-blind and in grey."""
INK, GREY = "#222222", "#8A8A8A"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. It belongs to no window and to no list of figures."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InputError("figures need matplotlib: pip install 'deepbasis[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def png(figure: Figure, dots_per_inch: int = 150) -> bytes:
    """The figure as a PNG file, the same bytes for the same figure."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return data.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same figure. It has no background, and its ink is light on dark."""
    from matplotlib import rc_context

    data = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": "deepbasis", "svg.fonttype": "path"}):
        figure.savefig(data, format="svg", transparent=True, metadata=nothing)
    text = data.getvalue().decode()
    for colour, variable in (("#000000", "ink"), (INK, "ink"), (BLUE, "blue")):
        text = text.replace(colour.lower(), f"var(--{variable})")
    return text.replace("<defs>", f"<style>{_SHADES}</style>\n <defs>", 1).encode()


_SHADES = (
    f"svg{{--ink:{INK};--blue:{BLUE};fill:var(--ink)}}"
    "@media (prefers-color-scheme:dark){svg{--ink:#e4e4e4;--blue:#56b4e9}}"
)


def predictive_band(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    oracle: tuple[ArrayLike, ArrayLike] | None = None,
    width: float = 2.0,
    colour: str = BLUE,
    label: str = "prediction",
) -> Axes:
    """The predictive mean and `width` standard deviations around it, over one input.

    `data` (x, y) are drawn as points, `oracle` (mean, std) at the same `x` as thin lines on top.
    """
    x, mean, std = as_vectors(x=x, mean=mean, std=std)
    order = np.argsort(x, kind="stable")
    x, mean, std = x[order], mean[order], std[order]
    if data is not None:
        xs, ys = as_vectors(x=data[0], y=data[1])
        ax.plot(xs, ys, ".", color=GREY, markersize=3, alpha=0.45, markeredgewidth=0, label="data", rasterized=True)
    low, high = mean - width * std, mean + width * std
    ax.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0, label=f"{label}: mean ± {width:g} std")
    ax.plot(x, mean, color=colour, linewidth=1.8, label=f"{label}: mean")
    if oracle is not None:
        true_mean, true_std = (values[order] for values in as_vectors(mean=oracle[0], std=oracle[1]))
        thin: dict[str, Any] = {"color": INK, "linewidth": 0.7}
        ax.plot(x, true_mean, **thin, label="oracle: mean")
        ax.plot(x, true_mean - width * true_std, **thin, linestyle=(0, (4, 2)), label=f"oracle: mean ± {width:g} std")
        ax.plot(x, true_mean + width * true_std, **thin, linestyle=(0, (4, 2)))
    ax.set_xlim(float(x[0]), float(x[-1]))
    return without_frame(ax)


def kernel_heatmap(ax: Axes, x: ArrayLike, K: ArrayLike) -> Axes:
    """A kernel matrix on a grid `x`, divided by its largest absolute value: red above zero, blue below.

    The picture is `ax.images[-1]`, for a colour bar.
    """
    (x,) = as_vectors(x=x)
    K = np.asarray(K, dtype=np.float64)
    if K.shape != (len(x), len(x)):
        raise InputError(f"K must have a row and a column for each x, [{len(x)}, {len(x)}], got {list(K.shape)}")
    largest = np.abs(K).max()
    ends = (float(x[0]), float(x[-1]))
    ax.imshow(
        K / (largest if largest > 0 else 1.0),
        origin="lower",
        extent=(*ends, *ends),
        vmin=-1.0,
        vmax=1.0,
        cmap="RdBu_r",
        interpolation="nearest",
        aspect="equal",
    )
    ax.set_xlabel("x")
    ax.set_ylabel("x'")
    return ax


def calibration_curve(ax: Axes, pit: ArrayLike, *, colour: str = BLUE, label: str = "prediction") -> Axes:
    """How often the target falls below each of its predicted quantiles, over the quantile's level.

    `pit` (probability integral transform) is the predicted cdf at the target, one number a row. A calibrated prediction
    lies on the diagonal, up to chance: in 95 % of cases within the grey band.
    """
    (pit,) = as_vectors(pit=pit)
    if ((pit < 0) | (pit > 1)).any():
        raise InputError("pit must lie between 0 and 1: give the predicted cdf at the targets")
    level = np.linspace(0.0, 1.0, 101)
    share = np.searchsorted(np.sort(pit), level, side="right") / len(pit)
    chance = 1.96 * np.sqrt(level * (1.0 - level) / len(pit))
    ax.fill_between(level, level - chance, level + chance, color=GREY, alpha=0.25, linewidth=0, label="chance")
    ax.plot(level, level, color=INK, linewidth=0.7, linestyle=(0, (4, 2)), label="calibrated")
    ax.plot(level, share, color=colour, linewidth=1.8, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="share of targets below", aspect="equal")
    return without_frame(ax)


def reliability(ax: Axes, p: ArrayLike, happened: ArrayLike, *, bins: int = 10, colour: str = BLUE, label: str) -> Axes:
    """How often what was given a probability `p` has `happened`, in bins of equally many rows.

    On the diagonal is good; the bars are two standard errors.
    """
    p, happened = as_vectors(p=p, happened=happened)
    order = np.array_split(np.argsort(p, kind="stable"), min(bins, len(p)))
    told, share = (np.array([values[some].mean() for some in order]) for values in (p, happened))
    error = 2.0 * np.sqrt(share * (1.0 - share) / [len(some) for some in order])
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
    ax.errorbar(told, share, error, fmt="o-", color=colour, markersize=4, linewidth=1.2, elinewidth=1.0, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="share of rows", aspect="equal")
    return without_frame(ax)


def confusion(ax: Axes, shares: ArrayLike, names: Sequence[str]) -> Axes:
    """Of the rows of each class (down), the share that is taken for each (across), written into its field."""
    cells = np.asarray(shares, dtype=np.float64)
    ax.imshow(cells, cmap="Blues", vmin=0.0, vmax=1.0)
    for (row, column), share in np.ndenumerate(cells):
        ink = "#ffffff" if share > 0.5 else "#111111"  # whatever the page's is: the fields have their own paper
        ax.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=ink)
    short = [plain(name, 12) for name in names]
    ax.set_xticks(range(len(short)), short, rotation=45, ha="right")
    ax.set_yticks(range(len(short)), short)
    ax.set(xlabel="likeliest class", ylabel="class")
    return ax


def intervals(
    ax: Axes,
    mean: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    y: ArrayLike | None = None,
    coverage: float = 0.95,
    colour: str = BLUE,
) -> Axes:
    """The mean and the interval of each row, side by side; targets `y` outside of their intervals stand out."""
    mean, lower, upper = as_vectors(mean=mean, lower=lower, upper=upper)
    row = np.arange(len(mean))
    ax.vlines(row, lower, upper, color=colour, alpha=0.45, linewidth=1.6, label=f"{100 * coverage:g} % interval")
    ax.plot(row, mean, "_", color=colour, markersize=4, label="mean")
    if y is not None:
        (y, _) = as_vectors(y=y, mean=mean)
        inside = (lower <= y) & (y <= upper)
        for some, shade, label in ((inside, INK, "target"), (~inside, VERMILLION, "target outside")):
            ax.plot(row[some], y[some], "o", color=shade, markersize=2.6, markeredgewidth=0, label=label)
    ax.set_xlabel("row")
    return without_frame(ax)


def pit_histogram(ax: Axes, pit: ArrayLike, *, bins: int = 10, colour: str = BLUE) -> Axes:
    """How often the predicted cdf at the target (`pit`) falls into each of equal bins; flat, up to chance, is good.

    A hump says that intervals are too wide, a valley that they are too narrow, a slope that means are off.
    """
    (pit,) = as_vectors(pit=pit)
    share, edges = np.histogram(pit, bins=bins, range=(0.0, 1.0))
    expected, n = 1.0 / bins, len(pit)
    chance = 1.96 * np.sqrt(expected * (1.0 - expected) / n)
    ax.bar(edges[:-1], share / n, width=np.diff(edges), align="edge", color=colour, alpha=0.6, edgecolor=INK)
    ax.axhspan(expected - chance, expected + chance, color=GREY, alpha=0.3, linewidth=0, label="chance")
    ax.axhline(expected, color=INK, linewidth=0.7, linestyle=(0, (4, 2)), label="calibrated")
    ax.set(xlim=(0, 1), xlabel="predicted probability below the target", ylabel="share of rows")
    return without_frame(ax)


def residuals(ax: Axes, mean: ArrayLike, std: ArrayLike, y: ArrayLike, *, colour: str = BLUE) -> Axes:
    """Residuals in predicted standard deviations over the predicted mean: a shapeless cloud around zero is good."""
    mean, std, y = as_vectors(mean=mean, std=std, y=y)
    dots: dict[str, Any] = {"markersize": 3, "alpha": 0.45, "markeredgewidth": 0, "rasterized": len(y) > 1_000}
    ax.plot(mean, (y - mean) / std, "o", color=colour, **dots)
    ax.axhspan(-2.0, 2.0, color=GREY, alpha=0.2, linewidth=0)
    ax.axhline(0.0, color=INK, linewidth=0.7)
    ax.set(xlabel="predicted mean", ylabel="residual / predicted std")
    return without_frame(ax)


def bars(ax: Axes, names: Sequence[str], values: ArrayLike, spread: ArrayLike, *, colour: str = BLUE) -> Axes:
    """A horizontal bar for each name, the first on top, with its spread as a line."""
    values, spread = as_vectors(values=values, spread=spread)
    places = np.arange(len(values))
    ax.barh(places, values, xerr=spread, color=colour, alpha=0.75, error_kw={"ecolor": INK, "elinewidth": 1.0})
    ax.set_yticks(places, [plain(name) for name in names])
    ax.set(ylim=(len(values) - 0.5, -0.5))
    ax.locator_params(axis="x", nbins=5)
    return without_frame(ax)


def effect(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    labels: Sequence[str] = (),
    dates: bool = False,
    colour: str = BLUE,
) -> Axes:
    """A curve and its band over the values of a column: a line, or a dot for each label; of dates in seconds."""
    x, mean, lower, upper = as_vectors(x=x, mean=mean, lower=lower, upper=upper)
    if labels:
        ax.errorbar(x, mean, [mean - lower, upper - mean], fmt="o", color=colour, markersize=5, elinewidth=1.4)
        names = [plain(label, 16) for label in labels]
        long: dict[str, Any] = {"rotation": 30, "ha": "right"} if sum(map(len, names)) > 24 else {}
        ax.set_xticks(x, names, **long)
        ax.set_xlim(-0.5, len(x) - 0.5)
        return without_frame(ax)
    at: Any = x
    if dates:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        at, locator = x.astype("datetime64[s]"), AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    ax.fill_between(at, lower, upper, color=colour, alpha=0.25, linewidth=0)
    ax.plot(at, mean, color=colour, linewidth=1.8)
    return without_frame(ax)


def plain(text: str, most: int = 24) -> str:
    """A name as text in a figure: shortened, and without a meaning for matplotlib, to which $ begins a formula."""
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(c if c.isprintable() else "?" for c in short).replace("$", r"\$")


def training_history(ax: Axes, history: Mapping[str, ArrayLike] | Sequence[Mapping[str, ArrayLike]]) -> Axes:
    """Training loss and validation score over the epochs, one thin line per member; a dot marks its best epoch.

    `history` is a member's, with "train_loss" and "validation", or a list of them: `DeepBasisRegressor.history_`.
    """
    members = [history] if isinstance(history, Mapping) else list(history)
    if not members:
        raise InputError("history is empty: there is no member to draw")
    for k, member in enumerate(members):
        loss, validation = as_vectors(train_loss=member["train_loss"], validation=member["validation"])
        epochs = np.arange(1, len(loss) + 1)
        thin: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.8}
        ax.plot(epochs, loss, color=GREY, **thin, label=None if k else "training loss")
        ax.plot(epochs, validation, color=BLUE, **thin, label=None if k else "validation score")
        if np.isfinite(validation).any():
            best = int(np.nanargmin(validation))
            dot: dict[str, Any] = {"color": VERMILLION, "markersize": 4, "label": None if k else "best epoch"}
            ax.plot(epochs[best], validation[best], "o", **dot)
    ax.set(xlabel="epoch", ylabel="nats per row")
    return without_frame(ax)


def without_frame(ax: Axes) -> Axes:
    """Only the left and the lower axis."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def as_vectors(**arrays: ArrayLike) -> list[NDArray[np.float64]]:
    """Each as a vector of floats, all of one length."""
    vectors = [np.asarray(values, dtype=np.float64) for values in arrays.values()]
    for name, vector in zip(arrays, vectors, strict=True):
        if vector.ndim != 1 or len(vector) == 0:
            raise InputError(f"{name} must be a vector with at least one entry, got shape {list(vector.shape)}")
        if len(vector) != len(vectors[0]):
            raise InputError(f"{name} has {len(vector)} entries but {next(iter(arrays))} has {len(vectors[0])}")
    return vectors


def basis_functions(ax: Axes, x: ArrayLike, phi: ArrayLike) -> Axes:
    """Each column of `phi` as a line over the grid `x`; those that vary most are drawn last, and darkest."""
    (x,) = as_vectors(x=x)
    phi = np.asarray(phi, dtype=np.float64)
    if phi.ndim != 2 or len(phi) != len(x) or phi.shape[1] == 0:
        raise InputError(f"phi must have a row for each x, [{len(x)}, r], got {list(phi.shape)}")
    order = np.argsort(phi.std(0), kind="stable")
    r = len(order)
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.9, 0.1, r) if r > 1 else np.array([0.3]))
    for column, shade in zip(order, shades, strict=True):
        ax.plot(x, phi[:, column], color=shade, linewidth=1.8 if r <= 8 else 0.9, alpha=0.95 if r <= 8 else 0.7)
    ax.set_xlim(float(x[0]), float(x[-1]))
    return without_frame(ax)
