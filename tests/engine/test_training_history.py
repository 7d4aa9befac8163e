"""The history of a run, its epochs and its passes."""

from dataclasses import replace

import pytest
import torch

from deepbasis.engine.checkpoint import HISTORY
from deepbasis.engine.training import train
from deepbasis.errors import InputError


@pytest.mark.parametrize(("method", "objective"), [("dbk-silu", "dppgp"), ("dbk-rbf", "mml"), ("dnn", "mse")])
def test_a_history_has_a_number_an_epoch(lab, method, objective):
    settings = lab.settings(method, objective=objective, epochs=7)
    for outcome in train(lab.build(method), lab.members(2), lab.data, lab.validation, settings):
        assert {name: len(column) for name, column in outcome.history.items()} == dict.fromkeys(HISTORY, 7)
        noise = outcome.model(lab.build(method)).noise().item()
        assert noise == pytest.approx(float(outcome.history["noise"][outcome.best_epoch - 1]), abs=1e-14, nan_ok=True)
        if method == "dnn":  # its loss does not learn a noise
            assert bool(outcome.history["noise"].isnan().all())
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
