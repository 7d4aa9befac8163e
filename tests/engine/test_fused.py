"""The fused kernels against the plain steps: on a GPU, or without one in Triton's interpreter, at small sizes."""

import logging
from dataclasses import replace

import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import FAILED
from deepbasis.engine.fused.arena import why_not
from deepbasis.engine.fused.machine import available, interpreted
from deepbasis.engine.fused.ways import ManyTiling, Products, Shares, Tiling
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.settings import Settings, settings_for
from deepbasis.engine.training import train
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build
from deepbasis.gp.embedding import PeriodicLinear
from deepbasis.gp.expansion import JITTER, SiLU
from deepbasis.gp.model import DeepBasisGP

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
pytestmark = pytest.mark.skipif(
    not (GPU or (interpreted() and available())),
    reason="needs a GPU, or Triton's interpreter from the start: `make test-kernels`",
)


def rows(n: int, d: int, weights: str = "none", members: int = 1) -> Rows:
    generator = torch.Generator().manual_seed(n + d)
    x = torch.randn(n, d, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator)
    weight = None
    if weights == "rows":
        weight = torch.rand(n, generator=generator) + 0.5
    if weights == "members":
        weight = (torch.rand(members, n, generator=generator) > 0.3).float()
    return Rows(x, y, weight)


def wave(
    data: Rows,
    *,
    fused: bool,
    members: int = 2,
    width: int = 16,
    inner: int = 32,
    rank: int = 16,
    blocks: int = 2,
    waves: bool = False,
    slope: bool = False,
    alpha: float = 0.1,
    device: torch.device = DEVICE,
    tiling: Tiling | ManyTiling | None = None,
    method: str = "dbk-silu",
    jitter: float = JITTER,
    **changes: object,
) -> Wave:
    d = data.x.shape[1]

    def make(member: Member) -> DeepBasisGP:
        embedding = (lambda: PeriodicLinear(d)) if waves else None
        shape = {"width": width, "inner": inner, "rank": rank, "blocks": blocks, "jitter": jitter}
        return build(method, d, **shape, embedding=embedding, noise=0.1, slope=member.slope, seed=member.seed)

    line = (0.1,) * d if slope else ()
    team = [Member(seed=k, alpha=alpha * k, beta=1.0, noise=0.1, slope=line) for k in range(members)]
    settings = settings_for(method, **{"epochs": 3, "batch_size": 32, "learning_rate": 1e-2, **changes})
    settings = replace(settings, fused=fused, cuda_graph=False)
    one = Wave(make, list(range(members)), team, data, data, settings, device)
    if tiling is not None:
        assert one.fused is not None
        one.fused.tile(tiling)
    return one


def gradients(one: Wave) -> dict[str, torch.Tensor]:
    """Of the first batch, before anything is clipped, each with the member axis in front."""
    one.source.start_epoch(0)
    one.source.advance()
    if one.fused is None:
        one.steps.loss().backward()
        return {name: one.stack.with_axis(leaf.grad) for name, leaf in one.stack.leaves.items()}
    one.step()
    arena = one.fused.gradients
    place = one.fused.layout.places
    stacked = one.stack.stacked()
    return {
        name: arena[:, place[name] : place[name] + leaf[0].numel()].reshape(leaf.shape)
        for name, leaf in stacked.items()
    }


MANY = ManyTiling(32, 4)
WAYS = {
    "few": {},
    "many": {"tiling": MANY},
    "slices": {"tiling": ManyTiling(32, 4, slices=2)},
    "rbf": {"tiling": MANY, "method": "dbk-rbf"},
}

CASES = {
    "one member": {"members": 1},
    "three members, three blocks": {"members": 3, "blocks": 3},
    "wide inside": {"inner": 128, "rank": 32},
    "narrow inside": {"width": 32, "inner": 16},
    "waves of eleven columns": {"waves": True, "columns": 11},
    "waves of one column": {"waves": True, "columns": 1},
    "a line": {"slope": True, "columns": 20},
    "weights": {"weights": "rows"},
    "rows of each member": {"weights": "members"},
    "one batch": {"n": 30},
    "one batch, rows of each member": {"n": 30, "weights": "members"},
    "no trace": {"alpha": 0.0},
    "detached": {"objective": "dppgp-detached"},
    "ppgp": {"objective": "ppgp"},
    "elbo": {"objective": "elbo"},
    "a lower batch than a tile": {"n": 9},
}
RBF_CASES = {name: case for name, case in CASES.items() if not (case.get("waves") or "width" in case)}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_gradients_are_those_of_autograd(case):
    """By both ways, that of a few members and that of many."""
    case = {"columns": 5, "n": 70, "weights": "none", **case}
    data = rows(case.pop("n"), case.pop("columns"), case.pop("weights"), case.get("members", 2))
    expected = gradients(wave(data, fused=False, precision="float64", device=torch.device("cpu"), **case))
    for tiling in (None, MANY):
        if tiling is MANY and case.get("waves", False):
            continue  # of a few members alone
        mine = wave(data, fused=True, tiling=tiling, **case)
        assert mine.fused is not None
        for name, found in gradients(mine).items():
            torch.testing.assert_close(found.double().cpu(), expected[name], rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("case", RBF_CASES.values(), ids=list(RBF_CASES))
def test_gradients_of_an_rbf_basis_are_those_of_autograd(case):
    """Of one and of two parts. The whitening divides by as little as the root of the jitter, 0.01, and what reaches the
    kernel's own parameters cancels: theirs are the larger errors, in the plain way as well."""
    case = {"columns": 5, "n": 70, "weights": "none", **case}
    data = rows(case.pop("n"), case.pop("columns"), case.pop("weights"), case.get("members", 2))
    for rank in (16, 32):
        case |= {"rank": rank, "method": "dbk-rbf"}
        expected = gradients(wave(data, fused=False, precision="float64", device=torch.device("cpu"), **case))
        mine = wave(data, fused=True, tiling=MANY, **case)
        assert isinstance(mine.fused.way, Products)
        for name, found in gradients(mine).items():
            error, size = (found.double().cpu() - expected[name]).norm(), expected[name].norm()
            assert error < (2e-5 if name.startswith("expansion") else 1e-5) * size + 2e-6, (name, error, size)


@pytest.mark.parametrize("weights", ["rows", "members"])
def test_rows_may_have_any_strides(weights):
    """Columns that lie one behind the other, a target and weights that are columns of something else."""
    data = rows(70, 5, weights, members=2)
    data.weight.clamp_min_(0.1)  # a row of weight 0 would be left out, and the others copied

    def spread_out(values):
        return torch.stack([values, 100.0 * values], -1)[..., 0]

    strided = Rows(data.x.T.contiguous().T, spread_out(data.y), spread_out(data.weight))
    assert not any(values.is_contiguous() for values in (strided.x, strided.y, strided.weight))
    expected = gradients(wave(data, fused=True))
    for name, found in gradients(wave(strided, fused=True)).items():
        assert torch.equal(found, expected[name]), name


TILINGS = [
    Tiling(16, 1, 4),
    Tiling(16, 3, 4),
    Tiling(32, 1, 8),
    Tiling(64, 2, 8),
    ManyTiling(16, 4),
    ManyTiling(64, 4, 32),
    ManyTiling(16, 4, slices=3),
    ManyTiling(32, 4, slices=4),
    ManyTiling(128, 8),
]


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_every_tiling_gives_the_same(tiling):
    data = rows(70, 5)
    expected = gradients(wave(data, fused=False, precision="float64", device=torch.device("cpu")))
    one = wave(data, fused=True, tiling=tiling)
    for name, found in gradients(one).items():
        torch.testing.assert_close(found.double().cpu(), expected[name], rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("members", "way", "clip"),
    [
        *((1, "few", 0.5), (2, "few", 0.5), (2, "few", None)),
        *((1, "many", 0.5), (2, "many", 0.5), (2, "many", None)),
        *((1, "slices", 0.5), (2, "slices", None)),
        *((1, "rbf", 0.5), (2, "rbf", None)),
    ],
)
def test_steps_are_those_of_the_plain_way(optimiser, members, way, clip):
    """Parameters, moments, momentum, average and the epoch's loss, after an epoch of scheduled steps."""
    how = {"optimiser": optimiser, "members": members, "schedule": "cosine", "clip": clip, "average": 0.9}
    how["method"] = WAYS[way].get("method", "dbk-silu")
    how["waves"] = way == "few"
    states = []
    for fused in (False, True):
        tiling = WAYS[way].get("tiling") if fused else None
        one = wave(rows(70, 3), fused=fused, weight_decay=0.1, tiling=tiling, **how)
        assert one.train_epoch(lambda: False)
        one.end_epoch()
        states.append(one.export().tensors)
    plain, fused_state = states
    assert plain.keys() == fused_state.keys()
    for name, value in plain.items():
        # 1e-4 of the first steps, which divide by the root of small second moments
        torch.testing.assert_close(fused_state[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_a_validation_is_that_of_the_plain_way():
    plain, fused = (wave(rows(70, 5), fused=fused, slope=True, selection="crps") for fused in (False, True))
    found = [one.close().cpu() for one in (plain, fused)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_is_the_same_to_the_bit(way):
    data, how = rows(40, 3), {"members": 1, "optimiser": "muon", "average": 0.9, **WAYS[way]}
    whole = wave(data, fused=True, **how)
    for _ in range(2):
        whole.train_epoch(lambda: False)
        whole.end_epoch()
    first = wave(data, fused=True, **how)
    first.train_epoch(lambda: False)
    first.end_epoch()
    second = wave(data, fused=True, **how)
    second.restore(first.export())
    second.train_epoch(lambda: False)
    second.end_epoch()
    for name, value in whole.export().tensors.items():
        assert torch.equal(value, second.export().tensors[name]), name


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_member_that_fails_fails_alone(way, precision):
    """And a member among others ends as it does alone."""
    data, how = rows(40, 3), {"alpha": 0.0, "precision": precision, **WAYS[way]}
    three = wave(data, fused=True, members=3, **how)
    with torch.no_grad():
        three.stack.leaves["backbone.project.weight"][1].fill_(torch.inf)
    alone = wave(data, fused=True, members=1, **how)
    for one in (three, alone):
        one.train_epoch(lambda: False)
        one.end_epoch()
    assert three.state.status[1] == FAILED
    assert FAILED not in (three.state.status[0], three.state.status[2])
    for name, value in alone.stack.stacked().items():
        assert torch.equal(three.stack.stacked()[name][0], value[0]), name


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_member_whose_kernel_cannot_be_factorised_fails_alone():
    """All inducing points of the second at one place, without a jitter; the first ends as it does alone."""
    data, how = rows(40, 3), {"alpha": 0.0, "jitter": 0.0, **WAYS["rbf"]}
    two, alone = (wave(data, fused=True, members=k, **how) for k in (2, 1))
    with torch.no_grad():
        two.stack.leaves["expansion.Z"][1].fill_(1.0)
    for one in (two, alone):
        one.train_epoch(lambda: False)
        one.end_epoch()
    assert two.state.status[1] == FAILED
    assert two.state.status[0] != FAILED
    for name, value in alone.stack.stacked().items():
        assert torch.equal(two.stack.stacked()[name][0], value[0]), name


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7FC00000, 0x7F800001], ids=hex)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_nan_stays_one(bits, way):
    """Whatever its bits are: tf32 is rounded by integer arithmetic, and a GPU's own NaN is the largest integer."""
    for precision in ("float32", "tf32"):
        one = wave(rows(40, 3), fused=True, members=1, precision=precision, **WAYS[way])
        one.stack.leaves["backbone.project.weight"].detach().view(torch.int32)[0, 0] = bits
        assert all(found.isnan().any() for found in gradients(one).values()), precision
        assert one.steps.loss_sum.isnan().all()


def test_many_members_have_products_where_they_pay():
    """Shares are for the rest, or what torch compiles if it is asked for."""
    data, sizes = rows(500, 3), {"width": 64, "inner": 64, "rank": 64, "batch_size": 250}
    for changes in ({}, {"waves": True}, {"rank": 32}, {"batch_size": 32}):
        one = wave(data, fused=True, members=17, **{**sizes, **changes})
        assert isinstance(one.fused.way, Shares if changes else Products)
        one = wave(data, fused=True, members=17, compile=True, **{**sizes, **changes})
        assert (one.fused is None) == bool(changes)
    assert isinstance(wave(data, fused=True, **sizes).fused.way, Shares)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["tf32", "float32"])
def test_the_tiling_that_is_chosen_gives_the_same(precision):
    """At the sizes that it is for, where the first member alone has shares."""
    data, sizes = rows(300, 3), {"width": 64, "inner": 64, "rank": 64, "batch_size": 256, "alpha": 0.0}
    many, alone = (wave(data, fused=True, members=k, precision=precision, **sizes) for k in (16, 1))
    assert isinstance(many.fused.way, Products)
    found, expected = gradients(many), gradients(alone)
    for name, value in expected.items():
        error = (found[name][0] - value[0]).norm() / value[0].norm()
        assert error < (2e-3 if precision == "tf32" else 1e-5), name


def test_what_the_kernels_do_not_know_goes_the_plain_way(caplog):
    data = rows(40, 3)
    with caplog.at_level(logging.INFO, "deepbasis"):
        assert wave(data, fused=True, objective="mse").fused is None
        assert wave(data, fused=True, width=24).fused is None
        assert wave(data, fused=True, precision="float64").fused is None
        assert wave(rows(3, 1_025), fused=True).fused is None
    assert "plain way" in caplog.text
    assert why_not(build("dbk-matern", 3, rank=64)) is not None
    assert why_not(build("sv-rbf", 3)) is not None
    assert why_not(build("dbk-rbf", 3, rank=32)) is not None
    assert why_not(build("dbk-rbf", 3, rank=64, embedding="periodic-linear")) is not None
    assert all(why_not(build(name, 3, rank=64)) is None for name in ("dbk-rbf", "sv-dkl", "pp-dkl"))
    assert why_not(build("dbk-silu", 3, embedding="fourier")) is not None
    assert why_not(build("dbk-silu", 3, likelihood="student")) is not None

    class Other(SiLU):
        """Of a user, with a forward of its own."""

    model = build("dbk-silu", 3)
    model.expansion.__class__ = Other
    assert why_not(model) is not None
    assert why_not(build("dbk-silu", 3)) is None


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 2e-3)])
@pytest.mark.parametrize("way", WAYS)
def test_numbers_may_have_any_size(precision, bound, way):
    """An outlier among the rows, large targets, weights of the rows and L far below 1: float16 has few exponents."""
    data = rows(70, 5, "rows")
    data.x[3] *= 1e6
    data.y.mul_(1e4)
    data.weight.mul_(torch.logspace(-6, 6, 70))

    def found(one):
        with torch.no_grad():
            one.stack.leaves["posterior.log_diagonal"].sub_(8.0)
            one.stack.leaves["posterior.lower"].mul_(1e-4)
            if way != "rbf":  # points that far away would have no gradient at all
                one.stack.leaves["expansion.linear.weight"].mul_(30.0)
        return gradients(one)

    method = WAYS[way].get("method", "dbk-silu")
    expected = found(wave(data, fused=False, precision="float64", device=torch.device("cpu"), method=method))
    for name, mine in found(wave(data, fused=True, precision=precision, **WAYS[way])).items():
        assert (mine.double().cpu() - expected[name]).norm() / expected[name].norm() < bound, name


FULL_SIZES = [
    {"members": 4, "inner": 128, "rank": 64, "waves": True},
    {"rank": 128, "inner": 64},
    {"rank": 128, "inner": 64, "tiling": ManyTiling()},
    {"rank": 64, "inner": 128, "tiling": ManyTiling()},
    {"rank": 128, "inner": 64, "members": 12},
    {"rank": 128, "inner": 64, "method": "dbk-rbf"},
    {"rank": 64, "inner": 128, "method": "dbk-rbf", "members": 1},
    {"rank": 128, "inner": 64, "members": 12, "method": "dbk-rbf"},
    {"rank": 128, "inner": 64, "members": 1, "batch_size": 1_024},
    {"rank": 128, "inner": 64, "members": 5, "method": "sv-dkl"},
    {"rank": 128, "inner": 64, "members": 5, "method": "pp-dkl"},
]


@pytest.mark.cuda
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 2e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("sizes", FULL_SIZES, ids=str)
def test_gradients_at_full_size(precision, bound, sizes):
    sizes, data = {"width": 64, **sizes}, rows(1_200, 26)
    plain = {name: value for name, value in sizes.items() if name != "tiling"}
    expected = gradients(wave(data, fused=False, precision="float64", device=torch.device("cpu"), **plain))
    for name, found in gradients(wave(data, fused=True, precision=precision, **sizes)).items():
        error = (found.double().cpu() - expected[name]).norm() / expected[name].norm()
        # the kernel's parameters cancel: those of the plain way in float32 are off by as much
        of_kernel = name.startswith("expansion") and "method" in sizes
        assert error < (max(bound, 1e-4) if of_kernel else bound), (name, error)


@pytest.mark.cuda
@pytest.mark.parametrize(("method", "embedding"), [("dbk-silu", "periodic-linear"), ("dbk-rbf", None)])
def test_a_captured_run_of_200_steps_ends_as_the_plain_one(method, embedding):
    data = rows(1_000, 8)

    def make(member: Member) -> DeepBasisGP:
        return build(method, 8, rank=64, inner=128, embedding=embedding, noise=0.1, seed=member.seed)

    settings = Settings(epochs=7, batch_size=32, optimiser="muon", average=0.99, schedule="cosine", selection="crps")
    members = [Member(seed=k, alpha=0.1) for k in range(3)]
    plain, fused = (
        train(make, members, data, data, replace(settings, fused=way), device="cuda") for way in (False, True)
    )
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(other.history["validation"], one.history["validation"], rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("n", [1, 7, 1_000 if GPU else 70])
@pytest.mark.parametrize("members", [1, 3])
def test_predictions_are_those_of_the_plain_way(members, n):
    """Of float64, on a CPU: no kernel knows it."""
    sizes = {"rank": 64, "inner": 128} if GPU else {"width": 16, "rank": 16, "inner": 32}
    models = [build("dbk-silu", 8, **sizes, noise=0.1, slope=(0.1,) * 8, seed=k) for k in range(members)]
    x = torch.randn(n, 8)
    kernels, plain = Ensemble(models, device=DEVICE), Ensemble(models, dtype=torch.float64)
    mine, theirs = (one.predict(x) for one in (kernels, plain))
    for found, expected in (
        (mine.mean, theirs.mean),
        (mine.variance, theirs.variance),
        (kernels.means(x), plain.means(x)),
    ):
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)
