"""Training in bf16, float32 and float64."""

import pytest
import torch

from deepbasis.engine.training import train
from support.validation import score


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
