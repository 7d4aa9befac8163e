"""Draws the two diagrams of the paper in our own hand: `python docs/diagrams.py` writes docs/images/{dbk,network}.png.

`dbk.png`: what a deep basis kernel is. Its panels are computed, not sketched: a small DBK is fitted to the paper's 1-D
example and its basis functions, its kernel and its prediction are what is drawn. `network.png`: backbone and expansion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from deepbasis import plots, storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.training import train
from deepbasis.gp.build import build
from deepbasis.paper import data_step1d as step1d

IMAGES = Path(__file__).parent / "images"
RANK = 16
COLOURS = (plots.BLUE, plots.VERMILLION, plots.GREEN, plots.ORANGE, plots.PURPLE, plots.INK)


def main() -> None:
    for name, figure in (("dbk", what_a_dbk_is()), ("network", backbone_and_expansion())):
        storage.write_atomically(IMAGES / f"{name}.png", plots.png(figure))


def fitted() -> Any:
    """A DBK-SiLU of rank 16 after dPPGP on as many rows as in the paper's Fig. 1; half a minute on one core."""
    generator = torch.Generator().manual_seed(0)
    training, validation = (step1d.draw(n, generator=generator) for n in (20_000, 1_000))
    settings = settings_for(
        "dbk-silu", epochs=200, batch_size=500, learning_rate=5e-3, noise_learning_rate=5e-2, schedule="cosine"
    )

    def make(member: Member) -> Any:
        return build("dbk-silu", 1, rank=RANK, seed=member.seed)

    (outcome,) = train(make, [Member(seed=0)], Rows(*training), Rows(*validation), settings)
    return outcome.model(make), training


def what_a_dbk_is() -> Any:
    """x -> r basis functions -> the kernel as their inner product -> the prediction."""
    model, training = fitted()
    x = torch.linspace(-1.0, 1.0, 401)[:, None]
    with torch.no_grad():
        phi, kernel, prediction = model.basis(x), model.kernel(x), model.predict(x)
    figure = plots.new_figure(13.0, 4.2)
    axes = figure.subplots(1, 3, width_ratios=[0.9, 1.0, 1.1])
    strongest = phi.square().mean(0).argsort(descending=True)[:6]
    for k, colour in zip(strongest, COLOURS, strict=True):
        axes[0].plot(x[:, 0], phi[:, k] / phi[:, k].abs().max(), color=colour, linewidth=1.5)
    axes[0].set(
        title=rf"$r$ = {RANK} basis functions $\phi_j(x)$" + "\n(the six largest, each scaled to 1)", xlabel="x"
    )
    plots.kernel_heatmap(axes[1], x[:, 0], kernel)
    figure.colorbar(axes[1].images[-1], ax=axes[1], shrink=0.8, label="k(x, x') / the largest")
    axes[1].set_title(r"the kernel $k(x, x') = \langle \phi(x), \phi(x') \rangle$")
    shown = slice(0, 1_500)
    truth = step1d.oracle(x)
    plots.predictive_band(
        axes[2],
        x[:, 0],
        prediction.mean,
        prediction.std,
        data=(training.x[shown, 0], training.y[shown]),
        oracle=(truth.mean, truth.std),
    )
    axes[2].set(title=r"$f(x) = \langle w, \phi(x) \rangle$, $w \sim q(w)$: the prediction", xlabel="x")
    axes[2].set_ylim(-1.75, 1.95)
    axes[2].legend(loc="upper right", fontsize=8, frameon=False)
    axes[0].spines[["top", "right"]].set_visible(False)
    for ax in axes:
        ax.set_xticks([-1.0, -0.5, 0.0, 0.5, 1.0])
    return figure


def backbone_and_expansion() -> Any:
    """Appendix B: the ResNet backbone, the two expansions, q(w), and the number of columns along the way."""
    figure = plots.new_figure(13.0, 4.4)
    ax = figure.subplots()
    ax.set(xlim=(0, 130), ylim=(0, 44))
    ax.axis("off")
    middle = 27.0
    grey, blue, orange, green = "#EEEEEE", "#D6E6F2", "#FBE3C8", "#D3EBDF"
    _box(ax, 1, middle, 9, 8, "row $x$", grey)
    _box(ax, 16, middle, 10, 8, "linear\n$d \\to h$", blue)
    _box(ax, 32, middle, 30, 12, "residual block × 2\nLayerNorm → linear → SiLU → linear\n+ skip", blue)
    _box(ax, 68, middle, 12, 8, "LayerNorm\nSiLU", blue)
    _box(ax, 88, middle + 9, 19, 9, "SiLU expansion\n$s \\odot$ silu($W g + b$)", orange)
    _box(ax, 88, middle - 9, 19, 9, "RBF expansion\n$K_{ZZ}^{-1/2}\\, k_Z(g)$", orange)
    weights = "$q(w) = N(m, LL^T)$\nmean $\\langle m, \\phi \\rangle$\nvar $\\|L^T\\phi\\|^2 + \\sigma^2$"
    _box(ax, 115, middle, 14, 12, weights, green)
    for a, b, label in ((10, 16, "$d$"), (26, 32, "$h$"), (62, 68, "$h$")):
        _arrow(ax, (a, middle), (b, middle), label)
    for side, beyond in ((9, "bottom"), (-9, "top")):
        _arrow(ax, (80, middle), (88, middle + side), "")
        _arrow(ax, (107, middle + side), (115, middle), "")
        for x, label in ((82, "$g(x)$\n$h$"), (113, "$\\phi(x)$\n$r$")):
            ax.text(x, middle + 0.6 * side, label, ha="center", va=beyond, fontsize=10)
    ax.plot([15, 81], [15, 15], color=plots.INK, linewidth=1)
    ax.text(48, 12.6, "backbone $g$", ha="center", va="top", fontsize=12)
    ax.plot([87, 108], [11, 11], color=plots.INK, linewidth=1)
    ax.text(97.5, 8.6, "expansion: one of the two", ha="center", va="top", fontsize=12)
    ax.text(
        65,
        1.5,
        "$\\phi$ = expansion ∘ backbone;   $k(x, x') = \\langle \\phi(x), \\phi(x') \\rangle$",
        ha="center",
        fontsize=13,
    )
    return figure


def _box(ax: Any, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    style = "round,pad=0.2,rounding_size=1.2"
    ax.add_patch(
        FancyBboxPatch((x, y - height / 2), width, height, boxstyle=style, facecolor=colour, edgecolor=plots.INK)
    )
    ax.text(x + width / 2, y, text, ha="center", va="center", fontsize=10)


def _arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], label: str) -> None:
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=plots.INK, shrinkA=2, shrinkB=2)
    )
    ax.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 1.6, label, ha="center", fontsize=10)


if __name__ == "__main__":
    main()
