"""Several outputs: their objective against that of each alone, their joint distribution against dense algebra."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from deepbasis.errors import InputError
from deepbasis.gp.build import build
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.objectives import dppgp, elbo, ppgp
from deepbasis.gp.outputs import Outputs, OutputsCalibration, OutputsLikelihood, calibrate_outputs
from deepbasis.gp.predictive import Gaussian, GaussianMixture
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import Log

R = torch.tensor([[1.0, 0.7, -0.3], [0.7, 1.0, 0.1], [-0.3, 0.1, 1.0]], dtype=torch.float64)


def model_of(outputs: int, method: str = "dbk-rbf") -> torch.nn.Module:
    return build(method, 2, rank=4, width=8, likelihood=lambda noise: OutputsLikelihood(noise, outputs=outputs), seed=1)


def normals(n: int, m: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means, variances and targets."""
    some = torch.randn(3, n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return some[0], some[1].exp(), some[2]


@pytest.mark.parametrize("objective", [dppgp, ppgp, elbo])
def test_the_objective_is_the_sum_of_those_of_each_output(objective):
    model = model_of(3).double()
    x, y = torch.randn(20, 2, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    with torch.no_grad():
        for parameter in (*model.posterior.parameters(), *model.likelihood.parameters(), model.mean):
            parameter.add_(0.3 * torch.randn_like(parameter))
    together = objective(model, x, y, 20, 0.1, 0.5)
    alone = build("dbk-rbf", 2, rank=4, width=8, seed=1).double()
    total = 0.0
    for k in range(3):
        state = model.state_dict()
        own = {"mean", "likelihood.raw", "posterior.m", "posterior.log_diagonal", "posterior.lower"}
        alone.load_state_dict({name: value[k] if name in own else value for name, value in state.items()})
        total += objective(alone, x, y[:, k], 20, 0.1, 0.5)
        both = zip(model.predict(x).each[k].__dict__.values(), alone.predict(x).__dict__.values(), strict=True)
        for ours, theirs in both:
            torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(together, total)


def test_one_output_starts_and_counts_as_a_model_of_one_number():
    one, plain = model_of(1), build("dbk-rbf", 2, rank=4, width=8, seed=1)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name].view(value.shape), value, rtol=0, atol=0)
    x, y = torch.randn(9, 2), torch.randn(9)
    torch.testing.assert_close(dppgp(one, x, y[:, None], 9, 0.1, 0.5), dppgp(plain, x, y, 9, 0.1, 0.5))


def test_the_joint_density_is_the_dense_gaussian_one():
    means, variances, y = normals(6, 3)
    predicted = Outputs(tuple(map(Gaussian, means.unbind(1), variances.unbind(1))), R)
    for row in range(6):
        D = variances[row].sqrt().diag()
        dense = multivariate_normal(means[row], D @ R @ D)
        assert float(predicted.log_prob(y)[row]) == pytest.approx(dense.logpdf(y[row]), rel=1e-10)
        np.testing.assert_allclose(predicted.covariance()[row], D @ R @ D, rtol=1e-6)


def test_a_mixture_of_one_gaussian_twice_is_that_gaussian():
    means, variances, y = normals(6, 3)
    mixture = tuple(
        GaussianMixture(m.expand(2, -1), v.expand(2, -1)) for m, v in zip(means.T, variances.T, strict=True)
    )
    gaussian = Outputs(tuple(map(Gaussian, means.unbind(1), variances.unbind(1))), R)
    far = means + 6.0 * variances.sqrt()  # both tails
    for targets in (y, far, 2.0 * means - far):
        torch.testing.assert_close(
            Outputs(mixture, R).log_prob(targets), gaussian.log_prob(targets), rtol=1e-8, atol=1e-8
        )
    one, other = (p.sample(5, torch.Generator().manual_seed(3)) for p in (Outputs(mixture, R), gaussian))
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_the_joint_density_of_warped_mixtures_integrates_to_one_and_draws_follow_it():
    """Two outputs, one of them positive: density by a grid, covariance and draws by each other."""
    first = GaussianMixture(torch.tensor([[-1.0], [0.5]]).double(), torch.tensor([[0.3], [1.0]]).double())
    second = Warped(
        GaussianMixture(torch.tensor([[0.0], [0.4]]).double(), torch.tensor([[0.1], [0.2]]).double()), Log(1.0)
    )
    predicted = Outputs((first, second), R[:2, :2])
    a, b = torch.linspace(-6, 6, 241).double(), torch.linspace(-3.5, 4.0, 241).double().exp()
    grid = torch.stack([a.repeat_interleave(241), b.repeat(241)], 1)
    many = predicted[torch.zeros(len(grid), dtype=torch.long)]
    mass = many.log_prob(grid).exp() * grid[:, 1] * (0.05 * 7.5 / 240)
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-3)
    away = grid - predicted.mean
    assert float((mass * away.prod(1)).sum()) == pytest.approx(float(predicted.covariance()[0, 0, 1]), rel=1e-2)
    drawn = predicted.sample(40_000, torch.Generator().manual_seed(0))[:, 0]
    assert float(torch.cov(drawn.T)[0, 1]) == pytest.approx(float(predicted.covariance()[0, 0, 1]), rel=0.05)
    np.testing.assert_allclose(drawn.quantile(0.9, 0), predicted.quantile(0.9)[0], rtol=0.05)


def test_held_out_rows_give_the_correlation_and_each_calibration():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 3, dtype=torch.float64, generator=generator) @ torch.linalg.cholesky(R).mT
    means, variances, _ = normals(4000, 3, 1)
    y = means + z * variances.sqrt() * torch.tensor([1.0, 2.0, 0.5])
    predicted = Outputs(tuple(map(Gaussian, means.unbind(1), variances.unbind(1))))
    found = calibrate_outputs(predicted, y)
    np.testing.assert_allclose(found.correlation, R, atol=0.04)
    np.testing.assert_allclose([one.mean_scale for one in found.each], [1.0, 4.0, 0.25], rtol=0.1)
    order = [2, 0, 1]
    turned = calibrate_outputs(Outputs(tuple(predicted.each[k] for k in order)), y[:, order])
    assert turned.each == tuple(found.each[k] for k in order)
    np.testing.assert_allclose(turned.correlation, np.array(found.correlation)[order][:, order], atol=1e-12)
    plain = calibrate_outputs(predicted, y, scales=False)
    assert plain.each == ()
    assert plain.apply(predicted).each == predicted.each
    state = {"each": [], "correlation": [list(row) for row in plain.correlation], "rows": plain.rows}
    assert OutputsCalibration.from_state(state) == plain


def test_outputs_that_are_copies_keep_a_correlation_with_an_inverse():
    means, variances, y = normals(300, 1)
    predicted = Outputs((Gaussian(means[:, 0], variances[:, 0]),) * 2)
    found = calibrate_outputs(predicted, y.expand(-1, 2), scales=False)
    assert 0.9 < found.correlation[0][1] < 1.0
    assert found.apply(predicted).log_prob(y.expand(-1, 2)).isfinite().all()


@pytest.mark.parametrize(
    ("correlation", "each"),
    [([[1.0, 2.0], [2.0, 1.0]], ()), ([[1.0, 0.5], [0.4, 1.0]], ()), ([[1.0]], (Calibration((1.0,), (1.0,)),) * 2)],
)
def test_a_correlation_that_is_none_is_refused(correlation, each):
    with pytest.raises(InputError, match="correlation"):
        OutputsCalibration(each, tuple(map(tuple, correlation)))


def test_targets_of_another_shape_are_refused():
    means, variances, _ = normals(4, 2)
    predicted = Outputs(tuple(map(Gaussian, means.unbind(1), variances.unbind(1))))
    with pytest.raises(InputError, match="2 numbers for each of 4 rows"):
        predicted.log_prob(np.zeros(4))
    with pytest.raises(InputError, match="1 to 64 outputs"):
        OutputsLikelihood(outputs=0)
