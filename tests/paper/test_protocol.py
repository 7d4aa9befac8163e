"""The readings of the paper change what they say, and nothing else."""

import pytest
import torch

from deepbasis.engine.members import Member
from deepbasis.paper.protocol import FAST_LOG, GRID, READINGS, grid


def state(reading: str, method: str = "dbk-silu") -> dict[str, torch.Tensor]:
    model = READINGS[reading].build(method, 3, rank=4, width=5)(Member(seed=1, noise=0.02))
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_zero_start_is_the_only_difference_of_m0():
    usual, zero = state("log, fast"), state("m = 0")
    differing = {name for name in usual if not torch.equal(usual[name], zero[name])}
    assert differing == {"posterior.m"}
    assert zero["posterior.m"].abs().max() == 0.0


def test_both_noises_start_at_the_same_variance():
    for reading in ("log, fast", "clamped"):
        model = READINGS[reading].build("dbk-silu", 3, rank=4, width=5)(Member(seed=1, noise=0.02))
        assert model.noise().item() == pytest.approx(0.02, rel=1e-6)


def test_settings_are_the_papers_but_for_the_reading():
    usual = FAST_LOG.settings("dbk-silu")
    assert (usual.learning_rate, usual.weight_decay, usual.batch_size, usual.epochs) == (1e-3, 1e-2, 1024, 400)
    assert (usual.noise_learning_rate, usual.objective) == (2e-2, "dppgp")
    assert READINGS["log"].settings("dbk-silu").noise_learning_rate == 1e-3
    assert READINGS["detached"].settings("dbk-silu").objective == "dppgp-detached"
    assert READINGS["detached"].settings("pp-dkl").objective == "ppgp"


@pytest.mark.parametrize(
    ("method", "size"), [("dbk-silu", 16), ("dbk-rbf", 16), ("pp-dkl", 4), ("vbll", 1), ("dnn", 1)]
)
def test_the_grid_is_the_papers(method, size):
    members = grid(method, range(5))
    assert len(members) == 5 * size == len(set(members))
    assert {member.seed for member in members} == set(range(5))
    if size == 16:
        assert {(m.alpha, m.beta) for m in members} == {(a, b) for a in GRID for b in GRID}
