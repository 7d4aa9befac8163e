"""Two workers come to what one comes to, and end together, whatever happens to one of them."""

import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepbasis.engine import distributed
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import RunState, WaveState
from deepbasis.engine.distributed import ALONE
from deepbasis.engine.members import Member
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.errors import CheckpointMismatchError, InputError, WorkerError
from deepbasis.gp import exact
from deepbasis.gp.objectives import Whole
from support.own import METHODS, OBJECTIVES, OUTLOOK

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SECONDS = 60  # after which workers that have not answered are killed


class Workers:
    """Processes that do each task together. They are started once, and again after a test that they did not survive."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory, self.size, self.starts = directory, size, 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []

    def __call__(self, task: str, *arguments: Any, **options: Any) -> list[Any]:
        """What the task came to at each worker; an error is raised if all have the same, and else returned."""
        if not self.processes:
            self.start()
        for connection in self.connections:
            self.send(connection, (task, arguments, options))
        try:
            answers = [self.answer(connection) for connection in self.connections]
        except BaseException:
            self.kill()
            raise
        if isinstance(answers[0], Exception) and len({repr(answer) for answer in answers}) == 1:
            raise answers[0]
        return answers

    @staticmethod
    def answer(connection: Connection) -> Any:
        if not connection.poll(SECONDS):
            raise TimeoutError(f"a worker has not answered within {SECONDS} seconds")
        return pickle.loads(connection.recv_bytes())

    @staticmethod
    def send(connection: Connection, task: Any) -> None:
        connection.send_bytes(pickle.dumps(task))  # `send` would have tensors shared between the processes

    def start(self) -> None:
        self.starts += 1
        store, socket = (str(self.directory / f"{name}{self.starts}") for name in ("store", "socket"))
        script = Path(__file__).with_name("worker.py")
        with Listener(socket, "AF_UNIX") as listener:
            listener._listener._socket.settimeout(SECONDS)  # type: ignore[attr-defined]
            for rank in range(self.size):
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                command = [sys.executable, str(script), str(rank), str(self.size), store, socket]
                self.processes.append(subprocess.Popen(command, env=environment))
            try:
                found = [listener.accept() for _ in range(self.size)]
            except BaseException:
                self.kill()
                raise
        self.connections = sorted(found, key=self.answer)  # each begins with its rank

    def stop(self) -> None:
        for connection in self.connections:
            self.send(connection, None)
        for process in self.processes:
            process.wait(SECONDS)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for connection in self.connections:
            connection.close()
        self.processes, self.connections = [], []


def started(size: int) -> Iterator[Workers]:
    with tempfile.TemporaryDirectory(prefix="team") as directory:  # a socket's name may not be long
        workers = Workers(Path(directory), size)
        try:
            yield workers
            workers.stop()
        finally:
            workers.kill()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    yield from started(2)


@pytest.fixture
def three_workers() -> Iterator[Workers]:
    yield from started(3)


def same_everywhere(answers: list[Any], lab: Any) -> Any:
    """The workers' outcomes are bit for bit the same."""
    assert all(lab.same(a, b) for other in answers[1:] for a, b in zip(answers[0], other, strict=True))
    return answers[0]


# --- collectives ---


def test_what_the_collectives_do(workers):
    found = workers("collectives")
    for rank, answer in enumerate(found):
        assert answer["first"] == (rank == 0)
        assert answer["share"] == [1, 4, 4]
        assert [tensor.tolist() for tensor in answer["sums"]] == [[[3.0] * 3] * 2, [3], 1.0]
        assert answer["sums"][1].dtype == torch.int64
        assert answer["agree"] == [False, True, True]
        assert answer["broadcast"] == {"from": 0}
        assert answer["gather"] == [0, 10]
        assert answer["from_first"] == "done by 0"
        assert answer["later"] == 2.0
        assert "first worker" in answer["error"]
    assert found[0]["now_and_then"] == found[1]["now_and_then"]  # one has set the flag, both have seen it at one call
    assert 40 < found[0]["now_and_then"] < 10_000


def test_one_worker_does_nothing_of_it():
    tensor = torch.ones(3, requires_grad=True)
    tensor.grad = torch.full((3,), 2.0)
    ALONE.sum_(tensor)
    ALONE.mean_gradients([tensor])
    assert tensor.tolist() == [1.0] * 3
    assert tensor.grad.tolist() == [2.0] * 3
    assert (ALONE.agree(True), ALONE.agree(False), ALONE.begin_sum(3.0)()) == (True, False, 3.0)
    assert (ALONE.broadcast_object("a"), ALONE.gather_objects("a"), ALONE.from_first(lambda: 4)) == ("a", ["a"], 4)
    assert ALONE.now_and_then(test_one_worker_does_nothing_of_it) is test_one_worker_does_nothing_of_it
    assert ALONE.share(7) == 7


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}])
def test_a_process_without_others_is_alone(monkeypatch, environment):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distributed.start() is ALONE
    assert not torch.distributed.is_initialized()


def test_more_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="nproc-per-node 2"):
        distributed._backend("auto")
    assert distributed._backend("cpu") == "gloo"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed._backend("auto") == "cpu:gloo,cuda:nccl"


# --- objectives of a part ---


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_the_parts_objectives_is_the_objective_of_the_whole(lab, name, weighted):
    """Without any worker: three parts of different sizes, one of weight 0, and the maximum of all given to each."""
    model = lab.build("dbk-rbf")(Member(seed=3, noise=0.1)).double()
    x, y = lab.data.x, lab.data.y
    weight = torch.rand(50, dtype=torch.float64) if weighted else torch.ones(50, dtype=torch.float64)
    weight[40:] = 0.0
    arguments = (50.0, 0.3, 0.1)
    whole = OBJECTIVES[name](model, x, y, *arguments, weight)
    largest = model(x).prior_var[:40].max()
    parts = [
        OBJECTIVES[name](model, x[rows], y[rows], *arguments, weight[rows], Whole(weight.sum() / 3, lambda _: largest))
        for rows in (slice(0, 9), slice(9, 40), slice(40, 50))
    ]
    torch.testing.assert_close(sum(parts) / 3, whole, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("objective", ["dppgp", "dppgp-detached"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 5e-7)], ids=str)
def test_the_gradient_of_the_global_maximum(lab, workers, objective, dtype, tolerance):
    """That of one process; a maximum of each worker's own rows, and torch's differentiable all-reduce, have another."""
    x, y = lab.data.x[:48], lab.data.y[:48]
    seeds = [1, 2, 3]
    errors: dict[str, list[float]] = {}
    for kind in ("ours", "local", "stock"):
        for seed, (loss, gradients) in zip(
            seeds, workers("gradient", kind, objective, dtype, x, y, seeds)[0], strict=True
        ):
            model = lab.build()(Member(seed=seed, noise=0.1)).double()
            expected = OBJECTIVES[objective](model, x, y, 50.0, 0.5, 0.1, None)
            expected.backward()
            theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
            mine = torch.cat([gradient.flatten() for gradient in gradients]).double()
            errors.setdefault(kind, []).append(float((mine - theirs).norm() / theirs.norm()))
            if kind != "local":
                assert loss.item() == pytest.approx(expected.item(), rel=10 * tolerance)
    assert max(errors["ours"]) <= tolerance
    assert max(errors["local"]) > 5e-3
    assert (max(errors["stock"]) > 5e-3) == (objective == "dppgp")  # without a gradient through it, it has none to lose


# --- rows over workers ---

FIFTY_STEPS = {"epochs": 13}  # of four
RUNS = [
    *(
        ("dbk-silu", "dppgp", 3),
        ("dbk-rbf", "dppgp", 1),
        ("dbk-rbf", "dppgp-detached", 3),
        ("dbk-silu", "dppgp-detached", 1),
    ),
    *(
        ("vbll", "elbo", 3),
        ("sv-dkl", "elbo", 1),
        ("sv-rbf", "elbo", 3),
        ("sv-rbf-linear", "elbo", 1),
        ("linear", "elbo", 3),
        ("pp-dkl", "ppgp", 1),
        ("pp-dkl", "ppgp", 3),
    ),
    *(("dnn", "mse", 3), ("dnn", "mse", 1)),
]


def test_no_method_and_no_objective_is_left_out():
    assert {method for method, _, _ in RUNS} == set(METHODS) - OUTLOOK
    assert {(objective, count) for _, objective, count in RUNS} == {
        (name, count) for name in OBJECTIVES for count in (1, 3)
    }


@pytest.mark.parametrize(("method", "objective", "count"), RUNS)
def test_two_workers_come_to_what_one_comes_to(lab, workers, method, objective, count):
    """Each step's batch is the same, half of it at each; the last of an epoch has two rows, both at the first."""
    settings = lab.settings(method, objective=objective, **FIFTY_STEPS)
    arguments = (lab.members(count), lab.data, lab.validation, settings)
    expected = train(lab.build(method), *arguments)
    answers = workers("training", method, *arguments, spread="rows")
    outcomes = same_everywhere([outcomes for outcomes, _ in answers], lab)
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9
    assert [told for _, told in answers] == [list(range(1, 14)), []]


HARDER: dict[str, dict[str, Any]] = {
    "an odd batch": {"batch_size": 15},
    "one batch of all rows": {"batch_size": 50},
    "a row in a batch": {"batch_size": 1, "epochs": 1},
    "clipping and a schedule": {"clip": 0.3, "schedule": "cosine", "warmup_steps": 7},
    "float32": {"precision": "float32", "epochs": 3},
    "Muon": {"optimiser": "muon", "average": 0.9, "schedule": "cosine"},
}
WITHOUT_WEIGHTS = ["an odd batch", "one batch of all rows", "Muon"]


@pytest.mark.parametrize(("what", "weighted"), [*((w, True) for w in HARDER), *((w, False) for w in WITHOUT_WEIGHTS)])
def test_two_workers_come_to_what_one_comes_to_with(lab, workers, what, weighted):
    settings = lab.settings(**{**FIFTY_STEPS, **HARDER[what]})
    data, validation = lab.data, lab.validation
    if weighted:
        generator = torch.Generator().manual_seed(5)
        data, validation = (
            replace(rows, weight=torch.randint(0, 4, (len(rows),), generator=generator).double())
            for rows in (data, validation)
        )
    arguments = (lab.members(2), data, validation, settings)
    expected = train(lab.build(), *arguments)
    outcomes = same_everywhere(
        [outcomes for outcomes, _ in workers("training", "dbk-silu", *arguments, spread="rows")], lab
    )
    tolerance = 1e-9 if settings.precision == "float64" else 1e-3
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= tolerance


def test_fewer_rows_than_workers(lab, workers):
    """One row to train on, and one to validate with: the second worker has none."""
    data = Rows(lab.data.x[:1], lab.data.y[:1])
    arguments = (lab.members(2), data, data, lab.settings())
    expected = train(lab.build(), *arguments)
    outcomes = same_everywhere(
        [outcomes for outcomes, _ in workers("training", "dbk-silu", *arguments, spread="rows")], lab
    )
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-10


@pytest.mark.parametrize(("method", "count"), [("dbk-silu", 1), ("dbk-silu", 3), ("dbk-rbf", 3)])
def test_exact_training_by_two_workers(lab, workers, method, count):
    settings = lab.settings(method, objective="mml", learning_rate=2e-3, epochs=30)
    arguments = (lab.members(count), lab.data, lab.validation, settings)
    expected = train(lab.build(method), *arguments)
    outcomes = same_everywhere(
        [outcomes for outcomes, _ in workers("training", method, *arguments, spread="rows")], lab
    )
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-10


@pytest.mark.parametrize("cuts", [[0, 25, 50], [0, 3, 50], [0, 50, 50], [0, 0, 50]], ids=str)
def test_exact_inference_from_statistics_of_two_workers(lab, workers, cuts):
    """Also when one of them has no rows."""
    model = lab.build("dbk-rbf")(Member(seed=3)).double()
    exact.fit_posterior(model, lambda: [(lab.data.x, lab.data.y)])
    expected = dict(model.posterior.named_parameters())
    for found in workers("posterior", lab.data.x, lab.data.y, cuts):
        assert lab.largest(found, expected) <= 1e-10


# --- members that end early ---


def test_a_failing_member_fails_alone_at_two_workers(lab, workers):
    members = lab.members(3)
    arguments = (members, lab.data, lab.validation, lab.settings())
    answers = workers("training", "dbk-silu", *arguments, spread="rows", bad_seed=members[1].seed)
    outcomes = same_everywhere([outcomes for outcomes, _ in answers], lab)
    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "finished"]
    assert "epoch 1" in outcomes[1].reason
    expected = train(lab.build(), *arguments)
    assert max(lab.difference(outcomes[k], expected[k]) for k in (0, 2)) <= 1e-9


def test_patience_at_two_workers(lab, workers):
    settings = lab.settings(epochs=60, learning_rate=0.03, patience=4)
    arguments = (lab.members(4), lab.data, lab.validation, settings)
    expected = train(lab.build(), *arguments)
    assert len({len(outcome.history["noise"]) for outcome in expected}) > 1, "they stop at different epochs"
    outcomes = same_everywhere(
        [outcomes for outcomes, _ in workers("training", "dbk-silu", *arguments, spread="rows")], lab
    )
    assert [o.status for o in outcomes] == [o.status for o in expected]
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9


# --- streams ---

Batches = list[tuple[Tensor, ...]]


def shards(data: Rows, *sizes: list[int]) -> list[Batches]:
    """For each worker the batches of so many rows; no row is in two of them."""
    rows = torch.arange(len(data)).split(
        [size for shard in sizes for size in shard] + [len(data) - sum(map(sum, sizes))]
    )
    batches = iter([(data.x[part], data.y[part]) for part in rows])
    return [[next(batches) for _ in shard] for shard in sizes]


def together(parts: list[Batches]) -> Batches:
    """Their batches as one worker would have them."""
    none = tuple(values[:0] for values in (parts[0] + parts[1])[0])
    return [tuple(map(torch.cat, zip(*step, strict=True))) for step in itertools.zip_longest(*parts, fillvalue=none)]


SHARDS = {
    "alike": ([8, 8, 8], [8, 8, 8]),
    "uneven": ([8, 8, 8, 5], [8, 3]),
    "one that is empty": ([8, 8, 8, 8], []),
    "the first is empty": ([], [8, 8, 7]),
}


@pytest.mark.parametrize(
    ("what", "method", "objective", "count"),
    [
        *((what, "dbk-rbf", "dppgp", 3) for what in SHARDS),
        *((what, "dbk-silu", "mml", 3) for what in SHARDS if "empty" in what),
        ("uneven", "vbll", "elbo", 1),
        ("uneven", "dbk-silu", "mml", 1),
    ],
)
def test_streams_of_two_workers(lab, workers, what, method, objective, count):
    """What one worker comes to whose every batch is both their batches."""
    parts = shards(lab.data, *SHARDS[what])
    whole = together(parts)
    rows = sum(len(y) for _, y in whole)
    settings = lab.settings(method, objective=objective, epochs=12, learning_rate=5e-3)
    stream = Stream(lambda epoch: whole, rows=rows, columns=3, name="test")
    expected = train(lab.build(method), lab.members(count), stream, lab.validation, settings)
    answers = workers("streaming", parts, method, lab.members(count), rows, lab.validation, settings)
    outcomes = same_everywhere(answers, lab)
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9


def test_streams_with_weights(lab, workers):
    """Two workers with weighted batches, one worker with them, and one that has all rows in one batch in memory."""
    weight = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.1
    x, y = lab.data.x[:40], lab.data.y[:40]
    settings = lab.settings(batch_size=40, epochs=12)
    arguments = (lab.members(2), lab.validation, settings)
    total = float(weight.sum())
    expected = train(lab.build(), lab.members(2), Rows(x, y, weight), *arguments[1:])
    alone = Stream(lambda epoch: [(x, y, weight)], rows=40, columns=3, name="test", total_weight=total)
    parts = [[(x[:15], y[:15], weight[:15])], [(x[15:33], y[15:33], weight[15:33]), (x[33:], y[33:], weight[33:])]]
    one = train(lab.build(), lab.members(2), alone, *arguments[1:])
    assert max(lab.difference(a, b) for a, b in zip(one, expected, strict=True)) <= 1e-10
    pieces = together(parts)
    stream = Stream(lambda epoch: pieces, rows=40, columns=3, name="test", total_weight=total)
    expected = train(lab.build(), lab.members(2), stream, *arguments[1:])
    answers = workers("streaming", parts, "dbk-silu", lab.members(2), 40, *arguments[1:], total_weight=total)
    outcomes = same_everywhere(answers, lab)
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9


@pytest.mark.parametrize("weight", [torch.ones(4), torch.tensor([1.0, 0.0, 1.0]), torch.ones(3, 1)], ids=str)
def test_weights_of_a_stream_are_checked(lab, weight):
    batch = (lab.data.x[:3], lab.data.y[:3], weight.double())
    stream = Stream(lambda epoch: [batch], rows=3, columns=3, name="test", total_weight=3.0)
    with pytest.raises(InputError, match="positive, one for each row"):
        train(lab.build(), lab.members(1), stream, lab.validation, lab.settings())


def test_an_epoch_of_a_stream_may_be_a_part_of_its_rows(lab):
    """The schedule counts the steps of such epochs, and so does the speed that is told."""
    whole = [(lab.data.x[rows], lab.data.y[rows]) for rows in torch.arange(48).split(16)]
    reports: list[Any] = []
    settings = lab.settings(schedule="cosine")
    seconds = itertools.count()  # a second passes whenever the clock is looked at
    runs = [
        Stream(lambda epoch: whole[epoch % 3 : epoch % 3 + 1], rows=48, columns=3, name="test", epoch_rows=16),
        Stream(lambda epoch: whole, rows=48, columns=3, name="test"),
    ]
    piecewise, passes = (
        train(
            *(lab.build(), lab.members(1), stream, lab.validation, replace(settings, epochs=epochs)),
            progress=told,
            clock=lambda: float(next(seconds)),
        )
        for stream, epochs, told in zip(runs, (6, 2), (reports.append, None), strict=True)
    )
    assert [report.rows_per_second for report in reports] == [16.0] * 6
    assert piecewise[0].history["noise"][5] == passes[0].history["noise"][1]


@pytest.mark.parametrize(("epoch", "what"), [(1, "truncated"), (-1, "not there")])
def test_a_stream_that_fails_at_one_worker_ends_both(lab, workers, epoch, what):
    """While it is read, and when it is opened again for the second epoch."""
    parts = shards(lab.data, [8, 8, 8, 5], [8, 3])
    arguments = ("dbk-silu", lab.members(2), 40, lab.validation, lab.settings())
    found = workers("streaming", parts, *arguments, failing=(1, epoch))
    assert [type(error) for error in found] == [WorkerError, OSError]
    assert str(found[1]) == f"part-7.parquet is {what}"


def test_an_exact_pass_that_fails_at_one_worker_ends_both(lab, workers):
    parts = shards(lab.data, [8, 8, 8, 5], [8, 3])
    arguments = ("dbk-silu", lab.members(2), 40, lab.validation, lab.settings(objective="mml"))
    found = workers("streaming", parts, *arguments, failing=(1, 0))
    assert [type(error) for error in found] == [WorkerError, OSError]
    assert str(found[1]) == "part-7.parquet is truncated"


def test_streams_that_are_empty_everywhere_are_refused(lab, workers):
    with pytest.raises(InputError, match="no batches"):
        workers("streaming", [[], []], "dbk-silu", lab.members(1), 40, lab.validation, lab.settings())


def test_a_batch_larger_than_a_workers_share_is_refused(lab, workers):
    parts = shards(lab.data, [9], [8])
    found = workers("streaming", parts, "dbk-silu", lab.members(1), 17, lab.validation, lab.settings())
    assert [type(error) for error in found] == [InputError, WorkerError]
    assert "9 rows, at most 8" in str(found[0])


# --- interrupts ---


@pytest.mark.parametrize("objective", ["dppgp", "mml"])
def test_ctrl_c_at_one_worker_ends_both(lab, workers, objective):
    arguments = (lab.members(2), lab.data, lab.validation)
    settings, short = (lab.settings(objective=objective, epochs=epochs) for epochs in (10_000, 3))
    answers = workers("training", "dbk-silu", *arguments, settings, spread="rows", interrupt=(0, 3))
    outcomes = same_everywhere([outcomes for outcomes, _ in answers], lab)
    assert {outcome.status for outcome in outcomes} == {"interrupted"}
    epochs = len(outcomes[0].history["noise"])
    assert 3 <= epochs < 10_000
    expected = train(lab.build(), *arguments, replace(short, epochs=epochs))
    assert max(lab.largest(a.history, b.history) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9


def test_ctrl_c_between_the_steps_of_an_epoch(lab, workers):
    """It comes to the second worker, and both leave the epoch at the same step: they can do the next task together."""
    parts = shards(lab.data, [1] * 20, [1] * 20)
    arguments = ("dbk-silu", lab.members(1), 40, lab.validation, lab.settings(epochs=1000))
    found = [workers("interrupted_between_steps", parts[0], *arguments) for _ in range(2)][1]
    outcomes = same_everywhere([outcomes for outcomes, _ in found], lab)
    assert outcomes[0].status == "interrupted"
    assert found[0][1] == found[1][1] < 1000 * 20


# --- checkpoints ---


@pytest.mark.parametrize(
    ("spread", "objective", "options"),
    [("rows", "dppgp", {"wave_size": 2}), ("rows", "mml", {}), ("members", "dppgp", {"wave_size": 1})],
)
@pytest.mark.parametrize("first", [1, 2], ids=["1 then 2", "2 then 1"])
def test_a_run_is_resumed_by_another_number_of_workers(lab, workers, tmp_path, first, spread, objective, options):
    settings = lab.settings(objective=objective, epochs=9, learning_rate=2e-3)
    arguments = (lab.members(3), lab.data, lab.validation, settings)
    expected = train(lab.build(), *arguments)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0, **options}

    def two(**more: Any) -> tuple[Any, Any]:
        answers = workers("training", "dbk-silu", *arguments, spread=spread, **file, **more)
        return same_everywhere([outcomes for outcomes, _ in answers], lab), answers[0][1]

    def one(interrupt: tuple[int, int] | None = None) -> tuple[Any, Any]:
        told: list[int] = []

        def progress(report: Any) -> None:
            told.append(report.epoch)
            if interrupt and report.epoch == interrupt[1]:
                os.kill(os.getpid(), 2)

        return train(lab.build(), *arguments, **file, progress=progress), told

    begin, finish = (one, two) if first == 1 else (two, one)
    outcomes, told = begin(interrupt=(0, 4))
    assert "interrupted" in {outcome.status for outcome in outcomes}
    outcomes, again = finish()
    assert again[0] == told[-1] + 1, "it went on where the other had ended"
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (one()[1], two()[1]) == ([], []), "and now it is finished, for any number of workers"


def test_a_search_of_three_workers_is_resumed_by_one(lab, three_workers, tmp_path):
    """The loss in its history is the one that it began from: a third of three times a number may be another number."""
    settings = lab.settings("sv-rbf", objective="mml", optimiser="lbfgs", epochs=9, selection="last")
    arguments = (lab.members(4), lab.data, lab.validation, settings)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    expected = train(lab.build("sv-rbf"), *arguments)
    three_workers("training", "sv-rbf", *arguments, spread="rows", **file, interrupt=(0, 5))
    outcomes = train(lab.build("sv-rbf"), *arguments, **file)
    assert max(lab.difference(a, b) for a, b in zip(outcomes, expected, strict=True)) <= 1e-9


def test_the_checkpoint_of_another_run_is_refused_by_both(lab, workers, tmp_path):
    file = {"checkpoint": tmp_path / "run"}
    train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=1), **file)
    arguments = (lab.members(2), lab.data, lab.validation, lab.settings(epochs=2))
    with pytest.raises(CheckpointMismatchError, match="epochs"):
        workers("training", "dbk-silu", *arguments, spread="rows", **file)


def test_a_checkpoint_that_cannot_be_written_ends_both(lab, workers, tmp_path):
    arguments = (lab.members(1), lab.data, lab.validation, lab.settings(epochs=2))
    with pytest.raises(FileNotFoundError):
        workers("training", "dbk-silu", *arguments, spread="rows", checkpoint=tmp_path / "nowhere" / "run")


def wave(epoch: int, *indices: int) -> WaveState:
    tensors = {"best_epoch": torch.tensor([100 * epoch + index for index in indices])}
    return WaveState(list(indices), epoch, epoch, ["active"] * len(indices), [""] * len(indices), tensors)


def seen(state: RunState) -> tuple[dict[int, int], list[int]]:
    """Epoch of each pending member, and who has ended; every tensor belongs to its member."""
    pending = {}
    for part in state.pending:
        for index, tagged in zip(part.indices, part.tensors["best_epoch"].tolist(), strict=True):
            assert index not in pending
            assert tagged == 100 * part.epoch + index
            pending[index] = part.epoch
    return pending, sorted(part.indices[0] for part in state.ended)


def test_states_of_workers_are_joined_and_shared_out():
    """Of a member that is in several files, as after a crash, the furthest counts."""
    old = RunState({}, [wave(3, 0, 1, 2, 3), wave(0, 4, 5)], [wave(9, 6)])
    mine = RunState({}, [wave(5, 0, 2), wave(0, 4)], [])
    theirs = RunState({}, [wave(2, 1), wave(1, 5)], [wave(9, 3)])
    whole = RunState.joined([old, mine, theirs])
    assert seen(whole) == ({0: 5, 1: 3, 2: 5, 4: 0, 5: 1}, [3, 6])
    shares = [whole.share(rank, 2) for rank in range(2)]
    assert sorted(len(seen(share)[0]) for share in shares) == [2, 3]
    assert seen(RunState.joined(shares)) == seen(whole)


# --- members over workers ---


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_members_over_workers(lab, workers, tmp_path, optimiser):
    """Each trains its own, as if it were alone; five members are enough for that to be the default."""
    arguments = (lab.members(5), lab.data, lab.validation, lab.settings(optimiser=optimiser))
    expected = train(lab.build(), *arguments)
    bad = lab.members(5)[3].seed
    answers = workers("training", "dbk-silu", *arguments, bad_seed=bad, checkpoint=tmp_path / "run")
    outcomes = same_everywhere([outcomes for outcomes, _ in answers], lab)
    assert [told for _, told in answers] == [[1, 2, 3, 4, 5], []]
    assert [outcome.status for outcome in outcomes] == ["finished"] * 3 + ["failed", "finished"]
    assert max(lab.difference(outcomes[k], expected[k]) for k in (0, 1, 2, 4)) <= 1e-10
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_worker_without_a_member_waits_for_the_others(lab, workers):
    arguments = (lab.members(1), lab.data, lab.validation, lab.settings())
    outcomes = same_everywhere(
        [outcomes for outcomes, _ in workers("training", "dbk-silu", *arguments, spread="members")], lab
    )
    assert all(lab.same(a, b) for a, b in zip(outcomes, train(lab.build(), *arguments), strict=True))


def test_what_is_spread_is_checked(lab, workers):
    arguments = (lab.members(1), lab.data, lab.validation, lab.settings())
    with pytest.raises(InputError, match="spread must be one of"):
        train(lab.build(), *arguments, spread="columns")
    with pytest.raises(InputError, match="needs data in memory"):
        workers("streaming", [[], []], "dbk-silu", lab.members(1), 40, lab.validation, lab.settings(), spread="members")


def test_one_worker_may_be_told_to_spread(lab):
    """The same script with and without torchrun."""
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings())
    runs = [train(*arguments, spread=spread) for spread in ("auto", "rows", "members")]
    assert all(lab.same(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_workers_that_were_told_different_things_are_refused(lab, workers):
    arguments = (lab.members(1), lab.data, lab.validation)
    if not workers.processes:
        workers.start()
    for connection, epochs in zip(workers.connections, (3, 4), strict=True):
        task = ("training", ("dbk-silu", *arguments, lab.settings(epochs=epochs)), {"spread": "rows"})
        workers.send(connection, task)
    found = [workers.answer(connection) for connection in workers.connections]
    assert all(isinstance(error, InputError) and "settings" in str(error) for error in found)
