"""How good the predictions are beside what a user would take instead; a table for each way of splitting the data.

    python benchmarks/quality.py --data-dir DATA                      # everything -> results/quality
    python benchmarks/quality.py --only paper-pol,cv --models deepbasis,catboost
    python benchmarks/quality.py --only cv,table --jobs 14 --minutes 7 # many processes; what was done in time is kept
    python benchmarks/quality.py --quick                              # does it run? a minute, nothing is kept

A part is one model on one data set and split, named SPLIT-DATASET-MODEL: all its seeds or folds. It is recorded when it
is done and no fit of it is computed again, so a call that was cut short goes on where it was, several calls may work on
one folder side by side, and a peer may run in an environment of its own. A part with fewer seeds than wanted is added
to. The tables are made from whatever parts there are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from _quality_data import COPY_FREE, CV, FULL, OOKLA, QUICK, SPLITS, Fold, Load, Size, Task, folds
from _quality_model import METRICS, Effort, Model, score
from _quality_peers import MODELS, OURS
from _quality_pool import Ahead, Unit, computed, units_of
from deepbasis.engine import device as devices
from deepbasis.errors import CheckpointMismatchError, InputError
from deepbasis.paper import data_uci
from deepbasis.paper.data_download import data_folder
from deepbasis.paper.data_ookla import ATTRIBUTION
from deepbasis.paper.parts import Content, Folder, Part, markdown_table, number, provenance, summary, tidy_csv

LOWER_IS_BETTER = METRICS[:5]
COMPARED = ("nll", "crps")
LABELS = {
    "nll": "NLL",
    "crps": "CRPS",
    "crps_40": "CRPS, 40 levels",
    "mae": "MAE",
    "rmse": "RMSE",
    "coverage_95": "coverage",
    "width_95": "width",
}
EARLIER = "†"
"""After the name of a model whose part an earlier version of it has made."""
CPU = torch.device("cpu")


def main() -> None:
    arguments = parse()
    size = QUICK if arguments.quick else FULL
    if arguments.seeds is not None:
        size = size.of_seeds(arguments.seeds)
    if arguments.quick and data_folder(arguments.data_dir) is None:
        print("no folder of data sets: the UCI sets are left out")
        size = replace(size, tasks=tuple(task for task in size.tasks if task.split == CV))
    effort = Effort(devices.present(arguments.device), torch.get_num_threads(), limit=3 if arguments.quick else None)
    with tempfile.TemporaryDirectory() as nowhere:
        out = arguments.out or (nowhere if arguments.quick else "results/quality")
        folder = Folder(Path(out), effort.device)
        wanted = Wanted(tuple(arguments.models), tuple(arguments.only))
        ahead = None
        if arguments.jobs > 1:
            work = units(folder, size, effort, wanted)
            limit = None if arguments.minutes is None else 60.0 * arguments.minutes
            ahead = computed(work, size, replace(effort, threads=1), arguments.data_dir, arguments.jobs, limit)
        parts = list(collect(folder, size, effort, wanted, arguments.data_dir, ahead=ahead))
        write(folder, size, parts)
    print(f"{len(parts)} parts" + ("" if out == nowhere else f"; the tables are in {out}"))


def parse() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word.strip() for word in text.split(",") if word.strip()]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the data sets are; $DEEPBASIS_DATA by default")
    parser.add_argument("--out", help="where parts and tables go; results/quality by default")
    parser.add_argument("--device", default="auto", help="of the models that can use a GPU")
    parser.add_argument(
        "--only",
        type=words,
        action="extend",
        default=[],
        metavar="PREFIX,...",
        help="compute only the parts whose names begin so; may be repeated",
    )
    parser.add_argument(
        "--models", type=words, default=list(MODELS), help=f"compute only these of: {', '.join(MODELS)}"
    )
    parser.add_argument(
        "--seeds", type=int, help="fewer seeds or splits than 5 on UCI and 3 on Ookla; a later call may add to them"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread, a split for each")
    parser.add_argument("--minutes", type=float, help="with --jobs: what is not done then is left for another call")
    parser.add_argument(
        "--quick", action="store_true", help="small, and in a folder that is deleted unless --out is given"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.models if name not in MODELS]
    if unknown or not arguments.models:
        parser.error(f"--models: {', '.join(unknown) or 'nothing'} is not among {', '.join(MODELS)}")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    return arguments


# ---- parts ---------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What is to be computed if it is not there."""

    models: Sequence[str] = tuple(MODELS)
    only: Sequence[str] = ()

    def has(self, name: str, model: str) -> bool:
        return model in self.models and (not self.only or name.startswith(tuple(self.only)))


def collect(
    folder: Folder,
    size: Size,
    effort: Effort,
    wanted: Wanted,
    data_dir: Path | None = None,
    models: Mapping[str, Model] = MODELS,
    load: Load = data_uci.load,
    ahead: Ahead | None = None,
) -> Iterator[Part]:
    """Every part that is there or can be made; what cannot be is said once. `ahead` has all that was computed before:
    nothing else is computed then."""
    said: set[str] = set()

    def leave_out(reason: str) -> None:
        if reason not in said:
            said.add(reason)
            folder.tell(reason)

    for task in dict.fromkeys(task.recorded for task in size.tasks):
        data = cache(lambda task=task: list(folds(task, size, data_dir, load)))  # read only if a part must be computed
        for model in models.values():
            name = part_name(task, model)
            recorded = folder.has(name)
            if not recorded and not wanted.has(name, model.name):
                continue
            if not recorded and not model.installed:
                leave_out(f"{model.name} is left out: the package {model.package} is not installed")
                continue
            if not recorded and ahead is not None and name not in ahead:
                continue
            try:
                if recorded or not _too_many(model, data()[0]):
                    yield _part(folder, name, task, model, size, effort, data, wanted.has(name, model.name), ahead)
            except CheckpointMismatchError as error:
                earlier = folder.recorded(name) if model.with_earlier else None
                if earlier is None:
                    leave_out(f"left out: {error}")
                else:
                    yield replace(earlier, values={**earlier.values, "earlier": True})
            except InputError as error:
                leave_out(f"{task.dataset} is left out: {error}")


def _too_many(model: Model, fold: Fold) -> bool:
    return model.most_rows is not None and len(fold.train.y) + len(fold.validation.y) > model.most_rows


def keys(fold: Fold) -> set[tuple[int, int]]:
    return {(fold.index, seed) for seed in fold.seeds}


def part_name(task: Task, model: Model) -> str:
    return f"{task.split}-{task.dataset}-{model.name}"


def units(folder: Folder, size: Size, effort: Effort, wanted: Wanted) -> list[Unit]:
    """What is wanted and not recorded, a split or fold at a time, in the order of the models as they were asked for."""
    tasks = list(dict.fromkeys(task.recorded for task in size.tasks))
    found = []
    for name in wanted.models:
        model = MODELS[name]
        for task in tasks if model.installed else ():
            own = part_name(task, model)
            if not wanted.has(own, name):
                continue
            part = folder.recorded(own)
            if part is not None and not folder.made_with(own, settings_of(task, model, size, effort)):
                folder.tell(f"{own} is left as an earlier version made it: delete its line, and it is computed again")
                continue
            there = set() if part is None else {record["fold"] for record in part.values["folds"]}
            found += [unit for unit in units_of(task, size, model, own) if unit.fold not in there]
    return found


def settings_of(task: Task, model: Model, size: Size, effort: Effort) -> dict[str, Any]:
    """What makes a part another than that of the same name."""
    return {
        "dataset": task.dataset,
        "split": task.split,
        "model": model.name,
        **size.describe(task.split),
        "limit": effort.limit,
        "options": json.loads(json.dumps(dict(model.options))),  # as they come back from a file: lists for tuples
    }


def _part(
    folder: Folder,
    name: str,
    task: Task,
    model: Model,
    size: Size,
    effort: Effort,
    data: Callable[[], list[Fold]],
    wanted: bool,
    ahead: Ahead | None = None,
) -> Part:
    # The device that computes is the one that is recorded.
    where = effort if model.on_gpu else replace(effort, device=CPU)
    what = {"dataset": task.dataset, "split": task.split, "model": model.name}
    settings = settings_of(task, model, size, effort)

    def scored(fold: Fold) -> list[dict[str, Any]]:
        if ahead is None:
            return score(model, fold, where)
        return [record for record in ahead.get(name, []) if (record["fold"], record["seed"]) in keys(fold)]

    def compute() -> Content:
        first = data()[0]
        values = {
            **what,
            "rows": [len(side.y) for side in (first.train, first.validation, first.test)],
            "columns": first.columns,
            "device": where.device.type,
            "packages": model.packages(),
            "folds": [record for fold in data() for record in scored(fold)],
        }
        return values, {}

    def extend(part: Part) -> Content | None:
        """With the folds and seeds that it lacks, if they can be computed as the others were."""
        records = part.values["folds"]
        if not wanted or len(records) >= size.fits(task):
            return None
        same = (part.values["device"], part.values["packages"]) == (where.device.type, model.packages())
        if not model.installed or not same:
            folder.tell(f"{name} has fewer seeds, and stays so: it was made on another device or by other versions")
            return None
        there = {(record["fold"], record["seed"]) for record in records}
        try:
            every = data()
        except InputError as error:
            folder.tell(f"{name} has fewer seeds, and stays so: {error}")
            return None
        rest = [replace(f, seeds=tuple(seed for seed in f.seeds if (f.index, seed) not in there)) for f in every]
        new = [record for fold in rest if fold.seeds for record in scored(fold)]
        if not new:
            return None
        return {**part.values, "folds": [*records, *new]}, part.arrays

    part = folder.on(where.device).part(name, settings, compute, extend)
    assert part is not None  # without `only` a folder always gives one
    return part


# ---- what the parts say --------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A line of table.csv."""

    dataset: str
    split: str
    model: str
    metric: str
    mean: float
    std: float | None
    """Over seeds or folds (n - 1 in the denominator); none for a single one."""
    seconds: float
    """Of one fit, the mean."""


@dataclass(frozen=True)
class Cell:
    """A model on a data set and split."""

    task: Task
    model: str
    folds: Mapping[tuple[int, int], Mapping[str, Any]]
    """(fold, seed) -> its record; those that broke down are not among them."""
    broken: int
    device: str
    earlier: bool = False
    """Whether an earlier version of the model has made it."""
    few: bool = False
    """Whether it lacks so many folds that the others are not held to its own."""

    @property
    def label(self) -> str:
        return f"{self.model} {EARLIER}" if self.earlier else self.model

    def has(self, metric: str) -> bool:
        """Not all models have a density, and parts from before a metric was there do not have it."""
        return all(record.get(metric) is not None for record in self.folds.values())

    def mean(self, metric: str) -> float:
        return self.summary(metric)[0]

    def summary(self, metric: str) -> tuple[float, float | None]:
        return summary(record[metric] for record in self.folds.values()) if self.has(metric) else (np.nan, None)

    def rounds(self) -> str:
        rounds = [record["rounds"] for record in self.folds.values()]
        return "–" if None in rounds else f"{np.mean(rounds):.0f}"


def cells_of(parts: Iterable[Part], tasks: Iterable[Task]) -> list[Cell]:
    """One for each task and model, in the order of the tasks; without those of which no fit came to an end."""
    by_task: dict[Task, list[Part]] = {}
    for part in parts:
        by_task.setdefault(Task(part.values["split"], part.values["dataset"]), []).append(part)
    cells = []
    for task in tasks:
        _check_same_rows(by_task.get(task.recorded, []))
        for part in by_task.get(task.recorded, []):
            records = part.values["folds"]
            usable = {(r["fold"], r["seed"]): r for r in records if r["error"] is None}
            about = part.values["model"], usable, len(records) - len(usable), part.values["device"]
            cell = Cell(task, *about, earlier=part.values.get("earlier", False))
            if usable:
                cells.append(cell)
    return cells


def on_shared_folds(cells: Sequence[Cell]) -> list[Cell]:
    """Without the folds that some model of the data set lacks: splits differ more than models do.

    A model with fewer seeds on one split lacks no fold. One with less than half of the folds that `deepbasis` has is on
    those that it has, and not compared with the others.
    """
    found = []
    for cell in cells:
        every = {o.model: {fold for fold, _ in o.folds} for o in cells if o.task == cell.task}
        wanted = every.get(OURS[0], set().union(*every.values()))
        shared = set.intersection(wanted, *(one for one in every.values() if 2 * len(one & wanted) >= len(wanted)))
        own = {key: record for key, record in cell.folds.items() if key[0] in shared}
        if own:
            found.append(replace(cell, folds=own, few=len({fold for fold, _ in own}) < len(shared)))
    return found


def _check_same_rows(parts: Iterable[Part]) -> None:
    """The parts may come from several machines, with other versions of what draws the folds."""
    seen: dict[int, tuple[str, str]] = {}
    for part in parts:
        for record in part.values["folds"]:
            digest, name = seen.setdefault(record["fold"], (record["digest"], part.name))
            if digest != record["digest"]:
                raise InputError(f"{part.name} and {name} were made on other rows: delete one of them")


def rows_of(cells: Iterable[Cell]) -> list[Row]:
    return [
        Row(cell.task.dataset, cell.task.split, cell.model, metric, *cell.summary(metric), cell.mean("seconds"))
        for cell in cells
        for metric in METRICS
        if cell.has(metric)
    ]


class Paired(NamedTuple):
    """`deepbasis` minus the best of the others, fold by fold."""

    dataset: str
    metric: str
    peer: str
    mean: float
    error: float | None
    """Standard error of the mean; none for a single pair."""
    pairs: int


def paired(cells: Sequence[Cell], metric: str, ours: str = "deepbasis") -> list[Paired]:
    """The best of the others is the one with the highest mean difference: chosen after the fact, in its favour."""
    found = []
    able = [cell for cell in cells if cell.has(metric)]
    for own in (cell for cell in able if cell.model == ours):
        against = []
        for other in (cell for cell in able if cell.task == own.task and cell.model not in OURS):
            shared = own.folds.keys() & other.folds.keys()
            if shared:
                mean, std = summary(own.folds[key][metric] - other.folds[key][metric] for key in sorted(shared))
                error = None if std is None else std / len(shared) ** 0.5
                against.append(Paired(own.task.dataset, metric, other.model, mean, error, len(shared)))
        if against:
            found.append(max(against, key=lambda pair: pair.mean))
    return found


def average_ranks(cells: Sequence[Cell]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """model -> metric -> its rank, averaged over the data sets; and the models left out, which lack some of these."""
    from scipy.stats import rankdata

    by_place = {(cell.task.dataset, cell.model): cell for cell in cells if not cell.few}
    names = list(dict.fromkeys(cell.task.dataset for cell in cells))
    present = [model for model in MODELS if any(cell.model == model for cell in cells)]
    complete = [model for model in present if all((name, model) in by_place for name in names)]
    ranks: dict[str, dict[str, float]] = {model: {} for model in complete}
    for metric in LOWER_IS_BETTER:
        able = [model for model in complete if all(by_place[name, model].has(metric) for name in names)]
        table = np.array([[by_place[name, model].mean(metric) for model in able] for name in names])
        for model, rank in zip(able, rankdata(table, axis=1).mean(0) if able else (), strict=True):
            ranks[model][metric] = float(rank)
    return ranks, [model for model in present if model not in complete]


# ---- tables --------------------------------------------------------------------------------------------------------


def write(folder: Folder, size: Size, parts: Sequence[Part]) -> None:
    cells = cells_of(parts, size.tasks)
    folder.write("table.csv", tidy_csv(Row._fields, rows_of(on_shared_folds(cells))))
    folder.write("table.md", markdown(cells, parts))
    if any(cell.task.dataset in OOKLA for cell in cells):
        folder.write("ATTRIBUTION.txt", f"The rows of the data sets {', '.join(OOKLA)}: {ATTRIBUTION}\n")


INTRODUCTION = """# Quality of predictions

Test scores in units of the standardised target (mean 0 and variance 1 on the training rows). All models of a data set
get the same rows to train on, to validate on (but for `cv`) and to be scored on, scaled the same way. No model sees a
test row.
Except under `cv` the bounds that scale the inputs are those of all rows, as in the paper, or of the state.

NLL, CRPS, MAE and RMSE: lower is better, **best** in bold. "CRPS, 40 levels" is twice the mean pinball loss at
the levels (i - 1/2) / 40, the same for densities and quantiles; a model of quantiles has no other CRPS and no NLL, and
parts from before that column do not have it. Coverage is the share of targets inside the central 95 %
interval, width the mean width of that interval. Seconds are those of one fit, on the device named beside them; a GPU's
include compilation, and up to fifteen models shared it, as peers and tests shared the CPU. Rounds are the epochs, trees
or stages that the validation rows chose: where they are near the most that a model may use (see below) it was cut
short. n is the number of fits that the means are over; where models have different splits of a data set, the table is
about those that all of them have. A model with fewer than half of the splits of `deepbasis` is an exception: its means
are over those that it has, and are never in bold.
"""

ABOUT = {
    "paper": "UCI and Ookla, one fixed random split 8:1:1, n seeds, inputs scaled as the paper does it. The spread "
    "over seeds says nothing about other splits. Copies of test rows stand among the training rows: 0.3 % of them on "
    "pol, 6 % on protein, three quarters on the kegg sets, and 98 % of Puerto Rico's test places.",
    "duplicate-safe": "UCI, rows with identical inputs kept on one side: n random splits, with one seed each. "
    f"{' and '.join(COPY_FREE)} have no such rows: theirs are the paper's split and its seeds.",
    "cv": "Small sets, repeated K-fold cross-validation; a tenth of each training fold validates. `deepbasis` and "
    "`sklearn-gp` are given both parts as one; `deepbasis` holds out rows by itself, each member "
    "another quarter. Its rounds, of ten steps, are the best by its validation score; a shallow kernel keeps its last "
    "step, the 400th.",
    "table": "Tables of a data folder, 8:1:1, rows with identical inputs kept on one side: up to ten random splits of "
    "fewer than 5,000 rows, three of more, with one seed each. All inputs as numbers, the same for all models, scaled "
    "on the training rows. Up to 2,000 rows `deepbasis`, `sklearn-gp`, `ridge` and `constant` are given training and "
    "validation rows as one. `deepbasis` is given the target as it is: where it takes it for a count or a rating, it "
    "has no density, and no NLL here.",
}


def markdown(cells: Sequence[Cell], parts: Sequence[Part]) -> str:
    text = [INTRODUCTION]
    for split in SPLITS:
        own = [cell for cell in cells if cell.task.split == split]
        if own:
            shared = on_shared_folds(own)
            text += [f"## Split `{split}`\n", f"{ABOUT[split]}\n", _scores(shared), *_ranks(shared), *_paired(own)]
    present = [name for name in MODELS if any(cell.model == name for cell in cells)]
    if any(cell.earlier for cell in cells):
        text.append(
            f"{EARLIER} Made by an earlier version, whose default had other options (they are in parts.jsonl).\n"
        )
    text += ["## Models\n", "\n".join(f"- `{name}`: {MODELS[name].what}." for name in present) + "\n"]
    text += ["## How it was made\n", provenance(parts), *_versions(parts), *_broken(parts)]
    if any(cell.task.dataset in OOKLA for cell in cells):
        text.append(f"{ATTRIBUTION}\n")
    return "\n".join(text)


def _scores(cells: Sequence[Cell]) -> str:
    lines = []
    metrics = [metric for metric in METRICS if any(cell.has(metric) for cell in cells)]
    for cell in cells:
        rivals = [other for other in cells if other.task == cell.task and not other.few]
        shown = []
        for metric in metrics:
            if not cell.has(metric):
                shown.append("–")
                continue
            mean, std = cell.summary(metric)
            digits = 3 if metric in ("coverage_95", "width_95") else 4
            value = number(mean, digits) + ("" if std is None else f" ± {number(std, digits)}")
            able = (
                [] if cell.few or metric not in LOWER_IS_BETTER else [o.mean(metric) for o in rivals if o.has(metric)]
            )
            best = bool(able) and mean == min(able)
            shown.append(f"**{value}**" if best else value)
        seconds = f"{cell.mean('seconds'):.1f} ({cell.device})"
        lines.append([cell.task.dataset, cell.label, *shown, seconds, cell.rounds(), str(len(cell.folds))])
    return markdown_table(
        ["data set", "model", *(LABELS[metric] for metric in metrics), "seconds", "rounds", "n"], lines
    )


def _ranks(cells: Sequence[Cell]) -> list[str]:
    ranks, left_out = average_ranks(cells)
    if len(ranks) < 2:
        return ["No two models have all these data sets yet: no ranks.\n"]
    metrics = [metric for metric in LOWER_IS_BETTER if any(metric in own for own in ranks.values())]
    lines = [[model, *(number(own.get(metric), 2) for metric in metrics)] for model, own in ranks.items()]
    without = f", without models that lack a data set ({', '.join(left_out)})" if left_out else ""
    return [
        f"Average ranks over the {len({cell.task.dataset for cell in cells})} data sets{without}; 1 is best.\n",
        markdown_table(["model", *(LABELS[metric] for metric in metrics)], lines),
    ]


def _paired(cells: Sequence[Cell]) -> list[str]:
    lines = [
        [p.dataset, LABELS[metric], p.peer, number(p.mean), number(p.error), str(p.pairs)]
        for metric in COMPARED
        for p in paired(cells, metric)
    ]
    if not lines:
        return []
    return [
        "`deepbasis` minus the best of the others on the same folds and seeds (below zero `deepbasis` is better). The "
        "best is the one that it beats by least, picked on these very scores. The standard error is that of n "
        "differences taken as independent; folds and splits share training rows, so it is on the small side.\n",
        markdown_table(["data set", "metric", "best of the others", "mean difference", "standard error", "n"], lines),
    ]


def _versions(parts: Sequence[Part]) -> list[str]:
    found = sorted({f"{name} {v}" for part in parts for name, v in part.values["packages"].items()})
    return [f"Versions of the peers: {', '.join(found)}.\n"] if found else []


def _broken(parts: Sequence[Part]) -> list[str]:
    lines = [
        f"- {part.name}, fold {record['fold']}, seed {record['seed']}: {record['error']}"
        for part in parts
        for record in part.values["folds"]
        if record["error"] is not None
    ]
    return ["Fits that broke down, and are in no mean:\n", "\n".join(lines) + "\n"] if lines else []


if __name__ == "__main__":
    main()
