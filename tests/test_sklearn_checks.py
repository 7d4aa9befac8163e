"""scikit-learn's own checks of an estimator, none of which is expected to fail.

Those that look at numbers fit the default; those that look at shapes, types and messages fit it for a few epochs.
"""

from collections.abc import Callable

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepbasis import DeepBasisRegressor

pytestmark = pytest.mark.usefixtures("one_thread")

NUMBERS = ("weight", "invariance", "train", "consistency", "idempotent", "pickle", "int", "array", "overwrite")


@parametrize_with_checks([DeepBasisRegressor()])
def test_scikit_learn_check(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None], request: pytest.FixtureRequest
) -> None:
    name = check.func.__name__  # type: ignore[attr-defined]
    if not any(word in name for word in NUMBERS):
        estimator.set_params(epochs=20)
        request.getfixturevalue("few_exact_steps")
    check(estimator)
