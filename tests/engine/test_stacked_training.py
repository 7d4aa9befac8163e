"""A member alone trains as among others; a weight is a repetition."""

from dataclasses import replace

import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.training import train


@pytest.mark.parametrize(
    ("method", "count", "changes"),
    [
        ("dbk-silu", 80, {}),
        ("dbk-rbf", 80, {}),
        ("dbk-silu", 6, {"objective": "mml", "learning_rate": 2e-3}),  # at 1e-2 rounding doubles every few steps
        ("dbk-rbf", 6, {"clip": 0.5, "schedule": "cosine", "warmup_steps": 20, "noise_learning_rate": 0.05}),
        ("sv-dkl", 6, {}),
        ("dnn", 6, {}),
    ],
)
@pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_member_alone_equals_the_member_among_others(lab, method, count, changes, steps):
    """After so many steps: its parameters, its moments, the best it kept, and its history."""
    epochs = steps if changes.get("objective") == "mml" else steps // 4
    members, settings = lab.members(count), lab.settings(method, epochs=epochs, **changes)
    among = lab.epochs(lab.wave(lab.build(method), members, settings), epochs)
    assert among.step == steps
    for k in (count // 2, count - 1):
        alone = lab.epochs(lab.wave(lab.build(method), [members[k]], settings), epochs)
        assert lab.largest(alone.tensors, among.select([k]).tensors) <= 1e-10


def test_members_end_differently(lab):
    """That the test above can fail: seed, alpha, beta and noise each change what a member comes to."""
    one = Member(seed=1, alpha=0.1, beta=0.1, noise=0.1)
    others = [replace(one, **change) for change in ({"seed": 2}, {"alpha": 0.2}, {"beta": 0.2}, {"noise": 0.2})]
    first, *rest = train(lab.build("dbk-rbf"), [one, *others], lab.data, lab.validation, lab.settings("dbk-rbf"))
    for other in rest:
        assert lab.largest(first.parameters, other.parameters) > 1e-4, other.member


def test_outcomes_come_in_the_order_of_the_members(lab):
    members = lab.members(5)
    settings = lab.settings(epochs=2)
    forward = train(lab.build(), members, lab.data, lab.validation, settings)
    backward = train(lab.build(), members[::-1], lab.data, lab.validation, settings, wave_size=2)
    assert [outcome.member for outcome in forward] == members
    for mine, theirs in zip(forward, backward[::-1], strict=True):
        assert lab.difference(mine, theirs) <= 1e-10


@pytest.mark.slow
def test_float32_members_alone_and_among_others(lab):
    """Rounding alone parts them: 1e-3 in the score after 200 steps is what we state."""
    members, settings = lab.members(8), lab.settings(epochs=50, precision="float32")
    among = train(lab.build(), members, lab.data, lab.validation, settings)
    for k in (0, 7):
        alone = train(lab.build(), [members[k]], lab.data, lab.validation, settings)[0]
        assert alone.best_score == pytest.approx(among[k].best_score, rel=1e-3)
        assert alone.parameters["mean"].dtype == torch.float32


@pytest.mark.parametrize(
    ("method", "objective", "count"),
    [
        ("dbk-silu", "dppgp", 1),
        ("dbk-silu", "dppgp", 2),
        ("dbk-rbf", "dppgp", 2),
        ("vbll", "elbo", 1),
        ("sv-dkl", "elbo", 2),
        ("pp-dkl", "ppgp", 1),
        ("dnn", "mse", 2),
        ("dbk-silu", "mml", 1),
        ("dbk-silu", "mml", 2),
        ("sv-rbf", "mml", 1),
        ("sv-rbf", "mml", 2),
        ("sv-rbf-linear", "mml", 2),
    ],
)
def test_weights_are_repetitions(lab, method, objective, count):
    """A row of weight k is k equal rows, and a row of weight 0 is none, in full-batch training."""
    x, y = lab.data.x, lab.data.y
    weight = torch.arange(len(y), dtype=torch.float64) % 4
    repeated = Rows(x.repeat_interleave(weight.long(), 0), y.repeat_interleave(weight.long(), 0))
    settings = lab.settings(method, objective=objective, epochs=4, batch_size=1000)
    runs = [
        train(lab.build(method), lab.members(count), rows, lab.validation, settings)
        for rows in (Rows(x, y, weight), repeated, lab.data)
    ]
    for weighted, counted, unweighted in zip(*runs, strict=True):
        assert lab.difference(weighted, counted) < 1e-9
        assert lab.largest(weighted.parameters, unweighted.parameters) > 1e-3
