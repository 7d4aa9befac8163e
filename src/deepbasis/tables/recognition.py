"""What the columns of a table are meant as: numbers, dates, durations or truth values written as text, and what says
nothing: identifiers, free text, constants, copies.

A column of text is read by a rule (`tables/cells.py`) if all of its cells are, but for gaps ("n/a") and a few odd ones:
2 % of them, one in twenty cells or more, or one and the same text in up to half of them. These are missing then. Whole
numbers without anything else stay the categories that somebody made of them (`astype(str)`, 00501), and so does a
column of two texts: two categories say as much. Each finding is one line, with the way to overrule it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from deepbasis.errors import InputError, counted
from deepbasis.tables.cells import (
    CATEGORY,
    CLOCK,
    DATE,
    GAPS,
    LENGTH,
    LONGEST_GAP,
    NOTHING,
    NUMBER,
    SPAN,
    TRUTH,
    Rule,
    possible_rules,
)
from deepbasis.tables.columns import Column
from deepbasis.tables.encoders import MAX_CATEGORIES
from deepbasis.tables.places import unknown_column

ODD_SHARE = 0.02
_FEW = 20  # cells of which one may be odd; and rows from which on nothing but different texts is an identifier
_TRIED = 200  # distinct cells that a form is tried on before all are
MANY_TEXTS = 1000
"""More texts than this, and more than half as many as rows, are identifiers or free text."""

_FORMS = (TRUTH, NUMBER, DATE, CLOCK, SPAN)
_DIGIT = re.compile(r"\d")
_CODE = re.compile(r"-?\d+(?:\.0*)?")
_IDENTIFIER = re.compile(
    r"(?:^|[_\s.-])(?:id|idx|index|uuid|guid|key|row[_ ]?(?:num|no|nr|number)?)$|[a-z]I[Dd]$|^Unnamed: 0$",
    re.IGNORECASE,
)
_WORDS = {
    "numeric": "numbers",
    "datetime": "dates",
    "duration": "durations in seconds",
    "boolean": "true and false",
}


@dataclass(frozen=True)
class Recognised:
    """A table's columns as they are meant."""

    columns: tuple[Column, ...]
    rules: tuple[Rule | None, ...]
    """How each was made of text; None where it was read as it is."""
    notes: tuple[str, ...]
    """What was taken for what, a line each."""

    def read(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Columns of other rows, as these are read."""
        return _by_rules(columns, self.rules)


def recognise(
    names: Sequence[str] | None,
    columns: Sequence[Column],
    meanings: Mapping[str, str] | None = None,
    decimal: str = "",
) -> Recognised:
    """`meanings` are those of `places.MEANINGS` that the user gave, by name, or by number where there are no names.

    `decimal` is the decimal separator where the file has told.
    """
    called = list(names) if names is not None else [str(position) for position in range(len(columns))]
    given = dict(meanings or {})
    for name in given:
        if name not in called and given[name] != "drop":  # of a file they are not even read
            raise unknown_column(name, called)
    rules: list[Rule | None] = []
    notes: list[str] = []
    for name, column in zip(called, columns, strict=True):
        rule, note = _told(column, given[name]) if name in given else _found(name, column, decimal)
        rules.append(rule)
        notes += [note] * bool(note)
    if not given and all(rule is not None and rule.form == NOTHING for rule in rules):
        raise InputError(f"X: {notes[0]}; there is no other column: keep it so, or give more")
    read = _by_rules(columns, rules)
    return Recognised(read, tuple(rules), (*notes, *_copies(called, read)))


def number_rule(column: Column, decimal: str = "", gaps: bool = True) -> Rule | None:
    """Of a column of text that holds nothing but numbers and, where these are allowed, gaps, as a target must."""
    trial = _best(column, _counted(column), (NUMBER,), decimal)
    if trial is None or not trial.is_good or trial.odd:
        return None
    return trial.rule if gaps or not trial.gaps or trial.rule != Rule(NUMBER) else None  # "unknown" is named then


# ---- one column ------------------------------------------------------------------------------------------------------


def _told(column: Column, meaning: str) -> tuple[Rule | None, str]:
    """The rule of a column whose meaning was given."""
    forms = {"category": CATEGORY, "text": LENGTH, "drop": NOTHING}
    if meaning in forms:
        return Rule(forms[meaning]), ""
    kinds = ("numeric", "boolean", "duration") if meaning == "number" else ("datetime",)
    if column.kind in kinds or column.missing.all():
        return None, ""
    text = column.as_text() if column.kind in ("numeric", "boolean") else column
    forms_of = (NUMBER, CLOCK, SPAN) if meaning == "number" else (DATE,)
    trial = _best(text, _counted(text), forms_of, least=0.0) if text.kind == "categorical" else None
    if trial is None:
        raise InputError(
            f"X: {column.label} was to be read as {meaning}, and has no cell that is one, {column.example()}; read it "
            "as something else, or drop it"
        )
    return trial.rule, trial.note("") if trial.odd else ""


def _found(name: str, column: Column, decimal: str) -> tuple[Rule | None, str]:
    """The rule of a column, if it has one, and what there is to say about it."""
    if column.kind == "numeric":
        return None, _row_number(name, column)
    if column.kind != "categorical" or column.missing.all():
        return None, ""
    used = _counted(column)
    is_code = all(_CODE.fullmatch(text.strip()) for text, _ in used)
    trial = None if is_code else _best(column, used, _FORMS, decimal)
    if trial is not None and trial.has_leading_zeros:
        is_code, trial = True, None
    if trial is not None and trial.is_good:
        return trial.rule, trial.note(f"columns={{{name!r}: 'category'}} keeps its texts as categories")
    if trial is not None and trial.odd and trial.share >= 0.5:
        return None, (
            f"{column.label} is read as categories: {100 * trial.share:.0f} % of its cells are "
            f"{_WORDS[trial.rule.kind]}, others such as {trial.example!r} are not; "
            f"columns={{{name!r}: '{trial.meaning}'}} makes those missing"
        )
    texts, rows = len(used), sum(count for _, count in used)
    if texts == rows >= _FEW or (texts > MANY_TEXTS and texts > rows / 2):
        what = "free text" if _is_prose(column) else "an identifier"
        instead = "'number' reads them as numbers" if is_code else "'text' keeps their length"
        return Rule(NOTHING), (
            f"{column.label} is left out: {texts:,} different texts in {rows:,} rows, {column.example()}, look like "
            f"{what}; columns={{{name!r}: 'category'}} keeps the most frequent ones, {instead}"
        )
    if not is_code and texts > MAX_CATEGORIES and sum(text[:1].isdigit() for text, _ in used) > texts / 2:
        return None, (
            f"{column.label} is read as categories: its {texts:,} texts begin with digits, {column.example()}, but are "
            "not written in one way; convert them if they are numbers or dates"
        )
    return None, ""


@dataclass(frozen=True)
class _Trial:
    """How a rule reads a column."""

    column: Column
    texts: Sequence[str]
    """Those of its cells, each once."""
    rule: Rule
    read: int
    odd: int
    gaps: int
    distinct: int
    """Numbers among what was read."""
    example: str
    """The first odd cell."""
    odd_texts: int
    doubtful: bool = False
    """Another order of day and month reads as much."""

    @property
    def share(self) -> float:
        return self.read / max(self.read + self.odd, 1)

    @property
    def meaning(self) -> str:
        return {"datetime": "date", "boolean": "category"}.get(self.rule.kind, "number")

    @property
    def is_good(self) -> bool:
        cells = self.read + self.odd
        few = self.odd <= max(ODD_SHARE * cells, cells >= _FEW) or (self.odd_texts == 1 and self.odd <= cells / 2)
        return few and (self.distinct > 2 or (self.rule.form == TRUTH and len(self.texts) > 2))

    @property
    def has_leading_zeros(self) -> bool:
        """00501 is a code, not a number."""
        plain = self.rule.form == NUMBER and not self.rule.unit and not self.rule.group
        cells = (cell.strip() for cell in self.texts)
        return plain and any(len(cell) > 1 and cell[0] == "0" and cell.isdigit() for cell in cells)

    def _without_unit(self) -> str:
        """The first cell that is a number alone, and not 0; "" if there is none. A spreadsheet has 12% and 0.12."""
        plain = replace(self.rule, unit="")
        return next((cell for cell in self.texts if not self.rule.is_gap(cell) and abs(plain.read(cell)) > 0), "")

    def note(self, overrule: str) -> str:
        cell = next(one for one in self.texts if not math.isnan(self.rule.read(one)))
        value = self.rule.read(cell)
        shown = f"{value:.12g}"
        if self.rule.kind == "datetime":
            shown = str(np.datetime64(math.floor(value), "s")).removesuffix("T00:00:00")
        elif self.rule.kind == "boolean":
            shown = str(bool(value)).lower()
        parts = [f"{self.column.label} is read as {_WORDS[self.rule.kind]}: {cell!r} is {shown}"]
        if self.rule.unit and (bare := self._without_unit()):
            parts.append(f"cells without that unit, such as {bare!r}, are taken for the same")
        if self.doubtful:
            parts.append("day and month may be the other way round, no cell tells")
        if self.odd:
            are = "is" if self.odd == 1 else "are"
            parts.append(f"{counted(self.odd, 'cell')} cannot be read, such as {self.example!r}, and {are} missing")
        return "; ".join([*parts, *([overrule] if overrule else [])])


def _counted(column: Column) -> list[tuple[str, int]]:
    """The texts of a column, and how many cells hold each."""
    codes = column.values
    counts = np.bincount(
        codes[codes >= 0], minlength=len(column.categories)
    )  # sorting them would take ten times as long
    return [(text, count) for text, count in zip(column.categories, counts.tolist(), strict=True) if count]


def _best(
    column: Column, used: Sequence[tuple[str, int]], forms: Sequence[str], decimal: str = "", least: float = 0.5
) -> _Trial | None:
    """The rule that reads most cells, if there is one that reads more than this share of the first distinct ones."""
    some = list(islice((text for text, _ in used if text.strip().casefold() not in GAPS), _TRIED))
    if sum(_DIGIT.search(text) is not None for text in some) <= least * len(some):
        forms = [form for form in forms if form == TRUTH]  # ordinary text: it takes no time
    rules = [
        rule
        for rule in sorted(possible_rules(some, forms), key=lambda rule: rule.decimal != (decimal or rule.decimal))
        if sum(not math.isnan(rule.read(text)) for text in some) > least * len(some)
    ]
    if not some or not rules:
        return None
    trials: list[_Trial] = []
    for rule in rules:
        if not trials or trials[-1].odd or rule.form == DATE:  # none reads more than all; of dates two may
            trials.append(_tried(column, rule, used))
    best = max(trials, key=lambda trial: trial.read)  # the first of several
    orders = {trial.rule.order for trial in trials if trial.read == best.read}
    if best.odd_texts == 1 and len(best.example) < LONGEST_GAP:
        best = replace(best, rule=replace(best.rule, gap=best.example.strip().casefold()))
    return replace(best, doubtful=best.rule.form == DATE and {"dmy", "mdy"} <= orders)


def _tried(column: Column, rule: Rule, used: Sequence[tuple[str, int]]) -> _Trial:
    read = gaps = 0
    values: set[float] = set()
    odd: list[tuple[str, int]] = []
    for text, count in used:
        if rule.is_gap(text):
            gaps += count
        elif math.isnan(value := rule.read(text)):
            odd.append((text, count))
        else:
            values.add(value)
            read += count
    odd_cells, example = sum(count for _, count in odd), odd[0][0] if odd else ""
    return _Trial(column, [text for text, _ in used], rule, read, odd_cells, gaps, len(values), example, len(odd))


def _is_prose(column: Column) -> bool:
    some = column.categories[:_TRIED]
    return sum(len(text.split()) for text in some) >= 4 * len(some)


def _row_number(name: str, column: Column) -> str:
    """Of a column of whole numbers, all different, with the name of an identifier."""
    values = column.values
    if not _IDENTIFIER.search(name) or len(values) < _FEW or len(np.unique(values)) < len(values):
        return ""
    if np.isnan(values).any() or (values != np.floor(values)).any():
        return ""
    return (
        f"{column.label} has another whole number in every row, and is read as numbers; if it only names the rows, "
        f"columns={{{name!r}: 'drop'}} leaves it out"
    )


# ---- all columns -----------------------------------------------------------------------------------------------------


def _by_rules(columns: Sequence[Column], rules: Sequence[Rule | None]) -> tuple[Column, ...]:
    return tuple(column if rule is None else rule.column(column) for column, rule in zip(columns, rules, strict=True))


def constants(columns: Sequence[Column], kept: Sequence[bool]) -> list[str]:
    """A line for each column that has one value; `kept` are those that say anything."""
    found = [column for column, keep in zip(columns, kept, strict=True) if not keep and not column.missing.all()]
    return [f"{column.label} is left out: it has one value alone, {column.example()}" for column in found]


def _copies(called: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """A line for each column that holds what another one holds."""
    first: dict[bytes, list[int]] = {}
    notes = []
    for k, column in enumerate(columns):
        step = max(1, len(column.values) // 64)
        sample = np.ascontiguousarray(column.values[::step]).tobytes()
        twin = next((j for j in first.get(sample, []) if _same(columns[j], column)), None)
        if twin is None:
            first.setdefault(sample, []).append(k)
        elif not column.missing.all():
            notes.append(
                f"{column.label} holds what {columns[twin].label} holds; "
                f"columns={{{called[k]!r}: 'drop'}} leaves it out"
            )
    return notes


def _same(one: Column, other: Column) -> bool:
    if one.kind != other.kind or one.categories != other.categories:
        return False
    return bool(np.array_equal(one.values, other.values, equal_nan=one.kind != "categorical"))
