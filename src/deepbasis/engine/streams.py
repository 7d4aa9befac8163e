"""Batches of a data set too large to hold, read again in each epoch."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis.engine.batches import Batch, Resident
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.errors import InputError, WorkerError, check_positive_int

_ANOTHER = "another worker could not read its part of the data; its own message says why"


@dataclass(frozen=True)
class Stream:
    """A data set too large to hold. `open_epoch(epoch)` gives batches (x [b, d], y [b]) of at most the batch size, or
    (x, y, weight [b]) with positive weights.

    Every member sees the same batches. `name` identifies the data in a checkpoint, which cannot hash all of them.
    With several workers `open_epoch` gives the batches of this one's shard, of at most `team.share(batch_size)` rows;
    `rows` is the number of all.
    """

    open_epoch: Callable[[int], Iterable[tuple[Tensor, ...]]]
    rows: int
    columns: int
    name: str
    epoch_rows: int | None = None
    """Rows of one epoch over all workers, if an epoch is not a pass over all rows."""
    total_weight: float | None = None
    """The sum of the weights of all rows, if batches carry a weight [b] as a third tensor."""
    target_numbers: int = 1
    """Of each row: more than one where a likelihood takes more, and y is [b, k]."""
    open_pass: Callable[[int], Iterable[tuple[Tensor, ...]]] | None = None
    """Every row of this worker once, at most this many at a time, in a fixed order, for exact training. Without it,
    exact training uses epoch 0, which must then hold all rows."""

    def __len__(self) -> int:
        return self.rows

    def fingerprint(self) -> str:
        return f"stream {self.name}: {self.rows} x {self.columns}"


class Streamed:
    """Batches of a `Stream`, copied one at a time into a fixed place on the device.

    Several workers take a step together as long as any has rows; one that has none continues with rows of weight 0. How
    many rows there are is asked one step ahead, so that nobody waits for the answer.
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
        numbers = (stream.target_numbers,) * (stream.target_numbers > 1)
        self._y = torch.zeros(share, *numbers, device=device, dtype=dtype)
        self._weight = torch.zeros(share, device=device, dtype=dtype)
        self._whole_weight = None if team.alone else torch.zeros((), device=device, dtype=dtype)
        self._batches: Iterator[tuple[Tensor, ...]] = iter(())
        self._next: tuple[Tensor, ...] | None = None
        self._error: Exception | None = None
        self._weight_of_all: Callable[[], float] | None = None
        self.recorded: Callable[[], None] | None = None

    def start_epoch(self, epoch: int) -> None:
        if self._weight_of_all is not None:  # the last epoch was cut short
            self._weight_of_all()
        self._weight_of_all = None
        self._given = 0
        self._batches = self._opened(epoch)

    def reorder(self) -> None:
        """The rows come in the stream's order."""

    def _opened(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Opened when the first batch is wanted: exact training needs none. The other workers learn of errors then."""
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
        of_row = self._y.shape[1:]
        if x.dim() != 2 or x.shape[1] != self.stream.columns or (*x.shape[:1], *of_row) != y.shape or not len(x) > 0:
            many = "".join(f", {count}" for count in of_row)
            raise InputError(
                f"stream {self.stream.name!r}: a batch must be x [b, {self.stream.columns}] and y [b{many}], "
                f"got {list(x.shape)} and {list(y.shape)}"
            )
        if weight is not None and (weight.shape != y.shape[:1] or not bool((weight > 0.0).all())):
            raise InputError(f"stream {self.stream.name!r}: a batch's weights must be positive, one for each row")


Batches = Resident | Streamed
