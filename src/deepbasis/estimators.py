"""`DeepBasisRegressor`: the scikit-learn face of a fit. What it gives is in `fitted_`; nothing is trained here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from deepbasis.engine import device as devices
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.errors import InputError, check_positive_int
from deepbasis.faces import Face, Prepared, Updating, adopt
from deepbasis.fitting import saved
from deepbasis.fitting.covariance import covariance
from deepbasis.fitting.diagnosis import Diagnosis, existing
from deepbasis.fitting.distribution import PredictiveDistribution, RandomState
from deepbasis.fitting.files import predict_files, prediction_columns, prepare_files
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.promise import check_promised, guaranteed_interval
from deepbasis.fitting.spec import Arguments, RunOptions, Spec, arguments, parameters_section
from deepbasis.gp.predictive import Predictive

Floats = NDArray[np.float64]


NO_EXPOSURE = "this score takes none: take evaluate"
"""What to do where counts cannot be scored."""


class DeepBasisRegressor(RegressorMixin, Face, Updating, BaseEstimator, Arguments):  # type: ignore[misc]
    __doc__ = f"""Regression that predicts a distribution for every row: Gaussian processes with deep basis kernels.

    Parameters
    ----------
{parameters_section()}

    Attributes
    ----------
    plan_ : Plan
        What every "auto" was resolved to: `print(model.plan_)`.
    fitted_ : Fitted
        Everything else that the fit produced.
    method_, embedding_, trend_ : str
        What "auto" was resolved to. `trend_` may be "half": every second member.
    rank_, inner_ : int
        Number of basis functions, and width inside a block. A shallow kernel has no more basis functions than there are
        distinct rows; a linear kernel adds one for each column, and alone it has these and a constant.
    jitter_ : float
        Jitter of the kernel matrix of inducing points, relative to its diagonal.
    history_ : tuple of dict
        For each member "train_loss", "validation" and "noise" (standardised units), one number per epoch. For a
        shallow kernel "validation" includes rows that it was trained on.
    validation_ : dict
        Metrics on the held-out rows, in the target's units. With calibration they are optimistic, because it was fitted
        to the same rows. If members hold out different rows, each row is predicted by the members that have not seen
        it, not by the whole ensemble; for a shallow kernel, by its posterior given the other rows.
    noise_ : ndarray
        Noise variance of each member before calibration, in squared units of the target, or, if it is transformed, of
        the transformed target.
    calibration_ : Calibration or None
        The scales of the predictive variance and their weights.
    alpha_, beta_ : float
        The weights of the regularisers; a shallow kernel has none.
    rows_ : int
        Rows of the fitted table, validation rows included.
    """

    trend_ = property(attrgetter("fitted_.architecture.trend"))
    inner_ = property(attrgetter("fitted_.architecture.inner"))
    jitter_ = property(attrgetter("fitted_.architecture.jitter"))
    noise_ = property(attrgetter("fitted_.noise"))

    # ---- fitting -----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Self:
        """Fit to a table X (array or DataFrame) and a target y; validate on X_val, y_val if given.

        A row of `sample_weight` k counts as k rows: weights that are not counts (areas, 1 / variance) should have a
        mean of 1; otherwise the model assumes more rows, or fewer, than there are. Rows of one value of `groups` (a
        patient, a site) are held out together, so that selection and calibration are for new groups.

        With `lower` and `upper` the target is censored: a row says that it lies between its two bounds, and is exact
        where both are y. Without one of them its bounds are y; infinity, or NaN, is no bound. Counts with a rate may
        have an `exposure`: how long, or over how much, each was counted.
        """
        known = {"X_val": X_val, "y_val": y_val, "lower": lower, "upper": upper, "exposure": exposure}
        return self._take(Prepared.of(Spec.of(self), X, y, sample_weight, groups, **known).fit())

    def plan(self, X: Any, y: ArrayLike, sample_weight: Any = None, groups: Any = None, **given: Any) -> Plan:
        """What `fit`, which takes the same, would do, without doing it."""
        return Prepared.of(Spec.of(self), X, y, sample_weight, groups, **given).plan

    def fit_dataset(
        self,
        data: Any,
        target: str | Sequence[str],
        *,
        weight: str | None = None,
        groups: str | None = None,
        lower: str | None = None,
        upper: str | None = None,
        exposure: str | None = None,
        drop: Collection[str] = (),
        drop_missing_target: bool = False,
        validation: Any = None,
        memory: int | str | None = None,
        stream: bool | None = None,
        max_steps: int | None = None,
        checkpoint: str | PathLike[str] | None = None,
        team: Team = ALONE,
    ) -> Self:
        """Fit to a table in files, of any size: a folder, a pattern, a list of files or a pyarrow data set.

        The files are Parquet or CSV and have the same columns: `target`, or several, perhaps `weight`, `groups`,
        `lower` and `upper` of a censored one, the `exposure` of a count, and inputs, of which those in `drop` are left
        out; with `drop_missing_target` so are rows without a target, unless the table is streamed. `memory` ("2GiB") is
        the limit of the process. A table that does not fit is streamed: the files are read once for statistics, then
        again for training. `stream` forces or forbids that. Streamed rows are held out by a hash of their place, or of
        their group, unless `validation` is another such table. `max_steps` bounds the training. With `checkpoint` a run
        that was stopped resumes from there; if members hold out different rows, each part has its own steps and file,
        `checkpoint`.1, .2, ... Every worker of a `team` makes the same call and reads its part, within `memory` each.
        """
        _, run = prepare_files(
            Spec.of(self),
            data,
            target,
            weight=weight,
            groups=groups,
            lower=lower,
            upper=upper,
            exposure=exposure,
            drop=drop,
            drop_missing_target=drop_missing_target,
            validation=validation,
            options=RunOptions(memory=memory, stream=stream, max_steps=max_steps, checkpoint=checkpoint),
            team=team,
        )
        return self._take(run())

    def _take(self, fitted: Fitted) -> Self:
        """Only now is anything changed: a fit that fails leaves what there was."""
        adopt(self, fitted)
        return self

    # ---- predictions -------------------------------------------------------------------------------------------

    @overload
    def predict_dist(self, X: Any, *, as_tensor: Literal[False] = False) -> PredictiveDistribution: ...
    @overload
    def predict_dist(self, X: Any, *, as_tensor: Literal[True]) -> Predictive: ...
    def predict_dist(self, X: Any, *, as_tensor: bool = False) -> PredictiveDistribution | Predictive:
        """The predictive distribution of every row, noise included, in the target's units: in numpy, or in torch."""
        check_is_fitted(self)
        predicted = self.fitted_.predict(X)
        return predicted.tensors if as_tensor else predicted

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean of every row; with `return_std` also the standard deviation, with `return_cov` also the covariance.

        The covariance [rows, rows] is that of the targets of all rows together, noise included. Rows that are near each
        other, to the model, err together.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise InputError("return_std and return_cov cannot both be True: the covariance has the variances")
        fitted = self.fitted_
        if return_cov:
            return fitted.mean(X), covariance(fitted, X)
        if not return_std:
            return fitted.mean(X)
        predicted = fitted.predict(X)
        return predicted.mean, predicted.std

    def predict_interval(
        self, X: Any, coverage: float = 0.95, *, guarantee: bool = False, groups: ArrayLike | None = None
    ) -> tuple[Floats, Floats]:
        """Lower and upper end of the central interval that should hold `coverage` of the targets.

        With `guarantee`, after a fit with `calibrate="conformal"`, it does: if a new row and those that the fit set
        apart are exchangeable, with at least this probability; and for each of the `groups`, if the fit had some. With
        "cross-conformal" about this share is held, and about 1 - 2 (1 - `coverage`) is promised.
        """
        check_is_fitted(self)
        check_promised(self.fitted_, None, guarantee, groups is not None)
        if not guarantee:
            return self.predict_dist(X).interval(coverage)
        return guaranteed_interval(self.fitted_, X, coverage, groups)

    def predict_quantiles(self, X: Any, q: ArrayLike) -> Floats:
        """Quantiles at the levels q [k], as columns [n, k]."""
        return self.predict_dist(X).quantile(np.atleast_1d(np.asarray(q, dtype=object)))

    def predict_frame(self, X: Any, coverage: float | None = 0.95, quantiles: Sequence[float] = ()) -> Any:
        """A pandas DataFrame with mean, std, the ends of the interval and the quantiles, and the index of X."""
        return self.predict_dist(X).to_frame(coverage, quantiles, X.index if hasattr(X, "iloc") else None)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: RandomState = None) -> Floats:
        """Draws of the target [rows, n_samples], independent between rows."""
        return self.predict_dist(X).sample(check_positive_int("n_samples", n_samples), random_state)

    def sample_functions(self, n: int = 1, random_state: RandomState = None) -> Callable[[Any], Floats]:
        """Draws of the noise-free function: X -> [rows, n]; the same n functions at every call.

        Of a transformed target they are functions of the transformed one, mapped back. Their variance is the
        calibrated one: each draw's distance from its member's mean is scaled to match. For a method with
        inducing points, such as the shallow kernels of small tables, they lack the correction of Eq. 4, which
        has no weights to draw: far from all rows they spread less than `predict_dist` says.
        """
        check_is_fitted(self)
        return self.fitted_.sample_functions(n, random_state)

    def evaluate(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> dict[str, float]:
        """MAE, RMSE, NLL, CRPS, coverage and width of the 95 % interval, calibration error, in the target's units.

        With bounds, as in `fit`, the NLL is that of what is known of each row. Concordance and, for rows that are exact
        or have no upper bound, the integrated Brier score come beside it; all others are of the exact rows.
        """
        check_is_fitted(self)
        return self.fitted_.evaluate(X, y, sample_weight, lower, upper, exposure)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 of the means: 1 is perfect, and a constant has 0."""
        check_is_fitted(self)
        self.fitted_.target.check_exposed(False, NO_EXPOSURE)
        return float(super().score(X, y, sample_weight))

    def log_marginal_likelihood(self) -> float:
        """log p(y) of the rows that the model was fitted to, in the target's units: the mean over the members.

        Only exact training has it (`objective="mml"`, or a shallow kernel that "auto" has chosen) of a table in memory.
        For a method with inducing points it is the lower bound of Eq. 3. Calibration does not change it.
        """
        check_is_fitted(self)
        found = self.fitted_.log_likelihoods
        if not found:
            raise InputError(
                "this model has no marginal likelihood: fit it exactly, with objective='mml', to a table in memory; "
                "after update, fit it again to all rows"
            )
        return float(np.mean(found))

    def diagnose(self) -> Diagnosis:
        """The health of the fit, by the rows that it held out: `print(model.diagnose())`."""
        check_is_fitted(self)
        return existing(self.fitted_.diagnosis)

    def predict_dataset(
        self,
        data: Any,
        out: str | PathLike[str],
        *,
        ids: Sequence[str] = (),
        coverage: float | None = 0.95,
        quantiles: Sequence[float] = (),
        novelty: bool = False,
        guarantee: bool = False,
        groups: str | None = None,
        exposure: str | None = None,
        memory: int | str | None = None,
        team: Team = ALONE,
        visible: bool = False,
    ) -> list[Path]:
        """Predict a table in files, of any size, into Parquet files of the same names in the folder `out`.

        Each has the columns named by `ids` (copied as text from a CSV), then mean, std, the ends of the interval, which
        may be with `guarantee`, for each group of the column `groups` too, the quantiles and, with `novelty`, what
        `predict_novelty` says. Counts are those of the column `exposure`, or of 1. What this model already made from an
        input is kept. A `team` shares the files.
        """
        check_is_fitted(self)
        columns = prediction_columns(coverage, quantiles, novelty, guarantee)
        given: Any = {"ids": ids, "exposure": exposure, "groups": groups}
        return predict_files(self.fitted_, data, out, columns, **given, memory=memory, team=team, visible=visible)

    # ---- files -------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | PathLike[str], device: str = "auto") -> Self:
        """A regressor that was saved. No code of the file is run."""
        fitted = saved.load(path, devices.present(device))
        if fitted.target.classes:
            raise InputError(f"{path} holds a classifier, not a regressor: load it with DeepBasisClassifier.load")
        return cls(**{one.name: getattr(fitted.spec, one.name) for one in arguments()})._take(fitted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.target_tags.multi_output = True
        return tags
