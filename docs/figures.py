"""Figures of the page of benchmarks, from the tables in results/. `docs/conf.py` draws them when the site is built."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

from deepbasis import plots

Draw = Callable[[Path], object]
PEERS = {
    "catboost": ("CatBoost", "o", plots.ORANGE),
    "ngboost": ("NGBoost", "s", plots.GREEN),
    "deep-ensemble": ("deep ensembles", "^", plots.PURPLE),
    "gpytorch-pp-dkl": ("GPyTorch, PP-DKL", "v", plots.VERMILLION),
    "gpytorch-sv-dkl": ("GPyTorch, SV-DKL", "D", plots.INK),
    "sklearn-gp": ("scikit-learn, exact GP", "P", plots.GREY),
    "realmlp": ("RealMLP", "X", "#56B4E9"),
    "realmlp-bagged": ("four of RealMLP", "d", "#0B5E9C"),
    "catboost-quantiles": ("CatBoost, quantiles", "p", "#F0C040"),
    "hgb": ("scikit-learn, boosted quantiles", "h", "#8C564B"),
}


def quality_table(results: Path) -> pd.DataFrame:
    """One line for a data set, model and metric; of the UCI sets those with copies on one side of the split."""
    table = pd.read_csv(results / "quality" / "table.csv")
    safe = set(table.loc[table["split"] == "duplicate-safe", "dataset"])
    return table[(table["split"] != "paper") | ~table["dataset"].isin(safe)]


def wide(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Data sets by models, in the order of the table."""
    names = list(dict.fromkeys(table["dataset"]))
    return table[table["metric"] == metric].pivot(index="dataset", columns="model", values="mean").loc[names]


def quality(results: Path) -> object:
    scores = wide(quality_table(results), "crps")
    best = scores[[model for model in PEERS if model in scores]].min(axis=1)  # of all that were run on a table
    figure = plots.new_figure(8.0, 1.6 + 0.25 * len(scores))
    ax = figure.subplots()
    places = -np.arange(len(scores))
    ax.axvline(1.0, color=plots.GREY, lw=1)
    for model, (name, marker, colour) in PEERS.items():
        ax.plot(scores[model] / best, places, marker, color=colour, ms=5, alpha=0.7, ls="", label=name)
    ax.plot(scores["deepbasis"] / best, places, "*", color=plots.BLUE, ms=13, label="deepbasis, default")
    ax.set_xscale("log")
    ticks = [0.25, 0.5, 1, 2, 4, 8]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_yticks(places, scores.index)
    ax.set_xlabel("CRPS, divided by that of the best other model (log scale): less is better")
    ax.grid(axis="y", alpha=0.2)
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    return plots.without_frame(ax).figure


FRONT = {
    "deepbasis": ("deepbasis, default", "*", plots.BLUE),
    **{name: one for name, one in PEERS.items() if name not in ("deep-ensemble", "gpytorch-pp-dkl", "gpytorch-sv-dkl")},
    "deep-ensemble-calibrated": ("deep ensembles, calibrated", "^", plots.PURPLE),
}


def front(results: Path) -> object:
    """A panel for each table, with every model that was timed there: the CRPS is that of the timed fit.

    The step line joins those models that none beats in both ways; a ridge regression, which takes no time, is a line.
    """
    timed = pd.read_csv(results / "quality" / "seconds.csv").dropna(subset=["relative", "crps_40"])
    timed = timed[timed["model"] != "constant"]  # far from all others in both ways
    timed = timed.groupby(["table", "model"], sort=False)[["relative", "crps_40"]].mean()
    names = list(dict.fromkeys(timed.index.get_level_values("table")))
    figure = plots.new_figure(9.0, 2.3 * -(-len(names) // 3) + 0.5)
    panels = list(figure.subplots(-(-len(names) // 3), 3, squeeze=False).flat)
    for ax in panels:
        ax.set_visible(False)
    handles: dict[str, object] = {}
    for ax, name in zip(panels, names, strict=False):
        ax.set_visible(True)
        relative, crps = (timed.loc[name, of].drop("ridge", errors="ignore") for of in ("relative", "crps_40"))
        line = timed.loc[name, "crps_40"].get("ridge", np.inf)
        if line < crps.max():  # else all others are better, and what they differ in would be squeezed
            handles["ridge"] = ax.axhline(line, color=plots.INK, ls=":", lw=1, label="ridge")
        best = np.inf
        steps = []
        for one in relative.sort_values().index:
            if crps[one] < best:
                best = crps[one]
                steps.append((relative[one], best))
        ax.step(*zip(*steps, strict=True), where="post", color=plots.GREY, lw=1, zorder=0)
        for one in relative.index:
            label, marker, colour = FRONT[one]
            size = 12 if one == "deepbasis" else 6
            (drawn,) = ax.plot(relative[one], crps[one], marker, color=colour, ms=size, ls="", label=label)
            handles.setdefault(label, drawn)
        ax.set(xscale="log", yscale="log")
        ax.set_title(name, fontsize=9)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
        ax.tick_params(labelsize=7, which="both")
        plots.without_frame(ax)
    figure.supxlabel("time of a fit on two cores, relative to ours", fontsize=9)
    figure.supylabel("CRPS, 40 levels", fontsize=9)
    figure.legend(handles=[*handles.values()], frameon=False, fontsize=8, loc="outside upper center", ncols=4)
    return figure


def coverage(results: Path) -> object:
    shares = wide(quality_table(results), "coverage_95")
    figure = plots.new_figure(8.0, 1.6 + 0.22 * len(shares))
    ax = figure.subplots()
    places = -np.arange(len(shares))
    ax.axvline(0.95, color=plots.GREY, lw=1)
    for model in ("catboost", "ngboost", "deep-ensemble"):
        name, marker, colour = PEERS[model]
        ax.plot(shares[model], places, marker, color=colour, ms=5, alpha=0.7, ls="", label=name)
    ax.plot(shares["deepbasis"], places, "*", color=plots.BLUE, ms=12, label="deepbasis, default")
    ax.set_yticks(places, shares.index)
    ax.set_xlabel("share of test targets in the 95 % interval")
    ax.grid(axis="y", alpha=0.2)
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return plots.without_frame(ax).figure


def trust_table(results: Path, part: str) -> pd.DataFrame:
    return pd.DataFrame(json.loads((results / "trust" / "table.json").read_text(encoding="utf-8"))[part])


def guarantee(results: Path) -> object:
    table = trust_table(results, "coverage")
    levels = sorted(table["level"].unique())
    figure = plots.new_figure(9.0, 4.6)
    axes = figure.subplots(1, len(levels), sharey=True)
    for ax, level in zip(axes, levels, strict=True):
        part = table[table["level"] == level].reset_index(drop=True)
        places = -part.index.to_numpy()
        ax.axvline(level, color=plots.GREY, lw=1)
        ax.plot(part["calibrated_coverage"], places, "o", color=plots.ORANGE, ms=5, label="calibrated")
        ax.plot(part["coverage"], places, "*", color=plots.BLUE, ms=9, label="guaranteed")
        ax.set(title=f"{level:.0%}", xlabel="coverage", xlim=(level - 0.13, min(1.0, level + 0.13)))
        ax.set_yticks(places, part["table"])
        ax.grid(axis="y", alpha=0.2)
        plots.without_frame(ax)
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def novelty(results: Path) -> object:
    table = trust_table(results, "novelty")
    table = table[~table["chosen_on"]]
    means = table.pivot_table(index="shift", columns="detector", values="auroc")
    figure = plots.new_figure(8.0, 3.6)
    ax = figure.subplots()
    order = ["predict_novelty", *(name for name in means if name not in ("predict_novelty", "predictive std"))]
    order.append("predictive std")
    colours = [plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.VERMILLION, plots.GREY]
    for k, (name, colour) in enumerate(zip(order, colours, strict=True)):
        ax.bar(np.arange(len(means)) + 0.13 * (k - 2.5), means[name], 0.12, color=colour, label=name)
    ax.axhline(0.5, color=plots.INK, lw=1, ls="--")
    ax.set_xticks(range(len(means)), means.index)
    ax.set(ylabel="AUROC", ylim=(0.4, 1.0))
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return plots.without_frame(ax).figure


def classes(results: Path) -> object:
    table = pd.read_csv(results / "targets" / "classes.csv")
    scores = table.pivot(index="table", columns="model", values="log_loss").loc[list(dict.fromkeys(table["table"]))]
    figure = plots.new_figure(7.0, 3.2)
    ax = figure.subplots()
    models = {"deepbasis": plots.BLUE, "hist-gradient-boosting": plots.ORANGE, "logistic": plots.GREY}
    for k, (name, colour) in enumerate(models.items()):
        ax.bar(np.arange(len(scores)) + 0.26 * (k - 1), scores[name], 0.25, color=colour, label=name.replace("-", " "))
    ax.set_xticks(range(len(scores)), scores.index)
    ax.set_ylabel("log loss")
    ax.legend(frameon=False, fontsize=8)
    return plots.without_frame(ax).figure


FIGURES: dict[str, Draw] = {
    "quality": quality,
    "front": front,
    "coverage": coverage,
    "guarantee": guarantee,
    "novelty": novelty,
    "classes": classes,
}


def draw_all(results: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        data = plots.png(draw(results), 110)
        path = folder / f"{name}.png"
        if not path.exists() or path.read_bytes() != data:  # unchanged files are not built again
            path.write_bytes(data)
