"""method="auto" where a candidate fails, is interrupted, or goes on from a checkpoint."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis.engine.distributed import Team
from deepbasis.errors import FitWarning, NumericalError
from deepbasis.fitting.train import Execution
from support.choosing import TAKING, Workers, assert_same, easy, kernel, small
from support.recipes import only
from support.runs import Watch, as_model, ctrl_c, fit, power_failure, watched

pytestmark = pytest.mark.usefixtures("one_thread")


def after(steps: int, then: Callable[[], float]) -> Callable[[], float]:
    """1 for so many steps, then what the function returns."""
    done: list[bool] = []

    def factor() -> float:
        done.append(True)
        return 1.0 if len(done) <= steps else then()

    return factor


def nan() -> float:
    return float("nan")


def test_a_shallow_kernel_that_fails_is_passed_over() -> None:
    X, y = easy()
    failing = kernel("sv-failing", nan)
    alone = small(method="dbk-silu", learning_rate=1e-9).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small(recipe=only(failing), learning_rate=1e-9).fit(X, y)
        other = small(recipe=only(failing, "sv-rbf"), learning_rate=1e-9).fit(X, y)
    assert_same(model, alone, X)
    assert other.method_ == "sv-rbf"
    with pytest.raises(NumericalError, match="no member could be trained"):
        small(method=failing, objective="mml").fit(X, y)


@pytest.mark.parametrize("first", [True, False])
def test_a_kernel_that_fails_halfway_is_passed_over(first: bool) -> None:
    """It has a model, that of its last good step, but no likelihood to be chosen by."""
    failing = kernel(f"sv-failing-halfway-{first}", after(20, nan))
    methods = (failing, "sv-rbf") if first else ("sv-rbf", failing)
    model = small(recipe=only(*methods, search_steps=30), learning_rate=1e-9).fit(*easy())
    assert model.method_ == "sv-rbf"


@pytest.mark.parametrize("state", [0, None, np.random.RandomState(0)], ids=str)
def test_all_kernels_start_alike_whatever_the_random_state(state: Any) -> None:
    """Two of one kind are then one and the same."""
    model = small(recipe=only("sv-rbf", "sv-rbf"), random_state=state)
    _, watch = watched(model, *easy())
    assert [report.best for report in watch.of(1)] == [report.best for report in watch.of(2)]


WORKER = """
import sys
from deepbasis import DeepBasisRegressor
from deepbasis.cli.common import workers
sys.path.insert(0, sys.argv[2])
from support.recipes import FEW_STEPS
with workers("cpu") as team:
    model = DeepBasisRegressor(
        members=2, epochs=3, rank=8, width=8, blocks=1, device="cpu", recipe=FEW_STEPS
    ).fit_dataset(sys.argv[1], "y", stream=False, team=team)
    found = team.gather_objects((model.method_, model.validation_))
    if team.first:
        print(found[0] == found[1])
"""


@pytest.mark.slow
def test_all_workers_choose_as_the_first_does(tmp_path: Path, two_workers: Workers) -> None:
    """Whatever seeds the others have drawn."""
    X, y = easy()
    pd.DataFrame(np.column_stack([X, y]), columns=["a", "b", "c", "y"]).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "worker.py").write_text(WORKER)
    done = two_workers(tmp_path / "worker.py", tmp_path / "t.parquet", Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"


@dataclass(frozen=True)
class Outvoted(Team):
    """A worker alone that is told what the first has found: which kernel is likelier, and whether it is as good."""

    kernel: int | None = None
    as_good: bool | None = None

    def broadcast_object(self, value: Any) -> Any:
        if isinstance(value, bool):
            return value if self.as_good is None else self.as_good
        return self.kernel if isinstance(value, int) and self.kernel is not None else value


def test_a_worker_takes_what_the_first_has_chosen() -> None:
    model = small(recipe=only("sv-rbf", "sv-rbf-linear", search_steps=5), learning_rate=1e-9)
    alone = fit(model, *easy(), Execution())
    assert alone.chosen > 0
    other = 2 - alone.chosen  # the place of the other kernel among the two
    assert fit(model, *easy(), Execution(team=Outvoted(kernel=other))).chosen == other + 1
    assert fit(model, *easy(), Execution(team=Outvoted(as_good=False))).chosen == 0


def test_a_network_that_fails_is_an_error_and_no_kernel_is_trained() -> None:
    watch = Watch()
    with pytest.raises(NumericalError, match="smaller learning_rate"):
        fit(small(learning_rate=1e300), *easy(), Execution(progress=watch))
    assert watch.trainings <= 1


def test_an_interrupt_ends_the_trials() -> None:
    X, y = easy()
    watch = Watch(0, 3, ctrl_c)
    fitted = fit(small(epochs=10_000), X, y, Execution(progress=watch))
    assert watch.trainings == 1
    assert any("interrupted" in text for text in fitted.warnings)
    model = as_model(fitted)
    assert model.method_ == "dbk-silu"
    assert {len(history["validation"]) for history in model.history_} == {3}
    assert np.isfinite(model.predict(X, True)).all()


@pytest.mark.parametrize("candidate", [1, 2, 3], ids=["a kernel", "the other kernel", "the better one once more"])
def test_an_interrupt_leaves_the_networks(candidate: int) -> None:
    """No kernel was judged before it."""
    X, y = easy()
    alone = small(recipe=only(), learning_rate=1e-9).fit(X, y)
    fitted = fit(small(learning_rate=1e-9), X, y, Execution(progress=Watch(candidate, 3, ctrl_c)))
    assert fitted.interrupted
    assert fitted.architecture.method == "dbk-silu"
    assert_same(as_model(fitted), alone, X)


def test_an_interrupt_before_the_first_step_of_a_kernel_is_told_too() -> None:
    """The networks stand; the command would otherwise end as if nothing had been pressed."""
    X, y = easy()
    pressed = kernel("sv-interrupted", lambda: ctrl_c() or 1.0)
    alone = small(method="dbk-silu").fit(X, y)
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(recipe=only(pressed)).fit(X, y)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert_same(model, alone, X)


@pytest.mark.slow
@pytest.mark.parametrize(("candidate", "chosen"), [(0, "dbk-silu"), (1, "sv-rbf-linear"), (1, "dbk-silu")])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, candidate: int, chosen: str) -> None:
    """The checkpoint is the network's: of that nothing is done twice, and the kernel is trained again."""
    X, y = easy(300)
    model = small(**TAKING[chosen])
    expected = model.fit(X, y)
    assert expected.method_ == chosen
    kept = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}
    with pytest.raises(RuntimeError, match="power"):
        fit(model, X, y, Execution(**kept, progress=Watch(candidate, 3, power_failure)))
    watch = Watch()
    resumed = fit(model, X, y, Execution(**kept, progress=watch))
    assert_same(as_model(resumed), expected, X)
    left = range(3, model.epochs + 1) if candidate == 0 else []  # the third epoch had not been written
    kernel_epochs = [epoch for _, epoch in watch.seen[len(left) :]]
    assert [epoch for _, epoch in watch.seen[: len(left)]] == [*left]
    trainings = 3 if chosen == "dbk-silu" else 1  # a dull kernel starts twice more, in vain
    assert kernel_epochs == [*range(1, 11)] * trainings
