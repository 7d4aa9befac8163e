"""scikit-learn's own checks of an estimator, none of which is expected to fail.

With two members; those that ask for a good fit have 200 steps, those that compare two fits 60, those that look at
shapes, types and messages a few.
"""

import warnings
from collections.abc import Callable

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepbasis import DeepBasisRegressor
from deepbasis.estimator import FitWarning

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")

COMPARE = ("weight", "invariance", "consistency", "idempotent", "pickle", "int", "array", "overwrite")


@parametrize_with_checks([DeepBasisRegressor()])
def test_scikit_learn_check(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    name = check.func.__name__  # type: ignore[attr-defined]
    epochs = 200 if "train" in name else 60 if any(word in name for word in COMPARE) else 20
    estimator.set_params(epochs=epochs, members=2)
    with warnings.catch_warnings():
        if "train" not in name:  # few steps, and targets that are noise
            warnings.simplefilter("ignore", FitWarning)
        check(estimator)
