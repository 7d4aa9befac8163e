"""Every collective of a team of one: what they do to a step, also inside a CUDA graph and a compiled one.

The mean, the sum and the maximum over one worker change nothing, so a run with them is the run without. NCCL needs a
GPU for each worker, and this needs one.
"""

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from deepbasis.engine.distributed import Team
from deepbasis.engine.training import train

RATE = 2.0**-7  # a fused step on a GPU holds its rate in float32, and this one exactly
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
RUNS = [("dbk-silu", "dppgp", 1), ("dbk-rbf", "dppgp", 3), ("dbk-rbf", "mml", 3)]


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Team(0, 1, weakref.ref(dist.new_group(backend="gloo")))
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("method", "objective", "count"), RUNS)
def test_a_team_of_one_is_one_worker(lab, team, warnings_logged, device, method, objective, count):
    settings = lab.settings(method, objective=objective, learning_rate=RATE, epochs=10)
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation, settings)
    together = train(*arguments, device=device, team=team, spread="rows")
    for mine, theirs in zip(together, train(*arguments, device=device), strict=True):
        assert lab.difference(mine, theirs) <= 1e-9
    assert warnings_logged() == []


@pytest.mark.cuda
@pytest.mark.parametrize(("method", "objective", "count"), RUNS)
def test_collectives_are_captured(lab, monkeypatch, team, method, objective, count):
    """Steps and validations replay graphs, with the collectives in them."""
    calls: list[str] = []
    plain = dist.all_reduce

    def counted(tensor: Tensor, *arguments: object, **options: object) -> object:
        if tensor.is_cuda:
            calls.append("capturing" if torch.cuda.is_current_stream_capturing() else "eager")
        return plain(tensor, *arguments, **options)

    monkeypatch.setattr(dist, "all_reduce", counted)
    settings = lab.settings(method, objective=objective, learning_rate=RATE, epochs=40)
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation, settings)
    train(*arguments, device="cuda", team=team, spread="rows")
    assert "capturing" in calls
    assert calls.count("eager") < 40, "a few before the capture, and none of any epoch"


@pytest.mark.cuda
@pytest.mark.compiled
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, which differ between its releases
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("method", "count"), [("dbk-silu", 3), ("dbk-rbf", 1)])
def test_a_compiled_team_of_one_is_one_worker(lab, team, warnings_logged, method, count):
    settings = lab.settings(method, learning_rate=RATE, epochs=10, compile=True)
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation, settings)
    together = train(*arguments, device="cuda", team=team, spread="rows")
    for mine, theirs in zip(together, train(*arguments, device="cuda"), strict=True):
        assert lab.difference(mine, theirs) <= 1e-9
    assert warnings_logged() == []
