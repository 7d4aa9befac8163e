"""`likelihood="student"`: outliers do not pull the function."""

import numpy as np
import pytest

from deepbasis import DeepBasisRegressor, InputError
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model

SETTINGS = {"members": 4, "validation_fraction": "auto", "epochs": 60, "learning_rate": 1e-2, "target": "identity"}


def spoilt(rows: int = 300, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """One target in twenty is nowhere near."""
    X, y = easy(rows, seed)
    rng = np.random.default_rng(seed + 1)
    wrong = rng.random(rows) < 0.05
    return X, np.where(wrong, y + rng.normal(0.0, 10.0, rows), y), y


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    X, y, _ = spoilt()
    return small(likelihood="student", **SETTINGS).fit(X, y)


def test_it_learns_the_function_and_its_tails(model):
    """Members that hold out other rows have other degrees of freedom, and predict together."""
    X, y, clean = spoilt(400, 5)
    plain = small(calibrate=False, **SETTINGS).fit(*spoilt()[:2])
    ours, theirs = (float(np.abs(one.predict(X) - clean).mean()) for one in (model, plain))
    assert ours < theirs
    assert model.evaluate(X, y)["nll"] < plain.evaluate(X, y)["nll"]
    degrees = [float(one.likelihood.log_degrees().detach().exp()) for one in model.fitted_.models]
    assert len(set(degrees)) == 4
    assert max(degrees) < 8.0  # where they started
    assert model.calibration_ is None


def test_it_comes_back_from_a_file(model, tmp_path):
    X, _, _ = spoilt(20, 5)
    model.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_quantiles(X, [0.05, 0.5]), model.predict_quantiles(X, [0.05, 0.5]))


def test_with_a_warp_and_by_the_elbo():
    X, y, _ = spoilt(150)
    for changes in ({"target": "warp"}, {"method": "vbll"}):
        fitted = small(likelihood="student", **changes).fit(X, y)
        assert np.isfinite(list(fitted.evaluate(X, y).values())).all()


def test_what_is_refused():
    X, y, _ = spoilt(50)
    for changes, message in (
        ({"method": "dnn"}, "cannot have likelihood 'student'"),
        ({"objective": "mml"}, "likelihood 'student' is not Gaussian"),
        ({"calibrate": True}, "likelihood 'student' is not Gaussian"),
    ):
        with pytest.raises(InputError, match=message):
            small(likelihood="student", **changes).fit(X, y)
    with pytest.raises(InputError, match="likelihood 'student' cannot be trained by bounds"):
        small(likelihood="student").fit(X, y, lower=y)
