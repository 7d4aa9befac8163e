"""Several workers, one run: the few collectives that training and statistics need. They do nothing for one worker.

A worker is a process that `torchrun` has started. CPU tensors and objects (as JSON and arrays) go through gloo, CUDA
tensors through NCCL. Whatever one worker calls here, all must call, in the same order.
"""

import os
import socket
import time
import uuid
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from deepbasis.engine import wire
from deepbasis.errors import InputError

T = TypeVar("T")

_SECONDS_BETWEEN_AGREEMENTS = 0.2
_PATIENCE = timedelta(days=30)  # one worker may have members to train long after the others have ended


@dataclass(frozen=True)
class Team:
    """The workers of a run, seen by one of them."""

    rank: int = 0
    size: int = 1
    group: Callable[[], Any] | None = None
    """Gives a gloo group for CPU tensors; None for a single worker, whose collectives do nothing.

    It is a weak reference, so that the group ends in `stop()` however long teams live. If Python ends while a thread of
    the group waits for Python's lock, to give a tensor back, the process aborts.
    """

    @property
    def alone(self) -> bool:
        return self.group is None

    @property
    def _gloo(self) -> Any:
        return self.group and self.group()

    @property
    def first(self) -> bool:
        """Whether this is the worker that writes files and prints."""
        return self.rank == 0

    def share(self, rows: int) -> int:
        """A worker's share of this many rows; the last worker may have fewer, or none."""
        return -(-rows // self.size)

    # ---- tensors -----------------------------------------------------------------------------------------------

    def sum_(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all workers: one all-reduce per dtype."""
        if self.alone:
            return
        for dtype in {tensor.dtype: None for tensor in tensors}:
            _sum_as_one([tensor for tensor in tensors if tensor.dtype == dtype])

    def mean_(self, *tensors: Tensor) -> None:
        """Replace each tensor, all of one dtype, by its mean over all workers: one all-reduce."""
        if not self.alone:
            _sum_as_one(list(tensors), 1.0 / self.size)

    def mean_gradients(self, leaves: Iterable[Tensor]) -> None:
        self.mean_(*(leaf.grad for leaf in leaves if leaf.grad is not None))

    def begin_sum(self, value: float) -> Callable[[], float]:
        """Start summing a number over workers; the returned function waits for the sum."""
        if self.alone:
            return lambda: value
        tensor = torch.tensor([value], dtype=torch.float64)
        work = dist.all_reduce(tensor, group=self._gloo, async_op=True)

        def end() -> float:
            work.wait()
            return float(tensor)

        return end

    # ---- agreement ---------------------------------------------------------------------------------------------

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set at any worker."""
        return flag if self.alone else _largest_of([float(flag)], self._gloo)[0] > 0.0

    def now_and_then(self, flag: Callable[[], bool]) -> Callable[[], bool]:
        """`flag` as a function that all workers may call between steps, with the same answer for all."""
        return flag if self.alone else _NowAndThen(flag, self)

    def barrier(self) -> None:
        self.agree(False)

    # ---- objects -----------------------------------------------------------------------------------------------

    def broadcast_object(self, value: T) -> T:
        """The first worker's object, at every worker: what `wire` can send."""
        return value if self.alone else self._told(value, 0)

    def gather_objects(self, value: T) -> list[T]:
        """The objects of all workers, in their order, at every worker."""
        return [value] if self.alone else [self._told(value, rank) for rank in range(self.size)]

    def _told(self, value: T, teller: int) -> T:
        mine = teller == self.rank
        data = torch.frombuffer(bytearray(wire.packed(value) if mine else b" "), dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, group=self._gloo, group_src=teller)
        data = data if mine else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, group=self._gloo, group_src=teller)
        return value if mine else wire.unpacked(data.numpy().tobytes())

    def from_first(self, work: Callable[[], T]) -> T:
        """Let the first worker do something, and give all workers its result, or its error to raise."""
        if self.alone:
            return work()
        result: Any = None
        error: Exception | None = None
        if self.first:
            try:
                result = work()
            except Exception as caught:
                error = caught
        result, error = self.broadcast_object((result, error))
        if error is not None:
            raise error
        return result


ALONE = Team()

_team = ALONE


def start(device: str = "auto") -> Team:
    """The team that `torchrun` made this process part of; `ALONE` without torchrun, or with one worker.

    On a machine with GPUs each worker takes the one of its local rank, unless `device` is "cpu". A second call returns
    the same team.
    """
    global _team
    if not _team.alone:
        return _team
    if not dist.is_available() or not (dist.is_initialized() or _launched()):
        return ALONE
    if not dist.is_initialized():
        backend = _backend(device)
        store, rank, size = _meeting()
        dist.init_process_group(backend, store=_fresh(store, rank, size), rank=rank, world_size=size)
    if dist.get_world_size() > 1:
        group = weakref.ref(dist.new_group(backend="gloo", timeout=_PATIENCE))  # torch keeps the group alive
        _team = Team(dist.get_rank(), dist.get_world_size(), group)
    return _team


def stop() -> None:
    """Leave the team: no thread of it is left."""
    global _team
    _team = ALONE
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _launched() -> bool:
    """Whether torchrun, or something like it, started this process as one of several workers."""
    known = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return known and os.environ["WORLD_SIZE"] != "1"


def _backend(device: str) -> str:
    if device == "cpu" or not torch.cuda.is_available() or not dist.is_nccl_available():
        return "gloo"
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= gpus:
        raise InputError(
            f"{local + 1} or more workers were started on a machine with {gpus} GPU{'s' * (gpus > 1)}: a worker needs "
            f"one of its own; use --nproc-per-node {gpus}, or --device cpu"
        )
    torch.cuda.set_device(local)
    return "cpu:gloo,cuda:nccl"


def _meeting() -> tuple[Any, int, int]:
    """The store at which workers meet, the number of this one, and how many there are.

    Workers that are all on this machine talk over its loopback: nobody else can reach what they listen on. By itself
    torch listens on every interface.
    """
    from torch.distributed.rendezvous import rendezvous  # not every torch has it

    rank, size, host = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    by_name = host in ("localhost", "127.0.0.1")
    if by_name or os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        for backend in ("GLOO", "NCCL") if loopback else ():
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", str(loopback))
    if not by_name or rank > 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return next(rendezvous("env://"))
    port = int(os.environ["MASTER_PORT"])
    listening = socket.create_server(("127.0.0.1", port))
    store = dist.TCPStore(host, port, size, True, master_listen_fd=listening.detach())  # type: ignore[attr-defined]
    return store, rank, size


def _fresh(store: Any, rank: int, size: int) -> Any:
    """A part of torchrun's store that nobody has written to.

    torchrun keeps its store when it starts workers again, and they would try to reach those before them. The first
    worker chooses a name for the part. It sends it to every number under which a worker has announced itself, dead ones
    included, until all living workers have confirmed it.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"deepbasis/here/{rank}", mine)
        name = store.get(f"deepbasis/name/{mine}").decode()
        store.set(f"deepbasis/heard/{name}/{rank}", "yes")
        return PrefixStore(name, store)
    silent = list(range(1, size))
    while silent:
        for other in silent:
            number = store.get(f"deepbasis/here/{other}").decode()
            store.set(f"deepbasis/name/{number}", mine)
        time.sleep(0.01)
        silent = [other for other in silent if not store.check([f"deepbasis/heard/{mine}/{other}"])]
    return PrefixStore(mine, store)


@torch.no_grad()
def _sum_as_one(tensors: list[Tensor], scale: float | None = None) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    if scale is not None:
        flat.mul_(scale)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def _largest_of(values: list[float], group: Any) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return tensor.tolist()


class _NowAndThen:
    """Asks the others only at some of its calls: asking costs as much as a small step.

    The time since the last question is agreed on as well, so that all workers skip the same calls.
    """

    def __init__(self, flag: Callable[[], bool], team: Team) -> None:
        self._flag, self._team = flag, team
        self._asked = time.monotonic()
        self._every, self._calls = 1, 0
        self._set = False

    def __call__(self) -> bool:
        self._calls += 1
        if self._set or self._calls < self._every:
            return self._set
        now = time.monotonic()
        answer, seconds = _largest_of([float(self._flag()), now - self._asked], self._team._gloo)
        self._asked, self._calls, self._set = now, 0, answer > 0.0
        wanted = int(self._every * _SECONDS_BETWEEN_AGREEMENTS / max(seconds, 1e-6))
        self._every = max(1, min(wanted, 2 * self._every))
        return self._set


# ---- the maximum over all workers' rows, as operators that torch.compile, vmap and CUDA graphs take as they are ---


@torch.library.custom_op("deepbasis::global_max", mutates_args=())
def _global_max(local: Tensor) -> Tensor:
    largest = local.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest


@torch.library.custom_op("deepbasis::global_sum", mutates_args=())
def _global_sum(local: Tensor) -> Tensor:
    total = local.clone()
    dist.all_reduce(total)
    return total


def _keep_owner(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0] == output)


def _to_the_owner(ctx: Any, gradient: Tensor) -> Tensor:
    """All workers use the maximum, so its gradient is their sum; it goes to the row with the largest value."""
    (owner,) = ctx.saved_tensors
    total, owners = _global_sum(torch.stack([gradient, owner.to(gradient.dtype)]))
    return torch.where(owner, total / owners, 0.0)  # equal maxima at several workers share it


_global_max.register_fake(torch.empty_like)
_global_sum.register_fake(torch.empty_like)
_global_max.register_autograd(_to_the_owner, setup_context=_keep_owner)
_global_max.register_vmap(lambda info, axes, local: (_global_max(local), axes[0]))  # all members' in one all-reduce


def global_max(local: Tensor) -> Tensor:
    """The largest of all workers' values, element by element, with the gradient that one process would find.

    torch's own differentiable all-reduce uses the same operation backwards, a maximum of gradients, which is wrong.
    """
    return _global_max(local)
