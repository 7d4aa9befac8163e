"""scikit-learn's own checks of an estimator, none of which is expected to fail.

Those that look at numbers fit the default; those that look at shapes, types and messages fit it for a few epochs.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepbasis import DeepBasisRegressor


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The checks fit tables of a few rows: more threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


NUMBERS = ("equivalence", "invariance", "train", "consistency", "idempotent", "int")


@parametrize_with_checks([DeepBasisRegressor()])
def test_scikit_learn_check(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None], request: pytest.FixtureRequest
) -> None:
    name = check.func.__name__  # type: ignore[attr-defined]
    if not any(word in name for word in NUMBERS):
        estimator.set_params(epochs=20)
        request.getfixturevalue("few_exact_steps")
    check(estimator)
