"""What messages call files and columns, and which columns of a file are meant."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from deepbasis.errors import InputError

STANDARD = "-"
"""The name that stands for standard input or standard output, as in most commands."""

ENDINGS = (".csv", ".csv.gz", ".parquet")


def display_name(path: str | os.PathLike[str]) -> str:
    """How messages speak of a file."""
    return "standard input" if os.fspath(path) == STANDARD else f"'{os.fspath(path)}'"


def ending(path: Path) -> str:
    name = path.name.lower()
    for one in ENDINGS:
        if name.endswith(one):
            return one
    raise InputError(f"'{path}': the name of a table must end in {either(ENDINGS)}; rename or convert the file")


def choose(have: list[str], columns: Sequence[str] | None, drop: Collection[str], name: str) -> list[str]:
    if columns is None:
        check_unique(have, name)
        check_present(have, drop, name)
        return [column for column in have if column not in drop]
    check_present(have, columns, name)
    check_unique([column for column in have if column in columns], name)
    return list(columns)


def check_unique(names: Sequence[str], name: str) -> None:
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{name} has more than one column named '{twice[0]}': give each a name of its own")


def check_present(have: Sequence[str], wanted: Iterable[str], name: str) -> None:
    for column in wanted:
        if column not in have:
            near = get_close_matches(column, [str(one) for one in have], n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {listed(have)}"
            raise InputError(f"{name} has no column '{column}'; {hint}")


def listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def count(number: int, word: str) -> str:
    """ "1 row", "2 rows"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def one_line(error: BaseException) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split())[:200]
