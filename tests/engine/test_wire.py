"""What workers send to each other: JSON and arrays, and what comes out is what went in."""

import json
import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch

from deepbasis.engine import wire
from deepbasis.engine.checkpoint import RunState, WaveState
from deepbasis.engine.members import Member
from deepbasis.errors import CheckpointMismatchError, InputError, WorkerError
from deepbasis.fitting.budget import Room, Sizes
from deepbasis.fitting.start import Line
from deepbasis.fitting.streams import StreamData as StreamData  # lets what it surveys travel
from deepbasis.fitting.train import Runner as Runner  # lets lines travel
from deepbasis.tables.columns import Column
from deepbasis.tables.survey import HeldRows, TableStatistics

PLAIN: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, 5e-324, -0.0, math.inf, "", "σ² 日本", [], (), {}, [[]], ([],), [None, ()]),
    {"a": [1, (2.0, "x")], 3: {"b": None}, (1, 2): "pair"},
    ["list", "x"],
    {"tensor": "0"},
]


def sent(value: Any) -> Any:
    return wire.unpacked(wire.packed(value))


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_plain_values(value):
    assert sent(value) == value
    assert type(sent(value)) is type(value)
    assert repr(sent(value)) == repr(value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint64", "uint32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)], ids=str)
def test_arrays(dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tensor = torch.from_numpy(np.array(array))
    given = [array, array.T, tensor, tensor.mT if len(shape) == 2 else tensor]
    for one, again in zip(given, sent(given), strict=True):
        assert type(again) is type(one)
        assert (again.dtype, again.shape) == (one.dtype, one.shape)
        assert again.tolist() == one.tolist()
        again[...] = 0  # it can be written to
    assert sent(np.float64(math.nan)) != sent(np.float64(math.nan))
    assert sent((np.int64(3), np.bool_(True))) == (3, True)


def same(one: Any, other: Any) -> bool:
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray | torch.Tensor):
        return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def test_what_workers_tell_each_other():
    statistics = TableStatistics.empty(["a", "b"], 3)
    columns = [
        Column("column 'a'", "numeric", np.array([1.0, math.nan])),
        Column("column 'b'", "categorical", np.array([0, -1]), ("x",)),
    ]
    statistics.add(1, np.array([5, 6], dtype=np.uint64), columns, np.array([0.5, 1e300]), None)
    held = HeldRows(np.array([1, 1]), np.array([7, 9]), columns, np.array([0.0, 1.0]), None)
    waves = [WaveState.fresh([0, 2])]
    waves[0].tensors["parameters/x"] = torch.randn(2, 3)
    state = RunState({"version": "1"}, waves, [WaveState.fresh([1])])
    for value in [(statistics, held), (state, waves), Room(2, Sizes(3, 4, 5)), Line((1.0, 2.0), 0.1, 1.0, 30.0)]:
        assert same(sent(value), value)


@pytest.mark.parametrize(
    "error",
    [
        InputError("X: column 'a'"),
        CheckpointMismatchError("another run"),
        FileNotFoundError(2, "No such file or directory", "/tmp/x"),
        OSError(28, "No space left on device", "run.ckpt"),
        PermissionError("no"),
        MemoryError("much"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_class_and_their_words(error):
    again = sent(error)
    assert type(again) is type(error)
    assert (str(again), getattr(again, "filename", None)) == (str(error), getattr(error, "filename", None))


def test_errors_of_other_libraries_are_told_in_words():
    again = sent([json.JSONDecodeError("bad", "doc", 0)])[0]
    assert type(again) is WorkerError
    assert str(again).startswith("JSONDecodeError: bad")


@dataclass
class Stranger:
    x: int


def test_no_other_class_travels():
    for value in (Member(), Stranger(3), {1, 2}, sent):
        with pytest.raises(TypeError, match="nothing that workers send"):
            wire.packed(value)
    message = wire.packed(Line((), 0.0, 0.0, 0.0)).replace(b'"Line"', b'"Kine"')
    with pytest.raises(WorkerError, match="'Kine'"):
        wire.unpacked(message)
