"""The two models that nothing should be worse than: a ridge regression and a constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from _quality_data import Fold
from _quality_model import Effort, Model, Trained
from deepbasis.gp.predictive import Gaussian

Floats = NDArray[np.float64]

PENALTIES = np.logspace(-4.0, 6.0, 41)


class Line(NamedTuple):
    predict: Callable[[Floats], Floats]
    variance: float
    """The mean square of what is left of each row by a fit to all others: noise, and what few rows do not tell."""


def ridge(X: Floats, y: Floats) -> Line:
    """scikit-learn's RidgeCV on standardised columns; the penalty with the smallest leave-one-out error."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), RidgeCV(PENALTIES)).fit(X, y)
    return Line(model.predict, -float(model[-1].best_score_))


def constant(y: Floats) -> Line:
    """The mean. Without its own row it leaves n / (n - 1) times as much of each."""
    mean = float(y.mean())
    return Line(lambda X: np.full(len(X), mean), float(y.var()) * (len(y) / (len(y) - 1)) ** 2)


def fit_ridge(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    return _trained(ridge(*_all_rows(fold)), seeds)


def fit_constant(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    return _trained(constant(_all_rows(fold)[1]), seeds)


def _all_rows(fold: Fold) -> tuple[Floats, Floats]:
    """Leaving one out needs no validation rows: they train too."""
    x, y = (torch.cat(both).double().numpy() for both in zip(fold.train, fold.validation, strict=True))
    return x, y


def _trained(line: Line, seeds: Sequence[int]) -> list[Trained]:
    def predict(x: Any) -> Gaussian:
        mean = torch.from_numpy(line.predict(x.double().numpy()))
        return Gaussian(mean, torch.full_like(mean, line.variance))

    return [Trained(predict, None) for _ in seeds]


SIMPLE_MODELS = (
    Model(
        "ridge",
        "ridge regression (scikit-learn's RidgeCV, 41 penalties) on training and validation rows, with its mean "
        "squared leave-one-out error as variance",
        fit_ridge,
        package="sklearn",
        on_gpu=False,
    ),
    Model("constant", "mean and variance of the training and validation rows' targets", fit_constant, on_gpu=False),
)
