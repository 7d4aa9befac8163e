"""What the estimators share: their fitted attributes, a fit to a table in memory, and learning on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from operator import attrgetter
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from deepbasis.engine import device as devices
from deepbasis.errors import FitWarning, InputError, counted
from deepbasis.fitting.data import TableData
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.run import fit_table
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.train import Execution, deadline
from deepbasis.fitting.update import update_table
from deepbasis.tables.labels import Labels
from deepbasis.tables.table import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prepared:
    """A table in memory, and what a fit to it would do."""

    spec: Spec
    plan: Plan
    data: TableData
    execution: Execution
    target_name: str | None

    @classmethod
    def of(
        cls,
        spec: Spec,
        X: Any,
        y: Any,
        weight: Any,
        groups: Any,
        X_val: Any = None,
        y_val: Any = None,
        *,
        classes: Callable[[Any, Any], tuple[Labels, Any, Any]] | None = None,
        **known: Any,
    ) -> Prepared:
        """What an estimator's `fit` was given. Of y and weights `classes` makes labels, their codes and weights."""
        execution, name = Execution(deadline=deadline(spec.time_limit)), getattr(y, "name", None)  # of a Series
        devices.present(spec.device)
        if (X_val is None) != (y_val is None):
            raise InputError("X_val and y_val go together: give both or neither")
        labels = None
        if classes is not None:
            labels, y, weight = classes(y, weight)
            y_val = None if y_val is None else labels.codes(y_val, "y_val")
        validation = None if X_val is None else partial(Table.for_validation, X_val, y_val)
        data = TableData.read(spec, X, y, weight, groups, labels, validation, **known)
        plan = make_plan(spec, data.facts(spec))
        return cls(spec, plan, data, execution, name if isinstance(name, str) else None)

    def fit(self) -> Fitted:
        return replace(fit_table(self.spec, self.plan, self.data, self.execution), target_name=self.target_name)


def adopt(estimator: BaseEstimator, fitted: Fitted) -> None:
    """Give an estimator what a fit has produced, with scikit-learn's attributes, and say what deserves attention."""
    estimator.fitted_ = fitted
    names = fitted.preprocessor.input_columns
    estimator.n_features_in_ = len(fitted.preprocessor.encodings)
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    for text in fitted.warnings:
        warnings.warn(text, FitWarning, stacklevel=4)


class Face:
    """What every estimator says of its `fitted_`."""

    fitted_: Fitted
    plan_ = property(attrgetter("fitted_.plan"))
    method_ = property(attrgetter("fitted_.architecture.method"))
    embedding_ = property(attrgetter("fitted_.architecture.embedding"))
    rank_ = property(attrgetter("fitted_.architecture.rank"))
    history_ = property(attrgetter("fitted_.history"))
    validation_ = property(attrgetter("fitted_.validation"))
    calibration_ = property(attrgetter("fitted_.calibration"))
    alpha_ = property(attrgetter("fitted_.alpha"))
    beta_ = property(attrgetter("fitted_.beta"))
    rows_ = property(attrgetter("fitted_.rows"))

    def predict_novelty(self, X: Any) -> Floats:
        """For every row a p-value of "a row like those of the fit": low for a row that is unlike them.

        Of new rows that are like those of the fit, at most a share of p has a p-value of at most p.
        """
        check_is_fitted(self)
        return self.fitted_.p_values(X)

    def _repr_html_inner(self) -> str:
        """In a notebook: what scikit-learn shows, and, after a fit, what was fitted and its scores on held-out rows."""
        shown: str = super()._repr_html_inner()  # type: ignore[misc]
        return shown + (_summary(self.fitted_) if hasattr(self, "fitted_") else "")

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        return {kind: self._repr_html_inner() if kind == "text/html" else text for kind, text in bundle.items()}

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything needed to predict to one .safetensors file, atomically and without pickle."""
        check_is_fitted(self)
        self.fitted_.save(path)


def _summary(fitted: Fitted) -> str:
    rows, columns = counted(fitted.rows, "row"), counted(len(fitted.preprocessor.encodings), "column")
    target = f", to predict {escape(fitted.target_name)}" if fitted.target_name else ""
    scores = "".join(
        f"<tr><th scope='row' style='text-align:left'>{escape(name)}</th><td>{value:.4g}</td></tr>"
        for name, value in fitted.validation.items()
    )
    return (
        f"<p>Fitted to {rows} of {columns} by {escape(fitted.architecture.method)}{target}. Scores of the rows held "
        f"out:</p><table>{scores}</table>"
    )


class Updating:
    """`update` and `partial_fit`, of an estimator that can learn on."""

    fitted_: Fitted

    def update(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        *,
        forget: float = 1.0,
    ) -> Self:
        """Take in more rows without training again: the weights of the basis functions move, the functions stay.

        A model that was trained exactly is then what exact inference from all rows gives. Another keeps its variances
        and moves its means, by least squares with each row weighted by one over its predicted variance. The rows are
        scored before they are taken in, and the scores move the calibration and what `predict_novelty` takes for
        familiar. After a fit with `calibrate="conformal"` a part of them is set apart, and renews the promise; of a
        promise for each group, `groups` are theirs.

        Everything that was known before counts for a share `forget`, above 0 and at most 1: less than 1 lets a model
        follow rows that drift. An update that fails changes nothing. Threads that predict meanwhile get the model as it
        was before, or as it is after.
        """
        check_is_fitted(self)
        self.fitted_, _ = update_table(self.fitted_, X, y, sample_weight, groups, lower, upper, forget)
        return self

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """`fit` at the first call, as in scikit-learn, and `update` at every other."""
        if hasattr(self, "fitted_"):
            return self.update(X, y, sample_weight)
        return self.fit(X, y, sample_weight)  # type: ignore[attr-defined]
