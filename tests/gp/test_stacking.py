"""Rule 1 of the house: plain modules become members by stacking and vmap, and nothing else changes.

The tests marked `compiled` run without shape checks: DEEPBASIS_CHECK_SHAPES=0 pytest tests/gp/test_stacking.py
"""

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils._pytree import tree_leaves

from deepbasis.gp.backbone import Identity, ResNet
from deepbasis.gp.build import build
from deepbasis.gp.expansion import RBF, PassThrough, SiLU
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from support.own import METHODS, OBJECTIVES

MEMBERS, B, D, R, H = 3, 12, 3, 6, 5
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10}  # a factorised kernel: 3e-5 on some processors
Parameters = dict[str, Tensor]

PARTS: dict[str, Callable[[], nn.Module]] = {
    "ResNet": lambda: ResNet(D, H),
    "ResNet, wide blocks": lambda: ResNet(D, H, blocks=1, inner=2 * H),
    "Identity": lambda: Identity(D),
    "SiLU": lambda: SiLU(D, R),
    "RBF": lambda: RBF(D, R),
    "PassThrough": lambda: PassThrough(D),
    "WeightPosterior": lambda: WeightPosterior(D),
    "PointWeights": lambda: PointWeights(D),
    **{name: lambda name=name: build(name, D, rank=R, width=H) for name in METHODS},
}


class Noise(nn.Module):
    """What a likelihood's noise is, as a module's output."""

    def __init__(self, parameterisation: str) -> None:
        super().__init__()
        self.likelihood = GaussianLikelihood(parameterisation=parameterisation)

    def forward(self) -> Tensor:
        return self.likelihood.noise()


NOISES = {name: lambda name=name: Noise(name) for name in ("log", "clamp")}
methods = pytest.mark.parametrize("method", list(METHODS))


def members(make: Callable[[], nn.Module], dtype: torch.dtype) -> list[nn.Module]:
    """Modules that differ in every parameter, also in those that all start alike."""
    made = [make().to(dtype) for _ in range(MEMBERS)]
    with torch.no_grad():
        for module in made:
            for parameter in module.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
            if isinstance(module, Noise) and module.likelihood.parameterisation == "clamp":
                module.likelihood.raw.abs_().add_(0.01)
    return made


def inputs(dtype: torch.dtype) -> Tensor:
    """A batch for each member."""
    return torch.randn(MEMBERS, B, D, generator=torch.Generator().manual_seed(1)).to(dtype)


def stacked(modules: list[nn.Module]) -> tuple[Parameters, Callable[..., object]]:
    parameters, buffers = stack_module_state(modules)
    assert buffers == {}
    skeleton = copy.deepcopy(modules[0])
    return parameters, lambda member, *args: functional_call(skeleton, member, args)


class Loss(nn.Module):
    """A method's objective as a function of a model's parameters."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.objective = model, OBJECTIVES[METHODS[method].objective]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        n, alpha, beta = (torch.tensor(v, dtype=x.dtype) for v in (100.0, 0.3, 0.5))
        return self.objective(self.model, x, y, n, alpha, beta, None)


def project(output: object) -> Tensor:
    """A scalar that depends on every number of the output, each in its own way."""
    leaves = [leaf for leaf in tree_leaves(output) if leaf.is_floating_point()]
    return sum((leaf * torch.arange(1, leaf.numel() + 1).view(leaf.shape).cos()).sum() for leaf in leaves)


def assert_same(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Within the tolerance, relative to the tensor's largest entry; integers exactly."""
    if not expected.is_floating_point():
        assert torch.equal(actual, expected), what
        return
    size = max(1.0, float(expected.detach().abs().max()))
    tolerance = TOLERANCE[expected.dtype] * size
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance, msg=lambda m: f"{what}: {m}")


def gradients_of(value: Tensor, parameters: Parameters) -> Parameters:
    leaves = list(parameters.values())
    gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, gradients, strict=True))


def assert_values_and_gradients_agree(modules: list[nn.Module], *arguments: Tensor) -> None:
    """The stack under vmap against each member alone, with its own arguments."""
    parameters, call = stacked(modules)
    together = tree_leaves(vmap(call)(parameters, *arguments))
    gradients = vmap(grad(lambda member, *args: project(call(member, *args))))(parameters, *arguments)
    for i, module in enumerate(modules):
        alone = module(*(argument[i] for argument in arguments))
        for k, (mine, theirs) in enumerate(zip(together, tree_leaves(alone), strict=True)):
            assert_same(mine[i], theirs, f"member {i}, output {k}")
        if parameters:
            for name, expected in gradients_of(project(alone), dict(module.named_parameters())).items():
                assert_same(gradients[name][i], expected, f"member {i}, gradient of {name}")


@pytest.mark.parametrize("part", list(PARTS))
def test_stack_equals_members_one_by_one(part, dtype):
    assert_values_and_gradients_agree(members(PARTS[part], dtype), inputs(dtype))


@pytest.mark.parametrize("noise", list(NOISES))
def test_stacked_noise_equals_members_one_by_one(noise, dtype):
    assert_values_and_gradients_agree(members(NOISES[noise], dtype))


@methods
def test_members_are_told_apart(method, dtype):
    """That the tests above can fail: every parameter differs between members, and so do their predictions."""
    modules = members(PARTS[method], dtype)
    parameters, call = stacked(modules)
    assert all(bool((p[0] != p[1]).any()) for p in parameters.values())
    means = vmap(call, in_dims=(0, None))(parameters, inputs(dtype)[0]).mean
    assert bool((means[0] != means[1]).all())


# --- objectives ---


def objective_of(method: str, model: nn.Module) -> Callable[[Parameters, Tensor, Tensor], Tensor]:
    """As a function of the parameters that `model` is to have."""
    loss = Loss(copy.deepcopy(model), method)
    return lambda member, x, y: functional_call(loss, {f"model.{k}": v for k, v in member.items()}, (x, y))


def batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Shared by all members."""
    return inputs(dtype)[0], torch.randn(B, generator=torch.Generator().manual_seed(2)).to(dtype)


@methods
def test_objectives_of_a_stack_equal_those_of_its_members(method, dtype):
    modules = members(PARTS[method], dtype)
    parameters, _ = stacked(modules)
    loss, (x, y) = objective_of(method, modules[0]), batch(dtype)
    values = vmap(loss, in_dims=(0, None, None))(parameters, x, y)
    gradients = gradients_of(values, parameters)
    for i, module in enumerate(modules):
        alone = Loss(module, method)(x, y)
        assert_same(values[i], alone, f"member {i}")
        for name, expected in gradients_of(alone, dict(module.named_parameters())).items():
            assert_same(gradients[name][i], expected, f"member {i}, gradient of {name}")


# --- a member that fails ---


def model_with(expansion: RBF) -> DeepBasisGP:
    return DeepBasisGP(Identity(D), expansion, WeightPosterior(expansion.rank), GaussianLikelihood())


def with_one_failure(how: str, dtype: torch.dtype) -> list[nn.Module]:
    """Member 1 cannot be factorised: of two equal inducing points without jitter, the second pivot is 0."""
    modules = members(lambda: model_with(RBF(D, 2, jitter=0.0 if how == "duplicates" else 1e-4)), dtype)
    with torch.no_grad():
        modules[1].expansion.Z[0] = math.nan if how == "nan" else modules[1].expansion.Z[1].clone()
    return modules


@pytest.mark.parametrize("how", ["nan", "duplicates"])
def test_a_member_that_fails_fails_alone(how, dtype):
    modules = with_one_failure(how, dtype)
    parameters, call = stacked(modules)
    loss, (x, y) = objective_of("sv-rbf", modules[0]), batch(dtype)
    terms = vmap(call, in_dims=(0, None))(parameters, x)
    values = vmap(loss, in_dims=(0, None, None))(parameters, x, y)
    gradients = gradients_of(values, parameters)
    assert [int(i) > 0 for i in terms.info] == [False, True, False]
    assert bool(terms.mean[1].isnan().all())
    for i in (0, 2):
        alone = modules[i](x)
        for mine, theirs in zip(terms, alone, strict=True):
            assert_same(mine[i], theirs, f"member {i}")
        loss_alone = Loss(modules[i], "sv-rbf")(x, y)
        for name, expected in gradients_of(loss_alone, dict(modules[i].named_parameters())).items():
            assert bool(torch.isfinite(gradients[name][i]).all())
            assert_same(gradients[name][i], expected, f"member {i}, gradient of {name}")


# --- compiled ---


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(test: Callable[..., None]) -> Callable[..., None]:
    for by_torch_itself in (
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
        "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
    ):
        test = pytest.mark.filterwarnings(by_torch_itself)(test)
    return pytest.mark.compiled(pytest.mark.usefixtures("fresh_compiler")(test))


def small_members(method: str, dtype: torch.dtype) -> list[nn.Module]:
    return members(lambda: build(method, D, rank=R, width=H, blocks=1), dtype)


@compiled
@pytest.mark.parametrize(
    ("method", "backend", "dtype"),
    [
        *((name, "aot_eager", torch.float64) for name in METHODS),
        ("dbk-rbf", "inductor", torch.float32),  # dbk-silu: a whole run, engine/test_compilation.py
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_compiled_stack_equals_eager(method, backend, dtype):
    """Forward and objective in one full graph, and the gradient of the objective through it."""
    modules = small_members(method, dtype)
    (parameters, call), loss = stacked(modules), objective_of(method, modules[0])
    run = vmap(lambda member, x, y: (loss(member, x, y), call(member, x)), in_dims=(0, None, None))
    x, y = batch(dtype)
    values, terms = torch.compile(run, fullgraph=True, backend=backend)(parameters, x, y)
    eager_values, eager_terms = run(parameters, x, y)
    assert_same(values, eager_values, "loss")
    for name, mine, theirs in zip(terms._fields, terms, eager_terms, strict=True):
        assert_same(mine, theirs, name)
    mine, theirs = gradients_of(values, parameters), gradients_of(eager_values, parameters)
    for name in parameters:
        assert_same(mine[name], theirs[name], f"gradient of {name}")


@compiled
def test_compiled_functional_gradient_equals_eager():
    modules = small_members("dbk-rbf", torch.float64)
    parameters, _ = stacked(modules)
    run = vmap(grad(objective_of("dbk-rbf", modules[0])), in_dims=(0, None, None))
    x, y = batch(torch.float64)
    mine, theirs = torch.compile(run, fullgraph=True, backend="aot_eager")(parameters, x, y), run(parameters, x, y)
    for name in parameters:
        assert_same(mine[name], theirs[name], f"gradient of {name}")


@compiled
def test_a_compiled_member_that_fails_fails_alone():
    modules = with_one_failure("nan", torch.float64)
    parameters, call = stacked(modules)
    x, _ = batch(torch.float64)
    terms = torch.compile(vmap(call, in_dims=(0, None)), fullgraph=True, backend="aot_eager")(parameters, x)
    assert [int(i) > 0 for i in terms.info] == [False, True, False]
    assert bool(terms.mean[1].isnan().all())
    for i in (0, 2):
        assert_same(terms.mean[i], modules[i](x).mean, f"member {i}")
