"""Where members start."""

from typing import Any

import pytest
import torch
from deepbasis.starting import starting_noise, straight_line

from deepbasis.engine.members import Member
from support.choosing import easy, small

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


def test_members_start_with_the_noise_that_the_rows_suggest(runs: list[dict[str, Any]]) -> None:
    small().fit(*easy())
    for run in runs:
        (noise,) = {member.noise for member in run["members"]}
        assert noise == pytest.approx(starting_noise(straight_line(run["data"])), rel=5e-3)
        assert run["build"](run["members"][0]).noise().item() == pytest.approx(noise, rel=1e-6)


def test_a_shallow_kernel_starts_at_rows_to_train_on(runs: list[dict[str, Any]]) -> None:
    small().fit(*easy())
    small(method="dbk-rbf").fit(*easy())
    shallow, other, deep = runs[1:]
    assert torch.equal(*(run["build"](Member(seed=5)).expansion.Z for run in (shallow, other)))
    model = shallow["build"](Member(seed=5))
    there = (model.expansion.Z[:, None] == shallow["data"].x.float()[None]).all(-1)
    assert bool((there.sum(1) == 1).all())
    assert bool((there.sum(0) <= 1).all())
    assert not torch.equal(model.expansion.Z, shallow["build"](Member(seed=6)).expansion.Z)
    Z = deep["build"](Member(seed=5)).expansion.Z  # of a network's outputs nothing is known
    assert float(Z.detach().abs().max()) <= 1.0


def test_the_paper_s_recipe_starts_as_the_paper_says(runs: list[dict[str, Any]]) -> None:
    for method in ("dbk-silu", "sv-rbf-linear"):
        small(recipe="paper", method=method, alpha=0.1, beta=0.1).fit(*easy())
        assert {member.noise for member in runs[-1]["members"]} == {1e-2}
    model = runs[-1]["build"](Member(seed=5))
    assert float(model.expansion.Z.detach().abs().max()) <= 1.0
    assert not (model.expansion.Z[:, None] == runs[-1]["data"].x.float()[None]).all(-1).any()
