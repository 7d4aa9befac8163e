"""Warps learned from a target: about normal afterwards, whatever the target; transformers; bounds."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, PowerTransformer, QuantileTransformer

from deepbasis.errors import InputError
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.warps import bounds, quantile_warp, transformer_warp

Floats = NDArray[np.float64]


def draws(name: str, rows: int = 3_000) -> Floats:
    rng = np.random.default_rng(0)
    made: dict[str, Floats] = {
        "normal": rng.normal(5.0, 2.0, rows),
        "lognormal": np.exp(rng.normal(size=rows)),
        "many decades": np.exp(6.0 * rng.normal(size=rows)),
        "heavy tails": rng.standard_cauchy(rows),
        "share": rng.beta(0.5, 2.0, rows),
        "half zeros": np.maximum(rng.normal(size=rows), 0.0),
        "counts": rng.poisson(2.0, rows).astype(float),
        "two peaks": np.where(rng.random(rows) < 0.5, -3.0, 3.0) + 0.2 * rng.normal(size=rows),
        "almost one value": np.where(rng.random(rows) < 0.97, 1.0, 1.0 + rng.random(rows)),
        "far from zero": 1e9 + np.exp(rng.normal(size=rows)),
        "negative": -np.exp(rng.normal(size=rows)),
    }
    return made[name]


NAMES = [
    *("normal", "lognormal", "many decades", "heavy tails", "share", "half zeros", "counts", "two peaks"),
    *("almost one value", "far from zero", "negative"),
]


@pytest.mark.parametrize("rows", [20, 200, 3_000])
@pytest.mark.parametrize("name", NAMES)
def test_any_target_goes_there_and_back(name, rows):
    y = draws(name, rows)
    warp = quantile_warp(y)
    if warp is None:
        assert name == "almost one value"
        assert rows == 20
        return
    target = TargetScaler.fit(y, None, warp)
    z = target.transform(y)
    assert np.isfinite(z).all()
    np.testing.assert_allclose([z.mean(), z.std()], [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(target.inverse(torch.from_numpy(z)), y, rtol=1e-9, atol=1e-9 * np.abs(y).max())
    order = np.argsort(y)
    assert (np.diff(z[order])[np.diff(y[order]) > 0] > 0).all()
    average = np.log((warp.values[-1] - warp.values[0]) / (warp.knots[-1] - warp.knots[0]))
    slopes = warp.log_slope(torch.linspace(warp.knots[0], warp.knots[-1], 1_001, dtype=torch.float64)).numpy()
    assert (np.abs(slopes - average) < np.log(1e13)).all()


@pytest.mark.parametrize("name", ["normal", "lognormal", "heavy tails", "share", "two peaks"])
def test_a_continuous_target_becomes_about_normal(name):
    y = draws(name)
    z = TargetScaler.fit(y, None, quantile_warp(y)).transform(y)
    assert stats.kstest(z, "norm").statistic < (0.1 if name == "two peaks" else 0.02)  # the gap is smoothed
    assert abs(stats.skew(z)) < 0.2


def test_a_normal_target_is_hardly_changed():
    y = draws("normal")
    z = TargetScaler.fit(y, None, quantile_warp(y)).transform(y)
    np.testing.assert_allclose(z, (y - y.mean()) / y.std(), atol=0.5)
    assert np.abs(z - (y - y.mean()) / y.std()).mean() < 0.03


def test_a_row_of_weight_k_is_k_rows_and_the_order_is_nothing():
    y, weight = draws("lognormal", 300), np.random.default_rng(1).integers(0, 4, 300)
    weighted = quantile_warp(y[weight > 0], weight[weight > 0].astype(float))
    assert weighted == quantile_warp(np.random.default_rng(2).permutation(np.repeat(y, weight)))


def test_there_is_no_warp_near_the_grid_of_floats():
    rng = np.random.default_rng(0)
    assert quantile_warp(1e12 + 3e-4 * rng.normal(size=200)) is None


def test_there_is_no_warp_of_one_or_two_values():
    assert quantile_warp(np.ones(50)) is None
    assert quantile_warp(np.arange(50) % 2.0) is None


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0.5, 7.0), (0.0, math.inf)),
        ((0.0, 7.0), (-0.05, math.inf)),
        ((-1.0, 7.0), (-math.inf, math.inf)),
        ((0.1, 0.9), (0.0, 1.0)),
        ((0.0, 1.0), (-0.05, 1.1)),
        ((-7.0, -1.0), (-math.inf, 0.0)),
        ((-7.0, 0.0), (-math.inf, 0.1)),
    ],
)
def test_bounds(ends, expected):
    values = np.array([ends[0], ends[0] + 0.1, ends[1] - 0.2, ends[1]])
    assert bounds(values, ends) == pytest.approx(expected)


def test_the_bound_is_that_of_all_rows():
    y = draws("lognormal", 200)
    assert quantile_warp(y).low == 0.0  # type: ignore[union-attr]
    assert quantile_warp(y, None, (-1.0, 50.0)).low == -math.inf  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "transformer",
    [
        PowerTransformer(),
        PowerTransformer("box-cox"),
        QuantileTransformer(n_quantiles=50, output_distribution="normal"),
        FunctionTransformer(np.log, np.exp),
        FunctionTransformer(lambda y: 1.0 / (1.0 + y), lambda z: 1.0 / z - 1.0),
        MinMaxScaler(),
    ],
    ids=["yeo-johnson", "box-cox", "quantiles", "log", "falling", "scale"],
)
def test_a_transformer_is_tabulated(transformer):
    y = draws("lognormal", 500)
    warp = transformer_warp(transformer, y)
    assert warp is not None
    assert warp.low == 0.0
    theirs = transformer.fit(y[:, None]).transform(y[:, None])[:, 0]
    theirs = theirs if theirs[np.argmax(y)] > theirs[np.argmin(y)] else -theirs
    ours = warp.forward(torch.from_numpy(y)).numpy()
    within = (y > np.quantile(y, 0.05)) & (y < np.quantile(y, 0.95))
    np.testing.assert_allclose(ours[within], theirs[within], atol=0.03 * np.ptp(theirs))


@pytest.mark.parametrize(
    "transformer",
    [
        FunctionTransformer(np.abs, np.abs),
        FunctionTransformer(np.square, np.sqrt),
        FunctionTransformer(np.exp),
        FunctionTransformer(np.sign),
        FunctionTransformer(lambda y: y / 0.0, lambda z: z),
        PowerTransformer("box-cox"),
    ],
    ids=["abs", "square", "no inverse", "steps", "infinite", "negative"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_transformer_that_is_no_warp_is_refused(transformer):
    with pytest.raises(InputError, match=r"^target: (FunctionTransformer|PowerTransformer) "):
        transformer_warp(transformer, np.random.default_rng(0).normal(size=100))
