"""Predictions of pandas frames that arrive piece by piece, from Ray Data, Spark or Dask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from os import PathLike, fspath
from typing import Any

from deepbasis.errors import InputError
from deepbasis.fitting import saved
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.kinds import SHARE
from deepbasis.tables.predictions import PredictionColumns


class FramePredictor:
    """frame -> the same rows with the columns of `deepbasis predict`: mean, std, lower_95, upper_95, q_0.1 ...

    It holds the name of a model's file, and reads it when it is first called: a scheduler may send it anywhere that the
    file can be read. Columns are found by name; those named in `keep` are copied to the front, others are left out.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        coverage: float | None = 0.95,
        quantiles: Sequence[float] = (),
        keep: Sequence[str] = (),
    ) -> None:
        self.model = fspath(model)
        self.coverage = None if coverage is None else SHARE.check("coverage", coverage)
        self.quantiles = tuple(SHARE.check("a quantile's level", level) for level in quantiles)
        self.keep = tuple(keep)

    @property
    def columns(self) -> list[str]:
        """Of what it gives; all but those kept are float64."""
        return [*self.keep, *PredictionColumns(self.coverage, self.quantiles).names]

    @cached_property
    def fitted(self) -> Fitted:
        from deepbasis.engine import device as devices

        return saved.load(self.model, devices.present("auto"))

    def __call__(self, frame: Any) -> Any:
        wanted = self.fitted.preprocessor.input_columns
        missing = sorted({*(wanted or ()), *self.keep} - set(frame.columns))
        if missing:
            raise InputError(
                f"the frame has no column {', '.join(map(repr, missing))}, which the model or `keep` names"
            )
        X = frame.drop(columns=[*self.keep]).to_numpy() if wanted is None else frame[wanted]
        found = self.fitted.predict(X).to_frame(self.coverage, self.quantiles, frame.index)
        for position, name in enumerate(self.keep):
            found.insert(position, name, frame[name])
        return found

    def over(self, frames: Iterable[Any]) -> Iterator[Any]:
        """For Spark: `table.mapInPandas(predictor.over, schema)`."""
        return map(self, frames)

    def __getstate__(self) -> dict[str, Any]:
        """Without the model."""
        return {name: value for name, value in vars(self).items() if name != "fitted"}
