"""`calibrate="conformal"`: rows that nothing else of a fit sees, and intervals that keep a promise."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError
from deepbasis.fitting.data import TableData
from deepbasis.fitting.known import update_file
from deepbasis.fitting.promise import promise_of
from deepbasis.fitting.spec import Spec
from deepbasis.gp.conformal import Conformal
from deepbasis.tables.table import Table, set_apart
from support.regressors import close, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


def conformal(**changes: Any) -> DeepBasisRegressor:
    return small(**{"members": 1, "epochs": 2, "calibrate": "conformal", **changes})


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    return conformal().fit(*easy(400))


def test_a_guaranteed_interval_is_that_of_the_depths_of_the_rows_set_apart(model: DeepBasisRegressor) -> None:
    X, y = easy(400)
    out = set_apart(400)
    assert out.sum() == 100
    promise = Conformal.of(model.predict_dist(X[out], as_tensor=True), torch.from_numpy(y[out]))
    level = promise.level(0.9)
    new = easy(500, seed=1)[0]
    close(model.predict_interval(new, 0.9, guarantee=True), model.predict_dist(new).interval(1 - 2 * level), rtol=1e-6)


def test_targets_of_rows_set_apart_change_nothing_else() -> None:
    X, y = easy(200)
    out = set_apart(200)
    other = np.where(out, 1e3, y)
    strange = np.where(out[:, None], 50.0, X)
    new = easy(15, seed=1)[0]
    one, two, three = (conformal().fit(*rows) for rows in ((X, y), (X, other), (strange, y)))
    np.testing.assert_array_equal(one.predict(new, return_std=True), two.predict(new, return_std=True))
    np.testing.assert_array_equal(one.predict(new, return_std=True), three.predict(new, return_std=True))
    assert (np.diff(two.predict_interval(new, 0.9, guarantee=True), axis=0) == np.inf).all()


@pytest.mark.parametrize("target", ["identity", "warp"])
def test_fresh_rows_are_covered(target: str) -> None:
    """Around one fit, coverage is that of its 500 rows: a beta distribution of spread .013."""
    X, y = easy(2_000, noise=0.5)
    model = conformal(target=target).fit(X, np.exp(y))
    new, y_new = easy(4_000, seed=1, noise=0.5)
    lower, upper = model.predict_interval(new, 0.9, guarantee=True)
    assert 0.86 < np.mean((lower <= np.exp(y_new)) & (np.exp(y_new) <= upper)) < 0.94


def test_each_group_has_its_own_intervals() -> None:
    X, y = easy(1_000)
    rng = np.random.default_rng(0)
    site = rng.choice([3.0, 7.0], 1_000)
    y = y + np.where(site == 7, 3.0, 0.1) * rng.normal(size=1_000)
    grouped = conformal().fit(X, y, groups=np.where(site == 7, np.arange(1_000) % 5, 5 + np.arange(1_000) % 5))
    new = easy(20, seed=1)[0]
    wide = np.diff(grouped.predict_interval(new, 0.8, guarantee=True, groups=[0] * 20), axis=0)
    narrow = np.diff(grouped.predict_interval(new, 0.8, guarantee=True, groups=["9"] * 20), axis=0)
    assert wide.mean() > 2 * narrow.mean()
    with pytest.raises(InputError, match="rests on no row of the group '11'"):
        grouped.predict_interval(new, 0.8, guarantee=True, groups=[11] * 20)


def by_city(rows: int = 400) -> pd.DataFrame:
    X, y = easy(rows)
    city = np.random.default_rng(1).choice(["Rome", "Oslo", "Lima"], rows)
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(city=city, y=y * np.where(city == "Rome", 3.0, 1.0))


@pytest.mark.parametrize("calibrate", ["conformal", "cross-conformal"])
def test_files_have_the_intervals_of_each_group_by_their_names(tmp_path: Path, calibrate: str) -> None:
    table = by_city()
    table.to_csv(tmp_path / "t.csv", index=False)
    found = small(calibrate=calibrate, epochs=2).fit_dataset(tmp_path / "t.csv", "y", groups="city")
    names = found.fitted_.conformal.groups if calibrate == "conformal" else ("Lima", "Oslo", "Rome")
    assert sorted(names) == ["Lima", "Oslo", "Rome"]
    some = table[:40]
    (tmp_path / "new").mkdir()
    some.to_parquet(tmp_path / "new" / "n.parquet")
    given: Any = {"coverage": 0.8, "guarantee": True}
    (part,) = found.predict_dataset(tmp_path / "new", tmp_path / "out", groups="city", **given)
    expected = found.predict_interval(some[["a", "b", "c"]], 0.8, guarantee=True, groups=some["city"])
    np.testing.assert_allclose(pd.read_parquet(part)[["lower_80", "upper_80"]].to_numpy().T, expected, rtol=1e-9)
    (part,) = found.predict_dataset(tmp_path / "new", tmp_path / "out", **given)
    together = found.predict_interval(some[["a", "b", "c"]], 0.8, guarantee=True)
    np.testing.assert_allclose(pd.read_parquet(part)[["lower_80", "upper_80"]].to_numpy().T, together, rtol=1e-9)
    assert not np.allclose(expected, together)
    with pytest.raises(InputError, match="groups is for guaranteed intervals"):
        found.predict_dataset(tmp_path / "new", tmp_path / "out", groups="city")


def test_an_update_from_a_file_knows_groups_by_their_names(tmp_path: Path) -> None:
    """Also where the file has other groups, or in another order."""
    table = by_city()
    table.to_csv(tmp_path / "t.csv", index=False)
    table[table["city"] == "Rome"].to_csv(tmp_path / "more.csv", index=False)
    before = small(calibrate="conformal", epochs=2).fit_dataset(tmp_path / "t.csv", "y", groups="city").fitted_
    after, _ = update_file(before, tmp_path / "more.csv", groups="city")
    assert before.conformal is not None
    assert after.conformal is not None
    for city in ("Oslo", "Lima"):
        assert len(after.conformal.depths_of(city)) == len(before.conformal.depths_of(city))
    assert len(after.conformal.depths_of("Rome")) > len(before.conformal.depths_of("Rome"))


def test_what_was_not_asked_for_in_the_fit_is_refused(model: DeepBasisRegressor) -> None:
    X, y = easy(60)
    with pytest.raises(InputError, match="calibrate='conformal'"):
        small(members=1, epochs=1).fit(X, y).predict_interval(X, guarantee=True)
    with pytest.raises(InputError, match="groups is for guaranteed intervals: give guarantee=True"):
        model.predict_interval(X, groups=[1] * 60)
    with pytest.raises(InputError, match="fitted without groups"):
        model.predict_interval(X, guarantee=True, groups=[1] * 60)
    with pytest.raises(InputError, match="from 99 rows on, and the promise of this fit rests on 15;"):
        conformal().fit(X, y).predict_interval(X, 0.99, guarantee=True)
    with pytest.raises(InputError, match="'auto', 'conformal' or 'cross-conformal'"):
        small(calibrate="perhaps").fit(X, y)


def test_rows_of_weight_0_are_not_set_apart() -> None:
    X, y = easy(100)
    weight = np.arange(100) % 2.0
    data = TableData.of(Spec(calibrate="conformal"), Table.read(X, y, weight))
    assert data.apart is not None
    assert len(data.apart.y) == 12
    assert set(data.apart.y) <= set(y[1::2])
    assert data.row_numbers is not None
    np.testing.assert_array_equal(data.target.inverse(data.encoded.y).numpy().round(6), y[data.row_numbers].round(6))


def test_a_saved_model_keeps_its_promise(model: DeepBasisRegressor, path: Path) -> None:
    model.save(path)
    new = easy(20, seed=1)[0]
    again = DeepBasisRegressor.load(path)
    np.testing.assert_array_equal(
        again.predict_interval(new, guarantee=True), model.predict_interval(new, guarantee=True)
    )


def streamed(tmp_path: Path, **more: Any) -> DeepBasisRegressor:
    X, y = easy(2_000)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, site=np.arange(2_000) % 40)
    frame.to_parquet(tmp_path / "t.parquet")
    drop = [] if "groups" in more else ["site"]
    return conformal(epochs=1).fit_dataset(tmp_path / "t.parquet", "y", stream=True, drop=drop, **more)


def test_a_streamed_fit_sets_half_of_its_held_out_rows_apart(tmp_path: Path) -> None:
    found = streamed(tmp_path)
    assert found.fitted_.conformal is not None
    assert len(found.fitted_.conformal.depths) == 100
    X, y = easy(2_000, seed=1)
    lower, upper = found.predict_interval(pd.DataFrame(X, columns=["a", "b", "c"]), 0.8, guarantee=True)
    assert 0.68 < np.mean((lower <= y) & (y <= upper)) < 0.92  # three spreads of a promise from 100 rows


@pytest.mark.parametrize("more", [{"groups": "site"}, {"validation": "t.parquet"}])
def test_a_streamed_fit_with_groups_or_rows_to_validate_on_promises_nothing(tmp_path: Path, more: Any) -> None:
    if "validation" in more:
        more = {"validation": tmp_path / "t.parquet"}
    with pytest.raises(InputError, match="calibrate='conformal' sets apart half"):
        streamed(tmp_path, **more)


WRONG: dict[str, Any] = {
    "too deep": lambda depth, group: (depth + 1, group, ()),
    "no number": lambda depth, group: (depth * np.nan, group, ()),
    "single precision": lambda depth, group: (depth.float(), group, ()),
    "fewer groups": lambda depth, group: (depth, group[1:], ()),
    "a group without a name": lambda depth, group: (depth, group + 1, ("a",)),
    "a name twice": lambda depth, group: (depth, group, ("a", "a")),
    "more names than rows": lambda depth, group: (depth, group, tuple(map(str, range(1_000)))),
    "nothing": lambda depth, group: (depth[:0], group[:0], ()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_promise_that_makes_no_sense_is_refused(model: DeepBasisRegressor, name: str) -> None:
    promise = promise_of(model.fitted_)
    assert isinstance(promise, Conformal)
    with pytest.raises(InputError):
        Conformal(*WRONG[name](promise.depths, promise.group))


def test_targets_that_are_no_plain_numbers_are_refused() -> None:
    X, y = easy(60)
    counts = np.abs(np.round(3 * y))
    with pytest.raises(InputError, match=r"calibrate='conformal' needs targets that are numbers"):
        conformal(likelihood="poisson").fit(X, counts, exposure=np.ones(60))
    with pytest.raises(InputError, match=r"calibrate='conformal' needs targets that are numbers, known exactly"):
        conformal().fit(X, y, lower=y, upper=np.where(y > 0, np.inf, y))
