"""From one column to the numbers that a network sees: how each kind is encoded, and what training determines.

An `Encoding` is a flat record of numbers and words, so that it can be written down as JSON. Its numbers depend only on
the weighted distribution of the training values: a row of weight 0 does not count, a row of weight k counts as k rows,
to the last bit, and the order of the rows does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from deepbasis.errors import InputError
from deepbasis.tables.cells import NOTHING, Rule
from deepbasis.tables.columns import MISSING, YEARS, Array, Column
from deepbasis.tables.weighted import masses, mean_and_std, median_and_scale, quantile

MAX_CATEGORIES = 32
"""Categories with a column of their own, the most frequent ones; the rest share one."""

STANDARD, MIN_MAX = "standard", "min-max"
"""Number columns are scaled to mean 0 and standard deviation 1, or to the range from -1 to 1."""

LINEAR, LINEAR_DATES, FLAT = 10.0, 3.0, 1e12
"""Scaled numbers are kept up to 10 (dates up to 3), grow logarithmically beyond, and not at all beyond 10^12 (where
they are 37.6)."""

MAX_SPIKES = 32
"""Values of a number column with an indicator of their own, at most."""

FAR_OUT = 1000.0
"""Numbers this many robust scales from the median are left out of the mean and the standard deviation."""

_SPIKE_ROWS, _SPIKE_SHARE = 10.0, 0.001  # that a value needs, the larger of the two, to be a spike

_CYCLES = {"day of year": (366, 365.25), "day of week": (7, 7.0), "hour": (1440, 1440.0)}
"""Phase -> (how many steps it has, how many make a full turn). The hour is resolved to the minute."""

PHASES = tuple(_CYCLES)


@dataclass(frozen=True)
class Encoding:
    """What training determined for one column."""

    kind: str
    missing: bool
    """Training had missing values: there is an indicator."""
    varies: bool = True
    """Training had two different values; a column of one value has no output."""
    center: float = 0.0
    scale: float = 1.0
    """Mean and standard deviation of the numbers, median and robust scale of dates; of a boolean column 1/2 and 1/2,
    which gives -1 and +1."""
    fill: float = 0.0
    """The encoded value that replaces a missing one."""
    categories: tuple[str, ...] = ()
    other: bool = False
    """Training had more categories than there are columns for them."""
    phases: tuple[str, ...] = ()
    """The cycles of a date that vary in training."""
    linear: float = LINEAR
    """Where the squashing begins."""
    rule: Rule | None = None
    """How the column was made of text; None where it was read as it is."""
    spikes: tuple[float, ...] = ()
    """Numbers that have an indicator each, in ascending order."""
    levels: tuple[str, ...] = ()
    """Of more categories than have a column: those whose effects on the target are known (`effects.py`)."""
    effects: tuple[tuple[float, ...], ...] = ()
    """An output column each, with a number for each level; the last says how well the others are known."""

    @property
    def is_left_out(self) -> bool:
        """The column is not even read."""
        return self.rule is not None and self.rule.form == NOTHING

    @property
    def width(self) -> int:
        return len(self.names(""))

    @property
    def first_effect(self) -> int:
        """The place of the first effect among the output columns."""
        return self.width - len(self.effects) - self.missing

    @property
    def are_flags(self) -> list[bool]:
        """Which of the output columns hold 0 and 1: categories, frequent numbers and gaps."""
        if self.kind == "categorical":
            return [True] * self.first_effect + [False] * len(self.effects) + [True] * self.missing
        others = self.varies + 2 * len(self.phases)
        return [False] * others + [True] * (self.width - others)

    @cached_property
    def slots(self) -> dict[str, int]:
        """Level -> its place among the levels."""
        return {name: slot for slot, name in enumerate(self.levels)}

    @cached_property
    def table(self) -> Array:
        """[levels, effects]"""
        return np.array(self.effects).T

    def names(self, column: str) -> list[str]:
        """The output columns, in order."""
        if self.kind == "categorical":
            names = [f"{column}={name}" for name in self.categories] * self.varies + [f"{column} (other)"] * self.other
            several = len(self.effects) > 2
            names += [f"{column} (effect{f' {k + 1}' if several else ''})" for k in range(len(self.effects) - 1)]
            names += [f"{column} (known)"] * bool(self.effects)
        else:
            names = [f"{column} (year)" if self.kind == "datetime" else column] * self.varies
            names += [f"{column} ({phase}, {wave})" for phase in self.phases for wave in ("sin", "cos")]
            names += [f"{column}={value:.12g}" for value in self.spikes]
        return names + [f"{column} (missing)"] * self.missing


def squash(z: Array, linear: float = LINEAR) -> Array:
    """z where |z| <= a = `linear`, then sign(z) (a + log(1 + |z| - a)): monotone, smooth, slow to grow; NaN stays."""
    size = np.minimum(np.abs(z), FLAT)
    far = size > linear
    if far.any():
        size[far] = linear + np.log1p(size[far] - linear)
    return np.copysign(size, z)


def unsquash(z: Array, linear: float = LINEAR) -> Array:
    """Its inverse."""
    size = np.abs(z)
    return np.copysign(np.where(size > linear, linear + np.expm1(np.maximum(size - linear, 0.0)), size), z)


# --- training


def fit_encoding(
    column: Column,
    weight: Array | None,
    scaling: str = STANDARD,
    missing: bool | None = None,
    ends: tuple[float, float] | None = None,
    spikes_above: float = math.inf,
) -> Encoding:
    """Of a column that has values, from rows of positive weight.

    Where these are a sample of more rows, `missing` says whether a value is missing in any of them, and `ends` are the
    smallest and the largest of all values. With values in more rows than `spikes_above` some numbers may have an
    indicator of their own: of few rows they would be learnt by heart.
    """
    present = ~column.missing
    values = column.values[present]
    missing = not present.all() if missing is None else missing
    distinct, mass = masses(values, None if weight is None else weight[present])
    if column.kind == "categorical":
        counts = sorted((-count, column.categories[position]) for position, count in zip(distinct, mass, strict=True))
        kept, other = tuple(name for _, name in counts[:MAX_CATEGORIES]), len(counts) > MAX_CATEGORIES
        return Encoding("categorical", missing, missing or len(counts) > 1, categories=kept, other=other)
    low, high = ends or (float(distinct[0]), float(distinct[-1]))
    rounding = 4 * float(np.finfo(np.float64).eps) * max(abs(low), abs(high))
    varies = high / 2 - low / 2 > rounding  # halved: no overflow
    if column.kind == "boolean":
        return Encoding("boolean", missing, varies, 0.5, 0.5, 2 * quantile(distinct, mass, 0.5) - 1)
    if column.kind == "datetime":
        center, scale = median_and_scale(distinct, mass)
        scale = _usable(scale or mean_and_std(distinct, mass)[1])
        phases = tuple(phase for phase, steps in _steps(distinct).items() if steps.min() != steps.max())
        return Encoding("datetime", missing, varies, center, scale, phases=phases, linear=LINEAR_DATES)
    if scaling == MIN_MAX:
        return Encoding(column.kind, missing, varies, low / 2 + high / 2, high / 2 - low / 2 if varies else 1.0)
    bottom, top = _ordinary_range(distinct, mass)
    ordinary = (distinct >= bottom) & (distinct <= top)
    mean, std = mean_and_std(distinct[ordinary], mass[ordinary])
    # Rounding can lead out of the range, and to infinity.
    center = min(max(mean, low), high) + 0.0
    spikes = _spikes(distinct, mass, spikes_above) if varies and column.kind == "numeric" else ()
    return Encoding(column.kind, missing, varies, center, _usable(std), spikes=spikes)


def _spikes(distinct: Array, mass: Array, above: float) -> tuple[float, ...]:
    """The frequent values of a column that is mostly one value, often 0, and has many others.

    These lie close together on a scale that has the one value in it, or one of them is far away; and single ones, a cap
    or the rate of a tariff, may say more about a class than their place on the scale.
    """
    total = float(mass.sum())
    if total <= above or mass.max() <= 0.5 * total or len(distinct) <= MAX_SPIKES:
        return ()
    enough = np.flatnonzero(mass >= max(_SPIKE_ROWS, _SPIKE_SHARE * total))
    kept = enough[np.argsort(-mass[enough], kind="stable")][:MAX_SPIKES]
    return tuple(np.sort(distinct[kept]).tolist())


def no_values(label: str) -> InputError:
    return InputError(f"X: {label} has no values at all (in rows of positive weight); drop it or fill it in")


def _usable(scale: float) -> float:
    limits = np.finfo(np.float64)
    return min(max(scale or 1.0, float(limits.tiny)), float(limits.max))


def _ordinary_range(distinct: Array, mass: Array) -> tuple[float, float]:
    """The range of values that enter the mean and the standard deviation: the median plus or minus 1000 scales.

    Some columns hold a 1e30, or -999999 for a missing value: left in, it would make all other values look the same.
    If the quartiles coincide, the scale is the median distance of the values that differ from the median.
    """
    center, scale = median_and_scale(distinct, mass)
    if scale == 0.0:
        with np.errstate(over="ignore"):
            distance = np.abs(distinct - center)
        away = np.flatnonzero(distance)
        if len(away) == 0:
            return -math.inf, math.inf
        away = away[np.argsort(distance[away], kind="stable")]
        scale = quantile(distance[away], mass[away], 0.5)
    return center - FAR_OUT * scale, center + FAR_OUT * scale


def _steps(seconds: Array) -> dict[str, Array]:
    """The position of each moment in each cycle, as integers; looked up in a table of waves."""
    day = np.floor_divide(seconds, 86400).astype(np.int64)
    dates = day.astype("datetime64[D]")
    minute = np.floor_divide(seconds - day * 86400.0, 60).astype(np.int64)
    return {
        "day of year": (dates - dates.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64),
        "day of week": (day + 3) % 7,  # 1970 began on a Thursday; Monday is 0
        "hour": np.minimum(minute, 1439),  # a picosecond before midnight rounds to midnight
    }


# --- use


def encode(encoding: Encoding, column: Column, out: Array) -> None:
    """Write the column into `out` [n, len(encoding.names())], which holds zeros."""
    missing = column.missing
    if encoding.missing:
        out[missing, -1] = 1.0
    if encoding.kind == "categorical":
        if encoding.varies:
            _encode_categories(encoding, column, out)
        return
    if encoding.varies:
        with np.errstate(over="ignore"):  # values 1e300 away overflow to inf, which squash accepts
            z = squash((column.values - encoding.center) / encoding.scale, encoding.linear)
        z[missing] = encoding.fill
        out[:, 0] = z
    if encoding.phases:
        steps = _steps(np.where(missing, 0.0, column.values))
        for index, phase in enumerate(encoding.phases):
            count, turn = _CYCLES[phase]
            angles = 2 * np.pi * np.arange(count) / turn
            waves = np.stack([np.sin(angles), np.cos(angles)], axis=1)[steps[phase]]
            waves[missing] = 0.0  # no phase at all rather than a wrong one
            out[:, int(encoding.varies) + 2 * index : int(encoding.varies) + 2 * index + 2] = waves
    if encoding.spikes:
        known = np.array(encoding.spikes)
        slot = np.minimum(np.searchsorted(known, column.values), len(known) - 1)
        rows = np.flatnonzero(known[slot] == column.values)  # a missing value is none of them
        out[rows, 1 + slot[rows]] = 1.0


def _encode_categories(encoding: Encoding, column: Column, out: Array) -> None:
    """One-hot; a category that training did not see goes to "other" if there is one, and is all zeros otherwise."""
    slots = {name: slot for slot, name in enumerate(encoding.categories)}
    unseen = len(slots) if encoding.other else -1
    lookup = np.array([*(slots.get(name, unseen) for name in column.categories), -1])  # missing, -1, takes the last
    slot = lookup[column.values]
    rows = np.flatnonzero(slot >= 0)
    out[rows, slot[rows]] = 1.0
    if encoding.effects:
        level = level_slots(encoding, column)
        rows, first = np.flatnonzero(level >= 0), encoding.first_effect
        out[rows, first : first + len(encoding.effects)] = encoding.table[level[rows]]


def level_slots(encoding: Encoding, column: Column) -> NDArray[np.int64]:
    """[n]: the place of each row's category among the levels; -1 where it is missing or not among them."""
    return np.array([*(encoding.slots.get(name, -1) for name in column.categories), -1])[column.values]


def check_kind(encoding: Encoding, column: Column) -> Column:
    """The column, read as in training, if it is of the kind that it had there or can pass for it."""
    if encoding.rule is not None:
        column = encoding.rule.column(column)
    was, now = encoding.kind, column.kind
    if (was, now) == ("categorical", MISSING):
        return Column(column.label, was, np.full(len(column.values), -1))
    if now in (was, MISSING) or (was, now) == ("numeric", "boolean"):
        return column
    if (was, now) == ("boolean", "numeric"):
        other = ~np.isin(column.values, (0.0, 1.0)) & ~column.missing
        if not other.any():
            return column
        column = Column(column.label, now, np.where(other, column.values, np.nan))
    if was == "categorical" and now in ("numeric", "boolean") and any(reads_as(now, c) for c in encoding.categories):
        return column.as_text()
    if (was, now) == ("numeric", "categorical") and not no_numbers(column).missing.all():
        column = no_numbers(column)
    raise InputError(
        f"X: {column.label} was {_WORDS[was][0]} when the model was fitted and is {_WORDS[now][0]} now, "
        f"{column.example()}; {_WORDS[was][1]}, or fit the model again"
    )


_WORDS = {
    "numeric": ("numeric", "correct that cell, or convert the column with pandas.to_numeric"),
    "boolean": ("boolean", "convert it to True and False"),
    "duration": ("a duration", "convert it with pandas.to_timedelta"),
    "datetime": ("a date", "convert it with pandas.to_datetime"),
    "categorical": ("text (categories)", "convert it to text with .astype(str)"),
}
"""What each kind is called in a message, and how to make a column one of it."""


def no_numbers(column: Column) -> Column:
    """Only those categories of a column that cannot be read as numbers: a single one makes a column text."""
    strange = np.array([*(not reads_as("numeric", name) for name in column.categories), False])[column.values]
    return Column(column.label, column.kind, np.where(strange, column.values, -1), column.categories)


def reads_as(kind: str, name: str) -> bool:
    """A category of training that a number, or a truth value, could have been."""
    if kind == "boolean":
        return name in ("True", "False")
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def decoded(encoding: Encoding, z: float) -> str:
    """The number, duration or date that `encode` makes z of, in words."""
    value = float(unsquash(np.array(z), encoding.linear)) * encoding.scale + encoding.center
    if encoding.kind == "datetime":
        first, last = (np.datetime64(f"{year}-01-01", "s").astype(float) for year in YEARS)
        return str(np.datetime64(math.floor(min(max(value, first), last)), "s"))
    return f"{value:.4g}" + " s" * (encoding.kind == "duration")
