"""time_limit: as many steps as there is time for."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError
from deepbasis.fitting.pace import in_time
from deepbasis.fitting.train import Execution, Runner
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


def test_without_a_limit_nothing_is_tried() -> None:
    _, plan, data = prepared(regressor(), *table(200))
    fold = data.folds(plan)[0]
    assert in_time(Runner(plan, 3), plan.candidates[0], [1], fold.data, fold.selecting) is plan.candidates[0]


def test_a_kernel_for_which_there_is_no_time_is_left_out_and_too_little_for_networks_is_an_error() -> None:
    _, plan, data = prepared(regressor(), *table(200))
    fold = data.folds(plan)[0]
    late = Runner(plan, 3, Execution(deadline=time.monotonic() - 1.0))
    assert in_time(late, plan.kernels[0], [1], fold.data, fold.selecting) is None
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
