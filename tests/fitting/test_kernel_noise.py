"""A shallow kernel finds how little noise there is."""

import math

import numpy as np
import pytest

from deepbasis import DeepBasisRegressor

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.003, 0.3])
def test_a_kernel_finds_how_little_noise_there_is(noise: float) -> None:
    """A computer experiment: the noise starts at half of what a line leaves, thousands of times too large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(150, 2))
    y = np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + noise * rng.normal(size=len(X))
    kernel = {"method": "sv-rbf", "objective": "mml", "members": 1, "rank": 64, "dtype": "float32"}
    fitted = DeepBasisRegressor(**kernel, random_state=0, device="cpu").fit(X, y).fitted_
    assert math.sqrt(fitted.noise[0]) == pytest.approx(noise, rel=0.5)
