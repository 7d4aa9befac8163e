"""The probability of a class against quadrature, draws and the probit; stacked, and in float32 tails."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr, logsumexp
from sklearn.metrics import roc_auc_score
from torch.func import functional_call, stack_module_state, vmap

from deepbasis.errors import InputError
from deepbasis.gp import metrics
from deepbasis.gp.build import build
from deepbasis.gp.calibration import CLASS_SCALES, calibrate
from deepbasis.gp.classes import Classes, ClassLikelihood, log_class, log_largest, probabilities_of_largest
from deepbasis.gp.posterior import WeightPosterior

CASES = [
    [0.0, 0.0, 0.0],
    [1.0, -0.5, 0.3],
    [-4.0, 2.0, 1.0],
    [-9.0, 6.0, 5.0, 5.5],
    [3.0, -3.0, 0.0, 0.5, 1.0, 1.5, -2.0],
    [-30.0, 10.0, 9.0],
]


def exact(a: list[float], k: int) -> float:
    """By 60,001 nodes, in the log, with SciPy's cdf."""
    t = np.linspace(-15.0, 45.0, 60_001)
    logs = sum(log_ndtr(t + a[k] - other) for j, other in enumerate(a) if j != k) - 0.5 * t**2
    return float(logsumexp(logs) + np.log((t[1] - t[0]) / np.sqrt(2.0 * np.pi)))


@pytest.mark.parametrize("a", CASES)
def test_value_and_gradient(a):
    for k in (0, 1):
        here = torch.tensor([a], dtype=torch.float64, requires_grad=True)
        value = log_largest(here, torch.tensor([k]))
        value.sum().backward()
        assert value.item() == pytest.approx(exact(a, k), rel=1e-8, abs=1e-8)
        h = 1e-4
        up, down = ([x + h * s * (j == 2) for j, x in enumerate(a)] for s in (1.0, -1.0))
        slope = (exact(up, k) - exact(down, k)) / (2.0 * h)
        assert here.grad is not None
        assert float(here.grad[0, 2]) == pytest.approx(slope, rel=1e-6, abs=1e-7)
        assert float(here.grad.sum()) == pytest.approx(0.0, abs=1e-8)  # only differences count


def test_all_probabilities_at_once_are_those_of_each_class():
    generator = torch.Generator().manual_seed(0)
    for classes in (3, 10, 60):
        a = 3.0 * torch.randn(50, classes, generator=generator, dtype=torch.float64)
        p = probabilities_of_largest(a)
        each = torch.stack([log_largest(a, torch.full((50,), k)) for k in range(classes)], 1).exp()
        np.testing.assert_allclose(p, each, atol=1e-8)
        np.testing.assert_allclose(each.sum(1), np.ones(50), atol=1e-8)


def test_draws_of_the_latent_numbers():
    a = torch.tensor([[0.5, -0.2, 1.0, 0.0]], dtype=torch.float64)
    draws = a + torch.randn(400_000, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    share = torch.bincount(draws.argmax(1), minlength=4) / len(draws)
    np.testing.assert_allclose(probabilities_of_largest(a)[0], share, atol=4e-3)  # 5 standard errors


def test_two_latent_numbers_are_one_probit():
    """Their difference has twice the variance."""
    a = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    both = torch.stack([torch.zeros_like(a), a], 1)
    expected = torch.special.log_ndtr(a / math.sqrt(2.0))
    np.testing.assert_allclose(log_largest(both, torch.ones(13, dtype=torch.int64)), expected, atol=1e-9)
    likelihood = ClassLikelihood(classes=2).double()
    mean, var = a[:, None], torch.linspace(0.1, 2.0, 13, dtype=torch.float64)
    found = likelihood.log_density(torch.zeros(13, dtype=torch.float64), mean, var)
    np.testing.assert_allclose(found, torch.special.log_ndtr(-a / (1.0 + var).sqrt()), rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_float32_tails_have_no_holes(classes):
    latents = 1 if classes == 2 else classes
    mean = torch.zeros(401, latents)
    mean[:, 0] = torch.linspace(-60.0, 60.0, 401)
    mean.requires_grad_()
    likelihood = ClassLikelihood(classes=classes)
    for y in (0.0, 1.0):
        found = likelihood.log_density(torch.full((401,), y), mean, torch.zeros(401))
        (gradient,) = torch.autograd.grad(found.sum(), mean)
        assert found.isfinite().all()
        assert gradient.isfinite().all()
        exactly = likelihood.double().log_density(torch.full((401,), y).double(), mean.double(), torch.zeros(401))
        np.testing.assert_allclose(found.detach(), exactly.detach(), rtol=2e-4, atol=2e-4)
        likelihood.float()


def test_stacked_members_are_members_alone():
    models = [build("dbk-silu", 3, rank=4, width=4, likelihood=likelihood_of(4), seed=seed) for seed in (0, 1)]
    parameters, buffers = stack_module_state(models)
    x, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.0, 1, 2, 3, 0, 1])

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of = models[0]

        def forward(self) -> torch.Tensor:
            return self.of.log_density(self.of(x), y)

    named = {f"of.{name}": value for name, value in {**parameters, **buffers}.items()}
    together = vmap(lambda state: functional_call(Call(), state, ()))(named)
    for one, alone in zip(together, models, strict=True):
        torch.testing.assert_close(one, alone.log_density(alone(x), y), rtol=1e-4, atol=1e-5)


def likelihood_of(classes: int):
    return lambda noise: ClassLikelihood(noise, classes=classes)


def test_the_kl_of_functions_that_share_a_covariance_is_the_sum_of_theirs():
    torch.manual_seed(0)
    several = WeightPosterior(5, 3).double()
    total = 0.0
    for m in several.m:
        q = torch.distributions.MultivariateNormal(m, scale_tril=several.L())
        p = torch.distributions.MultivariateNormal(torch.zeros(5).double(), torch.eye(5).double())
        total = total + torch.distributions.kl_divergence(q, p)
    torch.testing.assert_close(several.kl(), total)
    phi = torch.randn(4, 5, dtype=torch.float64)
    mean, var = several(phi)
    torch.testing.assert_close(mean, phi @ several.m.T)
    torch.testing.assert_close(var, (phi @ several.L()).square().sum(1))


def some(classes: int, rows: int = 1_500, members: int = 2) -> tuple[Classes, torch.Tensor]:
    """Predictions, and classes that are drawn from them."""
    generator = torch.Generator().manual_seed(0)
    latents = 1 if classes == 2 else classes
    means = 2.0 * torch.randn(1, rows, latents, generator=generator, dtype=torch.float64)
    means = means + 0.3 * torch.randn(members, rows, latents, generator=generator, dtype=torch.float64)
    predicted = Classes(means, 1.0 + torch.rand(members, rows, generator=generator, dtype=torch.float64))
    return predicted, torch.multinomial(predicted.probabilities, 1, generator=generator)[:, 0].double()


@pytest.mark.parametrize("classes", [2, 4])
def test_an_ensemble_is_the_mean_of_its_members(classes):
    predicted, y = some(classes, 200)
    alone = [Classes(mean[None], var[None]) for mean, var in zip(predicted.means, predicted.variances, strict=True)]
    torch.testing.assert_close(predicted.probabilities, sum(one.probabilities for one in alone) / 2)
    of_y = predicted.probabilities.gather(1, y.long()[:, None])[:, 0]
    np.testing.assert_allclose(predicted.log_prob(y), of_y.log(), atol=1e-5)
    again = predicted[:50].followed_by([predicted[50:]])
    torch.testing.assert_close(again.probabilities, predicted.probabilities)


@pytest.mark.parametrize("classes", [2, 4])
def test_calibration_finds_a_temperature_and_leaves_what_is_right(classes):
    right, y = some(classes)
    found = calibrate(right, y)
    assert float(found.apply(right).log_prob(y).mean()) == pytest.approx(float(right.log_prob(y).mean()), abs=4e-3)
    too_sure = Classes(right.means * 3.0, right.variances)
    better = calibrate(too_sure, y).apply(too_sure)
    assert float(better.log_prob(y).mean()) == pytest.approx(float(right.log_prob(y).mean()), abs=8e-3)
    assert set(calibrate(too_sure, y).scales) <= set(CLASS_SCALES)


def test_a_row_of_weight_two_calibrates_as_two_rows():
    predicted, y = some(3, 100)
    weight = torch.ones(100, dtype=torch.float64)
    weight[:40] = 2.0
    twice = torch.cat([torch.arange(100), torch.arange(40)])
    once, doubled = calibrate(predicted, y, weight), calibrate(predicted[twice], y[twice])
    np.testing.assert_allclose(once.weights, doubled.weights, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_are_those_of_scikit_learn(classes):
    predicted, y = some(classes, 300)
    weight = torch.rand(300, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p, labels = predicted.probabilities.numpy(), y.numpy().astype(int)
    found = metrics.evaluate(predicted, y, weight)
    expected = [roc_auc_score(labels == k, p[:, k], sample_weight=weight) for k in range(classes)]
    assert found["auc"] == pytest.approx(np.mean(expected), abs=1e-9)
    own = np.average(((p - np.eye(classes)[labels]) ** 2).sum(1), weights=weight)
    assert found["brier"] == pytest.approx(own)
    assert found["accuracy"] == pytest.approx(np.average(p.argmax(1) == labels, weights=weight))
    assert found["log_loss"] == pytest.approx(np.average(-np.log(p[np.arange(300), labels]), weights=weight), abs=1e-6)


def test_the_calibration_error_is_small_for_what_is_right_and_large_for_what_is_not():
    right, y = some(3, 20_000, 1)
    assert metrics.evaluate(right, y)["ece"] < 0.012
    assert metrics.evaluate(Classes(right.means * 3.0, right.variances), y)["ece"] > 0.05
    certain = torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64)
    assert float(metrics.confidence_error(certain, torch.tensor([0.0, 0, 0, 1]).double(), 1)) == pytest.approx(0.25)


def test_one_class_has_no_area_under_a_curve():
    predicted, _ = some(2, 5)
    assert math.isnan(metrics.evaluate(predicted, torch.zeros(5).double())["auc"])


def test_what_is_refused():
    with pytest.raises(InputError, match="DeepBasisClassifier trains with"):
        build("dbk-silu", 3, likelihood="classes")
    with pytest.raises(InputError, match="predicts one number"):
        build("dnn", 3, likelihood=likelihood_of(3))
    with pytest.raises(InputError, match="rows of one kind"):
        some(3, 5)[0].followed_by([some(4, 5)[0]])
    with pytest.raises(InputError, match="not the ELBO"):
        ClassLikelihood(classes=2).expected_log_density(torch.zeros(1), torch.zeros(1, 1), torch.ones(1))


def test_log_class_of_two_is_symmetric():
    a = torch.linspace(-5.0, 5.0, 11, dtype=torch.float64)[:, None]
    one, zero = log_class(a, torch.ones(11).double()), log_class(-a, torch.zeros(11).double())
    torch.testing.assert_close(one, zero)
