"""Scores for scikit-learn's searches: minus what `evaluate` and scoringrules say, also through a pipeline."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import deepbasis
from deepbasis import InputError, scoring
from support.regressors import easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data():
    return easy(60)


@pytest.fixture(scope="module")
def model(data):
    return small(epochs=2).fit(*data)


@pytest.mark.parametrize("weight", [None, np.arange(60.0)], ids=["equal", "weighted"])
def test_scores_are_minus_those_of_evaluate(model, data, weight):
    expected = model.evaluate(*data, sample_weight=weight)
    assert -scoring.nll(model, *data, weight) == pytest.approx(expected["nll"], rel=1e-12)
    assert -scoring.crps(model, *data, weight) == pytest.approx(expected["crps"], rel=1e-12)


def test_weights_count_rows(model, data):
    X, y = data
    twice = np.r_[np.arange(60), np.arange(10)]
    expected = model.evaluate(X[twice], y[twice])
    found = model.evaluate(X, y, sample_weight=np.where(np.arange(60) < 10, 2, 1))
    assert found == pytest.approx(expected, rel=1e-9)
    with pytest.raises(InputError, match="sample_weight"):
        model.evaluate(X, y, sample_weight=np.ones(3))


@pytest.mark.parametrize("coverage", [0.5, 0.95])
def test_the_interval_score_is_scoringrules(model, data, coverage):
    import scoringrules  # compiles for seconds when it is imported

    X, y = data
    y = y + np.where(np.arange(60) % 7 == 0, 3.0, 0.0)  # some lie outside
    lower, upper = model.predict_interval(X, coverage)
    expected = scoringrules.interval_score(y, lower, upper, 1 - coverage).mean()
    assert -scoring.interval_score(model, X, y, coverage=coverage) == pytest.approx(expected, rel=1e-9)


def test_a_search_takes_them_and_a_pipeline_is_gone_through(data):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), PCA(2), small(members=1, epochs=1))
    search = GridSearchCV(pipeline, {"deepbasisregressor__rank": [2, 8]}, scoring=deepbasis.scoring.crps, cv=2)
    search.fit(X, y)
    best = search.best_estimator_
    by_hand = best[-1].predict_dist(best[:-1].transform(X))
    np.testing.assert_array_equal(scoring.predict_dist(search, X).mean, by_hand.mean)
    assert search.score(X, y) == pytest.approx(-by_hand.crps(y).mean())
    alone = scoring.predict_dist(make_pipeline(best[-1]), X[:, :2])
    np.testing.assert_allclose(alone.mean, best[-1].predict(X[:, :2]), rtol=1e-12)


def test_cross_validation_takes_them(data):
    found = cross_val_score(
        small(members=1, epochs=1), *data, scoring=scoring.interval_score, cv=2, error_score="raise"
    )
    assert (found < 0).all()


def test_what_predicts_no_distribution_is_refused(data):
    with pytest.raises(InputError, match="LinearRegression predicts no distribution"):
        scoring.crps(LinearRegression().fit(*data), *data)


@pytest.mark.slow
def test_a_search_hands_the_exposure_on():
    """To the fit and to the score, by scikit-learn's routing; without one counts of this fit are not scored."""
    rng = np.random.default_rng(0)
    X, years = rng.normal(size=(80, 1)), rng.uniform(0.5, 20.0, 80)
    y = rng.poisson(years * np.exp(0.5 * X[:, 0])).astype(float)
    counts = small(members=1, epochs=2, likelihood="poisson")
    fitted = counts.fit(X, y, exposure=years)
    for score, name in ((scoring.nll, "nll"), (scoring.crps, "crps")):
        expected = fitted.evaluate(X, y, exposure=years)[name]
        assert -score(fitted, X, y, exposure=years) == pytest.approx(expected, rel=1e-12)
        assert -score(make_pipeline(fitted), X, y, exposure=years) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(InputError, match="exposure is missing"):
        scoring.interval_score(fitted, X, y)
    halves = [(np.arange(40), np.arange(40, 80)), (np.arange(40, 80), np.arange(40))]
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            counts.set_fit_request(exposure=True), {"rank": [4]}, scoring=scoring.crps, cv=halves, refit=False
        ).fit(X, y, exposure=years)
        again = cross_val_score(counts, X, y, scoring=scoring.crps, cv=halves, params={"exposure": years})
    for k, (train, test) in enumerate(halves):
        alone = small(members=1, epochs=2, likelihood="poisson", rank=4).fit(X[train], y[train], exposure=years[train])
        expected = alone.evaluate(X[test], y[test], exposure=years[test])["crps"]
        assert -search.cv_results_[f"split{k}_test_score"][0] == pytest.approx(expected, rel=1e-9)
    assert (again < 0).all()
