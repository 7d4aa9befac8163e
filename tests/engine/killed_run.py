"""A training run that is killed again and again, for `test_checkpoint.py`: python killed_run.py DIRECTORY

torch is imported once; each run is a fork of this process, made before torch has started a thread. Prints one JSON
object with what was seen.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from deepbasis import storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import KIND
from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.gp.build import build

KILLS = 24
EPOCHS = 40


def run(checkpoint: Path | None, result: Path) -> None:
    """Three members in two waves; a checkpoint after each epoch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 3, dtype=torch.float64, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(70, dtype=torch.float64, generator=generator)
    outcomes = train(
        lambda member: build("dbk-rbf", 3, rank=6, width=8, blocks=1, noise=member.noise, seed=member.seed),
        [Member(seed=seed, alpha=0.01, beta=0.01, noise=0.1) for seed in (3, 1, 2)],
        Rows(x[:50], y[:50]),
        Rows(x[50:], y[50:]),
        Settings(epochs=EPOCHS, batch_size=16, precision="float64", schedule="cosine", warmup_steps=7, clip=1.0),
        checkpoint=checkpoint,
        checkpoint_seconds=0.0,
        wave_size=2,
    )
    tensors = {f"{k}/{name}": tensor for k, o in enumerate(outcomes) for name, tensor in o.parameters.items()}
    tensors |= {f"{k}/history/{name}": column for k, o in enumerate(outcomes) for name, column in o.history.items()}
    storage.save(result, "result", tensors, {"status": [o.status for o in outcomes]})


def start(work: Callable[[], None]) -> int:
    """Run `work` in a child; the child's process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(child: int) -> str:
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "finished" if os.WEXITSTATUS(status) == 0 else "failed"


def dying_at(name: str, call: int, work: Callable[[], None]) -> Callable[[], None]:
    """`work`, in which the process kills itself at a call of `os.NAME`, one of those that write a file safely."""

    def until_then() -> None:
        plain, calls = getattr(os, name), [0]

        def fatal(*arguments: object) -> object:
            calls[0] += 1
            if calls[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*arguments)

        setattr(os, name, fatal)
        work()

    return until_then


def epochs_in(checkpoint: Path) -> int:
    """Epochs done, of both waves together, 0 if there is no file. A damaged one raises."""
    if not checkpoint.exists():
        return 0
    _, metadata = storage.load(checkpoint, KIND)
    waves_done = {0: 0, 2: 1, 3: 2}[len(metadata["ended"])]
    return waves_done * EPOCHS + sum(state["epoch"] for state in metadata["pending"])


def main(directory: Path) -> None:
    checkpoint, result, whole = directory / "run.ckpt", directory / "result", directory / "whole"
    random.seed(0)
    rounds: list[dict[str, list[object]]] = [{"ends": [], "epochs": []}]
    equal: list[bool] = []
    halves: list[str] = []

    def note(child: int) -> str:
        how = ended(child)
        halves.extend(path.name for path in directory.glob(".*.tmp"))
        rounds[-1]["ends"].append(how)
        rounds[-1]["epochs"].append(epochs_in(checkpoint))
        if how == "finished":
            equal.append(result.read_bytes() == whole.read_bytes())
            checkpoint.unlink()
            result.unlink()
            rounds.append({"ends": [], "epochs": []})
        return how

    begun = time.monotonic()
    assert ended(start(lambda: run(None, whole))) == "finished"
    lifetime = time.monotonic() - begun
    kills = 0
    while kills < KILLS:
        child = start(lambda: run(checkpoint, result))
        time.sleep(random.uniform(0.0, 0.4 * lifetime))
        os.kill(child, signal.SIGKILL)  # one that has finished is not waited for yet: the number is still its own
        how = note(child)
        kills += how == "killed"
        if how == "failed":
            sys.exit("a run failed")
    for name in ("fsync", "replace"):  # and in the middle of a write, on purpose
        for call in (1, 2, 4, 7):
            note(start(dying_at(name, call, lambda: run(checkpoint, result))))
    note(start(lambda: run(checkpoint, result)))
    left = sorted(path.name for path in directory.iterdir())
    print(json.dumps({"rounds": rounds[:-1], "equal": equal, "halves": halves, "left": left}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
