"""time_limit: as many steps as there is time for."""

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError
from deepbasis.fitting.files import prepare_files
from deepbasis.fitting.pace import in_time, share_of_networks, trained_in_time
from deepbasis.fitting.plan import Candidate
from deepbasis.fitting.spec import RunOptions, Spec
from deepbasis.fitting.train import Execution, Runner
from support.choosing import Workers
from support.command import COMMAND
from support.recipes import only
from support.runs import prepared

pytestmark = pytest.mark.usefixtures("one_thread")


def table(rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=rows)


def regressor(**changes: Any) -> DeepBasisRegressor:
    return DeepBasisRegressor(**{"random_state": 0, "device": "cpu", "rank": 8, "width": 8, "blocks": 1, **changes})


@pytest.mark.parametrize(("rows", "seconds"), [(300, 10.0), (3_000, 10.0)])
@pytest.mark.slow
def test_a_fit_keeps_its_limit_and_uses_it(rows: int, seconds: float) -> None:
    X, y = table(rows)
    begun = time.monotonic()
    model = regressor(time_limit=seconds).fit(X, y)
    taken = time.monotonic() - begun
    assert 0.3 * seconds < taken < 1.3 * seconds  # on a machine that others use too
    assert model.evaluate(X, y)["nll"] < 0.5
    assert not model.fitted_.interrupted
    assert not model.fitted_.warnings


@pytest.mark.parametrize("seconds", [1e3, 1e6])
def test_more_time_is_more_epochs_up_to_four_times_as_many(seconds: float) -> None:
    X, y = table(200)
    _, plan, data = prepared(regressor(members=2, epochs=3), X, y)
    fold = data.folds(plan)[0]
    network = plan.candidates[0]
    execution = Execution(deadline=time.monotonic() + seconds)
    found = in_time(Runner(plan, 3, execution), network, [1, 2], fold.data, fold.selecting)
    assert found is not None
    assert found.settings.epochs == 4 * network.settings.epochs
    assert replace(found, settings=network.settings) == network


@pytest.mark.parametrize("rows", [200, 2_300])  # by turns, each member holds out a quarter; and all the same rows
def test_where_time_is_left_twice_as_many_members_predict(rows: int) -> None:
    X, y = table(rows)
    changes = {"method": "dbk-silu", "epochs": 3, "batch_size": 500, "time_limit": 1e3}
    fits = [regressor(**changes, **more).fit(X, y).fitted_ for more in ({}, {"members": 4}, {"members": 3})]
    assert [len(fitted.models) for fitted in fits] == [8, 4, 3]
    assert len({model.noise().item() for model in fits[0].models}) == 8
    for one, other in zip(fits[0].models, fits[1].models, strict=False):
        assert one.noise() == other.noise()  # the first are those that there would be alone
    assert fits[0].validation["crps"] < fits[1].validation["crps"]


def test_members_for_which_too_little_time_is_left_are_none() -> None:
    X, y = table(300)
    _, plan, data = prepared(regressor(members=2, epochs=40), X, y)
    fold, network = data.folds(plan)[0], plan.candidates[0]
    for share, count in ((1.0, 4), (1e-3, 2)):  # of 300 seconds
        runner = Runner(plan, 3, Execution(deadline=time.monotonic() + 300.0))
        found = trained_in_time(runner, network, [1, 2], fold.data, fold.selecting, share, spare=[3, 4])
        assert found is not None
        assert len(found.models) == count


def test_members_that_are_trained_one_pair_after_another_share_the_time() -> None:
    """One thread trains two members at a time: eight of them take four times as long as two."""
    X, y = table(600)
    found = []
    for members in (2, 8):
        _, plan, data = prepared(regressor(members=members, epochs=10_000, n_jobs=1), X, y)
        assert plan.member_threads
        fold = data.folds(plan)[0]
        runner = Runner(plan, 3, Execution(deadline=time.monotonic() + 30.0))
        planned = in_time(runner, plan.candidates[0], list(range(members)), fold.data, fold.selecting)
        assert planned is not None
        found.append(planned.settings.epochs)
    assert found[1] < 0.5 * found[0]


@pytest.mark.slow
def test_a_limit_above_what_a_fit_takes_leaves_the_kernels() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.3 * X[:, 2] * X[:, 3] + 0.1 * rng.normal(size=200)
    begun = time.monotonic()
    free = DeepBasisRegressor(random_state=0, device="cpu").fit(X, y)
    limit = 1.2 * (time.monotonic() - begun)
    model = DeepBasisRegressor(random_state=0, device="cpu", time_limit=limit).fit(X, y)
    assert "dbk-silu" not in (free.method_, model.method_)


@pytest.mark.slow
def test_a_straight_line_of_a_longer_table_has_its_turn() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 6))
    model = regressor(time_limit=3.0, recipe=only("linear")).fit(X, X.sum(1) + rng.normal(size=3_000))
    assert model.method_ == "linear"


def test_networks_have_what_kernels_will_not_need() -> None:
    shares = []
    for rows, seconds in [(200, 1e-2), (200, 1e5), (2_500, 1e5)]:
        _, plan, data = prepared(regressor(), *table(rows))
        runner = Runner(plan, 3, Execution(deadline=time.monotonic() + seconds))
        shares.append(share_of_networks(runner, 0, data.folds(plan)))
    assert shares == [0.5, 0.9, 0.9]


def test_without_a_limit_nothing_is_tried() -> None:
    _, plan, data = prepared(regressor(), *table(200))
    fold = data.folds(plan)[0]
    assert in_time(Runner(plan, 3), plan.candidates[0], [1], fold.data, fold.selecting) is plan.candidates[0]


def by_steps(kernel: Candidate) -> Candidate:
    return replace(kernel, settings=replace(kernel.settings, optimiser="adamw", epochs=400))


def test_a_kernel_for_which_there_is_no_time_is_left_out_and_too_little_for_networks_is_an_error() -> None:
    _, plan, data = prepared(regressor(), *table(200))
    fold = data.folds(plan)[0]
    late = Runner(plan, 3, Execution(deadline=time.monotonic() - 1.0))
    for kernel in (plan.kernels[0], by_steps(plan.kernels[0])):
        assert trained_in_time(late, kernel, [1], fold.data, fold.selecting) is None
    with pytest.raises(InputError, match=r"time_limit is too short: .* passes over the .* rows"):
        in_time(late, plan.networks[0], [1], fold.data, fold.selecting)


def test_what_cannot_go_with_a_limit_is_refused(tmp_path: Path) -> None:
    X, y = table(50)
    pd.DataFrame({"a": X[:, 0], "y": y}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="checkpoint and time_limit"):
        regressor(time_limit=9).fit_dataset(tmp_path / "t.csv", "y", checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="max_steps"):
        regressor(time_limit=9).fit_dataset(tmp_path / "t.csv", "y", stream=True)
    for wrong in (0, -1, "soon", float("nan")):
        with pytest.raises(InputError, match="time_limit"):
            regressor(time_limit=wrong).fit(X, y)


def test_a_limit_counts_since_the_moment_that_is_given(tmp_path: Path) -> None:
    X, y = table(50)
    pd.DataFrame({"a": X[:, 0], "y": y}).to_csv(tmp_path / "t.csv", index=False)
    late = time.monotonic() - 100.0
    _, run = prepare_files(
        Spec.of(regressor(time_limit=60.0)), tmp_path / "t.csv", "y", options=RunOptions(), since=late
    )
    with pytest.raises(InputError, match="time_limit is too short"):
        run()


@pytest.mark.slow
def test_the_command_counts_its_imports(tmp_path: Path) -> None:
    """Not those before its first line, which are short."""
    X, y = table(3_000)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}).to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", "--time-limit", 8, "--epochs", 10**6]
    begun = time.monotonic()
    subprocess.run([*COMMAND, *map(str, words), "--patience", "1000000", "--quiet"], check=True)
    assert time.monotonic() - begun < 1.2 * 8.0


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "seconds"), [(200, 8), (3_000, 12)])
def test_two_workers_end_together(tmp_path: Path, two_workers: Workers, rows: int, seconds: int) -> None:
    """Whatever is cut short, and though their clocks differ."""
    X, y = table(rows)
    inputs = pd.DataFrame(X, columns=["a", "b", "c"])
    inputs.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", "--time-limit", seconds, "--json"]
    done = two_workers("-m", "deepbasis", *words, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seconds"] < 1.2 * seconds
    assert DeepBasisRegressor.load(tmp_path / "m").evaluate(inputs, y)["nll"] < 0.5
