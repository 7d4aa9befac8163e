"""Checkpoints: a run that was stopped, however, ends bit for bit as one that was not; another's file is refused."""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepbasis import storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import KIND, RunState, WaveState
from deepbasis.engine.members import Member
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.errors import CheckpointMismatchError, FileFormatError, FileInUseError
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.progress import EpochReport


class Enough(Exception):
    """Ends a run from outside, as a crash would."""


def stop_at(count: int) -> Callable[[EpochReport], None]:
    """Raise at the `count`-th report."""
    reports: list[EpochReport] = []

    def progress(report: EpochReport) -> None:
        reports.append(report)
        if len(reports) == count:
            raise Enough

    return progress


def never(report: EpochReport) -> None:
    pytest.fail(f"epoch {report.epoch} was trained")


ALL = {"schedule": "cosine", "warmup_steps": 6, "clip": 0.5, "patience": 4, "learning_rate": 0.03}
RUNS = [
    ("dbk-silu", 3, {}, {}),
    ("dbk-rbf", 1, {}, {}),
    ("dbk-silu", 2, {"objective": "mml"}, {}),
    ("dbk-rbf", 1, {"objective": "mml"}, {}),
    ("dbk-silu", 3, ALL, {}),
    ("dbk-silu", 3, {**ALL, "optimiser": "muon"}, {}),
    ("dbk-silu", 1, {"optimiser": "muon", "average": 0.9}, {}),
    ("dbk-silu", 4, {**ALL, "objective": "mml"}, {}),
    ("dbk-rbf", 3, ALL, {"wave_size": 2}),
    ("dnn", 2, {}, {}),
    ("dbk-silu", 2, {"precision": "float32"}, {}),
    ("dbk-silu", 2, {"precision": "bf16"}, {}),
    ("dbk-silu", 2, {"batch_size": 50}, {}),
    ("dbk-silu", 2, {"passes": 3}, {}),
    ("dbk-silu", 2, {"batch_size": 50, "passes": 3, "average": 0.9}, {}),
]


# --- resuming ---


@pytest.mark.parametrize(("method", "count", "changes", "options"), RUNS)
def test_a_resumed_run_ends_bit_equal(lab, tmp_path, method, count, changes, options):
    """Stopped in the first epoch, in the fourth, in the third after that, and each time started with the same call."""
    crashes = (1, 4, 3)
    settings = lab.settings(method, epochs=8, **changes)
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation, settings)
    expected = train(*arguments, **options)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    for crash in crashes:
        with pytest.raises(Enough):
            train(*arguments, **options, **file, progress=stop_at(crash))
        assert file["checkpoint"].exists() == (crash > 1)
    told: list[EpochReport] = []
    outcomes = train(*arguments, **options, **file, progress=told.append)
    assert all(lab.same(a, b) for a, b in zip(outcomes, expected, strict=True))
    # A crash comes before its epoch is written: each one costs one epoch, and no more.
    assert told[0].epoch == sum(crash - 1 for crash in crashes) + 1 == 6


@pytest.mark.slow
def test_a_member_that_has_stopped_stays_so_after_a_resume(lab, tmp_path):
    """Though it would get better again, were it still in training."""
    quick = {"epochs": 30, "learning_rate": 0.1, "batch_size": 32}
    patient, free = (lab.settings(**quick, patience=patience) for patience in (3, None))
    arguments = (lab.build(), lab.members(4), lab.data, lab.validation)
    expected = train(*arguments, patient)
    last = max(outcome.best_epoch + 3 for outcome in expected)
    better = [
        outcome
        for outcome, untiring in zip(expected, train(*arguments, free), strict=True)
        if float(untiring.history["validation"][:last].min()) < outcome.best_score
    ]
    crash = 2 + min(outcome.best_epoch + 3 for outcome in better)
    assert crash < last, "a member has stopped, others have not"
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, patient, **file, progress=stop_at(crash))
    outcomes = train(*arguments, patient, **file)
    assert all(lab.same(a, b) for a, b in zip(outcomes, expected, strict=True))


def test_an_interrupted_run_can_be_resumed(lab, tmp_path):
    """Ctrl-C is a stop like any other: the file has the last whole epoch."""
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings(epochs=9))
    expected = train(*arguments)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}

    def interrupt(report: EpochReport) -> None:
        if report.epoch == 4:
            os.kill(os.getpid(), 2)

    assert {outcome.status for outcome in train(*arguments, **file, progress=interrupt)} == {"interrupted"}
    told: list[EpochReport] = []
    outcomes = train(*arguments, **file, progress=told.append)
    assert told[0].epoch == 5
    assert all(lab.same(a, b) for a, b in zip(outcomes, expected, strict=True))


def test_a_stream_can_be_resumed(lab, tmp_path):
    def open_epoch(epoch: int):
        order = torch.randperm(50, generator=torch.Generator().manual_seed(epoch))
        return [(lab.data.x[rows], lab.data.y[rows]) for rows in order.split(16)]

    stream = Stream(open_epoch, rows=50, columns=3, name="test")
    arguments = (lab.build(), lab.members(2), stream, lab.validation, lab.settings(epochs=6))
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, **file, progress=stop_at(4))
    resumed, expected = train(*arguments, **file), train(*arguments)
    assert all(lab.same(a, b) for a, b in zip(resumed, expected, strict=True))


def test_a_run_with_a_failed_member_can_be_resumed(lab, tmp_path):
    def build(member: Member):
        model = lab.build()(member)
        if member.seed == lab.members(3)[1].seed:
            torch.nn.init.constant_(model.mean, torch.nan)
        return model

    arguments = (build, lab.members(3), lab.data, lab.validation, lab.settings(epochs=6))
    expected = train(*arguments)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, **file, progress=stop_at(4))
    outcomes = train(*arguments, **file)
    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "finished"]
    assert all(lab.same(a, b) for a, b in zip(outcomes, expected, strict=True))


@pytest.mark.parametrize("options", [{}, {"wave_size": 2}], ids=str)
def test_a_finished_run_is_not_trained_again(lab, tmp_path, options):
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings())
    path = tmp_path / "run"
    first = train(*arguments, **options, checkpoint=path)
    written = path.read_bytes()
    second = train(*arguments, **options, checkpoint=path, progress=never)
    assert all(lab.same(a, b) for a, b in zip(first, second, strict=True))
    assert path.read_bytes() == written
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_resumed_run_keeps_its_waves(lab, tmp_path):
    """`wave_size` is how a run is carried out, not what it is: another one is no reason to refuse."""
    arguments = (lab.build(), lab.members(4), lab.data, lab.validation, lab.settings(epochs=4))
    expected = train(*arguments, wave_size=2)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, **file, wave_size=2, progress=stop_at(3))
    told: list[EpochReport] = []
    outcomes = train(*arguments, **file, wave_size=4, progress=told.append)
    assert all(lab.same(a, b) for a, b in zip(outcomes, expected, strict=True))
    assert told[0].members == 2


@pytest.mark.parametrize(("seconds", "files"), [(3600.0, 1), (0.0, 11)])
def test_a_checkpoint_is_not_written_more_often_than_asked(lab, tmp_path, seconds, files):
    """Once in an hour, here: at the end of each of two waves alone. Otherwise after each of their six epochs too.

    Each file is a new one, and what is there is looked at before it is replaced at the end of an epoch.
    """
    path, seen = tmp_path / "run", []

    def look(report: EpochReport) -> None:
        if path.exists():
            seen.append(path.read_bytes())
            os.utime(path, ns=(0, 0))

    arguments = (lab.build(), lab.members(4), lab.data, lab.validation, lab.settings(epochs=6))
    train(*arguments, wave_size=2, checkpoint=path, checkpoint_seconds=seconds, progress=look)
    assert len(seen) == (6 if files == 1 else 11)
    assert len(set(seen)) == files
    assert path.stat().st_mtime_ns > 0, "written again at the end"


def test_training_with_a_checkpoint_is_training_without(lab, tmp_path):
    arguments = (lab.build("dbk-rbf"), lab.members(3), lab.data, lab.validation, lab.settings("dbk-rbf"))
    runs = train(*arguments), train(*arguments, checkpoint=tmp_path / "run", checkpoint_seconds=0.0)
    assert all(lab.same(a, b) for a, b in zip(*runs, strict=True))


def test_numbers_from_numpy_are_as_good_as_pythons(lab, tmp_path):
    """A grid of hyper-parameters is often made by numpy; JSON knows its numbers only in part."""
    members = [Member(seed=3, alpha=np.float64(0.1), beta=np.float32(0.5), noise=np.float64(0.25))]
    plain = [Member(seed=3, alpha=0.1, beta=0.5, noise=0.25)]
    settings = [
        lab.settings(epochs=epochs, learning_rate=rate) for epochs, rate in ((np.int64(3), np.float32(0.5)), (3, 0.5))
    ]
    path = tmp_path / "run"
    first = train(lab.build(), members, lab.data, lab.validation, settings[0], checkpoint=path)
    second = train(lab.build(), plain, lab.data, lab.validation, settings[1], checkpoint=path, progress=never)
    assert lab.same(first[0], second[0])


# --- files of another run ---


@pytest.fixture(scope="module")
def content(lab, tmp_path_factory) -> bytes:
    """Of the checkpoint of a run that was stopped in its fourth epoch."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings())
    with pytest.raises(Enough):
        train(*arguments, checkpoint=path, checkpoint_seconds=0.0, progress=stop_at(4))
    return path.read_bytes()


@pytest.fixture
def checkpoint(content, tmp_path) -> Path:
    path = tmp_path / "run"
    path.write_bytes(content)
    return path


def changed(data: Rows, **changes: Any) -> Rows:
    return replace(data, **changes)


def one_more_ulp(x: torch.Tensor) -> torch.Tensor:
    """The smallest change there is, in one number."""
    x = x.clone()
    x[7] = torch.nextafter(x[7], torch.full_like(x[7], torch.inf))
    return x


DIFFERENT: dict[str, tuple[Callable[..., dict[str, Any]], list[str]]] = {
    "x": (lambda lab: {"data": changed(lab.data, x=one_more_ulp(lab.data.x))}, ["training data"]),
    "y": (lambda lab: {"data": changed(lab.data, y=one_more_ulp(lab.data.y))}, ["training data"]),
    "weights": (lambda lab: {"data": changed(lab.data, weight=torch.ones(50).double())}, ["training data"]),
    "fewer rows": (lambda lab: {"data": Rows(lab.data.x[:49], lab.data.y[:49])}, ["training data"]),
    "validation": (
        lambda lab: {"validation": changed(lab.validation, y=one_more_ulp(lab.validation.y))},
        ["validation data"],
    ),
    "a stream": (
        lambda lab: {"data": Stream(lambda epoch: [(lab.data.x, lab.data.y)], rows=50, columns=3, name="s")},
        ["training data"],
    ),
    "epochs": (lambda lab: {"settings": lab.settings(epochs=6)}, ["settings", "epochs", "5", "6"]),
    "learning rate": (lambda lab: {"settings": lab.settings(learning_rate=0.5)}, ["settings", "learning_rate", "0.5"]),
    "precision": (lambda lab: {"settings": lab.settings(precision="float32")}, ["settings", "precision"]),
    "method": (
        lambda lab: {"settings": lab.settings("vbll"), "build": lab.build("vbll")},
        ["settings", "objective", "dppgp", "elbo"],
    ),
    "seed": (
        lambda lab: {"members": [*lab.members(2), replace(lab.members(3)[2], seed=99)]},
        ["members", "seed", "99"],
    ),
    "alpha": (
        lambda lab: {"members": [replace(lab.members(1)[0], alpha=0.77), *lab.members(3)[1:]]},
        ["members", "alpha", "0.77"],
    ),
    "order of members": (lambda lab: {"members": lab.members(3)[::-1]}, ["members"]),
    "fewer members": (lambda lab: {"members": lab.members(2)}, ["members"]),
    "rank": (lambda lab: {"build": lab.build(rank=7)}, ["model", "[7]"]),
    "width": (lambda lab: {"build": lab.build(width=9)}, ["model", "9"]),
    "expansion": (lambda lab: {"build": lab.build("dbk-rbf")}, ["model"]),
    "noise parameterisation": (
        lambda lab: {"build": lab.build(likelihood=partial(GaussianLikelihood, parameterisation="clamp"))},
        ["model"],
    ),
    "initial parameters": (lambda lab: {"build": from_another_seed(lab)}, ["model"]),
}


def from_another_seed(lab):
    """The same architecture, begun elsewhere."""
    return lambda member: lab.build()(replace(member, seed=member.seed + 1))


@pytest.mark.parametrize("what", DIFFERENT)
def test_the_checkpoint_of_another_run_is_refused(lab, checkpoint, what):
    """The message names what differs, and the file is left as it was."""
    difference, says = DIFFERENT[what]
    same = {
        "build": lab.build(),
        "members": lab.members(3),
        "data": lab.data,
        "validation": lab.validation,
        "settings": lab.settings(),
    }
    before = checkpoint.read_bytes()
    with pytest.raises(CheckpointMismatchError) as caught:
        train(**{**same, **difference(lab)}, checkpoint=checkpoint, checkpoint_seconds=0.0, progress=never)
    message = str(caught.value)
    assert all(text in message for text in [str(checkpoint), *says])
    assert checkpoint.read_bytes() == before
    assert all(outcome.status == "finished" for outcome in train(**same, checkpoint=checkpoint))


def test_the_checkpoint_of_another_version_is_refused(lab, checkpoint):
    tensors, metadata = storage.load(checkpoint, KIND)
    identity = {**metadata["identity"], "version": "9.8.7"}
    storage.save(checkpoint, KIND, tensors, {**metadata, "identity": identity})
    before = checkpoint.read_bytes()
    with pytest.raises(CheckpointMismatchError, match=r"version is 9\.8\.7, this run's is 0\.1\.0"):
        train(lab.build(), lab.members(3), lab.data, lab.validation, lab.settings(), checkpoint=checkpoint)
    assert checkpoint.read_bytes() == before


# --- two runs, one file ---


def test_two_runs_cannot_have_one_checkpoint_at_a_time(lab, tmp_path):
    """The later one is refused, whatever it would train; the earlier one ends as if nothing had happened."""
    path = tmp_path / "run"
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings())
    refused: list[str] = []

    def meanwhile(report: EpochReport) -> None:
        with pytest.raises(FileInUseError) as caught:
            train(lab.build(), lab.members(3), *arguments[2:], checkpoint=path)
        refused.append(str(caught.value))

    outcomes = train(*arguments, checkpoint=path, checkpoint_seconds=0.0, progress=meanwhile)
    assert len(refused) == 5
    assert all(text in refused[0] for text in (str(path), f"process {os.getpid()}", socket.gethostname()))
    assert all(lab.same(a, b) for a, b in zip(outcomes, train(*arguments), strict=True))
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


# --- files that are no checkpoints ---


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_its_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flipped_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    path.write_text("epoch,loss\n1,0.5\n")


def another_kind(path: Path) -> None:
    storage.save(path, "model", {"x": torch.zeros(3)}, {})


@pytest.mark.parametrize(
    "spoil", [truncated, cut_in_its_header, empty, flipped_bit, foreign, another_kind], ids=lambda f: f.__name__
)
def test_a_file_that_is_no_checkpoint_is_refused(lab, checkpoint, spoil):
    spoil(checkpoint)
    before = checkpoint.read_bytes()
    with pytest.raises(FileFormatError, match=str(checkpoint)) as caught:
        train(
            lab.build(),
            lab.members(3),
            lab.data,
            lab.validation,
            lab.settings(),
            checkpoint=checkpoint,
            progress=never,
        )
    assert not isinstance(caught.value, CheckpointMismatchError)
    assert checkpoint.read_bytes() == before


State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def number(part: str, name: str, value: Any) -> Callable[[State], None]:
    """In the first state of those that are pending or have ended."""
    return lambda state: state[1][part][0].update({name: value})


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[State], None]:
    def apply(state: State) -> None:
        found = change(state[0].pop(name))
        if found is not None:
            state[0][name] = found

    return apply


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: torch.full_like(t, value)


def last(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """In the last place alone: of q(w)'s factor, one above the diagonal or on it, which no prediction depends on."""

    def change(t: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t.view(-1)[-1] = value
        return t

    return change


WEIGHT = "parameters/backbone.project.weight"
FORGED: dict[str, Callable[[State], None]] = {
    "no identity": lambda state: state[1].pop("identity"),
    "an identity of another kind": lambda state: state[1].update(identity=[1]),
    "no states": lambda state: state[1].pop("pending"),
    "states of another kind": lambda state: state[1].update(pending={"epoch": 3}),
    "a field too many": number("pending", "speed", 3),
    "an epoch beyond the last": number("pending", "epoch", 6),
    "an epoch that is no number": number("pending", "epoch", True),
    "steps of other epochs": number("pending", "step", 7),
    "a member that is not there": number("pending", "indices", [0, 3]),
    "a member twice": number("pending", "indices", [0, 0]),
    "a member too few": lambda state: state[1]["pending"].pop(),
    "a state that is none": number("pending", "status", ["active", "asleep"]),
    "a state that its history does not lead to": number("pending", "status", ["active", "failed"]),
    "a reason that is none": number("pending", "reason", [1, 2]),
    "reasons that are no list": number("pending", "reason", {"a": "", "b": ""}),
    "a score that is not the best": tensor("pending/0/best_score", filled(-5.0)),
    "another best epoch": tensor("pending/0/best_epoch", filled(1)),
    "a weight gone": tensor(f"pending/0/{WEIGHT}", lambda t: None),
    "a weight of another size": tensor(f"pending/0/{WEIGHT}", lambda t: t[..., :1].clone()),
    "a weight in float32": tensor(f"pending/0/{WEIGHT}", lambda t: t.float()),
    "a weight that is NaN": tensor(f"pending/0/{WEIGHT}", filled(math.nan)),
    "a weight that is huge": tensor(f"pending/0/{WEIGHT}", filled(1e20)),
    "a best weight that is infinite": tensor("pending/0/best/mean", filled(math.inf)),
    "a moment that no gradients have": tensor("pending/0/first/posterior.lower", last(-1e308)),
    "a moment that is larger than its squares'": tensor("pending/0/first/mean", filled(1e3)),
    "a sum of squares below 0": tensor("pending/0/second/posterior.lower", last(-1e-30)),
    "a history that is shorter": tensor("pending/0/history", lambda t: t[:, 1:].clone()),
    "a tensor of nobody": lambda state: state[0].update({"pending/7/mean": torch.zeros(2)}),
    "a tensor of no use": lambda state: state[0].update({"pending/0/third/mean": torch.zeros(2).double()}),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_checkpoint_that_no_run_writes_is_refused(lab, tmp_path, what):
    """Its checksum is right. The message names the file, which is left as it was."""
    path = tmp_path / "run"
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings())
    with pytest.raises(Enough):
        train(*arguments, checkpoint=path, checkpoint_seconds=0.0, progress=stop_at(4), wave_size=2)
    state = storage.load(path, KIND)
    FORGED[what](state)
    storage.save(path, KIND, *state)
    before = path.read_bytes()
    with pytest.raises(FileFormatError, match=str(path)):
        train(*arguments, checkpoint=path, progress=never)
    assert path.read_bytes() == before


# --- killed ---


def test_a_run_goes_on_although_a_worker_had_written_nothing(lab, checkpoint):
    """Killed before the end of its first epoch, say: its members start again."""
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings())
    tensors, metadata = storage.load(checkpoint, KIND)
    keep = [0, 2]
    metadata["pending"][0].update({name: [metadata["pending"][0][name][k] for k in keep] for name in PER_MEMBER})
    tensors = {name: value[keep] for name, value in tensors.items()}
    storage.save(checkpoint.with_name(f"{checkpoint.name}.worker0"), KIND, tensors, metadata)
    checkpoint.unlink()
    outcomes = train(*arguments, checkpoint=checkpoint)
    assert all(lab.difference(a, b) < 1e-9 for a, b in zip(outcomes, train(*arguments), strict=True)), "as in waves"


PER_MEMBER = ("indices", "status", "reason")


def test_what_a_killed_writer_left_behind_does_no_harm(lab, checkpoint):
    """A temporary file beside the checkpoint, whole, half or empty."""
    left = [checkpoint.with_name(f".{checkpoint.name}.{name}.tmp") for name in ("whole", "half", "empty")]
    content = checkpoint.read_bytes()
    for path, size in zip(left, (len(content), len(content) // 2, 0), strict=True):
        path.write_bytes(content[:size])
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings())
    outcomes = train(*arguments, checkpoint=checkpoint, checkpoint_seconds=0.0)
    assert all(lab.same(a, b) for a, b in zip(outcomes, train(*arguments), strict=True))
    storage.load(checkpoint, KIND)


def test_only_the_files_of_workers_are_merged_and_removed(lab, checkpoint):
    """A user's file beside the checkpoint may be named much like one."""
    beside = [checkpoint.with_name(f"{checkpoint.name}.worker{end}") for end in ("0", "12", "0.log", "s", "1.bak")]
    for file in beside[2:]:
        file.write_text("notes")
    for file in beside[:2]:
        file.write_bytes(checkpoint.read_bytes())
    train(lab.build(), lab.members(3), lab.data, lab.validation, lab.settings(), checkpoint=checkpoint)
    assert sorted(checkpoint.parent.iterdir()) == sorted([checkpoint, *beside[2:]])


def test_a_write_that_fails_leaves_the_last_checkpoint(lab, checkpoint, monkeypatch):
    """A full disk, say: the error is the caller's to see, the file is the one before, and nothing else is left."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    arguments = (lab.build(), lab.members(3), lab.data, lab.validation, lab.settings())
    before = checkpoint.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            train(*arguments, checkpoint=checkpoint, checkpoint_seconds=0.0)
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]
    outcomes = train(*arguments, checkpoint=checkpoint)
    assert all(lab.same(a, b) for a, b in zip(outcomes, train(*arguments), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.timeout(240)
def test_runs_that_are_killed_at_any_moment(tmp_path):
    """`killed_run.py`: at least 20 SIGKILLs at random moments, then 8 in the middle of a write.

    After each the file is whole or not there; a run never goes back; and each run that comes to its end has, byte for
    byte, the result of one that was never killed.
    """
    script = Path(__file__).with_name("killed_run.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    seen = json.loads(done.stdout)
    ends = [end for each in seen["rounds"] for end in each["ends"]]
    assert ends.count("killed") >= 20 + 8
    assert set(ends) == {"killed", "finished"}
    assert seen["equal"] == [True] * len(seen["rounds"])
    for each in seen["rounds"]:
        assert each["epochs"] == sorted(each["epochs"])
        assert (each["ends"][-1], each["epochs"][-1]) == ("finished", 80)
    moments = {epochs for each in seen["rounds"] for epochs in each["epochs"]}
    assert len(moments) >= 10, "the kills are spread over the life of a run"
    assert len(seen["halves"]) > 0, "some of them came in the middle of a write"
    assert seen["left"] == ["whole"], "and the next writer sweeps up what they left"


@pytest.mark.slow
def test_a_checkpoint_of_many_members_is_read_in_proportion_to_them(tmp_path):
    def seconds(members: int) -> float:
        """Of the second reading."""
        ended = [replace(WaveState.fresh([k]), epoch=1) for k in range(members)]
        identity = {"members": list(range(members))}
        RunState(identity, [], ended).save(tmp_path / str(members))
        for _ in range(2):
            start = time.process_time()
            state = RunState.load(tmp_path / str(members), identity, lambda *_: None)
            taken = time.process_time() - start
            assert state is not None
            assert [one.indices for one in state.ended] == [[k] for k in range(members)]
        return taken

    assert seconds(3_000) < 60 * seconds(150)  # 20 times as many
