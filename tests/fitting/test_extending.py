"""What is registered from outside reaches the estimator by its name: fits, folds, files and errors."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import deepbasis
from deepbasis import DeepBasisRegressor, GaussianMixture, InputError
from deepbasis.gp.expansion import Features
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.methods import Method
from deepbasis.gp.predictive import Predictive, gaussian_nll

SHARES, SCALES = (0.9, 0.1), (1.0, 25.0)


class Contaminated(GaussianLikelihood):
    """y ~ N(f, s), but one in ten targets ~ N(f, 25 s): a sum of two Gaussians, in closed form."""

    def log_density(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        parts = [
            math.log(share) - gaussian_nll(y, mean, var + scale * self.noise())
            for share, scale in zip(SHARES, SCALES, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts), 0)

    def predictive(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return mean, torch.stack([var + scale * self.noise() for scale in SCALES], -1)

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        means, variances = parts
        if means.dim() == 1:
            means, variances = means[None], variances[None]
        weights = torch.tensor(SHARES, dtype=torch.float64).repeat_interleave(len(means)) / len(means)
        return GaussianMixture(means.repeat(len(SHARES), 1), torch.cat(variances.unbind(-1)), weights)


class Softplus(nn.Module):
    """phi(x) = softplus(W g(x) + b) / sqrt(r)"""

    def __init__(self, h: int, rank: int, *, jitter: float = 0.0) -> None:
        super().__init__()
        self.rank, self.linear = rank, nn.Linear(h, rank)

    def forward(self, g: Tensor) -> Features:
        phi = softplus(self.linear(g)) / math.sqrt(self.rank)
        prior_var = phi.square().sum(-1)
        return Features(phi, prior_var, torch.zeros_like(prior_var), torch.zeros((), dtype=torch.int32))


class Cubes(nn.Module):
    """[x, x^3]"""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.width = 2 * d

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x**3], 1)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    deepbasis.register("likelihood", "contaminated", Contaminated)
    deepbasis.register("expansion", "softplus", Softplus)
    deepbasis.register("method", "dbk-softplus", Method("resnet", "softplus", "dppgp", corrected=False))
    deepbasis.register("embedding", "cubes", Cubes)


def small(**changes: Any) -> DeepBasisRegressor:
    settings = {"members": 4, "epochs": 80, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, **changes})


def table(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A line, and one target in ten with five times the noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=n) * np.where(rng.random(n) < 0.1, 5.0, 1.0)


ADDED = {
    "likelihood": {"likelihood": "contaminated"},
    "expansion": {"method": "dbk-softplus"},
    "embedding": {"embedding": "cubes"},
}


@pytest.mark.parametrize(
    ("added", "fraction"), [("likelihood", "auto"), ("likelihood", 0.2), ("expansion", 0.2), ("embedding", "auto")]
)
def test_it_is_fitted_saved_and_loaded_by_its_name(added: str, fraction: Any, tmp_path: Path) -> None:
    X, y = table()
    model = small(validation_fraction=fraction, **ADDED[added]).fit(X, y)
    assert model.validation_["nll"] < model.validation_["nll_constant"] - 0.05
    model.save(tmp_path / "model")
    loaded = DeepBasisRegressor.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    before, after = (one.predict_quantiles(X, [0.05, 0.5, 0.95]) for one in (model, loaded))
    np.testing.assert_array_equal(before, after)


class Biased(GaussianLikelihood):
    """y ~ N(f + 0.01, s): a distribution of its own, whose mean is not that of f."""

    def predictive(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return super().predictive(mean + 0.01, var)


@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a short training, not calibrated
def test_the_mean_is_that_of_the_likelihood() -> None:
    deepbasis.register("likelihood", "biased", Biased)
    X, y = table()
    model = small(likelihood="biased").fit(X, y)
    np.testing.assert_array_equal(model.predict(X), model.predict_dist(X).mean)


def test_a_likelihood_decides_the_distribution_of_an_ensemble() -> None:
    X, y = table()
    model = small(likelihood="contaminated").fit(X, y)
    assert model.calibration_ is None  # which is for Gaussians
    tensors = model.predict_dist(X, as_tensor=True)
    assert isinstance(tensors, GaussianMixture)
    assert len(tensors.means) == 2 * 4
    x = torch.from_numpy(model.fitted_.preprocessor.transform(X)).to(torch.float64)
    scaled = torch.from_numpy(model.fitted_.target.transform(y))
    with torch.no_grad():
        parts = [one.double().predict(x).log_prob(scaled) for one in model.fitted_.models]
    expected = torch.logsumexp(torch.stack(parts), 0) - math.log(4) - math.log(model.fitted_.target.scale)
    np.testing.assert_allclose(model.predict_dist(X).log_prob(y), expected, rtol=1e-9)


@pytest.mark.parametrize("changes", [{"objective": "mml"}, {"calibrate": True}], ids=str)
def test_what_is_for_a_gaussian_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="likelihood 'contaminated' is not Gaussian"):
        small(likelihood="contaminated", **changes).fit(*table())
