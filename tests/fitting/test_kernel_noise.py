"""A shallow kernel finds how little noise there is."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deepbasis import DeepBasisRegressor
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.train import Execution
from deepbasis.progress import EpochReport
from support.choosing import Floats, kernel
from support.recipes import recipe
from support.runs import Watch, ctrl_c, fit, power_failure, watched

pytestmark = pytest.mark.usefixtures("one_thread")

KERNEL = {"method": "sv-rbf", "objective": "mml", "members": 1, "random_state": 0, "device": "cpu", "rank": 16}
FORTY_STEPS = recipe("forty exact steps", exact_steps=40)


def experiment(noise: float) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(150, 2))
    return X, np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + noise * rng.normal(size=len(X))


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "trainings"), [(0.003, 2), (0.3, 1)])
def test_a_kernel_finds_how_little_noise_there_is(noise: float, trainings: int) -> None:
    """A computer experiment: the noise starts at half of what a line leaves, thousands of times too large."""
    model = DeepBasisRegressor(**{**KERNEL, "rank": 64}, dtype="float32")
    fitted, watch = watched(model, *experiment(noise))
    assert math.sqrt(fitted.noise[0]) == pytest.approx(noise, rel=0.5)
    assert watch.trainings == trainings


def test_where_the_noise_still_falls_it_is_trained_again_with_a_faster_rate() -> None:
    fitted, watch = watched(DeepBasisRegressor(**KERNEL, recipe=FORTY_STEPS), *experiment(0.0))
    assert watch.trainings == 2
    slow = watched(DeepBasisRegressor(**KERNEL, epochs=40, recipe=FORTY_STEPS), *experiment(0.0))[0]
    assert fitted.noise[0] < 0.5 * slow.noise[0]


@pytest.mark.parametrize(
    "changes", [{"epochs": 30}, {"recipe": "paper", "epochs": 30}, {"method": "dbk-silu", "objective": None}], ids=str
)
def test_nothing_else_is_trained_twice(changes: dict[str, Any]) -> None:
    """Neither where the number of steps was asked for, nor a network, nor as the paper does it."""
    sizes = {"rank": 8, "width": 8, "blocks": 1, "epochs": 3}
    _, watch = watched(DeepBasisRegressor(**{**KERNEL, **sizes, **changes}), *experiment(0.0))
    assert watch.trainings == 1


@pytest.mark.parametrize(("epoch", "act"), [(1, ctrl_c), (20, ctrl_c)], ids=["at once", "halfway"])
def test_a_second_training_that_is_interrupted_is_as_none(epoch: int, act: Callable[[], None]) -> None:
    model = DeepBasisRegressor(**KERNEL, recipe=FORTY_STEPS)
    first = watched(DeepBasisRegressor(**KERNEL, epochs=40, recipe=FORTY_STEPS), *experiment(0.0))[0]
    watch = Watch(1, epoch, act)
    fitted: Fitted = fit(model, *experiment(0.0), Execution(progress=watch))
    assert watch.trainings == 2
    assert fitted.interrupted
    np.testing.assert_array_equal(fitted.history[0]["noise"], first.history[0]["noise"])


@pytest.mark.parametrize("when", [(0, 40), (1, 7)], ids=["at once", "halfway"])
def test_a_second_training_that_fails_is_as_none(when: tuple[int, int]) -> None:
    """The kernel is NaN from then on, until the training has ended by it."""
    factor = [1.0]

    def spoil() -> None:
        factor[0] = math.nan

    watch = Watch(*when, spoil)

    def progress(report: EpochReport) -> None:
        watch(report)
        if report.active == 0 and watch.seen[-1][0] == 1:
            factor[0] = 1.0

    model = DeepBasisRegressor(**{**KERNEL, "method": kernel(f"sv-nan-{when}", lambda: factor[0])}, recipe=FORTY_STEPS)
    fitted = fit(model, *experiment(0.0), Execution(progress=progress))
    assert watch.seen[-1] == (1, when[1] % 40 + 1)
    first = fit(model.set_params(epochs=40), *experiment(0.0), Execution())
    assert (fitted.interrupted, fitted.warnings) == (False, first.warnings)
    np.testing.assert_array_equal(fitted.history[0]["noise"], first.history[0]["noise"])


def test_what_a_second_training_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="power"):
        fit(
            DeepBasisRegressor(**KERNEL, recipe=FORTY_STEPS),
            *experiment(0.0),
            Execution(progress=Watch(1, 2, power_failure)),
        )
