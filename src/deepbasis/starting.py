"""Where a training starts: what the rows say before it.

NOTE[DIFF]: the paper starts at a noise variance of 0.01 whatever the data. That is `recipe="paper"`.
"""

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Build, Member
from deepbasis.gp.expansion import RBF
from deepbasis.gp.model import DeepBasisGP

_MOST_ROWS = 20_000  # of more rows every m-th is looked at
_RIDGE = 1e-3  # the penalty, a row
_LEAST, _MOST = 1e-4, 0.5


def starting_noise(rows: Rows) -> float:
    """A noise variance to start from: half of what a ridge regression leaves of the target's.

    A network leaves less than a linear function does; how much less is not known yet. A row of weight k counts as k.
    """
    x, y = _some(rows.x).double(), _some(rows.y).double()
    w = torch.ones_like(y) if rows.weight is None else _some(rows.weight).double()
    w = w / w.sum()
    x, y = x - w @ x, y - w @ y
    eye = torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    slope = torch.linalg.solve((w[:, None] * x).mT @ x + _RIDGE * eye, (w * y) @ x)
    return min(max(float(0.5 * (w @ (y - x @ slope).square())), _LEAST), _MOST)


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
