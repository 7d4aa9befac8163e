"""Batches: every row once an epoch, in an order that is the member's own; and the same training from a stream."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from deepbasis.engine.batches import Batch, Resident, Rows, resampled, shuffled
from deepbasis.engine.distributed import Team
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Stream, Streamed
from deepbasis.engine.training import train
from deepbasis.errors import CheckpointMismatchError, InputError

CPU = torch.device("cpu")


def numbered(n: int, *, weighted: bool = False) -> Rows:
    """Row i is [i, 2 i] with target 3 i and, where `weighted`, weight 1 + i % 4: whatever is taken can be named."""
    number = torch.arange(n, dtype=torch.float64)
    return Rows(torch.stack([number, 2 * number], 1), 3 * number, 1 + number % 4 if weighted else None)


def epoch_of(source: Resident | Streamed, epoch: int) -> list[Batch]:
    source.start_epoch(epoch)
    batches = []
    while source.advance():
        batches.append(Batch(*(None if part is None else part.clone() for part in source.take())))
    return batches


def order(source: Resident, epoch: int) -> Tensor:
    """The rows [E, n] in the order in which they came, without those that fill up."""
    parts = []
    for batch in epoch_of(source, epoch):
        present = len(batch.y[0]) if batch.weight is None else int(batch.weight[0].sum())
        parts.append(batch.x[:, :present, 0].long())
    return torch.cat(parts, 1)


# --- an order for each member ---


@pytest.mark.parametrize(("n", "batch_size"), [(50, 16), (48, 16), (17, 16), (33, 1), (50, 49)])
def test_an_epoch_has_every_row_once_for_every_member(n, batch_size):
    source = Resident(numbered(n), [3, 1, 4, 15], batch_size)
    for epoch in (0, 1, 7):
        rows = order(source, epoch)
        assert torch.equal(rows.sort(1).values, torch.arange(n).expand(4, n))
        assert torch.equal(rows, shuffled(torch.tensor([3, 1, 4, 15]), epoch, n))


@pytest.mark.parametrize(("n", "batch_size", "steps"), [(50, 16, 4), (48, 16, 3), (17, 16, 2), (10, 10, 1), (3, 8, 1)])
def test_steps_an_epoch(n, batch_size, steps):
    source = Resident(numbered(n), [0], batch_size)
    assert (source.steps, len(epoch_of(source, 0))) == (steps, steps)


def test_rows_stay_with_their_targets_and_weights():
    for batch in epoch_of(Resident(numbered(48, weighted=True), [5, 6], 16), 2):
        assert torch.equal(batch.x[..., 1], 2 * batch.x[..., 0])
        assert torch.equal(batch.y, 3 * batch.x[..., 0])
        assert torch.equal(batch.weight, 1 + batch.x[..., 0] % 4)


def test_an_order_depends_on_seed_and_epoch_alone():
    alone = Resident(numbered(50), [77], 16)
    among = Resident(numbered(50), [*range(40), 77, *range(100, 139)], 16)
    other_batches = Resident(numbered(50), [77], 7)
    epochs = (3, 0, 3)  # also back to an earlier one, as after a resume
    first = [order(alone, epoch)[0] for epoch in epochs]
    assert torch.equal(first[0], first[2])
    for epoch, mine in zip(epochs, first, strict=True):
        assert torch.equal(order(among, epoch)[40], mine)
        assert torch.equal(order(other_batches, epoch)[0], mine)


def test_orders_differ_between_seeds_and_between_epochs():
    seeds = torch.tensor([*range(20), 2**31, 2**62, 2**63 - 1])
    orders = torch.cat([shuffled(seeds, epoch, 50) for epoch in range(20)])
    assert len({tuple(row) for row in orders.tolist()}) == len(orders)


def test_an_epoch_may_be_counted_on_the_device():
    seeds = torch.tensor([1, 2])
    assert torch.equal(shuffled(seeds, torch.tensor(9), 30), shuffled(seeds, 9, 30))


def chi_square(counts: Tensor) -> float:
    """Of cells that should all be equal, in standard deviations from its mean (Wilson and Hilferty)."""
    expected = counts.sum() / counts.numel()
    statistic = ((counts - expected).square() / expected).sum()
    freedom = counts.numel() - 1
    return float(((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5)


@pytest.mark.parametrize("over", ["seeds", "epochs"])
def test_orders_look_uniform(over):
    """Which row is at which place; which row follows which; and, for few rows, which of all orders it is."""
    n, draws = 12, 6000

    def orders(n: int) -> Tensor:
        if over == "seeds":
            return shuffled(torch.arange(draws), 3, n)
        return shuffled(torch.full((draws,), 5), torch.arange(draws), n)

    drawn = orders(n)
    places = torch.stack([(drawn == row).sum(0) for row in range(n)]).double()  # [row, place]
    # Rows and columns of the table have fixed sums: (n - 1)^2 degrees of freedom, of which a block is a fair part.
    assert abs(chi_square(places[:-1, :-1])) < 4
    successors = torch.zeros(n, n, dtype=torch.float64)
    successors.view(-1).index_add_(
        0, (drawn[:, :-1] * n + drawn[:, 1:]).flatten(), torch.ones(draws * (n - 1)).double()
    )
    off_diagonal = successors[~torch.eye(n, dtype=torch.bool)]
    assert abs(chi_square(off_diagonal)) < 4
    few = Counter(tuple(row) for row in orders(4).tolist())
    assert len(few) == 24
    assert abs(chi_square(torch.tensor(list(few.values()), dtype=torch.float64))) < 4


def test_neighbouring_seeds_and_epochs_are_uncorrelated():
    """The place of a row for one seed says nothing about its place for the next, nor for the next epoch."""
    n = 2000
    places = torch.stack([shuffled(torch.arange(8), epoch, n).argsort(1).double() for epoch in range(8)])
    orders = {key: places[key] for key in product(range(8), range(8))}
    for (first, mine), (second, theirs) in pairwise(orders.items()):
        correlation = torch.corrcoef(torch.stack([mine, theirs]))[0, 1]
        assert abs(float(correlation)) < 4.5 / n**0.5, (first, second)


# --- the last batch ---


def test_the_last_batch_is_filled_with_rows_of_its_own_of_weight_zero():
    source = Resident(numbered(50), [8, 9, 10], 16)
    *full, last = epoch_of(source, 4)
    rows = shuffled(torch.tensor([8, 9, 10]), 4, 50)
    for batch in full:
        assert torch.equal(batch.weight, torch.ones(3, 16, dtype=torch.float64))
    assert torch.equal(last.weight, torch.tensor([[1.0] * 2 + [0.0] * 14] * 3, dtype=torch.float64))
    for member in range(3):
        own = set(rows[member, 48:].tolist())
        assert set(last.x[member, :2, 0].long().tolist()) == own
        assert set(last.x[member, 2:, 0].long().tolist()) <= own


def test_sample_weights_are_carried_and_rows_that_fill_up_have_none():
    source = Resident(numbered(50, weighted=True), [8, 9], 16)
    *full, last = epoch_of(source, 4)
    for batch in full:
        assert torch.equal(batch.weight, 1 + batch.x[..., 0] % 4)
    assert torch.equal(last.weight[:, :2], 1 + last.x[:, :2, 0] % 4)
    assert torch.equal(last.weight[:, 2:], torch.zeros(2, 14, dtype=torch.float64))
    assert sum(float(batch.weight[1].sum()) for batch in [*full, last]) == float((1 + torch.arange(50) % 4).sum())


def test_without_a_smaller_last_batch_there_are_no_weights():
    assert all(batch.weight is None for batch in epoch_of(Resident(numbered(48), [1, 2], 16), 0))


@pytest.mark.parametrize("batch_size", [50, 51, 1000])
def test_one_batch_of_all_rows_is_shared(batch_size):
    data = numbered(50, weighted=True)
    source = Resident(data, [1, 2, 3], batch_size)
    (batch,) = epoch_of(source, 6)
    assert source.shared
    assert torch.equal(batch.x, data.x)
    assert torch.equal(batch.y, data.y)
    assert torch.equal(batch.weight, data.weight)
    assert not Resident(data, [1, 2, 3], 49).shared


@pytest.mark.parametrize("rows", [1, 7, 50, 80])
def test_chunks_are_all_rows_in_their_order(rows):
    data = numbered(50, weighted=True)
    chunks = list(Resident(data, [1], 16).chunks(rows))
    assert max(len(chunk.y) for chunk in chunks) == min(rows, 50)
    for k, whole in enumerate((data.x, data.y, data.weight)):
        assert torch.equal(torch.cat([chunk[k] for chunk in chunks]), whole)


def test_a_row_of_weight_zero_is_as_good_as_absent(lab):
    """Also where it comes alone in the last batch, whose weights then add up to 0."""
    x, y = lab.data.x[:17], lab.data.y[:17]
    weight = torch.ones(17, dtype=torch.float64)
    weight[::3] = 0.0
    settings = lab.settings(epochs=40, batch_size=16)
    for outcome in train(lab.build(), lab.members(2), Rows(x, y, weight), lab.validation, settings):
        assert (outcome.status, outcome.reason) == ("finished", "")
        assert all(bool(column.isfinite().all()) for column in outcome.history.values())


# --- bootstrap ---


def sample(seeds: list[int], n: int) -> Tensor:
    """The bootstrap sample of each seed: rows [E, n]."""
    return resampled(torch.tensor(seeds), torch.arange(n).expand(len(seeds), n), n)


@pytest.mark.parametrize("batch_size", [16, 25, 50, 80])
def test_every_epoch_has_the_rows_of_the_sample_in_a_new_order(batch_size):
    """As many as there are rows, also where one batch holds them all."""
    seeds = [3, 1, 4]
    source = Resident(numbered(50), seeds, batch_size, bootstrap=True)
    first, second = order(source, 0), order(source, 1)
    drawn = sample(seeds, 50)
    assert not source.shared
    for rows in (first, second):
        assert torch.equal(rows.sort(1).values, drawn.sort(1).values)
    assert not torch.equal(first, second)
    assert torch.equal(first, drawn.gather(1, shuffled(torch.tensor(seeds), 0, 50)))


def test_a_sample_depends_on_the_seed_alone():
    alone = sample([77], 50)[0]
    assert torch.equal(sample([*range(40), 77, 100], 50)[40], alone)
    sources = [
        Resident(numbered(50), [77], 16, bootstrap=True),
        Resident(numbered(50), [5, 77, 6], 7, bootstrap=True),
        Resident(numbered(50), [1, 77], 50, bootstrap=True),
    ]
    for source, k in zip(sources, (0, 1, 1), strict=True):
        assert torch.equal(order(source, 9)[k].sort().values, alone.sort().values)
    seeds = [*range(50), 2**31, 2**62, 2**63 - 1]
    assert len({tuple(rows) for rows in sample(seeds, 50).tolist()}) == len(seeds)


def test_a_sample_is_drawn_with_replacement_from_all_rows_alike():
    n, draws = 40, 3000
    drawn = sample(list(range(draws)), n)
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < n
    counts = torch.stack([torch.bincount(rows, minlength=n) for rows in drawn]).double()  # [draw, row]
    assert torch.equal(counts.sum(1), torch.full((draws,), float(n), dtype=torch.float64))
    assert abs(chi_square(counts.sum(0))) < 4
    places = torch.stack([(drawn == row).sum(0) for row in range(n)]).double()  # [row, place]
    assert abs(chi_square(places)) < 4
    absent = (counts == 0).double().mean(1)  # (1 - 1/n)^n of the rows are not in a sample
    assert abs(float(absent.mean()) - (1 - 1 / n) ** n) < 4 * float(absent.std()) / draws**0.5


def test_a_sample_has_nothing_to_do_with_the_orders():
    n = 4000
    drawn = sample([5], n)[0].double()
    for epoch in range(5):
        correlation = torch.corrcoef(torch.stack([drawn, shuffled(torch.tensor([5]), epoch, n)[0].double()]))[0, 1]
        assert abs(float(correlation)) < 4.5 / n**0.5


def test_rows_of_a_sample_stay_with_their_targets_and_weights():
    *full, last = epoch_of(Resident(numbered(50, weighted=True), [5, 6], 16, bootstrap=True), 2)
    for batch in full:
        assert torch.equal(batch.x[..., 1], 2 * batch.x[..., 0])
        assert torch.equal(batch.y, 3 * batch.x[..., 0])
        assert torch.equal(batch.weight, 1 + batch.x[..., 0] % 4)
    assert torch.equal(last.weight[:, :2], 1 + last.x[:, :2, 0] % 4)
    assert torch.equal(last.weight[:, 2:], torch.zeros(2, 14, dtype=torch.float64))


@pytest.mark.parametrize("batch_size", [16, 50])
def test_workers_share_the_batches_of_a_sample(batch_size):
    """Of three workers each has its part of what one would have, and knows the weight of the whole."""
    data = numbered(50, weighted=True)
    whole = epoch_of(Resident(data, [5, 6], batch_size, bootstrap=True), 3)
    teams = [Team(rank, 3, group=object) for rank in range(3)]
    parts = [epoch_of(Resident(data, [5, 6], batch_size, team, bootstrap=True), 3) for team in teams]
    for batch, *shares in zip(whole, *parts, strict=True):
        rows, weight = (torch.cat([getattr(share, part) for share in shares], 1) for part in ("y", "weight"))
        assert torch.equal((rows * weight).sum(1), (batch.y * batch.weight).sum(1))
        for share in shares:
            assert torch.allclose(share.whole_weight, batch.weight.sum(1) / 3, rtol=1e-12)


def test_without_bootstrap_batches_are_as_they_were():
    for source in (Resident(numbered(50), [3, 4], 16), Resident(numbered(50), [3, 4], 16, bootstrap=False)):
        assert torch.equal(order(source, 5), shuffled(torch.tensor([3, 4]), 5, 50))
    assert not Settings().bootstrap


@pytest.mark.parametrize("batch_size", [16, 50])
def test_a_member_trains_on_its_sample_alone_as_among_others(lab, batch_size):
    settings = lab.settings(batch_size=batch_size, bootstrap=True)
    together = train(lab.build(), lab.members(3), lab.data, lab.validation, settings)
    for member, outcome in zip(lab.members(3), together, strict=True):
        alone = train(lab.build(), [member], lab.data, lab.validation, settings)[0]
        assert lab.difference(outcome, alone) < 1e-12


def test_training_on_a_sample_is_training_on_its_rows(lab):
    """With one batch of all rows their order is nothing: the same as rows that were drawn before."""
    (member,) = lab.members(1)
    rows = sample([member.seed], len(lab.data))[0]
    drawn = Rows(lab.data.x[rows], lab.data.y[rows])
    ways = ((lab.data, True), (drawn, False), (lab.data, False))
    found = [
        train(lab.build(), [member], data, lab.validation, lab.settings(batch_size=50, bootstrap=bootstrap))[0]
        for data, bootstrap in ways
    ]
    assert lab.difference(found[0], found[1]) < 1e-10
    assert lab.largest(found[0].parameters, found[2].parameters) > 1e-3


def test_a_checkpoint_of_other_rows_is_refused(lab, tmp_path):
    path = tmp_path / "run"
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation)
    for mine, other in ((True, False), (False, True)):
        train(*arguments, lab.settings(epochs=2, bootstrap=mine), checkpoint=path)
        with pytest.raises(CheckpointMismatchError, match="bootstrap"):
            train(*arguments, lab.settings(epochs=2, bootstrap=other), checkpoint=path)
        path.unlink()


def test_bootstrap_is_not_for_streams_nor_for_exact_training(lab):
    streamed = stream(lab.data, in_resident_order(lab.data, 5, 16))
    with pytest.raises(InputError, match=r"bootstrap needs rows in memory.*'test'"):
        train(lab.build(), lab.members(2), streamed, lab.validation, lab.settings(bootstrap=True))
    with pytest.raises(InputError, match="bootstrap is not for exact training"):
        lab.settings(objective="mml", bootstrap=True)
    with pytest.raises(InputError, match="bootstrap must be True or False"):
        lab.settings(bootstrap=3)


# --- streams ---


def stream(data: Rows, epochs: Callable[[int], Iterable[tuple[Tensor, Tensor]]], rows: int | None = None) -> Stream:
    return Stream(epochs, rows=rows or len(data), columns=data.x.shape[1], name="test")


def in_resident_order(data: Rows, seed: int, batch_size: int) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    def open_epoch(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in shuffled(torch.tensor([seed]), epoch, len(data))[0].split(batch_size):
            yield data.x[rows], data.y[rows]

    return open_epoch


@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_a_stream_of_the_same_batches_is_the_same_training(lab, method):
    member = lab.members(1)
    streamed = stream(lab.data, in_resident_order(lab.data, member[0].seed, 16))
    settings = lab.settings(method, epochs=10, schedule="cosine", warmup_steps=5)
    a, b = (train(lab.build(method), member, data, lab.validation, settings)[0] for data in (lab.data, streamed))
    assert lab.difference(a, b) < 1e-12


def test_members_share_the_batches_of_a_stream(lab):
    """Each ends as it does alone on the same stream."""
    streamed = stream(lab.data, in_resident_order(lab.data, 5, 16))
    settings = lab.settings(epochs=6)
    together = train(lab.build(), lab.members(3), streamed, lab.validation, settings)
    for member, outcome in zip(lab.members(3), together, strict=True):
        alone = train(lab.build(), [member], streamed, lab.validation, settings)[0]
        assert lab.difference(outcome, alone) < 1e-12


def test_exact_training_from_a_stream(lab):
    """The chunks are the stream's own; their sums are those of the rows in memory."""
    streamed = stream(lab.data, in_resident_order(lab.data, 5, 16))
    settings = lab.settings(objective="mml", epochs=10)
    for a, b in zip(
        *(train(lab.build(), lab.members(2), data, lab.validation, settings) for data in (lab.data, streamed)),
        strict=True,
    ):
        assert lab.difference(a, b) < 1e-10


def test_exact_training_takes_a_pass_where_the_stream_has_one(lab):
    """And no epoch: those are shuffled, and read ahead."""
    asked = []

    def in_order(rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        asked.append(rows)
        yield from zip(lab.data.x.split(rows), lab.data.y.split(rows), strict=True)

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        raise AssertionError("an epoch was opened")

    passes = Stream(epoch, len(lab.data), lab.data.x.shape[1], "test", open_pass=in_order)
    settings = lab.settings(objective="mml", epochs=3, chunk_rows=7)
    for a, b in zip(
        *(train(lab.build(), lab.members(2), data, lab.validation, settings) for data in (lab.data, passes)),
        strict=True,
    ):
        assert lab.difference(a, b) < 1e-10
    assert asked == [7] * (1 + 2 * 3)


def test_a_streamed_batch_is_filled_with_rows_of_its_own(lab):
    source = Streamed(stream(numbered(50), in_resident_order(numbered(50), 3, 16)), 16, CPU, torch.float64)
    *full, last = epoch_of(source, 2)
    order = shuffled(torch.tensor([3]), 2, 50)[0]
    assert source.steps == len(full) + 1 == 4
    assert torch.equal(torch.cat([batch.x[:, 0] for batch in full]).long(), order[:48])
    assert torch.equal(last.x[:2, 0].long(), order[48:])
    assert set(last.x[:, 0].long().tolist()) == set(order[48:].tolist())
    assert torch.equal(last.y, 3 * last.x[:, 0])
    assert last.weight.tolist() == [1.0] * 2 + [0.0] * 14


def test_a_batch_after_a_smaller_one_has_all_its_weights(lab):
    data = numbered(12)
    sizes = [(0, 2), (2, 8), (8, 12)]
    batches = [(data.x[a:b], data.y[a:b]) for a, b in sizes]
    source = Streamed(stream(data, lambda epoch: batches), 6, CPU, torch.float64)
    assert [float(batch.weight.sum()) for batch in epoch_of(source, 0)] == [2.0, 6.0, 4.0]


BAD_BATCHES = {
    "too many columns": (torch.zeros(4, 4), torch.zeros(4)),
    "more rows than targets": (torch.zeros(4, 3), torch.zeros(3)),
    "targets with an axis too many": (torch.zeros(4, 3), torch.zeros(4, 1)),
    "a row without its axis": (torch.zeros(3), torch.zeros(1)),
    "no rows": (torch.zeros(0, 3), torch.zeros(0)),
}


@pytest.mark.parametrize("bad", BAD_BATCHES)
@pytest.mark.parametrize("objective", ["dppgp", "mml"])
def test_a_streamed_batch_of_a_wrong_shape_is_refused(lab, bad, objective):
    good = (lab.data.x[:16], lab.data.y[:16])
    streamed = stream(lab.data, lambda epoch: [good, BAD_BATCHES[bad]])
    with pytest.raises(InputError, match=r"stream 'test'.*\[b, 3\]"):
        train(lab.build(), lab.members(1), streamed, lab.validation, lab.settings(objective=objective))


def test_a_streamed_batch_that_is_too_large_is_refused(lab):
    streamed = stream(lab.data, lambda epoch: [(lab.data.x[:17], lab.data.y[:17])])
    with pytest.raises(InputError, match=r"17 rows, at most 16"):
        train(lab.build(), lab.members(1), streamed, lab.validation, lab.settings())


def test_a_stream_that_has_run_dry_is_refused(lab):
    """A generator can be walked through once: from the second epoch on nothing would be trained."""
    once = in_resident_order(lab.data, 5, 16)(0)
    with pytest.raises(InputError, match="test"):
        train(lab.build(), lab.members(1), stream(lab.data, lambda epoch: once), lab.validation, lab.settings())


# --- what rows may be ---

X, Y = torch.arange(12.0).view(6, 2), torch.arange(6.0)
NAN_AT_2 = Y.clone().index_fill_(0, torch.tensor([2]), float("nan"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((X, Y[:5]), "x has 6 rows but y has 5"),
        ((X, Y, Y[:5]), "x has 6 rows but weight has 5"),
        ((X[:, 0], Y), r"x must be a matrix \[n, d\], got shape \[6\]"),
        ((X, Y[:, None]), r"y must be a vector \[n\], got shape \[6, 1\]"),
        ((X, Y, Y[:, None]), "x has 6 rows but weight has 1"),
        ((X[:0], Y[:0]), "x is empty"),
        ((X.long(), Y), "floating point"),
        ((X.numpy(), Y), "torch.Tensor"),
        ((X, NAN_AT_2), r"y has 1 entries that are not finite, the first at index \[2\]"),
        ((X / 0.0, Y), "x has 12 entries that are not finite"),
        ((X, Y, NAN_AT_2), "weight has 1 entries"),
        ((X, Y, Y - 1.0), "weight must not be negative"),
        ((X, Y, Y * 0.0), "not zero everywhere"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        Rows(*arguments)


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, True, "16"])
def test_a_batch_size_must_be_a_positive_integer(batch_size):
    with pytest.raises(InputError, match="batch_size"):
        Resident(numbered(5), [1], batch_size)


def test_a_fingerprint_tells_data_apart():
    data = Rows(X, Y, Y + 1.0)
    others = [
        Rows(X, Y),
        Rows(X.clone().index_fill_(0, torch.tensor([5]), 0.5), Y, Y + 1.0),
        Rows(X, Y.flip(0), Y + 1.0),
        Rows(X, Y, Y + 2.0),
        Rows(X.double(), Y, Y + 1.0),
        Rows(X[:3], Y[:3], Y[:3] + 1.0),
        Rows(X.reshape(3, 4), Y[:3]),
        stream(data, lambda epoch: []),
        stream(data, lambda epoch: [], rows=7),
    ]
    fingerprints = [rows.fingerprint() for rows in (data, *others)]
    assert len(set(fingerprints)) == len(fingerprints)
    assert Rows(X.mT.contiguous().mT, Y.clone(), Y + 1.0).fingerprint() == data.fingerprint()
