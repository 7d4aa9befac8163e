"""Muon beside torch's own, and what it must leave alone."""

import pytest
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.muon import Muon, orthogonal
from deepbasis.engine.settings import settings_for
from deepbasis.engine.training import train
from deepbasis.gp.build import build
from deepbasis.gp.model import DeepBasisGP

RATE, DECAY = 0.05, 0.1
SHAPES = {"widen": (12, 5), "narrow": (5, 12), "square": (6, 6)}


def leaves(members: int | None, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    axis = () if members is None else (members,)
    torch.manual_seed(0)
    return {name: torch.randn(*axis, *shape, dtype=dtype).requires_grad_() for name, shape in SHAPES.items()}


def test_singular_values_become_about_one_and_singular_vectors_stay():
    torch.manual_seed(0)
    sizes = torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)[:, None, None]
    matrices = sizes * torch.randn(4, 3, 6, 9, dtype=torch.float64)
    made = orthogonal(matrices)
    assert made.shape == matrices.shape
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    inside = u.mT @ made @ v.mT  # diagonal if the vectors are the same
    assert (inside - inside.diagonal(dim1=-2, dim2=-1).diag_embed()).abs().max() < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_is_never_longer_than_its_rate_however_small_the_gradient(dtype):
    """Momentum fades by 0.95 a step where there is no gradient any more: in float32 its squares are 0 at 1e-23."""
    torch.manual_seed(0)
    sizes = 10.0 ** -torch.arange(0.0, 45.0, dtype=torch.float64)[:, None, None]
    made = orthogonal((sizes * torch.randn(45, 6, 9, dtype=torch.float64)).to(dtype))
    values = torch.linalg.svdvals(made)
    assert values.max() < 1.3
    assert values[:14].min() > 0.6, "and has its whole length where there is one"


def test_a_gradient_of_zero_is_no_step():
    mine = leaves(2)
    before = {name: leaf.detach().clone() for name, leaf in mine.items()}
    for leaf in mine.values():
        leaf.grad = torch.zeros_like(leaf)
    Muon(mine, learning_rate=RATE).step()
    assert all(torch.equal(mine[name], before[name]) for name in mine)


@pytest.mark.parametrize("members", [None, 1, 3])
def test_ten_steps_equal_torchs_own(members):
    """torch's steps one matrix at a time, and makes it orthogonal in bfloat16: so in its own precision only."""
    mine = leaves(members, torch.float32)
    places = [(name, k) for name in mine for k in (range(members) if members else [...])]
    parts = {(name, k): mine[name].detach()[k].clone().requires_grad_() for name, k in places}
    theirs = torch.optim.Muon(parts.values(), lr=RATE, weight_decay=DECAY, momentum=0.95, nesterov=True)
    optimiser = Muon(mine, learning_rate=RATE, weight_decay=DECAY)
    for _ in range(10):
        for leaf in mine.values():
            leaf.grad = torch.randn_like(leaf)
        for name, k in places:
            parts[name, k].grad = mine[name].grad[k].clone()
        optimiser.step()
        theirs.step()
    for (name, k), theirs_now in parts.items():
        moved = (mine[name][k] - theirs_now).norm() / (10 * RATE * 5**0.5)
        assert moved < 0.05, name


def test_a_poisoned_member_leaves_the_others_untouched():
    mine, alone = leaves(3), leaves(3)
    for name in mine:
        gradient = torch.randn_like(mine[name])
        mine[name].grad, alone[name].grad = gradient.clone(), gradient
        mine[name].grad[1] = torch.nan
    Muon(mine, learning_rate=RATE).step()
    Muon(alone, learning_rate=RATE).step()
    for name in mine:
        assert mine[name][1].isnan().all()
        assert torch.equal(mine[name][[0, 2]], alone[name][[0, 2]])


def trained(members: int) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64)
    rows, held_out = Rows(x[:40], x[:40].sin().sum(1)), Rows(x[40:], x[40:].sin().sum(1))
    run = {"optimiser": "muon", "epochs": 6, "batch_size": 20, "average": 0.5, "schedule": "cosine"}
    settings = settings_for("dbk-silu", precision="float64", **run)

    def make(member: Member) -> DeepBasisGP:
        return build("dbk-silu", 3, rank=4, width=8, seed=member.seed)

    outcomes = train(make, [Member(seed=k) for k in range(members)], rows, held_out, settings)
    return list(outcomes[0].parameters.values())


def test_a_member_of_a_stack_is_trained_as_if_alone():
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(trained(1), trained(2), strict=True))
