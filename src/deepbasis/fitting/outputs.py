"""`OutputsDistribution`: what `predict_dist` gives for several outputs, numpy in and numpy out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from deepbasis.errors import InputError, check_positive_int
from deepbasis.fitting.distribution import PredictiveDistribution, RandomState, frame, generator
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.outputs import Outputs, OutputsLikelihood
from deepbasis.gp.predictive import Predictive
from deepbasis.tables.predictions import OutputColumns, PredictionColumns
from deepbasis.tables.scaler import Several, TargetScaler

Floats = NDArray[np.float64]


class OutputsDistribution(PredictiveDistribution):
    """The predictive distribution of several outputs, m numbers for every row, in their own units.

    What a `PredictiveDistribution` has as [n] this has as [n, m]: mean, std, interval, quantile, cdf, crps. `log_prob`,
    `pdf`, `entropy` and `sample` are of all outputs together. `output(name)` is the distribution of one of them.
    """

    tensors: Outputs

    def __init__(self, tensors: Outputs, names: Sequence[str]) -> None:
        super().__init__(tensors)
        self.names = tuple(names)

    def __getitem__(self, rows: Any) -> OutputsDistribution:
        found = super().__getitem__(rows).tensors
        assert isinstance(found, Outputs)
        return OutputsDistribution(found, self.names)

    def __repr__(self) -> str:
        return f"OutputsDistribution({len(self)} rows of {', '.join(self.names)})"

    def output(self, name: str | int) -> PredictiveDistribution:
        """The distribution of one output, by its name or its number."""
        if isinstance(name, str) and name not in self.names:
            raise InputError(f"there is no output {name!r}: there are {', '.join(map(repr, self.names))}")
        if not isinstance(name, str) and not -len(self.names) <= name < len(self.names):
            raise InputError(f"there is no output {name!r}: there are {len(self.names)}")
        return PredictiveDistribution(self.tensors.each[self.names.index(name) if isinstance(name, str) else name])

    @property
    def correlation(self) -> Floats:
        """[m, m], of what is left of the outputs, as normal scores: the same for all rows."""
        found = self.tensors.correlation
        return np.eye(len(self.names)) if found is None else found.numpy()

    @property
    def covariance(self) -> Floats:
        """[n, m, m], between the outputs of each row."""
        return self.tensors.covariance().numpy()

    def quantile(self, q: ArrayLike) -> Floats:
        """[n, m] at one level between 0 and 1, or [n, m, k] at k levels."""
        return super().quantile(q)

    def survival(self, t: ArrayLike) -> Floats:
        raise InputError("survival is of one output: use output(name).survival(t)")

    def entropy(self) -> Floats:
        """Of all outputs together, in nats: the sum of those of each, and log |R| / 2, which is not above 0."""
        each = sum(self.output(name).entropy() for name in self.names)
        return np.asarray(each + 0.5 * np.linalg.slogdet(self.correlation)[1])

    def to_frame(self, coverage: float | None = 0.95, quantiles: Sequence[float] = (), index: Any = None) -> Any:
        """A pandas DataFrame with the columns of `deepbasis predict`: mean_a, std_a, lower_95_a, ..., mean_b, ..."""
        return frame(OutputColumns(self.names, PredictionColumns(coverage, tuple(quantiles))), self, index)

    def plot(self, ax: Any = None, y: ArrayLike | None = None, coverage: float = 0.95) -> Any:
        raise InputError("a plot is of one output: use output(name).plot()")

    def sample(self, n: int = 1, random_state: RandomState = None) -> Floats:
        """Draws [rows, n, m] of all outputs together, independent between rows."""
        drawn = self.tensors.sample(check_positive_int("n", n), generator(random_state))
        return drawn.transpose(0, 1).contiguous().numpy()


def distribution_of(
    target: TargetScaler, tensors: Predictive, device: torch.device | str = "cpu"
) -> PredictiveDistribution:
    """In the target's units."""
    return (
        OutputsDistribution(tensors, target.outputs)
        if isinstance(tensors, Outputs)
        else PredictiveDistribution(tensors, device)
    )


def output_noises(outputs: Several, models: Sequence[DeepBasisGP]) -> Floats:
    """The noise variance of each output [members, m], in its squared units."""
    noises = [cast(OutputsLikelihood, model.likelihood).noises().detach().double().numpy() for model in models]
    return np.stack(noises)[:, outputs.places] * np.square([one.scale for one in outputs.each])
