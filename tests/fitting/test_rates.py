"""`likelihood="poisson"` and `"negative-binomial"`: fits, exposures, files, and what is refused."""

import numpy as np
import pytest

from deepbasis import DeepBasisRegressor, InputError
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model

LIKELIHOODS = ("poisson", "negative-binomial")


def visits(rows: int = 300, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """X, counts over some years each, and the years."""
    X, y = easy(rows, seed, noise=0.0)
    rng = np.random.default_rng(seed)
    years = rng.uniform(0.5, 4.0, rows)
    return X, rng.poisson(years * np.exp(y)).astype(float), years


@pytest.fixture(scope="module", params=LIKELIHOODS)
def model(request: pytest.FixtureRequest) -> DeepBasisRegressor:
    X, y, years = visits()
    return small(likelihood=request.param, epochs=40, learning_rate=1e-2).fit(X, y, exposure=years)


def test_a_prediction_is_a_distribution_of_counts(model):
    X, y, years = visits(200, 1)
    dist = model.predict_dist(X).exposed(years)
    pmf = dist.pmf
    np.testing.assert_allclose(pmf.sum(1), np.ones(200), atol=1e-6)
    np.testing.assert_allclose(dist.log_prob(y), np.log(pmf[np.arange(200), y.astype(int)]), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(pmf @ dist.values, dist.mean, rtol=1e-3)
    np.testing.assert_allclose(dist.mean, years * model.predict(X), rtol=1e-9)  # the rate, of an exposure of 1
    assert set(np.unique(dist.quantile([0.1, 0.9]))) <= set(dist.values)
    scores = model.evaluate(X, y, exposure=years)
    assert scores["nll"] == pytest.approx(-dist.log_prob(y).mean())
    assert scores["nll"] < model.validation_["nll_constant"]
    truth = np.sin(X[:, 0]) + 0.5 * X[:, 1]
    assert np.corrcoef(np.log(model.predict(X)), truth)[0, 1] > 0.8
    assert (model.sample_functions(3, random_state=0)(X) > 0).all()


def test_an_exposure_is_not_an_input(model):
    """Seven times as much of it, with the same counts: a seventh of the rate."""
    X, y, years = visits()
    plain = small(likelihood=model.likelihood, epochs=40, learning_rate=1e-2).fit(X, y, exposure=7.0 * years)
    np.testing.assert_allclose(7.0 * plain.predict(X), model.predict(X), rtol=1e-6)


def test_the_plan_says_so(model):
    assert model.fitted_.architecture.likelihood == model.likelihood
    assert model.plan_.target == "rate"
    assert model.calibration_ is None


def test_it_comes_back_from_a_file(model, tmp_path):
    X, _, _ = visits(20, 1)
    model.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_dist(X).pmf, model.predict_dist(X).pmf)
    assert again.plan_ == model.plan_


OTHERS = ({"method": "vbll"}, {"method": "pp-dkl"}, {"trend": "linear"}, {"members": 1})


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_other_methods_have_it(changes):
    X, y, _ = visits(150)
    fitted = small(likelihood="negative-binomial", **changes).fit(X, y, sample_weight=1.0 + np.arange(150) % 2)
    assert np.isfinite(list(fitted.evaluate(X, y).values())).all()


def test_what_is_refused():
    X, y, years = visits(60)
    spoilt, fraction = years.copy(), y.copy()
    spoilt[7], fraction[7] = 0.0, 2.5
    poisson = small(likelihood="poisson")
    for call, message in (
        (lambda: poisson.fit(X, y, exposure=spoilt), r"exposure is 0 in row 7: it must be a positive number"),
        (lambda: poisson.fit(X, fraction), r"y is 2\.5 in row 7: a count is a whole number from 0"),
        (lambda: poisson.fit(X, y - 1.0), "a count is a whole number from 0"),
        (lambda: poisson.fit(X, y, exposure=years[:5]), "exposure must be one number for each row"),
        (lambda: small().fit(X, y, exposure=years), "exposure is for a likelihood of counts"),
        (lambda: small(likelihood="poisson", target="log").fit(X, y), "do not go together"),
        (lambda: small(likelihood="poisson", method="dnn").fit(X, y), "cannot have likelihood 'poisson'"),
        (lambda: small(likelihood="poisson", objective="mml").fit(X, y), "likelihood 'poisson' is not Gaussian"),
        (lambda: poisson.fit(X, y, lower=y), "likelihood 'poisson' cannot be trained by bounds: leave"),
        (lambda: poisson.fit(X, y, exposure=years, X_val=X, y_val=y), "rows to validate on have no exposure"),
        (lambda: small().fit(X, y).predict_dist(X).exposed(years), "exposure is for counts"),
        (lambda: small(likelihood="poisson", calibrate="conformal").fit(X, y), "calibrate='conformal' needs targets"),
        (lambda: poisson.fit(X, y).evaluate(X, fraction), "a count is a whole number from 0"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_a_table_in_files_has_counts(tmp_path):
    X, y, _ = visits(120)
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments="")
    fitted = small(likelihood="poisson").fit_dataset(tmp_path / "t.csv", "y")
    assert fitted.fitted_.target.name == "rate"
