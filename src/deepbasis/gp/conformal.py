"""Conformal intervals: central intervals of a predictive distribution, at a level that other rows have set.

The depth of a target y under a prediction with the distribution function F is min(F(y), 1 - F(y-)). The central
interval from the quantile of t to that of 1 - t holds y where its depth is at least t. So an interval keeps its promise
if t is the right quantile of depths, whatever the predictions are worth; poor ones only make it wide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from deepbasis.errors import InputError, check_number, check_share
from deepbasis.gp.discrete import Discrete
from deepbasis.gp.predictive import Predictive, Targets, as_targets

MOST_ROWS = 100_000
"""That a promise is made from."""

BEYOND = 1e-12
"""A depth below it has no digits left in 1 - depth: such a target counts as beyond everything."""

Ends = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]


def tails(predicted: Predictive, y: Targets) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """F(y) and 1 - F(y-): the chances of at most y, and of at least y."""
    target = as_targets(y, predicted.mean)
    below = upto = predicted.cdf(target)
    if isinstance(predicted, Discrete):  # an interval with y at its end holds it
        below = upto - predicted.log_prob(target).exp()
    return upto, 1.0 - below


def depths(predicted: Predictive, y: Targets) -> Float[Tensor, " n"]:
    """Of each target: 1/2 is the median, 0 is beyond everything."""
    return torch.minimum(*tails(predicted, y)).clamp(0.0, 0.5)


def central(predicted: Predictive, depth: float) -> Ends:
    """The interval that holds targets of at least this depth: from 1/2, a point, to 0, everything."""
    if depth < BEYOND:
        everything = torch.full_like(predicted.mean, math.inf)
        return -everything, everything
    # A hair wider: a target at the end is inside, whatever the rounding of its quantile.
    return predicted.interval(1.0 - 2.0 * min(depth * (1.0 - 1e-9), 0.5 - 1e-9))


def outside(rows: int, coverage: float, group: str | None = None) -> int:
    """How many of the ranks that a new row may have among so many others lie outside of its interval.

    That is floor((rows + 1) (1 - coverage)). Where it is 0 only everything would be held for sure, and that is refused.
    """
    asked = check_number("coverage", coverage, above=0.0)
    k = math.floor((rows + 1) * (1.0 - asked) + 1e-9)
    if k < 1:
        where = "" if group is None else f" of the group '{group}'"
        raise InputError(
            f"coverage of {coverage:g} can be guaranteed from {math.ceil(1.0 / (1.0 - asked) - 1e-9) - 1} rows on, and "
            f"the promise of this fit rests on {rows}{where}; ask for less, or fit to more rows"
        )
    return k


def unknown_group(name: str) -> InputError:
    return InputError(f"groups: the promise of this fit rests on no row of the group '{name}'")


def no_groups() -> InputError:
    return InputError("groups: the model was fitted without groups, and promises nothing for each of them")


@dataclass(frozen=True)
class Conformal:
    """The depths of rows that no part of the fit has seen; of each group by itself, where there are groups.

    Split conformal prediction (Vovk et al., 2005; Lei et al., 2018): if these n rows and a new one are exchangeable,
    the new target is in its interval with a probability of at least `coverage`, over draws of all n + 1. Per group
    (Mondrian) the same holds for the rows of each group.
    """

    depths: Float[Tensor, " n"]
    group: Int[Tensor, " m"]
    """The number of each row's group; 0 without groups."""
    groups: tuple[str, ...] = ()
    """Their names."""

    @classmethod
    def of(cls, predicted: Predictive, y: Targets, groups: Sequence[str] | None = None) -> "Conformal":
        """Of predictions and targets of rows that had no part in making the predictions."""
        names = {name: k for k, name in enumerate(dict.fromkeys(groups or [""]))}
        depth = depths(predicted, y).double()
        group = torch.tensor([names[name] for name in groups]) if groups else torch.zeros(len(depth), dtype=torch.int64)
        return cls(depth, group, tuple(names) if groups else ())

    def __post_init__(self) -> None:
        count = max(1, len(self.groups))
        if self.depths.dtype != torch.float64 or self.group.dtype != torch.int64 or self.depths.dim() != 1:
            raise InputError("depths are a vector of float64, and the numbers of groups one of int64")
        if not 0 < len(self.depths) <= MOST_ROWS or self.group.shape != self.depths.shape or count > len(self.group):
            raise InputError(
                f"there must be from 1 to {MOST_ROWS} depths, a group for each, and no more groups than rows"
            )
        if not bool(((self.depths >= 0.0) & (self.depths <= 0.5)).all()):
            raise InputError("a depth lies between 0 and 1/2")
        if not bool(((self.group >= 0) & (self.group < count)).all()) or len(set(self.groups)) < len(self.groups):
            raise InputError("a row is of a group without a name, or two groups have one name")

    def tensors(self) -> dict[str, Tensor]:
        return {"depths": self.depths, "group": self.group}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor] | None, groups: Any) -> "Conformal | None":
        """From `tensors` and the names of its groups; both may be missing. Anything else is a `ValueError`."""
        if tensors is None and groups is None:
            return None
        if tensors is None or not isinstance(groups, list) or not all(type(name) is str for name in groups):
            raise ValueError("its promise has no rows, or groups without names")
        return cls(groups=tuple(groups), **tensors)

    def check_groups(self) -> None:
        if not self.groups:
            raise no_groups()

    def promise(self, coverage: float, name: str | None = None) -> float:
        """The probability that an interval promises: at least `coverage`."""
        rows = len(self.depths_of(name))
        return 1.0 - outside(rows, coverage, name) / (rows + 1)

    def level(self, coverage: float, name: str | None = None) -> float:
        """The depth t with P(depth of a new row < t) <= 1 - coverage: of n + 1 ranks it has any, with equal chance."""
        if name is not None and name not in self.groups:
            raise unknown_group(name)
        own = self.depths_of(name)
        return float(own.kthvalue(outside(len(own), coverage, name)).values)

    def depths_of(self, name: str | None) -> Float[Tensor, " m"]:
        """Those of a group; there may be none. None is everyone."""
        if name is None:
            return self.depths
        return self.depths[self.group == self.groups.index(name)] if name in self.groups else self.depths[:0]

    def interval(self, predicted: Predictive, coverage: float, groups: Sequence[str] | None = None) -> Ends:
        """Of every row; of each by the rows of its own group, where groups are named."""
        if groups is None:
            return central(predicted, self.level(coverage))
        self.check_groups()
        lower, upper = torch.empty_like(predicted.mean), torch.empty_like(predicted.mean)
        for name in dict.fromkeys(groups):
            mine = torch.tensor([one == name for one in groups])
            lower[mine], upper[mine] = central(predicted[mine.numpy()], self.level(coverage, name))
        return lower, upper


# ---- rows in the order of time ---------------------------------------------------------------------------------------

_TAIL = 1e-4  # a depth; beyond it intervals go on in proportion, since depths there have few digits
_TAIL_SCORE = 3.719016485455709  # that of a normal variable
_LEAST_SIDE = 0.1  # of an interval, from the median to the tail, beside that of a Gaussian of the same variance
_LEAST, _MOST = math.log(1e-3), math.log(1e30)  # the scores that are told apart
_CORRECTION, _MOST_CORRECTION = 0.1, 0.5  # beside the rate: of a row, and at most of a batch


def _sides(predicted: Predictive) -> tuple[Tensor, Tensor, Tensor]:
    """The median, and the ways from there to both tails."""
    low, middle, high = predicted.quantile([_TAIL, 0.5, 1.0 - _TAIL]).double().unbind(1)
    least = (_LEAST_SIDE * _TAIL_SCORE * predicted.variance.double().sqrt()).clamp_min(torch.finfo(low.dtype).tiny)
    return middle, torch.maximum(middle - low, least), torch.maximum(high - middle, least)


def stretches(predicted: Predictive, y: Targets) -> Float[Tensor, " n"]:
    """Of each target, how far out it is: under a Gaussian, |y - mean| / std. The larger, the farther, and finite.

    That is -Phi^-1(depth), and in the tails its distance from the median in units of the tail's own.
    """
    depth = depths(predicted, y).double()
    found = -torch.special.ndtri(depth.clamp_min(_TAIL))
    far = (depth < _TAIL).nonzero()[:, 0]
    if len(far):
        middle, below, above = _sides(predicted[far])
        way = as_targets(y, predicted.mean)[far].double() - middle
        beyond = torch.where(way < 0.0, -way / below, way / above)
        found[far] = _TAIL_SCORE * beyond.clamp_min(1.0 + 1e-9)
    return found


def stretched(predicted: Predictive, score: float) -> Ends:
    """The interval that holds targets of at most this score."""
    if score <= _TAIL_SCORE:
        return central(predicted, 0.5 * math.erfc(score / math.sqrt(2.0)))
    middle, below, above = _sides(predicted)
    ratio = score / _TAIL_SCORE * (1.0 + 1e-9)
    return (middle - ratio * below).to(predicted.mean), (middle + ratio * above).to(predicted.mean)


@dataclass
class AdaptiveIntervals:
    """Intervals for rows in the order of time, whose coverage holds while the rows drift (Gibbs and Candes, 2021).

    `interval` of the next rows, then `update` with their targets once they are known. A row beyond the level makes it
    larger by a share of `rate` x `coverage`, any other smaller by `rate` x (1 - `coverage`): row by row, however many
    come at once. What the intervals that were given have held corrects it, by a tenth of that. So the share of T rows
    outside differs from 1 - `coverage` by at most 10 (R + 1.1 `rate`) / (`rate` T), one row at a time and whatever the
    rows are, where e^R is the ratio of the largest to the smallest of their scores (`stretches`, from 0.001 on).
    Intervals are finite.

    Examples
    --------
    >>> import torch
    >>> from deepbasis import AdaptiveIntervals, Gaussian
    >>> predicted = Gaussian(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    >>> adaptive = AdaptiveIntervals(coverage=0.9)
    >>> for _ in range(20):  # targets far outside: the intervals become wider
    ...     adaptive.update(predicted, torch.tensor([3.0]))
    >>> lower, upper = adaptive.interval(predicted)
    >>> bool(upper >= 3.0)
    True
    """

    coverage: float = 0.9
    rate: float = 0.04
    followed: float = field(init=False)
    """The log of a score that follows the rows, one at a time."""
    corrected: float = field(init=False, default=0.0)
    """What is added to it, by what the given intervals have held."""

    def __post_init__(self) -> None:
        tail = 0.5 * (1.0 - check_share("coverage", self.coverage))
        check_number("rate", self.rate, above=0.0)
        self.followed = math.log(-float(torch.special.ndtri(torch.tensor(tail, dtype=torch.float64))))

    def level(self) -> float:
        """The score of targets that the next interval just holds: of a Gaussian, standard deviations from the mean."""
        return math.exp(min(max(self.followed + self.corrected, _LEAST), _MOST))

    def interval(self, predicted: Predictive) -> Ends:
        return stretched(predicted, self.level())

    def update(self, predicted: Predictive, y: Targets) -> None:
        """With the targets of the rows whose intervals were given last."""
        scores = stretches(predicted, y).tolist()
        if any(map(math.isnan, scores)):
            raise InputError("y has NaN: update with the rows whose targets are known")
        self.follow(scores)

    def follow(self, scores: Sequence[float]) -> None:
        """The same, with the scores of these targets."""
        level, missed, rows = self.level(), 1.0 - self.coverage, len(scores)
        outside = sum(score > level for score in scores) / max(1, rows)
        for score in scores:
            self.followed += self.rate * ((math.log(score) > self.followed if score > 0.0 else False) - missed)
            self.followed = min(max(self.followed, _LEAST), _MOST)
        self.corrected += min(_CORRECTION * self.rate * rows, _MOST_CORRECTION) * (outside - missed)
