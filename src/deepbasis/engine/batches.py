"""Where batches come from: rows resident on the device, or a stream of them.

The engine sees one interface. `start_epoch` and `advance` run on the host; `take` is device work alone, without a
synchronisation, so that a whole training step can be one CUDA graph.

With several workers a batch of `batch_size` rows is in parts, one for each: they give what one worker would have.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.shuffling import resampled, shuffled
from deepbasis.errors import InputError, WorkerError, check_positive_int, check_same_length, check_tensor


class Batch(NamedTuple):
    x: Tensor
    """[E, b, d], or [b, d] where every member sees the same rows."""
    y: Tensor
    weight: Tensor | None
    """None, or a weight per row: 0 fills up the last, smaller batch of an epoch."""
    whole_weight: Tensor | None = None
    """For a batch of several workers: the sum of the weights of all its rows over the number of workers. [E] or []."""


class Batches(Protocol):
    """What the engine asks of a source."""

    rows: int
    steps: int
    """Batches an epoch; an estimate where the data are streamed."""
    shared: bool
    """Whether every member sees the same batches."""

    reorder: Callable[[], None]
    """Device work at the start of an epoch; the engine may put a CUDA graph of it in its place."""

    def start_epoch(self, epoch: int) -> None: ...
    def advance(self) -> bool:
        """Make the next batch ready; False at the end of the epoch."""
        ...

    def take(self) -> Batch: ...
    def chunks(self, rows: int) -> Iterator[Batch]:
        """All rows once, in a fixed order, for exact inference."""
        ...


@dataclass(frozen=True)
class Rows:
    """A data set in memory: x [n, d], y [n] and perhaps a weight per row [n]. Every worker has all of it."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        check_tensor("x", self.x, 2)
        check_tensor("y", self.y, 1)
        check_same_length("x", self.x, "y", self.y)
        if self.weight is not None:
            check_tensor("weight", self.weight, 1)
            check_same_length("x", self.x, "weight", self.weight)
            if bool((self.weight < 0).any()) or not bool((self.weight > 0).any()):
                raise InputError("weight must not be negative, and not zero everywhere")

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        weight = None if self.weight is None else self.weight.to(device, dtype)
        return Rows(self.x.to(device, dtype), self.y.to(device, dtype), weight)

    def fingerprint(self) -> str:
        """Tells data sets apart: SHA-256 of shapes, dtypes and values."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, self.weight):
            if tensor is not None:
                digest.update(f"{list(tensor.shape)}{tensor.dtype}".encode())
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def batches(
        self,
        seeds: list[int],
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
        team: Team = ALONE,
        *,
        bootstrap: bool = False,
    ) -> "Resident":
        return Resident(self._present().to(device, dtype), seeds, batch_size, team, bootstrap=bootstrap)

    def part(self, team: Team) -> Batch:
        """A worker's share of the rows. All have equally many: rows of weight 0 fill up what is missing."""
        if team.alone:
            return Batch(self.x, self.y, self.weight)
        rows = team.share(len(self))
        mine = slice(rows * team.rank, rows * (team.rank + 1))
        missing = rows - len(self.y[mine])
        weight = torch.ones_like(self.y) if self.weight is None else self.weight
        return Batch(
            torch.cat([self.x[mine], self.x[:1].expand(missing, -1)]),
            torch.cat([self.y[mine], self.y[:1].expand(missing)]),
            torch.cat([weight[mine], weight.new_zeros(missing)]),
            weight.sum() / team.size,
        )

    def _present(self) -> "Rows":
        """Without rows of weight 0: a batch of nothing else has no mean."""
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        keep = self.weight > 0
        return Rows(self.x[keep], self.y[keep], self.weight[keep])


@dataclass(frozen=True)
class Stream:
    """A data set too large to hold. `open_epoch(epoch)` gives batches (x [b, d], y [b]) of at most the batch size, or
    (x, y, weight [b]) with positive weights.

    Every member sees the same batches. `name` stands for the data in a checkpoint, which cannot look at all of them.
    With several workers `open_epoch` gives the batches of this one's shard, of at most `team.share(batch_size)` rows;
    `rows` is the number of all.
    """

    open_epoch: Callable[[int], Iterable[tuple[Tensor, ...]]]
    rows: int
    columns: int
    name: str
    epoch_rows: int | None = None
    """Rows of one epoch of all workers, where an epoch is not a pass over all rows."""
    total_weight: float | None = None
    """The sum of the weights of all rows, where batches carry a weight [b] as a third tensor."""
    open_pass: Callable[[int], Iterable[tuple[Tensor, ...]]] | None = None
    """Every row of this worker's once, at most so many at a time, in a fixed order: what exact training takes. Without
    it that takes epoch 0, which must then be all rows."""

    def __len__(self) -> int:
        return self.rows

    def fingerprint(self) -> str:
        return f"stream {self.name}: {self.rows} x {self.columns}"

    def batches(
        self,
        seeds: list[int],
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
        team: Team = ALONE,
        *,
        bootstrap: bool = False,
    ) -> "Streamed":
        if bootstrap:
            raise InputError(
                f"bootstrap needs rows in memory: every member sees the same batches of stream {self.name!r}; "
                "set bootstrap=False, or train on Rows"
            )
        return Streamed(self, batch_size, device, dtype, team)


class Resident:
    """Rows on the device. Each member walks through all of them in an order of its own, anew each epoch.

    A member's order is a function of its seed and the epoch alone: the same on every device, among any number of
    members, and after a resume. When one batch holds all rows there is no order, and the members share it. Of several
    workers each finds the same order, and takes its share of every batch.

    With `bootstrap` what a member walks through is a sample of its own, of as many rows, drawn with replacement by its
    seed alone: the same in every epoch. Then nothing is shared.
    """

    def __init__(
        self, data: Rows, seeds: list[int], batch_size: int, team: Team = ALONE, *, bootstrap: bool = False
    ) -> None:
        self.data, self.team, self._bootstrap = data, team, bootstrap
        self.rows = n = len(data)
        self.batch_size = b = min(check_positive_int("batch_size", batch_size), n)
        self.steps = -(-n // b)
        self.shared = self.steps == 1 and not bootstrap
        self._share = team.share(b)
        device = data.x.device
        self._seeds = torch.tensor(seeds, dtype=torch.int64, device=device)
        orders = 0 if self.shared else self.steps
        self._order = torch.zeros(orders, len(seeds), self._share, dtype=torch.int64, device=device)
        self._epoch = torch.zeros((), dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._given = 0
        self._padding = self.steps * b - n
        self._mask: Tensor | None = None
        if self._padding or team.size * self._share > b:
            mask = torch.zeros(self.steps, team.size * self._share, dtype=data.x.dtype, device=device)
            mask[:, :b] = 1.0
            mask[-1, b - self._padding :] = 0.0
            self._mask = self._mine(mask)
        self._whole_weight = torch.zeros(orders, len(seeds), dtype=data.x.dtype, device=device)
        self.reorder: Callable[[], None] = self._reorder

    def start_epoch(self, epoch: int) -> None:
        self._given = 0
        if not self.shared:
            self._epoch.fill_(epoch)
            self.reorder()

    def _reorder(self) -> None:
        self._step.zero_()
        order = shuffled(self._seeds, self._epoch, self.rows)  # [E, n]
        if self._bootstrap:
            order = resampled(self._seeds, order, self.rows)
        # The last batch is filled up with a row of its own, of weight 0: its largest ||phi||^2 stays what it was.
        filler = order[:, -(self.batch_size - self._padding)].unsqueeze(1).expand(-1, self._padding)
        full = torch.cat([order, filler], 1).view(len(order), self.steps, self.batch_size)
        if not self.team.alone:
            self._weigh(order)
            missing = self.team.size * self._share - self.batch_size  # the shares are of one size
            full = self._mine(torch.cat([full, full[..., :1].expand(-1, -1, missing)], -1))
        self._order.copy_(full.transpose(0, 1))

    def _weigh(self, order: Tensor) -> None:
        """Each worker knows all rows, so it knows the weight of a batch without asking the others."""
        weight = torch.ones_like(self.data.y) if self.data.weight is None else self.data.weight
        weight = torch.cat([self._pick(weight, order), weight.new_zeros(len(order), self._padding)], 1)
        total = weight.view(len(order), self.steps, self.batch_size).sum(-1)
        self._whole_weight.copy_(total.T / self.team.size)

    def _mine(self, batches: Tensor) -> Tensor:
        return batches.narrow(-1, self._share * self.team.rank, self._share)

    def advance(self) -> bool:
        self._given += 1
        return self._given <= self.steps

    def take(self) -> Batch:
        if self.shared:
            return self._part
        index = self._order.index_select(0, self._step)[0]  # [E, b]; plain indexing would synchronise
        weight = None if self._mask is None else self._mask.index_select(0, self._step).expand(index.shape)
        if self.data.weight is not None:
            own = self._pick(self.data.weight, index)
            weight = own if weight is None else own * weight
        whole_weight = None if self.team.alone else self._whole_weight.index_select(0, self._step)[0]
        self._step.add_(1)
        return Batch(self._pick(self.data.x, index), self._pick(self.data.y, index), weight, whole_weight)

    @cached_property
    def _part(self) -> Batch:
        """One batch of all rows, or this worker's part of it."""
        return self.data.part(self.team)

    def chunks(self, rows: int) -> Iterator[Batch]:
        x, y, weight, _ = self._part
        for start in range(0, len(y), rows):
            part = slice(start, start + rows)
            yield Batch(x[part], y[part], None if weight is None else weight[part])

    @staticmethod
    def _pick(values: Tensor, index: Tensor) -> Tensor:
        return values.index_select(0, index.flatten()).view(*index.shape, *values.shape[1:])


_ANOTHER = "another worker could not read its part of the data; its own message says why"


class Streamed:
    """Batches of a `Stream`, copied one at a time into a fixed place on the device.

    Several workers take a step together as long as any has rows; one that has none goes on with rows of weight 0. How
    many they have is asked one step ahead, so that nobody waits for the answer.
    """

    def __init__(
        self, stream: Stream, batch_size: int, device: torch.device, dtype: torch.dtype, team: Team = ALONE
    ) -> None:
        self.stream, self.team = stream, team
        self.rows = check_positive_int("rows", stream.rows)
        self.steps = -(-(stream.epoch_rows or self.rows) // check_positive_int("batch_size", batch_size))
        self.batch_size = share = team.share(batch_size)
        self.shared = True
        self._x = torch.zeros(share, stream.columns, device=device, dtype=dtype)
        self._y = torch.zeros(share, device=device, dtype=dtype)
        self._weight = torch.zeros(share, device=device, dtype=dtype)
        self._whole_weight = None if team.alone else torch.zeros((), device=device, dtype=dtype)
        self._batches: Iterator[tuple[Tensor, ...]] = iter(())
        self._next: tuple[Tensor, ...] | None = None
        self._error: Exception | None = None
        self._weight_of_all: Callable[[], float] | None = None
        self.reorder: Callable[[], None] = lambda: None

    def start_epoch(self, epoch: int) -> None:
        if self._weight_of_all is not None:  # the last epoch was cut short
            self._weight_of_all()
        self._weight_of_all = None
        self._given = 0
        self._batches = self._opened(epoch)

    def _opened(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Opened when the first batch is wanted: exact training wants none; others are told of an error then."""
        yield from self.stream.open_epoch(epoch)

    def advance(self) -> bool:
        weight = (self._weight_of_all or self._look_ahead())()
        self._weight_of_all = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if math.isnan(weight):
            raise WorkerError(_ANOTHER)
        if weight == 0.0:
            if self._given == 0:
                raise InputError(
                    f"stream {self.stream.name!r} has no batches in this epoch; `open_epoch` must start again at each "
                    "call, not return one iterator twice"
                )
            return False
        self._given += 1
        self._place(weight)
        if not self.team.alone:
            self._weight_of_all = self._look_ahead()
        return True

    def _look_ahead(self) -> Callable[[], float]:
        """Take the next batch from the stream, and begin to add up its weight over all workers; NaN is an error."""
        try:
            self._next = next(self._batches, None)
            weight = 0.0 if self._next is None else self._weight_of(*self._next)
        except Exception as error:  # raised by `advance`, when the others know
            self._error, weight = error, math.nan
        return self.team.begin_sum(weight)

    def _place(self, weight_of_all: float) -> None:
        self._weight.zero_()
        if self._next is not None:
            x, y, *weight = self._next
            b = len(y)
            for place, values in ((self._x, x), (self._y, y)):
                place[:b].copy_(values, non_blocking=True)
                place[b:].copy_(place[:1].expand_as(place[b:]))  # a row of the batch itself, of weight 0
            self._weight[:b] = weight[0].to(self._weight, non_blocking=True) if weight else 1.0
        if self._whole_weight is not None:
            self._whole_weight.fill_(weight_of_all / self.team.size)

    def take(self) -> Batch:
        return Batch(self._x, self._y, self._weight, self._whole_weight)

    def chunks(self, rows: int) -> Iterator[Batch]:
        none, failure = True, None
        try:
            opened = self.stream.open_pass
            for x, y, *weight in self.stream.open_epoch(0) if opened is None else opened(rows):
                self._check_shapes(x, y, *weight)
                none = False
                yield Batch(x.to(self._x), y.to(self._y), weight[0].to(self._weight) if weight else None)
        except Exception as error:  # raised when the others, who wait for this worker's sum, know
            failure = error
        if self.team.agree(failure is not None):
            raise failure or WorkerError(_ANOTHER)
        if none and not self.team.alone:  # the others may have rows
            yield Batch(*(torch.zeros_like(place[:1]) for place in (self._x, self._y, self._weight)))

    def _weight_of(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> float:
        self._check_shapes(x, y, weight)
        if len(x) > self.batch_size:
            raise InputError(f"stream {self.stream.name!r}: a batch of {len(x)} rows, at most {self.batch_size} fit")
        return float(len(x)) if weight is None else float(weight.double().sum())

    def _check_shapes(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        if x.dim() != 2 or x.shape[1] != self.stream.columns or x.shape[:1] != y.shape or not len(x) > 0:
            raise InputError(
                f"stream {self.stream.name!r}: a batch must be x [b, {self.stream.columns}] and y [b], "
                f"got {list(x.shape)} and {list(y.shape)}"
            )
        if weight is not None and (weight.shape != y.shape or not bool((weight > 0.0).all())):
            raise InputError(f"stream {self.stream.name!r}: a batch's weights must be positive, one for each row")
