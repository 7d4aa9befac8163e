"""method="auto" where a candidate fails, is interrupted, or goes on from a checkpoint."""

import functools
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from deepbasis.estimator import FitWarning
from deepbasis.starting import starting_noise

from deepbasis import choosing, estimator
from deepbasis.errors import NumericalError
from deepbasis.gp.expansion import RBF
from support.choosing import Workers, assert_same, easy, small

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


def test_a_shallow_kernel_that_fails_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], prefer: Callable[[str], None]
) -> None:
    def spoil(self: RBF, *arguments: Any) -> None:
        self.Z.data.fill_(float("nan"))

    X, y = easy()
    alone = small(method="dbk-silu").fit(X, y)
    prefer("sv-rbf-linear")
    monkeypatch.setattr(RBF, "start_at", spoil)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small().fit(X, y)
    assert len(runs) == 4
    assert_same(model, alone, X)
    with pytest.raises(NumericalError, match="no member could be trained"):
        small(method="sv-rbf", objective="mml").fit(X, y)


@pytest.mark.parametrize("failing", ["sv-rbf", "sv-rbf-linear"])
def test_a_kernel_that_fails_halfway_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, prefer: Callable[[str], None], failing: str
) -> None:
    """It has a model, that of its last good step, but no likelihood to be chosen by."""
    monkeypatch.setattr(choosing, "is_as_good", lambda *of: True)
    genuine, steps = RBF.forward, []

    def forward(self: RBF, g: torch.Tensor) -> Any:
        features = genuine(self, g)
        if (self.log_slope is None) == (failing == "sv-rbf-linear"):
            return features
        steps.append(True)
        return features._replace(phi=features.phi * (1.0 if len(steps) <= 20 else float("nan")))

    monkeypatch.setattr(RBF, "forward", forward)
    model = small().fit(*easy())
    assert len(steps) > 20
    assert model.method_ == ("sv-rbf" if failing == "sv-rbf-linear" else "sv-rbf-linear")


def test_both_kernels_start_alike_whatever_the_random_state(runs: list[dict[str, Any]]) -> None:
    for state in (0, None, np.random.RandomState(0)):
        small(random_state=state).fit(*easy())
        assert runs[-1]["members"] == runs[-2]["members"]


WORKER = """
import sys
from dataclasses import replace
from deepbasis import DeepBasisRegressor, choosing, planning
from deepbasis.commands.together import working_together
planning.RECIPES = {"default": replace(planning.RECIPES["default"], exact_steps=5)}
with working_together("cpu") as team:
    choosing.bic = lambda kernel, data: float((kernel.method_ == "sv-rbf") == team.first)
    choosing.is_as_good = lambda *of: team.first
    model = DeepBasisRegressor(
        members=2, epochs=3, rank=8, width=8, blocks=1, random_state=0, device="cpu"
    ).fit_dataset(sys.argv[1], "y", stream=False, team=team)
    found = team.gather_objects((model.method_, model.validation_))
    if team.first:
        print(*sorted({method for method, _ in found}), found[0] == found[1])
"""


@pytest.mark.slow
def test_all_workers_choose_as_the_first_does(tmp_path: Path, two_workers: Workers) -> None:
    X, y = easy()
    pd.DataFrame(np.column_stack([X, y]), columns=["a", "b", "c", "y"]).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "worker.py").write_text(WORKER)
    done = two_workers(tmp_path / "worker.py", tmp_path / "t.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sv-rbf-linear True\n"


def test_a_network_that_fails_is_an_error(runs: list[dict[str, Any]]) -> None:
    with pytest.raises(NumericalError, match="smaller learning_rate"):
        small(learning_rate=1e300).fit(*easy())
    assert len(runs) == 1


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def power_failure() -> None:
    raise RuntimeError("the power failed")


def test_an_interrupt_ends_the_trials(pressing: Callable[..., Any], runs: list[dict[str, Any]]) -> None:
    pressing(0, 3, ctrl_c)
    X, y = easy()
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(epochs=10_000, verbose=True).fit(X, y)
    assert len(seen) == 1
    assert len(runs) == 1
    assert model.method_ == "dbk-silu"
    assert {len(history["validation"]) for history in model.history_} == {3}
    assert np.isfinite(model.predict(X, True)).all()


@pytest.mark.parametrize(("candidate", "left"), [(1, "dbk-silu"), (2, "sv-rbf")])
def test_an_interrupt_leaves_what_was_finished_before_it(
    pressing: Callable[..., Any], prefer: Callable[[str], None], candidate: int, left: str
) -> None:
    X, y = easy()
    prefer(left)
    alone = small().fit(X, y)
    assert alone.method_ == left
    pressing(candidate, 3, ctrl_c)
    prefer("sv-rbf-linear")
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(verbose=True).fit(X, y)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert_same(model, alone, X)


def test_an_interrupt_before_the_last_trial_has_a_result_is_told_too(
    monkeypatch: pytest.MonkeyPatch, prefer: Callable[[str], None]
) -> None:
    """The networks stand; the command would otherwise end as if nothing had been pressed."""
    X, y = easy()
    alone = small(method="dbk-silu").fit(X, y)
    genuine = RBF.start_at
    pressed = []

    def start_at(self: RBF, *arguments: Any) -> None:
        pressed.append(True)
        if len(pressed) == 3:  # the engine looks at a model twice before it begins
            ctrl_c()
        genuine(self, *arguments)

    monkeypatch.setattr(RBF, "start_at", start_at)
    prefer("sv-rbf-linear")
    with pytest.warns(FitWarning, match="interrupted"):
        model = small().fit(X, y)
    assert_same(model, alone, X)


@pytest.mark.parametrize(("candidate", "chosen"), [(0, "dbk-silu"), (1, "sv-rbf-linear"), (2, "dbk-silu")])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pressing: Callable[..., Any],
    prefer: Callable[[str], None],
    candidate: int,
    chosen: str,
) -> None:
    """The checkpoint is the network's: of that nothing is done twice, and the kernels are trained again."""
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    prefer(chosen)
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.assign(y=y).to_parquet(tmp_path / "t.parquet")
    expected = small().fit_dataset(tmp_path / "t.parquet", "y", stream=False)
    assert_same(expected, small().fit(table, y), table)
    arguments = {"stream": False, "checkpoint": tmp_path / "c"}
    pressing(candidate, 3, power_failure)
    with pytest.raises(RuntimeError, match="power"):
        small(verbose=True).fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    bar = pressing()
    resumed = small(verbose=True).fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    assert_same(resumed, expected, table)
    left = range(3, 9) if candidate == 0 else []  # the third epoch had not been written
    assert bar.seen == [
        *((0, epoch) for epoch in left),
        *((kernel, epoch) for kernel in (1, 2) for epoch in range(1, 11)),
    ]


def test_a_checkpoint_is_found_again_where_sums_are_rounded_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last digits of the starting noise depend on the number of threads: they are no part of what a run is."""
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.assign(y=y).to_parquet(tmp_path / "t.parquet")
    arguments = {"stream": False, "checkpoint": tmp_path / "c"}
    expected = small().fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    monkeypatch.setattr(estimator, "starting_noise", lambda rows: starting_noise(rows) * (1.0 + 1e-14))
    again = small().fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    np.testing.assert_allclose(again.predict(table), expected.predict(table), rtol=1e-6, atol=1e-8)
