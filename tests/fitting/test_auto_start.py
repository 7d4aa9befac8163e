"""Where members start."""

from dataclasses import replace

import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.fitting.plan import Candidate
from deepbasis.fitting.start import Line, builder, starting_members, straight_line
from deepbasis.gp.likelihoods import GaussianLikelihood
from support.choosing import easy, small
from support.recipes import DEFAULT, recipe
from support.runs import prepared


def candidates(**changes: object) -> tuple[Candidate, ...]:
    return prepared(small(**changes), *easy())[1].candidates


def rows() -> Rows:
    _, _, data = prepared(small(), *easy())
    return data.everything(torch.float64)


def test_members_start_with_the_noise_that_the_rows_suggest() -> None:
    line = straight_line(rows())
    for candidate in candidates():
        members = starting_members(candidate, [1, 2], [line], True)
        (noise,) = {member.noise for member in members}
        assert noise == pytest.approx(GaussianLikelihood.starting_noise(line.variance_left), rel=5e-3)
        assert candidate.architecture.build(3, members[0]).noise().item() == pytest.approx(noise, rel=1e-6)


def test_the_last_digits_of_a_line_do_not_matter() -> None:
    """They depend on the number of threads, and a checkpoint is found again by all digits of its members."""
    line = straight_line(rows())
    other = replace(
        line, variance_left=line.variance_left * (1.0 + 1e-14), slope=tuple(s * (1.0 - 1e-14) for s in line.slope)
    )
    assert other != line
    for candidate in candidates(trend="linear", method="dbk-silu"):
        assert starting_members(candidate, [1], [line], True) == starting_members(candidate, [1], [other], True)


def test_every_pair_of_weights_has_every_seed_and_slopes_by_turns() -> None:
    (candidate,) = candidates(method="dbk-silu", recipe="paper")
    half = replace(candidate, architecture=replace(candidate.architecture, trend="half"))
    members = starting_members(half, [5, 6], [Line((0.5, -0.25), 0.1, 1.0, 100.0)], True)
    assert [(member.alpha, member.beta) for member in members[::2]] == list(candidate.weights)
    assert {member.seed for member in members[::2]} == {5}
    assert [member.slope for member in members[:4]] == [(0.0, 0.0), (0.5, -0.25)] * 2


def test_a_shallow_kernel_starts_at_rows_to_train_on() -> None:
    given = rows()
    for candidate in candidates()[1:3]:
        build = builder(candidate.architecture, 3, given)
        Z = build(Member(seed=5)).expansion.Z
        there = (Z[:, None] == given.x.float()[None]).all(-1)
        assert bool((there.sum(1) == 1).all())
        assert bool((there.sum(0) <= 1).all())
        assert not torch.equal(Z, build(Member(seed=6)).expansion.Z)
    first, second = (builder(one.architecture, 3, given)(Member(seed=5)).expansion.Z for one in candidates()[1:3])
    assert torch.equal(first, second)


def test_without_rows_it_starts_as_the_paper_says() -> None:
    """So does a kernel of a network's outputs, of which nothing is known."""
    for method in ("sv-rbf", "dbk-rbf"):
        (candidate,) = candidates(method=method, recipe="paper")
        Z = builder(candidate.architecture, 3)(Member(seed=5)).expansion.Z.detach()
        assert float(Z.abs().max()) <= 1.0
        members = starting_members(candidate, [1], [], False)
        assert {member.noise for member in members} == {1e-2}


# ---- a fit whose learning rates are nothing stays where it starts


SHALLOW = [{"method": method, "objective": "mml"} for method in ("sv-rbf", "sv-rbf-linear")]
NOTHING = 1e-12
STILL = recipe(
    "still",
    exact_steps=1,
    small=replace(DEFAULT.small, learning_rate=NOTHING),
    noise_learning_rate=NOTHING,
    search_steps=1,  # an evaluation of the start
)


@pytest.mark.parametrize("changes", [{"method": "dbk-silu"}, *SHALLOW], ids=lambda changes: changes["method"])
def test_a_fit_starts_with_the_noise_that_its_rows_suggest(changes: dict[str, str]) -> None:
    model = small(recipe=STILL, epochs=1, **changes).fit(*easy())
    _, plan, data = prepared(model, *easy())
    expected = GaussianLikelihood.starting_noise(straight_line(data.folds(plan)[0].data).variance_left)
    for one in model.fitted_.models:
        assert one.noise().item() == pytest.approx(expected, rel=5e-3)


def test_a_fit_of_a_shallow_kernel_starts_at_its_rows() -> None:
    for changes in (*SHALLOW, {"method": "dbk-rbf"}, {**SHALLOW[0], "recipe": "paper", "learning_rate": NOTHING}):
        model = small(**{"recipe": STILL, "epochs": 1, "members": 1, **changes}).fit(*easy())
        _, plan, data = prepared(model, *easy())
        Z = model.fitted_.models[0].expansion.Z.detach()
        at_rows = model.method_ != "dbk-rbf" and model.recipe != "paper"
        if Z.shape[1] == 3:
            there = torch.cdist(Z, data.folds(plan)[0].data.x) < 1e-6
            assert there.sum(1).tolist() == [int(at_rows)] * len(Z)
        assert at_rows or float(Z.abs().max()) <= 1.0 + 1e-6
