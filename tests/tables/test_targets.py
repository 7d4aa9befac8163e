"""y and its scale, and the weights."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.exceptions import DataConversionWarning

from deepbasis import FileFormatError
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.targets import check_target, check_weight

FLOATS = hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e150, 1e150))


@pytest.mark.parametrize(
    "y",
    [
        [1, 0, 2],
        (1.0, 0.0, 2.0),
        np.array([1, 0, 2], dtype=np.uint8),
        np.array([1, 0, 2], dtype=object),
        [Decimal(1), 0, np.float32(2)],
        pd.Series([1, 0, 2], index=[5, 6, 7]),
        pd.Series([1, 0, 2], dtype="Int64"),
        pd.array([1, 0, 2], dtype="Float64"),
    ],
    ids=lambda y: type(y).__name__,
)
def test_every_way_to_pass_a_target(y):
    checked = check_target(y)
    assert checked.dtype == np.float64
    assert checked.tolist() == [1, 0, 2]


def test_truth_values_are_numbers():
    assert check_target([True, False]).tolist() == [1, 0]


@pytest.mark.parametrize("y", [np.ones((3, 1)), [[1], [1], [1]], pd.DataFrame({"y": [1, 1, 1]})])
def test_a_column_passes_with_a_warning(y):
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed when a 1d array was expected"):
        assert check_target(y).tolist() == [1, 1, 1]


def test_the_scale_is_the_weighted_standard_deviation():
    rng = np.random.default_rng(0)
    y, weight = rng.normal(5, 3, 200), rng.random(200)
    scaler = TargetScaler.fit(y, weight)
    np.testing.assert_allclose(scaler.mean, np.average(y, weights=weight), rtol=1e-14)
    np.testing.assert_allclose(scaler.scale**2, np.cov(y, aweights=weight, bias=True), rtol=1e-13)
    z = scaler.transform(y)
    np.testing.assert_allclose([np.average(z, weights=weight), np.average(z**2, weights=weight)], [0, 1], atol=1e-14)
    np.testing.assert_allclose(scaler.mean + scaler.scale * z, y, rtol=1e-14)


@pytest.mark.parametrize("y", [[0.1] * 7, [0.0], [3, 3], [0.3, 0.1 + 0.2], [1e-200, 2e-200]])
def test_what_does_not_vary_gets_scale_one(y):
    y = np.array(y)
    scaler = TargetScaler.fit(y)
    assert scaler.scale == 1
    assert np.abs(scaler.transform(y)).max() < 1e-15


@given(FLOATS, st.data())
@settings(max_examples=100, deadline=None)
def test_weights_are_repetitions_and_order_is_nothing(y, data):
    weight = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(y), max_size=len(y))))
    assume(weight.any())
    scaler = TargetScaler.fit(y, weight)
    assert scaler == TargetScaler.fit(y.repeat(weight))
    assert scaler == TargetScaler.fit(y[::-1], weight[::-1])
    assert np.isfinite(scaler.transform(y)).all()
    assert TargetScaler.from_state(json.loads(json.dumps(scaler.state(), allow_nan=False))) == scaler


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        {},
        {"mean": 1.0},
        {"mean": 1.0, "scale": 0.0},
        {"mean": 1.0, "scale": -1.0},
        {"mean": 1.0, "scale": float("inf")},
        {"mean": float("nan"), "scale": 1.0},
        {"mean": "1", "scale": 1.0},
        {"mean": None, "scale": 1.0},
        {"mean": True, "scale": 1.0},
        {"mean": [1.0], "scale": 1.0},
    ],
)
def test_nonsense_is_no_state(metadata):
    with pytest.raises(FileFormatError, match="mean and scale"):
        TargetScaler.from_state(metadata)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (None, [1, 1, 1]),
        (2, [2, 2, 2]),
        (0.5, [0.5, 0.5, 0.5]),
        (np.float32(2), [2, 2, 2]),
        ([0, 1, 2], [0, 1, 2]),
        ([True, False, True], [1, 0, 1]),
        (np.array([1, 2, 3], dtype=object), [1, 2, 3]),
        (pd.Series([1, 2, 3]), [1, 2, 3]),
        (pd.Series([1, 2, 3], dtype="Int64"), [1, 2, 3]),
    ],
)
def test_every_way_to_pass_weights(weight, expected):
    checked = check_weight(weight, 3)
    assert checked.dtype == np.float64
    assert checked.tolist() == expected


def test_weights_and_targets_are_copies():
    values = np.array([1.0, 2.0])
    check_weight(values, 2)[0] = 9
    check_target(values)[0] = 9
    assert values.tolist() == [1, 2]
