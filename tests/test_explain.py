"""Explanations of models that are known: which columns count, for the mean and for the uncertainty, and how."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import entropy

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, InputError, explain
from support.regressors import easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


def table(rows: int = 400) -> tuple[pd.DataFrame, pd.Series]:
    """`level` moves the mean, `noise` the spread, `colour` the mean a little, `idle` nothing."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "idle": rng.normal(size=rows),
            "noise": rng.uniform(0, 1, rows),
            "level": rng.uniform(-1, 1, rows),
            "colour": rng.choice(["red", "blue"], rows),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
            "same": 1.0,
        }
    )
    y = 3 * X["level"] + 0.5 * (X["colour"] == "red") + (0.1 + 1.5 * X["noise"]) * rng.normal(size=rows)
    return X, y.rename("price")


@pytest.fixture(scope="module")
def known() -> tuple[DeepBasisRegressor, explain.Sample]:
    X, y = table()
    model = small(members=1, epochs=150, rank=16, width=16, target="identity", batch_size=100, learning_rate=3e-3).fit(
        X, y
    )
    return model, explain.Sample.of(model.fitted_, X, y)


def test_each_column_counts_for_what_it_does(known):
    model, sample = known
    found = explain.importance(model.fitted_, sample)
    by_name = {one.column: one for one in found}
    assert found[0].column == "level"
    assert max(found, key=lambda one: one.std).column == "noise"
    assert by_name["level"].score > 5 * by_name["colour"].score > 0
    assert (by_name["same"].mean, by_name["same"].std, by_name["same"].score_spread) == (0, 0, 0)
    assert [one.mean for one in found] == sorted((one.mean for one in found), reverse=True)


def test_a_sample_has_as_many_rows_as_were_asked_for(known, tmp_path):
    """Not half of them where the table has a few more."""
    model, _ = known
    X, y = table()
    X.assign(price=y).to_csv(tmp_path / "t.csv", index=False)
    for rows in (390, 200, 7, 1000):
        sample = explain.Sample.of(model.fitted_, X, y, rows=rows)
        assert len(sample) == len(sample.y) == min(rows, 400)
        assert set(np.diff(sample.places)) <= {400 // len(sample), 400 // len(sample) + 1}  # evenly spaced
        np.testing.assert_array_equal(sample.y, y.to_numpy()[sample.places])
        of_file = explain.Sample.of_file(model.fitted_, tmp_path / "t.csv", rows=rows)
        np.testing.assert_array_equal(of_file.places, sample.places)
        np.testing.assert_allclose(of_file.y, sample.y)
        np.testing.assert_allclose(of_file.columns[2].values, sample.columns[2].values)


def test_importance_is_what_shuffling_by_hand_gives(known):
    model, sample = known
    X, y = table()
    (by_hand,) = [one for one in explain.importance(model.fitted_, sample, repeats=1) if one.column == "idle"]
    order = np.random.default_rng(0).permutation(400)  # the first column's first shuffle
    shuffled = model.predict_dist(X.assign(idle=X["idle"].to_numpy()[order]))
    plain = model.predict_dist(X)
    assert by_hand.mean == pytest.approx(np.abs(shuffled.mean - plain.mean).mean(), rel=1e-5)
    assert by_hand.std == pytest.approx(np.abs(shuffled.std - plain.std).mean(), rel=1e-4)
    assert by_hand.score == pytest.approx((shuffled.crps(y) - plain.crps(y)).mean(), abs=1e-6)
    assert by_hand.mean_spread == 0


def test_an_effect_is_the_mean_prediction_with_one_value_for_all_rows(known):
    model, sample = known
    X, _ = table()
    for column, kind in [("level", "numeric"), ("colour", "categorical"), ("day", "datetime")]:
        found = explain.effect(model.fitted_, sample, column)
        assert found.kind == kind
        value = found.labels[1] if found.labels else found.values[1]
        if kind == "datetime":
            value = pd.Timestamp(value, unit="s")
        expected = model.predict_dist(X[::2].assign(**{column: value}))
        assert found.mean[1] == pytest.approx(expected.mean.mean(), rel=1e-4, abs=1e-5)
        assert found.std[1] == pytest.approx(expected.std.mean(), rel=1e-4)
        assert (found.lower <= found.mean).all()
        assert (found.mean <= found.upper).all()
    level = explain.effect(model.fitted_, sample, "level")
    assert np.polyfit(level.values, level.mean, 1)[0] == pytest.approx(3.0, rel=0.3)
    noise = explain.effect(model.fitted_, sample, "noise")
    assert noise.std[-1] > 1.2 * noise.std[0]


@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # it has hardly been trained
@pytest.mark.parametrize(("days", "apart"), [(2_000, 14), (300, 7), (60, 1)])
def test_an_effect_over_years_shows_the_wave_of_the_year_and_not_that_of_the_week(days, apart):
    """At moments of one weekday, or of one hour, close enough to each other."""
    X = pd.DataFrame({"day": pd.date_range("2020-01-01 06:00", periods=days)})
    model = small(members=1, epochs=1).fit(X, np.arange(float(days)))
    values = explain.effect(model.fitted_, explain.Sample.of(model.fitted_, X), "day").values
    assert set(np.diff(values)) == {86_400.0 * apart}
    assert 0.9 * days < len(values) * apart <= days + apart


def test_the_band_is_that_of_functions_drawn_from_the_model(known):
    model, sample = known
    X, _ = table()
    found = explain.effect(model.fitted_, sample, "level")
    functions = model.sample_functions(300, random_state=1)
    middle = len(found.values) // 2
    drawn = functions(X[::2].assign(level=found.values[middle])).mean(0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.upper[middle] - found.lower[middle] == pytest.approx(high - low, rel=0.4)  # 50 draws beside 300


def test_a_sample_is_evenly_spaced_and_without_targets_there_is_no_score():
    X, y = easy(100)
    model = small(members=1, epochs=1).fit(X, y)
    sample = explain.Sample.of(model.fitted_, X, rows=30)
    np.testing.assert_array_equal(sample.columns[0].values, X[np.arange(30) * 100 // 30, 0])
    assert sample.rows_of_table == 100
    found = explain.importance(model.fitted_, sample, repeats=2)
    assert {one.score for one in found} == {None}
    assert sorted(one.column for one in found) == ["x0", "x1", "x2"]
    with pytest.raises(InputError, match="x0, x1, x2, got 'y'"):
        explain.effect(model.fitted_, sample, "y")
    with pytest.raises(InputError, match="100 rows but y has 3"):
        explain.Sample.of(model.fitted_, X, y[:3])


@pytest.mark.parametrize("target", ["warp", "count"])
def test_effects_are_in_the_targets_units(target):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 2, size=(80, 1))
    y = rng.poisson(np.exp(X[:, 0])).astype(float) + (target == "warp")
    model = small(members=2, epochs=5, target=target).fit(X, y)
    found = explain.effect(model.fitted_, explain.Sample.of(model.fitted_, X, y), "x0")
    assert 0 < found.mean.min() <= found.mean.max() < y.max()
    assert (found.lower <= found.upper).all()


def test_of_classes_probabilities_move():
    X, _ = easy(120)
    kinds = np.where(X[:, 0] > 0.5, "high", np.where(X[:, 0] < -0.5, "low", "middle"))
    tiny = {"method": "dbk-silu", "members": 1, "epochs": 60, "rank": 8, "width": 8, "random_state": 0}
    model = DeepBasisClassifier(**tiny).fit(X, kinds)
    sample = explain.Sample.of(model.fitted_, X, kinds)
    found = {one.column: one for one in explain.importance(model.fitted_, sample, repeats=1)}
    assert max(found.values(), key=lambda one: one.score).column == "x0"
    order = np.random.default_rng(0).permutation(120)  # the first column's first shuffle
    shuffled = X.copy()
    shuffled[:, 0] = X[order, 0]
    p, q = model.predict_proba(X), model.predict_proba(shuffled)
    assert found["x0"].mean == pytest.approx(0.5 * np.abs(p - q).sum(1).mean(), rel=1e-5)
    assert found["x0"].std == pytest.approx(np.abs(entropy(p, axis=1) - entropy(q, axis=1)).mean(), rel=1e-4)
    rise = model.evaluate(shuffled, kinds)["log_loss"] - model.evaluate(X, kinds)["log_loss"]
    assert found["x0"].score == pytest.approx(rise, rel=1e-4)
    with pytest.raises(InputError, match=r"predicts classes: use class_effects\.effects"):
        explain.effect(model.fitted_, sample, "x0")
