"""Fits of the quality benchmark in many processes, a split or fold for each, until a time is over."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from _quality_data import Fold, Size, Task, fold_numbers, folds
from _quality_model import Effort, Model, score
from deepbasis.errors import InputError

Ahead = dict[str, list[dict[str, Any]]]
"""Name of a part -> records of its folds."""


class Unit(NamedTuple):
    task: Task
    fold: int
    names: tuple[str, ...]
    """Models that share a training."""
    parts: tuple[str, ...]
    """The names of their parts."""


def units_of(task: Task, size: Size, model: Model, part: str) -> list[Unit]:
    return [Unit(task, number, (model.name,), (part,)) for number in fold_numbers(task, size)]


def together(units: list[Unit], leaders: dict[str, str]) -> list[Unit]:
    """Those of one fold whose models share a training, as one; in the order of the first of each."""
    merged: dict[tuple[Task, int, str], Unit] = {}
    for unit in units:
        key = unit.task, unit.fold, leaders.get(unit.names[0], unit.names[0])
        there = merged.get(key)
        merged[key] = (
            unit if there is None else there._replace(names=there.names + unit.names, parts=there.parts + unit.parts)
        )
    return list(merged.values())


def computed(
    units: list[Unit], size: Size, effort: Effort, data_dir: Path | None, jobs: int, seconds: float | None
) -> Ahead:
    """The records of all units that end in time; the processes of the others are ended."""
    from _quality_peers import MODELS

    end = None if seconds is None else time.monotonic() + seconds
    work = together(units, {m.name: m.with_model for m in MODELS.values() if m.with_model is not None})
    found: Ahead = {}
    done = 0
    with multiprocessing.get_context("spawn").Pool(jobs, _one_thread) as pool:
        records = pool.imap_unordered(partial(_compute, size=size, effort=effort, data_dir=data_dir), work)
        for _ in work:
            try:
                some = records.next(None if end is None else max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            except Exception as error:  # of one fit: the others are not lost
                print(f"a fit failed: {type(error).__name__}: {error}", flush=True)
                continue
            done += 1
            for part, own in some.items():
                found.setdefault(part, []).extend(own)
    print(
        f"{done} of {len(work)} fits" + ("" if done == len(work) else ": the others failed, or the time is over"),
        flush=True,
    )
    return found


def _one_thread() -> None:
    torch.set_num_threads(1)


def _compute(unit: Unit, size: Size, effort: Effort, data_dir: Path | None) -> Ahead:
    from _quality_peers import MODELS

    try:
        fold = _fold(unit.task, unit.fold, size, data_dir)
    except InputError:  # said by the process that makes the parts
        return {}
    found: Ahead = {}
    for name, part in zip(unit.names, unit.parts, strict=True):
        model = MODELS[name]
        where = effort if model.on_gpu else replace(effort, device=torch.device("cpu"))
        if model.most_rows is None or len(fold.train.y) + len(fold.validation.y) <= model.most_rows:
            found[part] = score(model, fold, where)
    return found


@lru_cache(maxsize=2)
def _fold(task: Task, number: int, size: Size, data_dir: Path | None) -> Fold:
    return next(fold for fold in folds(task, size, data_dir) if fold.index == number)
