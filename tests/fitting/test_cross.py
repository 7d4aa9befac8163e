"""`calibrate="cross-conformal"`: fits without a part of the rows each, and intervals from all of them."""

import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor
from deepbasis.errors import FileFormatError, InputError, NoveltyWarning, NumericalError
from deepbasis.fitting.fitted import KIND
from deepbasis.fitting.promise import guaranteed_interval, in_words, promise_of
from deepbasis.fitting.train import Execution
from deepbasis.gp.conformal import Conformal
from deepbasis.gp.cross import CrossConformal
from deepbasis.storage import load, save
from deepbasis.tables.table import parts, set_apart
from support.regressors import close, easy, mixed, small
from support.runs import Watch, ctrl_c, fit

pytestmark = pytest.mark.usefixtures("one_thread")


def cross(**changes: Any) -> DeepBasisRegressor:
    return small(**{"members": 1, "epochs": 2, "calibrate": "cross-conformal", **changes})


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    return cross().fit(*easy(100))


def test_each_part_judges_a_fit_to_the_other_rows(model: DeepBasisRegressor) -> None:
    """The same as by hand: five regressors that were never given their part."""
    X, y = easy(100)
    new = easy(20, seed=1)[0]
    promises, predicted = [], []
    for out in parts(100, 5):
        alone = small(members=1, epochs=2).fit(X[~out], y[~out])
        promises.append(Conformal.of(alone.predict_dist(X[out], as_tensor=True), torch.from_numpy(y[out])))
        predicted.append(alone.predict_dist(new, as_tensor=True))
    by_hand = CrossConformal(tuple(promises)).interval(predicted, 0.9)
    close(model.predict_interval(new, 0.9, guarantee=True), np.stack(by_hand), rtol=1e-9)


def test_the_fit_to_all_rows_predicts_nothing_of_an_interval(model: DeepBasisRegressor) -> None:
    """Its parameters may be anything; that rows are unlike its own is still said."""
    new = easy(20, seed=1)[0]
    spoilt = replace(model.fitted_, models=deepcopy(model.fitted_.models))
    with torch.no_grad():
        for one in spoilt.models:
            one.mean.fill_(torch.nan)
    expected = model.predict_interval(new, 0.9, guarantee=True)
    np.testing.assert_array_equal(guaranteed_interval(spoilt, new, 0.9), expected)
    with pytest.raises(NumericalError):
        spoilt.predict(new)
    with pytest.warns(NoveltyWarning):
        guaranteed_interval(spoilt, 100.0 * new, 0.9)


def test_the_model_itself_is_that_of_a_fit_without_a_promise(model: DeepBasisRegressor) -> None:
    new = easy(20, seed=1)[0]
    plain = small(members=1, epochs=2).fit(*easy(100))
    np.testing.assert_array_equal(model.predict(new, return_std=True), plain.predict(new, return_std=True))
    np.testing.assert_array_equal(model.predict_interval(new), plain.predict_interval(new))


def test_all_rows_are_in_one_part_each() -> None:
    masks = parts(103, 5)
    assert [int(out.sum()) for out in masks] == [21, 21, 21, 20, 20]
    np.testing.assert_array_equal(np.sum(masks, 0), 1)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["identity", "warp"])
def test_fresh_rows_are_covered(target: str) -> None:
    X, y = easy(300, noise=0.5)
    model = cross(target=target).fit(X, np.exp(y))
    new, y_new = easy(2_000, seed=1, noise=0.5)
    lower, upper = model.predict_interval(new, 0.9, guarantee=True)
    assert 0.85 < np.mean((lower <= np.exp(y_new)) & (np.exp(y_new) <= upper)) < 0.96


def test_groups_have_intervals_of_their_own() -> None:
    X, y = easy(200)
    rng = np.random.default_rng(0)
    site = np.arange(200) % 10
    y = y + np.where(site < 5, 8.0, 0.1) * rng.normal(size=200)
    grouped = cross().fit(X, y, groups=site)
    new = easy(20, seed=1)[0]
    wide = np.diff(grouped.predict_interval(new, 0.8, guarantee=True, groups=[0] * 20), axis=0)
    narrow = np.diff(grouped.predict_interval(new, 0.8, guarantee=True, groups=["9"] * 20), axis=0)
    assert wide.mean() > 2 * narrow.mean()


def test_a_saved_model_keeps_its_promise(path: Path) -> None:
    """Of a table whose parts have other categories and scales."""
    X, y = mixed(100)
    model = cross().fit(X, y)
    model.save(path)
    new = mixed(20, seed=1)[0]
    again = DeepBasisRegressor.load(path)
    np.testing.assert_array_equal(
        again.predict_interval(new, guarantee=True), model.predict_interval(new, guarantee=True)
    )
    assert again.fitted_.fingerprint == model.fitted_.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("target", ["log", "warp", "count", "ordinal"])
def test_so_does_one_of_a_target_that_is_no_plain_number(target: str, path: Path) -> None:
    """Though one row is far from the others, and one part has it."""
    X, y = easy(60)
    counts = np.where(np.arange(60) == 7, 40.0 if target == "count" else 6.0, np.floor(np.clip(2.0 + y, 1.0, 5.0)))
    model = cross(target=target, epochs=12).fit(X, counts if target in ("count", "ordinal") else np.exp(4.0 * counts))
    model.save(path)
    again = DeepBasisRegressor.load(path)
    np.testing.assert_array_equal(again.predict_interval(X, guarantee=True), model.predict_interval(X, guarantee=True))


def test_a_file_whose_fits_do_not_belong_together_is_refused(model: DeepBasisRegressor, path: Path) -> None:
    model.save(path)
    tensors, metadata = load(path, KIND)
    wrong: dict[str, Any] = {
        "one alone": {"folds": metadata["folds"][:1]},
        "none": {"folds": None},
        "nested": {"folds": [{**one, "folds": metadata["folds"]} for one in metadata["folds"]]},
        "other columns": {
            "folds": [
                {**one, "preprocessing": {**one["preprocessing"], "input_columns": ["a", "b", "c"]}}
                for one in metadata["folds"]
            ]
        },
        "no promise": {"folds": [{**one, "conformal": None} for one in metadata["folds"]]},
        **{
            f"a target of {found}": {"folds": [{**one, "target": found} for one in metadata["folds"]]}
            for found in (
                {**metadata["target"], "mean": 1e6},  # scales away
                {"mean": 0.0, "scale": 1.0, "warp": {"kind": "rate", "base": 1.0, "exposure": None, "exposed": False}},
            )
        },
    }
    for changes in wrong.values():
        save(path, KIND, tensors, {**metadata, **changes})
        with pytest.raises(FileFormatError):
            DeepBasisRegressor.load(path)


def test_files_are_predicted_with_the_same_intervals(tmp_path: Path) -> None:
    X, y = mixed(100)
    X.assign(y=y).to_parquet(tmp_path / "train.parquet")
    model = cross().fit_dataset(tmp_path / "train.parquet", "y")
    new = mixed(20, seed=1)[0]
    new.to_parquet(tmp_path / "new.parquet")
    (found,) = model.predict_dataset(tmp_path / "new.parquet", tmp_path / "out", coverage=0.8, guarantee=True)
    expected = model.predict_interval(new, 0.8, guarantee=True)
    close(pd.read_parquet(found)[["lower_80", "upper_80"]].to_numpy().T, expected, rtol=1e-9)


def test_what_is_promised_is_said_in_words(model: DeepBasisRegressor) -> None:
    assert in_words(model.fitted_, 0.9) == (
        "guaranteed intervals: those of 90 % hold about 90 % of the targets, and 73.3 % at least is promised"
    )
    split = cross(calibrate="conformal").fit(*easy(80)).fitted_
    assert in_words(split, 0.9) == "guaranteed intervals: of 90 %, 90.5 % at least is promised"
    assert "99 rows" in in_words(split, 0.99)
    assert in_words(small(members=1, epochs=1).fit(*easy(40)).fitted_) == ""


def test_what_it_is_not_for_is_refused(tmp_path: Path, model: DeepBasisRegressor) -> None:
    X, y = easy(60)
    with pytest.raises(InputError, match="for 10 to 50,000 rows, got 9: use 'conformal'"):
        cross().fit(X[:9], y[:9])
    with pytest.raises(InputError, match="calibrate='cross-conformal' is for one target"):
        cross().fit(X, np.stack([y, y], 1))
    with pytest.raises(InputError, match="cross-conformal promise cannot take in more rows"):
        model.update(X, y)
    with pytest.raises(InputError, match="from 199 rows on, and the promise of this fit rests on 100; ask for less"):
        model.predict_interval(X, 0.995, guarantee=True)
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"t\.csv' is streamed: use 'conformal'"):
        cross().fit_dataset(tmp_path / "t.csv", "y", stream=True)


def test_a_column_that_other_rows_would_read_otherwise_is_named() -> None:
    """The one cell that says which comes first, the day or the month, is in one of the parts."""
    X, y = easy(40)
    dates = [f"{1 + k % 12:02d}/{1 + k % 9:02d}/2020" for k in range(40)]
    dates[7] = "25/03/2020"
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(when=dates)
    with pytest.raises(InputError, match="column 'when' would be read in another way without some of the rows"):
        cross().fit(table, y)


@pytest.mark.parametrize("calibrate", ["conformal", "cross-conformal"])
@pytest.mark.parametrize("changes", [{}, {"members": 2, "epochs": 9, "validation_fraction": "auto"}], ids=str)
def test_a_column_whose_few_values_lie_in_the_rows_apart_says_nothing_there(
    calibrate: str, changes: dict[str, Any]
) -> None:
    """As in rows that are held out: only a column without values in the whole table is refused."""
    X, y = easy(100)
    apart = np.flatnonzero(set_apart(100))[0]
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(number=np.nan, text=pd.Series([None] * 100, dtype=object))
    table.loc[apart, ["number", "text"]] = [1.0, "seen"]
    model = cross(calibrate=calibrate, **changes).fit(table, y)
    assert np.isfinite(model.predict_interval(table, 0.8, guarantee=True)).all()
    weight = np.where(np.arange(100) == apart, 0.0, 1.0)
    with pytest.raises(InputError, match=r"column 'number' has no values at all \(in rows of positive weight\)"):
        cross(calibrate=calibrate).fit(table, y, sample_weight=weight)


def test_rows_of_weight_0_count_for_nothing() -> None:
    X, y = easy(120)
    weight = np.arange(120) % 2.0
    model = cross().fit(X, np.where(weight > 0, y, 1e3), sample_weight=weight)
    promise = promise_of(model.fitted_)
    assert isinstance(promise, CrossConformal)
    assert [len(part.depths) for part in promise.parts] == [12] * 5
    assert np.isfinite(model.predict_interval(X, 0.9, guarantee=True)).all()


def test_a_time_limit_is_for_all_fits_together() -> None:
    now = time.monotonic()
    whole = Execution(deadline=now + 60.0)
    assert whole.share_of(6).deadline == pytest.approx(now + 10.0, abs=1.0)
    assert whole.share_of(1) == whole
    assert Execution().share_of(6).deadline is None


def test_an_interrupt_leaves_the_model_without_a_promise() -> None:
    """In the first epoch of the first fit without some rows."""
    found = fit(cross(), *easy(60), Execution(progress=Watch(1, 1, ctrl_c)))
    assert found.interrupted
    assert len([text for text in found.warnings if "interrupted" in text]) == 1
    assert found.folds == ()
    with pytest.raises(InputError, match="this one was interrupted before they had ended: fit again"):
        promise_of(found)
