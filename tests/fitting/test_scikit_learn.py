"""The regressor among scikit-learn's tools."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from support.recipes import FEW_STEPS
from support.regressors import Fitted, close, small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_in_a_pipeline(fitted: Fitted) -> None:
    pipeline = make_pipeline(StandardScaler(), small()).fit(fitted.X, fitted.y)
    by_hand = StandardScaler().fit(fitted.X)
    expected = small().fit(by_hand.transform(fitted.X), fitted.y).predict(by_hand.transform(fitted.X))
    np.testing.assert_array_equal(pipeline.predict(fitted.X), expected)
    mean, std = pipeline.predict(fitted.X, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    assert (std > 0).all()


def test_in_a_grid_search(fitted: Fitted) -> None:
    search = GridSearchCV(small(), {"method": ["dbk-silu", "dnn"]}, cv=2).fit(fitted.X, fitted.y)
    best = small(**search.best_params_).fit(fitted.X, fitted.y)
    np.testing.assert_array_equal(search.predict(fitted.X), best.predict(fitted.X))
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()


def test_in_cross_validation(fitted: Fitted) -> None:
    folds = KFold(3, shuffle=True, random_state=0)
    found = cross_val_predict(small(), fitted.table, fitted.y_table, cv=folds)
    for train, test in folds.split(fitted.table):
        model = small().fit(fitted.table.iloc[train], fitted.y_table[train])
        np.testing.assert_array_equal(found[test], model.predict(fitted.table.iloc[test]))


def test_clones_are_unfitted_equals(fitted: Fitted) -> None:
    copy = clone(fitted.model)
    assert copy.get_params() == fitted.model.get_params()
    assert not hasattr(copy, "models_")
    np.testing.assert_array_equal(copy.fit(fitted.X, fitted.y).predict(fitted.X), fitted.model.predict(fitted.X))


def test_fit_leaves_its_parameters_alone(fitted: Fitted) -> None:
    model = small(method="auto", epochs=2, members=1, recipe=FEW_STEPS)
    before = model.get_params()
    model.fit(fitted.X, fitted.y)
    assert model.get_params() == before


def test_with_a_transformed_target(fitted: Fitted) -> None:
    wrapped = TransformedTargetRegressor(small(), func=np.log, inverse_func=np.exp).fit(fitted.X, np.exp(fitted.y))
    close(wrapped.predict(fitted.X), np.exp(small().fit(fitted.X, fitted.y).predict(fitted.X)), rtol=1e-6)
