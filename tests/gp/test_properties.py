"""Whatever the scales, duplicates and distances: no prediction is NaN, and none is more certain than the noise."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepbasis.gp.build import build
from deepbasis.gp.exact import fit_posterior
from deepbasis.gp.expansion import RBF
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from support.own import METHODS, OBJECTIVES, OUTLOOK

D, R, H = 3, 8, 8
ROWS = 1000
"""Predictions of one model at one stage."""
FEW, MANY = 1, 40
"""Examples beside the extreme ones."""
LEAST_TOTAL = 100_000
"""Predictions to be checked in all, over the methods and both dtypes."""

CASES = [
    *((method, torch.float32) for method in METHODS if method != "dnn"),
    *((method, torch.float64) for method in METHODS if method != "dnn" and method not in OUTLOOK),
]


@dataclass(frozen=True)
class World:
    """A data set, where the inducing points lie in it, and how far out is asked."""

    seed: int
    n: int
    column_scales: tuple[float, float, float]
    """Powers of ten, as the two below."""
    y_scale: float
    distance: float
    duplicate_rows: bool
    inducing: str
    """"start", "at rows", "at duplicates" (half of them in one place) or "one place"."""
    noise_parameterisation: str

    def normal(self, n: int, *shape: int, stream: int) -> Tensor:
        return torch.randn(n, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(self.seed + stream))

    @property
    def scales(self) -> Tensor:
        return 10.0 ** torch.tensor(self.column_scales, dtype=torch.float64)

    def train(self) -> tuple[Tensor, Tensor]:
        x, y = self.normal(self.n, D, stream=0) * self.scales, self.normal(self.n, stream=1) * 10.0**self.y_scale
        if self.duplicate_rows:  # the same inputs, other targets
            x[self.n // 2 :] = x[0]
        return x, y

    def questions(self, x: Tensor) -> Tensor:
        """The training rows, rows between and around them, rows far out, the origin."""
        around = self.normal(ROWS // 2, D, stream=2) * self.scales
        out = self.normal(ROWS, D, stream=3) * self.scales * 10.0**self.distance
        return torch.cat([x, torch.zeros(1, D, dtype=torch.float64), around, out])[:ROWS]


powers = st.floats(-6.0, 6.0)
worlds = st.builds(
    World,
    seed=st.integers(0, 10**6),
    n=st.integers(1, 40),
    column_scales=st.one_of(st.tuples(powers, powers, powers), powers.map(lambda p: (p, p, p))),
    y_scale=powers,
    distance=st.floats(0.0, 6.0),
    duplicate_rows=st.booleans(),
    inducing=st.sampled_from(["start", "at rows", "at duplicates", "one place"]),
    noise_parameterisation=st.sampled_from(["log", "clamp"]),
)
EXTREME = [
    World(0, 40, (6.0, 6.0, 6.0), 6.0, 6.0, True, "at duplicates", "log"),
    World(1, 40, (6.0, 6.0, 6.0), 6.0, 0.0, False, "at rows", "clamp"),
    World(2, 40, (-6.0, -6.0, -6.0), -6.0, 6.0, True, "at rows", "log"),
    World(3, 1, (6.0, -6.0, 0.0), 6.0, 6.0, False, "one place", "clamp"),
    # found by search: distances between inducing points that cancel make K_ZZ indefinite beyond its jitter
    World(21, 16, (6.0, 0.0, 0.0), 0.0, 0.0, False, "at duplicates", "clamp"),
    World(19, 21, (6.0, 0.0, 0.0), 0.0, 0.0, False, "at duplicates", "clamp"),
]


def move_inducing_points(model: DeepBasisGP, x: Tensor, world: World) -> None:
    """To the backbone's outputs at the (scaled) rows, which for the shallow kernel are the rows themselves."""
    if not isinstance(model.expansion, RBF) or world.inducing == "start":
        return
    with torch.no_grad():
        g = model.backbone(x)
        Z = g[torch.arange(R) % len(g)].clone()
        if world.inducing != "at rows":
            Z[: R if world.inducing == "one place" else R // 2] = g[0]
        model.expansion.Z.copy_(Z)


def take_steps(model: DeepBasisGP, method: str, x: Tensor, y: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    n, alpha, beta = (torch.tensor(v, dtype=x.dtype) for v in (float(len(x)), 0.1, 1.0))
    for _ in range(4):
        optimiser.zero_grad()
        OBJECTIVES[METHODS[method].objective](model, x, y, n, alpha, beta, None).backward()
        optimiser.step()


@torch.no_grad()
def check_predictions(model: DeepBasisGP, method: str, x: Tensor, stage: str) -> int:
    terms = model(x)
    p = model.predict(x)
    assert bool(torch.isfinite(p.mean).all()), stage
    assert bool(torch.isfinite(p.variance).all()), stage
    assert bool((p.variance >= model.noise()).all()), stage
    assert bool((terms.var >= 0).all()), stage
    assert bool((terms.correction >= 0).all()), stage
    assert bool(torch.isfinite(p.crps(p.mean)).all()), stage
    return len(p.mean)


def check_world(method: str, dtype: torch.dtype, world: World) -> int:
    """Predict at the start, after a few steps and with the exact posterior; the number of predictions."""
    x, y = (t.to(dtype) for t in world.train())
    questions = world.questions(x.double()).to(dtype)
    likelihood = partial(GaussianLikelihood, parameterisation=world.noise_parameterisation)
    model = build(method, D, rank=R, width=H, seed=world.seed, likelihood=likelihood).to(dtype)
    move_inducing_points(model, x, world)
    rows = check_predictions(model, method, questions, "start")
    take_steps(model, method, x, y)
    rows += check_predictions(model, method, questions, "trained")
    fit_posterior(model, lambda: [(x, y)])
    with torch.no_grad():
        terms = model(questions)
    tiny = torch.finfo(dtype).tiny  # below it there are no digits
    assert bool((terms.var <= terms.prior_var * (1 + 1e-4) + tiny).all()), "data made it less certain than the prior"
    return rows + check_predictions(model, method, questions, "exact")


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch."))
def test_no_prediction_is_nan_or_more_certain_than_the_noise(method, dtype, examples):
    rows = 0

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(world=worlds)
    def check(world: World) -> None:
        nonlocal rows
        rows += check_world(method, dtype, world)

    for world in EXTREME:
        check = example(world=world)(check)
    check()
    assert rows * len(CASES) >= LEAST_TOTAL
