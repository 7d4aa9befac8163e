"""Predictions of pandas frames that arrive piece by piece, from Ray Data, Spark or Dask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from os import PathLike, fspath
from typing import Any

from deepbasis.errors import InputError
from deepbasis.fitting import saved
from deepbasis.fitting.distribution import frame as frame_of
from deepbasis.fitting.files import class_columns
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.kinds import SHARE
from deepbasis.tables.predictions import ClassColumns, OutputColumns, PredictionColumns


class FramePredictor:
    """frame -> the same rows with the columns of `deepbasis predict`: mean, std, lower_95, upper_95, q_0.1 ...

    Of classes they are p_CAT, p_DOG ..., and of several outputs mean_A, std_A ..., mean_B ....

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
        """Of what it gives; all but those kept are float64. The file is read for them."""
        return [*self.keep, *self._predicted.names]

    @property
    def _predicted(self) -> PredictionColumns | OutputColumns | ClassColumns:
        target = self.fitted.target
        if target.classes:
            return class_columns(self.fitted)
        of_each = PredictionColumns(self.coverage, self.quantiles)
        return OutputColumns(target.outputs, of_each) if target.outputs else of_each

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
        if not len(frame):  # a part of a cluster's table, or Dask's question for the columns
            return frame[[*self.keep]].reindex(columns=self.columns)
        X = frame.drop(columns=[*self.keep]).to_numpy() if wanted is None else frame[wanted]
        found = frame_of(self._predicted, self.fitted.predict(X), frame.index)
        for position, name in enumerate(self.keep):
            found.insert(position, name, frame[name])
        return found

    def over(self, frames: Iterable[Any]) -> Iterator[Any]:
        """For Spark: `table.mapInPandas(predictor.over, schema)`."""
        return map(self, frames)

    def __getstate__(self) -> dict[str, Any]:
        """Without the model."""
        return {name: value for name, value in vars(self).items() if name != "fitted"}
