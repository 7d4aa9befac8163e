"""`likelihood="poisson"` and `"negative-binomial"`: fits, exposures, files, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor, InputError, scoring, storage
from deepbasis.errors import FileFormatError
from deepbasis.explain import Sample
from deepbasis.fitting.fitted import KIND
from deepbasis.fitting.known import evaluate_file
from support.regressors import Floats, easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model

LIKELIHOODS = ("poisson", "negative-binomial")


def visits(rows: int = 200, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """X, counts over some years each, and the years."""
    X, y = easy(rows, seed, noise=0.0)
    rng = np.random.default_rng(seed)
    years = rng.uniform(0.5, 4.0, rows)
    return X, rng.poisson(years * np.exp(y)).astype(float), years


@pytest.fixture(scope="module", params=LIKELIHOODS)
def model(request: pytest.FixtureRequest) -> DeepBasisRegressor:
    X, y, years = visits()
    return small(likelihood=request.param, epochs=25, learning_rate=2e-2).fit(X, y, exposure=years)


def test_a_prediction_is_a_distribution_of_counts(model):
    X, y, years = visits(80, 1)
    dist = model.predict_dist(X).exposed(years)
    pmf = dist.pmf
    np.testing.assert_allclose(pmf.sum(1), np.ones(80), atol=1e-6)
    np.testing.assert_allclose(dist.log_prob(y), np.log(pmf[np.arange(80), y.astype(int)]), rtol=1e-6, atol=1e-9)
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
    plain = small(likelihood=model.likelihood, epochs=25, learning_rate=2e-2).fit(X, y, exposure=7.0 * years)
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


@pytest.mark.parametrize(
    "changes", [{"exposed": 1}, {"exposed": None}, {"exposed": False, "exposure": "years"}, {"exposure": 3}], ids=str
)
def test_a_file_that_says_nothing_clear_of_an_exposure_is_refused(model, tmp_path, changes):
    model.save(tmp_path / "m")
    tensors, metadata = storage.load(tmp_path / "m", KIND)
    metadata["target"]["warp"].update(changes)
    storage.save(tmp_path / "m", KIND, tensors, metadata)
    with pytest.raises(FileFormatError):
        DeepBasisRegressor.load(tmp_path / "m")


OTHERS = ({"method": "vbll"}, {"method": "pp-dkl"}, {"trend": "linear"}, {"members": 1})


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_other_methods_have_it(changes):
    X, y, _ = visits(60)
    fitted = small(likelihood="negative-binomial", **changes).fit(X, y, sample_weight=1.0 + np.arange(60) % 2)
    assert np.isfinite(list(fitted.evaluate(X[:20], y[:20]).values())).all()


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


# ---- exposures in files ----------------------------------------------------------------------------------------------


def counted(rows: int = 100, seed: int = 0) -> pd.DataFrame:
    X, y, years = visits(rows, seed)
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(years=years, visits=y)


INPUTS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rates") / "t.csv"
    counted().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def from_file(table_file: Path) -> DeepBasisRegressor:
    return small(likelihood="poisson").fit_dataset(table_file, "visits", exposure="years")


def test_an_exposure_is_a_column_of_a_file(table_file, from_file):
    table = pd.read_csv(table_file)
    given = small(likelihood="poisson").fit(table[INPUTS], table["visits"], exposure=table["years"])
    np.testing.assert_allclose(from_file.predict(table[INPUTS]), given.predict(table[INPUTS]), rtol=1e-9)
    assert from_file.fitted_.target == given.fitted_.target
    assert list(from_file.feature_names_in_) == INPUTS


def test_a_model_knows_the_name_of_its_exposure(from_file, table_file, tmp_path):
    """Scores of a file are those of its exposures, which need not be named again; nor after a file."""
    table = pd.read_csv(table_file)
    expected = from_file.evaluate(table[INPUTS], table["visits"], exposure=table["years"])
    from_file.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m").fitted_
    assert again.target.exposure == "years"
    assert evaluate_file(again, table_file)[1] == pytest.approx(expected, rel=1e-9)
    table.rename(columns={"years": "time"}).to_csv(tmp_path / "other.csv", index=False)
    assert evaluate_file(again, tmp_path / "other.csv", exposure="time")[1] == pytest.approx(expected, rel=1e-9)
    with pytest.raises(InputError, match="no column 'years'"):
        evaluate_file(again, tmp_path / "other.csv")
    sample = Sample.of_file(again, table_file, rows=50)  # every second row
    np.testing.assert_allclose(sample.predict(again).mean, (table["years"] * from_file.predict(table[INPUTS]))[::2])


def test_predictions_of_files_are_of_an_exposure(from_file, table_file, tmp_path):
    table = pd.read_csv(table_file)
    dist = from_file.predict_dist(table[INPUTS])
    for k, exposure in enumerate((None, "years")):
        expected = dist if exposure is None else dist.exposed(table["years"])
        # The same folder: a part of another exposure is made again.
        (path,) = from_file.predict_dataset(table_file, tmp_path / "out", ids=["years"] * k, exposure=exposure)
        found = pd.read_parquet(path)
        np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-9)
        np.testing.assert_array_equal(found["upper_95"], expected.interval()[1])


def test_a_model_of_an_array_has_exposures_in_files(table_file, tmp_path):
    X, y, years = visits(100)
    model = small(likelihood="poisson").fit(X, y, exposure=years)
    assert model.fitted_.target.exposure is None  # it has no name
    table = counted()
    table.drop(columns="visits").to_csv(tmp_path / "new.csv", index=False)
    (path,) = model.predict_dataset(tmp_path / "new.csv", tmp_path / "out", exposure="years")
    np.testing.assert_allclose(pd.read_parquet(path)["mean"], years * model.predict(X), rtol=1e-9)
    _, scores = evaluate_file(model.fitted_, table_file, "visits", exposure="years")
    assert scores["nll"] == pytest.approx(model.evaluate(X, y, exposure=years)["nll"], rel=1e-9)


def test_counts_over_exposures_are_not_scored_over_1(table_file, tmp_path):
    """Whether or not the exposure of the fit had a name, and after a file."""
    X, y, years = visits(100)
    small(likelihood="poisson").fit(X, y, exposure=years).save(tmp_path / "m")
    model = DeepBasisRegressor.load(tmp_path / "m")
    named = small(likelihood="poisson").fit(X, y, exposure=pd.Series(years, name="years"))
    fitted = model.fitted_
    for call in (
        *(lambda score=score: score(X, y) for one in (model, named) for score in (one.evaluate, one.score)),
        lambda: scoring.crps(model, X, y),
        lambda: evaluate_file(fitted, table_file, "visits"),
        lambda: Sample.of_file(fitted, table_file, "visits"),
        lambda: Sample.of(fitted, X, y),
    ):
        with pytest.raises(InputError, match="exposure is missing: the counts of the fit had one"):
            call()
    expected = years * model.predict(X)
    for sample in (
        Sample.of(fitted, X, y, exposure=years),
        Sample.of_file(fitted, table_file, "visits", exposure="years"),
        Sample.of_file(named.fitted_, table_file, "visits"),
    ):
        np.testing.assert_allclose(sample.predict(fitted).mean, expected, rtol=1e-9)
    rates = Sample.of(fitted, X)  # without targets, of an exposure of 1
    np.testing.assert_allclose(rates.predict(fitted).mean, model.predict(X), rtol=1e-9)
    with pytest.raises(InputError, match="exposure is for counts to be scored, and no target is given"):
        Sample.of(fitted, X, exposure=years)


def test_rows_to_validate_on_have_an_exposure_in_files(table_file, tmp_path):
    aside = counted(60, 5)
    aside.to_csv(tmp_path / "aside.csv", index=False)
    for stream in (False, True):
        model = small(likelihood="poisson").fit_dataset(
            table_file, "visits", exposure="years", validation=tmp_path / "aside.csv", stream=stream
        )
        scores = model.evaluate(aside[INPUTS], aside["visits"], exposure=aside["years"])
        assert model.validation_["nll"] == pytest.approx(scores["nll"], rel=1e-4)
    aside.drop(columns="years").to_csv(tmp_path / "without.csv", index=False)
    with pytest.raises(InputError, match="no column 'years'"):
        small(likelihood="poisson").fit_dataset(
            table_file, "visits", exposure="years", validation=tmp_path / "without.csv"
        )


@pytest.mark.parametrize("stream", [False, True])
def test_exposures_of_files_that_are_refused(table_file, tmp_path, stream):
    table = counted()
    for cell, words in ((0.0, "is 0 in row 7"), (np.nan, "is nan in row 7"), ("long", "must hold numbers, got 'long'")):
        table.astype({"years": object}).assign(years=table["years"].where(table.index != 7, cell)).to_csv(
            tmp_path / "bad.csv", index=False
        )
        with pytest.raises(InputError, match=rf"exposure column 'years' of '.*bad\.csv' {words}"):
            small(likelihood="poisson").fit_dataset(tmp_path / "bad.csv", "visits", exposure="years", stream=stream)
    for given, roles, message in (
        ({}, {}, "exposure is for a likelihood of counts"),
        ({"likelihood": "poisson"}, {"upper": "a"}, "exposure is for one target that is a count, and known exactly"),
        ({"likelihood": "poisson"}, {"target": ["visits", "a"]}, "exposure is for one target"),
        ({"likelihood": "poisson"}, {"target": "years"}, "exposure names the column 'years', which target names"),
        ({"likelihood": "poisson"}, {"exposure": "weeks"}, "no column 'weeks'"),
    ):
        with pytest.raises(InputError, match=message):
            small(**given).fit_dataset(table_file, **{"target": "visits", "exposure": "years", **roles}, stream=stream)


def test_predictions_that_have_no_exposure(from_file, table_file, tmp_path):
    plain = small().fit_dataset(table_file, "visits")
    with pytest.raises(InputError, match="exposure is for counts"):
        plain.predict_dataset(table_file, tmp_path / "out", exposure="years")
    with pytest.raises(InputError, match="exposure is for counts"):
        evaluate_file(plain.fitted_, table_file, exposure="years")
    counted().assign(years=0.0).to_csv(tmp_path / "zero.csv", index=False)
    with pytest.raises(InputError, match=r"exposure column 'years' of '.*zero\.csv' is 0 in row 0"):
        from_file.predict_dataset(tmp_path / "zero.csv", tmp_path / "out", exposure="years")
    assert not list((tmp_path / "out").glob("*.parquet"))
