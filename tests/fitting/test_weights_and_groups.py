"""Which rows are held out; what weights, groups and rows to validate on come to."""

from typing import Any

import numpy as np
import pytest

from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns
from support.regressors import close, easy, small
from support.splits import Table

pytestmark = pytest.mark.usefixtures("one_thread")


def held_out(table: Table, fraction: float = 0.1) -> tuple[set[tuple[float, ...]], set[tuple[float, ...]]]:
    """The distinct rows to train on and to validate on."""
    inside, outside = table.split(fraction)
    return {tuple(row) for row in np.asarray(inside.X)}, {tuple(row) for row in np.asarray(outside.X)}


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
def test_a_split_holds_out_its_share_and_loses_nothing(fraction: float) -> None:
    X, y = easy(200)
    inside, outside = held_out(Table(X, y), fraction)
    assert len(inside) + len(outside) == 200
    assert not inside & outside
    assert fraction * 200 - 1 <= len(outside) <= fraction * 200 + 1


def test_identical_rows_stand_on_one_side() -> None:
    X, y = easy(20)
    inside, outside = held_out(Table(np.repeat(X, 5, axis=0), np.repeat(y, 5)), 0.3)
    assert not inside & outside
    assert len(inside) + len(outside) == 20
    assert inside
    assert outside


@pytest.mark.parametrize("seed", range(5))
def test_a_group_stands_on_one_side_also_through_identical_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 30, size=(100, 1)).astype(float), rng.normal(size=100)
    groups = rng.integers(0, 60, size=100)
    X, y, groups = (
        np.concatenate([X, 100 + X[:50]]),
        np.concatenate([y, y[:50]]),
        np.concatenate([groups, 200 + groups[:50]]),
    )
    inside, outside = Table(X, y, None, groups).split(0.3)
    assert len(inside.y) + len(outside.y) == 150
    assert inside.groups is not None
    assert outside.groups is not None
    assert not set(inside.groups.tolist()) & set(outside.groups.tolist())
    assert not {*inside.X[:, 0]} & {*outside.X[:, 0]}


def test_a_split_depends_on_neither_order_nor_repetition_nor_the_names_of_groups() -> None:
    X, y = easy(100)
    weight = np.random.default_rng(1).integers(1, 4, size=100)
    groups = np.arange(100) // 2
    order = np.random.default_rng(2).permutation(100)
    weighted = held_out(Table(X, y, weight.astype(float)))
    assert held_out(Table(X[order], y[order], weight[order].astype(float))) == weighted
    assert held_out(Table(np.repeat(X, weight, axis=0), np.repeat(y, weight))) == weighted
    grouped = held_out(Table(X, y, None, groups))
    assert held_out(Table(X, y, None, np.array([f"g{999 - g}" for g in groups]))) == grouped
    assert held_out(Table(X[order], y[order], None, groups[order])) == grouped
    assert grouped != held_out(Table(X, y))


def test_groups_change_which_rows_are_validated_on() -> None:
    X, y = easy(60)
    groups = np.arange(60) // 20
    model = small().fit(X, y, groups=groups)
    inside, outside = Table(X, y, None, groups).split(model.validation_fraction)
    assert set(np.unique(outside.groups)).isdisjoint(np.unique(inside.groups))
    assert len(outside.y) == 20
    close(model.validation_["rmse"], model.evaluate(outside.X, outside.y)["rmse"])
    close(model.fitted_.target.mean, inside.y.mean())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": "mml"},
        {"method": "sv-dkl"},
        {"method": "sv-rbf", "objective": "mml"},
        {"method": "dnn"},
        {"calibrate": False},
    ],
    ids=str,
)
def test_an_integer_weight_is_a_repetition(changes: dict[str, Any]) -> None:
    X, y = easy(80)
    weight = np.random.default_rng(0).integers(0, 4, size=80)
    weighted = small(epochs=10, **changes).fit(X, y, sample_weight=weight)
    repeated = small(epochs=10, **changes).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    close(weighted.predict(X, True), repeated.predict(X, True), rtol=1e-6, atol=1e-8)
    close(weighted.noise_, repeated.noise_, rtol=1e-6)
    if changes.get("calibrate", True):
        close(weighted.calibration_.scales, repeated.calibration_.scales, rtol=1e-7)
        close(weighted.calibration_.weights, repeated.calibration_.weights, rtol=1e-7)
    close(weighted.history_[0]["validation"], repeated.history_[0]["validation"], rtol=1e-6)
    assert weighted.validation_ == pytest.approx(repeated.validation_, rel=1e-6)


def test_rows_of_weight_zero_are_no_rows() -> None:
    X, y = easy(80)
    weight = np.ones(80)
    weight[::7] = 0
    y_wild = np.where(weight == 0, 1e9, y)
    with_zeros = small().fit(X, y_wild, sample_weight=weight)
    without = small().fit(X[weight > 0], y[weight > 0])
    close(with_zeros.predict(X, True), without.predict(X, True), rtol=1e-9)


def test_a_given_validation_table_is_used_and_all_rows_are_trained_on() -> None:
    X, y = easy(100)
    X_val, y_val = easy(25, seed=9)
    model = small(epochs=20).fit(X, y, X_val=X_val, y_val=y_val)
    assert model.fitted_.target.mean == pytest.approx(y.mean())
    np.testing.assert_array_equal(
        model.fitted_.preprocessor.transform(X), Preprocessor.fit(*read_columns(X)).transform(X)
    )
    found = {name: value for name, value in model.validation_.items() if name != "nll_constant"}
    assert found == pytest.approx(model.evaluate(X_val, y_val), rel=1e-9)
    other = small(epochs=20).fit(X, y, X_val=X_val, y_val=-y_val)
    close(other.history_[0]["train_loss"][:3], model.history_[0]["train_loss"][:3])  # trained alike, validated not
    assert not np.allclose(other.history_[0]["validation"][:3], model.history_[0]["validation"][:3])
