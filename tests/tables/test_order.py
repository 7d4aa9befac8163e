"""The endless sequence: every row as often as any other, in an order that the seed and the epoch alone decide."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from deepbasis.tables.order import Piece, Prefetcher, Shard, batches, mixed


def rows_of(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.unit, row) for piece in pieces for row in range(piece.skip, piece.skip + piece.take)]


KEPT = np.array([5, 0, 7, 3, 11, 2, 9])


# ---- pieces of passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch_rows", [1, 4, 10, 37, 100])
def test_epochs_are_the_passes_one_after_another(epoch_rows):
    """Whatever their length: so many epochs as make whole passes hold every row equally often."""
    shard = Shard.of(KEPT)
    epochs = [rows_of(shard.pieces(epoch, epoch_rows, seed=3)) for epoch in range(37)]
    assert [len(epoch) for epoch in epochs] == [epoch_rows] * 37
    counts = Counter(row for epoch in epochs for row in epoch)
    assert set(counts.values()) == {epoch_rows}
    assert len(counts) == 37
    sequence = [row for epoch in epochs for row in epoch]
    for start in range(0, len(sequence), 37):
        assert len(set(sequence[start : start + 37])) == 37


def test_every_pass_has_another_order_and_the_seed_decides_it():
    shard = Shard.of(np.full(20, 2))
    orders = [[piece.unit for piece in shard.pieces(epoch, 40, seed)] for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == [piece.unit for piece in shard.pieces(0, 40, 0)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_workers_share_the_units_without_overlap(size):
    shards = [Shard.of(KEPT, rank, size) for rank in range(size)]
    assert sorted(unit for shard in shards for unit in shard.units) == list(range(7))
    assert all(shard.units == list(range(rank, 7, size)) for rank, shard in enumerate(shards))
    assert sum(shard.rows for shard in shards) == 37
    whole = [row for shard in shards for row in rows_of(shard.pieces(0, shard.share(37, 37), seed=0))]
    assert len(set(whole)) == len(whole) == 37


def test_a_worker_with_fewer_rows_has_fewer_of_every_epoch():
    shards = [Shard.of(KEPT, rank, 3) for rank in range(3)]
    assert [shard.share(370, 37) for shard in shards] == [10 * shard.rows for shard in shards]
    empty = Shard.of(KEPT, 9, 10)
    assert empty.share(370, 37) == 0
    assert empty.pieces(5, 0, seed=0) == []


# ---- the buffer ------------------------------------------------------------------------------------------------------


def blocks(n: int, rows: int) -> Iterator[np.ndarray]:
    for start in range(0, n, rows):
        yield np.arange(start, min(start + rows, n), dtype=np.float32)[:, None]


@pytest.mark.parametrize(("n", "rows", "buffer"), [(1000, 100, 300), (1000, 100, 50), (1000, 7, 1000), (30, 100, 400)])
def test_no_row_is_lost_or_doubled(n, rows, buffer):
    out = list(mixed(blocks(n, rows), buffer, rows, np.random.default_rng(0)))
    assert sorted(np.concatenate(out)[:, 0].tolist()) == list(range(n))
    assert max(len(block) for block in out) <= max(rows, buffer)
    again = list(mixed(blocks(n, rows), buffer, rows, np.random.default_rng(0)))
    np.testing.assert_array_equal(np.concatenate(out), np.concatenate(again))
    other = list(mixed(blocks(n, rows), buffer, rows, np.random.default_rng(1)))
    assert (np.concatenate(out) != np.concatenate(other)).any()


def test_nothing_comes_of_nothing():
    assert list(mixed(iter(()), 10, 5, np.random.default_rng(0))) == []
    assert list(batches(iter(()), 5)) == []


def test_rows_travel_as_far_as_the_buffer_is_large():
    n, buffer = 100_000, 20_000
    out = np.concatenate(list(mixed(blocks(n, 1000), buffer, 1000, np.random.default_rng(0))))[:, 0]
    distance = np.abs(out - np.arange(n))
    assert np.median(distance) > buffer / 4
    full = np.concatenate(list(mixed(blocks(10_000, 1000), 10_000, 1000, np.random.default_rng(0))))[:, 0]
    assert abs(np.corrcoef(full, np.arange(10_000))[0, 1]) < 0.05


def test_every_order_of_a_full_buffer_is_as_likely():
    firsts = [next(mixed(blocks(4, 2), 4, 4, np.random.default_rng(seed)))[:, 0] for seed in range(2400)]
    counts = Counter(tuple(order.tolist()) for order in firsts)
    assert len(counts) == 24
    assert max(counts.values()) < 150


def test_batches_have_one_size_but_the_last():
    out = list(batches(blocks(103, 30), 16))
    assert [len(batch) for batch in out] == [16] * 6 + [7]
    np.testing.assert_array_equal(np.concatenate(out)[:, 0], np.arange(103))
    assert [len(batch) for batch in batches(blocks(64, 16), 32)] == [32, 32]


# ---- the thread ------------------------------------------------------------------------------------------------------


def make(epoch: int) -> Iterator[np.ndarray]:
    for k in range(5):
        yield np.full((2, 1), 10 * epoch + k)


def values(reader: Prefetcher, epoch: int) -> list[int]:
    return [int(block[0, 0]) for block in reader.epoch(epoch)]


def readers() -> int:
    return sum(thread.name == "deepbasis-reader" for thread in threading.enumerate())


def test_epochs_come_one_after_another_and_in_any_order():
    reader = Prefetcher(make, epochs=100)
    for epoch in (0, 1, 2, 7, 7, 0, 99, 100, 101):
        assert values(reader, epoch) == [10 * epoch + k for k in range(5)]
        assert readers() <= 1
    reader.close()
    assert readers() == 0


def test_an_epoch_that_was_left_can_be_read_again():
    reader = Prefetcher(make, epochs=10)
    begun = reader.epoch(3)
    assert int(next(begun)[0, 0]) == 30
    assert values(reader, 3) == [30, 31, 32, 33, 34]
    reader.close()


def test_the_next_epoch_is_read_while_this_one_is_used():
    asked: list[int] = []

    def noted(epoch: int) -> Iterator[np.ndarray]:
        asked.append(epoch)
        return make(epoch)

    reader = Prefetcher(noted, epochs=3, depth=2)
    assert values(reader, 0) == [0, 1, 2, 3, 4]
    deadline = time.monotonic() + 5
    while asked != [0, 1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert asked == [0, 1]
    assert values(reader, 1) == [10, 11, 12, 13, 14]
    assert values(reader, 2) == [20, 21, 22, 23, 24]
    time.sleep(0.05)
    assert asked == [0, 1, 2]  # once each, and none beyond the last
    reader.close()


def test_it_is_never_more_than_its_depth_ahead():
    made = []

    def counted(epoch: int) -> Iterator[np.ndarray]:
        for k in range(100):
            made.append(k)
            yield np.zeros((1, 1))

    reader = Prefetcher(counted, epochs=1, depth=3)
    taken = reader.epoch(0)
    next(taken)
    time.sleep(0.2)
    assert len(made) <= 1 + 3 + 1  # taken, waiting, and one in the hand
    reader.close()


def test_an_error_of_the_thread_is_raised_where_its_rows_are_wanted():
    def fails(epoch: int) -> Iterator[np.ndarray]:
        yield np.zeros((1, 1))
        raise ValueError("page 7 is torn")

    reader = Prefetcher(fails, epochs=3)
    taken = reader.epoch(0)
    next(taken)
    with pytest.raises(ValueError, match="page 7 is torn"):
        next(taken)
    assert readers() == 0


def test_closing_does_not_wait_for_a_buffer_to_fill():
    """The reading is stopped between two blocks, though none has come out of the buffer yet."""
    read = 0

    def slow(epoch: int) -> Iterator[np.ndarray]:
        nonlocal read
        for _ in range(1000):
            read += 1
            time.sleep(0.01)
            yield np.zeros((10, 1))

    def whole(epoch: int, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        return mixed(blocks, 10_000, 10, np.random.default_rng(epoch))

    reader = Prefetcher(slow, epochs=2, mix=whole)
    begun = reader.epoch(0)
    threading.Thread(target=lambda: next(begun, None), daemon=True).start()
    while not read:
        time.sleep(0.001)
    start = time.monotonic()
    reader.close()
    assert time.monotonic() - start < 1.0  # all blocks would take 10
    assert read < 100
    assert readers() == 0
