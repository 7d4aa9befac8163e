"""Where a training starts: half of what a ridge regression leaves, whatever the order and the copies."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from deepbasis.engine.batches import Rows
from deepbasis.fitting.start import straight_line
from deepbasis.gp.likelihoods import GaussianLikelihood

Floats = NDArray[np.float64]


def table(n: int, noise: float, seed: int = 0) -> tuple[Floats, Floats]:
    """A linear function of two columns of four, with a share of noise; the means are not zero."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) + np.array([0.0, 3.0, 0.0, -1.0])
    signal = (X[:, 0] - 2.0 * X[:, 1]) / np.sqrt(5.0)
    return X, np.sqrt(1.0 - noise) * signal + np.sqrt(noise) * rng.normal(size=n)


def rows(X: Floats, y: Floats, weight: Floats | None = None, dtype: torch.dtype = torch.float64) -> Rows:
    parts = [None if part is None else torch.from_numpy(part).to(dtype) for part in (X, y, weight)]
    return Rows(*parts)  # type: ignore[arg-type]


def noise_of(rows: Rows) -> float:
    return GaussianLikelihood.starting_noise(straight_line(rows).variance_left)


def left_by_ridge(X: Floats, y: Floats) -> float:
    """The mean squared residual of the least squares of ||y - a - X b||^2 + n 1e-3 ||b||^2, as an augmented system."""
    n, d = X.shape
    columns = np.column_stack([np.ones(n), X])
    penalty = np.sqrt(1e-3 * n) * np.eye(1 + d)[1:]
    solution = np.linalg.lstsq(np.vstack([columns, penalty]), np.concatenate([y, np.zeros(d)]), rcond=None)[0]
    return float(np.mean((y - columns @ solution) ** 2))


@pytest.mark.parametrize("noise", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("n", [8, 30, 500])
def test_it_is_half_of_what_a_ridge_regression_leaves(n: int, noise: float) -> None:
    X, y = table(n, noise)
    expected = left_by_ridge(X, y) / 2
    assert 1e-4 < expected < 0.5 + 1e-9  # so that the bounds are not what is tested here
    assert noise_of(rows(X, y)) == pytest.approx(expected, rel=1e-9)
    assert noise_of(rows(X, y, dtype=torch.float32)) == pytest.approx(expected, rel=1e-4)
    if n == 500:
        assert expected == pytest.approx(noise / 2, rel=0.2)


def test_a_weight_is_so_many_copies_and_only_the_ratios_matter() -> None:
    X, y = table(60, 0.3)
    count = np.random.default_rng(1).integers(0, 4, size=60)
    weight = count.astype(float)
    expected = left_by_ridge(np.repeat(X, count, axis=0), np.repeat(y, count)) / 2
    assert noise_of(rows(X, y, weight)) == pytest.approx(expected, rel=1e-9)
    assert noise_of(rows(X, y, 1e6 * weight)) == pytest.approx(expected, rel=1e-9)
    assert noise_of(rows(X, y)) != pytest.approx(expected, rel=1e-3)


def test_order_does_not_matter() -> None:
    X, y = table(60, 0.3)
    order = np.random.default_rng(1).permutation(60)
    assert noise_of(rows(X[order], y[order])) == pytest.approx(noise_of(rows(X, y)), rel=1e-12)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.zeros(20), 1e-4),
        (np.arange(20.0) / 1e3, 1e-4),
        (10.0 * (-1.0) ** np.arange(20), 0.5),
    ],
    ids=["constant", "tiny", "huge"],
)
def test_it_is_bounded(y: Floats, expected: float) -> None:
    assert noise_of(rows(np.arange(20.0)[:, None], y)) == expected


@pytest.mark.parametrize("what", ["one row", "constant columns", "copied columns", "more columns than rows"])
def test_it_is_a_number_where_least_squares_has_no_one_solution(what: str) -> None:
    X, y = table(30, 0.3)
    X = {
        "one row": X,
        "constant columns": np.ones_like(X),
        "copied columns": np.column_stack([X, X, 1e4 * X]),
        "more columns than rows": np.random.default_rng(2).normal(size=(30, 80)),
    }[what]
    if what == "one row":
        X, y = X[:1], y[:1]
    found = noise_of(rows(X, y))
    assert found == pytest.approx(min(max(left_by_ridge(X, y) / 2, 1e-4), 0.5), rel=1e-6)


@pytest.mark.parametrize(("n", "every"), [(20_000, 1), (20_001, 2)])
def test_of_many_rows_it_looks_at_some(n: int, every: int) -> None:
    X, y = table(n, 0.3)
    weight = 1.0 + np.arange(n) % 3
    assert noise_of(rows(X, y)) == pytest.approx(left_by_ridge(X[::every], y[::every]) / 2, rel=1e-9)
    some = rows(X[::every], y[::every], weight[::every])
    assert noise_of(rows(X, y, weight)) == noise_of(some)
