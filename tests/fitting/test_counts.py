"""`target="count"` and `target="ordinal"`: fits, files, streams, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.fitting.values import choose_values
from deepbasis.tables.warps import count_steps, ordinal_steps
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


def counts(rows: int = 500, seed: int = 0) -> tuple[Floats, Floats]:
    X, y = easy(rows, seed)
    return X, np.random.default_rng(seed).poisson(np.exp(y - 0.5)).astype(float)


def ratings(rows: int = 500, seed: int = 0) -> tuple[Floats, Floats]:
    X, y = easy(rows, seed, noise=0.5)
    return X, np.select([y < -0.7, y < 0.2, y < 1.0], [1.0, 2.0, 5.0], 10.0)


TABLES = {"count": counts, "ordinal": ratings}


@pytest.fixture(scope="module", params=list(TABLES))
def model(request: pytest.FixtureRequest) -> DeepBasisRegressor:
    return small(target=request.param, epochs=30).fit(*TABLES[request.param]())


def test_a_prediction_is_a_distribution_of_values(model):
    X, y = TABLES[model.target](400, 1)
    dist = model.predict_dist(X)
    np.testing.assert_allclose(dist.pmf.sum(1), np.ones(400), rtol=1e-9)
    rows = np.arange(400), np.searchsorted(dist.values, y)
    np.testing.assert_allclose(dist.log_prob(y), np.log(dist.pmf[rows]), rtol=1e-6)
    np.testing.assert_allclose(model.predict(X), dist.pmf @ dist.values, rtol=1e-9)
    assert set(np.unique(model.predict_quantiles(X, [0.05, 0.5, 0.95]))) <= set(dist.values)
    assert set(np.unique(model.sample_y(X, 5, random_state=0))) <= set(dist.values)
    scores = model.evaluate(X, y)
    assert scores["nll"] == pytest.approx(-dist.log_prob(y).mean())
    marginal = np.array([(y == value).mean() for value in np.unique(y)])
    assert scores["nll"] < -marginal @ np.log(marginal)  # better than the shares of the values
    assert 0.9 < scores["coverage_95"] <= 1.0
    assert set(np.unique(model.sample_functions(3, random_state=0)(X))) <= set(dist.values)


def test_it_is_trained_by_the_probability_of_its_interval(model):
    architecture = model.fitted_.architecture
    assert (architecture.likelihood, model.calibration_) == ("interval", None)
    assert len(architecture.edges) == len(model.predict_dist(np.zeros((1, 3))).values) - 1
    assert model.plan_.target == model.target
    assert model.validation_["nll"] < model.validation_["nll_constant"]


def test_it_comes_back_from_a_file(model, tmp_path):
    X, _ = TABLES[model.target](50, 1)
    model.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_dist(X).pmf, model.predict_dist(X).pmf)
    assert again.plan_ == model.plan_


def test_counts_are_better_as_counts():
    """The peer is scored by its mass on y +- 1/2."""
    X, y = counts(1_000)
    X_new, y_new = counts(1_000, 1)
    ours, plain = (small(target=target, epochs=40).fit(X, y).predict_dist(X_new) for target in ("count", "identity"))
    theirs = np.log(np.maximum(plain.cdf(y_new + 0.5) - plain.cdf(y_new - 0.5), 1e-9)).mean()
    assert ours.log_prob(y_new).mean() > theirs + 0.05


@pytest.mark.parametrize("changes", [{"objective": "mml"}, {"method": "dnn"}], ids=str)
def test_a_fit_by_another_likelihood_is_cut_into_values_too(changes):
    X, y = counts(150)
    fitted = small(target="count", **changes).fit(X, y)
    assert fitted.fitted_.architecture.likelihood == "gaussian"
    assert set(np.unique(fitted.predict_quantiles(X, [0.1, 0.9]))) <= set(fitted.predict_dist(X).values)


def test_a_stream_is_trained_in_the_same_way(tmp_path):
    X, y = counts(900)
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_parquet(tmp_path / "t.parquet")
    streamed, resident = (
        small(target="count", epochs=4).fit_dataset(tmp_path, "y", stream=stream) for stream in (True, False)
    )
    assert streamed.fitted_.architecture.likelihood == "interval"
    edges = (one.fitted_.target.warp.edges[:4] for one in (streamed, resident))
    np.testing.assert_allclose(*edges, atol=0.15)


# ---- edges -----------------------------------------------------------------------------------------------------------


def test_the_edges_of_counts_have_the_shares_of_the_rows_below():
    _, y = counts(5_000)
    steps = count_steps(y, None, y)
    assert steps is not None
    for k in range(4):
        assert stats.norm.cdf(steps.edges[k]) == pytest.approx((y <= k).mean(), abs=0.03)
    assert steps.values[-1] > y.max()


def test_the_edges_of_ratings_too_and_a_value_without_rows_is_possible():
    y = np.repeat([1.0, 3.0, 4.0], [20, 50, 30])
    steps = ordinal_steps(y, None, np.append(y, 2.0))
    assert steps is not None
    assert steps.values == (1.0, 2.0, 3.0, 4.0)
    np.testing.assert_allclose(stats.norm.cdf(steps.edges), [0.2, 0.2, 0.7], atol=0.02)
    weighted = ordinal_steps(np.array([1.0, 3.0, 4.0]), np.array([20.0, 50.0, 30.0]), np.append(y, 2.0))
    assert weighted == steps


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "y", "words"),
    [
        ("count", [0.0, 1.5, 2.0], r"target='count' needs whole numbers from 0, and y is 1\.5 in row 1; use"),
        ("count", [0.0, -1.0, 2.0], "target='count' needs whole numbers from 0, and y is -1 in row 1; use"),
        ("count", [0.0, 300.0, 2.0], "target='count' is for counts below 255, and there is 300"),
    ],
)
def test_what_is_no_count_is_refused(target, y, words):
    X, _ = easy(60)
    with pytest.raises(InputError, match=words):
        small(target=target).fit(X, np.tile(y, 20))


def test_too_many_values_are_no_ratings():
    X, y = easy(300)
    with pytest.raises(InputError, match="target='ordinal' is for up to 256 values, and there are 300"):
        small(target="ordinal").fit(X, y)


def test_what_asks_for_something_else_is_refused():
    X, y = counts(60)
    with pytest.raises(InputError, match="calibrate=True is for one that is"):
        small(target="count", calibrate=True).fit(X, y)
    with pytest.raises(InputError, match="leave it out, and give target='count'"):
        small(likelihood="interval").fit(X, y)
    with pytest.raises(InputError, match="only a count or a rating has values"):
        _ = small().fit(X, y).predict_dist(X).pmf


def test_one_value_is_a_number():
    X, _ = easy(60)
    np.testing.assert_allclose(small(target="count").fit(X, np.full(60, 3.0)).predict(X), 3.0, atol=0.3)


# ---- what "auto" decides ---------------------------------------------------------------------------------------------


def sick(rows: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Most people see no doctor, and some often: half of the counts are 0, whatever the rate of the others."""
    X, y = easy(rows, seed)
    rng = np.random.default_rng(seed)
    return X, rng.poisson(np.exp(y)) * (rng.random(rows) < 0.5).astype(float)


@pytest.mark.slow
def test_auto_takes_counts_where_their_probabilities_are_clearly_better():
    X, y = sick(1_500)
    new, y_new = sick(1_500, 1)
    auto, warped = (small(target=target, epochs=40).fit(X, y) for target in ("auto", "warp"))
    assert auto.plan_.target == "count"
    assert "gain" in auto.plan_.target_because
    dist = warped.predict_dist(new)
    mass = np.maximum(dist.cdf(y_new + 0.5) - np.where(y_new > 0, dist.cdf(y_new - 0.5), 0.0), 1e-12)
    assert auto.evaluate(new, y_new)["nll"] < -np.log(mass).mean()


def test_auto_takes_ratings_where_their_probabilities_are_clearly_better():
    """Only the order of the levels matters, and one of them is far away."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 2))
    latent = X[:, 0] + 0.7 * rng.normal(size=800)
    y = np.select([latent < -0.7, latent < 0.7], [-1.0, 0.0], 40.0)
    assert choose_values(X, y, np.ones(800), y, "identity")[0] == "ordinal"
    rare = np.r_[y[:-1], 9.0]  # new rows may have values that are as rare
    assert choose_values(X, rare, np.ones(800), rare, "identity") is None


def test_auto_takes_ratings_that_are_sharper_and_no_less_likely():
    """Grades from 3 to 9: a density between them is as good by the log score, and wastes a tenth of the CRPS."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_500, 3))
    y = np.round(6.0 + 0.5 * X[:, 0] + 0.7 * rng.normal(size=1_500)).clip(3, 9)
    kind, why = choose_values(X, y, np.ones(1_500), y, "identity")
    assert kind == "count"
    assert "lower the CRPS by" in why


@pytest.mark.parametrize("scale", [3.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_auto_leaves_rounded_numbers_alone(scale, seed):
    """A Gaussian that was rounded has nothing to gain: its mass around y is what it should be."""
    X, y = easy(1_000, seed, noise=0.5)
    y = np.round(scale * (y + 4.0)).clip(0)
    assert choose_values(X, y, np.ones(1_000), y, "identity") is None


def test_auto_leaves_alone_what_was_asked_for_otherwise():
    X, y = sick(600)
    for asked in ({"objective": "mml", "method": "sv-rbf"}, {"method": "dnn"}, {"calibrate": "conformal"}):
        assert DeepBasisRegressor(**asked, random_state=0).plan(X, y).target != "count"
    assert DeepBasisRegressor(random_state=0).plan(X, (y > 0).astype(float)).target == "identity"
    assert DeepBasisRegressor(random_state=0).plan(X, y).target == "count"
