"""Learning rates, schedules, clipping."""

import pytest
import torch
from torch import Tensor

from deepbasis.engine.training import train


def first_steps(lab, epochs: int = 1, **changes: object) -> dict[str, Tensor]:
    """How far each parameter of two members is moved by the first steps, of one batch an epoch."""
    settings = lab.settings(epochs=epochs, batch_size=50, **changes)
    wave = lab.wave(lab.build(), lab.members(2), settings)
    before = {name: value.clone() for name, value in wave.stack.stacked().items()}
    after = lab.epochs(wave, epochs).group("parameters")
    return {name: after[name] - before[name] for name in before}


@pytest.mark.parametrize(
    ("name", "part"), [("noise_learning_rate", "likelihood."), ("posterior_learning_rate", "posterior.")]
)
def test_a_learning_rate_of_its_own_moves_its_own_part_alone(lab, name, part):
    """In the first step, after which everything depends on everything: twice the rate, twice the way."""
    plain, own = first_steps(lab), first_steps(lab, **{name: 2e-2})
    for parameter, way in plain.items():
        factor = 2.0 if parameter.startswith(part) else 1.0
        assert torch.allclose(own[parameter], factor * way, rtol=1e-6, atol=1e-12), parameter
        moved = way.abs().amax() > 1e-3
        assert moved, parameter


def test_the_learning_rate_moves_everything(lab):
    plain, own = (first_steps(lab, weight_decay=0.0, **changes) for changes in ({}, {"learning_rate": 2e-2}))
    for parameter, way in plain.items():
        assert torch.allclose(own[parameter], 2.0 * way, rtol=1e-6, atol=1e-12), parameter


def test_warm_up_shortens_the_first_steps(lab):
    plain, warmed = (first_steps(lab, weight_decay=0.0, warmup_steps=steps) for steps in (0, 10))
    for parameter, way in plain.items():
        assert torch.allclose(warmed[parameter], 0.1 * way, rtol=1e-5, atol=1e-12), parameter


def test_the_cosine_schedule_comes_to_rest(lab):
    """The last epoch of a run of 30 moves almost nothing, unlike a constant rate's."""
    ways = {}
    for schedule in ("constant", "cosine"):
        wave = lab.wave(lab.build(), lab.members(2), lab.settings(epochs=30, schedule=schedule))
        before, after = (lab.epochs(wave, epochs).group("parameters") for epochs in (29, 1))
        ways[schedule] = lab.largest(before, after)
    assert ways["cosine"] < 0.03 * ways["constant"]


def test_clipping_holds_the_gradient_of_each_member(lab):
    wave = lab.wave(lab.build(), lab.members(4), lab.settings(clip=0.05))
    free = lab.wave(lab.build(), lab.members(4), lab.settings())
    norms = []
    for each in (wave, free):
        each.train_epoch(lambda: False)
        gradients = [leaf.grad.view(4, -1) for leaf in each.descent.leaves.values() if leaf.grad is not None]
        norms.append(torch.cat(gradients, 1).norm(dim=1))
    assert bool((norms[0] <= 0.05 * (1 + 1e-12)).all())
    assert bool((norms[1] > 0.05).all())


def test_a_clip_that_is_never_reached_changes_nothing(lab):
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation)
    for a, b in zip(train(*arguments, lab.settings()), train(*arguments, lab.settings(clip=1e9)), strict=True):
        assert lab.same(a, b)
