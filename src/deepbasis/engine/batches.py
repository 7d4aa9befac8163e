"""Where batches come from: rows resident on the device; `streams.py` has a stream of them.

Both have one interface. `start_epoch`, and `advance`, which makes the next batch ready, run on the host; `take` is
device work only, without a synchronisation, so that a whole training step can be one CUDA graph. So is `reorder`, at
the start of an epoch; `recorded` is a CUDA graph that the engine may put in its place. `chunks` gives all rows once, in
a fixed order, for exact inference. If `shared`, every member sees the same batches.

With several workers each has a part of a batch of `batch_size` rows; together they give what one worker would.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis import storage
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.errors import InputError, check_positive_int, check_same_length, check_tensor
from deepbasis.hashing import GOLDEN, splitmix64


class Batch(NamedTuple):
    x: Tensor
    """[E, b, d], or [b, d] where every member sees the same rows."""
    y: Tensor
    weight: Tensor | None
    """None, or a weight per row, perhaps another for each member: 0 fills up the last, smaller batch of an epoch."""
    whole_weight: Tensor | None = None
    """For a batch of several workers: the sum of the weights of all its rows over the number of workers. [E] or []."""


class Numbered(NamedTuple):
    """What a kernel needs that takes batches of resident rows by itself."""

    order: Tensor
    """The rows' numbers [steps, E, b]."""
    step: Tensor
    """[1]: how many batches of the epoch have been taken."""
    advance: bool
    """Whether to count them: not where there is only one."""
    mask: Tensor
    """[steps, E, b]: 0 for a row that only fills up, 1 for others."""
    weights: Tensor | None
    """Of the rows, [n] or [E, n]."""


def filled(x: Tensor, y: Tensor, weight: Tensor | None, missing: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [n, d], y [n, ...] and weights [n] or [E, n], with so many rows of weight 0 more."""
    weight = y.new_ones(len(y)) if weight is None else weight
    nothing = weight.new_zeros(*weight.shape[:-1], missing)
    x = torch.cat([x, x[:1].expand(missing, -1)])
    return x, torch.cat([y, y[:1].expand(missing, *y.shape[1:])]), torch.cat([weight, nothing], -1)


@dataclass(frozen=True)
class Rows:
    """A data set in memory: x [n, d], y [n] and perhaps a weight per row [n]. Every worker has all of it.

    A likelihood may take more of a target than a number: y is then [n, k], and the number comes first.
    With weights [E, n] each member has its own: rows of weight 0 do not exist for it, as those that it holds out.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        check_tensor("x", self.x, 2)
        several = isinstance(self.y, Tensor) and self.y.dim() == 2 and self.y.shape[1] > 1
        check_tensor("y", self.y, 2 if several else 1)
        check_same_length("x", self.x, "y", self.y)
        if self.weight is not None:
            check_tensor("weight", self.weight, 2 if isinstance(self.weight, Tensor) and self.weight.dim() == 2 else 1)
            check_same_length("x", self.x, "weight", self.weight.mT if self.of_members else self.weight)
            if bool((self.weight < 0).any()) or not bool((self.weight > 0).any(-1).all()):
                raise InputError("weight must not be negative, and not zero everywhere")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def number(self) -> Tensor:
        """The target as one number a row."""
        return self.y if self.y.dim() == 1 else self.y[:, 0]

    @property
    def of_members(self) -> bool:
        """Whether each member has its own weights."""
        return self.weight is not None and self.weight.dim() == 2

    def seen_by(self, members: list[int]) -> "Rows":
        """For some of the members."""
        return replace(self, weight=self.weight[members]) if self.weight is not None and self.of_members else self

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """Contiguous too, since kernels read rows by their addresses."""
        x, y = (values.to(device, dtype).contiguous() for values in (self.x, self.y))
        return Rows(x, y, None if self.weight is None else self.weight.to(device, dtype).contiguous())

    def fingerprint(self) -> str:
        """Distinguishes data sets, by shapes, dtypes and values."""
        return storage.digest({name: values for name, values in vars(self).items() if values is not None}, {})

    def part(self, team: Team) -> Batch:
        """A worker's share of the rows. All shares have the same size, filled up with rows of weight 0."""
        if team.alone:
            return Batch(self.x, self.y, self.weight)
        rows = team.share(len(self))
        x, y, weight = filled(self.x, self.y, self.weight, rows * team.size - len(self))
        mine = slice(rows * team.rank, rows * (team.rank + 1))
        return Batch(x[mine], y[mine], weight[..., mine], weight.sum(-1) / team.size)

    def present(self) -> "Rows":
        """Without rows of weight 0: a batch of only those has no mean."""
        if self.weight is None:
            return self
        seen = (self.weight > 0).any(0) if self.of_members else self.weight > 0
        return self if bool(seen.all()) else self.where(seen)

    def where(self, keep: Tensor) -> "Rows":
        return Rows(self.x[keep], self.y[keep], None if self.weight is None else self.weight[..., keep])


class Resident:
    """Rows on the device. Each member goes through all of them in its own order, a new one each epoch.

    A member's order depends only on its seed and the epoch: the same on every device, among any number of members, and
    after a resume. If one batch holds all rows there is no order, and the members share it. With several workers each
    computes the same order and takes its share of every batch.

    With weights of their own, members go through the rows that they have; one that has fewer than another begins again.

    With `bootstrap` a member goes through its own sample of the same size, drawn with replacement from its seed, the
    same in every epoch. Then nothing is shared.
    """

    def __init__(
        self, data: Rows, seeds: list[int], batch_size: int, team: Team = ALONE, *, bootstrap: bool = False
    ) -> None:
        self.data, self.team, self._bootstrap = data, team, bootstrap
        self._counts: Tensor | None = None  # of the rows that each member has
        if data.weight is not None and data.of_members:
            self._counts = (data.weight > 0).sum(1)
            if bootstrap:
                raise InputError("bootstrap draws from rows that all members have: leave out their own weights")
        self.rows = n = len(data) if self._counts is None else int(self._counts.max())
        self.batch_size = b = min(check_positive_int("batch_size", batch_size), n)
        self.steps = -(-n // b)
        one_batch = self.steps == 1 and not bootstrap
        self.shared = one_batch and self._counts is None
        self._always_the_same = one_batch and (self.shared or team.alone)
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
        self.recorded: Callable[[], None] | None = None

    def start_epoch(self, epoch: int) -> None:
        self._given = 0
        if not self._always_the_same:
            self._epoch.fill_(epoch)
            (self.recorded or self.reorder)()

    def reorder(self) -> None:
        self._step.zero_()
        order = self._own(shuffled(self._seeds, self._epoch, len(self.data)))  # [E, n]
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
        """Each worker has all rows, so it knows the weight of a batch without asking the others."""
        weight = self._weights(order)
        weight = torch.cat([weight, weight.new_zeros(len(order), self._padding)], 1)
        total = weight.view(len(order), self.steps, self.batch_size).sum(-1)
        self._whole_weight.copy_(total.T / self.team.size)

    def _own(self, order: Tensor) -> Tensor:
        """Of rows in some order [E, N], those that each member has [E, n]."""
        if self._counts is None:
            return order
        away = (self._weights(order) == 0).byte()
        places = torch.arange(self.rows, device=order.device) % self._counts[:, None]
        return order.gather(1, away.argsort(dim=1, stable=True)).gather(1, places)

    def _weights(self, index: Tensor) -> Tensor:
        weight = self.data.weight
        if weight is None:
            return self.data.y.new_ones(()).expand(index.shape)
        return weight.gather(1, index) if self.data.of_members else self._pick(weight, index)

    def _mine(self, batches: Tensor) -> Tensor:
        return batches.narrow(-1, self._share * self.team.rank, self._share)

    def advance(self) -> bool:
        """False at the end of the epoch."""
        self._given += 1
        return self._given <= self.steps

    def take(self) -> Batch:
        if self._always_the_same:
            return self._part
        index = self._order.index_select(0, self._step)[0]  # [E, b]; plain indexing would synchronise
        weight = None if self._mask is None else self._mask.index_select(0, self._step).expand(index.shape)
        if self.data.weight is not None:
            own = self._weights(index)
            weight = own if weight is None else own * weight
        whole_weight = None if self.team.alone else self._whole_weight.index_select(0, self._step)[0]
        self._step.add_(1)
        return Batch(self._pick(self.data.x, index), self._pick(self.data.y, index), weight, whole_weight)

    def numbered(self) -> Numbered:
        """The batches by number, for one worker."""
        members, weights = len(self._seeds), self.data.weight
        ones = self.data.y.new_ones(self.batch_size).expand(self.steps, members, -1)
        if not self._always_the_same:
            mask = ones if self._mask is None else self._mask.unsqueeze(1).expand(-1, members, -1)
            return Numbered(self._order, self._step, True, mask, weights)
        index = torch.arange(len(self.data), device=self.data.x.device).expand(members, -1)
        if self._counts is None:
            return Numbered(index.unsqueeze(0).contiguous(), self._step, False, ones, weights)
        once = torch.arange(self.rows, device=index.device) < self._counts[:, None]
        order = self._own(index).unsqueeze(0).contiguous()
        return Numbered(order, self._step, False, once.to(ones).unsqueeze(0), weights)

    @cached_property
    def _all(self) -> Batch:
        return self.data.part(self.team)

    @cached_property
    def _part(self) -> Batch:
        """One batch of all rows, or this worker's part of it; of each member's own rows, filled up with weight 0."""
        if self._counts is None:
            return self._all
        index = torch.arange(len(self.data), device=self.data.x.device).expand(len(self._counts), -1)
        index = self._own(index)
        once = torch.arange(self.rows, device=index.device) < self._counts[:, None]
        return Batch(self._pick(self.data.x, index), self._pick(self.data.y, index), self._weights(index) * once)

    def chunks(self, rows: int) -> Iterator[Batch]:
        x, y, weight, _ = self._all
        for start in range(0, len(y), rows):
            part = slice(start, start + rows)
            yield Batch(x[part], y[part], None if weight is None else weight[..., part])

    @staticmethod
    def _pick(values: Tensor, index: Tensor) -> Tensor:
        return values.index_select(0, index.flatten()).view(*index.shape, *values.shape[1:])


# ---- the order of rows, as a function of seed and epoch; a bootstrap sample of them, as a function of the seed -----


def shuffled(seeds: Tensor, epoch: int | Tensor, n: int) -> Tensor:
    """A permutation of 0 … n-1 for each seed [E] and epoch: rows sorted by a hash (SplitMix64) of (seed, epoch, row).

    Integer arithmetic that wraps around is the same everywhere, which a random generator's stream is not. All members
    are sorted at once, the member's number above 48 bits of hash: a GPU sorts one long list far faster than many short
    ones.
    """
    row = torch.arange(n, dtype=torch.int64, device=seeds.device)
    member = torch.arange(len(seeds), dtype=torch.int64, device=seeds.device)[:, None]
    hashed = _hashed(seeds, epoch, row)
    key = (member << 48) | ((hashed >> 16) & ((1 << 48) - 1))
    return key.flatten().argsort(stable=True).view(len(seeds), n) - member * n


def resampled(seeds: Tensor, places: Tensor, n: int) -> Tensor:
    """The rows, of 0 … n-1, at `places` [E, m] of the bootstrap sample of each seed [E].

    The row at a place is a hash of (seed, place), modulo n: drawn with replacement, and the same at every call. The
    hash uses an epoch before the first, so that the sample is independent of every order.
    """
    return (_hashed(seeds, -1, places) & (2**63 - 1)) % n


def _hashed(seeds: Tensor, epoch: int | Tensor, row: Tensor) -> Tensor:
    return splitmix64(splitmix64(splitmix64(seeds) + epoch)[:, None] + row * GOLDEN)
