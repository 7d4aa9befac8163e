"""The engine on a GPU: against the CPU, with and without its CUDA graphs, and what it does when they cannot be had.

Learning rates here are powers of two: a fused step on a GPU holds its rate in float32, and these it holds exactly.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from deepbasis.engine.checkpoint import Outcome
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.gp import metrics
from deepbasis.gp.model import DeepBasisGP

pytestmark = pytest.mark.cuda

RATE = 2.0**-7
runs = pytest.mark.parametrize(
    ("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "dppgp"), ("dbk-silu", "mml")]
)


@pytest.fixture
def settings(lab) -> Callable[..., Settings]:
    def make(method: str = "dbk-silu", **changes: Any) -> Settings:
        return lab.settings(method, **{"learning_rate": RATE, "epochs": 10, **changes})

    return make


def both(lab, build, members: list[Member], settings: Settings) -> Iterator[tuple[Outcome, Outcome]]:
    """(on the GPU, on the CPU) for each member."""
    arguments = (build, members, lab.data, lab.validation, settings)
    return zip(train(*arguments, device="cuda"), train(*arguments), strict=True)


# --- against the CPU ---


@runs
@pytest.mark.parametrize("count", [1, 3])
def test_a_gpu_trains_as_a_cpu_does(lab, settings, warnings_logged, method, objective, count):
    for gpu, cpu in both(lab, lab.build(method), lab.members(count), settings(method, objective=objective)):
        assert lab.difference(gpu, cpu) < 1e-9
        assert {value.device.type for value in gpu.parameters.values()} == {"cpu"}
    assert warnings_logged() == []


@pytest.mark.parametrize("batch_size", [16, 50])
def test_several_passes_an_epoch_train_as_on_a_cpu(lab, settings, warnings_logged, batch_size):
    made = settings(batch_size=batch_size, passes=3, epochs=4, average=0.5)  # rates are float32 there: binary fractions
    for gpu, cpu in both(lab, lab.build(), lab.members(2), made):
        assert lab.difference(gpu, cpu) < 1e-9
    assert warnings_logged() == []


@pytest.mark.parametrize("embedding", ["periodic", "fourier"])
def test_an_embedding_trains_as_on_a_cpu(lab, settings, embedding):
    for gpu, cpu in both(lab, lab.build(embedding=embedding), lab.members(2), settings()):
        assert lab.difference(gpu, cpu) < 1e-8


@pytest.mark.parametrize("objective", ["dppgp", "mml"])
def test_a_line_trains_as_on_a_cpu(lab, settings, objective):
    columns = lab.data.x.shape[1]
    members = [replace(member, slope=(k / 4,) * columns) for k, member in enumerate(lab.members(3))]

    def build(member: Member) -> DeepBasisGP:
        model = lab.build()(member)
        model.slope = torch.tensor(member.slope)
        return model

    for gpu, cpu in both(lab, build, members, settings(objective=objective)):
        assert lab.difference(gpu, cpu) < 1e-9


def test_a_kernel_with_a_rate_of_its_own(lab, settings):
    for gpu, cpu in both(lab, lab.build("dbk-rbf"), lab.members(2), settings("dbk-rbf", kernel_learning_rate=2.0**-4)):
        assert lab.difference(gpu, cpu) < 1e-9


def test_one_batch_of_all_rows(lab, settings):
    for gpu, cpu in both(lab, lab.build(), lab.members(2), settings(batch_size=64)):
        assert lab.difference(gpu, cpu) < 1e-9


def test_schedule_and_clipping(lab, settings):
    """The table of factors is float32 on a GPU: 1e-6."""
    changes = {"schedule": "cosine", "warmup_steps": 8, "clip": 0.5}
    for gpu, cpu in both(lab, lab.build(), lab.members(2), settings(**changes)):
        assert lab.difference(gpu, cpu) < 1e-6


def test_patience_is_read_by_a_captured_validation(lab, settings):
    """A member that has stopped must not get better, though the graph that keeps the best was captured before."""
    patient = settings(learning_rate=2.0**-5, epochs=60, patience=4)
    for gpu, cpu in both(lab, lab.build(), lab.members(6), patient):
        assert gpu.status == "stopped"
        assert (gpu.status, gpu.reason, gpu.best_epoch) == (cpu.status, cpu.reason, cpu.best_epoch)
        assert gpu.best_score == pytest.approx(cpu.best_score, abs=1e-7)
        assert lab.largest(gpu.parameters, cpu.parameters) < 1e-7


def test_a_stream_trains_as_on_a_cpu(lab, settings):
    def open_epoch(epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(50, generator=torch.Generator().manual_seed(epoch))
        return [(lab.data.x[rows], lab.data.y[rows]) for rows in order.split(16)]

    stream = Stream(open_epoch, rows=50, columns=3, name="test")
    arguments = (lab.build(), lab.members(2), stream, lab.validation, settings())
    for gpu, cpu in zip(train(*arguments, device="cuda"), train(*arguments), strict=True):
        assert lab.difference(gpu, cpu) < 1e-9


def test_waves_on_a_gpu(lab, settings):
    arguments = (lab.build("dbk-rbf"), lab.members(5), lab.data, lab.validation, settings("dbk-rbf"))
    for mine, theirs in zip(
        train(*arguments, device="cuda", wave_size=2), train(*arguments, device="cuda"), strict=True
    ):
        assert lab.difference(mine, theirs) < 1e-9


def test_a_resumed_run_on_a_gpu(lab, settings, tmp_path):
    """Moments, steps, the best and the graphs that read them: all there after a stop in the fifth epoch."""

    class Enough(Exception):
        pass

    def stop(report) -> None:
        if report.epoch == 5:
            raise Enough

    changes = {"schedule": "cosine", "clip": 0.5, "patience": 5}
    arguments = (lab.build("dbk-rbf"), lab.members(3), lab.data, lab.validation, settings("dbk-rbf", **changes))
    expected = train(*arguments, device="cuda")
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, device="cuda", **file, progress=stop)
    for mine, theirs in zip(train(*arguments, device="cuda", **file), expected, strict=True):
        assert lab.difference(mine, theirs) < 1e-9


def test_an_ensemble_predicts_as_on_a_cpu(lab):
    models = [lab.build("dbk-rbf")(member) for member in lab.members(3)]
    on = {device: Ensemble(models, device=device, dtype=torch.float64, chunk_rows=30) for device in ("cuda", "cpu")}
    gpu, cpu = (on[device].predict(lab.validation.x) for device in ("cuda", "cpu"))
    assert gpu.means.device.type == "cpu"  # where the rows are
    torch.testing.assert_close(gpu.means, cpu.means, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(gpu.variances, cpu.variances, rtol=0.0, atol=1e-10)


# --- members ---


def test_a_float32_member_alone_and_among_eighty(lab, settings):
    """After 200 steps, 1e-3 of the best score is what we state; what was measured is printed."""
    members = lab.members(80)
    chosen = settings(precision="float32", epochs=50, learning_rate=2.0**-10)
    arguments = (lab.data, lab.validation, chosen)
    among = train(lab.build(), members, *arguments, device="cuda")
    for k in (0, 40, 79):
        alone = train(lab.build(), [members[k]], *arguments, device="cuda")[0]
        relative = abs(alone.best_score - among[k].best_score) / abs(among[k].best_score)
        print(f"member {k} alone and among 80, float32: best score differs by {relative:.1e} of {alone.best_score:.3f}")
        assert relative < 1e-3


@runs
def test_a_failing_member_fails_alone(lab, settings, method, objective):
    """To the bit, as if it had not been poisoned."""
    bad = lab.members(3)[1].seed

    def poisoned(member: Member) -> DeepBasisGP:
        model = lab.build(method)(member)
        if member.seed == bad:
            torch.nn.init.constant_(model.backbone.project.weight, torch.nan)
        return model

    arguments = (lab.members(3), lab.data, lab.validation, settings(method, objective=objective))
    outcomes = train(poisoned, *arguments, device="cuda")
    beside = train(lab.build(method), *arguments, device="cuda")
    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "finished"]
    assert all(lab.difference(outcomes[k], beside[k]) <= 1e-12 for k in (0, 2))


# --- precision ---


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_reduced_precision_is_close_and_for_training_steps_alone(lab, settings, method, precision):
    """The validation score can be had again, in full float32 on a CPU, from the parameters."""
    before = torch.backends.cuda.matmul.allow_tf32
    sizes = {"width": 64, "rank": 64}
    outcomes = {}
    for each in ("float32", precision):
        chosen = settings(method, precision=each, batch_size=32)
        outcomes[each] = train(
            lab.build(method, **sizes), lab.members(3), lab.data, lab.validation, chosen, device="cuda"
        )
    assert torch.backends.cuda.matmul.allow_tf32 == before
    for mine, full in zip(outcomes[precision], outcomes["float32"], strict=True):
        assert mine.status == "finished"
        assert mine.best_score == pytest.approx(full.best_score, abs=0.1)
        x, y = lab.validation.x.float(), lab.validation.y.float()
        with torch.no_grad():
            again = metrics.nll(mine.model(lab.build(method, **sizes)).predict(x), y)
        assert float(again) == pytest.approx(mine.best_score, abs=1e-4)
        if precision == "bf16":
            assert lab.largest(mine.parameters, full.parameters) > 0.0


# --- graphs ---


@runs
@pytest.mark.parametrize("count", [1, 3])
def test_a_captured_run_is_the_eager_run(lab, monkeypatch, settings, warnings_logged, method, objective, count):
    """And it is captured: every step and every validation replays a graph."""
    plain, replays = torch.cuda.CUDAGraph.replay, []

    def replay(graph: torch.cuda.CUDAGraph) -> None:
        replays.append(graph)
        plain(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation)
    eager = train(*arguments, settings(method, objective=objective, cuda_graph=False), device="cuda")
    assert replays == []
    captured = train(*arguments, settings(method, objective=objective), device="cuda")
    steps = 1 if objective == "mml" else 4
    assert len(replays) >= 10 * (steps + 1)
    for mine, theirs in zip(captured, eager, strict=True):
        assert lab.difference(mine, theirs) <= 1e-12
    assert warnings_logged() == []


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_run_that_cannot_be_captured_goes_on_eagerly(lab, monkeypatch, settings, warnings_logged, failing):
    """Of the step, the validation or the shuffle: one line says so, and nothing is changed by what was tried."""
    arguments = (lab.build("dbk-rbf"), lab.members(2), lab.data, lab.validation)
    eager = train(*arguments, settings("dbk-rbf", cuda_graph=False), device="cuda")
    plain, calls = torch.cuda.graph, []

    def graph(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == failing:
            raise RuntimeError("no capture here\nand a long story")
        return plain(*given, **named)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    outcomes = train(*arguments, settings("dbk-rbf"), device="cuda")
    assert warnings_logged() == ["CUDA graph capture failed (no capture here): continuing eagerly"]
    for mine, theirs in zip(outcomes, eager, strict=True):
        assert lab.difference(mine, theirs) <= 1e-12


@runs
@pytest.mark.parametrize("captured", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_epoch_does_not_wait_for_the_device(lab, settings, method, objective, captured, count):
    """Not in its steps, not in its shuffle, and not in the validation before its result is read."""
    chosen = settings(
        method, objective=objective, cuda_graph=captured, precision="float32", clip=1.0, schedule="cosine"
    )
    wave = lab.wave(lab.build(method), lab.members(count), chosen, "cuda")
    lab.epochs(wave, 1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert wave.train_epoch(lambda: False)
        wave.close()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_that_waiting_would_be_seen(lab):
    """That the test above can fail."""
    tensor = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            tensor.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- compilation ---


@pytest.mark.compiled
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, which differ between its releases
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("method", "count"), [("dbk-silu", 3), ("dbk-rbf", 1)])
@pytest.mark.parametrize("captured", [True, False], ids=["graph", "no graph"])
def test_a_compiled_run_is_the_eager_run(lab, settings, warnings_logged, method, count, captured):
    arguments = (lab.build(method), lab.members(count), lab.data, lab.validation)
    fast = train(*arguments, settings(method, compile=True, cuda_graph=captured), device="cuda")
    eager = train(*arguments, settings(method, cuda_graph=False), device="cuda")
    for mine, theirs in zip(fast, eager, strict=True):
        assert lab.difference(mine, theirs) < 1e-9
    assert warnings_logged() == []


# --- memory ---


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """What earlier tests have left on the device is not this test's; nor is its limit theirs."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def test_running_out_of_memory_halves_the_wave(lab, settings, warnings_logged, no_leftovers):
    """A limit that two members fit into and four do not, for a wave of eight: 8, then 4, then 2.

    There are many rows, so that what libraries keep for each stream (up to 1 GiB in all) does not decide.
    """
    data = lab.rows(200_000, 1)
    build = lab.build(width=64, rank=128, blocks=2)
    chosen = settings(precision="float32", epochs=2, batch_size=200_000, chunk_rows=200_000)
    arguments = (build, lab.members(8), data, lab.validation, chosen)
    expected = train(*arguments, device="cuda", wave_size=1)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train(build, lab.members(2), data, lab.validation, chosen, device="cuda")
    two = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(1.4 * two / total)
    outcomes = train(*arguments, device="cuda", wave_size=8)
    assert warnings_logged()[0] == "out of memory with 8 members at a time: continuing with 4"
    assert all("continuing with 1" not in line for line in warnings_logged()), "two fit"
    for mine, theirs in zip(outcomes, expected, strict=True):
        assert mine.status == "finished"
        assert mine.best_score == pytest.approx(theirs.best_score, rel=1e-3)


def test_an_earlier_wave_is_not_collected_while_a_graph_is_recorded(lab, settings, warnings_logged):
    """With a collection at every allocation its graphs would be destroyed in the middle of the recording."""
    thresholds = gc.get_threshold()
    try:
        for _ in range(3):
            train(lab.build(), lab.members(2), lab.data, lab.validation, settings(epochs=1), device="cuda")
            gc.set_threshold(1)
    finally:
        gc.set_threshold(*thresholds)
    assert warnings_logged() == []
