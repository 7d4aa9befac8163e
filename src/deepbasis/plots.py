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
