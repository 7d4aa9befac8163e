"""`Diagnosis`: the health of a fit, in numbers and in words: its intervals, its rivals, its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.errors import InputError, check_number, check_positive_int, counted, per_cent
from deepbasis.fitting.held_out import mean_and_error
from deepbasis.fitting.start import straight_line
from deepbasis.gp import metrics
from deepbasis.gp.counts import Counts
from deepbasis.gp.likelihoods import NOISE_FLOOR
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.predictive import Gaussian, Predictive
from deepbasis.tables.encoders import Encoding
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.scaler import TargetScaler

LEVELS = (0.5, 0.8, 0.95)
_TENTHS = 10
_MOST_FINDINGS = 100
_MOST_ROWS = 5_000  # of the table, for its columns
_TRIED_ROWS, _TRIED_COLUMNS = 500, 64  # held out, with one column shuffled at a time
_FEWEST_ROWS = 20  # that say anything about a column
_SAME = 1.0 - 1e-9  # a correlation
_ROWS_A_COLUMN = 10  # fewer are few
_NOTHING = 0.02  # standard deviations that a mean moves by
_NAMED = 10  # columns in a sentence
_LEAST = 1e-300  # of a score that others are compared with


@dataclass(frozen=True)
class Diagnosis:
    rows: int
    """Held out: what is said of predictions is about them."""
    coverage: tuple[float, ...]
    """Share of targets in the central intervals of 50, 80 and 95 %."""
    pit: tuple[float, ...]
    """Share of targets in each tenth of their predicted distributions: a tenth of them, if these are right."""
    crps: float
    crps_constant: float
    crps_line: float
    """Of the model, of one constant Gaussian, and of a straight line with constant noise; in units of the training."""
    findings: tuple[str, ...]
    """What deserves attention, a sentence each."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        first, *others = zip(LEVELS, self.coverage, strict=True)
        inside = f"intervals of {per_cent(first[0])} hold {per_cent(first[1])} of the targets"
        more = (f"those of {per_cent(level)} hold {per_cent(share)}" for level, share in others)
        yield f"{counted(self.rows, 'row')} held out: {', '.join([inside, *more])}"
        tenths = ", ".join(per_cent(share) for share in self.pit)
        yield f"targets in each tenth of their predicted distributions, the lowest first: {tenths} (10 % each is right)"
        constant, line = (_beside_that(self.crps, other) for other in (self.crps_constant, self.crps_line))
        yield f"CRPS: {constant} of a constant, {line} of a straight line"
        yield from self.findings

    @classmethod
    def from_state(cls, found: Any) -> Diagnosis | None:
        """What `asdict` gave, as JSON has it; None stays None. Anything else is a `ValueError`."""
        if found is None:
            return None
        if not isinstance(found, Mapping) or found.keys() != {one.name for one in fields(cls)}:
            raise ValueError("its diagnosis has other parts")
        lists = {name: found[name] for name in ("coverage", "pit", "findings")}
        lengths = {"coverage": len(LEVELS), "pit": _TENTHS}
        if not all(
            isinstance(v, list) and len(v) == lengths.get(k, len(v)) <= _MOST_FINDINGS for k, v in lists.items()
        ):
            raise ValueError("its diagnosis has too many numbers or sentences, or too few")
        if not all(type(text) is str for text in lists["findings"]):
            raise ValueError("a finding is not a text")
        shares = {k: tuple(check_number(k, one, at_least=0.0) for one in lists[k]) for k in lengths}
        if max(max(some) for some in shares.values()) > 1.0 + 1e-9:
            raise ValueError("a share of its diagnosis is above 1")
        scores = {k: check_number(k, found[k], above=0.0) for k in ("crps", "crps_constant", "crps_line")}
        rows = check_positive_int("rows", found["rows"])
        return cls(rows=rows, findings=tuple(lists["findings"]), **shares, **scores)  # type: ignore[arg-type]


def _beside_that(crps: float, other: float) -> str:
    ratio = crps / other
    if ratio >= 2.0:
        return f"{ratio:,.2g} times that" if ratio < 10.0 else f"{ratio:,.0f} times that"
    if abs(ratio - 1.0) < 0.005:
        return "level with that"
    return f"{per_cent(abs(ratio - 1.0))} {'below' if ratio < 1.0 else 'above'} that"


def existing(found: Diagnosis | None) -> Diagnosis:
    if found is None:
        raise InputError("diagnose is for one number: not for rates, censored targets or several outputs")
    return found


def diagnose(
    predicted: Predictive,
    held_out: Rows,
    known: Rows,
    predict: Callable[[Tensor], Predictive],
    target: TargetScaler,
    preprocessor: Preprocessor,
) -> Diagnosis | None:
    """From rows that were held out, as they were `predicted`, and rows that the model was fitted to.

    Classes, rates, censored targets and several outputs have none.
    `predict` is the model, in the units that it was trained in, as all of these are.
    """
    if target.classes or held_out.y.dim() > 1 or isinstance(predicted, Counts):
        return None
    weight = None if held_out.weight is None else held_out.weight.double()
    y = target.inverse(held_out.y.double())
    ours, *rivals = (target.distribution(one.double()) for one in (predicted, *_rivals(known, held_out.x)))
    losses = [one.crps(y) for one in (ours, *rivals)]
    crps, crps_constant, crps_line = (max(float(weighted_mean(loss, weight)), _LEAST) for loss in losses)
    between = torch.arange(1, _TENTHS, dtype=torch.float64) / _TENTHS
    up_to = [0.0, *metrics.pit_shares(*metrics.pit(ours, y), between, weight).tolist(), 1.0]
    coverage = [float(metrics.coverage(ours, y, level, weight)) for level in LEVELS]
    findings = [*_beside(losses, weight), *_held(coverage[-1], len(y)), *_columns(known, preprocessor)]
    findings += _silent(lambda x: target.distribution(predict(x).double()), held_out, y, preprocessor)
    return Diagnosis(
        rows=len(y),
        coverage=tuple(coverage),
        pit=tuple(max(0.0, high - low) for low, high in pairwise(up_to)),
        crps=crps,
        crps_constant=crps_constant,
        crps_line=crps_line,
        findings=tuple(findings[:_MOST_FINDINGS]),
    )


def _rivals(known: Rows, x: Tensor) -> list[Gaussian]:
    """A constant Gaussian and a straight line, for rows x."""
    line = straight_line(known)
    weight = torch.ones_like(known.y) if known.weight is None else known.weight
    shares = (weight / weight.sum()).double()
    mean = shares @ known.y.double()
    on_line = mean + (x.double() - shares @ known.x.double()) @ torch.tensor(line.slope, dtype=torch.float64)
    left = line.variance * min(line.share_left, 1.0)
    pairs = ((mean.expand_as(on_line), line.variance), (on_line, left))
    return [Gaussian(m, torch.full_like(m, max(variance, NOISE_FLOOR))) for m, variance in pairs]


def _beside(losses: Sequence[Tensor], weight: Tensor | None) -> Iterator[str]:
    """Whether a constant or a line is as good, as far as these rows can tell."""
    if len(losses[0]) < _FEWEST_ROWS:
        were = "was" if len(losses[0]) == 1 else "were"
        yield f"only {counted(len(losses[0]), 'row')} {were} held out, which says little about the predictions"
        return
    gain, error = mean_and_error(losses[1] - losses[0], weight)
    if gain <= 2.0 * error:
        yield "no better than a constant: the columns may say nothing about the target"
        return
    gain, error = mean_and_error(losses[2] - losses[0], weight)
    if gain < -2.0 * error:
        yield "worse than a straight line: try trend='linear', or more rows"
    elif gain <= 2.0 * error:
        yield "no better than a straight line"


def _held(share: float, rows: int) -> Iterator[str]:
    error = math.sqrt(LEVELS[-1] * (1.0 - LEVELS[-1]) / rows)
    if abs(share - LEVELS[-1]) > 3.0 * error + 0.01:
        side = "narrow" if share < LEVELS[-1] else "wide"
        yield f"the intervals are too {side}: those of {per_cent(LEVELS[-1])} hold {per_cent(share)} of the targets"


def _columns(known: Rows, preprocessor: Preprocessor) -> Iterator[str]:
    """What the columns look like, whatever the model makes of them."""
    rows, width = len(known), preprocessor.width
    if rows < _ROWS_A_COLUMN * width:
        yield f"few rows for so many columns: {rows:,} for {width:,} (encoded); drop columns that cannot matter"
    x, y = (values[:: -(-rows // _MOST_ROWS)].double() for values in (known.x, known.y))
    if len(x) < _FEWEST_ROWS:
        return
    order = y.unique(return_inverse=True)[1].double()
    numbers: dict[str, Tensor] = {}
    for name, encoding, column in _slices(preprocessor):
        if encoding.kind != "numeric" or not encoding.varies:
            continue
        z = x[:, column.start]
        distinct, rank = z.unique(return_inverse=True)
        if len(distinct) < 2:
            continue
        if abs(_correlation(rank.double(), order)) > _SAME:
            yield f"'{name}' is the target, or an increasing or decreasing function of it: a leak? drop it"
        value = distinct * encoding.scale + encoding.center
        whole = bool(((value - value.round()).abs() <= 1e-6 * (1.0 + value.abs())).all())
        if whole and len(distinct) == len(z) and float(value[-1] - value[0]) < 1.5 * rows:
            yield f"'{name}' looks like an identifier or a row number: drop it"
        copy = next((other for other, seen in numbers.items() if abs(_correlation(z, seen)) > _SAME), None)
        if copy is not None:
            yield f"'{name}' says the same as '{copy}': drop one of them"
        elif len(numbers) < _TRIED_COLUMNS:
            numbers[name] = z


def _silent(
    predict: Callable[[Tensor], Predictive], held_out: Rows, y: Tensor, preprocessor: Preprocessor
) -> Iterator[str]:
    """Columns without which nothing changes: their values are shuffled between rows that were held out."""
    rows = slice(None, None, -(-len(y) // _TRIED_ROWS))
    x, y = held_out.x[rows], y[rows]
    columns = [(name, column) for name, encoding, column in _slices(preprocessor) if encoding.width]
    if len(x) < _FEWEST_ROWS or not 1 < len(columns) <= _TRIED_COLUMNS:
        return
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    plain, silent = predict(x), []
    for name, column in columns:
        changed = x.clone()
        changed[:, column] = x[order][:, column]
        other = predict(changed)
        rise, error = mean_and_error(other.crps(y) - plain.crps(y), None)
        moved = float((other.mean - plain.mean).abs().mean() / plain.std.mean())
        if rise <= 2.0 * error and moved < _NOTHING:
            silent.append(f"'{name}'")
    if silent:
        more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
        yield f"the predictions hardly depend on {', '.join(silent[:_NAMED])}{more}"


def _slices(preprocessor: Preprocessor) -> Iterator[tuple[str, Encoding, slice]]:
    start = 0
    for name, encoding in zip(preprocessor.names, preprocessor.encodings, strict=True):
        yield name, encoding, slice(start, start + encoding.width)
        start += encoding.width


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))
