"""Parts of an experiment: each is computed once, recorded as a line of one file, and found there by the next call.

So a long experiment can be interrupted or run in several processes, and parts made on one machine can be drawn on
another: figures and tables are made from the parts alone.
"""

from __future__ import annotations

import copy
import csv
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis.errors import CheckpointMismatchError
from deepbasis.paper.machine import describe
from deepbasis.paper.records import Records
from deepbasis.progress import Progress
from deepbasis.storage import write_atomically

Content = tuple[dict[str, Any], dict[str, Tensor]]
"""(values for JSON, arrays that figures are drawn of). Tables are made of the values alone."""


@dataclass(frozen=True)
class Part:
    name: str
    values: dict[str, Any]
    arrays: dict[str, Tensor]
    made: dict[str, Any]
    """Machine, versions, command, date and "seconds" of the process that computed it; of a part that was added to, the
    same of what was there "before"."""


@dataclass
class Folder:
    """Where an experiment's parts, tables and figures go.

    `only` are beginnings of names: parts that begin with none of them are not computed, and are left out if they have
    not been before.
    """

    path: Path
    device: torch.device
    only: Sequence[str] = ()
    progress: Progress | None = None
    tell: Callable[[str], None] = print
    _records: Records = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._records = Records(self.path)

    def part(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Content],
        extend: Callable[[Part], Content | None] | None = None,
    ) -> Part | None:
        """The part of this name: from the file of parts if it is there, made with the same settings; else computed now.

        `extend` may make more of a part that is there: its new content, or None if nothing is to be added.
        """
        before = self._recorded(name, settings)
        if before is None and self.only and not name.startswith(tuple(self.only)):
            return None
        start = time.monotonic()
        if before is None:
            self.checkpoint(name).parent.mkdir(parents=True, exist_ok=True)
            content: Content | None = compute()
        else:
            content = None if extend is None else extend(before)
        if content is None:
            return before
        values, arrays = content
        made = {**describe(self.device), "seconds": round(time.monotonic() - start, 2)}
        if before is not None:
            made["before"] = before.made
        self._records.put({"name": name, "settings": dict(settings), "values": values, "made": made}, arrays)
        self.checkpoint(name).unlink(missing_ok=True)
        self.tell(f"{name}: {made['seconds']:.1f} s")
        return self._read(name)

    def has(self, name: str) -> bool:
        """Whether a part of this name is recorded, whatever its settings."""
        return name in self._records.lines()

    def recorded(self, name: str) -> Part | None:
        """The part of this name, whatever its settings."""
        return self._read(name) if self.has(name) else None

    def made_with(self, name: str, settings: Mapping[str, Any]) -> bool:
        """Whether the part of this name, which is recorded, has these settings."""
        return bool(self._records.lines()[name]["settings"] == dict(settings))

    def checkpoint(self, name: str) -> Path:
        """Where the training of a part is checkpointed: a call that was killed goes on from there."""
        return self.path / "parts" / f"{name}.training"

    def write(self, name: str, content: str | bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, content.encode() if isinstance(content, str) else content)

    def on(self, device: torch.device) -> Folder:
        """The same folder, for parts that another device computes."""
        other = copy.copy(self)
        other.device = device
        return other

    def _recorded(self, name: str, settings: Mapping[str, Any]) -> Part | None:
        line = self._records.lines().get(name)
        if line is None:
            return None
        there = line["settings"]
        if there != dict(settings):
            differing = sorted(k for k in there.keys() | settings.keys() if there.get(k) != settings.get(k))
            raise CheckpointMismatchError(
                f"{self._records.file}: part {name} was made with other settings ({', '.join(differing)}): delete its "
                "line, or give another --out"
            )
        return self._read(name)

    def _read(self, name: str) -> Part:
        line = self._records.lines()[name]
        return Part(name, line["values"], self._records.arrays(name), line["made"])


class Row(NamedTuple):
    """A line of a tidy table."""

    dataset: str
    split: str
    """"paper" or "duplicate-safe"."""
    setting: str
    """Whatever else varies: "n=500 amplitude=0.4", "download urban"."""
    method: str
    metric: str
    mean: float
    std: float | None
    """Over seeds (n - 1 in the denominator); none for a single one."""
    paper: float | None
    """The paper's mean, where it reports one."""


def summary(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds."""
    array = np.asarray(list(values), dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def tidy_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(["" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in row])
    return text.getvalue()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float | None, digits: int = 4) -> str:
    """As the paper prints them: .2936, -1.7755, and a dash for what is not there."""
    if value is None or not np.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def provenance(parts: Sequence[Part]) -> str:
    """A paragraph that says how the parts were made: dates, machines, versions, commands and their seconds."""
    if not parts:
        return ""
    makings = [made for part in parts for made in _makings(part.made)]
    machines = sorted(
        {
            f"{made.get('gpu') or made['cpu']}, torch {made['torch']}, Python {made['python']}, "
            f"deepbasis {made['deepbasis']}"
            for made in makings
        }
    )
    dates = sorted({made["date"][:10] for made in makings})
    commands = sorted({_general(made["command"]) for made in makings})
    seconds = sum(made["seconds"] for made in makings)
    listed = "; ".join(f"`{c}`" for c in commands)
    return (
        f"Made {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {'; '.join(machines)}. {len(parts)} parts, "
        f"{seconds:.0f} s of computing in all (parts may have run side by side). Commands: {listed}.\n"
    )


def _makings(made: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The last one first."""
    while made is not None:
        yield made
        made = made.get("before")


def _general(command: str) -> str:
    """The same for every part: not which it is, nor a folder that is not kept, nor how errors are told."""
    command = re.sub(r"( --only \S+)+", " --only PART", command.replace(" --debug", ""))
    return re.sub(r" --out (?!results/)\S+", " --out OUT", command)
