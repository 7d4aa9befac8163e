"""Where training starts: what the rows tell before it.

NOTE[DIFF]: the paper starts at a noise variance of 0.01 whatever the data. That is `recipe="paper"`.
"""

import math
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Build, Member
from deepbasis.fitting.plan import Architecture, Candidate
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
    x, y = _some(rows.x).double(), _some(rows.y).double()
    w = torch.ones_like(y) if rows.weight is None else _some(rows.weight).double()
    w = w / w.sum()
    x, y = x - w @ x, y - w @ y
    eye = torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    slope = torch.linalg.solve((w[:, None] * x).mT @ x + _RIDGE * eye, (w * y) @ x)
    left, variance = (float(w @ z.square()) for z in (y - x @ slope, y))
    return Line(tuple(slope.tolist()), left, variance, 1.0 / float(w.square().sum()))


def starting_noise(line: Line, likelihood: str = "gaussian") -> float:
    """A noise variance to start from."""
    return float(LIKELIHOODS[likelihood].starting_noise(line.variance_left))


def starting_members(candidate: Candidate, seeds: list[int], line: Line | None, start_from_data: bool) -> list[Member]:
    """All seeds for each (alpha, beta). The `line` gives the noise to start from, and the slopes of prior means.

    Both are rounded: their last digits depend on the number of threads, and a checkpoint on all digits.
    """
    noise = Member().noise
    if line is not None and start_from_data:
        noise = float(f"{starting_noise(line, candidate.architecture.likelihood):.3g}")
    slopes = _slopes_by_turns(line, candidate.architecture.trend)
    return [
        Member(seed=seed, alpha=alpha, beta=beta, noise=noise, slope=slope)
        for alpha, beta in candidate.weights
        for seed, slope in zip(seeds, cycle(slopes), strict=False)
    ]


def _slopes_by_turns(line: Line | None, trend: str) -> list[tuple[float, ...]]:
    if line is None or trend == "none":
        return [()]
    slope = tuple(round(value, 6) + 0.0 for value in line.slope)  # + 0.0: not -0.0
    return [slope] if trend == "linear" else [(0.0,) * len(slope), slope]


def distinct_rows(rows: Rows) -> int:
    """The most inducing points that make sense: those at equal rows would differ by rounding only."""
    return len(torch.unique(_some(rows.x), dim=0))


def builder(architecture: Architecture, columns: int, at: Rows | None = None) -> Build:
    """Makes members' models; with `at` their embedding and their kernel start from these rows, if they can."""
    some = None if at is None else _some(at.x)

    def build(member: Member) -> DeepBasisGP:
        model = architecture.build(columns, member)
        if some is not None:
            model.start_at(some, torch.Generator().manual_seed(member.seed))
        return model

    return build


def _some(column: Tensor) -> Tensor:
    return column[:: -(-len(column) // _MOST_ROWS)]
