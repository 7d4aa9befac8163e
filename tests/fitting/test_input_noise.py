"""`noise="input"`: a fit finds where the noise is large; files, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, InputError
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


def noisy(rows: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """A line, and noise that grows from 0.1 to 2; its standard deviation."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(rows, 2))
    std = np.exp(np.log(0.1) + (X[:, 1] + 1.0) * 0.5 * np.log(20.0))
    return X, X[:, 0] + std * rng.normal(size=rows), std


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    X, y, _ = noisy(600)
    return small(noise="input", epochs=60, learning_rate=2e-2, target="identity", calibrate=False).fit(X, y)


def test_it_finds_the_noise(model, tmp_path):
    X, y, std = noisy(500, 1)
    assert model.fitted_.architecture.likelihood == "input-noise"
    assert np.corrcoef(np.log(model.predict(X, return_std=True)[1]), np.log(std))[0, 1] > 0.9
    assert 0.9 < model.evaluate(X, y)["coverage_95"] < 0.99
    assert model.sample_functions(3, random_state=0)(X).shape == (500, 3)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(DeepBasisRegressor.load(tmp_path / "m").predict(X), model.predict(X))


def test_what_is_refused(model):
    X, y = easy(60)
    for asked in ({"likelihood": "student"}, {"target": "count"}, {"trend": "linear"}, {"method": "dnn"}):
        with pytest.raises(InputError, match=r"noise='input'|do not go together"):
            small(noise="input", **asked).fit(X, np.abs(np.round(y)))
    with pytest.raises(InputError, match="noise='input' is for one target"):
        small(noise="input").fit(X, np.stack([y, y], 1))
    with pytest.raises(InputError, match="noise='input' is for one target"):
        DeepBasisClassifier(noise="input", epochs=1).fit(X, y > 0)
    with pytest.raises(InputError, match="constant noise"):
        model.predict(np.zeros((2, 2)), return_cov=True)


@pytest.mark.slow
def test_a_process_that_has_not_fitted_it_loads_it(model, tmp_path):
    """The likelihood's file is then first read while models are put together on the meta device."""
    model.save(tmp_path / "model.safetensors")
    script = (
        "import sys; from deepbasis import DeepBasisRegressor as R; print(R.load(sys.argv[1]).predict([[0.5, 0.5]])[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model.safetensors")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(model.predict([[0.5, 0.5]])[0]), rel=1e-6)
