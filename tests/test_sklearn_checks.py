"""scikit-learn's own checks of an estimator, none of which is expected to fail.

Those that look at numbers fit it for 200 steps, those that look at shapes, types and messages for a few.
"""

from collections.abc import Callable

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepbasis import DeepBasisRegressor

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")

NUMBERS = ("weight", "invariance", "train", "consistency", "idempotent", "pickle", "int", "array", "overwrite")


@pytest.mark.filterwarnings("ignore:on the .* validation rows")  # a few steps, or targets that are noise
@parametrize_with_checks([DeepBasisRegressor()])
def test_scikit_learn_check(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    name = check.func.__name__  # type: ignore[attr-defined]
    estimator.set_params(epochs=200 if any(word in name for word in NUMBERS) else 20)
    check(estimator)
