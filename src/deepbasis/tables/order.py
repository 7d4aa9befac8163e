"""The order in which a table that does not fit into memory is trained on: an endless sequence, cut into epochs.

A worker reads its units in a new random order for every pass, sends the rows through a buffer that mixes them,
and takes them out in batches; a thread of its own does the reading while the engine computes. What an epoch holds is a
function of the table, the seed, the epoch, the worker and the sizes of blocks and buffer, so that a resumed run
continues as if it had never stopped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deepbasis.tables.columns import Array

_PATIENCE = 0.05  # seconds between checks whether the thread has ended


class Piece(NamedTuple):
    """Part of a unit's training rows: `take` of them after the first `skip`."""

    unit: int
    skip: int
    take: int


@dataclass(frozen=True)
class Shard:
    """A worker's units and how many training rows each has."""

    units: Sequence[int]
    counts: Sequence[int]
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, kept: Array, rank: int = 0, size: int = 1) -> Shard:
        """Every `size`-th unit, from the `rank`-th on; `kept` are the training rows of all units."""
        units = range(rank, len(kept), size)
        return cls(list(units), [int(kept[unit]) for unit in units], rank, size)

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def share(self, epoch_rows: int, all_rows: int) -> int:
        """This worker's rows of an epoch: as many as it has of all rows, so that every row has the same chance."""
        return round(epoch_rows * self.rows / all_rows) if self.rows else 0

    def pieces(self, epoch: int, rows: int, seed: int) -> list[Piece]:
        """What epoch `epoch` reads, where each epoch has `rows` rows: the next in the endless sequence of passes."""
        pieces: list[Piece] = []
        turn, position = divmod(epoch * rows, self.rows) if rows else (0, 0)
        while rows > 0:
            for k in np.random.default_rng([seed, 1, self.rank, self.size, turn]).permutation(len(self.units)):
                skip = min(position, self.counts[k])
                take = min(rows, self.counts[k] - skip)
                position -= skip
                rows -= take
                if take:
                    pieces.append(Piece(self.units[k], skip, take))
                if not rows:
                    break
            turn += 1
        return pieces

    def all_pieces(self) -> list[Piece]:
        """Every row once, in the order of the units."""
        return [Piece(unit, 0, count) for unit, count in zip(self.units, self.counts, strict=True) if count]


def mixed(blocks: Iterable[Array], buffer_rows: int, block_rows: int, rng: np.random.Generator) -> Iterator[Array]:
    """The same rows in another order: each block that comes in takes the places of as many rows drawn at random.

    At most `buffer_rows` rows, and two blocks, are held at a time.
    """
    buffer: Array | None = None
    filled = 0
    for block in blocks:
        if buffer is None:
            buffer = np.empty((buffer_rows, block.shape[1]), dtype=block.dtype)
        room = min(len(block), buffer_rows - filled)
        buffer[filled : filled + room] = block[:room]
        filled += room
        for start in range(room, len(block), buffer_rows):
            part = block[start : start + buffer_rows]
            places = rng.choice(filled, len(part), replace=False)
            out = buffer[places]
            buffer[places] = part
            yield out
    if buffer is None:
        return
    order = rng.permutation(filled)
    for start in range(0, filled, block_rows):
        yield buffer[order[start : start + block_rows]]


def batches(blocks: Iterable[Array], rows: int) -> Iterator[Array]:
    """Cut into batches of `rows` rows; the last may be smaller."""
    rest: Array | None = None
    for block in blocks:
        if rest is not None:
            block = np.concatenate([rest, block])
        whole = len(block) - len(block) % rows
        for start in range(0, whole, rows):
            yield block[start : start + rows]
        rest = block[whole:].copy() if whole < len(block) else None
    if rest is not None:
        yield rest


class Prefetcher:
    """Blocks of one epoch after another, made by a thread that is at most `depth` blocks ahead.

    It continues with the next epoch by itself, up to `epochs` of them, so that its first blocks are ready when the
    engine has validated. Asked for any other epoch, it starts again.

    `read` gives the blocks of an epoch, and `mix` what is made of them, which may need many before it gives the first.
    """

    def __init__(
        self,
        read: Callable[[int], Iterable[Array]],
        epochs: int,
        depth: int = 2,
        mix: Callable[[int, Iterable[Array]], Iterable[Array]] = lambda epoch, blocks: blocks,
    ) -> None:
        self._read, self._epochs, self._depth, self._mix = read, epochs, depth, mix
        self._next = -1
        self._stop = threading.Event()
        self._queue: queue.Queue[Array | BaseException | None] = queue.Queue(depth)
        self._thread: threading.Thread | None = None

    def epoch(self, epoch: int) -> Iterator[Array]:
        if epoch != self._next or epoch >= self._epochs or self._thread is None:
            self.close()
            self._stop, self._queue = threading.Event(), queue.Queue(self._depth)
            work = (epoch, self._queue, self._stop)
            self._thread = threading.Thread(target=self._work, args=work, name="deepbasis-reader", daemon=True)
            self._thread.start()
        self._next = -1  # until this epoch has been taken to its end
        current = self._queue
        while (item := current.get()) is not None:
            if isinstance(item, BaseException):
                self.close()
                raise item
            yield item
        if current is self._queue:
            self._next = epoch + 1

    def close(self) -> None:
        """Stop reading after the current block, and drop what was read ahead."""
        self._stop.set()
        while self._thread is not None and self._thread.is_alive():
            with suppress(queue.Empty):  # it may be waiting for a place in the queue
                self._queue.get_nowait()
            self._thread.join(_PATIENCE)
        self._thread = None

    def _work(self, epoch: int, to: queue.Queue[Array | BaseException | None], stop: threading.Event) -> None:
        def while_wanted(blocks: Iterable[Array]) -> Iterator[Array]:
            for block in blocks:
                if stop.is_set():
                    raise InterruptedError  # so that `mix` does not take this for the end of the rows
                yield block

        try:
            for now in range(epoch, max(self._epochs, epoch + 1)):
                for block in while_wanted(self._mix(now, while_wanted(self._read(now)))):
                    to.put(block)
                to.put(None)
        except BaseException as error:
            if not stop.is_set():
                to.put(error)
