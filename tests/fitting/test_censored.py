"""`fit(X, y, lower=, upper=)`: a target of which some rows are only known to lie between bounds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.fitting.data import TableData
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.known import evaluate_file
from deepbasis.fitting.run import fit_table
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.train import Execution
from deepbasis.tables.table import Table
from support.recipes import DEFAULT, recipe
from support.regressors import Floats, easy, small
from support.runs import Watch, ctrl_c

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model

_TABLES = 4  # drawn anew


def times(rows: int = 300, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """X, and a positive time or the moment, 40 % of all, at which nobody looked any longer; and the time itself."""
    X, y = easy(rows, seed, noise=0.3)
    end = 0.35 + np.random.default_rng(seed + 1).normal(size=rows)
    return X, np.exp(np.minimum(y, end)), np.exp(y)


def upper_of(seen: Floats, truth: Floats) -> Floats:
    return np.where(seen < truth, np.inf, seen)


@pytest.fixture(scope="module", params=["identity", "log", "warp"])
def model(request: pytest.FixtureRequest) -> DeepBasisRegressor:
    X, seen, truth = times()
    return small(target=request.param, epochs=30).fit(X, seen, upper=upper_of(seen, truth))


def test_it_predicts_survival(model):
    X, seen, truth = times(200, 5)
    dist = model.predict_dist(X)
    grid = dist.survival([0.1, 1.0, 3.0])
    assert grid.shape == (200, 3)
    assert (np.diff(grid, axis=1) <= 0).all()
    np.testing.assert_allclose(dist.survival(1.0), 1.0 - dist.cdf(np.ones(200)))
    np.testing.assert_allclose(dist.cdf(dist.median), np.full(200, 0.5), atol=1e-6)
    scores = model.evaluate(X, seen, upper=upper_of(seen, truth))
    assert scores["concordance"] > 0.6
    assert 0.0 < scores["integrated_brier_score"] < 0.25
    assert np.isfinite(list(scores.values())).all()
    with pytest.raises(InputError, match="t must be a number or a list of numbers"):
        dist.survival([[1.0]])


def test_the_plan_says_so(model):
    assert model.fitted_.architecture.likelihood == "censored"
    assert model.calibration_ is None
    assert {"concordance", "integrated_brier_score", "nll_constant"} <= set(model.validation_)
    assert model.plan_.target == model.target


def test_it_comes_back_from_a_file(model, tmp_path):
    X, _, _ = times(30, 5)
    model.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_dist(X).survival(1.0), model.predict_dist(X).survival(1.0))


def test_without_a_bound_it_is_the_likelihood_of_exact_rows():
    """And left out on either side, or NaN: the same as infinity."""
    X, y = easy(150)
    exact, both = small(target="identity").fit(X, y, lower=y), small(target="identity").fit(X, y, upper=y, lower=y)
    np.testing.assert_array_equal(exact.predict(X), both.predict(X))
    upper = np.where(np.arange(150) % 3 == 0, np.nan, y)
    missing = small(target="identity").fit(X, y, upper=upper)
    infinite = small(target="identity").fit(X, y, lower=y, upper=np.nan_to_num(upper, nan=np.inf))
    np.testing.assert_array_equal(missing.predict(X), infinite.predict(X))
    assert not np.array_equal(missing.predict(X), exact.predict(X))


def test_members_that_hold_out_other_rows_weights_and_validation_rows():
    X, seen, truth = times(200)
    upper = upper_of(seen, truth)
    small(validation_fraction="auto", members=4).fit(X, seen, upper=upper, sample_weight=np.arange(200) % 3)
    watched = small().fit(X[:150], seen[:150], upper=upper[:150], X_val=X[150:], y_val=truth[150:])
    assert watched.validation_["concordance"] > 0.5


def by_default(**changes: Any) -> DeepBasisRegressor:
    """All but the sizes is "auto"."""
    sizes = {"width": 8, "blocks": 1, "rank": 8, "members": 2, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(target="log", **{**sizes, "recipe": recipe("few steps", small=FEW), **changes})


FEW = replace(DEFAULT.small, fewest_steps=150, most_steps=150, embedding="none", alphas=(0.1,))


def test_a_small_table_has_a_kernel_beside_the_networks(tmp_path):
    """Trained on the same rows, and taken where its members score better on what they hold out."""
    X, seen, truth = times(120)
    known = {"upper": upper_of(seen, truth)}
    network, kernel = by_default().plan(X, seen, **known).candidates
    assert (network.architecture.method, network.settings.objective) == ("dbk-silu", "dppgp")
    assert (kernel.architecture.method, kernel.settings.objective, kernel.members) == ("sv-rbf", "elbo", 2)
    assert kernel.architecture.likelihood == "censored"
    assert "the best on held-out rows is kept" in str(by_default().plan(X, seen, **known))
    found = {method: by_default(method=method).fit(X, seen, **known) for method in ("auto", "dbk-silu")}
    auto, alone = found["auto"], found["dbk-silu"]
    assert auto.method_ == "sv-rbf"
    assert len(auto.fitted_.models) == 2
    auto.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), auto.predict(X))
    assert [h["validation"].min() for h in auto.history_] < [h["validation"].min() for h in alone.history_]
    slow = by_default(recipe=recipe("hopeless", small=FEW, shallow_learning_rate=1e-9)).fit(X, seen, **known)
    np.testing.assert_array_equal(slow.predict(X), alone.predict(X))
    assert slow.fitted_.chosen == 0


def test_an_interrupt_leaves_the_networks():
    X, seen, truth = times(120)
    table = Table.read(X, seen, upper=upper_of(seen, truth))
    spec = Spec.of(by_default())
    data = TableData.of(spec, table)
    fitted = fit_table(spec, make_plan(spec, data.facts(spec)), data, Execution(progress=Watch(1, 1, ctrl_c)))
    assert fitted.interrupted
    assert fitted.chosen == 0
    assert np.isfinite(fitted.predict(X).mean).all()


@pytest.mark.parametrize(
    "changes", [{"method": "dbk-silu"}, {"embedding": "periodic"}, {"recipe": "paper"}, {"objective": "ppgp"}], ids=str
)
def test_others_have_no_kernel_beside_them(changes):
    X, seen, truth = times(60)
    assert len(by_default(**changes).plan(X, seen, upper=upper_of(seen, truth)).candidates) == 1


def test_groups_and_long_tables_have_no_kernel_beside_them():
    X, seen, truth = times(2_400)
    upper = upper_of(seen, truth)
    assert len(by_default().plan(X, seen, upper=upper).candidates) == 1
    assert len(by_default().plan(X[:99], seen[:99], groups=np.arange(99) // 3, upper=upper[:99]).candidates) == 1


@pytest.mark.slow
def test_the_median_of_a_known_process_is_nearly_that_of_an_uncensored_fit():
    """40 % of the rows are censored on the right. To take their ends for times would do far worse.

    The error is that of the median against the true one, in logarithms, at rows of neither fit. By chance it differs
    from table to table: its Monte-Carlo error is that of a mean over tables that are drawn anew. Six of them gave an
    error that is 5 to 22 % above that of the uncensored fit, 11 % in mean: 10 % is within that error, not far below.
    """
    X_new, _, _ = times(2_000, 99)
    truth_new = np.sin(X_new[:, 0]) + 0.5 * X_new[:, 1]
    settings = {"target": "log", "epochs": 60, "rank": 32, "width": 32, "members": 2, "learning_rate": 3e-3}
    errors: dict[str, list[float]] = {"uncensored": [], "censored": [], "naive": []}
    for seed in range(_TABLES):
        X, seen, truth = times(2_000, 10 * seed)
        assert 0.35 < (seen < truth).mean() < 0.45
        fits = {
            "uncensored": small(**settings).fit(X, truth),
            "censored": small(**settings).fit(X, seen, upper=upper_of(seen, truth)),
            "naive": small(**settings).fit(X, seen),
        }
        for name, fit in fits.items():
            errors[name].append(float(np.abs(np.log(fit.predict_dist(X_new).median) - truth_new).mean()))
    uncensored, censored, naive = (np.array(errors[name]) for name in ("uncensored", "censored", "naive"))
    excess = censored - 1.1 * uncensored
    assert excess.mean() < 2.0 * excess.std(ddof=1) / math.sqrt(_TABLES), errors
    assert naive.mean() > 3.0 * censored.mean()


@pytest.mark.parametrize("spoil", ["crossed", "outside", "infinite"])
def test_crossed_bounds_are_one_clear_error(spoil):
    X, y = easy(50)
    lower, upper = y - 1.0, y + 1.0
    if spoil == "crossed":
        lower[7], upper[7] = upper[7], lower[7]
    elif spoil == "outside":
        upper[7] = y[7] - 0.5
    else:
        lower[7] = np.inf
    with pytest.raises(InputError, match=r"in row 7.*lower <= y <= upper"):
        small().fit(X, y, lower=lower, upper=upper)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("side", "words"), [("lower", "no row has a lower end"), ("upper", "no row has an upper end")])
def test_some_row_must_have_an_end(tmp_path, side, words, stream):
    """All rows censored on one side say nothing about the other. One that is exact does."""
    X, y = easy(60)
    ends = np.full(60, np.nan)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, end=ends)
    table.loc[0, "end"] = y[0]
    table.to_csv(tmp_path / "some.csv", index=False)
    table.assign(end=np.where(y > 100.0, y, -np.inf if side == "lower" else np.inf)).to_csv(
        tmp_path / "t.csv", index=False
    )
    with pytest.raises(InputError, match=words):
        small().fit(X, y, **{side: ends})
    with pytest.raises(InputError, match=words):
        small().fit_dataset(tmp_path / "t.csv", "y", stream=stream, **{side: "end"})
    small(epochs=1).fit_dataset(tmp_path / "some.csv", "y", **{side: "end"})


def test_what_bounds_are_not_for():
    X, y = easy(50)
    for given, message in (
        ({"lower": y[:7]}, "lower must be one number for each row"),
        ({"upper": ["a"] * 50}, "upper must hold numbers"),
    ):
        with pytest.raises(InputError, match=message):
            small().fit(X, y, **given)
    for changes, message in (
        ({"method": "dnn"}, "objective 'mse' cannot be trained by bounds"),
        ({"objective": "mml"}, "likelihood 'censored' is not Gaussian"),
        ({"calibrate": True}, "likelihood 'censored' is not Gaussian"),
        ({"target": "count"}, "target='count' has values, not bounds"),
    ):
        with pytest.raises(InputError, match=message):
            small(**changes).fit(X, np.round(np.abs(y)), lower=np.zeros(50))


def test_bounds_are_columns_of_a_file(tmp_path):
    """An empty cell is no bound; a stream refuses them."""
    X, seen, truth = times(200)
    upper = upper_of(seen, truth)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(seen=seen, most=np.where(np.isinf(upper), np.nan, upper))
    table.to_csv(tmp_path / "t.csv", index=False)
    model = small(target="log").fit_dataset(tmp_path / "t.csv", "seen", upper="most")
    again = small(target="log").fit(table[["a", "b", "c"]], seen, upper=upper)
    np.testing.assert_allclose(model.predict(table[["a", "b", "c"]]), again.predict(table[["a", "b", "c"]]), rtol=1e-9)
    rows, scores = evaluate_file(model.fitted_, tmp_path / "t.csv", "seen", upper="most")
    assert rows == 200
    assert scores == pytest.approx(again.evaluate(table[["a", "b", "c"]], seen, upper=upper), rel=1e-6)
    with pytest.raises(InputError, match="upper names the column 'seen', which target names already"):
        small().fit_dataset(tmp_path / "t.csv", "seen", upper="seen")
    table.assign(most=table["seen"] - 1.0).to_csv(tmp_path / "crossed.csv", index=False)
    with pytest.raises(InputError, match=r"crossed\.csv.*lower <= y <= upper"):
        small().fit_dataset(tmp_path / "crossed.csv", "seen", upper="most")
