"""One pass over a table in files, by any number of workers: everything that preprocessing needs, and the held-out rows.

    statistics, held = scan(source, roles, held_out, units, block_rows)     # of this worker's units
    whole = TableStatistics.merged([...])                                   # of all workers
    whole.preprocessor(), whole.target()

With what the pass has found an `Encoder` (`encoded.py`) makes numbers of rows, when they are read again.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deepbasis.errors import InputError
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.cells import NOTHING
from deepbasis.tables.columns import MISSING, Array, Column, joined, missing_column
from deepbasis.tables.effects import InTraining, in_training, position_parts, responses
from deepbasis.tables.encoders import STANDARD, Encoding, fit_encoding, no_values
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.recognition import constants, recognise
from deepbasis.tables.roles import Roles
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.source import Source
from deepbasis.tables.table import HeldOut, position_hashes
from deepbasis.tables.weighted import mean_and_std

_FEWEST_ROWS, _MOST_ROWS = 1_024, 65_536  # of the sample
_MOST_CELLS = 10_000_000  # of it, whatever the number of columns
MOST_TEXT = 32 << 20
"""Characters of the different texts in the sample, at most."""
_TURNS = 4  # in which the sample grows to its size


@dataclass
class Moments:
    """Weight, mean and standard deviation, smallest and largest value of numbers without holes."""

    mass: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Array, weight: Array | None) -> None:
        if len(values):
            mass = np.ones(len(values)) if weight is None else weight
            mean, std = mean_and_std(values, mass)
            self.merge(Moments(float(mass.sum()), mean, std, float(values.min()), float(values.max())))

    def merge(self, other: Moments) -> None:
        """Chan, Golub and LeVeque's update, by `hypot`: squares of 1e300 do not overflow."""
        total = self.mass + other.mass
        if other.mass == 0.0:
            return
        mine, theirs = self.mass / total, other.mass / total
        between = (other.mean / 2 - self.mean / 2) * (2 * math.sqrt(mine * theirs))
        self.std = math.hypot(self.std * math.sqrt(mine), other.std * math.sqrt(theirs), between)
        self.mean = self.mean * mine + other.mean * theirs if self.mass else other.mean
        self.mass = total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


@dataclass
class TableStatistics:
    """What one pass finds out. Exact: counts, the target's moments, gaps and ends of columns. The rest of an encoding
    (quantiles, moments, frequent categories) comes from a sample of the rows, or from all of them in a small table.

    The sample holds the rows of the smallest hashes: the same rows, whichever worker reads which piece, and in
    whichever order.
    """

    names: list[str]
    kept: Array
    """Training rows in each unit of the source: those of positive weight that are not held out. 0 in units not seen."""
    most: int
    """Rows of the sample."""
    target_moments: Moments = field(default_factory=Moments)
    hashes: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    sample: list[Column] = field(default_factory=list)
    sample_y: Array = field(default_factory=lambda: np.empty(0))
    """What is known of the targets, as `Roles.observed_of` has it."""
    weight: Array | None = None
    missing: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    ends: Array = field(default_factory=lambda: np.zeros((0, 2)))
    waiting: list[tuple[Array, Sequence[Column], Array, Array | None]] = field(default_factory=list)
    """Rows that are not in the sample yet."""
    checksums: Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    """CRC-32 of what was read of each unit, held-out rows included; 0 in units not seen."""

    @classmethod
    def empty(cls, names: Sequence[str], units: int, most: int | None = None) -> TableStatistics:
        most = sample_rows(len(names)) if most is None else most
        nothing = [missing_column(f"column {name!r}", 0) for name in names]
        ends = np.tile([math.inf, -math.inf], (len(names), 1))
        missing = np.zeros(len(names), dtype=bool)
        kept, checksums = np.zeros(units, dtype=np.int64), np.zeros(units, dtype=np.uint32)
        return cls(list(names), kept, most, sample=nothing, missing=missing, ends=ends, checksums=checksums)

    @property
    def rows(self) -> int:
        return int(self.kept.sum())

    @property
    def mass(self) -> float:
        """The sum of the weights, or the number of rows without weights."""
        return self.target_moments.mass

    def add(self, unit: int, hashes: Array, columns: Sequence[Column], y: Array, weight: Array | None) -> None:
        """Rows of one unit, each of positive weight."""
        self.target_moments.add(y if y.ndim == 1 else y[:, 0], weight)
        self.kept[unit] += len(y)
        for k, column in enumerate(columns):
            gaps = column.missing
            self.missing[k] |= bool(gaps.any())
            if column.kind != "categorical" and not gaps.all():
                low, high = np.fmin.reduce(column.values), np.fmax.reduce(column.values)
                self.ends[k] = min(self.ends[k, 0], low), max(self.ends[k, 1], high)
        self._sample(hashes, columns, y, weight)

    def check_sum(self, unit: int, columns: Sequence[Column], numbers: Sequence[Array | None]) -> None:
        """All that is read of a unit goes into its checksum, block by block."""
        total = int(self.checksums[unit])
        for values in (*numbers, *(column.values for column in columns)):
            if values is not None:
                total = zlib.crc32(np.ascontiguousarray(values).data, total)
        names = repr([column.categories for column in columns if column.categories])
        self.checksums[unit] = zlib.crc32(names.encode(), total)

    def fingerprint(self) -> str:
        """Of the content of all units."""
        return hashlib.sha256(self.checksums.tobytes()).hexdigest()[:8]

    def _sample(self, hashes: Array, columns: Sequence[Column], y: Array, weight: Array | None) -> None:
        if len(self.hashes) == self.most:
            near = hashes < self.hashes.max()
            hashes, columns, y = hashes[near], [column.rows(near) for column in columns], y[near]
            weight = None if weight is None else weight[near]
        if not len(hashes):
            return
        self.waiting.append((hashes, columns, y, weight))
        rows = sum(len(one) for one, *_ in self.waiting)
        text = sum(len(name) for column in columns for name in column.categories)
        if rows >= self.most // _TURNS or text * len(self.waiting) > MOST_TEXT // _TURNS:
            self.settle()

    def settle(self) -> None:
        """Take the rows that wait into the sample: seldom, since that is work for each of thousands of columns."""
        if not self.waiting:
            return
        more_hashes, more_columns, more_y, more_weight = zip(*self.waiting, strict=True)
        self.waiting = []
        hashes = np.concatenate([self.hashes, *more_hashes])
        y = np.concatenate([*([self.sample_y] if len(self.sample_y) else []), *more_y])
        keep = np.argpartition(hashes, self.most)[: self.most] if len(hashes) > self.most else slice(None)
        self.hashes, self.sample_y = hashes[keep], y[keep]
        if more_weight[0] is not None:
            self.weight = np.concatenate([*([] if self.weight is None else [self.weight]), *more_weight])[keep]
        for k, parts in enumerate(zip(*more_columns, strict=True)):
            self.sample[k] = joined([self.sample[k], *parts]).rows(keep).compact()
        self._check_text()

    def _check_text(self) -> None:
        sizes = [sum(map(len, column.categories)) for column in self.sample]
        if sum(sizes) > MOST_TEXT:
            longest = self.sample[int(np.argmax(sizes))]
            raise InputError(
                f"X: {longest.label} holds texts of {max(sizes) // len(longest.categories):,} characters, "
                f"{len(longest.categories):,} different ones in {len(longest.values):,} rows: too much to hold in "
                "memory; drop it, or shorten its texts"
            )

    def in_order(self) -> Array:
        """The numbers of the sample's rows, in an order that does not depend on who has read them."""
        self.settle()
        return np.argsort(self.hashes)

    @classmethod
    def merged(cls, parts: Sequence[TableStatistics]) -> TableStatistics:
        if len(parts) == 1:
            return parts[0]
        whole = cls.empty(parts[0].names, len(parts[0].kept), parts[0].most)
        for part in parts:
            whole.target_moments.merge(part.target_moments)
            whole.kept += part.kept
            whole.checksums += part.checksums
            whole.missing |= part.missing
            whole.ends = np.stack(
                [np.minimum(whole.ends[:, 0], part.ends[:, 0]), np.maximum(whole.ends[:, 1], part.ends[:, 1])], 1
            )
            part.settle()
            whole._sample(part.hashes, part.sample, part.sample_y, part.weight)
        return whole

    def preprocessor(
        self,
        scaling: str = STANDARD,
        meanings: Mapping[str, str] | None = None,
        decimal: str = "",
        spikes_above: float = math.inf,
    ) -> Preprocessor:
        """What the columns are meant as is what they are in the sample."""
        self.settle()
        meant = recognise(self.names, self.sample, meanings, decimal)
        encodings = []
        facts = zip(self.missing.tolist(), self.ends.tolist(), meant.rules, meant.columns, strict=True)
        for missing, (low, high), rule, column in facts:
            if rule is not None and rule.form == NOTHING:
                encodings.append(Encoding("categorical", missing=False, varies=False, rule=rule))
            elif not column.missing.all():
                ends = None if column.kind == "categorical" or rule is not None else (low, high)
                gaps = missing or bool(column.missing.any())
                found = fit_encoding(column, self.weight, scaling, gaps, ends, spikes_above)
                encodings.append(replace(found, rule=rule))
            elif column.kind == MISSING and low > high:
                raise no_values(column.label)
            else:  # too rare to be in the sample: that it is there is all that is said
                encodings.append(Encoding("numeric" if column.kind == MISSING else column.kind, missing, varies=False))
        notes = (*meant.notes, *constants(meant.columns, [one.width > 0 for one in encodings]))
        return Preprocessor(self.names, tuple(encodings), notes)

    def in_training(
        self, preprocessor: Preprocessor, roles: Roles, hide: bool
    ) -> tuple[Preprocessor, InTraining | None]:
        """By the levels in the sample. With groups, whose rows would be in every part, nothing is changed."""
        if roles.groups is not None or not preprocessor.flags:
            return preprocessor, None
        y, exposure = self.sample_y, None
        if roles.exposure is not None:
            y, exposure = y.T
        elif roles.is_censored:
            y = y[:, 0]
        observed = responses(y, self.weight, 0 if roles.labels is None else len(roles.labels.values), exposure)
        return in_training(preprocessor, self.sample, observed, self.weight, position_parts(self.hashes)[0], hide)

    def target(self) -> TargetScaler:
        moments = self.target_moments
        return TargetScaler.of(moments.mean, moments.std, max(abs(moments.low), abs(moments.high)))


def sample_rows(columns: int) -> int:
    """Rows of the sample."""
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _MOST_CELLS // columns))


@dataclass(frozen=True)
class HeldRows:
    """Rows that were held out."""

    unit: Array
    row: Array
    """Of each row, in its file."""
    columns: list[Column]
    y: Array
    weight: Array | None

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def joined(cls, parts: Sequence[HeldRows]) -> HeldRows:
        """In the order of their units; those of one unit are in one part, or in parts one after another."""
        unit = np.concatenate([part.unit for part in parts])
        order = slice(None) if (np.diff(unit) >= 0).all() else np.argsort(unit, kind="stable")
        columns = [joined(some).rows(order).compact() for some in zip(*(part.columns for part in parts), strict=True)]
        y = np.concatenate([part.y for part in parts])[order]
        weights = [part.weight for part in parts if part.weight is not None]
        row = np.concatenate([part.row for part in parts])[order]
        return cls(unit[order], row, columns, y, np.concatenate(weights)[order] if weights else None)


def scan(
    source: Source,
    roles: Roles,
    held_out: HeldOut,
    units: Iterable[int],
    block_rows: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> tuple[TableStatistics, HeldRows]:
    """Statistics of these units' training rows, and their held-out rows. `progress` gets each number of rows read."""
    statistics = TableStatistics.empty(roles.features, len(source.units))
    nobody, nothing = np.empty(0, np.int64), np.empty(0)
    no_weight = None if roles.weight is None else nothing
    no_y = np.empty((0, roles.observed_numbers)) if roles.observed_numbers else nothing
    held = [HeldRows(nobody, nobody, list(statistics.sample), no_y, no_weight)]
    for unit in units:
        file = source.units[unit].file
        for block in source.blocks(unit, roles.columns, block_rows):
            y, weight = roles.observed_of(block), roles.weight_of(block)
            out = roles.held_out_of(block, file, held_out)
            keep = ~out if weight is None else ~out & (weight > 0)
            columns = roles.features_of(block)
            statistics.check_sum(unit, columns, [y, weight, out])
            if out.any():
                apart, row = [column.rows(out).compact() for column in columns], block.first_row + np.flatnonzero(out)
                own = None if weight is None else weight[out]
                held.append(HeldRows(np.full(len(row), unit), row, apart, y[out], own))
                while len(held) > 1 and len(held[-2]) <= len(held[-1]):  # few and large ones are left
                    held[-2:] = [HeldRows.joined(held[-2:])]
            if not keep.all():
                columns = [column.rows(keep) for column in columns]
            hashes = position_hashes(file, block.first_row, len(block))[keep]
            with block.located():
                statistics.add(unit, hashes, columns, y[keep], None if weight is None else weight[keep])
            progress(len(block))
    with FileBlock(source.name, 0, None).located():
        statistics.settle()
    return statistics, HeldRows.joined(held)
