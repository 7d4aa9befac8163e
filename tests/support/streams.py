"""A table in several files, and what is read of it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor
from deepbasis.engine.distributed import ALONE
from deepbasis.fitting.budget import Sizes
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.plan import Facts, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.streams import Survey, take_survey
from deepbasis.tables.encoded import Encoder
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source

LENGTHS = (700, 300, 0, 1100)


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, text, dates; a target that depends on them; a weight and a group."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "width": rng.uniform(-1, 1, n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            "weight": rng.integers(0, 4, n).astype(float),
            "shop": rng.integers(0, 60, n),
        }
    )
    red = (table["colour"] == "red").to_numpy()
    table["price"] = np.sin(2 * table["size"]) + table["width"] + red + 0.2 * rng.normal(size=n)
    table.loc[rng.random(n) < 0.05, "size"] = np.nan
    return table


DROP = ("weight", "shop")


def small(**changes: Any) -> DeepBasisRegressor:
    given = {
        "method": "dbk-silu",
        "members": 1,
        "rank": 16,
        "width": 16,
        "alpha": 0.1,
        "epochs": 3,
        "batch_size": 64,
        "random_state": 0,
    }
    return DeepBasisRegressor(**{**given, **changes})


class Workers:
    """`size` workers in as many threads: enough of a team for what gathers objects."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(_Worker(self, rank))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class _Worker:
    def __init__(self, team: Workers, rank: int) -> None:
        self._team, self.rank, self.size, self.first = team, rank, team.size, rank == 0

    def gather_objects(self, value: Any) -> list[Any]:
        self._team._values[self.rank] = value
        self._team._barrier.wait()
        everyone = list(self._team._values)
        self._team._barrier.wait()
        return everyone

    def share(self, rows: int) -> int:
        return -(-rows // self.size)


def survey_of(folder: Path, team: Any = ALONE, fraction: float | None = 0.1, **roles: Any) -> Survey:
    drop = [name for name in DROP if name not in roles.values()]
    source = Source.open(folder, drop=drop)
    return take_survey(source, Roles.of(source, "price", **roles), fraction, None, team)


def encoder_of(survey: Survey) -> Any:
    return Encoder(survey.roles, survey.preprocessor(Spec()), survey.statistics.target(), np.dtype(np.float64))


def plan_of(survey: Survey, max_steps: int | None = None, **changes: Any) -> Plan:
    rows, columns = survey.statistics.rows, survey.preprocessor(Spec()).width
    facts = Facts(table_rows=rows, rows=rows, columns=columns, streamed=True)
    return make_plan(Spec.of(small(**changes)), facts, max_steps)


def epoch_of(survey: Survey, epoch: int, team: Any = ALONE, seed: int = 0, **changes: Any) -> list[Any]:
    """The batches of an epoch."""
    encoder = encoder_of(survey)
    with survey.stream(
        encoder, plan_of(survey, **changes), Sizes(block_rows=37, buffer_rows=500), seed, team
    ) as stream:
        return [tuple(part.clone() for part in batch) for batch in stream.open_epoch(epoch)]


def sorted_rows(*parts: NDArray[Any] | torch.Tensor) -> NDArray[np.float64]:
    rows = np.column_stack([np.asarray(part) for part in parts])
    return rows[np.lexsort(rows.T)]
