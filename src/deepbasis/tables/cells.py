"""Text of cells as numbers: `$7,182`, `3.547,80`, `71.0 %`, `31/12/2020`, `Jun 10, 2021`, `2h 30m`, `yes`.

A `Rule` says how every cell of a column is read: one rule for all of them, which a model remembers. A cell that it
cannot read is missing. `tables/recognition.py` finds the rule of a column.
"""

from __future__ import annotations

import datetime
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from deepbasis.errors import TableWarning
from deepbasis.tables.columns import MISSING, YEARS, Column

GAPS = frozenset(
    ["", "?", "-", "--", ".", "*", "na", "n/a", "#n/a", "nan", "nil", "none", "null", "missing", "unknown"]
)
"""What a cell without a value may say, in a column that a rule reads."""

LONGEST_GAP = LONGEST_CELL = 100
"""Characters: a longer text is no number, and no word for a gap."""

CATEGORY, NOTHING, LENGTH = "category", "nothing", "length"
NUMBER, DATE, CLOCK, SPAN, TRUTH = "number", "date", "clock", "span", "truth"
KIND_OF = {
    NUMBER: "numeric",
    LENGTH: "numeric",
    DATE: "datetime",
    CLOCK: "duration",
    SPAN: "duration",
    TRUTH: "boolean",
    CATEGORY: "categorical",
    NOTHING: "categorical",
}
"""What each form of cells becomes. `NOTHING` is a column that is left out, `LENGTH` the characters of free text."""

DECIMALS, GROUPS = (".", ","), ("", ",", ".", "'", " ")
_PAIRS = [(".", ""), (".", ","), (",", ""), (",", "."), (".", "'"), (".", " "), (",", " "), (",", "'")]
"""Decimal and thousands separators: where cells allow several, the first is meant, so that 1,234 is 1234."""


@dataclass(frozen=True)
class Rule:
    """How the cells of a column are read."""

    form: str
    """One of `KIND_OF`."""
    decimal: str = "."
    group: str = ""
    """Between thousands."""
    unit: str = ""
    """What stands beside the numbers: $, %, kg. A cell may have none, but no other."""
    order: str = ""
    """Of a date, one of `DATES`; of 1:30, "h:m" or "m:s"."""
    gap: str = ""
    """One more text that says that there is no value, beside `GAPS`."""

    @property
    def kind(self) -> str:
        return KIND_OF[self.form]

    def check(self) -> None:
        """A `ValueError` for what no rule of ours is: it may come from a file."""
        texts = (self.form, self.decimal, self.group, self.unit, self.order, self.gap)
        if not all(type(text) is str and len(text) <= LONGEST_GAP for text in texts):
            raise ValueError("a rule for cells must be of short texts")
        orders = {DATE: tuple(DATES), CLOCK: ("h:m", "m:s")}.get(self.form, ("",))
        if self.form not in KIND_OF or self.order not in orders:
            raise ValueError(f"unknown rule for cells {self.form!r} {self.order!r}")
        if self.decimal not in DECIMALS or self.group not in GROUPS or self.decimal == self.group:
            raise ValueError("separators of numbers")

    def read(self, cell: str) -> float:
        """NaN for a cell that cannot be read."""
        if len(cell) > LONGEST_CELL and self.form != LENGTH:
            return math.nan
        return _READERS[self.form](self, cell.strip())

    def is_gap(self, cell: str) -> bool:
        word = cell.strip().casefold()
        return word in GAPS or (self.gap != "" and word == self.gap)

    def column(self, column: Column) -> Column:
        """As this rule reads it. A column that has the rule's kind already, or no text at all, stays as it is."""
        if self.form == NOTHING:
            return Column(column.label, "categorical", np.full(len(column.values), -1))
        if column.kind in (self.kind, MISSING):
            return column
        if column.kind != "categorical":
            if column.kind not in ("numeric", "boolean") or self.form not in (CATEGORY, DATE):
                return column
            column = column.as_text()
        if self.form == CATEGORY:
            return column
        values = np.array([*(math.nan if self.is_gap(c) else self.read(c) for c in column.categories), math.nan])
        return Column(column.label, self.kind, values[column.values])

    def odd_cells(self, column: Column) -> tuple[int, str]:
        """How many cells of a column of text are neither read nor a gap, and the first of them."""
        if column.kind != "categorical" or self.kind == "categorical":
            return 0, ""
        odd = np.array([*(not self.is_gap(c) and math.isnan(self.read(c)) for c in column.categories), False])
        rows = np.flatnonzero(odd[column.values])
        return len(rows), column.categories[int(column.values[rows[0]])] if len(rows) else ""


# ---- numbers ---------------------------------------------------------------------------------------------------------

_CODES = "USD|EUR|GBP|CHF|JPY|INR|CNY|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR"
_CURRENCY = rf"(?:[A-Z]{{0,3}}[$€£¥₹₽₩₺₫฿]|{_CODES}|Rs\.?|kr\.?)"
_CELL = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[-+−])?\s*(?P<before>{_CURRENCY})?\s*(?P<inner>[-+−])?"
    r"(?P<body>\d+(?:[.,'’ \u00a0\u202f\u2009]\d+)*\.?|[.,]\d+)(?P<power>[eE][-+−]?\d{1,3})?"
    r"\s*(?P<after>%|‰|\+|°[CF]?|[$€£¥₹₽₩₺₫฿]|[^\W\d_][^\d,;:()]{0,20}[23]?)?\s*(?P<close>\))?"
)
_MAGNITUDES = {"k": 1e3, "K": 1e3, "M": 1e6, "Mio": 1e6, "mn": 1e6, "B": 1e9, "bn": 1e9, "Mrd": 1e9}


@cache
def _whole_and_fraction(decimal: str, group: str) -> re.Pattern[str]:
    between = {"'": "['’]", " ": "[ \u00a0\u202f\u2009]"}.get(group, re.escape(group))
    grouped = rf"[1-9]\d{{0,2}}(?:{between}\d{{3}})+|" if group else ""
    grouped += r"[1-9]\d?(?:,\d\d)+,\d{3}|" if group == "," else ""  # lakhs and crores: 12,34,567
    return re.compile(rf"({grouped}\d*)({re.escape(decimal)}\d*)?")


def _parts(cell: str) -> tuple[re.Match[str], str, float] | None:
    """A number's match, its unit, and what the unit multiplies it by."""
    found = _CELL.fullmatch(cell)
    if found is None or bool(found["open"]) != bool(found["close"]):
        return None
    after = (found["after"] or "").strip()
    times = _MAGNITUDES.get(after, 1.0)
    unit = "" if after in _MAGNITUDES else after.lower().rstrip("s.")
    return found, (found["before"] or "") + unit, times


def _read_number(rule: Rule, cell: str) -> float:
    parts = _parts(cell)
    if parts is None or parts[1] not in ("", rule.unit):
        return math.nan
    found, _, times = parts
    body = _whole_and_fraction(rule.decimal, rule.group).fullmatch(found["body"])
    if body is None:
        return math.nan
    digits = re.sub(r"\D", "", body[1]) + (body[2] or "").replace(rule.decimal, ".")
    signs = [found["sign"], found["inner"], "-" if found["open"] else ""]
    negative = sum(sign in ("-", "−") for sign in signs if sign) % 2
    number = float(digits + (found["power"] or "").replace("−", "-")) * times
    return (-number if negative else number) if math.isfinite(number) else math.nan


def _number_rules(cells: Sequence[str]) -> Iterator[Rule]:
    """With the unit that most of the cells with a unit have, if it is in a tenth of all."""
    units = Counter(parts[1] for cell in cells if (parts := _parts(cell)) and parts[1])
    unit, count = units.most_common(1)[0] if units else ("", 0)
    unit = unit if 10 * count > len(cells) else ""  # 12O among a hundred numbers is a slip
    for decimal, group in _PAIRS:
        yield Rule(NUMBER, decimal, group, unit)


# ---- dates -----------------------------------------------------------------------------------------------------------

_D, _M, _Y, _B = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})", r"(?P<y>\d{4}|\d\d)", r"(?P<b>[^\W\d_]{3,10})\.?"
_DAY = rf"{_D}(?:st|nd|rd|th|\.)?"
_ORDERS = {
    "ymd": rf"(?P<y>\d{{4}})([-/. ]){_M}\2{_D}",
    "mdy": rf"{_M}([-/. ]){_D}\2{_Y}",
    "dmy": rf"{_D}([-/. ]){_M}\2{_Y}",
    "dby": rf"{_DAY}[-/. ]*(?:of )?{_B}[-/., ]*{_Y}",
    "bdy": rf"{_B}[-/. ]*{_DAY},?[-/. ]+(?P<y>\d{{4}})",
    "by": rf"{_B}[-/., ]+(?P<y>\d{{4}})",
    "ym": rf"(?P<y>\d{{4}})[-/]{_M}",
    "my": rf"{_M}[-/](?P<y>\d{{4}})",
    "yq": r"(?P<y>\d{4})[- /]?[Qq](?P<q>[1-4])",
    "digits": r"(?P<y>\d{4})(?P<m>\d\d)(?P<d>\d\d)",
}
_TIME = (
    r"(?:[T ,]+(?P<H>\d{1,2}):(?P<M>\d\d)(?::(?P<S>\d\d(?:[.,]\d+)?))?\s*(?P<p>[AaPp]\.?[Mm]\.?)?"
    r"\s*(?P<z>Z|UTC|GMT|[-+]\d\d:?\d\d)?)?"
)
DATES = {name: re.compile(rf"(?:[^\W\d_]{{2,9}}\.?,? +)??{order}{_TIME}") for name, order in _ORDERS.items()}
"""The orders of day, month and year, with a weekday before and a time behind them where there are any."""

_MONTH_NAMES = (
    *("jan ene gen", "feb fev fév", "mar mär mrz", "apr avr abr", "may mai mag", "jun juin giu", "jul juil lug"),
    *("aug aou aoû ago", "sep set", "oct okt ott", "nov", "dec dez déc dic"),
)
_MONTHS = {name: month for month, names in enumerate(_MONTH_NAMES, 1) for name in names.split()}


def _read_date(rule: Rule, cell: str) -> float:
    found = DATES[rule.order].fullmatch(cell)
    if found is None:
        return math.nan
    part = found.groupdict()
    word = (part.get("b") or "").casefold()
    month = _MONTHS.get(word[:4], _MONTHS.get(word[:3], 0)) if word else int(part.get("m") or 1)
    month = 3 * int(part["q"]) - 2 if part.get("q") else month
    year = int(part["y"])
    if len(part["y"]) == 2:
        year += 1900 if year > 68 else 2000  # as POSIX has it
    hour, half = int(part["H"] or 0), (part["p"] or " ")[0].lower()
    if half != " ":
        if not 1 <= hour <= 12:
            return math.nan
        hour = hour % 12 + 12 * (half == "p")
    try:
        day = datetime.date(year, month, int(part.get("d") or 1))
    except ValueError:
        return math.nan
    minute, second = int(part["M"] or 0), float((part["S"] or "0").replace(",", "."))
    if not (YEARS[0] <= year <= YEARS[1] and hour < 24 and minute < 60 and second < 61):
        return math.nan
    days = day.toordinal() - datetime.date(1970, 1, 1).toordinal()
    return 86400.0 * days + 3600 * hour + 60 * minute + second - _offset(part["z"])


def _offset(zone: str | None) -> int:
    """Seconds east of Greenwich: +02:00 is 7200."""
    if not zone or zone[0] not in "+-":
        return 0
    return (-1 if zone[0] == "-" else 1) * (3600 * int(zone[1:3]) + 60 * int(zone[-2:]))


# ---- durations, truth ------------------------------------------------------------------------------------------------

_CLOCK = re.compile(r"(-)?(\d+):([0-5]\d)(?::([0-5]\d(?:[.,]\d+)?))?\s*([AaPp])?(?:\.?[Mm]\.?)?")
_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_UNIT = r"(ms|w(?:ee)?ks?|w|d(?:ays?)?|h(?:(?:ou)?rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)"
_PIECE = re.compile(rf"(\d+(?:[.,]\d+)?)\s*{_UNIT}(?![^\W\d_])\.?[\s,]*(?:and\s+)?", re.IGNORECASE)
_ISO_SPAN = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def _read_clock(rule: Rule, cell: str) -> float:
    found = _CLOCK.fullmatch(cell)
    if found is None:
        return math.nan
    minus, first, second, third, half = found.groups()
    hour = int(first)
    if half:
        hour = hour % 12 + 12 * (half.lower() == "p")
    seconds = 60.0 * hour + int(second)
    if third is not None or rule.order == "h:m":
        seconds = 60 * seconds + float((third or "0").replace(",", "."))
    return -seconds if minus else seconds


def _read_span(rule: Rule, cell: str) -> float:
    iso = _ISO_SPAN.fullmatch(cell)
    if iso is not None and any(iso.groups()):
        return sum(float(n or 0) * size for n, size in zip(iso.groups(), (86400, 3600, 60, 1), strict=True))
    rest, seconds = cell.removeprefix("-"), 0.0
    pieces = 0
    while found := _PIECE.match(rest):
        number, unit = found.groups()
        unit = unit.lower()
        seconds += float(number.replace(",", ".")) * _SECONDS["ms" if unit == "ms" else unit[0]]
        rest, pieces = rest[found.end() :], pieces + 1
    if rest:
        seconds += _read_clock(Rule(CLOCK, order="h:m"), rest)
    return math.nan if not pieces else -seconds if cell.startswith("-") else seconds


_YES = frozenset(["yes", "y", "true", "t", "on", "ja", "oui", "si", "sí", "1", "1.0"])
_NO = frozenset(["no", "n", "false", "f", "off", "nein", "non", "0", "0.0"])


def _read_truth(rule: Rule, cell: str) -> float:
    word = cell.casefold()
    return 1.0 if word in _YES else 0.0 if word in _NO else math.nan


_READERS: dict[str, Callable[[Rule, str], float]] = {
    NUMBER: _read_number,
    DATE: _read_date,
    CLOCK: _read_clock,
    SPAN: _read_span,
    TRUTH: _read_truth,
    LENGTH: lambda rule, cell: float(len(cell)),
}


def possible_rules(cells: Sequence[str], forms: Iterable[str]) -> Iterator[Rule]:
    """Rules that may read a column with such cells, those that are more likely meant first."""
    for form in forms:
        if form == NUMBER:
            yield from _number_rules([cell.strip() for cell in cells])
        elif form == DATE:
            day_first = any("." in cell or "-" in cell for cell in cells)  # 01.02.2021, but 02/01/2021
            orders = sorted(DATES, key=lambda order: order == "mdy") if day_first else list(DATES)
            yield from (Rule(DATE, order=order) for order in orders)
        elif form == CLOCK:
            long = any(cell.count(":") == 2 for cell in cells)  # 3:25 beside 1:03:25 is minutes and seconds
            yield Rule(CLOCK, order="m:s" if long else "h:m")
        else:
            yield Rule(form)


@dataclass
class OddCells:
    """Cells of new rows that the rules of training cannot read."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Column -> how many, and the first."""

    def add(self, rule: Rule | None, column: Column) -> None:
        count, example = (0, "") if rule is None else rule.odd_cells(column)
        if count:
            before, first = self.found.get(column.label, (0, example))
            self.found[column.label] = before + count, first

    def warn(self, name: str) -> None:
        """One warning for all."""
        if self.found:
            each = [f"{count:,} in {label} (such as {text!r:.40})" for label, (count, text) in self.found.items()]
            more = f" and {len(each) - 5} more columns" if len(each) > 5 else ""
            warnings.warn(
                f"{name} has cells that are not written as in training and count as missing: "
                f"{', '.join(each[:5])}{more}",
                TableWarning,
                stacklevel=4,
            )
