"""Checkpoints with the right checksum and anything inside: each is refused, or resumed to an end that makes sense."""

import random
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepbasis import storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import KIND, Outcome
from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.errors import DeepBasisError
from deepbasis.gp.build import build
from deepbasis.gp.methods import METHODS
from deepbasis.progress import EpochReport
from support.forging import FORGERIES, forged, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("one_thread")]

MEMBERS = [Member(seed=seed, noise=0.1) for seed in (3, 1, 2)]
RUNS = {
    "dbk-silu": {"epochs": 6, "patience": 2},
    "dbk-rbf": {"epochs": 6, "schedule": "cosine", "average": 0.9},
    "exact": {"epochs": 6, "objective": "mml"},
    "muon": {"epochs": 6, "optimiser": "muon", "average": 0.9, "clip": 1.0},
    "lbfgs": {"epochs": 6, "objective": "mml", "optimiser": "lbfgs"},
}


class Enough(Exception):
    """Ends a run from outside, as a crash would."""


def run(name: str, path: Path | None, stop: int | None = None) -> list[Outcome]:
    """Two members, then one; stopped after so many epochs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, dtype=torch.float64, generator=generator)
    rows = Rows(x, torch.sin(x[:, 0]) + 0.1 * torch.randn(40, dtype=torch.float64, generator=generator))
    told: list[EpochReport] = []

    def progress(report: EpochReport) -> None:
        told.append(report)
        if len(told) == stop:
            raise Enough

    method = name if name in METHODS else "dbk-silu"
    return train(
        lambda member: build(method, 2, rank=3, width=4, blocks=1, noise=member.noise, seed=member.seed),
        MEMBERS,
        rows,
        rows,
        Settings(**{"batch_size": 20, "precision": "float64", **RUNS[name]}),
        checkpoint=path,
        checkpoint_seconds=0.0,
        wave_size=2,
        progress=progress,
    )


def check(outcomes: list[Outcome]) -> None:
    """A member has the parameters of its best epoch, or has failed and says so."""
    assert [outcome.member for outcome in outcomes] == MEMBERS
    for outcome in outcomes:
        assert outcome.status in ("finished", "stopped", "failed")
        if outcome.best_epoch:
            assert outcome.best_score == outcome.history["validation"][outcome.best_epoch - 1]
            assert all(bool(value.isfinite().all()) for value in outcome.parameters.values())
        else:
            assert outcome.status == "failed"
            assert outcome.reason


@pytest.mark.parametrize("stop", [4, 9])
@pytest.mark.parametrize("name", RUNS)
def test_a_forged_checkpoint_is_refused_or_resumed(
    tmp_path: Path, name: str, stop: int, record_property: Callable[[str, object], None]
) -> None:
    """Numbers that a run could have written, such as another weight, are taken for its own."""
    path = tmp_path / "run"
    with pytest.raises(Enough):
        run(name, path, stop)
    tensors, metadata = storage.load(path, KIND)
    check(run(name, path))
    rng = random.Random(f"{name} {stop}")
    seen: Counter[str] = Counter()
    for number in range(-(-FORGERIES // (2 * len(RUNS)))):
        write(path, KIND, *forged(tensors, metadata, rng))
        try:
            check(run(name, path))
            seen["resumed"] += 1
        except DeepBasisError as error:
            seen[type(error).__name__] += 1
        except BaseException:
            pytest.fail(f"forgery {number}: {traceback.format_exc()}")
    record_property("right", seen["resumed"])
    record_property("refused", seen.total() - seen["resumed"])
    assert seen["resumed"] < 0.3 * seen.total(), seen
