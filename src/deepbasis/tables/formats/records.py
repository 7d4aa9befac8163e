"""Where records of a CSV end: at the end of a line, outside of quotes. There a file can be cut into blocks."""

from __future__ import annotations

import codecs
from typing import Any

import numpy as np

from deepbasis.tables.columns import Array


def without_end(content: bytes) -> bytes:
    """Without the empty lines at its end, which are never rows."""
    kept = len(content.rstrip(b"\r\n"))
    line_end = 2 if content[kept : kept + 2] == b"\r\n" else 1
    return content[: kept + line_end] if content[:kept].removeprefix(codecs.BOM_UTF8) else b""


def last_end_of_record(content: bytes, separator: str) -> int:
    """The number of bytes up to and with the last line's end that is not inside quotes."""
    marks = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(marks == ord("\n"))
    quotes = _quotes_that_count(marks, np.flatnonzero(marks == ord('"')), separator)
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _quotes_that_count(marks: Array, quotes: Array, separator: str) -> Array:
    """The positions of quotation marks that open or close quotes, alternately. A doubled one closes and opens."""
    first = 3 if marks[:3].tobytes() == codecs.BOM_UTF8 else 0
    starts = np.isin(marks[quotes - 1], list(f"{separator}\n\r".encode())) | (quotes == first)
    doubled = np.diff(quotes, prepend=-2) == 1
    if (starts | doubled)[::2].all():  # nearly always: every other one can open, so each is what its turn says
        return quotes
    counting: list[int] = []
    for k, (start, double) in enumerate(zip(starts.tolist(), doubled.tolist(), strict=True)):
        closes = len(counting) % 2 == 1
        if closes or start or (double and counting and counting[-1] == k - 1):
            counting.append(k)
    return quotes[counting]


def has_leading_zeros(content: bytes, separator: str) -> bool:
    """Whether a field seems to begin with a zero and another digit, as 00501 does."""
    marks = np.frombuffer(content, dtype=np.uint8)
    zeros = np.flatnonzero(marks[:-1] == ord("0"))
    zeros = zeros[(marks[zeros + 1] >= ord("0")) & (marks[zeros + 1] <= ord("9"))]
    before = np.where(zeros == 0, ord("\n"), marks[zeros - 1])
    return bool(np.isin(before, list(f'{separator}\n\r" '.encode())).any())


def codes_among(texts: Any) -> list[str]:
    """The columns of an Arrow table of texts in which some cell is a code such as 00501."""
    import pyarrow.compute as pc

    found = {name: pc.any(pc.match_substring_regex(texts[name], r"^\s*0\d+\s*$")) for name in texts.column_names}
    return [name for name, some in found.items() if some.as_py()]
