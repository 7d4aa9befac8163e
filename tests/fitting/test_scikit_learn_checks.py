"""scikit-learn's own checks of an estimator, none of which is expected to fail."""

import warnings
from collections.abc import Callable

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, FitWarning
from support.classifiers import small_classifier
from support.recipes import FEW_STEPS
from support.regressors import small

pytestmark = pytest.mark.usefixtures("one_thread")

COMPARE = ("weight", "invariance", "consistency", "idempotent", "pickle", "int", "array", "overwrite")


def name_of(check: Callable[[BaseEstimator], None]) -> str:
    return check.func.__name__  # type: ignore[attr-defined]


@parametrize_with_checks([small(members=1, epochs=3)])
def test_check_of_a_small_regressor(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    """Three steps of one network: all but those that ask for a good fit."""
    if "regressors_train" not in name_of(check):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            check(estimator)


@parametrize_with_checks([small_classifier(members=1, epochs=3, alpha="auto", beta="auto")])
def test_check_of_a_small_classifier(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    if not any(words in name_of(check) for words in ("classifiers_train", "classifiers_classes", "class_weight_class")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            check(estimator)


@pytest.mark.slow
@parametrize_with_checks([DeepBasisRegressor(), DeepBasisClassifier()])
def test_check_of_the_default(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    """With two members; those that ask for a good fit have 200 steps, those that compare two fits 60, others 20."""
    name = name_of(check)
    good_fit = any(word in name for word in ("train", "classifiers_classes", "class_weight_class"))
    epochs = 200 if good_fit else 60 if any(word in name for word in COMPARE) else 20
    estimator.set_params(epochs=epochs, members=2, recipe=FEW_STEPS)
    with warnings.catch_warnings():
        if not good_fit:  # few steps, and targets that are noise
            warnings.simplefilter("ignore", FitWarning)
        check(estimator)
