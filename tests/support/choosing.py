"""Regressors that choose a method, and what they choose from."""

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis import METHODS, DeepBasisRegressor, register
from deepbasis.gp.expansion import RBF, SiLU
from deepbasis.gp.methods import Method
from support.recipes import FEW_STEPS, only

Floats = NDArray[np.float64]


Workers = Callable[..., subprocess.CompletedProcess[str]]


DEEP = {"method": "dbk-silu"}


SHALLOW = {
    "method": "sv-rbf-linear",
    "objective": "mml",
    "members": 1,
    "learning_rate": "auto",
    "epochs": "auto",
    "patience": "auto",
    "compile": False,
    "calibrate": False,
}


KERNELS = [{**SHALLOW, "method": "sv-rbf"}, SHALLOW]


def small(**changes: Any) -> DeepBasisRegressor:
    """A regressor that fits in a fraction of a second, as a network or as a shallow kernel.

    Its members hold out the same rows; those that do not are in test_folds.py.
    """
    settings = {"members": 2, "epochs": 8, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, "recipe": FEW_STEPS, "validation_fraction": 0.1, **changes})


def kernel(name: str, before: Callable[[], float]) -> str:
    """A method like "sv-rbf" that multiplies its features by what `before` returns, at each step."""

    class Changed(RBF):
        def forward(self, g: torch.Tensor) -> Any:
            factor = before()
            features = super().forward(g)
            return features._replace(phi=features.phi * factor)

    return add_method(name, Changed, Method("identity", name, "elbo", corrected=True))


def network(name: str, share: float) -> str:
    """A method like "dbk-silu", of whose members this share fail at their first step."""

    class Failing(SiLU):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.register_buffer("factor", torch.where(torch.rand(()) < share, torch.nan, 1.0))

        def forward(self, g: torch.Tensor) -> Any:
            features = super().forward(g)
            return features._replace(phi=features.phi * self.factor)

    return add_method(name, Failing, Method("resnet", name, "dppgp", corrected=False))


def add_method(name: str, expansion: Callable[..., torch.nn.Module], method: Method) -> str:
    if name not in METHODS:
        register("expansion", name, expansion)
        register("method", name, method)
    return name


TAKING = {
    "dbk-silu": {"recipe": only(kernel("sv-dull", lambda: 0.0)), "epochs": 40, "learning_rate": 3e-2},
    "sv-rbf": {"recipe": only("sv-rbf"), "learning_rate": 1e-9, "epochs": 10},
    "sv-rbf-linear": {"recipe": only("sv-rbf-linear"), "learning_rate": 1e-9, "epochs": 10},
}
"""Arguments with which method="auto" takes this method on an easy table: the others have no chance.

A network that hardly moves says nothing, and nor does a kernel without features.
"""


def easy(rows: int = 100, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=rows)


def assert_same(model: DeepBasisRegressor, other: DeepBasisRegressor, X: Any) -> None:
    np.testing.assert_array_equal(model.predict(X, return_std=True), other.predict(X, return_std=True))
    np.testing.assert_array_equal(model.noise_, other.noise_)
    assert (model.method_, model.calibration_, model.validation_) == (
        other.method_,
        other.calibration_,
        other.validation_,
    )
    assert [list(history["validation"]) for history in model.history_] == [
        list(history["validation"]) for history in other.history_
    ]
