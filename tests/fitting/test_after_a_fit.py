"""What a fit leaves: its attributes, or what there was before if it fails."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.exceptions import NotFittedError

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError, NoveltyWarning, NumericalError, TableWarning
from deepbasis.gp.methods import METHODS
from support.classifiers import small_classifier
from support.recipes import DEFAULT, recipe
from support.regressors import close, easy, small
from support.splits import Table

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_fit_that_fails_leaves_the_one_before() -> None:
    X, y = easy()
    model = small().fit(X, y)
    before, attributes = model.predict(X), set(vars(model))
    with pytest.raises(InputError, match="X_val"):
        model.fit(100.0 * X + 5.0, 1000.0 * y, X_val=X[:, :2], y_val=y)
    model.learning_rate = 1e300
    with pytest.raises(NumericalError):
        model.fit(100.0 * X + 5.0, 1000.0 * y)
    np.testing.assert_array_equal(model.predict(X), before)
    assert set(vars(model)) == attributes


def test_a_first_fit_that_fails_leaves_nothing() -> None:
    X, y = easy()
    model = small(learning_rate=1e300)
    with pytest.raises(NumericalError):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("value", [1.0, "red"], ids=str)
def test_a_column_may_have_its_only_values_among_the_rows_held_out(value: Any, tmp_path: Path) -> None:
    """Whichever rows these are: it then says nothing."""
    X, y = easy(60)
    widths = set()
    for row in range(0, 60, 7):
        table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(rare=pd.Series([value], [row]))
        model = small(epochs=1, members=1).fit(table, y)
        model.save(tmp_path / "model")
        loaded = DeepBasisRegressor.load(tmp_path / "model", device="cpu")
        np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
        widths.add(model.fitted_.preprocessor.width)
        if len(widths) == 2:
            break
    assert min(widths) == 3 < max(widths)
    with pytest.raises(InputError, match="'rare' has no values at all"):
        small().fit(table.assign(rare=np.nan), y)


def test_one_group_leaves_nothing_to_hold_out() -> None:
    X, y = easy()
    with pytest.raises(InputError, match=r"one group.*rows to validate on"):
        small().fit(X, y, groups=np.zeros(len(X)))


def test_a_few_cells_that_are_no_numbers_are_told() -> None:
    X, y = easy()
    cells = pd.Series(X[:, 0]).round(3).astype(str)
    cells[[3, 50]] = "?"
    table = pd.DataFrame({"power": cells, "b": X[:, 1]})
    with pytest.warns(
        TableWarning, match=r"column 'power' is read as numbers: .*columns=\{'power': 'category'\}"
    ) as seen:
        small().fit(table, y)
    assert [str(warning.filename) for warning in seen] == [__file__]


def test_numbers_that_are_meant_as_categories_are_not_told() -> None:
    X, y = easy()
    zips = pd.Series(np.arange(len(X)) % 60 + 10_000)
    table = pd.DataFrame({"zip": zips.astype(str), "kind": pd.Categorical(zips[::-1]), "b": X[:, 1]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small().fit(table, y)


def test_names_of_a_table_before_are_forgotten() -> None:
    X, y = easy()
    model = small().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y).fit(X, y)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(("offset", "scale"), [(1e8, 1.0), (0.0, 1e20), (0.0, 1e-24)])
def test_validation_is_told_in_all_digits(offset: float, scale: float, tmp_path: Path) -> None:
    X, y = easy(300)
    ours, usual = (small(dtype="float32").fit(X, target) for target in (offset + scale * y, y))
    for name in ("mae", "rmse", "crps", "width_95"):
        assert ours.validation_[name] == pytest.approx(scale * usual.validation_[name], rel=1e-3)
    for name in ("coverage_95", "calibration_error"):
        assert ours.validation_[name] == pytest.approx(usual.validation_[name], abs=1e-6)
    assert ours.validation_["nll"] == pytest.approx(usual.validation_["nll"] + math.log(scale), abs=1e-3)
    ours.save(tmp_path / "model")
    assert DeepBasisRegressor.load(tmp_path / "model").validation_ == ours.validation_


def test_of_pairs_those_that_failed_come_last() -> None:
    """In float32 the first weight is infinite, and its members fail at once."""
    X, y = easy(60)
    pairs = recipe("two alphas", small=replace(DEFAULT.small, alphas=(1e300, 0.1), betas=(0.1,)))
    model = small(recipe=pairs, alpha="auto", beta="auto", dtype="float32").fit(X, y)
    assert model.alpha_ == 0.1
    assert len(model.fitted_.models) == 2


def test_patience_is_heard_of_a_kernel_too() -> None:
    X, y = easy(100)
    model = small(method="sv-rbf", objective="mml", epochs=300, patience=2, learning_rate=0.3).fit(X, y)
    assert {len(history["validation"]) < 300 for history in model.history_} == {True}


def test_a_torch_device_is_as_good_as_its_name(tmp_path: Path) -> None:
    X, y = easy()
    model = small(device=torch.device("cpu")).fit(X, y)
    model.save(tmp_path / "model")
    loaded = DeepBasisRegressor.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert (loaded.device, loaded.rows_) == ("cpu", len(X))


@pytest.mark.parametrize("method", ["dbk-silu", "sv-dkl"])
def test_fitted_attributes_are_consistent(method: str) -> None:
    X, y = easy(150)
    model = small(method=method, epochs=25, learning_rate=1e-2).fit(X, y)
    inside, outside = Table(X, y).split(model.validation_fraction)
    assert (model.fitted_.target.mean, model.fitted_.target.scale) == pytest.approx((inside.y.mean(), inside.y.std()))
    dist = model.predict_dist(outside.X, as_tensor=True)
    for k, history in enumerate(model.history_):
        assert set(history) == {"train_loss", "validation", "noise"}
        assert {len(values) for values in history.values()} == {25}
        best = int(np.argmin(history["validation"]))
        close(model.noise_[k], history["noise"][best] * model.fitted_.target.scale**2, rtol=1e-9)
        own = dist.variances[k].numpy() / model.calibration_.scales[0]
        std = np.sqrt(own)
        z = (outside.y - dist.means[k].numpy()) / std
        crps = std * (z * (2.0 * stats.norm.cdf(z) - 1.0) + 2.0 * stats.norm.pdf(z) - 1.0 / math.sqrt(math.pi))
        close(history["validation"][best], crps.mean() / model.fitted_.target.scale, rtol=1e-6)
    found = dict(model.validation_)
    constant = found.pop("nll_constant")
    assert found == pytest.approx(model.evaluate(outside.X, outside.y), rel=1e-9)
    close(constant, -stats.norm.logpdf(outside.y, inside.y.mean(), inside.y.std()).mean())
    used = {"dppgp": (0.1, 0.1), "ppgp": (0.0, 0.1), "elbo": (0.0, 1.0), "mse": (0.0, 0.0)}
    assert (model.alpha_, model.beta_) == used[METHODS[method].objective]


def test_patience_ends_a_fit_when_its_last_member_stops() -> None:
    """A member that has stopped keeps its best, and its history ends there."""
    X, y = easy(100)
    model = small(members=3, epochs=200, patience=3, learning_rate=0.1).fit(X, y)
    stops = []
    for k, history in enumerate(model.history_):
        best, best_epoch = math.inf, 0
        for epoch, score in enumerate(history["validation"].tolist(), start=1):
            if score < best:
                best, best_epoch = score, epoch
            elif epoch - best_epoch >= 3:
                break
        stops.append(epoch)
        close(model.noise_[k], history["noise"][best_epoch - 1] * model.fitted_.target.scale**2)
    assert [len(history["validation"]) for history in model.history_] == stops
    assert max(stops) < 200
    assert min(stops) < max(stops)


def test_a_network_s_variance_is_that_of_its_validation_residuals() -> None:
    X, y = easy(150)
    model = small(method="dnn", epochs=40).fit(X, y)
    _, outside = Table(X, y).split(model.validation_fraction)
    dist = model.predict_dist(outside.X, as_tensor=True)
    residuals = outside.y - dist.means[:2].numpy()
    close(model.noise_, (residuals**2).mean(1), rtol=1e-6)
    expected = np.outer(model.calibration_.scales, model.noise_).reshape(-1, 1)
    close(dist.variances.numpy(), np.broadcast_to(expected, dist.variances.shape), rtol=1e-6)
    with pytest.warns(NoveltyWarning):
        far = model.predict_dist(1000 * X, as_tensor=True)
    close(far.variances.numpy(), np.broadcast_to(expected, far.variances.shape), rtol=1e-6)


def test_a_notebook_shows_what_was_fitted_and_how_well() -> None:
    X, y = easy(80)
    model = small(epochs=2)
    before = model._repr_html_()
    assert "held out" not in before
    model.fit(pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(y, name="<b>price</b>"))
    for shown in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        assert shown.count("Fitted to 80 rows of 3 columns by dbk-silu, to predict &lt;b&gt;price&lt;/b&gt;") == 1
        assert "<b>price" not in shown
        for name, value in model.validation_.items():
            assert f">{name}</th><td>{value:.4g}</td>" in shown
    classes = small_classifier(epochs=2).fit(X, y > 0)
    assert f"<td>{classes.validation_['log_loss']:.4g}</td>" in classes._repr_html_()
