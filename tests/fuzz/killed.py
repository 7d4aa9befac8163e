"""Work that is killed again and again, for `test_killed.py`: python killed.py {save,fit,predict,update} DIRECTORY KILLS

torch is imported once; each piece of work is a fork of this process. Prints one JSON object with what was seen.
"""

import json
import math
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from deepbasis import DeepBasisRegressor, cli
from deepbasis.fitting.train import Execution
from deepbasis.storage import write_atomically

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.regressors import small
from support.runs import fit_streamed


class Killer:
    """Runs work in children and kills them at any moment of their lives."""

    def __init__(self, kills: int) -> None:
        self.kills_wanted, self.kills, self.finished = kills, 0, 0
        self.lifetime = math.inf

    def start(self, work: Callable[[], Any]) -> int:
        child = os.fork()
        if child:
            return child
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def end(self, child: int, after: float = math.inf) -> bool:
        """Kill it after so many seconds. Whether it has come to its end; one that failed ends everything."""
        begun = time.monotonic()
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() - begun > after:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
        if not os.WIFSIGNALED(found[1]) and os.WEXITSTATUS(found[1]):
            sys.exit("a child failed")
        if not os.WIFSIGNALED(found[1]):
            self.lifetime = min(self.lifetime, time.monotonic() - begun)
        return not os.WIFSIGNALED(found[1])

    def rounds(self, work: Callable[[], Any], after: Callable[[bool], None]) -> None:
        """Until there were enough kills: start it, kill it, and look at what it left. It always gets a little
        further, so that it comes to its end now and then."""
        assert self.end(self.start(work))
        after(True)
        while self.kills < self.kills_wanted:
            finished = self.end(self.start(work), random.uniform(0.0, 0.7 * self.lifetime))
            self.kills += not finished
            self.finished += finished
            after(finished)
        assert self.end(self.start(work))
        after(True)
        self.finished += 1


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["a", "b", "c"])
    found["price"] = np.sin(found["a"]) + 0.1 * rng.normal(size=rows)
    return found


def fitted(seed: int) -> DeepBasisRegressor:
    rows = table(200, seed)
    return small(epochs=2).fit(rows[["a", "b", "c"]], rows["price"])


def save(folder: Path, killer: Killer) -> dict[str, Any]:
    """One model over another, again and again: the file is always one of the two."""
    models, path = [fitted(0), fitted(1)], folder / "model.safetensors"
    whole = []
    for model in models:
        model.save(path)
        whole.append(path.read_bytes())
    seen = [0, 0]

    def work() -> None:
        for k in range(40):
            models[(k + 1) % 2].save(path)

    def after(finished: bool) -> None:
        seen[whole.index(path.read_bytes())] += 1  # a ValueError if it is neither

    killer.rounds(work, after)
    models[0].save(path)
    return {"seen": seen}


def update(folder: Path, killer: Killer) -> dict[str, Any]:
    """`deepbasis update` over the model's own file, again and again: it is always the old one or the new one."""
    path, new = folder / "model.safetensors", folder / "new.csv"
    fitted(0).save(path)
    table(3_000, 1).to_csv(new, index=False)
    old = path.read_bytes()

    def learn() -> None:
        cli.app(["update", str(path), str(new), "--quiet"], standalone_mode=False)

    learn()
    whole = [old, path.read_bytes()]
    assert whole[0] != whole[1]
    seen = [0, 0]

    def work() -> None:
        for _ in range(10):
            write_atomically(path, old)
            learn()

    def after(finished: bool) -> None:
        seen[whole.index(path.read_bytes())] += 1  # a ValueError if it is neither
        assert DeepBasisRegressor.load(path).rows_ in (200, 3_200)

    killer.rounds(work, after)
    new.unlink()
    return {"seen": seen}


def fit(folder: Path, killer: Killer) -> dict[str, Any]:
    """A streamed fit with a checkpoint after each epoch: what is resumed ends, byte for byte, as if never killed."""
    (folder / "rows").mkdir()
    for k in range(3):
        table(300, k).to_parquet(folder / "rows" / f"{k}.parquet", row_group_size=100)
    checkpoint, result = folder / "run.ckpt", folder / "model.safetensors"
    wholes: list[bytes] = []

    def work() -> None:
        found = fit_streamed(
            small(epochs=12, batch_size=64), folder / "rows", "price", Execution(checkpoint, checkpoint_seconds=0.0)
        )
        found.save(result)

    def after(finished: bool) -> None:
        if finished:
            wholes.append(result.read_bytes())
            checkpoint.unlink()
            result.unlink()

    killer.rounds(work, after)
    shutil.rmtree(folder / "rows")
    return {"different": len(set(wholes)) - 1, "results": len(wholes)}


def predict(folder: Path, killer: Killer) -> dict[str, Any]:
    """A folder of predictions: every part that is there is whole, and a run that ends has them all."""
    (folder / "rows").mkdir()
    for k in range(12):
        table(2_000, k).drop(columns="price").to_parquet(folder / "rows" / f"{k}.parquet", row_group_size=500)
    model, out = fitted(0), folder / "out"
    whole: dict[str, bytes] = {}
    parts: set[int] = set()

    def work() -> None:
        model.predict_dataset(folder / "rows", out)

    def after(finished: bool) -> None:
        files = out.rglob("*") if out.exists() else ()
        found = {str(file.relative_to(out)): file.read_bytes() for file in files if file.is_file()}
        found = {name: content for name, content in found.items() if not name.endswith(".tmp")}
        if not whole:
            whole.update(found)
        assert all(whole[name] == content for name, content in found.items())
        assert not finished or found.keys() == whole.keys()
        parts.add(len(found))
        if finished:
            shutil.rmtree(out)

    killer.rounds(work, after)
    shutil.rmtree(folder / "rows")
    return {"parts": sorted(parts)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    random.seed(0)
    name, directory, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    one = Killer(count)
    told = {"save": save, "fit": fit, "predict": predict, "update": update}[name](directory, one)
    left = sorted(path.name for path in directory.iterdir())
    print(json.dumps({"kills": one.kills, "finished": one.finished, "left": left, **told}))
