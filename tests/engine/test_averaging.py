"""The running average of the parameters: its formula, that it is what is validated and kept, and that a run resumes."""

import pytest
import torch
from torch import nn

from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from deepbasis.gp import metrics
from deepbasis.gp.model import DeepBasisGP


@pytest.mark.parametrize("count", [1, 3])
def test_it_is_the_average_of_the_steps(lab, count):
    wave = lab.wave(lab.build(), lab.members(count), lab.settings(average=0.6))
    expected = {name: leaf.detach().clone() for name, leaf in wave.stack.leaves.items()}
    step, t = wave.step, 0

    def watched() -> None:
        nonlocal t
        step()
        t += 1
        d = min(0.6, (1 + t) / (10 + t))
        for name, leaf in wave.stack.leaves.items():
            expected[name] = d * expected[name] + (1.0 - d) * leaf.detach()

    wave.step = watched
    lab.epochs(wave, 3)
    assert t == 12
    assert lab.largest(wave.descent.average.mean, expected) < 1e-14


def test_training_itself_does_not_see_it(lab):
    """The parameters go the same way, whatever is kept beside them: the average takes their place only to validate."""
    plain, averaged = (lab.wave(lab.build(), lab.members(2), lab.settings(average=a)) for a in (None, 0.9))
    lab.epochs(plain, 3)
    lab.epochs(averaged, 3)
    assert all(torch.equal(averaged.stack.leaves[name], leaf) for name, leaf in plain.stack.leaves.items())
    assert lab.largest(averaged.descent.average.mean, dict(averaged.stack.leaves)) > 1e-3


def test_a_validation_that_fails_leaves_the_parameters_as_they_were(lab):
    fails = False

    def build(member: Member) -> DeepBasisGP:
        model = lab.build()(member)

        def perhaps_fail(network: nn.Module, inputs: object) -> None:
            if fails:
                raise MemoryError

        model.backbone.register_forward_pre_hook(perhaps_fail)
        return model

    wave = lab.wave(build, lab.members(2), lab.settings(average=0.9))
    lab.epochs(wave, 1)
    before = {name: leaf.detach().clone() for name, leaf in wave.stack.leaves.items()}

    fails = True
    with pytest.raises(MemoryError):
        wave.close()
    assert all(torch.equal(wave.stack.leaves[name], value) for name, value in before.items())


def test_a_decay_of_zero_is_no_average(lab):
    arguments = (lab.build(), lab.members(2), lab.data, lab.validation)
    for mine, theirs in zip(
        train(*arguments, lab.settings(average=0.0)), train(*arguments, lab.settings()), strict=True
    ):
        assert lab.difference(mine, theirs) < 1e-12


@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
def test_what_is_kept_is_what_was_validated(lab, method):
    build = lab.build(method)
    settings = lab.settings(method, average=0.9, epochs=8)
    for outcome in train(build, lab.members(2), lab.data, lab.validation, settings):
        with torch.no_grad():
            prediction = outcome.model(build).predict(lab.validation.x)
        assert float(metrics.nll(prediction, lab.validation.y)) == pytest.approx(outcome.best_score, abs=1e-12)


def test_a_resumed_run_ends_bit_equal(lab, tmp_path):
    class Enough(Exception):
        pass

    def stop(report) -> None:
        if report.epoch == 3:
            raise Enough

    arguments = (lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(average=0.9, epochs=6))
    file = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(Enough):
        train(*arguments, **file, progress=stop)
    for mine, theirs in zip(train(*arguments, **file), train(*arguments), strict=True):
        assert lab.same(mine, theirs)


def test_a_member_alone_and_among_others(lab):
    members, settings = lab.members(4), lab.settings(average=0.95)
    among = train(lab.build(), members, lab.data, lab.validation, settings)
    alone = train(lab.build(), members[2:3], lab.data, lab.validation, settings)
    assert lab.difference(alone[0], among[2]) < 1e-10


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"average": 1.0}, "below 1"), ({"average": -0.1}, ">= 0"), ({"average": 0.9, "objective": "mml"}, "exact")],
)
def test_what_makes_no_sense_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Settings(**changes)
