"""A table spread over files, as a list of units that can each be read alone: row groups, or blocks of a CSV file.

    source = Source.open("sales/", drop=["row_id"])
    for unit in range(len(source.units)):
        for block in source.blocks(unit, ["size", "price"], rows=65_536): ...

Opening it looks at every file: a Parquet file's footer, and all of a CSV, whose types are in its text. All files must
have the same columns, of the same kinds; nothing is guessed or left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepbasis.errors import InputError
from deepbasis.tables.arrow import Block
from deepbasis.tables.columns import MISSING, category
from deepbasis.tables.csv_blocks import CsvFile, Parsed, agreed
from deepbasis.tables.encoders import Encoding
from deepbasis.tables.files import to_pandas
from deepbasis.tables.naming import choose
from deepbasis.tables.parquet_groups import ParquetFile
from deepbasis.tables.places import Place, find_places
from deepbasis.tables.reading import kind_of

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = 1 << 20  # rows at a time where all are wanted
_TEXT_BYTES = 32  # of a cell of text, for an estimate


@dataclass(frozen=True)
class Unit:
    """Rows that are read together."""

    file: int
    index: int
    """A row group, or a block of a CSV file; -1: the whole of a gzipped CSV, which has no other beginning."""
    first_row: int
    """In its file."""
    rows: int


class Source:
    """Files of one table."""

    def __init__(self, files: list[ParquetFile | CsvFile], names: list[str], kinds: dict[str, str]) -> None:
        self.files = files
        self.names = names
        """The columns, without those that were to be dropped."""
        self.kinds = kinds
        self.units = [unit for position, file in enumerate(files) for unit in _units(position, file)]
        self.file_rows = [0] * len(files)
        self._units_of: list[list[int]] = [[] for _ in files]
        for position, unit in enumerate(self.units):
            self.file_rows[unit.file] += unit.rows
            self._units_of[unit.file].append(position)
        self._csv_types: dict[str, Any] = {}
        for file in files:
            if isinstance(file, CsvFile):
                self._csv_types = {
                    name: agreed(self._csv_types.get(name), file.types[name]) for name in names if name in file.types
                }

    @classmethod
    def open(
        cls, data: Any, columns: Sequence[str] | None = None, drop: Collection[str] = (), text: Collection[str] = ()
    ) -> Source:
        """All columns but those in `drop`, or the `columns` alone, whatever else the files hold.

        Those in `text` are text in a CSV, whatever stands in them. Parquet has types of its own.
        """
        files: list[ParquetFile | CsvFile] = []
        kinds: dict[str, str] = {}
        names: list[str] = []
        for place in find_places(data):
            file = ParquetFile.survey(place) if place.ending == ".parquet" else CsvFile.survey(place, text)
            chosen = choose(_names(file), columns, drop, place.name)
            if isinstance(file, ParquetFile):
                file.check_types([name for name in chosen if name in file.types])
            empty = not any(_units(len(files), file))  # of a file without rows the names are to be trusted alone
            own = {name: MISSING if empty else _kind(file, name) for name in chosen}
            if files:
                _check_same(files[0].place, kinds, place, own)
            else:
                names = chosen
            kinds = {name: own[name] if kinds.get(name, MISSING) == MISSING else kinds[name] for name in names}
            files.append(file)
        return cls(files, names, kinds)

    @property
    def name(self) -> str:
        """How messages call all of it: by its first file where there are several."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0].place.name}{more}"

    @property
    def rows(self) -> int:
        return sum(self.file_rows)

    def type_of(self, file: int, column: str) -> Any:
        """The Arrow type that a column of a file is read as."""
        import pyarrow as pa

        one = self.files[file]
        if column in one.place.constants:
            return pa.scalar(one.place.constants[column]).type
        return one.types[column] if isinstance(one, ParquetFile) else self._csv_types[column]

    def copied_type(self, file: int, column: str) -> Any:
        """The Arrow type that a column of a file is copied as: text where the file is."""
        import pyarrow as pa

        one = self.files[file]
        is_text = isinstance(one, CsvFile) and column not in one.place.constants
        return pa.string() if is_text else self.type_of(file, column)

    def row_bytes(self) -> int:
        """About how much memory a row of all columns takes."""
        return sum(_TEXT_BYTES if kind == "categorical" else 8 for kind in self.kinds.values())

    def blocks(self, unit: int, columns: Sequence[str], rows: int, copied: Sequence[str] = ()) -> Iterator[Block]:
        """The rows of a unit in their order, at most `rows` at a time; beside them the columns that are `copied`."""
        where = self.units[unit]
        file = self.files[where.file]
        inside, beside = ([name for name in some if name not in file.place.constants] for some in (columns, copied))
        row = where.first_row
        for table, cells in _tables(file, where.index, inside, rows, self._csv_types, beside):
            for start in range(0, table.num_rows, rows):
                some = _with_constants(table.slice(start, rows), columns, file.place)
                kept = _with_constants(cells.slice(start, rows), copied, file.place) if copied else None
                yield Block(file.place.name, row, some, kept)
                row += some.num_rows

    def file_blocks(self, file: int, columns: Sequence[str], rows: int, copied: Sequence[str] = ()) -> Iterator[Block]:
        """The rows of a file in their order."""
        for unit in self._units_of[file]:
            yield from self.blocks(unit, columns, rows, copied)

    def check_rows(self) -> None:
        if self.rows == 0:
            raise InputError(f"{self.name} has no rows: it needs at least one")

    def to_pandas(self) -> pd.DataFrame:
        """All of it in memory, as `files.read_table` gives one file."""
        import pyarrow as pa

        tables = [
            pa.table(block.table) if isinstance(block.table, pa.RecordBatch) else block.table
            for unit in range(len(self.units))
            for block in self.blocks(unit, self.names, _WHOLE)
        ]
        self.check_rows()
        if len({table.schema.remove_metadata() for table in tables}) > 1:
            tables = [_without_dictionaries(table) for table in tables]  # the only types that do not widen
        return to_pandas(pa.concat_tables(tables, promote_options="permissive"))

    def fingerprint(self) -> str:
        """Of what the files are, not of what they hold: names, sizes and row counts."""
        told = [(file.place.relative, file.place.identity()[0]) for file in self.files]
        return hashlib.sha256(repr((told, self.file_rows, sorted(self.kinds.items()))).encode()).hexdigest()[:16]


def text_columns(names: Sequence[str], encodings: Sequence[Encoding]) -> list[str]:
    """The columns that a model knows as text: in a CSV they are text, whatever stands in the cells of this one.

    Not those whose categories are all numbers or truth values as we write them (1, 2.5, True): a pandas Categorical may
    have held these, and 1.0, as pandas writes it in a column with a gap, is its 1.
    """
    return [
        name
        for name, encoding in zip(names, encodings, strict=True)
        if encoding.kind == "categorical"
        and not (encoding.categories and all(_was_a_number(one) for one in encoding.categories))
    ]


def _was_a_number(name: str) -> bool:
    try:
        return name in ("True", "False") or category(float(name)) == name
    except ValueError:
        return False


def _names(file: ParquetFile | CsvFile) -> list[str]:
    own = file.names if isinstance(file, ParquetFile) else file.header
    return own + [name for name in file.place.constants if name not in own]


def _kind(file: ParquetFile | CsvFile, name: str) -> str:
    if name in file.place.constants:
        return "categorical" if isinstance(file.place.constants[name], str) else "numeric"
    return kind_of(file.types[name])


def _units(position: int, file: ParquetFile | CsvFile) -> Iterator[Unit]:
    """Those that have rows."""
    if isinstance(file, CsvFile):
        if file.place.ending == ".csv.gz":
            found = [(-1, sum(cut.rows for cut in file.cuts))]
        else:
            found = [(index, cut.rows) for index, cut in enumerate(file.cuts)]
    else:
        found = list(enumerate(file.group_rows))
    row = 0
    for index, rows in found:
        if rows:
            yield Unit(position, index, row, rows)
        row += rows


def _tables(
    file: ParquetFile | CsvFile,
    index: int,
    columns: Sequence[str],
    rows: int,
    types: dict[str, Any],
    copied: Sequence[str],
) -> Iterator[Parsed]:
    """What is read of a unit, and what is copied: in Parquet columns like any other."""
    if isinstance(file, ParquetFile):
        for batch in file.read(index, list(dict.fromkeys([*columns, *copied])), rows):
            yield batch, batch
    elif index < 0:
        yield from file.read_in_order(columns, types, copied)
    else:
        yield file.read(file.cuts[index], columns, types, copied)


def _with_constants(table: Any, columns: Sequence[str], place: Place) -> Any:
    import pyarrow as pa

    if not place.constants:
        return table.select(list(columns))
    arrays = [
        pa.repeat(place.constants[name], table.num_rows) if name in place.constants else table.column(name)
        for name in columns
    ]
    return pa.table(arrays, names=list(columns))


def _without_dictionaries(table: Any) -> Any:
    import pyarrow as pa

    for k, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(field.type.value_type))
    return table


def _check_same(first: Place, kinds: dict[str, str], place: Place, own: dict[str, str]) -> None:
    """The columns of `place` must be those of the files before it."""
    remedy = "write all files with the same columns, or leave that column out"
    for name in own:
        if name not in kinds:
            raise InputError(f"{place.name} has a column '{name}' that {first.name} does not have: {remedy}")
    for name, kind in kinds.items():
        if name not in own:
            raise InputError(f"{place.name} has no column '{name}', which {first.name} has: {remedy}")
        if MISSING not in (kind, own[name]) and kind != own[name]:
            raise InputError(
                f"{place.name}: column '{name}' is {_WORDS[own[name]]}, and {_WORDS[kind]} in {first.name}: {remedy}"
            )


_WORDS = {
    "numeric": "numeric",
    "boolean": "true or false",
    "datetime": "a date",
    "duration": "a duration",
    "categorical": "text",
}
