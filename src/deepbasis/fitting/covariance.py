"""The covariance between the targets of several rows."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis.errors import InputError
from deepbasis.fitting.distance import apart
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp.likelihoods import GaussianLikelihood


def covariance(fitted: Fitted, X: Any) -> NDArray[np.float64]:
    """Of the targets of all rows together, [rows, rows]: that of f, and the noise on the diagonal.

    Of the mixture of members by the law of total covariance: the mean of their covariances, which calibration
    multiplies by its mean scale, and the covariance of their means, which is larger where a distance widens it.
    """
    target, models = fitted.target, fitted.models
    if target.outputs:
        raise InputError(
            "return_cov is between the rows of one target, and this model has several outputs: fit one for each; "
            "predict_dist(X).covariance is between the outputs of each row"
        )
    if getattr(models[0].likelihood, "latents", 0):
        raise InputError("return_cov is for constant noise: fit with noise='constant'")
    if target.warp is not None or not isinstance(models[0].likelihood, GaussianLikelihood):
        raise InputError(
            f"return_cov is for a target that is not transformed, and this one is ({target.name}): fit with "
            "target='identity', or draw functions with sample_functions"
        )
    x = torch.from_numpy(fitted.preprocessor.transform(X)).to(fitted.dtype).double()
    means, within = [], torch.zeros(len(x), len(x), dtype=torch.float64)
    with torch.no_grad():
        for model in (deepcopy(one).double() for one in models):  # a correction is a difference
            means.append(model.mean_at(x))
            within += model.covariance(x) + model.noise() * torch.eye(len(x), dtype=x.dtype)
    away = apart(fitted.distance, torch.stack(means), x)
    scale = 1.0 if fitted.calibration is None else fitted.calibration.mean_scale
    return ((scale * within + away.mT @ away) * (target.scale**2 / len(models))).numpy()
