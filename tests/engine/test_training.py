"""The engine against itself (alone or among others), against loops written by hand, and against its own record."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows, shuffled
from deepbasis.engine.checkpoint import HISTORY
from deepbasis.engine.members import Build, Member
from deepbasis.engine.optimiser import factor
from deepbasis.engine.settings import Settings, settings_for
from deepbasis.engine.training import Outcome, train
from deepbasis.errors import InputError
from deepbasis.gp import exact, metrics
from deepbasis.gp.methods import METHODS, OBJECTIVES
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import predict

# --- stacked equals separate ---


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
def test_a_member_alone_equals_the_member_among_others(lab, method, count, changes):
    """After 200 steps: its parameters, its moments, the best it kept, and its history."""
    epochs = 200 if changes.get("objective") == "mml" else 50
    members, settings = lab.members(count), lab.settings(method, epochs=epochs, **changes)
    among = lab.epochs(lab.wave(lab.build(method), members, settings), epochs)
    assert among.step == 200
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


def test_float32_members_alone_and_among_others(lab):
    """Rounding alone parts them: 1e-3 in the score after 200 steps is what we state."""
    members, settings = lab.members(20), lab.settings(epochs=50, precision="float32")
    among = train(lab.build(), members, lab.data, lab.validation, settings)
    for k in (0, 19):
        alone = train(lab.build(), [members[k]], lab.data, lab.validation, settings)[0]
        assert alone.best_score == pytest.approx(among[k].best_score, rel=1e-3)
        assert alone.parameters["mean"].dtype == torch.float32


# --- loops written by hand ---


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
        {"params": list(model.noise.parameters()), "lr": settings.noise_learning_rate or rate},
    ]


def score(model: DeepBasisGP, data: Rows, settings: Settings) -> float:
    """The validation score through the public predictions and metrics."""
    with torch.no_grad():
        predictive = predict(model(data.x), corrected=settings.corrected)
        if settings.objective == "mse":
            return float(metrics.rmse(predictive, data.y)) ** 2
        return float((metrics.crps if settings.selection == "crps" else metrics.nll)(predictive, data.y))


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
            yield objective(model(data.x[rows]), data.y[rows], *scalars, None)

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
            if settings.corrected
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
    assert lab.largest(outcome.parameters, dict(model.named_parameters())) <= tolerance
    written = {name: torch.tensor(values, dtype=torch.float64) for name, values in history.items()}
    assert lab.largest(outcome.history, written) <= tolerance
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
    settings = lab.settings(method, epochs=25, **changes)
    arguments = (lab.data, lab.validation, settings)
    outcome = train(lab.build(method), [member], *arguments)[0]
    assert_is(outcome, minibatches_by_hand(lab.build(method), member, *arguments), 1e-10, lab)


@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf", "sv-rbf", "sv-dkl"])
@pytest.mark.parametrize("count", [1, 3])
def test_exact_training_equals_a_loop_written_by_hand(lab, method, count):
    members, settings = lab.members(count), lab.settings(method, objective="mml", epochs=40)
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
    outcomes = [
        train(lab.build("sv-rbf"), lab.members(1), lab.data, lab.validation, replace(settings, corrected=corrected))[0]
        for corrected in (True, False)
    ]
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
    changes = {"objective": "mml", "epochs": 15}
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


# --- selection ---


def test_the_last_epoch_is_kept_if_that_is_wanted(lab):
    """Of these members it is not always the best; nor does any of them stop early."""
    settings = lab.settings("dbk-silu", epochs=12, learning_rate=0.3, selection="last", patience=1)
    outcomes = train(lab.build(), lab.members(4), lab.data, lab.validation, settings)
    assert [outcome.best_epoch for outcome in outcomes] == [12] * 4
    for outcome in outcomes:
        assert outcome.best_score == outcome.history["validation"][-1]
        model = outcome.model(lab.build())
        assert score(model, lab.validation, settings) == pytest.approx(outcome.best_score, abs=1e-12)
    assert any(outcome.best_score > outcome.history["validation"].min() for outcome in outcomes)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("selection", ["nll", "crps"])
def test_the_best_epoch_is_kept(lab, method, count, selection):
    """The model that comes out has, on the validation data, the best score of the history, and it says so."""
    settings = lab.settings(method, epochs=12, learning_rate=0.05, selection=selection)
    for outcome in train(lab.build(method), lab.members(count), lab.data, lab.validation, settings):
        validation = outcome.history["validation"]
        assert outcome.best_epoch == 1 + int(validation.argmin())
        assert outcome.best_score == float(validation.min())
        assert score(outcome.model(lab.build(method)), lab.validation, settings) == pytest.approx(
            outcome.best_score, abs=1e-12
        )


def test_some_best_epoch_is_not_the_last(lab):
    """That the test above can fail."""
    settings = lab.settings(epochs=12, learning_rate=0.05)
    found = [o.best_epoch for o in train(lab.build(), lab.members(6), lab.data, lab.validation, settings)]
    assert len(set(found)) > 1
    assert min(found) < 12


def test_corrected_methods_are_selected_with_the_correction(lab):
    """The same training, told to predict with and without it: the scores differ, the training does not."""
    runs = [
        train(
            lab.build("pp-dkl"), lab.members(2), lab.data, lab.validation, lab.settings("pp-dkl", corrected=corrected)
        )
        for corrected in (True, False)
    ]
    for corrected, plain in zip(*runs, strict=True):
        assert torch.allclose(corrected.history["train_loss"], plain.history["train_loss"], rtol=1e-12)
        assert abs(corrected.best_score - plain.best_score) > 1e-3


def test_validation_rows_may_be_weighted(lab):
    """A weight k is as good as k equal rows; a weight 0, as none."""
    x, y = lab.validation.x, lab.validation.y
    weight = torch.arange(len(y), dtype=torch.float64) % 4
    repeated = Rows(x.repeat_interleave(weight.long(), 0), y.repeat_interleave(weight.long(), 0))
    runs = [
        train(lab.build(), lab.members(2), lab.data, rows, lab.settings(epochs=8))
        for rows in (Rows(x, y, weight), repeated)
    ]
    plain = train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=8))
    for weighted, counted, unweighted in zip(*runs, plain, strict=True):
        assert lab.difference(weighted, counted) < 1e-12
        assert abs(weighted.best_score - unweighted.best_score) > 1e-4


@pytest.mark.parametrize("count", [1, 3])
def test_validation_in_several_chunks(lab, count):
    """Chunks are never smaller than 1024 rows; the last of these has few."""
    validation = lab.rows(2100, 9)
    settings = lab.settings(epochs=3)
    for outcome in train(lab.build(), lab.members(count), lab.data, validation, settings):
        assert score(outcome.model(lab.build()), validation, settings) == pytest.approx(outcome.best_score, abs=1e-12)


# --- patience ---

RESTLESS = {"epochs": 60, "learning_rate": 0.03}


@pytest.fixture(scope="module")
def runs(lab):
    """The same six members without patience and with it."""
    arguments = (lab.build(), lab.members(6), lab.data, lab.validation)
    return train(*arguments, lab.settings(**RESTLESS)), train(*arguments, lab.settings(**RESTLESS, patience=4))


def first_stop(validation: Tensor, patience: int) -> tuple[int, int]:
    """(the epoch at which a member with this history stops, its best epoch until then)."""
    best, best_epoch = math.inf, 0
    for epoch, value in enumerate(validation.tolist(), 1):
        if value < best:
            best, best_epoch = value, epoch
        elif epoch - best_epoch >= patience:
            return epoch, best_epoch
    return len(validation), best_epoch


def test_a_member_stops_when_it_has_not_improved(runs):
    for free, patient in zip(*runs, strict=True):
        stop, best_epoch = first_stop(free.history["validation"], 4)
        assert stop < 60, "a member that does not stop shows nothing here"
        assert (patient.status, patient.best_epoch) == ("stopped", best_epoch)
        assert patient.best_score == float(free.history["validation"][best_epoch - 1])
        assert "4 epochs" in patient.reason
    stops = [first_stop(free.history["validation"], 4)[0] for free in runs[0]]
    assert len(set(stops)) > 2
    assert any(free.best_score < patient.best_score for free, patient in zip(*runs, strict=True))


def test_a_stopped_members_result_no_longer_changes(lab, runs):
    """It is what a run that ends at that epoch comes to, while the others go on."""
    for free, patient, member in zip(*runs, lab.members(6), strict=True):
        stop, _ = first_stop(free.history["validation"], 4)
        truncated = lab.settings(**{**RESTLESS, "epochs": stop})
        alone = train(lab.build(), [member], lab.data, lab.validation, truncated)[0]
        assert lab.largest(patient.parameters, alone.parameters) < 1e-10
        for name, column in alone.history.items():
            assert torch.allclose(patient.history[name][:stop], column, rtol=0.0, atol=1e-10), name


def test_a_stopped_members_history_ends_where_it_stopped(runs):
    """Among others as alone: what the record of a member says does not depend on who trained beside it."""
    for free, patient in zip(*runs, strict=True):
        stop, _ = first_stop(free.history["validation"], 4)
        assert {name: len(column) for name, column in patient.history.items()} == dict.fromkeys(HISTORY, stop)


def test_a_run_ends_when_all_have_stopped(lab, runs):
    told = []
    train(
        lab.build(),
        lab.members(6),
        lab.data,
        lab.validation,
        lab.settings(**RESTLESS, patience=4),
        progress=told.append,
    )
    stops = [first_stop(free.history["validation"], 4)[0] for free in runs[0]]
    assert [report.epoch for report in told] == list(range(1, max(stops) + 1))
    assert [report.active for report in told] == [
        sum(stop > epoch for stop in stops) for epoch in range(1, max(stops) + 1)
    ]


def test_patience_that_is_never_tried_changes_nothing(lab):
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation)
    for a, b in zip(
        train(*arguments, lab.settings(epochs=10)), train(*arguments, lab.settings(epochs=10, patience=10)), strict=True
    ):
        assert lab.same(a, b)
        assert a.status == "finished"


# --- history ---


@pytest.mark.parametrize(("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "mml"), ("dnn", "mse")])
def test_a_history_has_a_number_an_epoch(lab, method, objective):
    settings = lab.settings(method, objective=objective, epochs=7)
    for outcome in train(lab.build(method), lab.members(2), lab.data, lab.validation, settings):
        assert {name: len(column) for name, column in outcome.history.items()} == dict.fromkeys(HISTORY, 7)
        noise = outcome.model(lab.build(method)).noise().item()
        assert noise == pytest.approx(float(outcome.history["noise"][outcome.best_epoch - 1]), abs=1e-14)
        if method == "dnn":  # its loss does not know the noise
            assert outcome.history["noise"].tolist() == pytest.approx([outcome.member.noise] * 7)
        else:
            assert len(set(outcome.history["noise"].tolist())) == 7


def test_a_longer_run_begins_like_a_shorter_one(lab):
    arguments = (lab.build("dbk-rbf"), lab.members(3), lab.data, lab.validation)
    short, long = (train(*arguments, lab.settings("dbk-rbf", epochs=epochs)) for epochs in (4, 9))
    for a, b in zip(short, long, strict=True):
        assert all(torch.equal(a.history[name], b.history[name][:4]) for name in HISTORY)


@pytest.mark.parametrize("batch_size", [16, 50])
@pytest.mark.parametrize("changes", [{}, {"schedule": "cosine", "average": 0.9, "warmup_steps": 2}], ids=str)
def test_several_passes_an_epoch_are_the_same_steps_validated_less_often(lab, batch_size, changes):
    settings = lab.settings(batch_size=batch_size, selection="last", **changes)
    one, several = (
        train(lab.build(), lab.members(2), lab.data, lab.validation, replace(settings, epochs=epochs, passes=passes))
        for epochs, passes in ((6, 1), (2, 3))
    )
    for a, b in zip(one, several, strict=True):
        for name, value in a.parameters.items():
            assert torch.equal(value, b.parameters[name])
        assert torch.equal(a.history["validation"][2::3], b.history["validation"])
        torch.testing.assert_close(a.history["train_loss"].view(2, 3).mean(1), b.history["train_loss"])


def test_an_exact_epoch_is_one_step(lab):
    with pytest.raises(InputError, match="passes must be 1 in exact training"):
        lab.settings(objective="mml", passes=2)


def test_training_is_reproducible(lab):
    arguments = (lab.build("dbk-rbf"), lab.members(3), lab.data, lab.validation, lab.settings("dbk-rbf"))
    assert all(lab.same(a, b) for a, b in zip(train(*arguments), train(*arguments), strict=True))


# --- learning rates, schedules, clipping ---


def first_steps(lab, epochs: int = 1, **changes: object) -> dict[str, Tensor]:
    """How far each parameter of two members is moved by the first steps, of one batch an epoch."""
    settings = lab.settings(epochs=epochs, batch_size=50, **changes)
    wave = lab.wave(lab.build(), lab.members(2), settings)
    before = {name: value.clone() for name, value in wave.stack.stacked().items()}
    after = lab.epochs(wave, epochs).group("parameters")
    return {name: after[name] - before[name] for name in before}


@pytest.mark.parametrize(
    ("name", "part"), [("noise_learning_rate", "noise."), ("posterior_learning_rate", "posterior.")]
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
            OBJECTIVES["dppgp"](model(lab.data.x[rows]), lab.data.y[rows], *scalars, None).backward()
            optimiser.step()
            scheduler.step()
        validation.append(score(model, lab.validation, settings))
    assert outcome.history["validation"].tolist() == pytest.approx(validation, rel=0.0, abs=1e-10)


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
        gradients = [leaf.grad.view(4, -1) for leaf in each.optimiser.leaves.values() if leaf.grad is not None]
        norms.append(torch.cat(gradients, 1).norm(dim=1))
    assert bool((norms[0] <= 0.05 * (1 + 1e-12)).all())
    assert bool((norms[1] > 0.05).all())


def test_a_clip_that_is_never_reached_changes_nothing(lab):
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation)
    for a, b in zip(train(*arguments, lab.settings()), train(*arguments, lab.settings(clip=1e9)), strict=True):
        assert lab.same(a, b)


# --- weights ---


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
    settings = lab.settings(method, objective=objective, epochs=15, batch_size=1000)
    runs = [
        train(lab.build(method), lab.members(count), rows, lab.validation, settings)
        for rows in (Rows(x, y, weight), repeated, lab.data)
    ]
    for weighted, counted, unweighted in zip(*runs, strict=True):
        assert lab.difference(weighted, counted) < 1e-9
        assert lab.largest(weighted.parameters, unweighted.parameters) > 1e-3


# --- precision ---


@pytest.mark.parametrize("count", [1, 3])
def test_bf16_trains_close_to_float32(lab, count):
    arguments = (lab.build(), lab.members(count), lab.data, lab.validation)
    full, half = (train(*arguments, lab.settings(precision=p, epochs=20)) for p in ("float32", "bf16"))
    for a, b in zip(full, half, strict=True):
        assert 0.0 < lab.largest(a.parameters, b.parameters) < 0.3
        assert b.best_score == pytest.approx(a.best_score, abs=0.1)
        assert {value.dtype for value in b.parameters.values()} == {torch.float32}


def test_bf16_is_for_training_steps_alone(lab):
    """Validation is in float32: the score can be had again from the parameters."""
    settings = lab.settings(precision="bf16")
    outcome = train(lab.build(), lab.members(1), lab.data, lab.validation, settings)[0]
    validation = lab.validation.to(torch.device("cpu"), torch.float32)
    assert score(outcome.model(lab.build()), validation, settings) == pytest.approx(outcome.best_score, abs=1e-6)


def test_float32_is_close_to_float64(lab):
    arguments = (lab.build("dbk-rbf"), lab.members(2), lab.data, lab.validation)
    runs = [train(*arguments, lab.settings("dbk-rbf", precision=p, epochs=10)) for p in ("float64", "float32")]
    for a, b in zip(*runs, strict=True):
        assert 0.0 < lab.largest(a.parameters, b.parameters) < 1e-3


# --- what training leaves alone, and what it refuses ---


def test_the_global_random_state_is_left_alone(lab):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(lab.build("dbk-rbf"), lab.members(3), lab.data, lab.validation, lab.settings("dbk-rbf"), wave_size=2)
    assert torch.equal(torch.rand(3), expected)


def test_training_does_not_depend_on_the_global_random_state(lab):
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings())
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(train(*arguments))
    assert all(lab.same(a, b) for a, b in zip(*runs, strict=True))


def test_the_data_are_left_alone(lab):
    before = [tensor.clone() for tensor in (lab.data.x, lab.data.y, lab.validation.x, lab.validation.y)]
    train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(batch_size=1000))
    after = (lab.data.x, lab.data.y, lab.validation.x, lab.validation.y)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "likelihood"},
        {"schedule": "linear"},
        {"precision": "float16"},
        {"epochs": 0},
        {"epochs": 2.5},
        {"batch_size": -1},
        {"batch_size": "all"},
        {"chunk_rows": 0},
        {"learning_rate": 0.0},
        {"learning_rate": -1e-3},
        {"learning_rate": math.nan},
        {"learning_rate": "fast"},
        {"posterior_learning_rate": 0.0},
        {"noise_learning_rate": math.inf},
        {"weight_decay": -1e-3},
        {"clip": 0.0},
        {"clip": -1.0},
        {"warmup_steps": -1},
        {"warmup_steps": 2.5},
        {"patience": 0},
        {"patience": 1.5},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(changes):
    (name,) = changes
    with pytest.raises(InputError, match=name):
        Settings(**changes)


def test_a_method_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match=r"method.*dbk-silu"):
        settings_for("dbk-silly")


@pytest.mark.parametrize("method", list(METHODS))
def test_settings_for_a_method_are_its_row(method):
    settings = settings_for(method, epochs=3)
    assert (settings.objective, settings.corrected) == (METHODS[method].objective, METHODS[method].corrected)
    assert settings.epochs == 3
    assert settings_for(method, objective="mml").objective == "mml"


def test_a_run_without_members_is_refused(lab):
    with pytest.raises(InputError, match="at least one member"):
        train(lab.build(), [], lab.data, lab.validation, lab.settings())


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_a_wave_of_no_members_is_refused(lab, size):
    with pytest.raises(InputError, match="wave_size"):
        train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(), wave_size=size)


def test_exact_training_of_point_weights_is_refused(lab):
    """A DNN has no distribution over its weights, so there is nothing to be exact about."""
    with pytest.raises(InputError, match=r"mml|exact"):
        train(lab.build("dnn"), lab.members(1), lab.data, lab.validation, lab.settings("dnn", objective="mml"))


def test_data_and_validation_must_have_the_same_columns(lab):
    with pytest.raises(InputError, match="columns"):
        train(lab.build(), lab.members(1), lab.data, lab.rows(20, 3, columns=4), lab.settings())


def test_training_goes_on_inside_a_callers_no_grad(lab):
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=2))
    with torch.no_grad():
        inside = train(*arguments)
    for mine, theirs in zip(inside, train(*arguments), strict=True):
        assert lab.difference(mine, theirs) == 0.0
