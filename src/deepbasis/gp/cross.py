"""Cross-conformal intervals: every row says something about the level, and every row is fitted.

The rows are cut into K parts. Of each part the depths (`conformal.py`) are those under a model that was fitted to the
other parts alone, so that each part makes a promise of its own, as rows set apart do; a new row has K predictions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.gp.conformal import BEYOND, Conformal, Ends, central, no_groups, outside, tails, unknown_group
from deepbasis.gp.discrete import Discrete
from deepbasis.gp.predictive import Predictive

_HALVINGS = 50


@dataclass(frozen=True)
class CrossConformal:
    """CV+ (Barber et al., 2021), for central intervals of any predictive distribution.

    Row i has the depth d_i under the model of its part, and would take a new y into [l_i, u_i], which that model's
    quantiles of d_i and 1 - d_i are at the new row. With k = floor((n + 1) (1 - coverage)) the interval goes from the
    k-th smallest l_i to the k-th largest u_i.

    What it holds is about `coverage`. What it promises is less, and needs no more than exchangeable rows: an excluded y
    has at most k - 1 rows of its depth or below. In part j of n_j rows it is a p-value, (1 + such rows) / (n_j + 1);
    and a mean of p-values, here with the weights n_j + 1, is at most a with a probability of at most 2 a, whatever
    their dependence (Vovk and Wang, 2020). So the chance of a y outside is at most 2 (k - 1 + K) / (n + K).
    """

    parts: tuple[Conformal, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise InputError("cross-conformal intervals are made from two parts of the rows at least")

    def check_groups(self) -> None:
        if not any(part.groups for part in self.parts):
            raise no_groups()

    def promise(self, coverage: float, name: str | None = None) -> float:
        """The probability that an interval promises, at least: about 1 - 2 (1 - coverage)."""
        sizes = [len(depths) for depths in self._depths(name) if len(depths)]
        k = outside(sum(sizes), coverage, name)
        return max(0.0, 1.0 - 2.0 * (k - 1 + len(sizes)) / (sum(sizes) + len(sizes)))

    def interval(self, predicted: Sequence[Predictive], coverage: float, groups: Sequence[str] | None = None) -> Ends:
        """Of every row, from the predictions of the K models; of each by the rows of its own group, where named."""
        if groups is None:
            return self._interval(predicted, coverage, None)
        self.check_groups()
        lower, upper = (torch.empty_like(predicted[0].mean, dtype=torch.float64) for _ in range(2))
        for name in dict.fromkeys(groups):
            mine = torch.tensor([one == name for one in groups])
            some = [one[mine.numpy()] for one in predicted]
            lower[mine], upper[mine] = self._interval(some, coverage, name)
        return lower, upper

    def _depths(self, name: str | None) -> list[Float[Tensor, " m"]]:
        if name is not None and not any(name in part.groups for part in self.parts):
            raise unknown_group(name)
        return [part.depths_of(name) for part in self.parts]

    def _interval(self, predicted: Sequence[Predictive], coverage: float, name: str | None) -> Ends:
        depths = self._depths(name)
        rows = sum(map(len, depths))
        needed = rows + 1 - outside(rows, coverage, name)  # a y beyond so many of the ends is outside
        used = [(one.double(), own[own >= BEYOND].sort().values) for one, own in zip(predicted, depths, strict=True)]
        used = [(one, own) for one, own in used if len(own)]
        if sum(len(own) for _, own in used) < needed:
            everything = torch.full_like(predicted[0].mean, math.inf, dtype=torch.float64)
            return -everything, everything
        widest = [central(one, float(own[0])) for one, own in used]
        medians = torch.stack([one.quantile(0.5) for one, _ in used])
        lower = _end(used, needed, 0, medians.amax(0), torch.stack([low for low, _ in widest]).amin(0))
        upper = _end(used, needed, 1, medians.amin(0), torch.stack([high for _, high in widest]).amax(0))
        # Of models that contradict each other no y may be left: then what lies between the two ends is given.
        ends = torch.minimum(lower, upper), torch.maximum(lower, upper)
        return _at_values([one for one, _ in used], *ends)


def _end(
    used: Sequence[tuple[Predictive, Tensor]],
    needed: int,
    side: int,
    inside: Float[Tensor, " n"],
    beyond: Float[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """Where, on the way from a y that is inside to one that is beyond all ends, it is beyond so many of them.

    y is beyond the end of row i where its tail under the model of that row is less than d_i. The count of such rows
    rises on the way, so that halving finds the place; what is returned is still beyond it.
    """
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + beyond)
        count = sum(len(own) - torch.searchsorted(own, tails(one, middle)[side], right=True) for one, own in used)
        far = torch.as_tensor(count >= needed)
        inside, beyond = torch.where(far, inside, middle), torch.where(far, middle, beyond)
    return beyond


def _at_values(predicted: Sequence[Predictive], lower: Tensor, upper: Tensor) -> Ends:
    """The ends of an interval of counts or ratings are such values: the outermost that it holds."""
    discrete = [one for one in predicted if isinstance(one, Discrete)]
    if len(discrete) < len(predicted):
        return lower, upper
    values = torch.cat([one.values for one in discrete]).unique()
    last = len(values) - 1
    first = torch.searchsorted(values, lower.contiguous()).clamp_max(last)
    return values[first], values[(torch.searchsorted(values, upper.contiguous(), right=True) - 1).clamp_min(0)]
