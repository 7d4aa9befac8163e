"""Fits as the estimator makes them, with something that looks on after every epoch."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from deepbasis import DeepBasisRegressor
from deepbasis.fitting.data import TableData
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.run import fit_stream, fit_table
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.fitting.train import Execution
from deepbasis.progress import EpochReport
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def power_failure() -> None:
    raise RuntimeError("the power failed")


@dataclass
class Watch:
    """A `Progress`: notes (number of the training, epoch), and acts once, after this epoch of this training."""

    training: int = 0
    epoch: int = 0
    act: Callable[[], None] = lambda: None
    seen: list[tuple[int, int]] = field(default_factory=list)
    reports: list[EpochReport] = field(default_factory=list)

    def __call__(self, report: EpochReport) -> None:
        number, last = self.seen[-1] if self.seen else (0, 0)
        self.seen.append((number + (report.epoch <= last), report.epoch))
        self.reports.append(report)
        if self.seen[-1] == (self.training, self.epoch):
            self.act()

    def of(self, training: int) -> list[EpochReport]:
        return [report for (number, _), report in zip(self.seen, self.reports, strict=True) if number == training]

    @property
    def trainings(self) -> int:
        return len({number for number, _ in self.seen})


def prepared(model: DeepBasisRegressor, X: Any, y: Any, **more: Any) -> tuple[Spec, Plan, TableData]:
    spec = Spec.of(model)
    validation = partial(Table.for_validation, more["X_val"], more["y_val"]) if "X_val" in more else None
    data = TableData.of(spec, Table.read(X, y, more.get("sample_weight"), more.get("groups")), validation)
    return spec, make_plan(spec, data.facts(spec)), data


def fit(model: DeepBasisRegressor, X: Any, y: Any, execution: Execution, **more: Any) -> Fitted:
    """What `model.fit(X, y)` would give."""
    return fit_table(*prepared(model, X, y, **more), execution)


def prepared_stream(model: DeepBasisRegressor, data: Path, target: str, **more: Any) -> tuple[Spec, Plan, StreamData]:
    spec, source = Spec.of(model), Source.open(data, drop=more.get("drop", ()))
    stream = StreamData.of(spec, source, Roles.of(source, target), None, more.get("limit"))
    return spec, make_plan(spec, stream.facts(spec), more.get("max_steps")), stream


def fit_streamed(model: DeepBasisRegressor, data: Path, target: str, execution: Execution, **more: Any) -> Fitted:
    """What `model.fit_dataset(data, target, stream=True)` would give."""
    return fit_stream(*prepared_stream(model, data, target, **more), execution)


def watched(model: DeepBasisRegressor, X: Any, y: Any, **more: Any) -> tuple[Fitted, Watch]:
    watch = Watch()
    return fit(model, X, y, Execution(progress=watch), **more), watch


def as_model(fitted: Fitted) -> DeepBasisRegressor:
    """An estimator that has this fit."""
    model = DeepBasisRegressor()
    model.fitted_ = fitted
    return model
