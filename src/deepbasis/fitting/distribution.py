"""`PredictiveDistribution`: what `predict_dist` gives, numpy in and numpy out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from deepbasis import plots
from deepbasis.errors import InputError, check_positive_int, check_same_rows
from deepbasis.fitting.kinds import SHARE, check_seed
from deepbasis.gp import censored, metrics
from deepbasis.gp.counts import Counts
from deepbasis.gp.discrete import Discrete
from deepbasis.gp.outputs import Outputs
from deepbasis.gp.predictive import GaussianMixture, Predictive, ndtr
from deepbasis.gp.warps import normal_rule
from deepbasis.tables.predictions import ClassColumns, OutputColumns, PredictionColumns
from deepbasis.tables.targets import check_exposure

Floats = NDArray[np.float64]
RandomState = int | np.random.RandomState | np.random.Generator | None
"""What draws start from."""

_MANY_ROWS = 4_096
_SHOWN = 5  # in a notebook
_NODES = 4.0  # to a standard deviation, of the quadrature of an entropy


class PredictiveDistribution:
    """The predictive distribution of every row, noise included, in the target's units.

    `len(dist)` is the number of rows, and `dist[10:20]` is the distribution of some of them. `tensors` holds the
    same in torch.

    Examples
    --------
    >>> import torch
    >>> from deepbasis import Gaussian
    >>> from deepbasis.fitting.distribution import PredictiveDistribution
    >>> mean, variance = torch.tensor([0.0, 10.0]), torch.tensor([1.0, 4.0])
    >>> dist = PredictiveDistribution(Gaussian(mean.double(), variance.double()))  # as predict_dist gives it
    >>> dist.std
    array([1., 2.])
    >>> lower, upper = dist.interval(0.95)
    >>> upper.round(2)
    array([ 1.96, 13.92])
    >>> dist[:1].cdf([1.96]).round(3)
    array([0.975])
    """

    def __init__(self, tensors: Predictive, device: torch.device | str = "cpu") -> None:
        self.tensors = tensors
        self._device = torch.device(device)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, rows: Any) -> PredictiveDistribution:
        """The distribution of a slice, a mask or a list of rows; a single index gives a distribution of one row."""
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            return PredictiveDistribution(self.tensors[int(rows)], self._device)
        some = self.tensors[rows if isinstance(rows, slice) else np.asarray(rows)]
        return PredictiveDistribution(some, self._device)

    def __repr__(self) -> str:
        return f"PredictiveDistribution({len(self)} rows)"

    def _repr_html_(self) -> str:
        """In a notebook: the first rows as a table, where pandas is there."""
        try:
            shown = self[:_SHOWN].to_frame().to_html(float_format="{:.4g}".format)
        except InputError:
            shown = ""
        return f"{shown}<p>{len(self):,} rows</p>"

    @property
    def mean(self) -> Floats:
        return self.tensors.mean.numpy()

    @property
    def variance(self) -> Floats:
        return self.tensors.variance.numpy()

    @property
    def std(self) -> Floats:
        return self.tensors.std.numpy()

    @property
    def values(self) -> Floats:
        """Of a count or a rating: all that it can be, [k]."""
        return self._discrete().values.numpy()

    @property
    def pmf(self) -> Floats:
        """Of a count or a rating: the probability of every value, [rows, k]."""
        return self._discrete().pmf.numpy()

    def _discrete(self) -> Discrete | Counts:
        if not isinstance(self.tensors, Discrete | Counts):
            raise InputError(
                "only a count or a rating has values with probabilities: fit with target='count' or 'ordinal'"
            )
        return self.tensors

    def quantile(self, q: ArrayLike) -> Floats:
        """[n] at one level between 0 and 1, or [n, k] at k levels."""
        levels = np.asarray(q, dtype=object)
        if levels.ndim > 1 or levels.size == 0:
            raise InputError(f"q must be a level or a list of levels, got {q!r} of shape {levels.shape}")
        checked = [SHARE.check("a quantile's level q", level) for level in levels.reshape(-1)]
        return self._near().quantile(checked if levels.ndim else checked[0]).cpu().numpy()

    def interval(self, coverage: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper end of the central interval: as much probability below it as above it."""
        lower, upper = self._near().interval(SHARE.check("coverage", coverage))
        return lower.cpu().numpy(), upper.cpu().numpy()

    def _near(self) -> Predictive:
        """The same where quantiles are found: on the model's GPU, if there are rows enough to go there."""
        found, device = self.tensors, self._device
        if device.type == "cpu" or not isinstance(found, GaussianMixture) or len(found) < _MANY_ROWS:
            return found
        weights = None if found.weights is None else found.weights.to(device)
        return GaussianMixture(found.means.to(device), found.variances.to(device), weights)

    @property
    def median(self) -> Floats:
        return self.quantile(0.5)

    def survival(self, t: ArrayLike) -> Floats:
        """The probability that the target is above t: [n] for one number, or [n, k] for k of them."""
        times = np.asarray(t, dtype=np.float64)
        if times.ndim > 1 or not np.isfinite(times).all():
            raise InputError(f"t must be a number or a list of numbers, got {t!r}")
        found = np.stack([1.0 - self.cdf(np.full(len(self), one)) for one in np.atleast_1d(times)], 1)
        return found if times.ndim else found[:, 0]

    def exposed(self, exposure: ArrayLike) -> PredictiveDistribution:
        """Of counts with a rate: those of an exposure for each row, in place of 1."""
        if not isinstance(self.tensors, Counts):
            raise InputError("exposure is for counts: fit with likelihood='poisson' or 'negative-binomial'")
        return PredictiveDistribution(self.tensors.exposed(torch.from_numpy(check_exposure(exposure, len(self))).log()))

    def _targets(self, y: Any) -> ArrayLike:
        """A single number is that of every row."""
        is_number = isinstance(y, float | int | np.number | np.ndarray | torch.Tensor) and np.ndim(y) == 0
        found: ArrayLike = np.full(len(self), float(y)) if is_number else y
        return found

    def cdf(self, y: ArrayLike) -> Floats:
        """The probability of at most y: a number for each row, or one for all."""
        return self.tensors.cdf(self._targets(y)).numpy()

    def pdf(self, y: ArrayLike) -> Floats:
        return self.tensors.pdf(self._targets(y)).numpy()

    def log_prob(self, y: ArrayLike) -> Floats:
        return self.tensors.log_prob(self._targets(y)).numpy()

    def crps(self, y: ArrayLike) -> Floats:
        """Continuous ranked probability score, in the target's units."""
        return self.tensors.crps(self._targets(y)).numpy()

    def entropy(self) -> Floats:
        """How uncertain each row is, in nats: E[-log p(y)], of a count or a rating the entropy of its probabilities."""
        if isinstance(self.tensors, Discrete | Counts):
            return torch.special.entr(self.tensors.pmf).sum(1).numpy()
        nodes, shares = normal_rule(torch.zeros((), dtype=torch.float64), _NODES)
        levels = zip(ndtr(nodes).tolist(), shares.tolist(), strict=True)  # y = F^-1(level), level = Phi(z), z normal
        return -sum(share * self.log_prob(self.quantile(level)) for level, share in levels)

    def to_frame(self, coverage: float | None = 0.95, quantiles: Sequence[float] = (), index: Any = None) -> Any:
        """A pandas DataFrame with the columns of `deepbasis predict`: mean, std, lower_95, upper_95, q_0.1 ..."""
        columns = PredictionColumns(None if coverage is None else SHARE.check("coverage", coverage), tuple(quantiles))
        return frame(columns, self, index)

    def plot(self, ax: Any = None, y: ArrayLike | None = None, coverage: float = 0.95) -> Any:
        """The mean and the interval of every row, with the targets `y` if given, on a matplotlib axes.

        Without one a figure is made: `dist[:50].plot().figure`.
        """
        ax = plots.new_figure(6.4, 3.2).subplots() if ax is None else ax
        return plots.intervals(ax, self.mean, *self.interval(coverage), y=y, coverage=coverage)

    def sample(self, n: int = 1, random_state: RandomState = None) -> Floats:
        """Draws [rows, n], independent between rows."""
        return self.tensors.sample(check_positive_int("n", n), generator(random_state)).T.numpy()


def frame(
    columns: PredictionColumns | OutputColumns | ClassColumns, predicted: PredictiveDistribution, index: Any
) -> Any:
    """A pandas DataFrame of such columns."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise InputError("a frame needs pandas: pip install 'deepbasis[tables]'") from None
    return pd.DataFrame(dict(zip(columns.names, columns.numbers(predicted), strict=True)), index=index)


def scores(
    predicted: Predictive,
    y: Floats,
    bounds: Floats | None,
    weight: Floats | None = None,
    outputs: Sequence[str] = (),
) -> dict[str, float]:
    """The metrics of predictions; with `bounds`, those of a censored target; with `outputs`, those of each too."""
    check_same_rows("X", len(predicted), "y", len(y))
    numbers, counted = torch.from_numpy(y), None if weight is None else torch.from_numpy(weight)
    if isinstance(predicted, Outputs):
        return metrics.evaluate_outputs(predicted, numbers, outputs, counted)
    if bounds is None:
        return metrics.evaluate(predicted, numbers, counted)
    lower, upper = torch.from_numpy(bounds).unbind(1)
    return censored.evaluate(predicted, numbers, lower, upper, counted)


def generator(random_state: RandomState) -> torch.Generator:
    """From None numpy's global state is drawn from, as in scikit-learn: `np.random.seed` holds."""
    made = torch.Generator()
    if isinstance(random_state, np.random.Generator):
        return made.manual_seed(int(random_state.integers(2**31 - 1)))
    seed = check_seed("random_state", random_state)
    if not isinstance(seed, int):
        seed = int((np.random if seed is None else seed).randint(2**31 - 1))
    return made.manual_seed(seed)
