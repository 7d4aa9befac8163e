"""What the benchmarks of counts and skewed numbers compute: scores, folds and the persons of a panel."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kstest, norm, poisson

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from _target_peers import LEVELS
from target_peers import folds, of_masses, of_quantiles
from targets import Table, persons


def test_scores_of_probabilities() -> None:
    """The ranked probability score is E|X - y| - E|X - X'| / 2, and the PIT of the truth is uniform."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.2, 6.0, 8_000)
    y, values = rng.poisson(rates).astype(float), np.arange(60)
    masses = poisson.pmf(values, rates[:, None])
    found = of_masses(masses, y, rng)
    np.testing.assert_allclose(found.score, -poisson.logpmf(y, rates), rtol=1e-9)
    apart = np.abs(values[:, None] - values)
    for k in range(5):
        p = masses[k]
        np.testing.assert_allclose(found.crps[k], p @ np.abs(values - y[k]) - 0.5 * p @ apart @ p, rtol=1e-6)
    np.testing.assert_array_equal(found.absolute, np.abs(y - poisson.median(rates)))
    assert kstest(found.pit, "uniform").statistic < 0.02  # 1.36 / sqrt(8,000) is 0.015
    wrong = of_masses(poisson.pmf(values, 1.5 * rates[:, None]), y, rng)
    assert kstest(wrong.pit, "uniform").statistic > 0.1
    assert wrong.score.mean() > found.score.mean()


def test_scores_of_quantiles() -> None:
    """With ever more levels the CRPS; with 20, nearly."""
    y = np.linspace(-2.0, 2.0, 41)
    found = of_quantiles(np.tile(norm.ppf(LEVELS), (len(y), 1)), y)
    exact = y * (2.0 * norm.cdf(y) - 1.0) + 2.0 * norm.pdf(y) - 1.0 / np.sqrt(np.pi)
    np.testing.assert_allclose(found.crps, exact, atol=0.01)


def test_groups_are_on_one_side() -> None:
    table = Table(None, np.zeros(100), np.arange(100) // 4)
    held = [set(test.tolist()) for _, test in folds(table, 30, seed=0)]
    assert sorted(row for one in held for row in one) == list(range(100))
    for train, test in folds(table, 30, seed=0):
        assert len(train) == 30
        assert not set(table.groups[train]) & set(table.groups[test])


def test_a_panel_without_names_is_cut_into_persons() -> None:
    panel = pd.DataFrame(
        {
            "year": [1984, 1985, 1987, 1984, 1985, 1986, 1987],
            "age": [30, 31, 33, 50, 52, 21, 22],  # a birthday between two interviews
            "female": [1, 1, 1, 0, 0, 0, 0],
        }
    )
    assert np.unique(persons(panel), return_inverse=True)[1].tolist() == [0, 0, 0, 1, 1, 2, 2]
