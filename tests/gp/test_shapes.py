"""The checks of shapes that all other tests rely on: a call that looks new is checked."""

import os

import pytest
import torch
from jaxtyping import TypeCheckError

from deepbasis.gp.posterior import WeightPosterior

pytestmark = pytest.mark.skipif(os.environ.get("DEEPBASIS_CHECK_SHAPES", "1") != "1", reason="they are switched off")


def test_a_wrong_shape_is_refused_after_right_ones_and_again():
    posterior = WeightPosterior(3)
    for _ in range(2):
        posterior.covariance(torch.zeros(5, 3))
        for wrong in (torch.zeros(3), torch.zeros(5, 3, 1), torch.zeros(5, 3, dtype=torch.int64)):
            with pytest.raises(TypeCheckError):
                posterior.covariance(wrong)
            with pytest.raises(TypeCheckError):
                posterior.covariance(phi=wrong)
