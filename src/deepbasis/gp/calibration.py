"""Scale calibration: one factor for all predictive variances, fitted to rows that the model was not trained on."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import NumericalError, check_number, check_same_length, check_tensor
from deepbasis.gp.objectives import Weight
from deepbasis.gp.predictive import GaussianMixture, Predictive

LARGEST_LOG_SCALE = 6.0
"""The scale lies between exp(-6) and exp(6)."""

_GRID_STEP = 0.5  # of log s: a row's NLL changes over distances of about 1
_MOST_STEPS = 100  # Newton's usual number is 5; bisection alone would need about 45
_TOLERANCE = 1e-13  # of log s
_LARGEST_SQUARE = 1e100  # of a standardised residual: sums of its squares stay finite


def variance_scale(predicted: Predictive, y: Float[Tensor, " n"], weight: Weight = None, *, prior_rows: float) -> float:
    """The s that minimises sum_i w_i NLL_i(s) + prior_rows / 2 (log s + 1 / s), with every variance multiplied by s.

    The second term is that of `prior_rows` more rows, each one standard deviation off: it holds s near 1 where there
    are few rows. A row of weight k counts as k rows. One Gaussian has, with z = (y - mean) / std,

        s = (sum_i w_i z_i^2 + prior_rows) / (sum_i w_i + prior_rows).

    A mixture may have several minima: a grid over log s finds the lowest, Newton steps inside a bracket its place.
    """
    check_tensor("y", y, 1)
    check_same_length("y", y, "the prediction", predicted.mean)
    profile = _Profile(predicted, y, weight, check_number("prior_rows", prior_rows, above=0.0))
    steps = round(LARGEST_LOG_SCALE / _GRID_STEP)
    grid = [_GRID_STEP * k for k in range(-steps, steps + 1)]
    best = min(range(len(grid)), key=lambda k: profile.loss(grid[k]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    t = grid[best]
    for _ in range(_MOST_STEPS):
        excess, slope = profile.excess(t)
        low, high = (t, high) if excess < 0.0 else (low, t)
        newton = t - excess / slope if slope > 0.0 else math.nan
        new = newton if low < newton < high else 0.5 * (low + high)
        moved, t = abs(new - t), new
        if moved < _TOLERANCE:
            break
    return math.exp(t)


class _Profile:
    """The loss as a function of t = log s, in float64."""

    def __init__(self, predicted: Predictive, y: Tensor, weight: Weight, prior_rows: float) -> None:
        if not isinstance(predicted, GaussianMixture):
            predicted = GaussianMixture(predicted.mean[None], predicted.variance[None])
        means, variances = predicted.means.double(), predicted.variances.double()
        self.squares = ((y.double() - means) / variances.sqrt()).square().clamp_max(_LARGEST_SQUARE)
        self.log_stds = 0.5 * variances.log()
        if not bool((means + self.log_stds).isfinite().all()):
            raise NumericalError("there are predictions that are not finite: their variance cannot be calibrated")
        self.weight = torch.ones_like(self.squares[0]) if weight is None else weight.double()
        self.prior_rows = prior_rows
        self.rows = float(self.weight.sum()) + prior_rows

    def loss(self, t: float) -> float:
        """But for a constant: NLL_i = t / 2 - log sum_e exp(-log std_e - z_e^2 exp(-t) / 2)."""
        rows = self.weight @ torch.logsumexp(self._exponents(t), 0)
        return 0.5 * (self.rows * t + self.prior_rows * math.exp(-t)) - float(rows)

    def excess(self, t: float) -> tuple[float, float]:
        """t - log((sum_i w_i sum_e p_ie z_ie^2 + n0) / (sum_i w_i + n0)) and its derivative.

        p_ie is member e's share in the density of row i. The value has the sign of the loss's derivative, and is zero
        where that is; it is a straight line for one Gaussian.
        """
        share = torch.softmax(self._exponents(t), 0)
        square = (share * self.squares).sum(0)
        spread = (share * (self.squares - square).square()).sum(0)  # d square / dt = exp(-t) / 2 times this
        total = float(self.weight @ square) + self.prior_rows
        slope = 1.0 - 0.5 * math.exp(-t) * float(self.weight @ spread) / total
        return t - math.log(total / self.rows), slope

    def _exponents(self, t: float) -> Float[Tensor, "e n"]:
        return -self.log_stds - 0.5 * math.exp(-t) * self.squares
