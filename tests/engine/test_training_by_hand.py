"""Training equals loops that are written by hand."""

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows, shuffled
from deepbasis.engine.checkpoint import HISTORY, Outcome
from deepbasis.engine.members import Build, Member
from deepbasis.engine.optimiser import factor
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.gp import exact
from deepbasis.gp.model import DeepBasisGP
from support.own import METHODS, OBJECTIVES
from support.validation import score


def groups(model: DeepBasisGP, settings: Settings) -> list[dict[str, object]]:
    rate = settings.learning_rate
    return [
        {"params": list(model.backbone.parameters()), "weight_decay": settings.weight_decay},
        {"params": [p for name, p in model.expansion.named_parameters() if not name.startswith("log_")] + [model.mean]},
        {
            "params": [p for name, p in model.expansion.named_parameters() if name.startswith("log_")],
            "lr": settings.kernel_learning_rate or rate,
        },
        {"params": list(model.posterior.parameters()), "lr": settings.posterior_learning_rate or rate},
        {"params": list(model.likelihood.parameters()), "lr": settings.noise_learning_rate or rate},
    ]


def clip(model: DeepBasisGP, limit: float | None) -> None:
    if limit is not None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        for g in gradients:
            g.mul_(min(1.0, limit / float(norm)))


def loop_by_hand(
    model: DeepBasisGP, epoch_of_losses: Callable[[int], Iterator[Tensor]], validation: Rows, settings: Settings
) -> tuple[DeepBasisGP, dict[str, list[float]], int]:
    """A plain PyTorch loop: the best model, the history, the best epoch. `epoch_of_losses` yields what to descend."""
    optimiser = torch.optim.AdamW(groups(model, settings), lr=settings.learning_rate, weight_decay=0.0)
    best, best_epoch, best_score = copy.deepcopy(model), 0, math.inf
    history: dict[str, list[float]] = {name: [] for name in HISTORY}
    for epoch in range(settings.epochs):
        losses = []
        for loss in epoch_of_losses(epoch):
            optimiser.zero_grad()
            loss.backward()
            clip(model, settings.clip)
            optimiser.step()
            losses.append(loss.item())
        now = score(model, validation, settings)
        for name, value in zip(HISTORY, (sum(losses) / len(losses), now, model.noise().item()), strict=True):
            history[name].append(value)
        if now < best_score:
            best, best_epoch, best_score = copy.deepcopy(model), epoch + 1, now
    return best, history, best_epoch


def minibatches_by_hand(
    build: Build, member: Member, data: Rows, validation: Rows, settings: Settings
) -> tuple[DeepBasisGP, dict[str, list[float]], int]:
    model = build(member).double()
    n, objective = len(data), OBJECTIVES[settings.objective]
    scalars = [torch.tensor(float(v), dtype=torch.float64) for v in (n, member.alpha, member.beta)]

    def epoch_of_losses(epoch: int) -> Iterator[Tensor]:
        for rows in shuffled(torch.tensor([member.seed]), epoch, n)[0].split(settings.batch_size):
            yield objective(model, data.x[rows], data.y[rows], *scalars, None)

    return loop_by_hand(model, epoch_of_losses, validation, settings)


def exact_by_hand(
    build: Build, member: Member, data: Rows, validation: Rows, settings: Settings
) -> tuple[DeepBasisGP, dict[str, list[float]], int]:
    """Algorithm 1: full-batch gradients of the marginal likelihood by plain autograd, then q(w) in closed form.

    Of a method that predicts with the correction, those of the bound of Eq. 3.
    """
    model = build(member).double()

    def epoch_of_losses(epoch: int) -> Iterator[Tensor]:
        phi, _, correction, _ = model.features(data.x)
        y, noise = data.y - model.mean, model.noise()
        bound = (
            exact.sparse_bound(phi, correction, y, noise)
            if model.corrected
            else exact.log_marginal_likelihood(phi, y, noise)
        )
        yield -bound / len(data)
        exact.fit_posterior(model, lambda: [(data.x, data.y)])

    return loop_by_hand(model, epoch_of_losses, validation, settings)


def assert_is(
    outcome: Outcome, by_hand: tuple[DeepBasisGP, dict[str, list[float]], int], tolerance: float, lab
) -> None:
    model, history, best_epoch = by_hand
    assert outcome.best_epoch == best_epoch
    written = {name: torch.tensor(values, dtype=torch.float64) for name, values in history.items()}
    for found, expected in ((outcome.parameters, dict(model.named_parameters())), (outcome.history, written)):
        unknown = {name for name, value in expected.items() if bool(value.isnan().any())}  # the noise of a DNN
        assert all(bool(found[name].isnan().all()) for name in unknown)
        known = expected.keys() - unknown
        assert lab.largest({k: found[k] for k in known}, {k: expected[k] for k in known}) <= tolerance
    assert outcome.best_score == pytest.approx(min(history["validation"]), abs=tolerance)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *((method, {}) for method in METHODS),
        ("dbk-silu", {"posterior_learning_rate": 0.03, "noise_learning_rate": 0.002, "weight_decay": 0.5}),
        ("dbk-rbf", {"kernel_learning_rate": 0.1}),
        ("dbk-rbf", {"clip": 0.3}),
        ("dbk-silu", {"batch_size": 50}),
        ("dbk-silu", {"batch_size": 64}),
        ("dbk-rbf", {"batch_size": 25}),
        ("dbk-silu", {"batch_size": 49}),
    ],
)
def test_one_member_equals_a_loop_written_by_hand(lab, method, changes):
    member = lab.members(2)[1]
    settings = lab.settings(method, epochs=5, **changes)
    arguments = (lab.data, lab.validation, settings)
    outcome = train(lab.build(method), [member], *arguments)[0]
    assert_is(outcome, minibatches_by_hand(lab.build(method), member, *arguments), 1e-10, lab)


@pytest.mark.parametrize(
    ("method", "count"), [("dbk-silu", 1), ("dbk-silu", 3), ("dbk-rbf", 2), ("sv-rbf", 1), ("sv-rbf", 2), ("sv-dkl", 2)]
)
def test_exact_training_equals_a_loop_written_by_hand(lab, method, count):
    members, settings = lab.members(count), lab.settings(method, objective="mml", epochs=8)
    outcomes = train(lab.build(method), members, lab.data, lab.validation, settings)
    for member, outcome in zip(members, outcomes, strict=True):
        by_hand = exact_by_hand(lab.build(method), member, lab.data, lab.validation, settings)
        # q(w) is found by two factorisations, and its parameters are logarithms: it has fewer digits than the rest.
        assert_is(outcome, by_hand, 1e-8, lab)
        rest = {name: value for name, value in outcome.parameters.items() if not name.startswith("posterior.")}
        assert lab.largest(rest, {name: by_hand[0].get_parameter(name) for name in rest}) <= 1e-10


def test_exact_training_ends_with_the_closed_form_posterior(lab):
    settings = lab.settings(objective="mml", epochs=30)
    for outcome in train(lab.build(), lab.members(3), lab.data, lab.validation, settings):
        model = outcome.model(lab.build())
        closed = copy.deepcopy(model)
        exact.fit_posterior(closed, lambda: [(lab.data.x, lab.data.y)])
        mine, theirs = dict(model.posterior.named_parameters()), dict(closed.posterior.named_parameters())
        assert lab.largest(mine, theirs) < 1e-8
        assert outcome.best_epoch > 1


def test_exact_training_of_a_sparse_method_climbs_its_bound(lab):
    """What is told as its loss is -Eq. 3 over n, and not what the same basis has without the correction."""
    settings = lab.settings("sv-rbf", objective="mml", epochs=30)
    builds = [lab.build("sv-rbf"), lab.uncorrected("sv-rbf")]
    outcomes = [train(build, lab.members(1), lab.data, lab.validation, settings)[0] for build in builds]
    model = lab.build("sv-rbf")(lab.members(1)[0]).double()
    with torch.no_grad():
        phi, _, correction, _ = model.features(lab.data.x)
        start = exact.sparse_bound(phi, correction, lab.data.y - model.mean, model.noise()) / len(lab.data)
    losses = [outcome.history["train_loss"] for outcome in outcomes]
    assert float(losses[0][0]) == pytest.approx(-float(start), rel=1e-10)
    assert float(losses[0][0] - losses[1][0]) == pytest.approx(
        float(correction.mean() / (2 * model.noise().detach())), rel=1e-8
    )
    assert float(losses[0][0] - losses[0][-1]) > 0.3
    assert lab.largest(*(outcome.parameters for outcome in outcomes)) > 1e-2


@pytest.mark.parametrize(
    ("method", "chunk_rows"), [("dbk-silu", 1), ("dbk-silu", 7), ("dbk-silu", 50), ("dbk-silu", 1000), ("sv-rbf", 7)]
)
def test_chunks_do_not_matter_to_exact_training(lab, method, chunk_rows):
    """Also not to what is validated, in chunks as well."""
    changes = {"objective": "mml", "epochs": 3}
    runs = [
        train(
            lab.build(method), lab.members(2), lab.data, lab.validation, lab.settings(method, chunk_rows=n, **changes)
        )
        for n in (20, chunk_rows)
    ]
    for mine, theirs in zip(*runs, strict=True):
        assert lab.difference(mine, theirs) < 1e-9


def test_exact_training_learns(lab):
    outcome = train(lab.build(), lab.members(1), lab.data, lab.validation, lab.settings(objective="mml", epochs=60))[0]
    loss = outcome.history["train_loss"]
    assert bool((loss[10:] < loss[:-10]).all())
    assert float(loss[0] - loss[-1]) > 0.3


def test_schedules_follow_lambda_lr(lab):
    """A whole run with warm-up and cosine against torch's AdamW with LambdaLR, by hand."""
    member = lab.members(1)[0]
    settings = lab.settings(epochs=20, schedule="cosine", warmup_steps=15)
    outcome = train(lab.build(), [member], lab.data, lab.validation, settings)[0]
    model = lab.build()(member).double()
    optimiser = torch.optim.AdamW(groups(model, settings), lr=settings.learning_rate, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: factor(step, "cosine", 15, 80))
    scalars = [torch.tensor(v, dtype=torch.float64) for v in (50.0, member.alpha, member.beta)]
    validation = []
    for epoch in range(20):
        for rows in shuffled(torch.tensor([member.seed]), epoch, 50)[0].split(16):
            optimiser.zero_grad()
            OBJECTIVES["dppgp"](model, lab.data.x[rows], lab.data.y[rows], *scalars, None).backward()
            optimiser.step()
            scheduler.step()
        validation.append(score(model, lab.validation, settings))
    assert outcome.history["validation"].tolist() == pytest.approx(validation, rel=0.0, abs=1e-10)
