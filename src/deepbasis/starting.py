"""Where a training starts: what the rows say before it.

NOTE[DIFF]: the paper starts at a noise variance of 0.01 whatever the data. That is `recipe="paper"`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Build, Member
from deepbasis.gp.expansion import RBF
from deepbasis.gp.model import DeepBasisGP

_MOST_ROWS = 20_000  # of more rows every m-th is looked at
_RIDGE = 1e-3  # the penalty, a row
_LEAST, _MOST = 1e-4, 0.5


@dataclass(frozen=True)
class Line:
    """A ridge regression of the target."""

    slope: Tensor
    variance_left: float
    variance: float
    """Of the target."""
    rows: float
    """As many rows of equal weight would tell as much."""

    @property
    def share_left(self) -> float:
        """What it leaves of the variance, with as many rows fewer as it has numbers: many columns fit anything."""
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
    return Line(slope, left, variance, 1.0 / float(w.square().sum()))


def starting_noise(line: Line) -> float:
    """A noise variance to start from: half of what the line leaves of the target's.

    A network leaves less than a linear function does; how much less is not known yet.
    """
    return min(max(0.5 * line.variance_left, _LEAST), _MOST)


def slopes_by_turns(line: Line | None, trend: str) -> list[tuple[float, ...]]:
    """Of the prior means of members, one after another, and then from the first on again.

    To six places: the last digits depend on the number of threads, and a checkpoint on all of them.
    """
    if line is None or trend == "none":
        return [()]
    slope = tuple(round(value, 6) + 0.0 for value in line.slope.tolist())  # + 0.0: not -0.0
    return [slope] if trend == "linear" else [(0.0,) * len(slope), slope]


def distinct_rows(rows: Rows) -> int:
    """As many inducing points of a shallow kernel can start at rows; of equal ones rounding would decide the ways."""
    return len(torch.unique(_some(rows.x), dim=0))


def at_rows(build: Build, rows: Rows) -> Build:
    """`build`, with the inducing points of a shallow kernel at some of the rows."""
    some = _some(rows.x)

    def started(member: Member) -> DeepBasisGP:
        model = build(member)
        assert isinstance(model.expansion, RBF)
        model.expansion.start_at(some, torch.Generator().manual_seed(member.seed))
        return model

    return started


def _some(column: Tensor) -> Tensor:
    return column[:: -(-len(column) // _MOST_ROWS)]
