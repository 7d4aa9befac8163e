"""The recipe's ablation: one factor at a time, then together, scored on validation rows. No test row is ever looked at.

    python benchmarks/recipe.py --data-dir FOLDER --device cuda      # everything that is missing -> results/recipe
    python benchmarks/recipe.py --only base,minmax --datasets pol    # some of it; such calls may run side by side
    python benchmarks/recipe.py --small                              # on small tables -> results/recipe/small
    python benchmarks/recipe.py --maps                               # on tables of two columns -> results/recipe/maps
    python benchmarks/recipe.py --copies                             # where inputs have copies -> results/recipe/copies
    python benchmarks/recipe.py --lines                              # where a line says most -> results/recipe/lines
    python benchmarks/recipe.py --thousands                          # of some thousand rows -> results/recipe/thousands
    python benchmarks/recipe.py --quick                              # does it run? nothing is kept

The rows are those of the duplicate-safe split without its test rows (of maps, of the random one: a place that was
measured before is no copy): the training rows are split once more, into rows to fit and rows to select the epoch (and
to calibrate) on, and the scores are of the split's validation rows; of copies, training and validation rows together
are split again in the same way, 8:1:1. A part is one trial on one data set, its seeds
trained as one stack; `results/recipe/table.md` compares each trial with the base, seed by seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import QuantileTransformer
from torch import nn

import _quality_data
from deepbasis.engine import device as devices
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.fitting.held_out import join_rows, limit_copies
from deepbasis.fitting.start import straight_line
from deepbasis.gp import metrics
from deepbasis.gp.build import build
from deepbasis.gp.calibration import calibrate
from deepbasis.gp.embedding import Fourier, Periodic, PiecewiseLinear, quantile_edges
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import Gaussian, Predictive, mixture
from deepbasis.paper import data_ookla, data_uci, splits
from deepbasis.paper.parts import Content, Folder, Part, markdown_table, provenance
from deepbasis.paper.runs import fit
from deepbasis.tables.encoders import squash
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns

UCI = ("pol", "elevators", "kin40k", "protein", "keggdirected", "keggundirected")
MAIN = ("pol", "elevators", "kin40k", "protein", "keggundirected", "fixed-new-mexico")
"""What each factor is tried on."""
SMOOTH = ("smooth2d", "smooth3d")
"""Where there is nothing to gain from high frequencies."""
MAPS = (*(f"{name}{target}" for name in data_ookla.PREPARED for target in ("", "-upload")), *SMOOTH)
"""Download speeds where nothing else is said."""
METRICS = ("nll", "crps", "mae", "coverage_95")


@dataclass(frozen=True)
class Trial:
    """Every factor of the recipe that is tried."""

    method: str = "dbk-silu"
    objective: str = "dppgp"
    rank: int = 128
    width: int = 64
    blocks: int = 2
    inner: int = 256
    scaling: str = "standard"
    """Or "robust", "minmax", "quantile", and "product", which is what the default does now."""
    embedding: str = "none"
    """Or "periodic:SCALE", "piecewise:BINS", "x+piecewise:BINS", "fourier:FREQUENCIES:LOWEST:HIGHEST:FALLOFF"."""
    learning_rate: float = 3e-3
    noise_learning_rate: float = 2e-2
    posterior_learning_rate: float | None = None
    kernel_learning_rate: float | None = None
    """For the logarithms of an RBF kernel."""
    jitter: float = 1e-4
    """Of an RBF kernel's matrix, relative to its diagonal."""
    noise: float | None = 1e-2
    """The initial noise variance; None is half of what a ridge regression leaves."""
    noise_parameterisation: str = "log"
    schedule: str = "cosine"
    warmup_steps: int = 0
    average: float | None = None
    batch_size: int = 512
    steps: int = 4_000
    epochs: int | None = None
    """At most so many, whatever `steps` says."""
    weight_decay: float = 1e-2
    alpha: float = 0.0
    beta: float = 0.1
    bootstrap: bool = False
    selection: str = "crps"
    most_say: float | None = None
    """Of an input's copies among the rows to select on, in average inputs."""
    folds: int = 1
    """Above 1 the rows to fit and to select on are one, cut into so many parts, and each member selects on its own."""
    passes: int = 1
    """Over the rows, between two validations."""
    trend: str = "none"
    """What members learn: the target, or what a ridge regression leaves of it ("ridge"), in units of what it leaves, or
    in the target's ("ridge-unscaled"); or every other member the target itself ("half", "half-unscaled")."""


BASE = Trial()
TOGETHER = replace(BASE, steps=12_000, batch_size=1024, noise=None, beta=1.0, average=0.995)
"""What gained something on its own."""
CHOSEN = replace(TOGETHER, scaling="product", alpha=0.1, batch_size=512, steps=20_000, epochs=400)
"""Nearly the default on a GPU, which has 12,000 steps or 150 epochs; on a CPU it has 150 epochs."""
TRIALS: dict[str, Trial] = {
    "base": BASE,
    "minmax": replace(BASE, scaling="minmax"),
    "robust": replace(BASE, scaling="robust"),
    "quantile": replace(BASE, scaling="quantile"),
    "piecewise-16": replace(BASE, embedding="piecewise:16"),
    "x+piecewise-16": replace(BASE, embedding="x+piecewise:16"),
    "periodic-0.1": replace(BASE, embedding="periodic:0.1"),
    "periodic-0.5": replace(BASE, embedding="periodic:0.5"),
    "select-nll": replace(BASE, selection="nll"),
    "inner-64": replace(BASE, inner=64),
    "width-128": replace(BASE, width=128),
    "rate-1e-3": replace(BASE, learning_rate=1e-3),
    "rate-1e-2": replace(BASE, learning_rate=1e-2),
    "averaged": replace(BASE, average=0.995),
    "constant-averaged": replace(BASE, schedule="constant", average=0.995),
    "batch-256": replace(BASE, batch_size=256),
    "batch-1024": replace(BASE, batch_size=1024),
    "noise-rate-3e-3": replace(BASE, noise_learning_rate=3e-3),
    "noise-rate-1e-1": replace(BASE, noise_learning_rate=1e-1),
    "noise-start-1e-1": replace(BASE, noise=1e-1),
    "noise-start-ridge": replace(BASE, noise=None),
    "alpha-0.1": replace(BASE, alpha=0.1),
    "beta-0": replace(BASE, beta=0.0),
    "beta-1": replace(BASE, beta=1.0),
    "beta-10": replace(BASE, beta=10.0),
    "steps-12000": replace(BASE, steps=12_000),
    "rank-32": replace(BASE, rank=32),
    "rank-256": replace(BASE, rank=256),
    "blocks-3": replace(BASE, blocks=3),
    "posterior-rate-1e-2": replace(BASE, posterior_learning_rate=1e-2),
    "decay-1e-1": replace(BASE, weight_decay=1e-1),
    "bootstrap": replace(BASE, bootstrap=True),
    "rbf": replace(BASE, method="dbk-rbf"),
    "detached": replace(BASE, objective="dppgp-detached", alpha=0.1),
    "alpha-1": replace(BASE, alpha=1.0),
    "noise-clamped": replace(BASE, noise_parameterisation="clamp", noise_learning_rate=3e-3),
    "posterior-rate-1e-3": replace(BASE, posterior_learning_rate=1e-3),
    "constant": replace(BASE, schedule="constant"),
    "warmup-300": replace(BASE, warmup_steps=300),
    "steps-1000": replace(BASE, steps=1_000),
    "together": TOGETHER,
    "together-product": replace(TOGETHER, scaling="product"),
    "together-width-128": replace(TOGETHER, width=128),
    "together-periodic-0.1": replace(TOGETHER, embedding="periodic:0.1"),
    "together-steps-4000": replace(TOGETHER, steps=4_000),
    "together-alpha-0.1": replace(TOGETHER, alpha=0.1),
    "together-inner-64": replace(TOGETHER, inner=64),
    "together-rank-256": replace(TOGETHER, rank=256),
    "chosen": CHOSEN,
    "chosen-150-epochs": replace(CHOSEN, epochs=150),
    "chosen-150-epochs-ridge": replace(CHOSEN, epochs=150, trend="ridge"),
    "chosen-150-epochs-ridge-unscaled": replace(CHOSEN, epochs=150, trend="ridge-unscaled"),
    "chosen-150-epochs-half": replace(CHOSEN, epochs=150, trend="half"),
    "chosen-150-epochs-alpha-0": replace(CHOSEN, epochs=150, alpha=0.0),
    "paper": Trial(
        scaling="minmax",
        inner=64,
        learning_rate=1e-3,
        noise_learning_rate=1e-3,
        schedule="constant",
        batch_size=1024,
        steps=12_000,
        alpha=0.1,
        selection="nll",
    ),
}


MAP = replace(CHOSEN, steps=12_000, epochs=None)
MAP_TRIALS: dict[str, Trial] = {
    "base": MAP,
    "x+piecewise-16": replace(MAP, embedding="x+piecewise:16"),
    "x+piecewise-64": replace(MAP, embedding="x+piecewise:64"),
    "x+piecewise-256": replace(MAP, embedding="x+piecewise:256"),
    "periodic-0.5": replace(MAP, embedding="periodic:0.5"),
    "periodic-2": replace(MAP, embedding="periodic:2"),
    "fourier-64-2": replace(MAP, embedding="fourier:64:0.1:2:0"),
    "fourier-64-10": replace(MAP, embedding="fourier:64:0.1:10:0"),
    "fourier-256-10": replace(MAP, embedding="fourier:256:0.1:10:0"),
    "fourier-256-30": replace(MAP, embedding="fourier:256:0.1:30:0"),
    "fourier-1024-30": replace(MAP, embedding="fourier:1024:0.1:30:0"),
    "fourier-128-30": replace(MAP, embedding="fourier:128:0.1:30:0"),
    "fourier-64-30-falling": replace(MAP, embedding="fourier:64:0.1:30:1"),
    "fourier-128-30-halfway": replace(MAP, embedding="fourier:128:0.1:30:0.5"),
    "fourier-128-30-falling": replace(MAP, embedding="fourier:128:0.1:30:1"),
    "rbf": replace(MAP, method="dbk-rbf"),
    "width-128": replace(MAP, width=128),
}


COPY_TRIALS: dict[str, Trial] = {
    "base": MAP,
    "say-10": replace(MAP, most_say=10.0),
    "say-3": replace(MAP, most_say=3.0),
    "say-1.5": replace(MAP, most_say=1.5),
}
COPIES = (
    *("keggdirected~0~107", "keggdirected~1~100", "keggundirected~0~110", "keggundirected~1~100"),
    *("keggdirected~0~102", "keggdirected~1~102", "keggundirected~0~100", "keggundirected~1~103"),
    *("keggdirected~0~103", "keggdirected~1~108", "keggundirected~0~101", "keggundirected~1~102"),
)
"""A duplicate-safe split, and the seed by which the rest of it is split again. In the first four the ten inputs with
most copies are all to be fitted, in the next four some of them are selected on, in the last four some are scored."""


LINE = replace(MAP, most_say=3.0)
LINE_TRIALS: dict[str, Trial] = {
    "base": LINE,
    **{trend: replace(LINE, trend=trend) for trend in ("ridge", "ridge-unscaled", "half", "half-unscaled")},
    "inner-64": replace(LINE, inner=64),
    "rate-1e-3": replace(LINE, learning_rate=1e-3),
    "pp-dkl": replace(LINE, method="pp-dkl", objective="ppgp"),
    "pp-dkl-half-unscaled": replace(LINE, method="pp-dkl", objective="ppgp", trend="half-unscaled"),
    **{
        f"ridge-unscaled-{name}": replace(LINE, trend="ridge-unscaled", **{factor: value})
        for name, factor, value in (
            ("beta-10", "beta", 10.0),
            ("beta-100", "beta", 100.0),
            ("alpha-1", "alpha", 1.0),
            ("decay-1e-1", "weight_decay", 0.1),
            ("inner-64", "inner", 64),
            ("rate-1e-3", "learning_rate", 1e-3),
        )
    },
}
LEANING = ("leaning", "leaning-rounded", "leaning-beyond")
"""A hill on a slope; the same rounded to a few values; and scored where the slope has gone on, beyond the rows."""


THOUSANDS = replace(LINE, steps=2_000)
THOUSANDS_TRIALS: dict[str, Trial] = {
    "base": THOUSANDS,
    **{f"steps-{steps}": replace(THOUSANDS, steps=steps) for steps in (3_000, 4_000, 6_000, 12_000)},
}
THOUSANDS_SETS = tuple(f"{name}~0~100~{rows}" for rows in (3_000, 8_000) for name in UCI)
"""So many rows of a nested split to fit and select on, and all that there are to score."""


SMALL = replace(BASE, beta=1.0, average=0.99, batch_size=128, steps=1_000)
SMALL_CHOSEN = replace(SMALL, scaling="product", alpha=0.1, noise=None, average=0.995)
ONE_BATCH = replace(SMALL_CHOSEN, steps=2_000, batch_size=1_024, inner=64, passes=10)
SHALLOW = Trial(
    method="sv-rbf", objective="mml", scaling="product", learning_rate=5e-2, noise=None, steps=400, alpha=0.1
)
SHALLOW_CHOSEN = replace(SHALLOW, selection="last", kernel_learning_rate=0.5, jitter=1e-6)
SMALL_TRIALS: dict[str, Trial] = {
    "base": SMALL,
    "steps-500": replace(SMALL, steps=500),
    "all-rows-steps-400": replace(SMALL, batch_size=1_024, steps=400),
    "inner-64": replace(SMALL, inner=64),
    "rate-1e-3": replace(SMALL, learning_rate=1e-3),
    "decay-1e-1": replace(SMALL, weight_decay=1e-1),
    "noise-start-1e-1": replace(SMALL, noise=1e-1),
    "chosen": SMALL_CHOSEN,
    "chosen-rate-1e-2-steps-2000": replace(SMALL_CHOSEN, learning_rate=1e-2, steps=2_000),
    "one-batch": replace(SMALL_CHOSEN, learning_rate=1e-2, steps=2_000, batch_size=1_024, inner=64),
    "one-batch-steps-1000": replace(SMALL_CHOSEN, learning_rate=1e-2, batch_size=1_024, inner=64),
    "one-batch-rate-3e-3": ONE_BATCH,
    "chosen-rate-1e-2-steps-2000-folds": replace(SMALL_CHOSEN, learning_rate=1e-2, steps=2_000, folds=4),
    "one-batch-rate-3e-3-folds": replace(ONE_BATCH, folds=4),
    "chosen-fourier": replace(SMALL_CHOSEN, embedding="fourier:64:0.1:30:1"),
    "chosen-steps-2000": replace(SMALL_CHOSEN, steps=2_000),
    "chosen-steps-4000": replace(SMALL_CHOSEN, steps=4_000),
    "shallow": SHALLOW,
    "shallow-last": replace(SHALLOW, selection="last"),
    "shallow-last-kernel-0.5": replace(SHALLOW, selection="last", kernel_learning_rate=0.5),
    "shallow-last-kernel-1": replace(SHALLOW, selection="last", kernel_learning_rate=1.0),
    "shallow-last-all-0.5": replace(SHALLOW, selection="last", learning_rate=0.5),
    "shallow-linear": replace(SHALLOW, method="sv-rbf-linear", selection="last", kernel_learning_rate=0.5),
    "shallow-jitter-1e-6": SHALLOW_CHOSEN,
    "shallow-linear-jitter-1e-6": replace(SHALLOW_CHOSEN, method="sv-rbf-linear"),
    "shallow-noise-0.2": replace(SHALLOW_CHOSEN, noise_learning_rate=0.2),
    "shallow-linear-noise-0.2": replace(SHALLOW_CHOSEN, method="sv-rbf-linear", noise_learning_rate=0.2),
}
SMALL_SETS = tuple(
    f"{name}@{k}"
    for name in ("diabetes", "friedman1", "friedman2", "friedman3", "hetero1d", "linear", "step1d")
    for k in range(3)
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/recipe"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--datasets", default=None)
    parser.add_argument("--only", default=None, help="trials, separated by commas; none computes nothing but the table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=None, help="at most so many of a set, drawn at random")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--small", action="store_true", help="folds of small tables, with trials of their own")
    kind.add_argument("--maps", action="store_true", help="speeds at places, with trials of their own")
    kind.add_argument("--copies", action="store_true", help="inputs with thousands of copies, with trials of their own")
    kind.add_argument("--lines", action="store_true", help="where a straight line says most, with trials of their own")
    kind.add_argument("--thousands", action="store_true", help="how long, for 3,000 and 8,000 rows of the UCI sets")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    trials, datasets = TRIALS, MAIN
    if arguments.small:
        trials, datasets, arguments.seeds, arguments.out = SMALL_TRIALS, SMALL_SETS, 4, arguments.out / "small"
    if arguments.maps:
        trials, datasets, arguments.out = MAP_TRIALS, MAPS, arguments.out / "maps"
    if arguments.copies:
        trials, datasets, arguments.out = COPY_TRIALS, COPIES, arguments.out / "copies"
    if arguments.lines:
        trials, datasets, arguments.out = LINE_TRIALS, (*COPIES, *LEANING), arguments.out / "lines"
    if arguments.thousands:
        trials, datasets, arguments.out = THOUSANDS_TRIALS, THOUSANDS_SETS, arguments.out / "thousands"
    arguments.datasets = arguments.datasets or ",".join(datasets)
    if not arguments.quick:
        compare(trials, arguments)
        return
    arguments.datasets, arguments.seeds, arguments.rows = "pol", 2, 600
    with TemporaryDirectory() as folder:
        arguments.out = Path(folder)
        compare({name: replace(TRIALS[name], steps=4) for name in ("base", "piecewise-16", "bootstrap")}, arguments)


def compare(trials: dict[str, Trial], arguments: argparse.Namespace) -> None:
    wanted = set(trials) if arguments.only is None else set(arguments.only.split(","))
    folder = Folder(arguments.out, devices.named(arguments.device), only=("nothing",))
    found: dict[str, dict[str, Part]] = {}
    for dataset in arguments.datasets.split(","):
        data: list[Data] = []  # read once, if at all

        def read(name: str = dataset, data: list[Data] = data) -> Data:
            if not data:
                data.append(load(name, arguments.data_dir, arguments.rows))
            return data[0]

        for name, trial in trials.items():
            folder.only = () if name in wanted else ("nothing",)
            part = run(folder, name, trial, dataset, read, arguments.seeds, arguments.rows)
            if part is not None:
                found.setdefault(name, {})[dataset] = part
    write(folder, found)


# ---- data ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Inputs as they are, the target standardised on the rows to fit."""

    X: dict[str, np.ndarray]
    y: dict[str, np.ndarray]

    def rows(self, scaling: str, dtype: torch.dtype = torch.float32) -> dict[str, Rows]:
        scale = SCALINGS[scaling](self.X["fit"])
        return {
            side: Rows(torch.from_numpy(scale(self.X[side])).to(dtype), torch.from_numpy(self.y[side]).to(dtype))
            for side in self.X
        }


def load(name: str, data_dir: Path | None, rows: int | None) -> Data:
    """Rows to fit, to select on, and to score. The test rows of the split are dropped here."""
    if "@" in name:
        return _small(*name.split("@"))
    if "~" in name:
        name, *numbers = name.split("~")
        return _nested(name, data_dir, *map(int, numbers))
    if name in LEANING:
        return _leaning(name)
    if name in UCI:
        X, y = data_uci.load(name, data_dir)
    elif name in SMOOTH:
        X, y = _smooth(int(name[-2]))
    else:
        tiles = data_ookla.load(name.removesuffix("-upload"), data_dir)
        X, y = tiles.X, tiles.upload if name.endswith("-upload") else tiles.download
    if rows is not None and rows < len(y):
        some = np.random.default_rng(0).permutation(len(y))[:rows]
        X, y = X[some], y[some]
    split, kind = splits.random_split(len(y)), np.arange(len(y))
    if name not in MAPS:  # a place that was measured before is no copy: its speed is to be predicted
        split, kind = splits.duplicate_safe(split, X), splits.first_of_its_kind(X)
    kind = kind[split.train]
    group = np.random.default_rng(1).permutation(len(y))[kind]  # copies have the same number
    to_fit = group >= len(y) // 8
    parts = {"fit": split.train[to_fit], "select": split.train[~to_fit], "score": split.validation}
    return _standardised(X, y, parts)


def _smooth(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A hill, with noise of about half of its spread."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-1.0, 1.0, (5_000, columns))
    y = np.sin(3.0 * X[:, 0] * X[:, -1]) + X[:, 1] ** 2
    return X, y + 0.3 * generator.standard_normal(len(y))


def _leaning(name: str) -> Data:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((12_000, 8))
    hill = np.sin(2.0 * X[:, 0] * X[:, 1]) + np.abs(X[:, 2]) - 0.5 * X[:, 3] ** 2
    y = X @ np.linspace(1.0, 0.3, 8) + 0.4 * hill + 0.1 * generator.standard_normal(len(X))
    if name == "leaning-rounded":
        y = np.round(y)
    order = np.argsort(X[:, 0]) if name == "leaning-beyond" else np.arange(len(X))
    known, beyond = np.split(order, [11_000])
    to_fit, select = np.split(generator.permutation(known), [10_000])
    return _standardised(X, y, {"fit": to_fit, "select": select, "score": beyond})


def _small(name: str, fold: str) -> Data:
    """A fold of the quality benchmark's cross-validation, without its test rows."""
    size = _quality_data.Size(tasks=())
    table = _quality_data.SMALL[name](size.small_rows)
    one = next(islice(_quality_data.cross_validation(table, size), int(fold), None))
    X, y = (side.double().numpy() for side in one.train)
    order = np.random.default_rng(int(fold)).permutation(len(y))
    select, to_fit = np.split(order, [len(y) // 9])
    parts = {"fit": (X[to_fit], y[to_fit]), "select": (X[select], y[select])}
    parts["score"] = (one.validation.x.double().numpy(), one.validation.y.double().numpy())
    return Data({side: x for side, (x, _) in parts.items()}, {side: z for side, (_, z) in parts.items()})


def _nested(name: str, data_dir: Path | None, outer: int, inner: int, rows: int | None = None) -> Data:
    """A duplicate-safe split of what is left of a duplicate-safe split without its test rows.

    With `rows`, nine tenths of that number to fit and one to select on.
    """
    X, y = data_uci.load(name, data_dir)
    kept = np.concatenate(splits.duplicate_safe(splits.random_split(len(y), outer), X)[:2])
    split = splits.duplicate_safe(splits.random_split(len(kept), inner), X[kept])
    parts = {side: kept[own] for side, own in zip(("fit", "select", "score"), split, strict=True)}
    if rows is not None:
        order = np.random.default_rng(inner).permutation
        for side, count in (("fit", 9 * rows // 10), ("select", rows // 10)):
            parts[side] = order(parts[side])[:count]
    return _standardised(X, y, parts)


def _standardised(X: np.ndarray, y: np.ndarray, parts: dict[str, np.ndarray]) -> Data:
    mean, std = y[parts["fit"]].mean(), y[parts["fit"]].std()
    return Data({side: X[r] for side, r in parts.items()}, {side: (y[r] - mean) / std for side, r in parts.items()})


def _minmax(X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    low, high = X.min(0), X.max(0)
    return lambda Z: np.where(high > low, 2.0 * (Z - low) / np.where(high > low, high - low, 1.0) - 1.0, 0.0)


def _standard(X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    mean, std = X.mean(0), X.std(0)
    return lambda Z: (Z - mean) / np.where(std > 0, std, 1.0)


def _robust(X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """By median and quartiles, and beyond three such scales only logarithmically larger: the product's first way."""
    low, middle, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    scale = np.where(high > low, (high - low) / 1.349, np.where(X.std(0) > 0, X.std(0), 1.0))
    return lambda Z: squash((Z - middle) / scale, 3.0)


SCALINGS: dict[str, Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "robust": _robust,
    "product": lambda X: Preprocessor.fit(*read_columns(X)).transform,
    "minmax": _minmax,
    "standard": _standard,
    "quantile": lambda X: QuantileTransformer(output_distribution="normal", random_state=0).fit(X).transform,
}


# ---- a part --------------------------------------------------------------------------------------------------------


def run(
    folder: Folder, name: str, trial: Trial, dataset: str, read: Callable[[], Data], seeds: int, rows: int | None
) -> Part | None:
    def compute() -> Content:
        data = read().rows(trial.scaling)
        data["select"] = limit_copies(data["select"], trial.most_say)
        x = data["fit"].x
        noise = _ridge_noise(data["fit"]) if trial.noise is None else trial.noise

        def embedding() -> nn.Module:
            kind, value, *rest = trial.embedding.split(":")
            if kind == "fourier":
                lowest, highest, falloff = map(float, rest)
                return Fourier(x.shape[1], int(value), lowest=lowest, highest=highest, falloff=falloff)
            if kind == "periodic":
                return Periodic(x.shape[1], scale=float(value))
            piecewise = PiecewiseLinear(quantile_edges(x, int(value)))
            return Beside(piecewise, x.shape[1]) if kind == "x+piecewise" else piecewise

        def make(member: Member) -> DeepBasisGP:
            model = build(
                trial.method,
                x.shape[1],
                rank=trial.rank,
                width=trial.width,
                blocks=trial.blocks,
                inner=trial.inner,
                embedding=None if trial.embedding == "none" else embedding,
                noise=member.noise,
                likelihood=partial(GaussianLikelihood, parameterisation=trial.noise_parameterisation),
                jitter=trial.jitter,
                seed=member.seed,
            )
            if METHODS[trial.method].backbone == "identity":
                model.expansion.start_at(x, torch.Generator().manual_seed(member.seed))
            return model

        lots = _folds(data, trial.folds)
        steps_an_epoch = 1 if trial.objective == "mml" else -(-len(lots[0][0]) // trial.batch_size) * trial.passes
        on_gpu = folder.device.type == "cuda"
        settings = settings_for(
            trial.method,
            **{key: value for key, value in asdict(trial).items() if key in _SETTINGS},
            epochs=max(1, min(trial.steps // steps_an_epoch, trial.epochs or trial.steps)),
            precision="tf32" if on_gpu else "float32",
        )
        seconds, select, score = 0.0, {}, {}
        turns = [list(range(seeds))] if trial.folds == 1 else [[k] for k in range(seeds)]
        for own, (to_fit, held_out) in zip(turns, lots, strict=True):
            for trend, some in _trends(trial.trend, data["fit"], own):
                start = noise / trend.scale**2
                members = [Member(seed=k, alpha=trial.alpha, beta=trial.beta, noise=start) for k in some]
                left = (trend.without(to_fit), trend.without(held_out))
                done = fit(make, members, *left, settings, device=folder.device)
                seconds += done.seconds
                for k, predicted in zip(some, done.predict(held_out.x, folder.device), strict=True):
                    select[k] = (trend.beside(predicted, held_out.x), held_out)
                for k, predicted in zip(some, done.predict(data["score"].x, folder.device), strict=True):
                    score[k] = trend.beside(predicted, data["score"].x)
        values = {"seconds": seconds, "rows": len(lots[0][0]), "noise": noise}
        everyone = range(seeds)
        return {**values, **_scores([select[k] for k in everyone], [score[k] for k in everyone], data["score"])}, {}

    settings = {**asdict(trial), "dataset": dataset, "seeds": seeds, "of": rows}
    return folder.part(f"{name}-{dataset}", settings, compute)


class Beside(nn.Module):
    """An embedding, with the inputs themselves beside it."""

    def __init__(self, embedding: PiecewiseLinear, columns: int) -> None:
        super().__init__()
        self.embedding, self.columns, self.width = embedding, columns, columns + embedding.width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.embedding(x)], 1)


_SETTINGS = (
    *("objective", "learning_rate", "noise_learning_rate", "posterior_learning_rate"),
    *("kernel_learning_rate", "schedule", "warmup_steps"),
    *("average", "batch_size", "weight_decay", "bootstrap", "selection", "passes"),
)


def _folds(data: dict[str, Rows], count: int) -> list[tuple[Rows, Rows]]:
    """Rows to fit and to select on: as they are, or of both together all parts but one, and that part."""
    if count == 1:
        return [(data["fit"], data["select"])]
    rows = join_rows([data["fit"], data["select"]])
    part = torch.from_numpy(np.random.default_rng(0).permutation(len(rows)) % count)
    return [(_where(rows, part != k), _where(rows, part == k)) for k in range(count)]


def _where(rows: Rows, kept: torch.Tensor) -> Rows:
    return Rows(rows.x[kept], rows.y[kept])


@dataclass(frozen=True)
class Trend:
    """y = intercept + x @ slope + scale * z, and z is what is learnt."""

    slope: torch.Tensor
    intercept: torch.Tensor
    scale: float

    def at(self, x: torch.Tensor) -> torch.Tensor:
        return (self.intercept + x.double() @ self.slope).to(x.dtype)

    def without(self, rows: Rows) -> Rows:
        return Rows(rows.x, (rows.y - self.at(rows.x)) / self.scale, rows.weight)

    def beside(self, predicted: Gaussian, x: torch.Tensor) -> Gaussian:
        return Gaussian(self.at(x) + self.scale * predicted.mean, self.scale**2 * predicted.variance)


def _trends(trend: str, rows: Rows, members: list[int]) -> list[tuple[Trend, list[int]]]:
    """What members learn, and which."""
    found = straight_line(rows)
    slope = torch.tensor(found.slope, dtype=torch.float64)
    none = Trend(torch.zeros_like(slope), torch.zeros(()), 1.0)
    intercept = (rows.y.double() - rows.x.double() @ slope).mean()
    scaled = Trend(slope, intercept, math.sqrt(found.variance_left))
    line = none if trend == "none" else replace(scaled, scale=1.0) if trend.endswith("-unscaled") else scaled
    return [(line, members[::2]), (none, members[1::2])] if trend.startswith("half") else [(line, members)]


def _ridge_noise(rows: Rows) -> float:
    x, y = rows.x.double().numpy(), rows.y.double().numpy()
    left = y - RidgeCV(alphas=np.logspace(-3, 3, 7)).fit(x, y).predict(x)
    return float(max(0.5 * left.var(), 1e-4))


def _scores(select: Sequence[tuple[Gaussian, Rows]], score: Sequence[Gaussian], rows: Rows) -> dict[str, Any]:
    """Of each member and of ensembles of the first few, as they are and calibrated on the rows to select on."""

    def both(first: int, last: int) -> dict[str, dict[str, float]]:
        predicted, lots = zip(*select[first:last], strict=True)
        if all(lot is lots[0] for lot in lots):
            selected, held_out = mixture(list(predicted)), lots[0]
        else:
            one, *others = (mixture([each]) for each in predicted)
            selected, held_out = one.followed_by(others), join_rows(lots)
        scored = mixture(score[first:last])
        calibrated = calibrate(selected, held_out.y, held_out.weight).apply(scored)
        return {"raw": _evaluate(scored, rows.y), "calibrated": _evaluate(calibrated, rows.y)}

    sizes = [k for k in (2, 3, 4, 5) if k <= len(score)]
    members = [both(k, k + 1) for k in range(len(score))]
    return {"members": members, "ensembles": {str(k): both(0, k) for k in sizes}}


def _evaluate(predicted: Predictive, y: torch.Tensor) -> dict[str, float]:
    told = metrics.evaluate(predicted, y)
    return {name: told[name] for name in METRICS}


# ---- the table -----------------------------------------------------------------------------------------------------


def write(folder: Folder, found: dict[str, dict[str, Part]]) -> None:
    folder.write("table.md", _page(found))


def _of(part: Part, what: str, metric: str) -> np.ndarray:
    """Of "1 raw" or "1 calibrated" a number for each seed; of the ensemble "5 raw" or "5 calibrated" one."""
    size, how = what.split()
    rows = part.values["members"] if size == "1" else [part.values["ensembles"][size]]
    return np.array([row[how][metric] for row in rows])


def _largest(found: dict[str, dict[str, Part]]) -> str:
    """The largest ensemble that every part has."""
    sizes = [set(part.values["ensembles"]) for parts in found.values() for part in parts.values()]
    return max(set.intersection(*sizes), key=int)


def _page(found: dict[str, dict[str, Part]]) -> str:
    text = ["# The recipe's factors, on validation rows\n", __doc__.split("\n\n")[2] + "\n"]
    base = found.get("base", {})
    for size, how, metric in product(("1", _largest(found)) if found else (), ("raw", "calibrated"), ("nll", "crps")):
        lines = []
        for trial, parts in found.items():
            compared = {d: _compared(parts[d], base[d], f"{size} {how}", metric) for d in base if d in parts}
            cells = [compared[d].text(own=trial == "base") if d in compared else "–" for d in base]
            complete = 0 < len(compared) == len(base) and trial != "base"
            lines.append([trial, *cells, f"{np.mean([c.gain for c in compared.values()]):+.3f}" if complete else ""])
        kind = "NLL, nats" if metric == "nll" else "CRPS, relative"
        text.append(f"## {kind}: {'one member' if size == '1' else f'{size} members'}, {how}\n")
        text.append(markdown_table(["trial less base", *base, "mean"], lines))
    text.append(provenance([part for parts in found.values() for part in parts.values()]))
    return "\n".join(text)


@dataclass(frozen=True)
class _Compared:
    value: float
    gain: float
    """In nats for NLL, else relative."""
    error: float
    """Standard error of the gain over seeds, seed by seed; NaN for a single number."""

    def text(self, *, own: bool) -> str:
        if own:
            return f"{self.value:.3f}"
        return f"{self.gain:+.3f}" + ("" if math.isnan(self.error) else f" ± {self.error:.3f}")


def _compared(part: Part, base: Part, what: str, metric: str) -> _Compared:
    values, before = _of(part, what, metric), _of(base, what, metric)
    unit = 1.0 if metric == "nll" else before.mean()
    paired = (values - before) / unit
    error = paired.std(ddof=1) / math.sqrt(len(paired)) if len(paired) > 1 else math.nan
    return _Compared(values.mean(), paired.mean(), error)


if __name__ == "__main__":
    main()
