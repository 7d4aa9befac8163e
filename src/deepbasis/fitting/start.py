"""Where training starts: what the rows tell before it.

NOTE[DIFF]: the paper starts at a noise variance of 0.01 whatever the data. That is `recipe="paper"`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Build, Member
from deepbasis.fitting.plan import Architecture, Candidate
from deepbasis.gp.expansion import RBF
from deepbasis.gp.model import DeepBasisGP
from deepbasis.registry import LIKELIHOODS

_MOST_ROWS = 20_000  # of more rows every m-th is used
_RIDGE = 1e-3  # the penalty per row


@dataclass(frozen=True)
class Line:
    """A ridge regression of the target."""

    slope: tuple[float, ...]
    variance_left: float
    variance: float
    """Of the target."""
    rows: float
    """The effective number of rows, given their weights."""

    @property
    def share_left(self) -> float:
        """The share of the variance that it leaves, corrected for its degrees of freedom: many columns fit anything."""
        freedom = self.rows - len(self.slope) - 1
        if freedom <= 0 or self.variance <= 0.0:
            return math.inf
        return self.variance_left / self.variance * self.rows / freedom


def straight_line(rows: Rows) -> Line:
    """Through the rows; one of weight k counts as k."""
    x, y = _some(rows.x).double(), _some(rows.number).double()
    w = torch.ones_like(y) if rows.weight is None else _some(rows.weight).double()
    w = w / w.sum()
    x, y = (x - w @ x) * w.sqrt()[:, None], (y - w @ y) * w.sqrt()
    by_rows = x.shape[0] < x.shape[1]  # (X^T X + c)^-1 X^T y = X^T (X X^T + c)^-1 y: the smaller matrix
    gram = x @ x.mT if by_rows else x.mT @ x
    gram.diagonal().add_(_RIDGE)
    slope = torch.linalg.solve(gram, y) @ x if by_rows else torch.linalg.solve(gram, y @ x)
    left, variance = (float(z.square().sum()) for z in (y - x @ slope, y))
    return Line(tuple(slope.tolist()), left, variance, 1.0 / float(w.square().sum()))


def straight_lines(rows: Rows, outputs: int = 0) -> list[Line]:
    """Through the rows of each member, or through all. With several outputs all that counts is what is left of them."""
    if outputs:
        columns = [straight_lines(replace(rows, y=column)) for column in rows.y.unbind(1)]
        return [
            replace(lines[0], variance_left=math.fsum(line.variance_left for line in lines) / outputs)
            for lines in zip(*columns, strict=True)
        ]
    if rows.weight is None or not rows.of_members:
        return [straight_line(rows)]
    return [straight_line(replace(rows, weight=weight)) for weight in rows.weight]


def starting_members(
    candidate: Candidate, seeds: list[int], lines: Sequence[Line], start_from_data: bool
) -> list[Member]:
    """All seeds for each (alpha, beta). Lines, of all or of each, give noises to start from and slopes of prior means.

    Both are rounded: their last digits depend on the number of threads, and a checkpoint on all digits.
    """
    likelihood = LIKELIHOODS[candidate.architecture.likelihood]
    noises = [Member().noise]
    if lines and start_from_data:
        noises = [float(f"{likelihood.starting_noise(line.variance_left):.3g}") for line in lines]
    slopes = _slopes_by_turns(lines, candidate.architecture.trend)
    return [
        Member(seed=seed, alpha=alpha, beta=beta, noise=noise, slope=slope)
        for alpha, beta in candidate.weights
        for seed, noise, slope in zip(seeds, cycle(noises), cycle(slopes), strict=False)
    ]


def _slopes_by_turns(lines: Sequence[Line], trend: str) -> list[tuple[float, ...]]:
    if not lines or trend == "none":
        return [()]
    slopes = [tuple(round(value, 6) + 0.0 for value in line.slope) for line in lines]  # + 0.0: not -0.0
    return slopes if trend == "linear" else [(0.0,) * len(slopes[0]), slopes[0]]


def distinct_rows(rows: Rows) -> int:
    """The most inducing points that make sense: those at equal rows would differ by rounding only."""
    return len(torch.unique(_some(rows.x), dim=0))


def builder(architecture: Architecture, columns: int, at: Rows | None = None, slopes: Tensor | None = None) -> Build:
    """Makes members' models; with `at` their embedding and their kernel start from these rows, if they can, and with
    `slopes` the kernel's lengthscales."""
    some = None if at is None else _some(at.x)

    def build(member: Member) -> DeepBasisGP:
        model = architecture.build(columns, member)
        if some is not None:
            model.start_at(some, torch.Generator().manual_seed(member.seed))
        if slopes is not None and isinstance(model.expansion, RBF):
            model.expansion.start_as_steep_as(slopes)
        return model

    return build


def _some(column: Tensor) -> Tensor:
    return column[:: -(-len(column) // _MOST_ROWS)]
