"""What a fit warns of, and what an interrupt leaves."""

import signal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.errors import FitWarning, NumericalError
from deepbasis.fitting.held_out import scores_and_doubt
from deepbasis.fitting.train import Execution
from deepbasis.gp.predictive import Gaussian, GaussianMixture
from deepbasis.tables.scaler import TargetScaler
from support.choosing import kernel
from support.regressors import easy, small
from support.runs import Watch, as_model, ctrl_c, fit

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
    """Of 100 validation rows half are predicted well, and the others far worse than by a constant."""
    y = torch.zeros(100, dtype=torch.float64)
    y[50:] = 30.0
    weight = torch.where(torch.arange(100) < 50, 1.0, doubtful).double()
    predicted = GaussianMixture(torch.zeros(1, 100).double(), torch.full((1, 100), 0.01).double())
    constant = Gaussian(torch.zeros(1).double(), torch.ones(1).double())
    rows = Rows(torch.zeros(100, 1).double(), y, weight)
    scores, doubt = scores_and_doubt(predicted, rows, constant, TargetScaler(0.0, 1.0))
    assert bool(doubt) == (doubtful == 1.0)
    assert (scores["nll"] > scores["nll_constant"]) == (doubtful == 1.0)


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


def test_an_interrupted_fit_gives_the_best_so_far() -> None:
    X, y = easy(100)
    before = signal.getsignal(signal.SIGINT)
    fitted = fit(small(epochs=10_000, alpha="auto"), X, y, Execution(progress=Watch(0, 3, ctrl_c)))
    assert fitted.interrupted
    assert len([text for text in fitted.warnings if "interrupted" in text]) == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert {len(history["validation"]) for history in fitted.history} == {3}
    mean, std = as_model(fitted).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert fitted.validation["rmse"] > 0


def test_an_interrupt_before_the_first_epoch_is_called_one() -> None:
    """There is no model to return; a smaller learning_rate is not what helps."""
    pressing = kernel("sv-interrupts-at-once", lambda: ctrl_c() or 1.0)
    with pytest.raises(KeyboardInterrupt) as error:
        small(method=pressing, objective="mml").fit(*easy(100))
    assert "learning_rate" not in str(error.value)


def test_a_fit_that_blows_up_says_so() -> None:
    with pytest.raises(NumericalError, match=r"no member could be trained.*smaller learning_rate"):
        small(learning_rate=1e300).fit(*easy(40))
