"""An expansion, an embedding and a likelihood from outside the package: a class and a registration each."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deepbasis
from deepbasis import build
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import Outcome
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from deepbasis.gp import exact
from deepbasis.gp.expansion import Features
from deepbasis.gp.likelihoods import Likelihood
from deepbasis.gp.methods import Method
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import Predictive


class Cosine(nn.Module):
    """phi(x) = sigma sqrt(2 / r) cos(W g(x) + b): random Fourier features of an RBF kernel."""

    kernel_parameters = ("log_scale",)

    def __init__(self, h: int, rank: int, *, jitter: float = 0.0) -> None:
        super().__init__()
        self.rank = rank
        self.linear = nn.Linear(h, rank)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, g: Tensor) -> Features:
        phi = self.log_scale.exp() * math.sqrt(2.0 / self.rank) * torch.cos(self.linear(g))
        prior_var = phi.square().sum(-1)
        return Features(phi, prior_var, torch.zeros_like(prior_var), torch.zeros((), dtype=torch.int32))


class Squares(nn.Module):
    """[x, x^2]"""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.width = 2 * d

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.square()], 1)


def log_laplace(y: Tensor, f: Tensor, scale: Tensor) -> Tensor:
    return -(2.0 * scale).log() - (y - f).abs() / scale


@dataclass(frozen=True)
class LaplaceOverNodes(Predictive):
    """For each row an equal mixture of Laplace distributions about f [..., n, nodes], of members if there are any."""

    f: Tensor
    scale: Tensor

    @property
    def mean(self) -> Tensor:
        return self.f.mean((0, 2)) if self.f.dim() == 3 else self.f.mean(1)

    def log_prob(self, y: Tensor) -> Tensor:
        each = log_laplace(y[:, None], self.f, self.scale[..., None])
        each = each.transpose(0, 1).flatten(1) if each.dim() == 3 else each
        return torch.logsumexp(each, 1) - math.log(each.shape[1])


class Laplace(nn.Module):
    """y = f + Laplace noise; expectations over f by its quantiles at 64 levels of equal mass."""

    target = "number"
    nodes: Tensor

    def __init__(self, noise: float = 1e-2) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.5 * math.log(noise / 2.0)))
        levels = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
        self.register_buffer("nodes", torch.special.ndtri(levels).float())

    def noise(self) -> Tensor:
        return 2.0 * (2.0 * self.log_scale).exp()

    def _at_nodes(self, mean: Tensor, var: Tensor) -> Tensor:
        return mean[:, None] + var.sqrt()[:, None] * self.nodes.to(mean.dtype)

    def log_density(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        each = log_laplace(y[:, None], self._at_nodes(mean, var), self.log_scale.exp())
        return torch.logsumexp(each, 1) - math.log(len(self.nodes))

    def expected_log_density(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return log_laplace(y[:, None], self._at_nodes(mean, var), self.log_scale.exp()).mean(1)

    def predictive(self, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        return self._at_nodes(mean, var), self.log_scale.exp().expand_as(mean)

    @staticmethod
    def distribution(*parts: Tensor) -> Predictive:
        return LaplaceOverNodes(*parts)

    @staticmethod
    def starting_noise(variance_left: float) -> float:
        return max(0.5 * variance_left, 1e-4)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    deepbasis.register("expansion", "cosine", Cosine)
    deepbasis.register("method", "cosine-features", Method("resnet", "cosine", "dppgp", corrected=False))
    deepbasis.register("embedding", "squares", Squares)
    deepbasis.register("likelihood", "laplace", Laplace)


def rows(n: int, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    noise = torch.randn(n, dtype=torch.float64, generator=generator)
    return Rows(x, torch.sin(2.0 * x[:, 0]) + x[:, 1].square() + 0.1 * noise)


DATA, VALIDATION = rows(60, 1), rows(30, 2)
MEMBERS = [Member(seed=seed, alpha=0.1, beta=0.1, noise=0.1) for seed in (3, 4)]
SETTINGS = Settings(epochs=8, batch_size=20, learning_rate=1e-2, precision="float64")
ADDED: dict[str, dict[str, object]] = {
    "expansion": {"method": "cosine-features"},
    "embedding": {"embedding": "squares"},
    "likelihood": {"likelihood": "laplace"},
    "likelihood, by the ELBO": {"method": "vbll", "likelihood": "laplace"},
}


def maker(method: str = "dbk-silu", **options: object) -> Callable[[Member], DeepBasisGP]:
    return lambda member: build(method, 2, rank=6, width=8, blocks=1, noise=member.noise, seed=member.seed, **options)


@pytest.mark.parametrize("added", ADDED)
def test_a_stacked_pair_of_members_trains_with_it(added):
    make = maker(**ADDED[added])
    settings = replace(SETTINGS, objective="elbo") if "ELBO" in added else SETTINGS
    together = train(make, MEMBERS, DATA, VALIDATION, settings)
    for member, outcome in zip(MEMBERS, together, strict=True):
        (alone,) = train(make, [member], DATA, VALIDATION, settings)
        assert outcome.status == "finished"
        assert outcome.best_score == pytest.approx(alone.best_score, rel=1e-9)
        assert outcome.history["train_loss"][-1] < outcome.history["train_loss"][0]
    ensemble = Ensemble([outcome.model(make) for outcome in together], dtype=torch.float64, chunk_rows=14)
    predicted = ensemble.predict(VALIDATION.x)
    models = [outcome.model(make).requires_grad_(False) for outcome in together]
    means = torch.stack([model.predict(VALIDATION.x).mean for model in models])
    torch.testing.assert_close(predicted.mean, means.mean(0), rtol=1e-10, atol=1e-12)
    densities = torch.stack([model.predict(VALIDATION.x).log_prob(VALIDATION.y) for model in models])
    mixed = torch.logsumexp(densities, 0) - math.log(2.0)
    torch.testing.assert_close(predicted.log_prob(VALIDATION.y), mixed, rtol=1e-9, atol=1e-12)
    for model, outcome in zip(models, together, strict=True):
        score = -model.predict(VALIDATION.x).log_prob(VALIDATION.y).mean()
        assert float(score) == pytest.approx(outcome.best_score, rel=1e-10)


def moved(outcome: Outcome, start: DeepBasisGP, name: str) -> float:
    return float((outcome.parameters[name] - start.get_parameter(name).detach().double()).abs().max())


def test_an_expansion_names_the_parameters_of_its_kernel():
    """Which then have a learning rate of their own; a first step of Adam is as long as the rate."""
    make = maker("cosine-features")
    settings = replace(SETTINGS, epochs=1, batch_size=60, kernel_learning_rate=0.3, selection="last")
    (outcome,) = train(make, MEMBERS[:1], DATA, VALIDATION, settings)
    start = make(MEMBERS[0])
    assert start.parameter_groups()["expansion.log_scale"] == "kernel"
    assert moved(outcome, start, "expansion.log_scale") == pytest.approx(0.3, rel=1e-4)
    assert moved(outcome, start, "expansion.linear.weight") == pytest.approx(1e-2, rel=1e-4)


def test_the_likelihood_is_one_and_its_noise_is_trained():
    make = maker(likelihood="laplace")
    assert isinstance(Laplace(), Likelihood)
    (outcome,) = train(make, MEMBERS[:1], DATA, VALIDATION, replace(SETTINGS, noise_learning_rate=0.1))
    assert make(MEMBERS[0]).parameter_groups()["likelihood.log_scale"] == "likelihood"
    assert len(np.unique(outcome.history["noise"])) == SETTINGS.epochs


def test_exact_training_refuses_another_likelihood():
    with pytest.raises(InputError, match="needs a Gaussian likelihood, got Laplace"):
        train(maker(likelihood="laplace"), MEMBERS, DATA, VALIDATION, replace(SETTINGS, objective="mml"))
    with pytest.raises(InputError, match="needs a Gaussian likelihood, got Laplace"):
        exact.fit_posterior(maker(likelihood="laplace")(MEMBERS[0]), lambda: [(DATA.x.float(), DATA.y.float())])


def test_the_same_name_cannot_be_registered_again():
    with pytest.raises(InputError, match="there is a likelihood named 'laplace' already"):
        deepbasis.register("likelihood", "laplace", Laplace)
