"""What the engine's tests have in common: a small problem, small models, and comparisons of what was trained.

All of it is in one fixture, `lab`, since pytest's `importlib` mode lets no test file import another.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import Outcome, WaveState
from deepbasis.engine.members import Build, Member
from deepbasis.engine.settings import Settings, settings_for
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build as build_model
from deepbasis.gp.model import DeepBasisGP

D, N, BATCH = 3, 50, 16  # three full batches, and a last one of two rows


@dataclass(frozen=True, repr=False)
class Lab:
    data: Rows
    validation: Rows

    @staticmethod
    def rows(n: int, seed: int, columns: int = D) -> Rows:
        """A smooth function of the first three columns, with noise, in float64."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, columns, dtype=torch.float64, generator=generator)
        noise = 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
        return Rows(x, torch.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + noise)

    @staticmethod
    def build(method: str = "dbk-silu", *, d: int = D, rank: int = 6, width: int = 8, **sizes: Any) -> Build:
        def build(member: Member) -> DeepBasisGP:
            return build_model(
                method, d, rank=rank, width=width, noise=member.noise, seed=member.seed, **{"blocks": 1, **sizes}
            )

        return build

    @staticmethod
    def uncorrected(method: str) -> Build:
        """Models of the method that predict, and are trained exactly, without the correction that it has."""

        def build(member: Member) -> DeepBasisGP:
            model = Lab.build(method)(member)
            model.corrected = False
            return model

        return build

    @staticmethod
    def members(count: int) -> list[Member]:
        """Members that differ in everything that may differ."""
        return [
            Member(seed=7 + 3 * k, alpha=0.01 * (k + 1), beta=0.02 * (k + 1), noise=0.02 * (k + 1))
            for k in range(count)
        ]

    @staticmethod
    def settings(method: str = "dbk-silu", **changes: Any) -> Settings:
        small = {"precision": "float64", "batch_size": BATCH, "learning_rate": 1e-2, "epochs": 5, "chunk_rows": 20}
        return settings_for(method, **{**small, **changes})

    def wave(self, build: Build, members: list[Member], settings: Settings, device: str = "cpu") -> Wave:
        indices = list(range(len(members)))
        wave = Wave(build, indices, members, self.data, self.validation, settings, torch.device(device))
        wave.prepare()
        return wave

    @staticmethod
    def epochs(wave: Wave, count: int) -> WaveState:
        """The whole state of a wave after so many epochs."""
        for _ in range(count):
            assert wave.train_epoch(lambda: False)
            wave.end_epoch()
        return wave.export()

    @staticmethod
    def same(mine: Outcome, theirs: Outcome) -> bool:
        """Bit for bit, in everything; NaN equals NaN."""
        words = [(o.member, o.status, o.reason, o.best_epoch, o.best_score) for o in (mine, theirs)]
        return words[0] == words[1] and all(
            a.keys() == b.keys() and all(_bits(a[name], b[name]) for name in a)
            for a, b in ((mine.parameters, theirs.parameters), (mine.history, theirs.history))
        )

    @staticmethod
    def difference(mine: Outcome, theirs: Outcome) -> float:
        """The largest absolute difference of any parameter, any number of the history, and the best score."""
        assert (mine.member, mine.status, mine.best_epoch) == (theirs.member, theirs.status, theirs.best_epoch)
        found = [abs(mine.best_score - theirs.best_score)]
        for a, b in ((mine.parameters, theirs.parameters), (mine.history, theirs.history)):
            found.append(Lab.largest(a, b))
        return float(torch.tensor(found).max())  # NaN if any is

    @staticmethod
    def largest(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
        """The largest absolute difference between two sets of tensors; NaN if one has it where the other has not."""
        assert mine.keys() == theirs.keys()
        assert all(mine[name].shape == theirs[name].shape for name in mine)
        pairs = [(mine[name].detach().double(), theirs[name].detach().double()) for name in mine]
        differences = [torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs()) for a, b in pairs]
        return float(torch.cat([difference.flatten() for difference in differences]).max())


def _bits(mine: Tensor, theirs: Tensor) -> bool:
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    return mine.numpy().tobytes() == theirs.numpy().tobytes()


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """Many small runs. Nothing is large enough for two threads, and those that wait for each other are slow on a busy
    machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab(Lab.rows(N, 1), Lab.rows(45, 2))


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the engine has logged at level WARNING so far."""
    caplog.set_level(logging.WARNING, logger="deepbasis")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "deepbasis"]


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
