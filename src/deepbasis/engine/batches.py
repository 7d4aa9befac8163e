"""Where batches come from: rows resident on the device, or a stream of them.

The engine sees one interface. `start_epoch` and `advance` run on the host; `take` is device work alone, without a
synchronisation, so that a whole training step can be one CUDA graph.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from deepbasis.errors import InputError, check_positive_int, check_same_length, check_tensor


class Batch(NamedTuple):
    x: Tensor
    """[E, b, d], or [b, d] where every member sees the same rows."""
    y: Tensor
    weight: Tensor | None
    """None, or a weight per row: 0 fills up the last, smaller batch of an epoch."""


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
    """A data set in memory: x [n, d], y [n] and perhaps a weight per row [n]."""

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

    def batches(self, seeds: list[int], batch_size: int, device: torch.device, dtype: torch.dtype) -> "Resident":
        return Resident(self._present().to(device, dtype), seeds, batch_size)

    def _present(self) -> "Rows":
        """Without rows of weight 0: a batch of nothing else has no mean."""
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        keep = self.weight > 0
        return Rows(self.x[keep], self.y[keep], self.weight[keep])


@dataclass(frozen=True)
class Stream:
    """A data set too large to hold. `open_epoch(epoch)` gives batches (x [b, d], y [b]) of at most the batch size.

    Every member sees the same batches. `name` stands for the data in a checkpoint, which cannot look at all of them.
    """

    open_epoch: Callable[[int], Iterable[tuple[Tensor, Tensor]]]
    rows: int
    columns: int
    name: str

    def __len__(self) -> int:
        return self.rows

    def fingerprint(self) -> str:
        return f"stream {self.name}: {self.rows} x {self.columns}"

    def batches(self, seeds: list[int], batch_size: int, device: torch.device, dtype: torch.dtype) -> "Streamed":
        return Streamed(self, batch_size, device, dtype)


class Resident:
    """Rows on the device. Each member walks through all of them in an order of its own, anew each epoch.

    A member's order is a function of its seed and the epoch alone: the same on every device, among any number of
    members, and after a resume. When one batch holds all rows there is no order, and the members share it.
    """

    def __init__(self, data: Rows, seeds: list[int], batch_size: int) -> None:
        self.data = data
        self.rows = n = len(data)
        self.batch_size = b = min(check_positive_int("batch_size", batch_size), n)
        self.steps = -(-n // b)
        self.shared = self.steps == 1
        device = data.x.device
        self._seeds = torch.tensor(seeds, dtype=torch.int64, device=device)
        orders = 0 if self.shared else self.steps
        self._order = torch.zeros(orders, len(seeds), b, dtype=torch.int64, device=device)
        self._epoch = torch.zeros((), dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._given = 0
        self._padding = self.steps * b - n
        self._mask: Tensor | None = None
        if self._padding:
            self._mask = torch.ones(self.steps, b, dtype=data.x.dtype, device=device)
            self._mask[-1, b - self._padding :] = 0.0
        self.reorder: Callable[[], None] = self._reorder

    def start_epoch(self, epoch: int) -> None:
        self._given = 0
        if not self.shared:
            self._epoch.fill_(epoch)
            self.reorder()

    def _reorder(self) -> None:
        self._step.zero_()
        order = shuffled(self._seeds, self._epoch, self.rows)  # [E, n]
        # The last batch is filled up with a row of its own, of weight 0: its largest ||phi||^2 stays what it was.
        filler = order[:, -(self.batch_size - self._padding)].unsqueeze(1).expand(-1, self._padding)
        full = torch.cat([order, filler], 1).view(len(order), self.steps, self.batch_size)
        self._order.copy_(full.transpose(0, 1))

    def advance(self) -> bool:
        self._given += 1
        return self._given <= self.steps

    def take(self) -> Batch:
        if self.shared:
            return Batch(self.data.x, self.data.y, self.data.weight)
        index = self._order.index_select(0, self._step)[0]  # [E, b]; plain indexing would synchronise
        weight = None if self._mask is None else self._mask.index_select(0, self._step).expand(index.shape)
        if self.data.weight is not None:
            own = self._pick(self.data.weight, index)
            weight = own if weight is None else own * weight
        self._step.add_(1)
        return Batch(self._pick(self.data.x, index), self._pick(self.data.y, index), weight)

    def chunks(self, rows: int) -> Iterator[Batch]:
        for start in range(0, self.rows, rows):
            part = slice(start, start + rows)
            weight = None if self.data.weight is None else self.data.weight[part]
            yield Batch(self.data.x[part], self.data.y[part], weight)

    @staticmethod
    def _pick(values: Tensor, index: Tensor) -> Tensor:
        return values.index_select(0, index.flatten()).view(*index.shape, *values.shape[1:])


class Streamed:
    """Batches of a `Stream`, copied one at a time into a fixed place on the device."""

    def __init__(self, stream: Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.stream = stream
        self.rows = check_positive_int("rows", stream.rows)
        self.batch_size = check_positive_int("batch_size", batch_size)
        self.steps = -(-self.rows // batch_size)
        self.shared = True
        self._x = torch.zeros(batch_size, stream.columns, device=device, dtype=dtype)
        self._y = torch.zeros(batch_size, device=device, dtype=dtype)
        self._weight = torch.zeros(batch_size, device=device, dtype=dtype)
        self._batches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.reorder: Callable[[], None] = lambda: None

    def start_epoch(self, epoch: int) -> None:
        self._batches = iter(self.stream.open_epoch(epoch))
        self._given = 0

    def advance(self) -> bool:
        batch = next(self._batches, None)
        if batch is None:
            if self._given == 0:
                raise InputError(
                    f"stream {self.stream.name!r} has no batches in this epoch; `open_epoch` must start again at each "
                    "call, not return one iterator twice"
                )
            return False
        self._given += 1
        x, y = self._checked(*batch)
        b = len(x)
        for place, values in ((self._x, x), (self._y, y)):
            place[:b].copy_(values, non_blocking=True)
            place[b:].copy_(place[:1].expand_as(place[b:]))  # a row of the batch itself, of weight 0
        self._weight.zero_()[:b] = 1.0
        return True

    def take(self) -> Batch:
        return Batch(self._x, self._y, self._weight)

    def chunks(self, rows: int) -> Iterator[Batch]:
        for x, y in self.stream.open_epoch(0):
            self._check_shapes(x, y)
            yield Batch(x.to(self._x.device, self._x.dtype), y.to(self._y.device, self._y.dtype), None)

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self._check_shapes(x, y)
        if len(x) > self.batch_size:
            raise InputError(f"stream {self.stream.name!r}: a batch of {len(x)} rows, at most {self.batch_size} fit")
        return x, y

    def _check_shapes(self, x: Tensor, y: Tensor) -> None:
        if x.dim() != 2 or x.shape[1] != self.stream.columns or x.shape[:1] != y.shape or not len(x) > 0:
            raise InputError(
                f"stream {self.stream.name!r}: a batch must be x [b, {self.stream.columns}] and y [b], "
                f"got {list(x.shape)} and {list(y.shape)}"
            )


def shuffled(seeds: Tensor, epoch: int | Tensor, n: int) -> Tensor:
    """A permutation of 0 … n-1 for each seed [E] and epoch: rows sorted by a hash (SplitMix64) of (seed, epoch, row).

    Integer arithmetic that wraps around is the same everywhere, which a random generator's stream is not. All members
    are sorted at once, the member's number above 48 bits of hash: a GPU sorts one long list far faster than many short.
    """
    row = torch.arange(n, dtype=torch.int64, device=seeds.device)
    member = torch.arange(len(seeds), dtype=torch.int64, device=seeds.device)[:, None]
    hashed = _mix(_mix(_mix(seeds) + epoch)[:, None] + row * _GOLDEN)
    key = (member << 48) | ((hashed >> 16) & ((1 << 48) - 1))
    return key.flatten().argsort(stable=True).view(len(seeds), n) - member * n


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def _mix(z: Tensor) -> Tensor:
    z = z + _GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _signed(
            factor
        )  # a logical shift: torch's keeps the sign
    return z ^ ((z >> 31) & ((1 << 33) - 1))
