"""What a fit warns of, and what an interrupt leaves."""

import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from deepbasis.estimator import FitWarning

from deepbasis import DeepBasisRegressor, estimator
from deepbasis.errors import NumericalError
from deepbasis.tables.table import Table
from support.regressors import easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_model_worse_than_a_constant_is_told_what_to_try() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 2)), rng.normal(size=100)
    with pytest.warns(FitWarning, match=r"60 validation rows.*worse than.*constant Gaussian") as seen:
        model = small(epochs=10, calibrate=False).fit(X, 0.01 * y, X_val=X[:60], y_val=0.01 * y[:60] + 0.2)
    assert len(seen) == 1
    for word in ("more rows", "learning_rate", "alpha", "method"):
        assert word in str(seen[0].message)
    assert seen[0].filename == __file__
    assert model.validation_["nll"] > model.validation_["nll_constant"]
    assert np.isfinite(model.predict(X)).all()


def test_a_good_fit_is_silent() -> None:
    X, y = easy(400)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = small(epochs=150, learning_rate=1e-2, rank=16, width=16).fit(X, y)
    assert not seen
    assert model.validation_["nll"] < model.validation_["nll_constant"]


@pytest.mark.parametrize("doubtful", [1e-9, 1.0])
def test_rows_of_hardly_any_weight_do_not_spoil_the_verdict(doubtful: float) -> None:
    """Of the 100 validation rows half are predicted well, and the others far worse than by a constant."""
    X, y = easy(200)
    model = small(epochs=60, learning_rate=1e-2, calibrate=False).fit(X, y)
    rows = model._rows(Table.read(X[:100], y[:100]), torch.float64)
    worse = torch.where(torch.arange(100) < 50, rows.y, rows.y + 30.0)
    weight = torch.where(torch.arange(100) < 50, 1.0, doubtful).double()
    held_out = replace(rows, y=worse, weight=weight)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model._look_at(model.ensemble_.predict(rows.x), held_out, torch.zeros(()), torch.ones(()))
    assert len(seen) == (doubtful == 1.0)


def test_a_constant_target_is_no_fault() -> None:
    X, _ = easy(400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small().fit(X, np.full(len(X), 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, atol=0.2)


def test_a_limit_within_the_first_pass_is_told(tmp_path: Path) -> None:
    X, y = easy(400)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / "t.parquet")
    with pytest.warns(FitWarning, match=r"max_steps=3 is less than one pass .* 360 rows .* 6 steps") as seen:
        small(batch_size=64).fit_dataset(tmp_path / "t.parquet", "y", max_steps=3)
    assert seen[0].filename == __file__


class Interrupter:
    """Stands in for the progress bar, and presses Ctrl-C after the third epoch."""

    def __enter__(self) -> "Interrupter":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, report: Any) -> None:
        if report.epoch == 3:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_fit_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = easy(100)
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(estimator, "ProgressBar", Interrupter)
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(epochs=10_000, verbose=True, alpha="auto").fit(X, y)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert signal.getsignal(signal.SIGINT) is before
    assert {len(history["validation"]) for history in model.history_} == {3}
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert model.validation_["rmse"] > 0


def test_an_interrupt_before_the_first_epoch_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no model to return; a smaller learning_rate is not what helps."""
    X, y = easy(100)
    genuine = DeepBasisRegressor._build
    pressed = []

    def build(self: DeepBasisRegressor, member: Any) -> Any:
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return genuine(self, member)

    monkeypatch.setattr(DeepBasisRegressor, "_build", build)
    with pytest.raises((KeyboardInterrupt, NumericalError)) as error:
        small().fit(X, y)
    assert "learning_rate" not in str(error.value)
    if not isinstance(error.value, KeyboardInterrupt):
        assert "interrupted" in str(error.value)


def test_a_fit_that_blows_up_says_so() -> None:
    with pytest.raises(NumericalError, match=r"no member could be trained.*smaller learning_rate"):
        small(learning_rate=1e300).fit(*easy(40))
