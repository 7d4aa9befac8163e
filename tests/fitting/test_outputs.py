"""Several outputs: one model of them beside a model of each, whatever their order; files, frames and bad input."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor, scoring, storage
from deepbasis.errors import FileFormatError, InputError
from deepbasis.fitting.fitted import KIND
from support.forging import write
from support.regressors import close, small

pytestmark = pytest.mark.usefixtures("one_thread")


def two(rows: int = 400, seed: int = 0) -> tuple[NDArray[np.float64], pd.DataFrame]:
    """Two outputs of different units, whose noise has a correlation of 0.8; one of them is positive and skewed."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    e = rng.normal(size=(rows, 2)) @ np.linalg.cholesky([[1.0, 0.8], [0.8, 1.0]]).T
    return X, pd.DataFrame(
        {"heat": 40.0 + 5.0 * np.sin(X[:, 0]) + 2.0 * e[:, 0], "cost": np.exp(0.5 * X[:, 1] + 0.8 * e[:, 1])}
    )


def several(**changes: Any) -> DeepBasisRegressor:
    return small(**{"target": "identity", "epochs": 40, "validation_fraction": 0.25, **changes})


@pytest.fixture(scope="module")
def fitted() -> tuple[DeepBasisRegressor, NDArray[np.float64], pd.DataFrame]:
    X, y = two()
    return several().fit(X[:300], y[:300]), X[300:], y[300:]


def test_shapes_and_what_belongs_together(fitted):
    model, X, y = fitted
    mean, std = model.predict(X, return_std=True)
    dist = model.predict_dist(X)
    assert mean.shape == std.shape == (100, 2)
    assert dist.quantile([0.1, 0.5, 0.9]).shape == (100, 2, 3)
    assert dist.log_prob(y).shape == (100,)
    assert dist.sample(7, 0).shape == model.sample_y(X, 7, 0).shape == (100, 7, 2)
    close(dist.output("cost").mean, mean[:, 1])
    close(dist.interval()[0][:, 0], dist.output(0).interval()[0])
    close(dist[5:9].mean, mean[5:9])
    close(np.diagonal(dist.covariance, axis1=1, axis2=2), std**2, rtol=1e-6)
    each = sum(dist.output(name).log_prob(y[name]) for name in dist.names)
    assert (dist.log_prob(y) - each).mean() > 0.1  # the residuals are correlated
    assert dist.correlation[0, 1] > 0.2
    assert (dist.entropy() < sum(dist.output(name).entropy() for name in dist.names)).all()
    assert model.noise_.shape == (2, 2)
    assert model.score(X, y) > 0.0


def test_scores_are_those_of_each_output_and_their_means(fitted):
    model, X, y = fitted
    scores = model.evaluate(X, y)
    close(scores["crps_heat"], model.predict_dist(X).output("heat").crps(y["heat"]).mean())
    close(scores["crps"], 0.5 * (scores["crps_heat"] + scores["crps_cost"]))
    close(scores["nll"], -model.predict_dist(X).log_prob(y).mean())
    close(scores["nll"], -scoring.nll(model, X, y))
    close(scores["crps"], -scoring.crps(model, X, y))
    assert scores == model.evaluate(X, y[["cost", "heat"]])  # by their names
    assert scores == model.evaluate(X, y.to_numpy())
    assert {"nll_constant", "mae_cost"} <= model.validation_.keys()


def test_the_order_of_the_outputs_does_not_matter(fitted):
    model, X, _ = fitted
    rows, targets = two()
    turned = several().fit(rows[:300], targets[:300][["cost", "heat"]])
    np.testing.assert_array_equal(turned.predict(X), model.predict(X)[:, ::-1])
    np.testing.assert_array_equal(turned.predict_dist(X).covariance, model.predict_dist(X).covariance[:, ::-1, ::-1])


def test_a_column_is_one_target():
    X, y = two(120)
    alone = several(epochs=5).fit(X, y["heat"])
    with pytest.warns(Warning, match="column-vector"):
        column = several(epochs=5).fit(X, y[["heat"]])
    np.testing.assert_array_equal(alone.predict(X), column.predict(X))


def test_each_output_has_a_warp_of_its_own():
    X, y = two(300)
    model = several(target="auto", epochs=5).fit(X, y)
    assert "heat: identity" in model.plan_.target_because
    assert "cost: warp" in model.plan_.target_because
    assert (model.predict_dist(X).interval(0.99)[0][:, 1] > 0).all()
    assert np.isfinite(model.predict_dist(X).log_prob(y)).all()


def test_without_calibration_the_outputs_still_correlate():
    X, y = two(300)
    model = several(calibrate=False).fit(X, y)
    assert model.calibration_.each == ()
    assert model.predict_dist(X).correlation[0, 1] > 0.1


def test_given_validation_rows(fitted):
    X, y = two(200)
    model = several(epochs=3).fit(X[:150], y[:150], X_val=X[150:], y_val=y[150:])
    assert model.predict(X).shape == (200, 2)
    with pytest.raises(InputError, match="y_val must have the same columns"):
        several().fit(X, y, X_val=X, y_val=y["heat"])


def test_a_frame_and_files(fitted, tmp_path):
    model, X, y = fitted
    frame = model.predict_frame(X, quantiles=[0.1])
    assert list(frame.columns[:5]) == ["mean_heat", "std_heat", "lower_95_heat", "upper_95_heat", "q_0.1_heat"]
    model.save(tmp_path / "model.safetensors")
    again = DeepBasisRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_frame(X, quantiles=[0.1]), frame)
    assert again.evaluate(X, y) == model.evaluate(X, y)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"likelihood": "student"}, "'student' is for one target, and y has 2 columns"),
        ({"target": "count"}, "'count' is for one target"),
        ({"calibrate": "conformal"}, "'conformal' is for one target"),
        ({"objective": "mml"}, "'mml' is for one target"),
        ({"method": "dnn"}, "'dnn' is for one target"),
        ({"trend": "linear"}, "'linear' is for one target"),
    ],
)
def test_what_is_for_one_target_is_refused(given, words):
    X, y = two(60)
    with pytest.raises(InputError, match=words):
        several(**given).fit(X, y)


def test_bad_targets_are_refused():
    X, y = two(60)
    gap = y.copy()
    gap.loc[7, "cost"] = np.nan
    with pytest.raises(InputError, match=r"y\[cost\] has 1 value that is NaN \(missing\), in row 7"):
        several().fit(X, gap)
    with pytest.raises(InputError, match="lower and upper are bounds of one target"):
        several().fit(X, y, lower=y["heat"])
    with pytest.raises(InputError, match="exposure is for one target"):
        several().fit(X, y, exposure=np.ones(60))
    with pytest.raises(InputError, match="at most 64 outputs"):
        several().fit(X, np.tile(y, 40))
    with pytest.raises(InputError, match="different names"):
        several().fit(X, pd.concat([y, y], axis=1))


def test_what_a_fit_does_not_know_is_refused(fitted):
    model, X, y = fitted
    with pytest.raises(InputError, match=r"y must have 2 columns, 'heat', 'cost', as in the fit; got shape \(100, 3\)"):
        model.evaluate(X, np.zeros((100, 3)))
    with pytest.raises(InputError, match="y has no column 'heat'"):
        model.evaluate(X, y.rename(columns={"heat": "cold"}))
    with pytest.raises(InputError, match="no output 'cold'"):
        model.predict_dist(X).output("cold")
    for call in (lambda: model.predict(X, return_cov=True), lambda: model.sample_functions(), lambda: model.diagnose()):
        with pytest.raises(InputError, match=r"one target|several outputs"):
            call()


def test_a_forged_file_is_refused(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted[0].save(path)
    for change in (
        lambda record: record["target"]["warp"]["names"].pop(),
        lambda record: record["calibration"]["correlation"][0].reverse(),
        lambda record: record["architecture"].update(outputs=3),
    ):
        tensors, record = storage.load(path, KIND)
        change(record)
        write(tmp_path / "forged.safetensors", KIND, tensors, record)
        with pytest.raises(FileFormatError):
            DeepBasisRegressor.load(tmp_path / "forged.safetensors")


# ---- learning on -----------------------------------------------------------------------------------------------------


def changed(rows: int, seed: int) -> tuple[NDArray[np.float64], pd.DataFrame]:
    """The same with another effect of both columns, and residuals that go the other way."""
    X, y = two(rows, seed)
    rng = np.random.default_rng(seed + 100)
    e = rng.normal(size=(rows, 2)) @ np.linalg.cholesky([[1.0, -0.8], [-0.8, 1.0]]).T
    return X, y.assign(heat=46.0 + 2.0 * np.sin(X[:, 0]) + 2.0 * e[:, 0], cost=3.0 - X[:, 1] + 0.8 * e[:, 1])


@pytest.mark.slow
def test_all_outputs_learn_on():
    """Means, calibration and correlation follow rows that have changed; most of what a new fit gains is gained."""
    X, y = two(300)
    model = several(epochs=20).fit(X, y)
    new, y_new = changed(600, 1)
    later, y_later = changed(500, 2)
    before = model.evaluate(later, y_later)
    again = several(epochs=20).fit(new, y_new).evaluate(later, y_later)
    for first in range(0, 600, 150):
        model.update(new[first : first + 150], y_new[first : first + 150], forget=0.5)
    after = model.evaluate(later, y_later)
    assert model.rows_ == 900
    for score in ("nll", "crps_heat", "crps_cost"):
        assert before[score] - after[score] > 0.7 * (before[score] - again[score]) > 0, score
    assert model.predict_dist(later).correlation[0, 1] < -0.2
    assert after["coverage_95"] > 0.9


def test_an_update_knows_outputs_by_name_and_a_file_keeps_what_it_goes_on_from(tmp_path):
    X, y = two(300)
    model = several(epochs=2).fit(X[:200], y[:200])
    model.save(tmp_path / "model.safetensors")
    again = DeepBasisRegressor.load(tmp_path / "model.safetensors")
    model.update(X[200:], y[200:])
    again.update(X[200:], y[200:][["cost", "heat"]])
    np.testing.assert_array_equal(model.predict(X, return_std=True), again.predict(X, return_std=True))
    with pytest.raises(InputError, match="no column 'cost'"):
        model.update(X[200:], y[200:].rename(columns={"cost": "price"}))
    with pytest.raises(InputError, match="2 columns"):
        model.update(X[200:], y[200:]["heat"])


def test_the_correlation_of_a_calibration_goes_on():
    """By as many rows as it rests on: two halves give what the whole gives, apart from scales that move less."""
    from deepbasis.gp.outputs import Outputs, calibrate_outputs
    from deepbasis.gp.predictive import Gaussian

    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(size=(600, 2)) @ np.linalg.cholesky([[1.0, 0.6], [0.6, 1.0]]).T)
    said = Outputs(tuple(Gaussian(torch.zeros(600).double(), torch.ones(600).double()) for _ in range(2)))
    whole = calibrate_outputs(said, y, scales=False)
    half = calibrate_outputs(said[:300], y[:300], scales=False)
    found = calibrate_outputs(said[300:], y[300:], scales=False, before=half)
    assert whole.rows == found.rows == 610.0
    close(found.correlation, whole.correlation, rtol=0.02)
