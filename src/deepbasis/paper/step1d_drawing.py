"""What the figures of the 1-D example share: a method's colour, a kernel, a prediction over the data, legends."""

from __future__ import annotations

from typing import Any

from deepbasis import plots
from deepbasis.paper import data_step1d as dataset
from deepbasis.paper.parts import number
from deepbasis.paper.step1d_results import DPPGP, EXACT_DBK, EXACT_DKL, EXACT_RBF, GRID, PartFit, StudyResults

STYLE: dict[str, tuple[str, str]] = {
    EXACT_RBF: (plots.ORANGE, "s"),
    EXACT_DKL: (plots.GREEN, "D"),
    EXACT_DBK: (plots.VERMILLION, "^"),
    DPPGP: (plots.BLUE, "o"),
}
"""Colour and marker of a method."""

_SHOWN_ROWS = 2_000  # more points than these hide each other
_TICKS: dict[str, Any] = {"ticks": [-1, -0.5, 0, 0.5, 1], "labels": ["−1", "−0.5", "0", "0.5", "1"]}
DASHED = (0, (4, 2))


def usable(fits: dict[Any, PartFit]) -> dict[Any, PartFit]:
    """Those in which some seed gave a result."""
    return {key: fit for key, fit in fits.items() if fit.best is not None}


def kernel(ax: Any, fit: PartFit) -> None:
    plots.kernel_heatmap(ax, GRID.numpy(), fit.kernel.numpy())
    ax.set_xticks(**_TICKS)
    ax.set_yticks(**_TICKS)
    ax.set_ylabel("")


def band(ax: Any, fit: PartFit, study: StudyResults) -> None:
    rows = study.shown.first(_SHOWN_ROWS)
    truth = dataset.oracle(GRID[:, None], study.amplitude)
    plots.predictive_band(
        ax,
        GRID.numpy(),
        fit.mean.numpy(),
        fit.std.numpy(),
        data=(rows.x[:, 0].numpy(), rows.y.numpy()),
        oracle=(truth.mean.numpy(), truth.std.numpy()),
    )
    reach = float((truth.mean.abs() + 3.2 * truth.std).max())
    ax.set_ylim(-reach, reach)
    ax.set_xticks(**_TICKS)
    ax.set_xlabel("x")


def band_legend(page: Any, ax: Any, title: str, study: StudyResults) -> None:
    handles, labels = ax.get_legend_handles_labels()
    drawn = dict(zip(labels, handles, strict=True))
    wanted = ["data", "prediction: mean ± 2 std", "oracle: mean ± 2 std"]
    page.legend(
        [drawn[label] for label in wanted],
        [*wanted[:2], f"{wanted[2]} (test NLL {signed(study.oracle['nll'], 3)})"],
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=11,
        markerscale=3,
        title=title,
    )


def colour_bar(page: Any, axes: Any) -> None:
    bar = page.colorbar(axes[-1].images[-1], ax=list(axes), shrink=0.8, ticks=[-1, 0, 1], pad=0.015)
    bar.ax.set_yticklabels(["−1", "0", "1"])
    bar.set_label("k(x, x') / max |k|")


def shown(fit: PartFit, metric: str, digits: int) -> str:
    statistic = fit.statistic(metric)
    if statistic is None:
        return "–"
    mean, std = statistic
    return signed(mean, digits) + ("" if std is None else f" ± {number(std, digits)}")


def signed(value: float, digits: int) -> str:
    return number(value, digits).replace("-", "−")


def duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    return f"{milliseconds / 1e3:.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"
