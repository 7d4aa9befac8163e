"""How a file of text is written: what separates its fields, the decimal separator, the encoding.

All three are found in the beginning of the file, unless they are given. UTF-8 with commas and points is the rule;
another reading is taken only where that one fails and the other fits every line.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from deepbasis.errors import InputError

SEPARATORS = (",", ";", "\t", "|")
_RECORDS = 200  # that are looked at
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMMA = re.compile(r"[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+)")  # 1,234 may be a thousand and more
_POINT = re.compile(r"[-+]?(?:\d*\.(?:\d{1,2}|\d{4,})|0\.\d+)")


@dataclass(frozen=True)
class Dialect:
    """What is "" is found out."""

    separator: str = ""
    decimal: str = ""
    encoding: str = ""

    def __post_init__(self) -> None:
        if self.separator and (len(self.separator.encode()) != 1 or self.separator in '"\n\r'):
            raise InputError(f"separator must be one character, such as ';', got {self.separator!r}")
        if self.decimal not in ("", ".", ","):
            raise InputError(f"decimal must be '.' or ',', got {self.decimal!r}")
        if self.decimal and self.decimal == self.separator:
            raise InputError(f"separator and decimal are both {self.decimal!r}: they must differ")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise InputError(f"encoding must be one that Python knows, such as cp1252, got {self.encoding!r}") from None

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding or "utf-8").name in ("utf-8", "utf-8-sig")

    def found(self, head: bytes) -> Dialect:
        """With what the first bytes of a file tell."""
        encoding = self.encoding or _encoding(head)
        text = codecs.getincrementaldecoder(encoding)("replace").decode(head).removeprefix("\ufeff")
        separator = self.separator or _separator(text)
        decimal = self.decimal or _decimal(text, separator)
        return Dialect(separator, decimal, encoding)

    def note(self, name: str, asked: Dialect) -> str:
        """A line on what was found and may be wrong; "" where it is as usual, or was asked for."""
        found = []
        if not self.is_utf8 and not asked.encoding and self.encoding != "utf-16":
            found.append(f"is not UTF-8 and is read as {self.encoding} (--encoding names another)")
        if self.decimal == "," and not asked.decimal:
            found.append("has decimal commas (--decimal . reads points)")
        return f"{name} {' and '.join(found)}" if found else ""


@dataclass(frozen=True)
class TablePath(os.PathLike[str]):
    """A table by its name, with how it is written."""

    path: str
    dialect: Dialect

    def __fspath__(self) -> str:
        return self.path


def _encoding(head: bytes) -> str:
    if head.startswith(_UTF_16):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return "utf-8"
    except UnicodeDecodeError:
        pass
    if b"\0" in head or head.startswith((b"PK", b"\x1f\x8b", b"PAR1", b"\x89PNG", b"%PDF")):
        return "utf-8"  # no text at all: it is refused as such
    try:
        head.decode("cp1252")
        return "cp1252"
    except UnicodeDecodeError:
        return "latin-1"


def _records(text: str, separator: str) -> Iterator[list[str]]:
    """The first records, without the last one, which may be cut off."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    before: list[str] = []
    try:
        for k, record in enumerate(one for one in reader if one):
            if before:
                yield before
            before = record
            if k == _RECORDS:
                return
        if before and text.endswith(("\n", "\r")):
            yield before
    except csv.Error:
        return


def _separator(text: str) -> str:
    """The comma where every record has as many of them as the header; otherwise another one of which that is true."""
    widths = {separator: [len(record) for record in _records(text, separator)] for separator in SEPARATORS}
    even = [one for one, found in widths.items() if found and found[0] > 1 and len(set(found)) == 1]
    return max(even, key=lambda one: widths[one][0], default=",") if "," not in even else ","


def _decimal(text: str, separator: str) -> str:
    if separator == ",":
        return "."
    cells = [cell.strip() for record in _records(text, separator) for cell in record]
    if any(_POINT.fullmatch(cell) for cell in cells):
        return "."
    return "," if any(_COMMA.fullmatch(cell) for cell in cells) else "."
