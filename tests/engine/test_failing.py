"""A failing member fails alone; and a run goes on eagerly where it cannot be compiled."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from deepbasis.engine.members import Build, Ensemble, Member
from deepbasis.engine.training import train
from deepbasis.errors import NumericalError
from deepbasis.gp.model import DeepBasisGP


def poisoned(build: Build, seed: int, poison: Callable[[DeepBasisGP], None]) -> Build:
    """`build`, with the model of one seed spoilt."""

    def spoilt(member: Member) -> DeepBasisGP:
        model = build(member)
        if member.seed == seed:
            with torch.no_grad():
                poison(model)
        return model

    return spoilt


def nan_weights(model: DeepBasisGP) -> None:
    model.backbone.project.weight.fill_(math.nan)


def nan_inducing_point(model: DeepBasisGP) -> None:
    model.expansion.Z[0] = math.nan


def equal_inducing_points(model: DeepBasisGP) -> None:
    """Without jitter the second pivot is exactly 0: the factorisation fails, with finite parameters."""
    model.expansion.Z.zero_()
    model.expansion.jitter = 0.0


def absurd_noise(model: DeepBasisGP) -> None:
    model.likelihood.raw.fill_(1e4)  # its exponential is infinite


def overflowing_mean(model: DeepBasisGP) -> None:
    model.mean.fill_(1e30)  # its square is infinite in float32


POISONS = [
    ("dbk-silu", {}, nan_weights, "not finite"),
    ("dbk-silu", {}, absurd_noise, "not finite"),
    ("dbk-silu", {"precision": "float32"}, overflowing_mean, "not finite"),
    ("dbk-silu", {"clip": 1.0, "schedule": "cosine"}, nan_weights, "not finite"),
    ("dbk-rbf", {}, nan_inducing_point, "pivot"),
    ("sv-dkl", {}, nan_inducing_point, "pivot"),
    ("dbk-silu", {"objective": "mml"}, nan_weights, "not finite"),
    ("dbk-silu", {"objective": "mml"}, absurd_noise, "not finite"),
    ("dnn", {}, nan_weights, "not finite"),
]


@pytest.mark.parametrize(("method", "changes", "poison", "says"), POISONS)
def test_the_others_end_as_if_it_had_not_been_there(lab, warnings_logged, method, changes, poison, says):
    members, settings = lab.members(4), lab.settings(method, epochs=8, **changes)
    build = poisoned(lab.build(method), members[2].seed, poison)
    outcomes = train(build, members, lab.data, lab.validation, settings)
    beside = train(lab.build(method), members, lab.data, lab.validation, settings)
    assert [outcome.status for outcome in outcomes] == ["finished", "finished", "failed", "finished"]
    for k in (0, 1, 3):
        assert lab.same(outcomes[k], beside[k])
    bad = outcomes[2]
    assert bad.member == members[2]
    assert bad.reason.startswith("epoch 1: ")
    assert says in bad.reason
    assert (bad.best_epoch, bad.best_score) == (0, math.inf)
    (line,) = warnings_logged()
    assert all(text in line for text in (f"seed={members[2].seed}", "alpha=0.03", "beta=0.06", "noise=0.06", "epoch 1"))
    with pytest.raises(NumericalError, match=rf"seed={members[2].seed}.*epoch 1"):
        bad.model(build)


def test_without_the_failing_member_at_all(lab):
    """A wave of three against the same three in a wave of four."""
    members, settings = lab.members(4), lab.settings("dbk-rbf", epochs=8)
    build = poisoned(lab.build("dbk-rbf"), members[1].seed, nan_inducing_point)
    outcomes = train(build, members, lab.data, lab.validation, settings)
    rest = train(lab.build("dbk-rbf"), [members[k] for k in (0, 2, 3)], lab.data, lab.validation, settings)
    for mine, theirs in zip([outcomes[k] for k in (0, 2, 3)], rest, strict=True):
        assert lab.difference(mine, theirs) <= 1e-12


def test_a_failed_factorisation_of_finite_parameters(lab):
    """All members without jitter, one with equal inducing points."""

    def without_jitter(member: Member) -> DeepBasisGP:
        model = lab.build("dbk-rbf")(member)
        model.expansion.jitter = 0.0
        return model

    members, settings = lab.members(3), lab.settings("dbk-rbf", epochs=5)
    build = poisoned(without_jitter, members[0].seed, equal_inducing_points)
    outcomes = train(build, members, lab.data, lab.validation, settings)
    beside = train(without_jitter, members, lab.data, lab.validation, settings)
    assert outcomes[0].status == "failed"
    assert "could not be factorised" in outcomes[0].reason
    assert all(lab.same(outcomes[k], beside[k]) for k in (1, 2))


@pytest.mark.parametrize("count", [1, 3])
def test_a_member_that_fails_later_keeps_its_best_until_then(lab, count):
    """It fails in epoch 4: what it has is what a run of three epochs has."""
    members, settings = lab.members(count), lab.settings(epochs=7)
    plain = lab.build()

    class Spoilt(nn.Module):
        """The backbone, whose outputs are NaN after the third epoch, in the first member alone."""

        def __init__(self, backbone: nn.Module, is_first: bool) -> None:
            super().__init__()
            self.backbone = backbone
            self.register_buffer("then", torch.tensor(math.nan if is_first else 1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.backbone(x) * (self.then if len(told) >= 3 else 1.0)

    def build(member: Member) -> DeepBasisGP:
        model = plain(member)
        model.backbone = Spoilt(model.backbone, member.seed == members[0].seed)
        return model

    told: list[object] = []
    expected = train(build, members, lab.data, lab.validation, lab.settings(epochs=3))[0]
    outcomes = train(build, members, lab.data, lab.validation, settings, progress=told.append)
    bad = outcomes[0]
    assert (bad.status, bad.reason[:8]) == ("failed", "epoch 4:")
    assert (bad.best_epoch, bad.best_score) == (expected.best_epoch, expected.best_score)
    assert lab.largest(bad.parameters, expected.parameters) == 0.0
    epochs = len(told)
    told.clear()
    predicted = Ensemble([bad.model(build)], dtype=torch.float64).predict(lab.validation.x)
    assert bool(predicted.means.isfinite().all())
    assert [outcome.status for outcome in outcomes[1:]] == ["finished"] * (count - 1)
    assert epochs == (4 if count == 1 else 7), "a run whose members have all failed is over"


def test_a_members_history_ends_where_it_failed(lab):
    """Among others as alone."""
    members, settings = lab.members(3), lab.settings(epochs=5)
    build = poisoned(lab.build(), members[1].seed, nan_weights)
    among = train(build, members, lab.data, lab.validation, settings)[1]
    alone = train(build, members[1:2], lab.data, lab.validation, settings)[0]
    assert [len(column) for column in among.history.values()] == [len(column) for column in alone.history.values()]


def test_all_members_may_fail(lab):
    build = lab.build()

    def all_spoilt(member: Member) -> DeepBasisGP:
        return poisoned(build, member.seed, nan_weights)(member)

    outcomes = train(all_spoilt, lab.members(2), lab.data, lab.validation, lab.settings())
    assert [outcome.status for outcome in outcomes] == ["failed", "failed"]


# --- the fallback from compilation ---


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("when", ["at the first call", "at once"])
def test_a_run_that_cannot_be_compiled_goes_on_eagerly(lab, monkeypatch, warnings_logged, count, when):
    """torch refuses some Pythons and systems at once, most models at the first call."""
    arguments = (lab.build(), lab.members(count), lab.data, lab.validation)
    eager = train(*arguments, lab.settings())

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here\nand a long story")

    monkeypatch.setattr(torch, "compile", refuse if when == "at once" else lambda *_, **__: refuse)
    outcomes = train(*arguments, lab.settings(compile=True))
    assert all(lab.same(a, b) for a, b in zip(outcomes, eager, strict=True))
    assert warnings_logged() == ["torch.compile failed (no compiler here): continuing eagerly"]


def test_exact_training_is_not_compiled_and_says_so(lab, warnings_logged):
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation)
    runs = [train(*arguments, lab.settings(objective="mml", compile=compile)) for compile in (False, True)]
    assert all(lab.same(a, b) for a, b in zip(*runs, strict=True))
    assert warnings_logged() == ["exact training is not compiled: continuing eagerly"]


def test_out_of_memory_while_compiling_is_not_a_fallback(lab, monkeypatch, warnings_logged):
    def starved(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory, for a test")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: starved)
    with pytest.raises(torch.OutOfMemoryError):
        train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(compile=True))
    assert warnings_logged() == ["out of memory with 2 members at a time: continuing with 1"]
