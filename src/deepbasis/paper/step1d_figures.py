"""The figures of the 1-D example, drawn from recorded parts. What has not been computed is left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepbasis import plots
from deepbasis.paper import panels
from deepbasis.paper.parts import Folder
from deepbasis.paper.step1d_drawing import (
    DASHED,
    STYLE,
    band,
    band_legend,
    colour_bar,
    duration,
    kernel,
    shown,
    signed,
    usable,
)
from deepbasis.paper.step1d_results import (
    DPPGP,
    EXACT_DBK,
    EXACT_RBF,
    GRID,
    METHODS,
    SHOWN_RANKS,
    PartFit,
    Results,
    StudyResults,
)
from deepbasis.paper.step1d_tables import NEAR, papers_nll


def write(folder: Folder, results: Results) -> None:
    for study in results.studies:
        for name, figure in (
            ("figure1", example(results, study)),
            ("figure4", scaling(study)),
            ("figure5", by_rank(study)),
            ("figure5-appendix", bases(study)),
            ("collapse", collapse(results, study)),
        ):
            if figure is not None:
                folder.write(f"{name}-amplitude-{study.amplitude:g}.png", plots.png(figure, 120))


# ---- Fig. 1 ----------------------------------------------------------------------------------------------------


def example(results: Results, study: StudyResults) -> Any:
    """One column per method: its kernel, its prediction over the data, its scores."""
    fits = usable(study.at(results.focus))
    if not fits:
        return None
    page = plots.new_figure(3.3 * len(fits) + 0.9, 8.6)
    axes: Any = page.subplots(3, len(fits), height_ratios=[1.2, 1.0, 0.55], squeeze=False)
    for (method, fit), (top, middle, bottom) in zip(fits.items(), axes.T, strict=True):
        top.set_title(METHODS[method], fontsize=13, fontweight="bold")
        kernel(top, fit)
        band(middle, fit, study)
        _scores(bottom, fit, first=bottom is axes[2, 0])
    axes[0, 0].set_ylabel("x'")
    axes[1, 0].set_ylabel("y")
    for ax in axes[:2, 1:].flat:
        ax.tick_params(labelleft=False)
    colour_bar(page, axes[0, :])
    band_legend(page, axes[1, 0], f"n = {results.focus:,}, noise of amplitude {study.amplitude:g}", study)
    return page


def _scores(ax: Any, fit: PartFit, *, first: bool) -> None:
    """Rows of text under the column; the first column carries their names."""
    ax.axis("off")
    lines = {
        "MAE": shown(fit, "mae", 4),
        "NLL": shown(fit, "nll", 4),
        "CRPS": shown(fit, "crps", 4),
        "effective rank": shown(fit, "effective_rank", 2),
        "seeds": str(len(fit.records)),
        "training step": duration(fit.time("step_ms")),
        "evaluation": duration(fit.time("eval_ms")),
    }
    for k, (name, value) in enumerate(lines.items()):
        height = 1.0 - k / (len(lines) - 0.5)
        ax.text(0.5, height, value, ha="center", va="top", transform=ax.transAxes, fontsize=10.5)
        if first:
            ax.text(-0.16, height, name, ha="left", va="top", transform=ax.transAxes, fontsize=10.5, color=plots.GREY)


# ---- Fig. 4 ----------------------------------------------------------------------------------------------------


def scaling(study: StudyResults) -> Any:
    """Scores and times over n, one line per method. RBF squashes the others' MAE, so they have their own panel."""
    fits = {method: usable(by_n) for method, by_n in study.sizes.items()}
    if not any(fits.values()):
        return None
    page = plots.new_figure(12.0, 7.2)
    curves = (
        ("test MAE", "mae", list(METHODS)),
        ("test MAE without RBF", "mae", [method for method in METHODS if method != EXACT_RBF]),
        ("test NLL, nats a row", "nll", list(METHODS)),
        ("a training step, ms", "step_ms", list(METHODS)),
        ("evaluation of 1,000 rows, ms", "eval_ms", list(METHODS)),
    )
    axes: Any = page.subplots(2, 3)
    *drawn, last = axes.flat
    for ax, (title, metric, methods) in zip(drawn, curves, strict=True):
        for method in methods:
            statistics = {n: s for n, fit in fits[method].items() if (s := fit.statistic(metric)) is not None}
            if statistics:
                mean, spread = np.array(list(statistics.values()), dtype=np.float64).T
                colour, marker = STYLE[method]
                label = f"{METHODS[method]}, {_seeds(fits[method])}"
                panels.curve(ax, list(statistics), mean, spread, colour=colour, marker=marker, label=label)
        if metric in study.oracle:
            ax.axhline(study.oracle[metric], color=plots.INK, linewidth=0.9, linestyle=DASHED, label="oracle")
        elif ax.has_data():
            _log_axis(ax)
        ax.set_xscale("log")
        sizes = study.every_n()
        ax.set_xticks(sizes, [_thousands(n) for n in sizes], rotation=45 if len(sizes) > 5 else 0)
        ax.minorticks_off()
        ax.set_title(title, fontsize=12)
        ax.set_xlabel("training rows n")
        ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        ax.set_axisbelow(True)
    last.axis("off")
    title = f"noise of amplitude {study.amplitude:g}\nbands: ± 1 std over seeds"
    last.legend(*drawn[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=11, title=title)
    return page


def _seeds(fits: dict[int, PartFit]) -> str:
    """How many there are, from the fewest at an n to the most."""
    counts = sorted({len(fit.records) for fit in fits.values()})
    if counts == [1]:
        return "1 seed"
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) + " seeds"


def _log_axis(ax: Any) -> None:
    """Numbers at 1, 2, 5, 10, ...: as they are, not as powers."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    ax.set_yscale("log")
    low, high = ax.dataLim.intervaly
    ax.set_ylim(low / 1.6, high * 1.6)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000.0 * low else (1.0,)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _thousands(n: int) -> str:
    return f"{n // 1000}k" if n % 1000 == 0 else str(n)


# ---- Fig. 5 and its appendix -----------------------------------------------------------------------------------


def by_rank(study: StudyResults) -> Any:
    """Kernels of a few ranks, each divided by its largest value, and the test NLL over the rank.

    Rank 1 is so far off that it squashes the others: the NLL has a second panel without it.
    """
    fits = usable(study.by_rank)
    pictured = {rank: fits[rank] for rank in SHOWN_RANKS if rank in fits}
    if not pictured:
        return None
    over_rank = [chosen for least in (1, 2) if (chosen := {rank: fit for rank, fit in fits.items() if rank >= least})]
    page = plots.new_figure(2.4 * len(pictured) + 3.3 * len(over_rank) + 1.0, 3.9)
    page.set_layout_engine("constrained", wspace=0.06)
    widths = [1.0] * len(pictured) + [1.2] * len(over_rank)
    axes: Any = page.subplots(1, len(widths), width_ratios=widths)
    for ax, (rank, fit) in zip(axes, pictured.items(), strict=False):
        kernel(ax, fit)
        ax.set_title(f"rank {rank}", fontsize=12)
        if ax is axes[0]:
            ax.set_ylabel("x'")
        else:
            ax.tick_params(labelleft=False)
    colour_bar(page, axes[: len(pictured)])
    for ax, chosen in zip(axes[len(pictured) :], over_rank, strict=True):
        _nll_over_rank(ax, study, chosen)
    handles, labels = axes[len(pictured)].get_legend_handles_labels()
    title = f"noise of amplitude {study.amplitude:g}"
    # Error bars are listed last: they belong first.
    order = {"handles": [handles[-1], *handles[:-1]], "labels": [labels[-1], *labels[:-1]]}
    page.legend(**order, loc="outside upper center", ncols=5, frameon=False, title=title)
    return page


def _nll_over_rank(ax: Any, study: StudyResults, fits: dict[int, PartFit]) -> None:
    statistics = {rank: s for rank, fit in fits.items() if (s := fit.statistic("nll")) is not None}
    mean, spread = np.array(list(statistics.values()), dtype=np.float64).T
    seeds = max(len(fit.records) for fit in fits.values())
    panels.curve(ax, list(statistics), mean, spread, bars=True, label=f"DBK (dPPGP): mean ± std of {seeds} seeds")
    best = {rank: fit.best["nll"] for rank, fit in fits.items() if fit.best is not None}
    theirs = {rank: value for rank in statistics if (value := papers_nll(study, rank)) is not None}
    for marker, colour, label, values in (
        ("x", plots.INK, "its best run, by validation rows", best),
        ("D", plots.VERMILLION, "paper: its best run, by test rows", theirs),
    ):
        if values:
            points: dict[str, Any] = {"marker": marker, "markersize": 7, "markerfacecolor": "none", "linestyle": "none"}
            ax.plot(list(values), list(values.values()), **points, color=colour, label=label)
    oracle = study.oracle["nll"]
    ax.axhline(oracle, color=plots.INK, linewidth=0.9, linestyle=DASHED, label="oracle")
    ax.axhspan(oracle, oracle + NEAR, color=plots.GREY, alpha=0.2, linewidth=0, label=f"up to {NEAR:g} above it")
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(statistics), [str(rank) for rank in statistics])
    ax.set_title("test NLL, nats a row" if 1 in fits else "without rank 1", fontsize=12)
    ax.set_xlabel("rank r")


def bases(study: StudyResults) -> Any:
    """One column per rank: its basis functions above, its prediction below."""
    fits = {rank: fit for rank, fit in usable(study.by_rank).items() if rank in SHOWN_RANKS}
    if not fits:
        return None
    page = plots.new_figure(3.3 * len(fits) + 0.6, 6.4)
    axes: Any = page.subplots(2, len(fits), squeeze=False, sharex="col")
    for (rank, fit), (top, bottom) in zip(fits.items(), axes.T, strict=True):
        plots.basis_functions(top, GRID.numpy(), fit.basis.numpy())
        band(bottom, fit, study)
        best = fit.best
        assert best is not None
        top.set_title(f"rank {rank}: test NLL {signed(best['nll'], 3)}", fontsize=12)
    axes[0, 0].set_ylabel("basis functions φ(x)")
    axes[1, 0].set_ylabel("y")
    for ax in axes[1, 1:]:
        ax.tick_params(labelleft=False)
    band_legend(
        page, axes[1, 0], f"noise of amplitude {study.amplitude:g}; the run with the best validation NLL", study
    )
    return page


# ---- what theory says of exact training (Corollary 1, Theorem 3) -----------------------------------------------


def collapse(results: Results, study: StudyResults) -> Any:
    """The effective rank, and the first eigenvalue's share, as exact training goes on."""
    if study.collapse is None:
        return None
    page = plots.new_figure(10.0, 3.6)
    axes: Any = page.subplots(1, 2)
    curves = {"effective rank of the kernel": study.collapse.effective_ranks}
    curves["share of the first eigenvalue"] = study.collapse.first_shares
    steps = study.collapse.steps
    colour, _ = STYLE[EXACT_DBK]
    for ax, (title, values) in zip(axes, curves.items(), strict=True):
        mean = values.mean(0).numpy()
        spread = values.std(0).numpy() if len(values) > 1 else None
        label = f"{METHODS[EXACT_DBK]}: mean ± std of {len(values)} seeds"
        panels.curve(ax, steps, mean, spread, colour=colour, marker="", label=label)
        ax.set_title(title, fontsize=12)
        ax.set_xlabel("full-batch steps")
        ax.set_xlim(0, steps[-1])
    axes[1].set_ylim(0, 1)
    there = study.at(results.focus).get(DPPGP)
    statistic = None if there is None else there.statistic("effective_rank")
    if statistic is not None:
        axes[0].axhline(statistic[0], color=STYLE[DPPGP][0], linestyle=DASHED, label=f"{METHODS[DPPGP]}, trained")
    axes[0].axhline(1.0, color=plots.INK, linewidth=0.9, linestyle=DASHED, label="rank 1")
    axes[0].set_ylim(bottom=0)
    title = f"n = {results.focus:,}, noise of amplitude {study.amplitude:g}"
    page.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, title=title)
    return page
