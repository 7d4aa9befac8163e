"""scikit-learn's own checks of an estimator, none of which is expected to fail.

Those that look at numbers fit it for 200 steps, those that look at shapes, types and messages for a few.
"""

import warnings
from collections.abc import Callable

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepbasis import DeepBasisRegressor
from deepbasis.estimator import FitWarning

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")

NUMBERS = ("weight", "invariance", "train", "consistency", "idempotent", "pickle", "int", "array", "overwrite")


@parametrize_with_checks([DeepBasisRegressor()])
def test_scikit_learn_check(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    name = check.func.__name__  # type: ignore[attr-defined]
    estimator.set_params(epochs=200 if any(word in name for word in NUMBERS) else 20)
    with warnings.catch_warnings():
        if "train" not in name:  # few steps, and targets that are noise
            warnings.simplefilter("ignore", FitWarning)
        check(estimator)
