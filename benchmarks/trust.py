"""Does a model know which rows are unlike those of its fit, and do its guaranteed intervals hold what they promise?

    python benchmarks/trust.py --data-dir FOLDER             # everything -> results/trust
    python benchmarks/trust.py --quick                       # made-up tables, seconds: tables on the screen
    python benchmarks/trust.py --part coverage               # or novelty, uniform, or page: from the files there are
    python benchmarks/trust.py --part adaptive               # needs no tables

Novelty: AUROC between rows of the same kind and rows of another kind, for four kinds of shift (`_trust_shifts.py`), of
`predict_novelty` and of the predictive standard deviation, from one short fit, and of four detectors of scikit-learn,
which get the same encoded rows. The score of `predict_novelty` was chosen on five tables, the others are reported once.

Uniform: the distance of the p-values of familiar rows from uniformity over its 5 % bound, 1.36 sqrt(1/n + 1/m), for
twelve draws of each table and three of the shifts; a twentieth should be above 1. Nothing is trained for it.

Coverage: 1,000 draws of calibration and test rows, half and half, around a fixed fit: the mean share of test targets in
the guaranteed intervals and its Monte-Carlo error; the width of these beside that of the calibrated ones. Per group:
the groups of a column that has few values, the smallest of their mean coverages.

Adaptive: 50,000 rows in the order of time after a fit to 2,000 made-up ones, under three kinds of drift. What share of
their targets the 90 % intervals of `AdaptiveIntervals` hold in each tenth of the time, in batches of several sizes, and
without adapting; their mean width beside that of the unadapted ones; the share of intervals that are infinite.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from _machine import made
from _parts import read_parts, write_part
from _trust_shifts import CHOSEN_ON, REPORTED, SCALE, Shift, few_values, peers, read, shifts
from deepbasis import AdaptiveIntervals, DeepBasisRegressor
from deepbasis.errors import FitWarning, NoveltyWarning
from deepbasis.fitting.data import TableData
from deepbasis.fitting.novelty import Novelty
from deepbasis.fitting.outputs import distribution_of
from deepbasis.fitting.spec import Spec
from deepbasis.gp.conformal import Conformal, central, depths

RESULTS = Path(__file__).resolve().parent.parent / "results" / "trust"
FILE = RESULTS / "table.json"
PARTS = ("novelty", "uniform", "coverage", "adaptive", "page")
OURS, STD = "predict_novelty", "predictive std"
ROWS, SEEDS, UNIFORM_SEEDS, DRAWS, FEWEST = 2_800, 1, 12, 1_000, 60
SHORT: dict[str, Any] = {"members": 2, "epochs": 60, "method": "dbk-silu", "random_state": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEEPBASIS_DATA"))
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    warnings.simplefilter("ignore", NoveltyWarning)
    if arguments.quick:
        rows = [row for name in ("rings", "line") for row in strange(name, *made_up(name), {"epochs": 2})]
        print(summary(pd.DataFrame(rows)).to_string())
        print(pd.DataFrame(covered("line", *made_up("line"), {"epochs": 2}, 20)).to_string())
        print(pd.DataFrame(uniform("line", *made_up("line"), {})).describe().to_string())
        print(f"{speed(2_000):,.0f} rows a second", look_cost(400, {**SHORT, "epochs": 2}, 10))
        print(pd.DataFrame(drifting(400, {"epochs": 2}, 1_000)).to_string())
        return
    if arguments.data_dir is None and arguments.part not in ("adaptive", "page"):
        parser.error("the tables are read from --data-dir, or from the folder that DEEPBASIS_DATA names")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for part, measure in (("novelty", strange), ("uniform", uniform), ("coverage", covered)):
        rows = []
        for name in [*CHOSEN_ON, *REPORTED] if arguments.part in (None, part) else []:
            rows += measure(name, *read(name, arguments.data_dir), {})
            write_part(FILE, part, pd.DataFrame(rows))
            print(part, name, flush=True)
    if arguments.part in (None, "adaptive"):
        write_part(FILE, "adaptive", pd.DataFrame(drifting(2_000, {}, 50_000)))
    (RESULTS / "table.md").write_text("\n".join(page()))


def made_up(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    angle, size = rng.uniform(0, 6, 400), rng.normal(size=400)
    first = np.cos(angle) if name == "rings" else angle
    return pd.DataFrame({"a": first, "b": np.sin(angle), "c": size, "d": size + angle}), angle + rng.normal(size=400)


# ---- novelty ---------------------------------------------------------------------------------------------------------


def strange(name: str, X: pd.DataFrame, y: np.ndarray, changes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from sklearn.metrics import roc_auc_score

    for seed in range(SEEDS):
        fitted: tuple[pd.DataFrame, DeepBasisRegressor] | None = None
        for shift in shifts(X, y, ROWS, seed):
            if fitted is None or not fitted[0].equals(shift.fit):
                fitted = shift.fit, DeepBasisRegressor(**{**SHORT, **changes}).fit(shift.fit, shift.y)
            is_strange = np.repeat([0, 1], [len(shift.familiar), len(shift.strange)])
            for detector, (one, other) in scores(fitted[1], shift).items():
                yield {
                    "table": name,
                    "chosen_on": name in CHOSEN_ON,
                    "seed": seed,
                    "shift": shift.kind,
                    "detector": detector,
                    "auroc": float(roc_auc_score(is_strange, np.concatenate([one, other]))),
                    "rows": len(shift.fit),
                }


def scores(model: DeepBasisRegressor, shift: Shift) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of familiar and of strange rows, by every detector; higher is stranger."""
    encode = model.fitted_.preprocessor.transform
    familiar, other = encode(shift.familiar), encode(shift.strange)
    found = {name: fit() for name, fit in peers(encode(shift.fit)).items()}
    told = {name: (score(familiar), score(other)) for name, score in found.items()}
    told[OURS] = -model.predict_novelty(shift.familiar), -model.predict_novelty(shift.strange)
    told[STD] = tuple(model.predict(some, return_std=True)[1] for some in (shift.familiar, shift.strange))
    return told


def uniform(name: str, X: pd.DataFrame, y: np.ndarray, changes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for seed in range(UNIFORM_SEEDS):
        for shift in shifts(X, y, ROWS, seed):
            if shift.kind != SCALE:  # its familiar rows are those of another
                data = TableData.read(Spec(target="identity"), shift.fit, shift.y)
                encoded = torch.from_numpy(data.preprocessor.transform(shift.familiar))
                ks = ks_ratio(novelty := data.novelty(), novelty.p_values(encoded).numpy())
                yield {"table": name, "shift": shift.kind, "seed": seed, "ks": ks}


def ks_ratio(novelty: Novelty, p: np.ndarray) -> float:
    steps, n = np.arange(len(p) + 1) / len(p), len(novelty.scores)
    ordered = np.sort(p)
    furthest = max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max())
    return float(furthest / (1.36 * np.sqrt(1 / n + 1 / len(p))))


def speed(rows: int) -> float:
    """Rows a second, of ten columns, beside the full number of stored rows."""
    draws = torch.Generator().manual_seed(0)
    novelty, x = Novelty.fit(torch.randn(6_000, 10, generator=draws)), torch.randn(rows, 10, generator=draws)
    novelty.p_values(x)
    start = time.perf_counter()
    novelty.p_values(x)
    return rows / (time.perf_counter() - start)


def look_cost(fitted: int, changes: dict[str, Any], repeats: int = 300) -> dict[int, float]:
    """Of a prediction of so many rows: the time beside that without a look for strange ones, by interleaved medians."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(fitted + 1_000, 10))
    y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=len(X))
    known = DeepBasisRegressor(**{"random_state": 0, "epochs": 5, **changes}).fit(X[:fitted], y[:fitted]).fitted_

    def without(some: np.ndarray) -> Any:
        return distribution_of(known.target, known.predict_encoded(known.chunks(some)), known.device)

    found = {}
    for rows in (20, 200, 1_000):
        some, times = X[fitted : fitted + rows], []
        for _ in range(repeats):
            for work in (known.predict, without):
                start = time.perf_counter()
                work(some)
                times.append(time.perf_counter() - start)
        found[rows] = float(np.median(times[::2]) / np.median(times[1::2]))
    return found


# ---- coverage --------------------------------------------------------------------------------------------------------


def covered(
    name: str, X: pd.DataFrame, y: np.ndarray, changes: dict[str, Any], draws: int = DRAWS
) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    some = rng.permutation(len(X))[:ROWS]
    X, y = X.iloc[some].reset_index(drop=True), y[some]
    cut = int(0.6 * len(X))
    model = DeepBasisRegressor(**{**SHORT, **changes}).fit(X[:cut], y[:cut])
    predicted, y = model.predict_dist(X[cut:], as_tensor=True), y[cut:]
    depth, nobody = depths(predicted, y), torch.zeros(len(y), dtype=torch.int64)
    named = next(iter(few_values(X)), None)
    labels = [""] * len(y) if named is None else X[named][cut:].astype(str).tolist()
    frequent = [one for one in dict.fromkeys(labels) if named is not None and labels.count(one) >= FEWEST]
    group = torch.tensor([[*dict.fromkeys(labels)].index(one) for one in labels])
    for level in (0.8, 0.9, 0.95):
        inside: dict[str, list[float]] = {one: [] for one in ("", *frequent)}
        widths = []
        for k in range(draws):
            calibrating, testing = torch.from_numpy(rng.permutation(len(y))).tensor_split(2)
            together = Conformal(depth[calibrating], nobody[calibrating]).level(level)
            inside[""].append(float((depth[testing] >= together).double().mean()))
            grouped = Conformal(depth[calibrating], group[calibrating], tuple(dict.fromkeys(labels)))
            for one in frequent:
                mine = depth[testing][group[testing] == grouped.groups.index(one)]
                inside[one].append(float((mine >= grouped.level(level, one)).double().mean()))
            if k < 20:
                lower, upper = central(predicted, together)
                widths.append(float((upper - lower).mean()))
        low, high = predicted.interval(level)
        means = {one: float(np.mean(shares)) for one, shares in inside.items()}
        yield {
            "table": name,
            "level": level,
            "coverage": means[""],
            "error": float(np.std(inside[""]) / np.sqrt(draws)),
            "groups": len(frequent),
            "smallest_of_groups": min((means[one] for one in frequent), default=None),
            "calibrated_coverage": float(
                ((low <= torch.from_numpy(y)) & (torch.from_numpy(y) <= high)).double().mean()
            ),
            "width_ratio": float(np.mean(widths)) / float((high - low).mean()),
            "rows": len(y),
        }


# ---- rows in the order of time ---------------------------------------------------------------------------------------

DRIFTS = ("noise", "jumps", "trend")


def drifting(fitted: int, changes: dict[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(fitted + rows, 4))
    f = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2]
    noise = 0.5 * rng.normal(size=len(X))
    model = DeepBasisRegressor(**{**SHORT, **changes}).fit(X[:fitted], (f + noise)[:fitted])
    coming, f, noise, now = (
        model.predict_dist(X[fitted:], as_tensor=True),
        f[fitted:],
        noise[fitted:],
        np.linspace(0, 1, rows),
    )
    after = {
        "noise": f + 0.5 * np.sin(9.0 * now) + np.exp(0.9 * np.sin(40.0 * now)) * noise,
        "jumps": f + 4.0 * (np.cumsum(rng.random(rows) < 20.0 / rows) % 2) + noise,
        "trend": f * (1.0 - now) + 15.0 * now + noise,
    }
    low, high = coming.interval(0.9)
    for drift in DRIFTS:
        y = torch.from_numpy(after[drift])
        for batch in (0, 1, 25, 100, 1_000):
            lower, upper = (low, high) if batch == 0 else adapted(coming, y, batch)
            inside = ((lower <= y) & (y <= upper)).double().reshape(10, -1).mean(1)
            yield {
                "drift": drift,
                "batch": batch,
                **{f"tenth {k + 1}": share for k, share in enumerate(inside.tolist())},
                "width_ratio": float((upper - lower).mean() / (high - low).mean()),
                "infinite": float((~(upper - lower).isfinite()).double().mean()),
            }
            print("adaptive", drift, batch, flush=True)


def adapted(coming: Any, y: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    adaptive, ends = AdaptiveIntervals(coverage=0.9), []
    for k in range(0, len(y), batch):
        ends.append(torch.stack(adaptive.interval(coming[k : k + batch])))
        adaptive.update(coming[k : k + batch], y[k : k + batch])
    lower, upper = torch.cat(ends, 1)
    return lower, upper


# ---- the page --------------------------------------------------------------------------------------------------------


def summary(found: pd.DataFrame) -> pd.DataFrame:
    table = found.pivot_table(index="detector", columns="shift", values="auroc")
    table["mean"] = table.mean(axis=1)
    return table.sort_values("mean", ascending=False).round(3)


def page() -> Iterator[str]:
    yield from ("# Which rows are unlike those of the fit, and what guaranteed intervals hold", "")
    yield from ("`python benchmarks/trust.py` makes this page; its docstring says what is compared.", "")
    known = read_parts(FILE)
    if "novelty" in known:
        found = known["novelty"]
        for mine, title in ((True, "The tables that the score was chosen on"), (False, "The other tables")):
            some = found[found["chosen_on"] == mine]
            yield from (f"## AUROC. {title}: {', '.join(dict.fromkeys(some['table']))}", "", *lines(summary(some)), "")
        by_table = found.pivot_table(index="table", columns="detector", values="auroc")
        yield from ("## AUROC of every table, mean of the four shifts", "", *lines(by_table), "")
        ks = known["uniform"]["ks"]
        yield from ("## p-values of familiar rows", "")
        yield f"Their distance from uniformity over the 5 % bound: median {ks.median():.2f}, largest {ks.max():.2f},"
        yield from (f"above 1 in {(ks > 1).sum()} of {len(ks)} cases, {(ks > 1).mean():.1%} of them.", "")
        yield from (f"{speed(200_000):,.0f} rows of ten columns a second, threads: {torch.get_num_threads()}.", "")
        each = ", ".join(f"{ratio:.2f} times for {rows:,} rows" for rows, ratio in look_cost(4_000, {}).items())
        yield from (
            f"`predict_dist` with its look for strange rows, beside one without, after a default fit: {each}.",
            "",
        )
    if "coverage" in known:
        found = known["coverage"]
        yield from ("## Guaranteed intervals", "", *lines(found.set_index("table")), "")
        yield from (wider(found), "")
    if "adaptive" in known:
        found = known["adaptive"]
        each = zip(found["drift"], found["batch"], strict=True)
        found.index = pd.Index([f"{drift}, {batch or 'not adapted'}" for drift, batch in each], name="drift, batch")
        yield from ("## Rows in the order of time: the share of targets in adaptive intervals of 90 %", "")
        yield "The standard deviation of the noise is .5 in the fit. Later it swings between .2 and 1.2, and the mean"
        yield "by .5 (noise); or the mean jumps by 4, twenty times on average (jumps); or it moves by 15, step by step,"
        yield "and the columns lose their effect (trend). `width_ratio` is beside the intervals that do not adapt."
        yield ""
        yield from (*lines(found.drop(columns=["drift", "batch"])), "")
    yield from (made(), "")


def wider(found: pd.DataFrame) -> str:
    """Where a promise costs more than 3 % of the width: is it that the calibrated intervals hold too little?"""
    some = found[found["width_ratio"] > 1.03]
    each = zip(some["table"], some["level"], some["width_ratio"], some["calibrated_coverage"], strict=True)
    told = "; ".join(
        f"{name} at {level:g}, {ratio:.3f} times, where the calibrated ones hold {held:.3f}"
        for name, level, ratio, held in each
    )
    return f"More than 3 % wider than the calibrated ones: {told or 'none'}."


def lines(table: pd.DataFrame) -> Iterator[str]:
    yield f"| {table.index.name} | {' | '.join(map(str, table.columns))} |"
    yield "| --- " * (1 + table.shape[1]) + "|"
    for name, row in zip(table.index, table.to_numpy(), strict=True):
        cells = ["" if value != value else f"{value:.4f}".rstrip("0").rstrip(".") for value in row]
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
