"""What training leaves alone, and what it refuses."""

import math

import pytest
import torch

from deepbasis.engine.settings import Settings, settings_for
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from support.own import METHODS


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
        {"margin": -0.01},
        {"margin": math.nan},
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
    assert settings.objective == METHODS[method].objective
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
