"""The 1-D example of Sec. 4.1: a smoothed staircase whose noise is a wave, and the oracle that knows both.

NOTE[DIFF]: the paper prints the standard deviation 2 |sin(10 x)|, with which no model can reach the likelihoods that it
reports (the oracle's NLL is 1.37 nats); with the amplitude 0.4 they fit (-0.24). The amplitude is an argument, 0.4 by
default; `PRINTED_AMPLITUDE` is the paper's.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import check_number, check_positive_int
from deepbasis.gp import metrics
from deepbasis.gp.predictive import Gaussian

AMPLITUDE = 0.4
PRINTED_AMPLITUDE = 2.0


class Draw(NamedTuple):
    x: Float[Tensor, "n 1"]
    y: Float[Tensor, " n"]

    def first(self, n: int) -> "Draw":
        """A random subsample: the rows come in random order. A smaller one is part of every larger one."""
        return Draw(self.x[:n], self.y[:n])


class Draws(NamedTuple):
    """The rows of the experiments: drawn once, the same for every method, seed and n."""

    training: Draw
    validation: Draw
    test: Draw


def true_mean(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """0.3 (1 - s1) + 0.9 (s1 - s2) - 0.6 (s2 - s3), each s a steep logistic step at -0.6, 0 and 0.4."""
    s1, s2, s3 = (torch.sigmoid(200.0 * (x - edge)) for edge in (-0.6, 0.0, 0.4))
    return 0.3 * (1.0 - s1) + 0.9 * (s1 - s2) - 0.6 * (s2 - s3)


def true_std(x: Float[Tensor, " n"], amplitude: float = AMPLITUDE) -> Float[Tensor, " n"]:
    return amplitude * torch.sin(10.0 * x).abs()


def draw(n: int, *, generator: torch.Generator | None = None, amplitude: float = AMPLITUDE) -> Draw:
    """n rows: x uniform in [-1, 1], y normal around the true mean with the true standard deviation."""
    check_positive_int("n", n)
    check_number("amplitude", amplitude, at_least=0.0)
    x = torch.rand(n, generator=generator) * 2.0 - 1.0
    return Draw(x[:, None], true_mean(x) + true_std(x, amplitude) * torch.randn(n, generator=generator))


def oracle(x: Float[Tensor, "n 1"], amplitude: float = AMPLITUDE) -> Gaussian:
    """The distribution that the targets at `x` were drawn from: nothing can predict better."""
    inputs = x[:, 0]
    return Gaussian(true_mean(inputs), true_std(inputs, amplitude).square())


def experiment_data(
    *,
    training: int = 100_000,
    validation: int = 1_000,
    test: int = 1_000,
    amplitude: float = AMPLITUDE,
    seed: int = 0,
) -> Draws:
    """App. B: 100,000 rows to train on, of which smaller sets are subsamples, 1,000 to validate and 1,000 to test.

    With another amplitude x is the same, and so is each row's noise as a share of its standard deviation.
    """
    generator = torch.Generator().manual_seed(seed)
    return Draws(*(draw(n, generator=generator, amplitude=amplitude) for n in (training, validation, test)))


def oracle_scores(rows: Draw, amplitude: float = AMPLITUDE) -> dict[str, float]:
    """MAE, NLL, CRPS and the rest of the oracle on these very rows: what a perfect model would score there."""
    return metrics.evaluate(oracle(rows.x, amplitude), rows.y)
