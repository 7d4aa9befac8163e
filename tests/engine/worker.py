"""One of the workers of `test_distributed.py`: python worker.py RANK SIZE STORE SOCKET

It joins the group of the file STORE, then does tasks that come through SOCKET until none come any more: the name of a
function below and its arguments. What that returns, or the error that it raised, goes back.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Client
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deepbasis.engine import distributed
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import Outcome
from deepbasis.engine.distributed import Team
from deepbasis.engine.members import Build, Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.gp import exact
from deepbasis.gp.build import build
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.objectives import Whole
from deepbasis.progress import EpochReport
from deepbasis.registry import OBJECTIVES

Batches = list[tuple[Tensor, ...]]


def builder(method: str, bad_seed: int | None = None) -> Build:
    """As `lab.build`; a member of `bad_seed` fails in its first epoch."""

    def make(member: Member) -> DeepBasisGP:
        model = build(method, 3, rank=6, width=8, blocks=1, noise=member.noise, seed=member.seed)
        if member.seed == bad_seed:
            torch.nn.init.constant_(model.mean, torch.nan)
        return model

    return make


def training(
    team: Team,
    method: str,
    members: list[Member],
    data: Rows,
    validation: Rows,
    settings: Settings,
    *,
    bad_seed: int | None = None,
    interrupt: tuple[int, int] | None = None,
    **options: Any,
) -> tuple[list[Outcome], list[int]]:
    """Outcomes, and the epochs that this worker was told of. `interrupt`: worker and epoch of a Ctrl-C."""
    told: list[int] = []

    def progress(report: EpochReport) -> None:
        told.append(report.epoch)
        if interrupt == (team.rank, report.epoch):
            os.kill(os.getpid(), signal.SIGINT)

    build = builder(method, bad_seed)
    return train(build, members, data, validation, settings, team=team, progress=progress, **options), told


def interrupted_between_steps(team: Team, shard: Batches, *arguments: Any) -> tuple[list[Outcome], int]:
    """Ctrl-C comes to the last worker alone, while it reads its third epoch; also how many batches were read."""
    read = [0]

    def open_epoch(epoch: int) -> Iterator[tuple[Tensor, ...]]:
        for k, batch in enumerate(shard):
            if team.rank == team.size - 1 and (epoch, k) == (2, 1):
                os.kill(os.getpid(), signal.SIGINT)
            read[0] += 1
            yield batch

    method, members, rows, validation, settings = arguments
    stream = Stream(open_epoch, rows=rows, columns=3, name="test")
    return train(builder(method), members, stream, validation, settings, team=team), read[0]


def streaming(
    team: Team,
    shards: list[Batches],
    method: str,
    members: list[Member],
    rows: int,
    validation: Rows,
    settings: Settings,
    failing: tuple[int, int] | None = None,
    total_weight: float | None = None,
    **options: Any,
) -> list[Outcome]:
    """Each worker has a shard of its own; that of `failing` cannot be opened, or not be read to its end."""

    def batches(epoch: int) -> Iterator[tuple[Tensor, ...]]:
        yield from shards[team.rank]
        if (team.rank, epoch) == failing:
            raise OSError("part-7.parquet is truncated")

    def open_epoch(epoch: int) -> Iterator[tuple[Tensor, ...]]:
        if epoch > 0 and (team.rank, -epoch) == failing:
            raise OSError("part-7.parquet is not there")
        return batches(epoch)

    stream = Stream(open_epoch, rows=rows, columns=3, name="test", total_weight=total_weight)
    return train(builder(method), members, stream, validation, settings, team=team, **options)


def gradient(team: Team, kind: str, objective: str, dtype: torch.dtype, x: Tensor, y: Tensor, seeds: list[int]) -> Any:
    """The loss of one batch, whose rows are dealt out to the workers, and its gradient in all parameters."""
    largest: dict[str, Callable[[Tensor], Tensor]] = {
        "ours": distributed.global_max,
        "local": lambda part: part,
        "stock": lambda part: import_module("torch.distributed.nn.functional").all_reduce(part, op=dist.ReduceOp.MAX),
    }
    x, y = (values.to(dtype)[team.rank :: team.size] for values in (x, y))
    whole = Whole(torch.tensor(float(len(x)), dtype=dtype), largest[kind])
    found = []
    for seed in seeds:
        model = builder("dbk-silu")(Member(seed=seed, noise=0.1)).to(dtype)
        loss = OBJECTIVES[objective](model, x, y, 50.0, 0.5, 0.1, None, whole)
        loss.backward()
        value = loss.detach().clone()
        team.mean_(value)
        team.mean_gradients(model.parameters())
        found.append((value, [p.grad for p in model.parameters()]))
    return found


def posterior(team: Team, x: Tensor, y: Tensor, cuts: list[int]) -> Any:
    """Eq. 10 from rows of which each worker has those between two cuts, in chunks."""
    model = builder("dbk-rbf")(Member(seed=3)).double()
    mine = slice(cuts[team.rank], cuts[team.rank + 1])
    chunks = list(zip(x[mine].split(7), y[mine].split(7), strict=True)) if cuts[team.rank + 1] > mine.start else []
    exact.fit_posterior(model, lambda: chunks, team.sum_)
    return {name: value.detach() for name, value in model.posterior.named_parameters()}


def collectives(team: Team) -> dict[str, Any]:
    def fails() -> None:
        raise FileNotFoundError("no such file, at the first worker")

    sums = [torch.full((2, 3), team.rank + 1.0), torch.tensor([team.rank + 1], dtype=torch.int64), torch.tensor(0.5)]
    team.sum_(*sums)
    found: dict[str, Any] = {"sums": sums, "share": [team.share(rows) for rows in (1, 7, 8)], "first": team.first}
    found["agree"] = [team.agree(flag) for flag in (False, team.rank == 1, True)]
    found["broadcast"] = team.broadcast_object({"from": team.rank})
    found["gather"] = team.gather_objects(team.rank * 10)
    found["from_first"] = team.from_first(lambda: f"done by {team.rank}")
    found["later"] = team.begin_sum(team.rank + 0.5)()
    flag = team.now_and_then(lambda: team.rank == 1 and len(answers) > 40)
    answers: list[bool] = []
    while len(answers) < 10_000 and not (answers and answers[-1]):
        answers.append(flag())
    found["now_and_then"] = len(answers)
    try:
        team.from_first(fails)
    except FileNotFoundError as error:
        found["error"] = str(error)
    return found


TASKS = {
    task.__name__: task for task in (training, interrupted_between_steps, streaming, gradient, posterior, collectives)
}


def main(rank: int, size: int, store: str, socket: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    team = distributed.start()
    assert distributed.start() is team
    with Client(socket) as connection:
        connection.send_bytes(pickle.dumps(rank))
        while True:
            task = pickle.loads(connection.recv_bytes())
            if task is None:
                break
            name, arguments, options = task
            try:
                answer = TASKS[name](team, *arguments, **options)
            except Exception as error:
                answer = error
            connection.send_bytes(pickle.dumps(answer))
    distributed.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
