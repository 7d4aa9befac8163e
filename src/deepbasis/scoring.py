"""Scores of whole distributions for scikit-learn: `GridSearchCV(..., scoring=deepbasis.scoring.crps)`.

Each is a function of an estimator, a table and its targets. As scikit-learn wants it, more is better: a score is the
negative of the NLL, the CRPS or the interval score, in mean over the rows. The estimator is a `DeepBasisRegressor`, a
`Pipeline` that ends in one, or a search over either. Of counts, `exposure` says what each was counted over; a search
hands it on, if scikit-learn's metadata routing is on.

Examples
--------
>>> import numpy as np
>>> from sklearn.model_selection import cross_val_score
>>> from deepbasis import DeepBasisRegressor, scoring
>>> X = np.random.default_rng(0).uniform(-1, 1, size=(60, 1))
>>> model = DeepBasisRegressor(method="dbk-silu", members=1, epochs=5, random_state=0)
>>> scores = cross_val_score(model, X, np.sin(3 * X[:, 0]), scoring=scoring.crps, cv=2)
>>> bool((scores < 0).all())  # minus the CRPS
True
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import MetadataRequest

from deepbasis.errors import InputError
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.fitting.fitted import Fitted
from deepbasis.tables.targets import check_targets, check_weight


def nll(
    estimator: BaseEstimator,
    X: Any,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    exposure: ArrayLike | None = None,
) -> float:
    """The mean log density of the targets: minus the NLL, in nats."""
    return _mean(_predicted(estimator, X, exposure).log_prob(check_targets(y)), sample_weight)


def crps(
    estimator: BaseEstimator,
    X: Any,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    exposure: ArrayLike | None = None,
) -> float:
    """Minus the mean CRPS, in the target's units."""
    return -_mean(_predicted(estimator, X, exposure).crps(check_targets(y)), sample_weight)


def interval_score(
    estimator: BaseEstimator,
    X: Any,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    exposure: ArrayLike | None = None,
    *,
    coverage: float = 0.95,
) -> float:
    """Minus the mean of width + 2 / (1 - coverage) * distance of the target from the interval, if it lies outside."""
    lower, upper = _predicted(estimator, X, exposure).interval(coverage)
    target = check_targets(y)
    outside = np.maximum(lower - target, 0.0) + np.maximum(target - upper, 0.0)
    return -_mean(upper - lower + 2.0 / (1.0 - coverage) * outside, sample_weight)


def _routing(name: str) -> MetadataRequest:
    """To scikit-learn: with metadata routing on, an exposure that a search is given comes here too."""
    request = MetadataRequest(owner=name)
    for parameter, wanted in (("exposure", True), ("sample_weight", False)):
        request.score.add_request(param=parameter, alias=wanted)
    return request


for _score in (nll, crps, interval_score):
    _score.get_metadata_routing = partial(_routing, _score.__name__)  # type: ignore[attr-defined]


def predict_dist(estimator: BaseEstimator, X: Any, exposure: ArrayLike | None = None) -> PredictiveDistribution:
    """The distribution of every row, also through a pipeline or a search, which have no `predict_dist` themselves.

    Of counts with a rate, that of an `exposure` for each row, in place of 1.
    """
    regressor, table = _last_step(estimator, X)
    found: PredictiveDistribution = regressor.predict_dist(table)
    return found if exposure is None else found.exposed(exposure)


def _last_step(estimator: BaseEstimator, X: Any) -> tuple[Any, Any]:
    """What predicts a distribution, and the table as it comes to it."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline):
        return _last_step(estimator[-1], estimator[:-1].transform(X) if len(estimator) > 1 else X)
    if not hasattr(estimator, "predict_dist"):
        raise InputError(
            f"{type(estimator).__name__} predicts no distribution: give a DeepBasisRegressor, or a pipeline with one"
        )
    return estimator, X


def _predicted(estimator: BaseEstimator, X: Any, exposure: ArrayLike | None) -> PredictiveDistribution:
    """The same, to be scored."""
    fitted = getattr(_last_step(estimator, X)[0], "fitted_", None)
    if isinstance(fitted, Fitted):
        fitted.target.check_exposed(exposure is not None)
    return predict_dist(estimator, X, exposure)


def _mean(values: NDArray[np.float64], weight: ArrayLike | None) -> float:
    values = values if values.ndim == 1 else values.mean(1)  # over several outputs
    return float(np.average(values, weights=None if weight is None else check_weight(weight, len(values))))
