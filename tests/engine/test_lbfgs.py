"""L-BFGS on stacked members: it descends, finds the minimum, and lets no member feel another."""

import itertools

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from deepbasis.engine.checkpoint import FAILED, STOPPED
from deepbasis.engine.lbfgs import LBFGS
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from deepbasis.gp.exact import sparse_bound


def rosenbrock(points: Tensor) -> Tensor:
    """Of each row [E, d]."""
    a, b = points[:, :-1], points[:, 1:]
    return (100.0 * (b - a.square()).square() + (1.0 - a).square()).sum(1)


def searched(starts: Tensor, rounds: int, poisoned: int | None = None) -> tuple[LBFGS, list[Tensor]]:
    """The search after so many rounds, and its values after each."""
    leaves = {"a": starts[:, :1].clone().requires_grad_(), "b": starts[:, 1:].clone().requires_grad_()}
    search, values = LBFGS(leaves, lambda leaf: leaf), []
    for _ in range(rounds):
        search.propose()
        for leaf in leaves.values():
            leaf.grad = None
        losses = rosenbrock(torch.cat(list(leaves.values()), 1))
        losses.sum().backward()
        if poisoned is not None:
            losses = losses.detach().index_fill(0, torch.tensor([poisoned]), torch.nan)
        search.judge(losses.detach())
        assert torch.equal(torch.cat(list(leaves.values()), 1), search.point)  # never left at a place that is worse
        values.append(search.value.clone())
    return search, values


@pytest.fixture
def starts() -> Tensor:
    return torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_it_finds_the_minimum_in_about_as_many_evaluations_as_scipys(starts):
    search, values = searched(starts, 150)
    assert search.value.max() < 1e-10
    for k, start in enumerate(starts):
        theirs = minimize(lambda z: float(rosenbrock(torch.from_numpy(z)[None])), start.numpy(), method="L-BFGS-B")
        ours = next(number for number, value in enumerate(values, 1) if value[k] < 1e-4)
        assert ours < 2 * theirs.nfev / (len(start) + 1)  # scipy takes differences: d + 1 evaluations for a gradient


def test_the_loss_never_grows_and_no_member_feels_another(starts):
    together, values = searched(starts, 40)
    assert all(bool((b <= a).all()) for a, b in itertools.pairwise(values))
    for k in range(len(starts)):
        alone, _ = searched(starts[k : k + 1], 40)
        torch.testing.assert_close(alone.point[0], together.point[k], rtol=1e-9, atol=1e-9)


def test_a_poisoned_member_stays_where_it_is_and_leaves_the_others_untouched(starts):
    poisoned, well = searched(starts, 20, poisoned=1)[0], searched(starts, 20)[0]
    assert torch.equal(poisoned.point[1], starts[1])
    assert torch.equal(poisoned.point[[0, 2]], well.point[[0, 2]])


@pytest.mark.slow
def test_a_kernel_is_trained_in_fewer_evaluations_than_adamws_steps(lab):
    """And stops by itself, where its likelihood is at least as high."""
    build, member = lab.build("sv-rbf", rank=20), lab.members(1)
    exact = {"objective": "mml", "selection": "last"}
    (ours,) = train(
        build, member, lab.data, lab.validation, lab.settings("sv-rbf", optimiser="lbfgs", epochs=150, **exact)
    )
    slow = lab.settings("sv-rbf", epochs=300, learning_rate=3e-2, **exact)
    (theirs,) = train(build, member, lab.data, lab.validation, slow)
    losses = ours.history["train_loss"]
    assert (ours.status, ours.reason) == (STOPPED, "the likelihood no longer grows")
    assert len(losses) < 120
    assert bool((losses.diff() <= 0.0).all())
    assert losses[-1] < theirs.history["train_loss"][-1] + 1e-3


@pytest.mark.parametrize("members", [1, 3])
def test_a_resumed_search_ends_as_one_that_was_not_stopped(lab, members):
    settings = lab.settings("sv-rbf", objective="mml", optimiser="lbfgs", epochs=14, selection="last")
    build, some = lab.build("sv-rbf"), lab.members(members)
    whole = lab.wave(build, some, settings)
    expected = lab.epochs(whole, 14)
    first = lab.epochs(lab.wave(build, some, settings), 6)
    again = lab.wave(build, some, settings)
    assert again.fits(first)
    again.restore(first)
    found = lab.epochs(again, 8)
    assert all(torch.equal(found.tensors[name], value) for name, value in expected.tensors.items())


def test_a_kernel_that_cannot_be_evaluated_fails_alone(lab):
    members = lab.members(2)
    plain = lab.build("sv-rbf")

    def build(member):
        model = plain(member)
        if member.seed == members[0].seed:
            torch.nn.init.constant_(model.expansion.log_variance, torch.nan)
        return model

    settings = lab.settings("sv-rbf", objective="mml", optimiser="lbfgs", epochs=5, selection="last")
    failed, well = train(build, members, lab.data, lab.validation, settings)
    (alone,) = train(plain, members[1:], lab.data, lab.validation, settings)
    assert failed.status == FAILED
    torch.testing.assert_close(well.history["train_loss"], alone.history["train_loss"], rtol=1e-9, atol=1e-12)


def test_it_is_for_exact_training(lab):
    with pytest.raises(InputError, match="is for exact training"):
        lab.settings(optimiser="lbfgs")


@pytest.mark.parametrize("members", [1, 2])
def test_with_a_prior_it_is_the_density_of_rows_and_parameters(lab, members):
    """The loss of an evaluation is -(bound + log prior) / n at the parameters, and so is its gradient."""
    settings = lab.settings("sv-rbf", objective="mml", optimiser="lbfgs", epochs=3, selection="last", prior=True)
    plain = lab.build("sv-rbf", rank=10)

    def build(member):
        model = plain(member)
        with torch.no_grad():  # as they start all lengthscales are equal, and the prior is 0
            model.expansion.log_lengthscale += torch.tensor([0.0, 0.5, -2.0 - member.seed % 2])
        return model

    wave = lab.wave(build, lab.members(members), settings)
    wave.steps.step()
    search = wave.descent.search
    for k, member in enumerate(lab.members(members)):
        model = build(member).double()
        phi, _, correction, _ = model.features(lab.data.x)
        y = lab.data.y - model.prior_mean(lab.data.x)
        together = sparse_bound(phi, correction, y, model.noise()) + model.expansion.log_prior()
        (-together / len(y)).backward()
        assert float(search.value[k]) == pytest.approx(-float(together.detach()) / len(y), rel=1e-9)
        gradients = dict(model.named_parameters())
        flat = torch.cat([gradients[name].grad.flatten() for name in wave.descent.leaves])
        torch.testing.assert_close(search.gradient[k], flat, rtol=1e-6, atol=1e-9)


def test_a_prior_is_for_exact_training(lab):
    with pytest.raises(InputError, match=r"is for exact training \(mml\)"):
        lab.settings(prior=True)
