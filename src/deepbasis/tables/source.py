"""The only reader of files: files of one table, as a list of units that can each be read alone.

    source = Source.open("sales/", drop=["row_id"])
    for unit in range(len(source.units)):
        for block in source.blocks(unit, ["size", "price"], rows=65_536): ...

Opening it looks at every file: a Parquet file's footer, and all of a CSV, whose types are in its text. All files must
have the same columns, of the same kinds; nothing is guessed or left out. A unit is a row group of Parquet, or a block
of a CSV.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from deepbasis.errors import InputError
from deepbasis.registry import FORMATS
from deepbasis.tables.arrow import FileBlock, check_type
from deepbasis.tables.columns import MISSING
from deepbasis.tables.formats.base import Format, Request, TableFile, agreed
from deepbasis.tables.places import ColumnSelection, Place, display_name, find_places
from deepbasis.tables.reading import kind_of

_ROWS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class Unit:
    """Rows that are read together."""

    file: int
    index: int
    """In its file."""
    first_row: int
    """In its file."""
    rows: int


class Source:
    """Files of one table."""

    def __init__(self, files: Sequence[TableFile], names: list[str], kinds: dict[str, str]) -> None:
        self.files = files
        self.names = names
        """The columns, without those that were to be dropped."""
        self.kinds = kinds
        self.units = [unit for position, file in enumerate(files) for unit in _units(position, file)]
        self.file_rows = [sum(file.unit_rows) for file in files]
        self._text_types: dict[str, Any] = {}  # of files of text, which agree on them
        for file in files:
            if file.is_text:
                own = {name: agreed(self._text_types.get(name), type_) for name, type_ in file.types.items()}
                self._text_types |= own

    @classmethod
    def open(
        cls,
        data: Any,
        columns: Sequence[str] | None = None,
        drop: Collection[str] = (),
        text: Collection[str] = (),
        formats: Mapping[str, Format] = FORMATS,
        numbers: Collection[str] | None = None,
    ) -> Source:
        """All columns but those in `drop`, or the `columns` alone, whatever else the files hold.

        Those in `text` are text in a CSV, whatever stands in them. A column with a cell such as 00501 is text
        too, where `numbers` are given, unless it is one of them. Parquet has types of its own.
        """
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            told = display_name(data) if isinstance(data, str | os.PathLike) else "files"
            raise InputError(f"to read {told}, install pyarrow: pip install 'deepbasis[tables]' ({error})") from None
        selection, codes = ColumnSelection(columns, drop, text, numbers), set[str]()
        files: list[TableFile] = []
        kinds: dict[str, str] = {}
        names: list[str] = []
        for place in find_places(data):
            file = formats[place.ending].survey(place, selection)
            for name, type_ in file.types.items():
                check_type(type_, name, place.name)
            chosen = selection.of(file.names, place)
            _check_constants(file, [name for name in place.constants if name in chosen and name in file.names])
            has_rows = any(file.unit_rows)  # a file without rows has reliable names, but no types
            own = {name: kind_of(_type(file, name)) if has_rows else MISSING for name in chosen}
            if file.is_text and all(one.is_text for one in files):  # other files may have no zeros there
                codes |= file.codes
                own, kinds = ({k: "categorical" if k in codes else v for k, v in one.items()} for one in (own, kinds))
            if files:
                _check_same(files[0].place, kinds, place, own)
            else:
                names = chosen
            kinds = {name: own[name] if kinds.get(name, MISSING) == MISSING else kinds[name] for name in names}
            files.append(file)
        return cls(files, names, kinds)

    @property
    def name(self) -> str:
        """Its name in messages: that of its first file if there are several."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0].place.name}{more}"

    @property
    def decimal(self) -> str:
        """The decimal separator of its text, where that is not the usual one."""
        return next((file.decimal for file in self.files if file.decimal != "."), "")

    @property
    def notes(self) -> list[str]:
        return [file.note for file in self.files if file.note]

    @property
    def rows(self) -> int:
        return sum(self.file_rows)

    def type_of(self, file: int, column: str, copied: bool = False) -> Any:
        """The Arrow type that a column of a file is read as, or copied as: text where the file is."""
        import pyarrow as pa

        one = self.files[file]
        if column in one.place.constants or not one.is_text:
            return _type(one, column)
        return pa.string() if copied else self._text_types[column]

    def text_columns(self) -> list[str]:
        """Those that are text, and should be in a table like this, though what stands in them may look like numbers."""
        import pyarrow as pa

        def is_text(type_: Any) -> bool:
            return kind_of(type_.value_type if pa.types.is_dictionary(type_) else type_) == "categorical"

        files = range(len(self.files))
        return [name for name in self.names if any(is_text(self.type_of(file, name)) for file in files)]

    @property
    def row_bytes(self) -> int:
        """About how much memory a row of all columns takes as it is read."""
        return max(8 * len(self.names), *(file.row_bytes for file in self.files))

    @property
    def open_bytes(self) -> int:
        """What is held beside the rows while they are read."""
        return max(file.open_bytes for file in self.files)

    def blocks(
        self, unit: int, columns: Sequence[str], rows: int | None = None, copied: Sequence[str] = ()
    ) -> Iterator[FileBlock]:
        """The rows of a unit in their order, at most `rows` at a time; beside them the columns that are `copied`."""
        where = self.units[unit]
        file = self.files[where.file]
        inside, beside = ([name for name in some if name not in file.place.constants] for some in (columns, copied))
        row, most = where.first_row, rows or where.rows
        for table, cells in file.read(Request(where.index, inside, beside, most, self._text_types)):
            for start in range(0, table.num_rows, most):
                some = _with_constants(table.slice(start, most), columns, file.place)
                kept = _with_constants(cells.slice(start, most), copied, file.place)
                yield FileBlock(file.place.name, row, some, kept)
                row += min(most, table.num_rows - start)

    def all_blocks(
        self, columns: Sequence[str], rows: int | None = None, copied: Sequence[str] = (), file: int | None = None
    ) -> Iterator[FileBlock]:
        """All rows in their order, or those of a file."""
        for position, unit in enumerate(self.units):
            if file is None or unit.file == file:
                yield from self.blocks(position, columns, rows, copied)

    @contextmanager
    def located(self) -> Iterator[None]:
        """What is wrong with "X" in "row 3" of all rows is wrong with one of the files, in a row of it."""
        try:
            yield
        except InputError as error:
            found = re.search(r"\brow (\d+)", str(error))
            name, before = self.name, 0
            if found:
                ends = list(accumulate(self.file_rows))
                file = bisect_right(ends, int(found[1]))
                name, before = self.files[file].place.name, ends[file] - self.file_rows[file]
            with FileBlock(name, -before, None).located():
                raise

    def check_rows(self) -> None:
        if self.rows == 0:
            raise InputError(f"{self.name} has no rows: it needs at least one")

    def fingerprint(self) -> str:
        """A digest of names, sizes and row counts; `TableStatistics` has one of the content."""
        sizes = [(file.place.relative, file.place.size()) for file in self.files]
        return hashlib.sha256(repr((sizes, self.file_rows, sorted(self.kinds.items()))).encode()).hexdigest()[:16]


def _type(file: TableFile, column: str) -> Any:
    import pyarrow as pa

    constants = file.place.constants
    return pa.scalar(constants[column]).type if column in constants else file.types[column]


def _units(position: int, file: TableFile) -> Iterator[Unit]:
    """Those that have rows."""
    row = 0
    for index, rows in enumerate(file.unit_rows):
        if rows:
            yield Unit(position, index, row, rows)
        row += rows


def _with_constants(table: Any, columns: Sequence[str], place: Place) -> Any:
    import pyarrow as pa

    if not place.constants:
        return table.select(list(columns))
    arrays = [
        pa.repeat(place.constants[name], table.num_rows) if name in place.constants else table.column(name)
        for name in columns
    ]
    return pa.table(arrays, names=list(columns))


def _check_constants(file: TableFile, names: list[str]) -> None:
    """Columns that a file has, and the names of its folders too, must hold there what the folders say."""
    import pyarrow as pa

    for name in names:
        constant = file.place.constants[name]
        for unit in range(len(file.unit_rows)):
            for table, _ in file.read(Request(unit, [name], [], _ROWS_AT_A_TIME, {name: pa.string()})):
                for value in table.column(name).unique().to_pylist():
                    if not (value == constant or str(value) == str(constant) or _number(value) == _number(constant)):
                        raise InputError(
                            f"{file.place.name}: its folder says that '{name}' is {constant!r}, and its own column has "
                            f"{value!r:.80}: rename the folder, or remove that column"
                        )


def _number(value: Any) -> float:
    """NaN, which equals nothing, where it is not one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check_same(first: Place, kinds: dict[str, str], place: Place, own: dict[str, str]) -> None:
    """The columns of `place` must be those of the files before it."""
    remedy = "write all files with the same columns, or leave that column out"
    words = {"boolean": "true or false", "datetime": "a date", "duration": "a duration", "categorical": "text"}
    for name in own:
        if name not in kinds:
            raise InputError(f"{place.name} has a column '{name}' that {first.name} does not have: {remedy}")
    for name, kind in kinds.items():
        if name not in own:
            raise InputError(f"{place.name} has no column '{name}', which {first.name} has: {remedy}")
        if MISSING not in (kind, own[name]) and kind != own[name]:
            is_, was = (words.get(one, one) for one in (own[name], kind))
            raise InputError(f"{place.name}: column '{name}' is {is_}, and {was} in {first.name}: {remedy}")
