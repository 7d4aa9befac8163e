"""Exact GPs through GPyTorch: how they start, that they predict as dense algebra does, and that a budget is kept."""

import math

import pytest
import torch
from torch import Tensor

gpytorch = pytest.importorskip("gpytorch")

from deepbasis.engine.batches import Rows  # noqa: E402
from deepbasis.gp import metrics  # noqa: E402
from deepbasis.gp.backbone import ResNet  # noqa: E402
from deepbasis.gp.build import build  # noqa: E402
from deepbasis.paper import exact_gpytorch  # noqa: E402
from deepbasis.paper.exact_gpytorch import CHECKS, ExactGP, Rates, Task, TimeBudget, fit  # noqa: E402

ONE = torch.device("cpu")


def rows(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator, dtype=dtype) * 2 - 1
    return Rows(x, torch.sin(4 * x[:, 0]) + 0.3 * torch.randn(n, generator=generator, dtype=dtype))


def task(n: int = 30) -> Task:
    return Task(rows(n), rows(20, 1), rows(20, 2), torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None])


def dense(model: ExactGP, data: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 1, and the noise added to the variance."""
    K = model.kernel(torch.cat([data.x, x]))
    n, noise, mean = len(data), model.likelihood.noise.detach(), model.mean_module.constant.detach()
    solved = torch.linalg.solve(
        K[:n, :n] + noise * torch.eye(n, dtype=K.dtype), torch.cat([(data.y - mean)[:, None], K[:n, n:]], 1)
    )
    return mean + K[n:, :n] @ solved[:, 0], (K[n:, n:] - K[n:, :n] @ solved[:, 1:]).diagonal() + noise


@pytest.mark.parametrize("deep", [False, True])
def test_it_starts_as_the_paper_says(deep):
    model = ExactGP(rows(5), ResNet(1, 16) if deep else None)
    width = 16 if deep else 1
    lengthscale = model.covar_module.base_kernel.lengthscale
    torch.testing.assert_close(lengthscale, torch.full((1, width), math.sqrt(width), dtype=torch.float64))
    assert model.likelihood.noise.item() == pytest.approx(1e-2, rel=1e-5)
    assert model.covar_module.outputscale.item() == pytest.approx(1.0)
    assert model.mean_module.constant.item() == 0


@pytest.mark.parametrize("deep", [False, True])
def test_the_network_alone_decays_and_the_noise_has_its_own_rate(deep):
    model = ExactGP(rows(5), ResNet(1, 16) if deep else None)
    names = {parameter: name.partition(".")[0] for name, parameter in model.named_parameters()}
    for group in model.optimiser(Rates(noise_learning_rate=0.5)).param_groups:
        for parameter in group["params"]:
            part = names.pop(parameter)
            assert group["weight_decay"] == (1e-2 if part == "backbone" else 0)
            assert group["lr"] == (0.5 if part == "likelihood" else 1e-3)
    assert not names  # every parameter is stepped, once


def test_the_noise_may_not_fall_below_its_floor():
    model = ExactGP(rows(5), None)
    with torch.no_grad():
        model.likelihood.noise_covar.raw_noise.fill_(-1e3)
    assert model.likelihood.noise.item() == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(("n", "tolerance"), [(40, 1e-6), (900, 3e-3)], ids=["by a factor", "by conjugate gradients"])
@pytest.mark.parametrize("deep", [False, True])
def test_predictions_are_those_of_dense_algebra(n, tolerance, deep):
    """Up to 800 rows GPyTorch factorises; beyond, gradients are stopped at a relative residual of 0.01."""
    data, new = rows(n), rows(15, 1).x
    model = ExactGP(data, ResNet(1, 16).double() if deep else None)
    mean, variance = dense(model, data, new)
    with exact_gpytorch._as_the_paper(ONE):
        prediction = model.prediction(new)
    torch.testing.assert_close(prediction.mean, mean, atol=tolerance, rtol=0)
    torch.testing.assert_close(prediction.variance, variance, atol=tolerance, rtol=0)
    assert bool((prediction.variance >= model.likelihood.noise).all())


def test_a_step_climbs_the_marginal_likelihood():
    data = rows(40)
    model = ExactGP(data, None)

    def likelihood() -> float:
        covariance = model.kernel(data.x) + model.likelihood.noise.detach() * torch.eye(40, dtype=torch.float64)
        mean = model.mean_module.constant.detach().expand(40)
        return float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(data.y))

    before = likelihood()
    step = exact_gpytorch._stepper(model, data, model.optimiser(Rates(learning_rate=1e-2)))
    for _ in range(10):
        step()
    assert likelihood() > before + 1


def test_the_papers_limits_hold_inside_alone_and_random_numbers_are_put_back():
    settings = gpytorch.settings
    before = (settings.max_cg_iterations.value(), settings.max_root_decomposition_size.value())
    state = torch.get_rng_state()
    with exact_gpytorch._as_the_paper(ONE):
        assert (settings.max_cg_iterations.value(), settings.max_root_decomposition_size.value()) == (512, 128)
        assert settings.fast_pred_var.on()
        torch.rand(3)
    assert (settings.max_cg_iterations.value(), settings.max_root_decomposition_size.value()) == before
    assert not settings.fast_pred_var.on()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [
        (0.001, (5, 2_000, 1.0)),  # 10,000 steps fit: five seeds
        (1e-6, (10, 2_000, 1.0)),  # never more seeds than asked for
        (0.005, (1, 2_000, 1.0)),
        (0.01, (1, 1_000, 2.0)),  # half of the steps, twice the rate
        (0.1, (1, 100, 10.0)),  # no more than ten times the rate
        (5.0, (1, CHECKS, 10.0)),  # no fewer steps than these
    ],
)
def test_a_budget_is_shared_out(step_seconds, expected):
    assert TimeBudget(seconds=10.0, steps=2_000, seeds=10).share(step_seconds) == pytest.approx(expected)


def test_a_run_has_no_more_steps_than_asked_for():
    assert TimeBudget(seconds=0.0, steps=3, seeds=10).share(1.0) == (1, 3, 1.0)


@pytest.fixture(scope="module")
def deep_result() -> exact_gpytorch.Result:
    return fit(task(), TimeBudget(seconds=60.0, steps=4, seeds=2), Rates(), width=8)


def test_every_seed_has_its_scores_and_the_best_is_drawn(deep_result):
    result = deep_result
    assert [record["seed"] for record in result.records] == [0, 1]
    assert [record["steps"] for record in result.records] == [4, 4]
    assert result.records[0]["nll"] != result.records[1]["nll"]  # other backbones
    assert result.records[result.best]["validation"] == min(record["validation"] for record in result.records)
    rank = float(metrics.effective_rank(metrics.spectrum(result.K)))
    assert rank == pytest.approx(result.records[result.best]["effective_rank"])
    assert len(result.drawn.mean) == 21
    assert min(result.step_ms, result.eval_ms, result.eval_again_ms) > 0


def test_the_same_seed_comes_to_the_same(deep_result):
    again = fit(task(), TimeBudget(seconds=60.0, steps=4, seeds=1), Rates(), width=8)
    assert again.records[0]["nll"] == pytest.approx(deep_result.records[0]["nll"], rel=1e-9)


def test_a_seed_starts_with_the_same_backbone_as_a_deep_basis():
    started = exact_gpytorch.start(task(10).data, 8, 1).backbone.state_dict()
    expected = build("dbk-silu", 1, width=8, seed=1).backbone.state_dict()
    assert all(torch.equal(started[name], value) for name, value in expected.items())


def test_the_parameters_of_the_best_check_are_kept():
    """A rate that overshoots: the last parameters are worse than earlier ones."""
    the_task = task()
    model = ExactGP(the_task.data, None)
    with exact_gpytorch._as_the_paper(ONE):
        clock = exact_gpytorch.Clock(ONE)
        trained = exact_gpytorch._train(model, the_task, 30, Rates(0.7, 0.7), math.inf, clock)
        kept = float(metrics.nll(trained.model.prediction(the_task.validation.x), the_task.validation.y))
    assert kept == pytest.approx(trained.validation, rel=1e-6)
    assert trained.steps == 30


def test_past_its_deadline_a_run_ends_and_says_how_far_it_came():
    the_task = task()
    with exact_gpytorch._as_the_paper(ONE):
        clock = exact_gpytorch.Clock(ONE)
        trained = exact_gpytorch._train(ExactGP(the_task.data, None), the_task, 30, Rates(), -math.inf, clock)
    assert trained.steps == 1
    assert math.isfinite(trained.validation)
