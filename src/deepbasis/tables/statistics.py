"""Everything that preprocessing needs to know of a table, from one pass over its pieces, by any number of workers.

    mine = Statistics.empty(columns, units)
    mine.add(unit, columns_of_a_block, y, weight)      # for every block of this worker's units
    whole = Statistics.merged([...])                   # of all workers
    whole.preprocessor(), whole.target()

`to_bytes` and `from_bytes` carry it from worker to worker: arrays and JSON, without pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from deepbasis.tables.columns import Array, Column
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.summaries import ColumnSummary, Moments, Numbers
from deepbasis.tables.targets import TargetScaler

_KEY = "statistics"


@dataclass
class Statistics:
    names: list[str]
    columns: list[ColumnSummary]
    target_moments: Moments = field(default_factory=Moments)
    kept: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Training rows in each unit of the source: those of positive weight that are not held out. 0 in units not seen."""

    @classmethod
    def empty(cls, names: Sequence[str], units: int) -> Statistics:
        summaries = [ColumnSummary(f"column {name!r}") for name in names]
        return cls(list(names), summaries, kept=np.zeros(units, dtype=np.int64))

    @property
    def rows(self) -> int:
        return int(self.kept.sum())

    @property
    def mass(self) -> float:
        """The sum of the weights: the number of rows where there are none."""
        return self.target_moments.mass

    def add(self, unit: int, columns: Iterable[Column], y: Array, weight: Array | None) -> None:
        """Rows of one unit, each of positive weight."""
        for summary, column in zip(self.columns, columns, strict=True):
            summary.add(column, weight)
        self.target_moments.add(y, weight)
        self.kept[unit] += len(y)

    def merge(self, other: Statistics) -> None:
        for mine, theirs in zip(self.columns, other.columns, strict=True):
            mine.merge(theirs)
        self.target_moments.merge(other.target_moments)
        self.kept = self.kept + other.kept

    @classmethod
    def merged(cls, parts: Sequence[Statistics]) -> Statistics:
        whole = cls.empty(parts[0].names, len(parts[0].kept))
        for part in parts:
            whole.merge(part)
        return whole

    def preprocessor(self) -> Preprocessor:
        return Preprocessor(self.names, tuple(summary.encoding() for summary in self.columns))

    def target(self) -> TargetScaler:
        moments = self.target_moments
        return TargetScaler.of(moments.mean, moments.std, max(abs(moments.low), abs(moments.high)))

    def rank_error(self) -> float:
        """The share of the weight by which a quantile of any column may be off, at most."""
        sketches = [summary.values.sketch for summary in self.columns if isinstance(summary.values, Numbers)]
        return max((sketch.rank_error / self.mass for sketch in sketches), default=0.0)

    def to_bytes(self) -> bytes:
        from safetensors.numpy import save

        arrays = {"target": self.target_moments.state(), "kept": self.kept}
        records = []
        for position, summary in enumerate(self.columns):
            own, metadata = summary.state()
            arrays |= {f"{position}/{name}": array for name, array in own.items()}
            records.append(metadata)
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return bytes(save(contiguous, {_KEY: json.dumps({"names": self.names, "columns": records})}))

    @classmethod
    def from_bytes(cls, content: bytes) -> Statistics:
        from safetensors.numpy import load

        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_KEY])
        arrays = load(content)
        columns = []
        for position, record in enumerate(metadata["columns"]):
            prefix = f"{position}/"
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            columns.append(ColumnSummary.from_state(own, record))
        return cls(metadata["names"], columns, Moments.from_state(arrays["target"]), arrays["kept"])
