"""What a fitted regressor can be asked: distributions, intervals, quantiles, draws, scores; of tables and of files."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from deepbasis.arguments import check_level, generator
from deepbasis.budget import Budget, parse_memory
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Ensemble
from deepbasis.errors import InputError, check_number, check_positive_int
from deepbasis.gp import metrics
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import GaussianMixture
from deepbasis.persistence import fingerprint
from deepbasis.progress import RowCounter
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.predictions import PartFiles, PredictionColumns, input_names, open_inputs, part_paths
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.source import Source
from deepbasis.tables.targets import TargetScaler, check_target

_PREDICT_ROWS = 65_536  # transformed and predicted at a time


class Predictions:
    """The half of `DeepBasisRegressor` that is there after a fit."""

    preprocessor_: Preprocessor
    target_: TargetScaler
    models_: list[DeepBasisGP]
    ensemble_: Ensemble
    calibration_: Calibration | None

    def predict_dist(self, X: Any) -> GaussianMixture:
        """The predictive distribution of every row, noise included, in the target's units."""
        return self._predicted(self._chunks(X))

    def _predicted(self, chunks: Iterable[Tensor]) -> GaussianMixture:
        parts = [self.ensemble_.predict(x) for x in chunks]
        means, variances = (
            torch.cat(tensors, 1).double() for tensors in zip(*((p.means, p.variances) for p in parts), strict=True)
        )
        return GaussianMixture(means, variances, parts[0].weights).affine(self.target_.scale, self.target_.mean)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of every row; with `return_std` also the standard deviation."""
        predicted = self.predict_dist(X)
        mean = predicted.mean.numpy()
        return (mean, predicted.std.numpy()) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of the central interval that should hold `coverage` of the targets."""
        lower, upper = self.predict_dist(X).interval(check_number("coverage", coverage))
        return lower.numpy(), upper.numpy()

    def predict_quantiles(self, X: Any, q: ArrayLike) -> NDArray[np.float64]:
        """Quantiles at the levels q [k], as columns [n, k]."""
        given = np.atleast_1d(np.asarray(q, dtype=object))
        if given.ndim != 1 or len(given) == 0:
            raise InputError(f"q must be a level or a list of levels, got {q!r} of shape {given.shape}")
        levels = [check_level(level) for level in given]
        predicted = self.predict_dist(X)
        return np.stack([predicted.quantile(level).numpy() for level in levels], 1)

    def sample_y(
        self, X: Any, n: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> NDArray[np.float64]:
        """Draws of the target [rows, n], independent between rows."""
        n = check_positive_int("n", n)
        return self.predict_dist(X).sample(n, generator(random_state)).T.numpy()

    def sample_functions(
        self, n: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> Callable[[Any], NDArray[np.float64]]:
        """Draws of the noise-free function: X -> [rows, n]; the same n functions at every call.

        Their variance is the calibrated one, by draws that are as much farther from their member's mean. Of a method
        with inducing points, such as the shallow kernels that a small table may have, they lack the correction of
        Eq. 4, which has no weights to draw: far from all rows they are nearer together than `predict_dist` says.
        """
        check_is_fitted(self)
        check_positive_int("n", n)
        draws_from = generator(random_state)
        models = [model.to("cpu") for model in self.models_]
        of_member = torch.randint(len(models), (n,), generator=draws_from).tolist()
        draws = [models[k].sample_functions(1, generator=draws_from) for k in of_member]
        farther = 1.0 if self.calibration_ is None else math.sqrt(self.calibration_.mean_scale)

        @torch.no_grad()
        def drawn(x: Tensor) -> Tensor:
            means = {k: models[k](x).mean for k in set(of_member)}
            return torch.stack(
                [torch.lerp(means[k], draw(x)[0], farther) for k, draw in zip(of_member, draws, strict=True)], 1
            )

        def functions(X: Any) -> NDArray[np.float64]:
            rows = [drawn(x) for x in self._chunks(X)]
            return torch.cat(rows).double().numpy() * self.target_.scale + self.target_.mean

        return functions

    def evaluate(self, X: Any, y: ArrayLike) -> dict[str, float]:
        """MAE, RMSE, NLL, CRPS, coverage and width of the 95 % interval, calibration error, in the target's units."""
        target = check_target(y)
        predicted = self.predict_dist(X)
        if len(predicted.mean) != len(target):
            raise InputError(f"X has {len(predicted.mean)} rows but y has {len(target)}: they must agree")
        return metrics.evaluate(predicted, torch.from_numpy(target))

    def _chunks(self, X: Any) -> Iterator[Tensor]:
        """The rows of X, ready for the models, some at a time."""
        check_is_fitted(self)
        for part in self.preprocessor_.chunks(X, _PREDICT_ROWS):
            yield torch.from_numpy(part).to(self.ensemble_.stack.dtype)

    # ---- files -------------------------------------------------------------------------------------------------

    def predict_dataset(
        self,
        data: Any,
        out: str | PathLike[str],
        *,
        ids: Sequence[str] = (),
        coverage: float | None = 0.95,
        quantiles: Sequence[float] = (),
        memory: int | str | None = None,
        team: Team = ALONE,
        visible: bool = False,
    ) -> list[Path]:
        """Predict a table in files, of any size, into Parquet files of the same names in the folder `out`.

        Each has the columns named by `ids` (of a CSV as they stand in it, which is text), then mean, std, the ends of
        the interval and the quantiles. A part that stands there already, made by this model of this input, is left as
        it is. Workers of a `team` share the files.
        """
        check_is_fitted(self)
        wanted = PredictionColumns(coverage, tuple(check_level(level) for level in quantiles))
        if coverage is not None and not 0.0 < check_number("coverage", coverage) < 1.0:
            raise InputError(f"coverage must lie strictly between 0 and 1, got {coverage!r}")
        source = open_inputs(data, self.preprocessor_, ids)
        paths = part_paths(source, out)
        mine = range(team.rank, len(paths), team.size)
        rows = source.file_rows
        with RowCounter(sum(rows[file] for file in mine), visible and team.first, "predicting") as tell:
            work = self._work(source, wanted, ids, memory, tell)
            for file in mine:
                work.write(file, paths[file])
        return [paths[file] for file in mine]

    def predict_file(
        self,
        path: str | PathLike[str],
        out: str | PathLike[str],
        wanted: PredictionColumns,
        ids: Sequence[str] = (),
        memory: int | str | None = None,
    ) -> None:
        """Predict one file, of any size, into one Parquet file."""
        check_is_fitted(self)
        self._work(open_inputs([path], self.preprocessor_, ids), wanted, ids, memory).write(0, Path(out))

    def _work(
        self,
        source: Source,
        wanted: PredictionColumns,
        ids: Sequence[str],
        memory: int | str | None,
        tell: Callable[[int], None] = lambda rows: None,
    ) -> PartFiles:
        components = len(self.models_) * (1 if self.calibration_ is None else len(self.calibration_.scales))
        numbers = self.preprocessor_.width + 4 * components + len(wanted.names)
        sizes = Budget.of(parse_memory(memory)).sizes(source.row_bytes(), len(source.names), numbers, 8)
        names = input_names(source, self.preprocessor_, ids)

        def predict(block: FileBlock) -> GaussianMixture:
            with block.located():
                x = np.zeros((len(block), self.preprocessor_.width))
                self.preprocessor_.encode([block.column(name) for name in names], x)
            return self._predicted([torch.from_numpy(x).to(self.ensemble_.stack.dtype)])

        return PartFiles(source, names, predict, wanted, ids, fingerprint(self), sizes.block_rows, tell)
