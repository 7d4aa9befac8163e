"""Small models of every method of the package, inputs for them, and how close two tensors should be."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from deepbasis.gp.build import build
from deepbasis.gp.model import DeepBasisGP
from support.own import METHODS

D, R, H = 3, 10, 8
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
methods = pytest.mark.parametrize("method", list(METHODS))
with_weights = pytest.mark.parametrize("method", [m for m in METHODS if m != "dnn"])


def small(method: str, dtype: torch.dtype = torch.float64, **options: object) -> DeepBasisGP:
    return build(method, D, **{"rank": R, "width": H, "seed": 0, **options}).to(dtype)


def inputs(n: int = 20, dtype: torch.dtype = torch.float64, seed: int = 5) -> Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def follows(values: Tensor, law: str, *parameters: float) -> bool:
    return stats.kstest(values.detach().double().flatten().numpy(), law, args=parameters).pvalue > 1e-3
