"""Memory: how much may be used, and how a streamed table divides it.

    the limit  =  this process (half a GiB)  +  members in training  +  validation rows
                  +  blocks being read (an eighth of what is left)  +  the shuffle buffer (a quarter)  +  slack

The slack is for what cannot be predicted: Arrow's pages, the allocator's holes, temporaries of the engine.

The sizes decide the order in which rows are trained on, so they depend only on the limit and the table: the seed then
determines the fit, and a run can resume in another process. What this process holds at the moment decides only whether
they fit.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbasis.errors import InputError
from deepbasis.tables.columns import Array

if TYPE_CHECKING:
    from deepbasis.fitting.plan import Candidate, Plan
    from deepbasis.tables.source import Source

GIB = 2**30
VALIDATION_COPIES = 4
"""Of rows to validate on: as encoded, as tensors, in the engine's chunks, and one in flight."""

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": GIB, "t": 2**40}
_COLUMN_COPIES = 3  # of a table in memory: as read, joined and split
_ENCODED_COPIES = 3  # of its rows as numbers: before and after some are held out, and as tensors
_ROW_BYTES = 512  # whatever its columns: labels, orders, and the scores of rows that are held out
_SPIKY = "spiky"  # numbers of which single ones may have an indicator
_OUTPUTS = {
    "categorical": 33,
    "datetime": 7,
    _SPIKY: 34,
}  # that a column is encoded as, at most; one where nothing is said
_LOOK_UNITS, _LOOK_ROWS = 8, 1_000  # where a table is looked at before it is read
_SPIKY_SHARE = 0.4  # of one value, in these rows; in all rows it would be half
_PROCESS = 512 * 2**20  # this process when it has imported everything, about
_MOST_UNASKED = 8 * GIB  # without a limit
_BLOCK_ROWS = (256, 65_536)  # fewer are slow, more are no faster
_BUFFER_ROWS = 4_000_000  # more rows do not mix better
_LEAST = 32 * 2**20  # to read with
_QUEUE = 2  # blocks between the reader and the engine


def parse_memory(memory: Any) -> int | None:
    """Bytes of "2GiB", "500M" or a number; None is None. GB, GiB and G are all 2^30 bytes."""
    if memory is None:
        return None
    text = str(memory).strip().lower()
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?", text)
    number = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if isinstance(memory, bool) or number < 1.0:
        raise InputError(f"memory must be a size such as '2GiB' or '500MiB', got {memory!r}")
    return int(number)


def words(size: float) -> str:
    """2.0 GiB, 512 MiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{max(1, round(size / 2**20))} MiB"


@dataclass(frozen=True)
class Machine:
    """Memory, in bytes."""

    free: int
    """The free memory of this machine, or of this process's container."""
    taken: int
    """Memory that this process uses."""

    @classmethod
    def now(cls) -> Machine:
        from deepbasis.engine.memory import available_on_host  # brings torch

        _give_back()
        return cls(available_on_host(), _resident())


def resident_bytes(rows: int, row_bytes: int, kinds: Iterable[str], more_fits: int = 0) -> int:
    """What a table of columns of these kinds takes while it is fitted in memory, about and at most.

    Each of `more_fits`, to some of the rows, has an encoding of its own, of all of them.
    """
    outputs = [_OUTPUTS.get(kind, 1) for kind in kinds]
    encoded = (_ENCODED_COPIES + more_fits) * sum(outputs)
    return rows * (_ROW_BYTES + row_bytes + 8 * (_COLUMN_COPIES * len(outputs) + encoded))


def column_kinds(source: Source, names: Sequence[str], classes: bool) -> list[str]:
    """The kinds of these columns. With `classes` a number that is mostly one value has a kind of its own: it may become
    many columns. Whether it is so is seen in the first rows of some units."""
    numbers = [name for name in names if classes and source.kinds[name] == "numeric"]
    seen: dict[str, list[Array]] = {name: [] for name in numbers}
    for unit in range(0, len(source.units), -(-len(source.units) // _LOOK_UNITS) or 1) if numbers else ():
        block = next(source.blocks(unit, numbers, _LOOK_ROWS))
        with block.located():
            for name in numbers:
                column = block.column(name)
                seen[name].append(column.values[~column.missing])
    spiky = {name for name, parts in seen.items() if parts and _is_mostly_one(np.concatenate(parts))}
    return [_SPIKY if name in spiky else source.kinds[name] for name in names]


def _is_mostly_one(values: Array) -> bool:
    return len(values) > 0 and float(np.unique(values, return_counts=True)[1].max()) >= _SPIKY_SHARE * len(values)


def fits_in_memory(need: int, memory: int | None, machine: Machine | None = None) -> bool:
    """Whether so many bytes are within the limit, or without one within half of what is free."""
    machine = machine or Machine.now()
    return need <= (machine.free // 2 if memory is None else memory - machine.taken)


def allowed_memory(memory: Any, machine: Machine | None = None) -> int | None:
    """What `parse_memory` gives, refused if this process alone takes as much: to open a table may take long."""
    limit = parse_memory(memory)
    taken = 0 if limit is None else (machine or Machine.now()).taken
    if limit is not None and limit <= taken:
        raise Budget(limit, taken, _LEAST).too_little(taken + 4 * _LEAST)
    return limit


def check_fits(source: Source, row_bytes: int, machine: Machine | None = None) -> None:
    """Refuse a table of which so much is held for each row, if it is more than half of what is free."""
    machine, need = machine or Machine.now(), source.rows * row_bytes + source.open_bytes
    if not fits_in_memory(need, None, machine):
        raise InputError(
            f"{source.name} has {source.rows:,} rows, which take about {words(need)} in memory, more than half of the "
            f"{words(machine.free)} that are free: take a sample of its rows, or split it into several tables"
        )


def room_for_members(memory: int, need: int) -> int:
    """What the limit leaves to members in training, beside a process of the usual size and a table."""
    return max(memory - _PROCESS - need, _LEAST)


def member_bytes(candidate: Candidate, columns: int) -> int:
    """What one member takes while it trains."""
    from deepbasis.engine.members import Member
    from deepbasis.engine.memory import bytes_per_member

    settings = candidate.settings
    rows = settings.chunk_rows if settings.exact else settings.batch_size
    slope = () if candidate.architecture.trend == "none" else (0.0,) * columns
    model = candidate.architecture.build(columns, Member(slope=slope))
    return bytes_per_member(model, rows, columns, settings.dtype)


@dataclass(frozen=True)
class Sizes:
    """How much is read and held at a time."""

    block_rows: int
    buffer_rows: int
    queue: int = _QUEUE


@dataclass(frozen=True)
class Budget:
    """A limit, less what this process and its training already take."""

    limit: int
    taken: int
    """By this process as it is now, and by what will be added."""
    room: int
    """The basis of the sizes: what the limit leaves to a process of the usual size."""

    @classmethod
    def of(cls, memory: int | None, taken: int = 0, machine: Machine | None = None) -> Budget:
        """`taken` is what will be added to the process as it is now: members, validation rows."""
        machine = machine or Machine.now()
        if memory is None:  # what is free changes from moment to moment, the power of two below it hardly ever
            free = min(machine.free // 2, _MOST_UNASKED)
            limit, room = free + machine.taken, 1 << (max(free, 1).bit_length() - 1)
        else:
            limit, room = memory, memory - _PROCESS
        budget = cls(limit, machine.taken + taken, max(room - taken, _LEAST))
        if budget.left < _LEAST:
            raise budget.too_little(budget.taken + 4 * _LEAST)
        return budget

    @property
    def left(self) -> int:
        return self.limit - self.taken

    def sizes(self, raw_bytes: int, columns: int, width: int, item_bytes: int, *, mixing: bool = False) -> Sizes:
        """For rows of `raw_bytes` in the file with `columns` columns, that become `width` numbers of `item_bytes`.

        The buffer is for `mixing`; otherwise there is none.
        """
        encoded = width * item_bytes
        while_read = 2 * raw_bytes + 16 * columns + (3 + _QUEUE) * encoded
        fewest, most = _BLOCK_ROWS
        block_rows = min(max(self.room // 8 // while_read, fewest), most)
        buffer_rows = min(max(self.room // 4 // max(encoded, 1), block_rows), _BUFFER_ROWS) if mixing else 0
        missing = block_rows * while_read + buffer_rows * encoded - self.left
        if missing > 0:  # of each byte more at most 3 of 8 go into larger sizes, and a third of the rest into members
            raise self.too_little(self.limit + missing * 12 // 5)
        return Sizes(block_rows, buffer_rows)

    def members_at_a_time(self, members: int, bytes_per_member: int) -> int:
        """How many may train together within a third of the room."""
        return min(members, max(1, self.room // 3 // bytes_per_member))

    def too_little(self, enough: int) -> InputError:
        digit = GIB // 10 if enough >= GIB else 2**20  # the last digit that `words` shows
        enough += -enough % digit
        return InputError(
            f"memory of {words(self.limit)} is too little: {words(self.taken)} are taken before a row is read; "
            f"give at least {words(enough)}, or use fewer members or a smaller batch_size"
        )


def _give_back() -> None:
    """To the system, what Arrow and the C library keep for later: it is not in use."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def _resident() -> int:
    """Memory that this process uses now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _PROCESS


@dataclass(frozen=True)
class Room:
    """What fits into memory besides the rest."""

    members: int
    """To be trained at a time."""
    sizes: Sizes

    @classmethod
    def of(cls, plan: Plan, source: Source, width: int, validation: int, limit: int | None, more: int = 0) -> Room:
        """For rows of `width` numbers, so many of them to validate on. `more` is what this process will also hold."""
        candidate, on_host = plan.candidates[0], plan.device == "cpu"
        item_bytes = candidate.settings.dtype.itemsize
        need = member_bytes(candidate, width)
        taken = more + source.open_bytes + VALIDATION_COPIES * validation * width * item_bytes
        members = candidate.members * len(candidate.weights)
        at_a_time = Budget.of(limit, taken).members_at_a_time(members, need) if on_host else members
        budget = Budget.of(limit, taken + at_a_time * need * on_host)
        return cls(at_a_time, budget.sizes(source.row_bytes, len(source.names), width, item_bytes, mixing=True))
