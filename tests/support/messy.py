"""Tables as people keep them, made by code: what stands in the cells, and what is meant by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np

from deepbasis.tables.columns import Array

ROWS = 80
_RNG = np.random.default_rng(24)
MONEY = np.round(_RNG.lognormal(8, 1.2, ROWS), 2)
SIGNED = np.round(_RNG.normal(0, 4000, ROWS), 2)
SMALL = np.round(_RNG.uniform(0.5, 99.5, ROWS), 1)
WHOLE = _RNG.integers(1, 60, ROWS).astype(float)
STAMPS = [datetime(2019, 1, 1) + timedelta(minutes=int(minutes)) for minutes in _RNG.integers(0, 2_000_000, ROWS)]
SPANS = _RNG.integers(60, 30_000, ROWS)
COIN = _RNG.integers(0, 2, ROWS).astype(float)
TARGET = _RNG.normal(size=ROWS).round(3)


@dataclass(frozen=True)
class Messy:
    """A file, and what its columns mean."""

    name: str
    cells: dict[str, list[str]]
    """Of each column."""
    answers: dict[str, tuple[str, Array]]
    """Column -> its kind and numbers (seconds of dates and durations), NaN where there is no value."""
    named: list[str] = field(default_factory=list)
    """Columns that nobody could read, or that say nothing: a line must name them."""
    separator: str = ","
    encoding: str = "utf-8"
    ending: str = ".csv"

    @property
    def file(self) -> str:
        return self.name.replace(" ", "_") + self.ending

    def content(self) -> bytes:
        def written(cell: str) -> str:
            return f'"{cell}"' if self.separator in cell else cell

        point = "," if self.separator == ";" else "."
        columns = {**self.cells, "y": [str(y).replace(".", point) for y in TARGET]}
        lines = [list(columns), *zip(*columns.values(), strict=True)]
        text = "\n".join(self.separator.join(map(written, line)) for line in lines) + "\n"
        return text.encode(self.encoding)


def german(number: float, places: int = 2) -> str:
    return f"{number:,.{places}f}".translate(str.maketrans(",.", ".,"))


def seconds(stamps: list[datetime]) -> Array:
    return np.array([(stamp - datetime(1970, 1, 1)).total_seconds() for stamp in stamps])


def days(stamps: list[datetime]) -> list[datetime]:
    return [datetime(stamp.year, stamp.month, stamp.day) for stamp in stamps]


def _numbers(name: str, write: Callable[[float], str], values: Array, **more: str) -> Messy:
    return Messy(name, {"x": [write(value) for value in values]}, {"x": ("numeric", values)}, **more)  # type: ignore[arg-type]


def _dates(name: str, write: Callable[[datetime], str], stamps: list[datetime], **more: str) -> Messy:
    cells, answers = {"x": [write(stamp) for stamp in stamps]}, {"x": ("datetime", seconds(stamps))}
    return Messy(name, cells, answers, **more)  # type: ignore[arg-type]


def _spans(name: str, write: Callable[[int], str], values: Array) -> Messy:
    return Messy(name, {"x": [write(int(value)) for value in values]}, {"x": ("duration", values.astype(float))})


def _with(cells: list[str], values: Array, odd: dict[int, str]) -> tuple[list[str], Array]:
    """Some cells replaced by texts without a value."""
    return [odd.get(k, cell) for k, cell in enumerate(cells)], np.where(
        np.isin(np.arange(len(values)), list(odd)), np.nan, values
    )


def numbers() -> Iterator[Messy]:
    yield _numbers("dollars", lambda x: f"${x:,.0f}", MONEY.round())
    yield _numbers("dollars and cents", lambda x: f"${x:,.2f}" if x >= 0 else f"-${-x:,.2f}", SIGNED)
    yield _numbers("accounting", lambda x: f"{x:,.2f}" if x >= 0 else f"({-x:,.2f})", SIGNED)
    yield _numbers("euros", lambda x: f"{german(x)} €", MONEY, separator=";")
    yield _numbers("decimal commas", lambda x: f"{x}".replace(".", ","), SMALL, separator=";")
    yield _numbers("German thousands", german, MONEY, separator=";")
    yield _numbers("German whole thousands", lambda x: german(x, 0), MONEY.round(), separator=";")
    yield _numbers("Swiss", lambda x: f"{x:,.2f}".replace(",", "'"), MONEY)
    yield _numbers("French", lambda x: f"{x:,.2f}".replace(",", "\u202f").replace(".", ","), MONEY, separator=";")
    yield _numbers("per cent", lambda x: f"{x:.1f}%", SMALL)
    yield _numbers("per cent with commas", lambda x: f"{x:.1f} %".replace(".", ","), SMALL, separator=";")
    yield _numbers("exponents", lambda x: f"{x:.6e}", MONEY.round())
    yield _numbers("kilograms", lambda x: f"{x} kg", SMALL)
    yield _numbers("months", lambda x: f"{x:.0f} months" if x > 1 else "1 month", WHOLE)
    yield _numbers("magnitudes", lambda x: f"{x / 1e6:.3f}M" if x > 5000 else f"{x / 1e3:.3f}k", MONEY.round(-3))
    yield _numbers("minus signs", lambda x: f"{x:,.2f}".replace("-", "−"), SIGNED)
    yield _numbers("codes of currencies", lambda x: f"GBP {x:,.2f}", MONEY)
    cells, values = _with([f"{x:.0f}" for x in WHOLE], WHOLE, {3: "n/a", 9: "?", 17: "-", 30: "unknown", 44: ""})
    yield Messy("words for gaps", {"x": cells}, {"x": ("numeric", values)})
    cells, values = _with([f"{x}" for x in SMALL], SMALL, {5: "12O.5"})
    yield Messy("a typing error", {"x": cells}, {"x": ("numeric", values)})
    cells, values = _with([f"{x}" for x in SMALL], SMALL, dict.fromkeys(range(0, ROWS, 6), "Varies with device"))
    yield Messy("one word for no value", {"x": cells}, {"x": ("numeric", values)})


def dates() -> Iterator[Messy]:
    yield _dates("day first", lambda t: f"{t:%d/%m/%Y}", days(STAMPS))
    yield _dates("month first", lambda t: f"{t:%m/%d/%Y}", days(STAMPS))
    yield _dates("dots", lambda t: f"{t:%d.%m.%Y}", days(STAMPS), separator=";")
    yield _dates("short months", lambda t: f"{t:%b} {t.day}, {t.year}", days(STAMPS))
    yield _dates("long months", lambda t: f"{t.day} {t:%B %Y}", days(STAMPS))
    yield _dates("half days", lambda t: f"{t:%m/%d/%Y %I:%M %p}", STAMPS)
    yield _dates("short years", lambda t: f"{t:%d-%b-%y}", days(STAMPS))
    yield _dates("months alone", lambda t: f"{t:%B %Y}", [datetime(t.year, t.month, 1) for t in STAMPS])
    months = "Januar,Februar,März,April,Mai,Juni,Juli,August,September,Oktober,November,Dezember".split(",")  # noqa: SIM905
    write = lambda t: f"{t.day}. {months[t.month - 1]} {t.year}"  # noqa: E731
    yield _dates("German months", write, days(STAMPS), separator=";", encoding="cp1252")
    cells, values = _with([f"{t:%Y-%m-%d %H:%M}" for t in STAMPS], seconds(STAMPS), {8: "unknown", 50: "unknown"})
    yield Messy("dates with gaps", {"x": cells}, {"x": ("datetime", values)})


def others() -> Iterator[Messy]:
    yield _spans("clocks", lambda s: f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}", SPANS)
    yield _spans("hours and minutes", lambda s: f"{s // 3600}h {s // 60 % 60}m", SPANS // 60 * 60)
    yield _spans("ISO durations", lambda s: f"PT{s // 3600}H{s // 60 % 60}M{s % 60}S", SPANS)
    words = {0.0: ["no", "No", "N", "false"], 1.0: ["yes", "Yes", "Y", "true"]}
    cells = [words[one][k % 4] for k, one in enumerate(COIN)]
    yield Messy("yes and no", {"x": cells}, {"x": ("boolean", COIN)})
    plain = {"x": [f"{x}" for x in SMALL], "z": [f"${x:,.0f}" for x in MONEY]}
    both = {"x": ("numeric", SMALL), "z": ("numeric", MONEY.round())}
    yield Messy("tabs", plain, both, separator="\t", ending=".tsv")
    yield Messy("bars", plain, both, separator="|")
    yield Messy("UTF-16", {"x ß": plain["x"]}, {"x ß": ("numeric", SMALL)}, separator="\t", encoding="utf-16")
    yield Messy("Latin-1", {"größe": plain["x"]}, {"größe": ("numeric", SMALL)}, encoding="latin-1")
    # What no rule reads, or what says nothing: a line each
    notes = [f"called on day {k} and was told to wait" for k in range(ROWS)]
    names = {"order": [f"A-{7919 * k % 10007:05d}" for k in range(ROWS)], "notes": notes, "unit": ["pc"] * ROWS}
    yield Messy("nothing said", {**names, **plain, "x2": plain["x"]}, both, named=[*names, "x2"])
    units = [f"{x:.1f} kg" if k % 2 else f"{1000 * x:.0f} g" for k, x in enumerate(SMALL)]
    yield Messy("two units", {"x": units}, {}, named=["x"])


def tables() -> list[Messy]:
    return [*numbers(), *dates(), *others()]
