"""compile=True on a CPU. Run without shape checks: DEEPBASIS_CHECK_SHAPES=0 pytest tests/engine -m compiled"""

from collections.abc import Callable

import pytest
import torch

from deepbasis.engine.training import train


def compiled(test: Callable[..., None]) -> Callable[..., None]:
    for by_torch_itself in (
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
        "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
    ):
        test = pytest.mark.filterwarnings(by_torch_itself)(test)
    return pytest.mark.compiled(pytest.mark.usefixtures("fresh_compiler")(test))


@pytest.fixture
def graphs() -> Callable[[], int]:
    """How many graphs torch has compiled since the test began."""
    torch._dynamo.utils.counters.clear()
    return lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]


@compiled
@pytest.mark.parametrize("changes", [{}, {"optimiser": "muon", "average": 0.9}], ids=str)
def test_a_compiled_run_is_the_eager_run(lab, graphs, warnings_logged, changes):
    """With a smaller last batch, and so with weights; each member's parameters and history.

    Two runs: a compilation takes half a minute. The other methods' losses are compiled in gp/test_stacking.py.
    """
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation)
    eager = train(*arguments, lab.settings(epochs=10, **changes))
    assert graphs() == 0
    fast = train(*arguments, lab.settings(epochs=10, compile=True, **changes))
    assert graphs() >= 2  # the loss and the score
    for mine, theirs in zip(fast, eager, strict=True):
        assert lab.difference(mine, theirs) < 1e-9
    assert warnings_logged() == []


@compiled
def test_every_wave_is_compiled(lab, graphs, warnings_logged):
    """torch.compile gives up on a function after some recompilations; waves must not count as such."""
    count = torch._dynamo.config.recompile_limit + 1
    settings = lab.settings(epochs=1, compile=True)
    train(lab.build(), lab.members(count), lab.data, lab.validation, settings, wave_size=1)
    assert graphs() >= 2 * count
    assert warnings_logged() == []


@compiled
def test_a_compiled_run_can_be_resumed(lab, tmp_path, graphs):
    arguments = (lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(epochs=6, compile=True))

    class Enough(Exception):
        pass

    def stop(report) -> None:
        if report.epoch == 4:
            raise Enough

    expected = train(*arguments)
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, **file, progress=stop)
    outcomes = train(*arguments, **file)
    assert all(lab.same(a, b) for a, b in zip(outcomes, expected, strict=True))
    assert graphs() >= 2 * 3
