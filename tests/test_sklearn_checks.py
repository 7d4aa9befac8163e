"""scikit-learn's own checks of an estimator, with the default constructor; none is expected to fail."""

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


@parametrize_with_checks([DeepBasisRegressor()])
def test_scikit_learn_check(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    check(estimator)
