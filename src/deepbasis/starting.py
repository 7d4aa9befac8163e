"""Where a training starts: what the rows say before it.

NOTE[DIFF]: the paper starts at a noise variance of 0.01 whatever the data. That is `recipe="paper"`.
"""

import torch

from deepbasis.engine.batches import Rows

MOST_ROWS = 20_000
"""Of more rows than these every m-th is looked at."""

_RIDGE = 1e-3  # the penalty, a row
_LEAST, _MOST = 1e-4, 0.5


def starting_noise(rows: Rows) -> float:
    """A noise variance to start from: half of what a ridge regression leaves of the target's.

    A network leaves less than a linear function does; how much less is not known yet. A row of weight k counts as k.
    """
    every = -(-len(rows) // MOST_ROWS)
    x, y = rows.x[::every].double(), rows.y[::every].double()
    w = torch.ones_like(y) if rows.weight is None else rows.weight[::every].double()
    w = w / w.sum()
    x, y = x - w @ x, y - w @ y
    eye = torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    slope = torch.linalg.solve((w[:, None] * x).mT @ x + _RIDGE * eye, (w * y) @ x)
    return min(max(float(0.5 * (w @ (y - x @ slope).square())), _LEAST), _MOST)
