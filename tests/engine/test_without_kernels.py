"""Where the fused kernels cannot be compiled, everything goes the plain way, and the log says so."""

from importlib import import_module

import pytest
import torch

from deepbasis.engine.fused.machine import available, interpreted
from deepbasis.engine.members import Ensemble, Member

pytestmark = pytest.mark.skipif(
    not available() or interpreted() or torch.cuda.is_available(),
    reason="Triton can run the kernels here, or is not there",
)


@pytest.fixture
def tried(monkeypatch) -> None:
    """The kernels are tried although there is no GPU: Triton finds no driver to compile them for."""
    for name in ("tiles", "updates"):
        import_module(f"deepbasis.engine.fused.{name}")  # made for a GPU, before it is said that there is none
    monkeypatch.setenv("TRITON_INTERPRET", "1")


SIZES = {"width": 16, "inner": 32, "rank": 16, "blocks": 2}


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize("members", [1, 3])
def test_training_is_that_of_the_plain_way(lab, tried, warnings_logged, optimiser, members):
    """To the bit: parameters, memories and history."""
    how = {"optimiser": optimiser, "average": 0.9, "schedule": "cosine", "clip": 0.5, "precision": "float32"}
    team = [Member(seed=k, noise=0.1) for k in range(members)]
    plain = lab.wave(lab.build(**SIZES), team, lab.settings(**how, fused=False))
    assert warnings_logged() == []
    begun = lab.wave(lab.build(**SIZES), team, lab.settings(**how))
    assert begun.fused is None
    (line,) = warnings_logged()
    assert "cannot be compiled" in line
    assert "plain way" in line
    for _ in range(2):
        expected, found = lab.epochs(plain, 1), lab.epochs(begun, 1)
        for name, value in expected.tensors.items():
            assert torch.equal(found.tensors[name], value), name


@pytest.mark.parametrize("members", [1, 3])
def test_predictions_are_those_of_the_plain_way(lab, tried, warnings_logged, monkeypatch, members):
    """To the bit, and the log says so once."""
    models = [lab.build(**SIZES)(Member(seed=k, noise=0.1)).float() for k in range(members)]
    ensemble, x = Ensemble(models), lab.data.x.float()
    found = [ensemble.predict(x), ensemble.predict(x)]
    means = ensemble.means(x)
    (line,) = warnings_logged()
    assert "cannot be compiled" in line
    assert "plain way" in line
    monkeypatch.delenv("TRITON_INTERPRET")  # now the kernels are not tried at all
    plain = Ensemble(models)
    for one in found:
        assert torch.equal(one.mean, plain.predict(x).mean)
        assert torch.equal(one.variance, plain.predict(x).variance)
    assert torch.equal(means, plain.means(x))
    assert len(warnings_logged()) == 1
