"""AdamW against torch's own with its groups written by hand; schedules against LambdaLR; clipping per member."""

import math

import pytest
import torch
from torch import Tensor

from deepbasis.engine.checks import LARGEST_RATIO
from deepbasis.engine.optimiser import AdamW, Schedule, clip_per_member, factor

SHAPES = {
    "backbone.project.weight": (5, 3),
    "backbone.norm.bias": (5,),
    "expansion.Z": (4,),
    "expansion.log_lengthscale": (4,),
    "posterior.m": (4,),
    "posterior.lower": (4, 4),
    "likelihood.raw": (),
    "mean": (),
}
GROUPS = {
    "backbone.project.weight": "network",
    "backbone.norm.bias": "network",
    "expansion.Z": "plain",
    "expansion.log_lengthscale": "kernel",
    "posterior.m": "posterior",
    "posterior.lower": "posterior",
    "likelihood.raw": "likelihood",
    "mean": "plain",
}
RATE, POSTERIOR_RATE, NOISE_RATE, KERNEL_RATE, DECAY = 1e-3, 3e-2, 7e-2, 5e-2, 0.3


def leaves(members: int = 1, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    axis = (members,) if members > 1 else ()
    return {name: torch.randn((*axis, *shape), dtype=dtype).requires_grad_() for name, shape in SHAPES.items()}


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}


def by_hand(tensors: dict[str, Tensor]) -> torch.optim.AdamW:
    def named(prefix: str) -> list[Tensor]:
        return [tensor for name, tensor in tensors.items() if name.startswith(prefix)]

    groups = [
        {"params": named("backbone."), "weight_decay": DECAY},
        {"params": [*named("expansion.Z"), tensors["mean"]]},
        {"params": named("expansion.log_lengthscale"), "lr": KERNEL_RATE},
        {"params": named("posterior."), "lr": POSTERIOR_RATE},
        {"params": named("likelihood."), "lr": NOISE_RATE},
    ]
    return torch.optim.AdamW(groups, lr=RATE, weight_decay=0.0)


def engine(tensors: dict[str, Tensor]) -> AdamW:
    return AdamW(
        tensors,
        GROUPS,
        learning_rate=RATE,
        rates={"posterior": POSTERIOR_RATE, "likelihood": NOISE_RATE, "kernel": KERNEL_RATE},
        weight_decay=DECAY,
    )


def give_gradients(*to: dict[str, Tensor]) -> None:
    for name in to[0]:
        gradient = torch.randn_like(to[0][name])
        for tensors in to:
            tensors[name].grad = gradient.clone()


# --- AdamW ---


@pytest.mark.parametrize("members", [1, 3])
def test_twenty_steps_equal_torchs_own(lab, members):
    mine = leaves(members)
    theirs = copies(mine)
    before = copies(mine)
    a, b = engine(mine), by_hand(theirs)
    for _ in range(20):
        give_gradients(mine, theirs)
        a.step()
        b.step()
    assert lab.largest(mine, before) > 0.1
    assert lab.largest(mine, theirs) < 1e-12


def test_twenty_steps_equal_torchs_own_in_float32(lab):
    mine = leaves(3, torch.float32)
    theirs = copies(mine)
    a, b = engine(mine), by_hand(theirs)
    for _ in range(20):
        give_gradients(mine, theirs)
        a.step()
        b.step()
    assert lab.largest(mine, theirs) < 1e-6


def test_weight_decay_is_for_the_backbone_alone():
    """Without a gradient's pull, only decay moves a parameter: by the factor (1 - rate * decay)."""
    mine = leaves(2)
    before = copies(mine)
    optimiser = engine(mine)
    for tensor in mine.values():
        tensor.grad = torch.zeros_like(tensor)
    optimiser.step()
    for name, tensor in mine.items():
        shrunk = 1.0 - RATE * DECAY if name.startswith("backbone.") else 1.0
        assert torch.allclose(tensor, shrunk * before[name], rtol=1e-9, atol=0.0), name


def test_rates_belong_to_names():
    """The first step of Adam moves every parameter by its rate, against the sign of its gradient."""
    mine = leaves(2)
    before = copies(mine)
    own = {"posterior": POSTERIOR_RATE, "likelihood": NOISE_RATE}
    optimiser = AdamW(mine, GROUPS, learning_rate=RATE, rates=own)
    give_gradients(mine)
    optimiser.step()
    for name, tensor in mine.items():
        expected = before[name] - own.get(name.partition(".")[0], RATE) * tensor.grad.sign()
        assert torch.allclose(tensor, expected, rtol=0.0, atol=1e-6), name


def test_without_rates_of_their_own_all_have_the_same():
    mine = leaves()
    before = copies(mine)
    optimiser = AdamW(mine, GROUPS, learning_rate=RATE)
    give_gradients(mine)
    optimiser.step()
    for name, tensor in mine.items():
        assert torch.allclose((tensor - before[name]).abs(), torch.tensor(RATE).double(), rtol=1e-4), name


def test_a_leaf_without_a_gradient_is_left_alone(lab):
    """As the noise of a DNN, which its loss does not know; the others go on as torch's own do."""
    mine = leaves()
    theirs = copies(mine)
    a, b = engine(mine), by_hand(theirs)
    for _ in range(5):
        for leaf in mine.values():
            leaf.grad = None
        b.zero_grad()
        give_gradients({k: v for k, v in mine.items() if k != "likelihood.raw"}, theirs)
        a.step()
        b.step()
    assert torch.equal(mine["likelihood.raw"], theirs["likelihood.raw"])
    assert lab.largest(mine, theirs) < 1e-12


def test_going_on_from_moments_and_count(lab):
    """A new optimiser with the old one's moments and number of steps is the old one."""
    mine = leaves(2)
    first = engine(mine)
    for _ in range(7):
        give_gradients(mine)
        first.step()
    other = copies(mine)
    second = engine(other)
    for name in mine:
        second.first[name].copy_(first.first[name])
        second.second[name].copy_(first.second[name])
    second.set_step(7)
    for _ in range(5):
        give_gradients(mine, other)
        first.step()
        second.step()
    assert lab.largest(mine, other) == 0.0


def test_members_do_not_touch_each_other(lab):
    """A member's numbers are the same, to the bit, whatever the gradients beside it are."""
    mine = leaves(3)
    beside = copies(mine)
    a, b = engine(mine), engine(beside)
    for _ in range(5):
        give_gradients(mine, beside)
        for tensor in beside.values():
            tensor.grad[1] = math.nan
        a.step()
        b.step()
    for name in mine:
        assert torch.equal(mine[name][[0, 2]], beside[name][[0, 2]])
        assert bool(beside[name][1].isnan().all())


# --- schedules ---


def test_a_constant_schedule_is_constant():
    assert [factor(step, "constant", 0, 9) for step in range(9)] == [1.0] * 9


def test_warm_up_is_a_line_that_ends_at_one():
    assert [factor(step, "constant", 4, 9) for step in range(9)] == [0.25, 0.5, 0.75] + [1.0] * 6


def test_cosine_goes_from_one_to_near_zero():
    factors = torch.tensor([factor(step, "cosine", 0, 200) for step in range(200)], dtype=torch.float64)
    assert float(factors[0]) == 1.0
    assert float(factors[100]) == pytest.approx(0.5)
    assert 0.0 < float(factors[-1]) < 1e-4
    assert bool((factors.diff() < 0).all())
    expected = 0.5 + 0.5 * torch.cos(math.pi * torch.arange(200).double() / 200)
    assert torch.allclose(factors, expected)


def test_cosine_starts_where_the_warm_up_ends():
    factors = [factor(step, "cosine", 10, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1 * (k + 1) for k in range(10)])
    assert factors[10:] == pytest.approx([factor(step, "cosine", 0, 90) for step in range(90)])
    assert max(factors) == 1.0


@pytest.mark.parametrize(("kind", "warmup"), [("constant", 0), ("constant", 5), ("cosine", 0), ("cosine", 5)])
def test_a_schedule_is_torchs_lambda_schedule(lab, kind, warmup):
    """Rates step by step, and the parameters after 20 of them."""
    total = 20
    mine = leaves(2)
    theirs = copies(mine)
    a, b = engine(mine), by_hand(theirs)
    schedule = Schedule([a], kind, warmup, total)
    scheduler = torch.optim.lr_scheduler.LambdaLR(b, lambda step: factor(step, kind, warmup, total))
    for _ in range(total):
        give_gradients(mine, theirs)
        schedule.apply()
        rates = sorted({float(rate) for rate, _, _ in a.groups})
        assert rates == pytest.approx(sorted(set(scheduler.get_last_lr())), rel=1e-6)
        a.step()
        b.step()
        scheduler.step()
    assert lab.largest(mine, theirs) < 1e-12


def test_a_schedule_can_be_set_to_a_step():
    optimiser = engine(leaves())
    schedule = Schedule([optimiser], "cosine", 3, 30)
    for _ in range(11):
        schedule.apply()
    expected = [float(rate) for rate, _, _ in optimiser.groups]
    schedule.set_step(10)
    schedule.apply()
    assert [float(rate) for rate, _, _ in optimiser.groups] == expected
    schedule.set_step(20)
    schedule.apply()
    assert all(float(rate) < before for (rate, _, _), before in zip(optimiser.groups, expected, strict=True))


def test_a_schedule_stays_at_its_end():
    """A stream may have more batches than it was thought to have."""
    optimiser = engine(leaves())
    schedule = Schedule([optimiser], "cosine", 0, 10)
    for _ in range(10):
        schedule.apply()
    last = [float(rate) for rate, _, _ in optimiser.groups]
    schedule.apply()
    assert [float(rate) for rate, _, _ in optimiser.groups] == last


# --- clipping ---


def norms(gradients: list[Tensor]) -> Tensor:
    return torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients]).norm(dim=0)


def some_gradients(sizes: list[float]) -> list[Tensor]:
    """Gradients of members whose norms over all parameters are `sizes`."""
    gradients = [torch.randn(len(sizes), *shape, dtype=torch.float64) for shape in SHAPES.values()]
    scale = torch.tensor(sizes, dtype=torch.float64) / norms(gradients)
    return [g * scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients]


def test_clipping_holds_each_member_to_the_limit():
    gradients = some_gradients([0.5, 4.0, 1e6, 1.0, 0.0])
    before = [g.clone() for g in gradients]
    clip_per_member(gradients, 2.0)
    assert torch.allclose(norms(gradients), torch.tensor([0.5, 2.0, 2.0, 1.0, 0.0]).double(), rtol=1e-12)
    for g, was in zip(gradients, before, strict=True):
        assert torch.equal(g[[0, 3, 4]], was[[0, 3, 4]])  # small ones are not touched at all
        assert torch.allclose(g[1], was[1] / 2.0, rtol=1e-12)  # the direction stays


def test_clipping_is_over_all_parameters_of_a_member():
    """Two parameters of norm 3 and 4 have norm 5 together."""
    gradients = [torch.full((1, 9), 1.0), torch.full((1, 4, 4), 1.0)]
    clip_per_member(gradients, 1.0)
    assert float(gradients[0].norm()) == pytest.approx(0.6)
    assert float(gradients[1].norm()) == pytest.approx(0.8)


@pytest.mark.parametrize("size", [0.0, 1e9, math.nan, math.inf])
def test_clipping_never_couples_members(size):
    gradients = some_gradients([3.0, 1.0, 0.5])
    alone = [g[:1].clone() for g in gradients]
    for g in gradients:
        g[1] *= size
    clip_per_member(gradients, 2.0)
    clip_per_member(alone, 2.0)
    for g, expected in zip(gradients, alone, strict=True):
        assert torch.equal(g[:1], expected)


def test_gradients_may_have_any_layout():
    gradients = [torch.randn(3, 4, 5).transpose(1, 2), torch.randn(4, 3).mT]
    before = [g.clone() for g in gradients]
    clip_per_member(gradients, 0.1)
    scale = 0.1 / norms(before)
    for g, was in zip(gradients, before, strict=True):
        assert torch.allclose(g, was * scale.view(-1, *[1] * (g.dim() - 1)))


def test_how_large_a_first_moment_can_be_beside_the_second():
    """A checkpoint with more is refused. By Cauchy and Schwarz no gradients have more than b1^i / b2^i, i steps ago."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = AdamW({"weight": weight}, {"weight": "network"}, learning_rate=RATE)
    for ago in reversed(range(100)):
        weight.grad = torch.full_like(weight, (0.9 / 0.999) ** ago)
        optimiser.step()
    ratio = float(optimiser.first["weight"].abs() / optimiser.second["weight"].sqrt())
    assert ratio == pytest.approx(math.sqrt(0.1**2 / 0.001 / (1 - 0.9**2 / 0.999)))
    assert 0.9 * LARGEST_RATIO < ratio < LARGEST_RATIO
