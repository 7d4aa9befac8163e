"""`DeepBasisClassifier`: labels, weights, files, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, storage
from deepbasis.engine.batches import Rows
from deepbasis.errors import FileFormatError, InputError
from deepbasis.fitting.fitted import KIND
from deepbasis.fitting.held_out import class_shares, scores_and_doubt
from deepbasis.gp.classes import Classes
from deepbasis.tables.labels import Labels
from deepbasis.tables.scaler import TargetScaler
from support.classifiers import small_classifier, three, two
from support.recipes import recipe
from support.regressors import easy, small

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::deepbasis.FitWarning")]


@pytest.mark.parametrize("data", [two, three])
def test_it_learns_and_its_faces_agree(data: Any) -> None:
    X, y = data(400)
    model = small_classifier(epochs=60).fit(X[:300], y[:300])
    p = model.predict_proba(X[300:])
    assert list(model.classes_) == sorted(set(y.tolist()))
    np.testing.assert_allclose(p.sum(1), 1.0)
    np.testing.assert_array_equal(model.predict(X[300:]), model.classes_[p.argmax(1)])
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X[300:])), p)
    scores = model.evaluate(X[300:], y[300:])
    assert scores["log_loss"] == pytest.approx(log_loss(y[300:], p), abs=1e-6)
    assert scores["accuracy"] == model.score(X[300:], y[300:]) > 0.75
    assert scores["log_loss"] < 0.8 * model.validation_["log_loss_constant"]
    decision = model.decision_function(X[300:])
    if data is two:
        np.testing.assert_allclose(decision, np.log(p[:, 1] / p[:, 0]))
    else:
        assert decision.shape == p.shape


def test_what_the_classes_are_called_changes_nothing_else() -> None:
    X, y = two()
    expected = small_classifier().fit(X, y).predict_proba(X)
    for called in (np.array(["no", "yes"]), np.array([False, True]), np.array([-3.0, 7.0]), np.array([1, 2], np.uint8)):
        model = small_classifier().fit(X, called[y])
        np.testing.assert_array_equal(model.predict_proba(X), expected)
        np.testing.assert_array_equal(model.classes_, called)
        assert set(model.predict(X)) <= set(called)
    named = pd.Series(np.array(["no", "yes"])[y], dtype="category")
    np.testing.assert_array_equal(small_classifier().fit(X, named).predict_proba(X), expected)


@pytest.mark.parametrize("data", [two, three])
def test_a_saved_classifier_predicts_the_same(tmp_path: Path, data: Any) -> None:
    X, y = data()
    path = tmp_path / "model.safetensors"
    model = small_classifier(class_weight="balanced").fit(X, y)
    model.save(path)
    loaded = DeepBasisClassifier.load(path)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.get_params() == model.get_params()
    weights = {label: float(k + 1) for k, label in enumerate(model.classes_.tolist())}
    small_classifier(class_weight=weights).fit(X, y).save(path)
    assert DeepBasisClassifier.load(path).class_weight == weights


def test_a_file_is_loaded_as_what_it_is(tmp_path: Path) -> None:
    X, y = two()
    small_classifier().fit(X, y).save(tmp_path / "classes")
    small().fit(*easy()).save(tmp_path / "numbers")
    with pytest.raises(InputError, match="holds a classifier, not a regressor"):
        DeepBasisRegressor.load(tmp_path / "classes")
    with pytest.raises(InputError, match="holds a regressor, not a classifier"):
        DeepBasisClassifier.load(tmp_path / "numbers")


@pytest.mark.parametrize(
    "forge",
    [
        lambda record: record.update(values=["egg", "ham"]),
        lambda record: record.update(values=["ham", "egg", "oat"]),
        lambda record: record.update(values=["egg", "ham", 3]),
        lambda record: record.update(values=[["egg"], ["ham"], ["oat"]]),
        lambda record: record.update(values="ego"),
        lambda record: record.update(class_weight=[1.0]),
        lambda record: record.update(class_weight="heavy"),
        lambda record: record.update(kind="count"),
        lambda record: record.pop("values"),
    ],
)
def test_a_forged_file_is_refused(tmp_path: Path, forge: Any) -> None:
    path = tmp_path / "model.safetensors"
    small_classifier().fit(*three()).save(path)
    tensors, metadata = storage.load(path, KIND)
    forge(metadata["target"]["warp"])
    storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError):
        DeepBasisClassifier.load(path)


@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # one epoch is not for predicting
def test_waves_of_many_categories_come_back_from_a_file(tmp_path: Path) -> None:
    """Columns that the members take for 0 and 1 are those that the table has."""
    rng, path = np.random.default_rng(0), tmp_path / "model.safetensors"
    X = pd.DataFrame(rng.choice(list("abcdefghijklmnopqrst"), (2_600, 4)), columns=list("ABCD"))
    X["size"] = rng.normal(size=len(X))
    model = small_classifier(epochs=1, members=1).fit(X, np.where(X["A"] > "k", "high", "low"))
    assert model.embedding_ == "periodic-linear"
    assert model.fitted_.architecture.flags == tuple(range(80)) == model.fitted_.preprocessor.flags
    model.save(path)
    np.testing.assert_array_equal(DeepBasisClassifier.load(path).predict_proba(X[:50]), model.predict_proba(X[:50]))
    tensors, metadata = storage.load(path, KIND)
    for flags in (list(range(79)), list(range(1, 81)), [0.0], "0", [80]):
        for architecture in (metadata["architecture"], metadata["plan"]["candidates"][0]["architecture"]):
            architecture["flags"] = flags
        storage.save(path, KIND, tensors, metadata)
        with pytest.raises(FileFormatError):
            DeepBasisClassifier.load(path)


def test_class_weight_is_a_weight_of_rows() -> None:
    X, y = three()
    mass = pd.Series(y).map(pd.Series(y).value_counts()).to_numpy()
    expected = small_classifier().fit(X, y, sample_weight=len(y) / (3 * mass)).predict_proba(X)
    np.testing.assert_allclose(small_classifier(class_weight="balanced").fit(X, y).predict_proba(X), expected)
    heavy = small_classifier(class_weight={"egg": 5.0}).fit(X, y)
    by_rows = small_classifier().fit(X, y, sample_weight=np.where(y == "egg", 5.0, 1.0))
    np.testing.assert_array_equal(heavy.predict_proba(X), by_rows.predict_proba(X))


def test_a_row_of_weight_zero_is_not_there() -> None:
    X, y = three()
    there = y != "oat"
    model = small_classifier().fit(X, y, sample_weight=there.astype(float))
    assert list(model.classes_) == ["egg", "ham"]
    np.testing.assert_array_equal(model.predict_proba(X), small_classifier().fit(X[there], y[there]).predict_proba(X))


def test_validation_rows_of_its_own() -> None:
    X, y = three()
    model = small_classifier().fit(X[:100], y[:100], X_val=X[100:], y_val=y[100:])
    assert model.validation_["log_loss"] > 0.0
    with pytest.raises(InputError, match="y_val is 'tea' in row 0, a class that no row of the fit has"):
        small_classifier().fit(X[:100], y[:100], X_val=X[100:], y_val=["tea"] * 50)


def test_members_may_hold_out_different_rows() -> None:
    X, y = three()
    model = small_classifier(validation_fraction="auto", members=4).fit(X, y)
    assert model.plan_.hold_out.parts == 4
    assert len(model.fitted_.models) == 4


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a"] * 150, "y has one class only, 'a'"),
        ([None, *["a", "b"] * 74, "a"], r"y has 1 label that is NaN \(missing\), in row 0; remove such rows"),
        (np.r_[np.nan, np.arange(149) % 2], "that is NaN"),
        (["a", 1] * 75, "Unknown label type: y must hold texts, whole numbers or truth values, all of one kind"),
        (np.arange(150) / 7, "Unknown label type: y is 0.142857 in row 1"),
        (np.r_[np.inf, np.arange(149) % 2], "y is inf in row 0"),
        (np.arange(150).astype("M8[D]"), "y must hold texts, whole numbers"),
        (np.zeros((150, 2)), "1d array"),
        (["a", "b"], "inconsistent"),
    ],
    ids=str,
)
def test_labels_that_are_refused(labels: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        small_classifier().fit(two()[0], labels)


def test_too_many_classes_are_refused() -> None:
    with pytest.raises(InputError, match="y has 400 classes, and 256 are the most"):
        Labels.read(np.arange(400))


def test_an_unseen_class_is_refused_and_nothing_is_lost() -> None:
    X, y = three()
    model = small_classifier().fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(
        InputError, match="y is 'tea' in row 1, a class that no row of the fit has; it has 3 classes: egg, ham, oat"
    ):
        model.evaluate(X[:2], ["egg", "tea"])
    with pytest.raises(InputError, match="one class only"):
        model.fit(X, ["egg"] * len(y))
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "vbll"}, "method 'vbll' is not for classes"),
        ({"method": "dnn"}, "method 'dnn' is not for classes"),
        ({"objective": "elbo"}, "objective 'elbo' is not for classes"),
        ({"objective": "mml"}, "mml"),
        ({"trend": "linear"}, "trend 'linear' is for numbers"),
        ({"likelihood": "interval"}, "likelihood 'interval' is what some fits choose by themselves: leave it out$"),
        ({"target": "log"}, "target='log' is for numbers, and a classifier predicts classes: leave it out"),
        ({"class_weight": "heavy"}, "class_weight must be 'balanced'"),
        ({"class_weight": {"tea": 1.0}}, "class_weight has a weight for 'tea'"),
        ({"class_weight": {"egg": -1.0}}, "class_weight of 'egg' must be a finite number >= 0"),
        ({"class_weight": {"egg": 0.0, "ham": 0.0}}, "class_weight leaves one class only"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        small_classifier(**changes).fit(*three())


@pytest.mark.parametrize("method", ["dbk-rbf", "pp-dkl"])
def test_methods_with_inducing_points(method: str) -> None:
    X, y = three()
    p = small_classifier(method=method).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(p.sum(1), 1.0)


def test_a_regressor_does_not_take_classes() -> None:
    with pytest.raises(InputError, match="use DeepBasisClassifier"):
        small(target="classes").fit(*easy())
    with pytest.raises(
        InputError, match=r"^likelihood 'classes' is what some fits choose by themselves: .*use DeepBasisClassifier"
    ):
        small(likelihood="classes").fit(*easy())


def test_a_model_that_is_worse_than_the_shares_of_the_classes_is_doubted() -> None:
    y = torch.arange(60, dtype=torch.float64) % 2
    rows = Rows(torch.zeros(60, 1, dtype=torch.float64), y)
    shares = class_shares(rows, 2)
    target = TargetScaler(0.0, 1.0, Labels(("no", "yes")))
    np.testing.assert_allclose(shares, [0.5, 0.5])
    for sure, doubted in ((2.0 * y - 1.0, False), (1.0 - 2.0 * y, True)):
        predicted = Classes(sure[None, :, None], torch.ones(1, 60, dtype=torch.float64))
        scores, doubt = scores_and_doubt(predicted, rows, shares, target)
        assert scores["log_loss_constant"] == pytest.approx(np.log(2.0))
        assert ("worse than that of a constant, the shares of the classes" in doubt) == doubted


def test_networks_race_by_their_log_loss() -> None:
    X, y = two(2_600)
    X = np.c_[X, X[:, :1] ** 2]  # three columns would be a map
    model = DeepBasisClassifier(random_state=0)
    assert len(model.plan(X, y).networks) == 2
    quick = recipe("a race of four steps", race_steps=4, fewest_epochs=1)
    short = DeepBasisClassifier(recipe=quick, epochs=8, members=1, width=8, rank=8, random_state=0).fit(X, y)
    assert len(short.plan_.networks) == 2
    assert short.validation_["log_loss"] < short.validation_["log_loss_constant"]


def test_probabilities_as_a_frame() -> None:
    """The columns of `deepbasis predict`, with the index of X; of arrays they are numbered."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=60)}, index=[f"row {k}" for k in range(60)])
    model = small_classifier(epochs=2).fit(X, np.where(X["a"] > 0, "a dog", "cat"))
    found = model.predict_frame(X)
    assert list(found.columns) == ["p_a dog", "p_cat"]
    assert found.index.equals(X.index)
    np.testing.assert_array_equal(found, model.predict_proba(X))
    of_arrays = small_classifier(epochs=2).fit(X.to_numpy(), np.arange(60) % 2)
    assert list(of_arrays.predict_frame(X[:3].to_numpy()).index) == [0, 1, 2]
