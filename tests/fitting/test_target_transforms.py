"""`target=`: everything is in the target's own units, whatever it is transformed to; and what "auto" decides."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.preprocessing import FunctionTransformer, PowerTransformer

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.fitting.targets import FEWEST_ROWS, choose
from support.command import good, run
from support.regressors import Floats, close, easy, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


def skewed(rows: int = 400, seed: int = 0, noise: float = 0.5) -> tuple[Floats, Floats]:
    """Positive; its noise is relative."""
    X, y = easy(rows, seed, noise)
    return X, np.exp(y)


TRANSFORMS = ["identity", "log", "warp", PowerTransformer()]


@pytest.fixture(scope="module", params=TRANSFORMS, ids=["identity", "log", "warp", "transformer"])
def model(request: pytest.FixtureRequest) -> DeepBasisRegressor:
    return small(target=request.param, epochs=30).fit(*skewed())


# ---- units -----------------------------------------------------------------------------------------------------------


def test_all_predictions_agree_in_the_targets_units(model):
    X, y = skewed(100, 1)
    predicted = model.predict_dist(X)
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_y(X, 3_000, random_state=0)
    close(mean, predicted.mean)
    np.testing.assert_allclose(mean, draws.mean(1), atol=5.0 * std.max() / np.sqrt(3_000))
    low, high = model.predict_interval(X, 0.8)
    close(np.stack([low, high], 1), model.predict_quantiles(X, [0.1, 0.9]))
    close(predicted.cdf(high), np.full(100, 0.9), rtol=1e-6)
    assert (draws.std(1) / std).mean() == pytest.approx(1.0, abs=0.1)
    scores = model.evaluate(X, y)
    close(scores["crps"], predicted.crps(y).mean())
    close(scores["nll"], -predicted.log_prob(y).mean())
    close(scores["rmse"], np.sqrt(np.square(y - mean).mean()))
    assert scores["rmse"] < 1.2 * y.std()
    functions = model.sample_functions(50, random_state=0)(X)
    low, high = predicted.interval(0.999)
    assert ((low[:, None] < functions) & (functions < high[:, None])).mean() > 0.99


def test_validation_scores_are_in_the_targets_units(model):
    X, y = skewed(120)
    asked = small(target=model.target, epochs=3).fit(X, y, X_val=X[:50], y_val=y[:50])
    again = asked.evaluate(X[:50], y[:50])
    for name, value in again.items():
        close(asked.validation_[name], value, rtol=1e-4)


def test_a_positive_target_has_positive_intervals(model):
    X, _ = skewed(300, 1)
    low, _ = model.predict_interval(5.0 * X, 0.999)
    assert (low > 0).all() == (model.target != "identity")


def test_it_comes_back_from_a_file(model, tmp_path):
    X, y = skewed(50, 1)
    model.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    for question in ("predict", "predict_interval"):
        np.testing.assert_array_equal(getattr(again, question)(X), getattr(model, question)(X))
    close(again.evaluate(X, y)["crps"], model.evaluate(X, y)["crps"])
    assert again.target == (model.target if isinstance(model.target, str) else "warp")
    assert again.plan_ == model.plan_


def test_the_plan_says_it(model):
    name = model.target if isinstance(model.target, str) else "warp"
    assert model.plan_.target == name
    assert f"target: {name}" in str(model.plan_)


def test_scikit_learn_can_copy_it():
    first = small(target=PowerTransformer(standardize=False))
    again = clone(first).set_params(target__standardize=True)
    assert (first.target.standardize, again.target.standardize) == (False, True)
    again.fit(*skewed(60))
    assert not hasattr(again.target, "lambdas_")  # a copy was fitted


def test_folds_and_kernels_work_in_the_same_units(few_exact_steps):
    """A small table by all defaults but the steps: a shallow kernel may win."""
    X, y = skewed(80)
    sizes = {"epochs": 3, "width": 8, "blocks": 1, "rank": 8, "recipe": few_exact_steps}
    fitted = DeepBasisRegressor(target="log", **sizes, random_state=0).fit(X, y)
    assert fitted.evaluate(X, y)["crps"] < 0.5 * y.std()
    assert fitted.validation_["crps"] < y.std()


def test_the_log_of_a_target_is_what_a_user_would_have_fitted():
    X, y = skewed(200)
    ours, by_hand = small(target="log").fit(X, y), small(target="identity").fit(X, np.log(y))
    close(ours.predict_quantiles(X, [0.1, 0.5]), np.exp(by_hand.predict_quantiles(X, [0.1, 0.5])))
    close(ours.predict_dist(X).log_prob(y), by_hand.predict_dist(X).log_prob(np.log(y)) - np.log(y))
    close(ours.noise_, by_hand.noise_)
    close(ours.sample_functions(3, 0)(X), np.exp(by_hand.sample_functions(3, 0)(X)))


def test_a_target_that_has_two_values_is_left_alone():
    X, _ = easy(60)
    y = (X[:, 0] > 0).astype(float)
    np.testing.assert_array_equal(
        small(target="warp").fit(X, y).predict(X), small(target="identity").fit(X, y).predict(X)
    )


# ---- what "auto" decides ---------------------------------------------------------------------------------------------


def test_symmetric_targets_stay_as_they_are_to_the_last_bit():
    X, y = easy(400)
    auto = small().fit(X, y)
    assert auto.plan_.target == "identity"
    assert "a warp would" in auto.plan_.target_because
    np.testing.assert_array_equal(auto.predict(X), small(target="identity").fit(X, y).predict(X))


def test_a_skewed_target_is_warped_and_better_for_it():
    X, y = skewed(600, noise=0.8)
    X_new, y_new = skewed(1_500, 1, noise=0.8)
    auto = small(epochs=60).fit(X, y)
    assert auto.plan_.target == "warp"
    assert "lowers the CRPS of simple models" in str(auto.plan_)
    plain = small(epochs=60, target="identity").fit(X, y)
    assert auto.evaluate(X_new, y_new)["crps"] < 0.98 * plain.evaluate(X_new, y_new)["crps"]


@pytest.mark.parametrize("seed", range(3))
def test_a_skewed_target_with_symmetric_noise_is_not_warped(seed):
    """What is skewed is the function: the warp would only distort the noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2_000, 2))
    y = np.exp(X[:, 0]) + 0.1 * rng.normal(size=2_000)
    assert choose(X, y, None)[0] == "identity"


def test_where_a_better_model_leaves_little_there_is_no_warp():
    """A function without noise that a ridge regression cannot follow: its residuals are no noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(3_000, 2))
    y = np.round(np.exp(3.0 * np.abs(np.round(4.0 * X[:, 0]) / 4.0)))  # a few values, in steps
    name, why = choose(X, y, None)
    assert name == "identity"
    assert "nearest neighbours, which leave" in why


def test_few_rows_do_not_decide():
    X, y = skewed(FEWEST_ROWS - 1)
    assert choose(X, y, None) == ("identity", f"fewer than {FEWEST_ROWS} rows")
    assert choose(X, np.zeros(len(X)), None)[0] == "identity"


def test_a_row_of_weight_k_decides_as_k_rows():
    X, y = skewed(600)
    weight = np.random.default_rng(1).integers(0, 4, 600).astype(float)
    name, why = choose(X, y, weight)
    assert name == "warp"
    assert why == choose(X[weight > 0], y[weight > 0], weight[weight > 0])[1]


def test_the_paper_has_no_warp():
    X, y = skewed(1_500)
    assert small(recipe="paper").plan(X, y).target == "identity"
    assert small().plan(X, y).target == "warp"


# ---- files and streams -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("skewed")
    X, y = skewed(1_500)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    for k in range(3):
        table[500 * k : 500 * (k + 1)].to_parquet(path / f"{k}.parquet")
    return path


@pytest.mark.parametrize("target", ["log", "warp", "auto"])
def test_a_stream_has_the_same_transform_as_the_rows_in_memory(folder, target):
    """All of its rows are in the sample; other rows are held out, so that it is the same only nearly."""
    streamed, resident = (
        small(target=target, epochs=3).fit_dataset(folder, "y", stream=stream).fitted_ for stream in (True, False)
    )
    assert streamed.plan.target == resident.plan.target == ("log" if target == "log" else "warp")
    assert bool(streamed.plan.target_because) == (target == "auto")
    y = np.exp(np.linspace(-1.0, 1.5, 20))
    np.testing.assert_allclose(streamed.target.transform(y), resident.target.transform(y), atol=0.15)
    assert streamed.validation["crps"] < np.std(skewed(1_500)[1])


def test_the_command_has_an_option_for_it(folder, tmp_path):
    out = tmp_path / "m.safetensors"
    words = ["fit", str(folder / "0.parquet"), "--target", "y", "--out", str(out), "--epochs", "2", "--members", "1"]
    good(*words, "--method", "dbk-silu", "--seed", "0", "--target-transform", "warp")
    good("predict", str(out), str(folder / "1.parquet"), "--out", str(tmp_path / "p.csv"))
    assert (pd.read_csv(tmp_path / "p.csv")["lower_95"] > 0).all()
    refused = run(*words, "--target-transform", "sqrt")
    assert refused.exit_code == 2
    assert (
        "--target-transform must be one of auto, classes, count, identity, log, ordinal, warp; got 'sqrt'"
        in refused.stderr
    )


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_transformed_is_refused():
    X, y = easy(60)
    with pytest.raises(InputError, match=r"the log of a target needs positive numbers, and y is -1 in row 7; use"):
        small(target="log").fit(X, np.where(np.arange(60) == 7, -1.0, np.exp(y)))
    with pytest.raises(InputError, match="the log of a target needs positive numbers, and one is 0"):
        small(target="log").fit(X, np.exp(y), X_val=X[:3], y_val=[1.0, 0.0, 2.0])
    with pytest.raises(InputError, match="target: FunctionTransformer is not strictly monotone"):
        small(target=FunctionTransformer(np.abs, np.abs, check_inverse=False)).fit(X, y)
    for wrong in ("sqrt", None, 3, PowerTransformer):
        with pytest.raises(
            InputError,
            match=r"^target must be one of auto, identity, log, warp, count, ordinal, classes, or a scikit-learn",
        ):
            small(target=wrong).fit(X, y)


def test_a_stream_refuses_the_log_of_a_negative_number(tmp_path):
    X, y = easy(300)
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="the log of a target needs positive numbers"):
        small(target="log").fit_dataset(tmp_path / "t.csv", "y", stream=True)


def test_targets_outside_of_the_bounds_are_scored():
    X, y = skewed(200)
    scores = small(target="warp").fit(X, y).evaluate(X[:3], [-1.0, 0.0, 2.0])
    assert np.isfinite(scores["crps"])
    assert scores["nll"] == np.inf


def test_rows_that_their_copies_predict_without_an_error_need_no_warp():
    x = np.repeat(np.arange(4.0), 100)[:, None]
    name, why = choose(x, x[:, 0] ** 2, None)
    assert name == "identity"
    assert "leave 0 % of a constant's" in why
