"""Numerical embeddings: each formula by hand, their gradients, members by vmap, and models with and without them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.optimiser import AdamW
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.errors import CheckpointMismatchError, InputError
from deepbasis.gp.backbone import ResNet
from deepbasis.gp.build import build
from deepbasis.gp.embedding import Fourier, Periodic, PeriodicLinear, PiecewiseLinear, quantile_edges
from deepbasis.gp.expansion import SiLU
from deepbasis.gp.posterior import WeightPosterior
from support.own import METHODS

D, H, R = 3, 8, 6
EDGES = torch.tensor([[0.0, 1.0, 3.0], [-1.0, -1.0, 2.0], [0.5, 2.5, 2.5]], dtype=torch.float64)

MAKE: dict[str, Callable[[], nn.Module]] = {
    "periodic": lambda: Periodic(D, 4, scale=0.5),
    "periodic-linear": lambda: PeriodicLinear(D, 4, 2),
    "with a flag": lambda: PeriodicLinear(D, 4, 2, flags=[1]),
    "fourier": lambda: Fourier(D, 5, lowest=0.2, highest=2.0, falloff=0.5),
    "piecewise-linear": lambda: PiecewiseLinear(EDGES),
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def inputs(n: int = 20, dtype: torch.dtype = torch.float64) -> Tensor:
    return 2.0 * torch.randn(n, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)


def column(edges: list[float], values: list[float]) -> list[list[float]]:
    """The encoding of one column."""
    embedding = PiecewiseLinear(torch.tensor([edges], dtype=torch.float64))
    return embedding(torch.tensor(values, dtype=torch.float64)[:, None]).tolist()


# --- periodic ---


def test_periodic_by_hand(dtype):
    embedding = Periodic(2, 3).to(dtype)
    x = torch.tensor([[0.25, -1.5], [3.0, 0.0]], dtype=dtype)
    c = embedding.c.tolist()
    for row, encoded in zip(x.tolist(), embedding(x).tolist(), strict=True):
        angles = [2 * math.pi * c[j][k] * row[j] for j in range(2) for k in range(3)]
        expected = [*row, *map(math.sin, angles), *map(math.cos, angles)]
        assert encoded == pytest.approx(expected, abs=1e-5 if dtype == torch.float32 else 1e-12)
    assert embedding.width == len(expected) == 14


def test_waves_of_flags_are_those_of_any_column(dtype):
    """At 0 and 1, with the same parameters; numbers come before flags. Between them they are a straight line."""
    x = torch.cat([inputs(20, dtype), inputs(20, dtype) > 0.0], 1)[:, [0, 3, 4, 1, 5, 2]]  # 1, 2 and 4 are flags
    flagged = PeriodicLinear(6, 4, 2, flags=[1, 2, 4]).to(dtype)
    plain = PeriodicLinear(6, 4, 2).to(dtype)
    plain.load_state_dict(flagged.state_dict())
    order = [0, 3, 5, 1, 2, 4]
    torch.testing.assert_close(flagged(x), plain(x[:, order]), rtol=1e-5, atol=1e-5)
    assert flagged(x[:0]).shape == (0, flagged.width)
    flags_alone = PeriodicLinear(3, flags=[0, 1, 2]).to(dtype)
    assert flags_alone(x[:, [1, 2, 4]]).shape == (20, flags_alone.width)
    half = torch.tensor([0.0, 0.5, 1.0], dtype=dtype)[:, None].expand(3, 6)
    low, middle, high = flagged(half)
    torch.testing.assert_close(middle[-6:], 0.5 * (low + high)[-6:])


@pytest.mark.parametrize("flags", [[3], [-1], [1, 1], [2, 1]], ids=str)
def test_flags_are_columns_in_ascending_order(flags):
    with pytest.raises(InputError, match="flags must be columns from 0 to 2, each once and in ascending order"):
        PeriodicLinear(3, flags=flags)


def test_frequencies_start_normal_with_their_scale():
    c = Periodic(100, 100, scale=0.3).c.detach().double() / 0.3
    assert abs(float(c.mean())) < 4 / 100
    assert abs(float(c.square().mean()) - 1) < 4 * 2**0.5 / 100
    assert abs(float(c.pow(4).mean()) - 3) < 4 * 96**0.5 / 100


def test_periodic_gradients():
    embedding = Periodic(D, 4, scale=0.5).double()

    def encode(x: Tensor, c: Tensor) -> Tensor:
        return functional_call(embedding, {"c": c}, (x,))

    assert torch.autograd.gradcheck(encode, (inputs(4).requires_grad_(), embedding.c))


@pytest.mark.parametrize("options", [{"d": 0}, {"frequencies": 0}, {"scale": 0.0}], ids=str)
def test_periodic_refuses(options):
    with pytest.raises(InputError):
        Periodic(**{"d": 2, **options})


# --- fourier ---


def test_fourier_by_hand(dtype):
    embedding = Fourier(2, 3, lowest=0.5, highest=2.0, falloff=0.5).to(dtype)
    x = torch.tensor([[0.25, -1.5], [3.0, 0.0]], dtype=dtype)
    B = embedding.B.tolist()
    sizes = [1.0, 0.5**0.5, 0.5]  # of lengths 0.5, 1 and 2
    for row, encoded in zip(x.tolist(), embedding(x).tolist(), strict=True):
        angles = [2 * math.pi * sum(B[j][k] * row[j] for j in range(2)) for k in range(3)]
        waves = [size * wave(angle) for wave in (math.sin, math.cos) for size, angle in zip(sizes, angles, strict=True)]
        assert encoded == pytest.approx([*row, *waves], abs=1e-5 if dtype == torch.float32 else 1e-7)
    assert embedding.width == len(encoded) == 8


def test_frequencies_start_in_all_directions_with_lengths_evenly_spread_on_a_logarithmic_scale():
    B = Fourier(3, 20_000, lowest=0.1, highest=30.0).B.detach().double()
    length = B.norm(dim=0)
    steps = length.log().diff()
    assert torch.allclose(length[[0, -1]], torch.tensor([0.1, 30.0], dtype=torch.float64))
    assert torch.allclose(steps, steps.mean().expand_as(steps), atol=1e-5)
    direction = B / length
    assert direction.mean(1).abs().max() < 4 / (3 * 20_000) ** 0.5
    assert torch.allclose(direction @ direction.T / 20_000, torch.eye(3, dtype=torch.float64) / 3, atol=0.01)


@every
def test_an_embedding_takes_the_precision_of_its_inputs(make):
    embedding = make().double()
    x = inputs(5, torch.float32)
    assert embedding.float()(x).dtype == torch.float32
    for name, buffer in make().double().named_buffers():  # stacked members: parameters are cast, buffers are not
        setattr(embedding, name, buffer)
    assert embedding(x).dtype == torch.float32


def test_fourier_gradients():
    embedding = Fourier(D, 4, lowest=0.2, highest=1.0, falloff=1.0).double()

    def encode(x: Tensor, B: Tensor) -> Tensor:
        return functional_call(embedding, {"B": B}, (x,))

    assert torch.autograd.gradcheck(encode, (inputs(4).requires_grad_(), embedding.B))


@pytest.mark.parametrize(
    "options",
    [{"d": 0}, {"frequencies": 0}, {"lowest": 0.0}, {"lowest": 2.0, "highest": 1.0}, {"falloff": -1.0}],
    ids=str,
)
def test_fourier_refuses(options):
    with pytest.raises(InputError):
        Fourier(**{"d": D, **options})


# --- piecewise-linear ---


def test_piecewise_linear_by_hand():
    """Within, at, below and above the edges: the outer lines go on."""
    assert column([0.0, 1.0, 3.0], [0.0, 0.5, 1.0, 2.0, 3.0]) == [[0, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 1]]
    assert column([0.0, 1.0, 3.0], [-2.0, 7.0]) == [[-2, 0], [1, 3]]
    assert column([1.0, 3.0], [-1.0, 2.0, 5.0]) == [[-1], [0.5], [2]]
    assert column([0.0, 1.0, 2.0, 4.0], [-1.0, 1.5, 6.0]) == [[-1, 0, 0], [1, 0.5, 0], [1, 1, 2]]


def test_equal_edges_give_nothing_and_their_neighbours_go_on():
    assert column([0.0, 1.0, 1.0, 3.0], [-1.0, 1.0, 2.0, 5.0]) == [[-1, 0, 0], [1, 0, 0], [1, 0, 0.5], [1, 0, 2]]
    assert column([0.0, 0.0, 0.0, 2.0, 2.0], [-1.0, 0.0, 1.0, 4.0]) == [[0, 0, t, 0] for t in (-0.5, 0, 0.5, 2)]
    assert column([2.0, 2.0, 2.0], [-1.0, 2.0, 5.0]) == [[0, 0]] * 3


def test_columns_stand_one_after_another():
    whole = PiecewiseLinear(EDGES)
    x = inputs()
    parts = [PiecewiseLinear(EDGES[j : j + 1])(x[:, j : j + 1]) for j in range(D)]
    assert torch.equal(whole(x), torch.cat(parts, 1))
    assert whole.width == whole(x).shape[1] == 6


def test_piecewise_linear_gradients():
    """Also where edges are equal, and at the edges themselves, where it is finite."""
    embedding = PiecewiseLinear(EDGES)
    assert torch.autograd.gradcheck(embedding, inputs(8).requires_grad_())
    edges = EDGES.T.clone().requires_grad_()
    embedding(edges).sum().backward()
    assert bool(edges.grad.isfinite().all())


def test_edges_are_not_trained_and_are_saved():
    embedding = PiecewiseLinear(EDGES)
    assert list(embedding.parameters()) == []
    assert torch.equal(embedding.state_dict()["edges"], EDGES)


def test_edges_of_another_precision_leave_the_inputs_precision():
    assert PiecewiseLinear(EDGES)(inputs(dtype=torch.float32)).dtype == torch.float32


def test_edges_that_meet_in_the_inputs_precision_are_equal():
    embedding = PiecewiseLinear(torch.tensor([[0.0, 1.0, 1.0 + 1e-12]], dtype=torch.float64))
    assert embedding(torch.tensor([[3.0]])).tolist() == [[3.0, 0.0]]


@pytest.mark.parametrize("edges", [torch.zeros(3, 1), torch.tensor([[0.0, 2.0, 1.0]]), EDGES / 0.0])
def test_piecewise_linear_refuses(edges):
    with pytest.raises(InputError, match="edges"):
        PiecewiseLinear(edges)


# --- edges from data ---


def test_quantile_edges_hold_equally_many_rows():
    x = torch.randn(1001, 2).exp()
    edges = quantile_edges(x, 8)
    assert edges.shape == (2, 9)
    assert torch.equal(edges[:, 0], x.amin(0))
    assert torch.equal(edges[:, -1], x.amax(0))
    for j in range(2):
        counts = torch.histc(torch.bucketize(x[:, j].contiguous(), edges[j, 1:-1]).float(), 8, 0, 7)
        assert float((counts - 1001 / 8).abs().max()) <= 1.5


def test_quantile_edges_are_quantiles():
    x = torch.randperm(101)[:, None].double()
    assert quantile_edges(x, 4).tolist() == [[0, 25, 50, 75, 100]]


def test_ties_give_equal_edges_and_a_finite_encoding():
    """Zeros and ones; one value; two that float32 hardly tells apart beside a third; more bins than rows."""
    near = torch.tensor([0.0, 1e-7, 1.0]).repeat_interleave(20)
    x = torch.stack([torch.arange(60.0) % 2, torch.full((60,), 3.0), near], 1)
    edges = quantile_edges(x, 6)
    assert edges[0].tolist() == [0, 0, 0, 1, 1, 1, 1] or edges[0].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert edges[1].tolist() == [3.0] * 7
    assert set(edges[2].tolist()) == {0.0, 1.0}
    x.requires_grad_()
    encoded = PiecewiseLinear(edges)(x)
    encoded.sum().backward()
    for values in (encoded, x.grad):
        assert float(values.detach().abs().max()) <= 1.0
    # A column of two values is itself, in one of its bins.
    assert torch.equal(encoded[:, :6].sum(1), x[:, 0])
    assert quantile_edges(torch.tensor([[1.0], [2.0]]), 4).unique().tolist() == [1.0, 2.0]


def test_quantile_edges_leave_the_rows_as_they_were():
    x = inputs()
    before = x.clone()
    quantile_edges(x, 3)
    assert torch.equal(x, before)


# --- as members, and compiled ---


@every
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_equals_separate(make, shared, dtype):
    made = [make().to(dtype) for _ in range(3)]
    x = inputs(30, dtype).view(3, 10, D)
    state = {**stack_module_state(made)[0], **stack_module_state(made)[1]}
    together = vmap(lambda s, x: functional_call(made[0], s, (x,)), in_dims=(0, None if shared else 0))(
        state, x[0] if shared else x
    )
    rounding = 100 * torch.finfo(dtype).eps  # of phases of up to some hundred
    for k, module in enumerate(made):
        assert torch.allclose(together[k], module(x[0 if shared else k]), rtol=rounding, atol=rounding)


@pytest.mark.compiled
@every
def test_compiled_as_one_graph(make):
    embedding = make().double()
    compiled = torch.compile(embedding, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(inputs()), embedding(inputs()), rtol=1e-12, atol=0.0)


# --- in a backbone and a model ---


@every
def test_the_backbone_projects_what_is_embedded(make):
    embedding = make()
    net = ResNet(D, H, embedding=embedding).double()
    plain = ResNet(embedding.width, H).double()
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if not k.startswith("embedding.")})
    assert torch.equal(net(inputs()), plain(embedding.double()(inputs())))


def test_without_an_embedding_the_names_are_as_they_were():
    names = {name.partition(".")[0] for name in ResNet(D, H).state_dict()}
    assert names == {"project", "blocks", "norm"}


@pytest.mark.parametrize("seed", [0, 7])
def test_by_default_the_parameters_are_those_of_earlier_releases(seed):
    """Torch's own layers, made in the order in which they always were."""
    torch.manual_seed(seed)
    layers = [nn.Linear(D, H), *(nn.Linear(H, H) for _ in range(4))]
    expansion, posterior = SiLU(H, R), WeightPosterior(R)
    for options in ({}, {"inner": None, "embedding": None}, {"inner": H, "embedding": "none"}):
        model = build("dbk-silu", D, rank=R, width=H, seed=seed, **options)
        net = model.backbone
        mine = [net.project, *(layer for block in net.blocks for layer in (block.widen, block.narrow))]
        for a, b in zip((*mine, model.expansion, model.posterior), (*layers, expansion, posterior), strict=True):
            for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
                assert torch.equal(p, q), name


def test_inner_is_the_width_inside_a_block():
    model = build("dbk-silu", D, rank=R, width=H, inner=5, seed=0)
    assert [tuple(block.widen.weight.shape) for block in model.backbone.blocks] == [(5, H)] * 2
    assert [tuple(block.narrow.weight.shape) for block in model.backbone.blocks] == [(H, 5)] * 2


def test_a_named_embedding_and_one_that_is_made_depend_on_the_seed():
    for embedding in ("periodic", "fourier", lambda: Periodic(D, 5, scale=2.0)):
        models = [build("dbk-silu", D, rank=R, width=H, seed=s, embedding=embedding) for s in (1, 1, 2)]
        states = [model.state_dict() for model in models]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        name = "backbone.embedding." + ("B" if embedding == "fourier" else "c")
        assert not torch.equal(states[0][name], states[2][name])


def test_a_ready_embedding_is_copied():
    ready = Periodic(D).double()
    before = ready.c.detach().clone()
    first, second = (build("dbk-silu", D, rank=R, width=H, seed=0, embedding=ready) for _ in range(2))
    assert first.backbone.embedding.c.dtype == torch.float32
    with torch.no_grad():
        first.backbone.embedding.c.zero_()
    assert torch.equal(second.backbone.embedding.c, before.float())
    assert torch.equal(ready.c, before)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"embedding": "waves"}, "embedding"),
        ({"embedding": PiecewiseLinear(EDGES[:2])}, "for 2 columns, the inputs have 3"),
        ({"embedding": nn.Linear(D, 4)}, "width"),
        ({"embedding": "periodic", "method": "sv-rbf"}, "sv-rbf"),
        ({"inner": 0}, "inner"),
    ],
)
def test_build_refuses(options, says):
    with pytest.raises(InputError, match=says):
        build(**{"method": "dbk-silu", "d": D, "width": H, "rank": R, **options})


# --- in training ---


def problem(n: int, seed: int) -> Rows:
    x = torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Rows(x, torch.sin(6.0 * x[:, 0]) + 0.1 * x[:, 1])


def building(embedding: object, method: str = "dbk-silu") -> Callable[[Member], nn.Module]:
    return lambda member: build(method, D, rank=R, width=H, blocks=1, seed=member.seed, embedding=embedding)


DATA, VALIDATION = problem(60, 1), problem(40, 2)
SETTINGS = Settings(epochs=3, batch_size=16, learning_rate=1e-2, precision="float64")
EMBEDDINGS = {
    "periodic": "periodic",
    "piecewise-linear": PiecewiseLinear(quantile_edges(DATA.x, 5)),
}


@pytest.mark.parametrize("precision", ["float64", "bf16"])
@pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_members_train_alone_as_among_others(embedding, precision):
    settings = Settings(epochs=3, batch_size=16, learning_rate=1e-2, precision=precision)
    members = [Member(seed=s) for s in (3, 4, 5)]
    make = building(embedding)
    together = train(make, members, DATA, VALIDATION, settings)
    for member, outcome in zip(members, together, strict=True):
        (alone,) = train(make, [member], DATA, VALIDATION, settings)
        assert (outcome.status, outcome.best_epoch) == ("finished", alone.best_epoch)
        tolerance = {"float64": 1e-10, "bf16": 0.05}[precision]
        assert outcome.best_score == pytest.approx(alone.best_score, rel=tolerance, abs=tolerance)
    # A member's model is found again with its embedding, and so is the ensemble's prediction.
    models = [outcome.model(make) for outcome in together]
    x = VALIDATION.x[:7]
    means = Ensemble(models, dtype=settings.dtype).predict(x).mean
    apart = [model(x.to(settings.dtype)).mean.double() for model in models]
    assert torch.allclose(means.double(), torch.stack(apart).mean(0), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].backbone == "resnet"])
def test_frequencies_are_trained_by_every_method(method):
    objective = METHODS[method].objective
    settings = Settings(objective=objective, epochs=2, batch_size=16, precision="float64")
    make = building("periodic", method)
    (outcome,) = train(make, [Member(seed=3)], DATA, VALIDATION, settings)
    before = make(Member(seed=3)).backbone.embedding.c.detach().double()
    assert float((outcome.parameters["backbone.embedding.c"] - before).abs().min()) > 0.0


def test_frequencies_do_not_decay():
    """Without a gradient's pull only decay moves a parameter."""
    model = building("periodic")(Member(seed=3)).double()
    leaves = dict(model.named_parameters())
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.grad = torch.zeros_like(leaf)
    AdamW(leaves, model.parameter_groups(), learning_rate=0.1, weight_decay=0.5).step()
    assert torch.equal(leaves["backbone.embedding.c"], before["backbone.embedding.c"])
    assert torch.allclose(leaves["backbone.project.weight"], 0.95 * before["backbone.project.weight"])


def test_a_registered_piecewise_linear_embedding_starts_at_the_rows():
    model = building("piecewise-linear")(Member(seed=3))
    model.start_at(DATA.x.float(), torch.Generator())
    embedding = model.backbone.embedding
    assert torch.equal(embedding.edges, quantile_edges(DATA.x.float(), 16))
    assert embedding.width == 16 * D


def test_the_checkpoint_of_other_edges_is_refused(tmp_path):
    path = tmp_path / "run"
    edges = quantile_edges(DATA.x, 4)
    arguments = ([Member(seed=3)], DATA, VALIDATION, SETTINGS)
    train(building(PiecewiseLinear(edges)), *arguments, checkpoint=path)
    train(building(PiecewiseLinear(edges)), *arguments, checkpoint=path)
    with pytest.raises(CheckpointMismatchError, match=r"backbone\.embedding\.edges"):
        train(building(PiecewiseLinear(edges + 0.5)), *arguments, checkpoint=path)
