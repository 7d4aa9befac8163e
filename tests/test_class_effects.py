"""Effects on classes beside predictions of changed tables, and beside the integral that their draws are drawn from."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisClassifier, InputError, class_effects, explain, plots

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = {2: ["no", "yes"], 3: ["low", "middle", "high"]}


@cache
def known(classes: int, calibrate: bool = True) -> tuple[DeepBasisClassifier, pd.DataFrame, explain.Sample]:
    """`level` decides, and `colour` a little; `idle` says nothing."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({name: rng.normal(size=150) for name in ("level", "idle")})
    X["colour"] = rng.choice(["red", "blue"], 150)
    score = X["level"] + 0.5 * (X["colour"] == "red") + 0.3 * rng.normal(size=150)
    y = np.array(NAMES[classes])[pd.qcut(score, classes, labels=False)]
    tiny = {"method": "dbk-silu", "members": 2, "epochs": 60, "rank": 8, "width": 8, "random_state": 0}
    model = DeepBasisClassifier(calibrate=calibrate, **tiny).fit(X, y)
    return model, X, explain.Sample.of(model.fitted_, X, y, rows=30)


@pytest.mark.parametrize("classes", [2, 3])
def test_an_effect_is_the_mean_probability_with_one_value_for_all_rows(classes: int) -> None:
    model, X, sample = known(classes)
    some = X.iloc[sample.places]
    for column in ("level", "colour"):
        found = class_effects.effects(model.fitted_, sample, column)
        assert {one.of for one in found} == ({"yes"} if classes == 2 else set(NAMES[3]))
        for one in found:
            value = one.labels[1] if one.labels else one.values[1]
            p = model.predict_proba(some.assign(**{column: value}))[:, list(model.classes_).index(one.of)]
            assert one.mean[1] == pytest.approx(p.mean(), rel=1e-4)
            assert one.std[1] == pytest.approx(np.sqrt(p * (1 - p)).mean(), rel=1e-4)
            assert (one.lower < one.mean).all()
            assert (one.mean < one.upper).all()
    level = {one.of: one.mean for one in class_effects.effects(model.fitted_, sample, "level")}
    top = NAMES[classes][-1]
    assert level[top][-1] > 0.5 > 0.2 > level[top][0]
    assert np.allclose(sum(level.values()), 1.0) == (classes == 3)


@pytest.mark.parametrize("classes", [2, 3])
def test_drawn_curves_have_the_mean_that_is_predicted(classes: int) -> None:
    """A predicted probability is that of a drawn function, averaged over the draws: 50 of them, here."""
    model, _, sample = known(classes, calibrate=False)
    _, values, _, x = explain.at_each_value(model.fitted_, sample, "level", 100)
    drawn = class_effects.drawn_curves(model.fitted_, x, len(values), random_state=0)
    assert drawn.shape == (50, len(values), classes)
    error = drawn.std(0) / np.sqrt(50)
    for one in class_effects.effects(model.fitted_, sample, "level"):
        k = list(model.classes_).index(one.of)
        assert 0.01 < (one.upper - one.lower).max() < 0.6
        assert np.abs(drawn[:, :, k].mean(0) - one.mean).max() < 4 * error[:, k].max()


def test_classes_are_drawn_in_one_panel_and_few_of_many_are_shown() -> None:
    model, _, sample = known(3)
    found = class_effects.effects(model.fitted_, sample, "colour", most=2)
    assert len(found) == 2
    figure = plots.new_figure(4, 2.4)
    class_effects.draw(figure, found)
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [one.of for one in found]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(found[0].labels)
    with pytest.raises(InputError, match=r"use class_effects\.effects"):
        explain.effect(model.fitted_, sample, "level")
