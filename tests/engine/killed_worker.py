"""A run of two workers of which one is killed once, for `test_distributed.py`: torchrun ... killed_worker.py DIRECTORY

Writes into the directory from which epoch each life of the run went on, and how far its end is from one worker's.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from deepbasis.engine import distributed
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build
from deepbasis.progress import EpochReport


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    team = distributed.start("cpu")
    assert team.size == 2
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 3, dtype=torch.float64, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(70, dtype=torch.float64, generator=generator)
    arguments = (
        lambda member: build("dbk-silu", 3, rank=6, width=8, blocks=1, noise=member.noise, seed=member.seed),
        [Member(seed=seed, alpha=0.1, beta=0.01, noise=0.1) for seed in (3, 1, 2)],
        Rows(x[:50], y[:50]),
        Rows(x[50:], y[50:]),
        Settings(epochs=8, batch_size=16, precision="float64", schedule="cosine"),
    )
    lives = directory / "lives"
    told: list[int] = []

    def note(*words: object) -> None:
        with lives.open("a") as file:
            print(*words, file=file)

    def progress(report: EpochReport) -> None:
        if not told:
            note("from epoch", report.epoch)
        told.append(report.epoch)

    plain = Wave.train_epoch

    def fatal(wave: Wave, interrupted: object) -> bool:
        if team.rank == 1 and wave.state.epoch == 4 and "killed" not in lives.read_text():
            note("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(wave, interrupted)  # type: ignore[arg-type]

    Wave.train_epoch = fatal  # type: ignore[method-assign]
    outcomes = train(
        *arguments,
        team=team,
        spread="rows",
        checkpoint=directory / "run",
        checkpoint_seconds=0.0,
        progress=progress,
    )
    if team.first:
        alone = train(*arguments)
        largest = max(
            float((value - b.parameters[name]).abs().max())
            for a, b in zip(outcomes, alone, strict=True)
            for name, value in a.parameters.items()
        )
        (directory / "difference").write_text(str(largest))
    distributed.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
