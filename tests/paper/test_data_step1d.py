"""The 1-D example against its formula in the paper, and its oracle against the entropy of what it draws."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit

from deepbasis.errors import InputError
from deepbasis.gp import metrics
from deepbasis.paper import data_step1d as step1d


def drawn(n: int, amplitude: float = step1d.AMPLITUDE, seed: int = 0) -> step1d.Draw:
    return step1d.draw(n, generator=torch.Generator().manual_seed(seed), amplitude=amplitude)


def test_the_mean_is_that_of_section_4_1():
    x = np.linspace(-1, 1, 1001)
    s1, s2, s3 = expit(200 * (x + 0.6)), expit(200 * x), expit(200 * (x - 0.4))
    expected = 0.3 * (1 - s1) + 0.9 * (s1 - s2) - 0.6 * (s2 - s3)
    np.testing.assert_allclose(step1d.true_mean(torch.from_numpy(x)), expected, atol=1e-14)


def test_the_mean_is_a_staircase():
    x = torch.tensor([-0.8, -0.3, 0.2, 0.7])
    torch.testing.assert_close(step1d.true_mean(x), torch.tensor([0.3, 0.9, -0.6, 0.0]))


@pytest.mark.parametrize("amplitude", [step1d.AMPLITUDE, step1d.PRINTED_AMPLITUDE])
def test_the_oracles_nll_is_the_entropy_of_the_data(amplitude):
    """Of N(mu(x), (a sin 10x)^2) with x uniform: 1/2 log(2 pi e) + E log |a sin 10x|."""
    zeros = [k * math.pi / 10 for k in range(4)]
    ends = [*zeros, 1.0]
    log_sine = sum(
        quad(lambda x: math.log(abs(math.sin(10 * x))), low, high, limit=200)[0] for low, high in pairwise(ends)
    )
    entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(amplitude) + log_sine
    n = 200_000
    x, y = drawn(n, amplitude)
    prediction = step1d.oracle(x, amplitude)
    assert float(metrics.nll(prediction, y)) == pytest.approx(entropy, abs=0.01)  # its standard error is 0.002
    assert float(metrics.coverage(prediction, y)) == pytest.approx(0.95, abs=0.003)


def test_the_printed_amplitude_cannot_give_the_papers_likelihoods():
    """The paper reports -0.225 for rank 64; the oracle of the noise that it prints has 1.37."""
    x, y = drawn(50_000, step1d.PRINTED_AMPLITUDE)
    assert float(metrics.nll(step1d.oracle(x, step1d.PRINTED_AMPLITUDE), y)) > 1.3
    x, y = drawn(50_000)
    assert float(metrics.nll(step1d.oracle(x), y)) < -0.225


def test_draws_depend_on_the_generator_alone():
    one, same, other = drawn(100), drawn(100), drawn(100, seed=1)
    assert torch.equal(one.x, same.x)
    assert torch.equal(one.y, same.y)
    assert not torch.equal(one.x, other.x)
    assert one.x.shape == (100, 1)
    assert one.y.shape == (100,)
    assert bool((one.x.abs() <= 1).all())


def test_without_noise_the_target_is_the_mean():
    x, y = drawn(100, amplitude=0.0)
    assert torch.equal(y, step1d.true_mean(x[:, 0]))


@pytest.mark.parametrize(("n", "amplitude", "words"), [(0, 0.4, "n must be"), (10, -1.0, "amplitude must be")])
def test_arguments_that_cannot_be(n, amplitude, words):
    with pytest.raises(InputError, match=words):
        step1d.draw(n, amplitude=amplitude)


@pytest.mark.parametrize("amplitude", [step1d.AMPLITUDE, step1d.PRINTED_AMPLITUDE])
def test_the_oracles_scores_are_those_of_normal_noise(amplitude):
    """With s = a |sin 10x|: E|y - mu| = sqrt(2 / pi) E s, and a Gaussian's CRPS for its own draws is E s / sqrt(pi)."""
    mean_std = amplitude * quad(lambda x: abs(math.sin(10 * x)), 0, 1, limit=200)[0]
    scores = step1d.oracle_scores(drawn(200_000, amplitude), amplitude)
    assert scores["mae"] == pytest.approx(math.sqrt(2 / math.pi) * mean_std, rel=0.01)
    assert scores["crps"] == pytest.approx(mean_std / math.sqrt(math.pi), rel=0.01)
    assert scores["nll"] == pytest.approx(
        float(metrics.nll(step1d.oracle(drawn(200_000, amplitude).x, amplitude), drawn(200_000, amplitude).y))
    )


def test_nobody_beats_the_oracle():
    rows = drawn(50_000)
    known = step1d.oracle_scores(rows)
    oracle = step1d.oracle(rows.x)
    wider = type(oracle)(oracle.mean, 1.2 * oracle.variance)
    elsewhere = type(oracle)(oracle.mean + 0.05, oracle.variance + 0.01)
    for other in (wider, elsewhere):
        scores = metrics.evaluate(other, rows.y)
        assert scores["nll"] > known["nll"]
        assert scores["crps"] > known["crps"]


def test_the_experiments_rows_are_the_same_for_every_method_and_amplitude():
    data = step1d.experiment_data(training=300, validation=20, test=10, seed=4)
    again = step1d.experiment_data(training=300, validation=20, test=10, seed=4)
    assert [len(rows.x) for rows in data] == [300, 20, 10]
    assert all(torch.equal(mine.y, theirs.y) for mine, theirs in zip(data, again, strict=True))
    assert not bool(torch.isin(data.test.x, data.training.x).all())
    louder = step1d.experiment_data(training=300, validation=20, test=10, seed=4, amplitude=2.0)
    for quiet, loud in zip(data, louder, strict=True):
        assert torch.equal(quiet.x, loud.x)
        mean = step1d.true_mean(quiet.x[:, 0])
        torch.testing.assert_close(5.0 * (quiet.y - mean), loud.y - mean, atol=1e-5, rtol=1e-4)
    other = step1d.experiment_data(training=300, validation=20, test=10, seed=5)
    assert not torch.equal(data.test.x, other.test.x)


def test_smaller_sets_are_part_of_larger_ones():
    rows = drawn(50)
    assert torch.equal(rows.first(20).x, rows.first(30).first(20).x)
    assert torch.equal(rows.first(20).y, rows.y[:20])
