"""`DeepBasisClassifier`: the scikit-learn face of a fit whose target is a class."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from deepbasis.engine import device as devices
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.errors import InputError
from deepbasis.faces import Face, Prepared, adopt
from deepbasis.fitting import saved
from deepbasis.fitting.distribution import frame
from deepbasis.fitting.files import class_columns, predict_files, prepare_files
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.kinds import ANYTHING, CLASSES, LIKELIHOOD, one_of
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.spec import Arguments, RunOptions, Spec, argument, arguments, parameters_section
from deepbasis.fitting.update import check_learns
from deepbasis.gp.classes import Classes
from deepbasis.tables.labels import Labels

Floats = NDArray[np.float64]

_SMALLEST = 1e-300  # a probability whose logarithm is asked for


@dataclass(kw_only=True, eq=False, repr=False)
class DeepBasisClassifier(ClassifierMixin, Face, BaseEstimator, Arguments):  # type: ignore[misc]
    likelihood: str = argument(
        CLASSES,
        LIKELIHOOD,
        'Distribution of the class around the functions. "classes": the class of the largest latent number.',
    )
    target: Any = argument(CLASSES, one_of(lambda: (CLASSES,)), "What the target is: classes.")
    class_weight: Any = argument(
        None,
        ANYTHING,
        'Weights of classes: a dict from a class to its weight, or "balanced", which gives all classes the same. They '
        "multiply `sample_weight`; probabilities are then those of rows that are weighted so.",
    )

    classes_: NDArray[Any] = field(init=False)

    # ---- fitting -----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit to a table X (array or DataFrame) and the class y of each row; validate on X_val, y_val if given.

        Classes are texts, whole numbers or truth values. `sample_weight` and `groups` are as in `DeepBasisRegressor`.
        """
        labels = partial(Labels.read, class_weight=self.class_weight)
        return self._take(Prepared.of(self._spec(), X, y, sample_weight, groups, X_val, y_val, classes=labels).fit())

    def plan(
        self, X: Any, y: ArrayLike, sample_weight: Any = None, groups: Any = None, X_val: Any = None, y_val: Any = None
    ) -> Plan:
        """What `fit` would do, without doing it."""
        labels = partial(Labels.read, class_weight=self.class_weight)
        return Prepared.of(self._spec(), X, y, sample_weight, groups, X_val, y_val, classes=labels).plan

    def _spec(self) -> Spec:
        if not isinstance(self.target, str) or self.target != CLASSES:
            raise InputError(
                f"target={self.target!r} is for numbers, and a classifier predicts classes: leave it out, or use "
                "DeepBasisRegressor"
            )
        return Spec.of(self)

    def fit_dataset(
        self,
        data: Any,
        target: str,
        *,
        weight: str | None = None,
        groups: str | None = None,
        drop: Collection[str] = (),
        drop_missing_target: bool = False,
        validation: Any = None,
        memory: int | str | None = None,
        stream: bool | None = None,
        max_steps: int | None = None,
        checkpoint: str | PathLike[str] | None = None,
        team: Team = ALONE,
    ) -> Self:
        """Fit to a table in files, of any size, as `DeepBasisRegressor.fit_dataset` does; `target` names the classes.

        The column of the target is read once before everything else. There is no `class_weight` here: give a column of
        weights.
        """
        if self.class_weight is not None:
            raise InputError("class_weight is for tables in memory: give a column of weights as `weight` instead")
        _, run = prepare_files(
            self._spec(),
            data,
            target,
            weight=weight,
            groups=groups,
            drop=drop,
            drop_missing_target=drop_missing_target,
            validation=validation,
            options=RunOptions(memory=memory, stream=stream, max_steps=max_steps, checkpoint=checkpoint),
            team=team,
            classes=True,
        )
        return self._take(run())

    def _take(self, fitted: Fitted) -> Self:
        """Only now is anything changed: a fit that fails leaves what there was."""
        self.classes_ = fitted.target.labels.array
        adopt(self, fitted)
        return self

    def update(self, X: Any, y: ArrayLike) -> Self:
        """Refused: a classifier cannot take in more rows without a fit."""
        check_is_fitted(self)
        check_learns(self.fitted_)
        return self

    # ---- predictions -------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each of `classes_`, [rows, classes]."""
        check_is_fitted(self)
        predicted = self.fitted_.predict(X).tensors
        assert isinstance(predicted, Classes)  # the fit of a classifier
        return predicted.probabilities.numpy()

    def predict_frame(self, X: Any) -> Any:
        """A pandas DataFrame with the probability of each class, p_CLASS, and the index of X."""
        check_is_fitted(self)
        return frame(class_columns(self.fitted_), self.fitted_.predict(X), X.index if hasattr(X, "iloc") else None)

    def predict_log_proba(self, X: Any) -> Floats:
        return np.log(np.maximum(self.predict_proba(X), _SMALLEST))

    def decision_function(self, X: Any) -> Floats:
        """The log of each probability, [rows, classes]; of two classes the log odds of the second, [rows]."""
        found = self.predict_log_proba(X)
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def evaluate(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> dict[str, float]:
        """Log loss, Brier score (summed over classes), ECE (15 bins), AUC (mean over classes) and accuracy."""
        check_is_fitted(self)
        return self.fitted_.evaluate(X, y, sample_weight)

    def predict_dataset(
        self,
        data: Any,
        out: str | PathLike[str],
        *,
        ids: Sequence[str] = (),
        novelty: bool = False,
        memory: int | str | None = None,
        team: Team = ALONE,
        visible: bool = False,
    ) -> list[Path]:
        """Predict a table in files, of any size, into Parquet files of the same names in the folder `out`.

        Each has the columns named by `ids`, then the probability p_CLASS of each class and, with `novelty`, what
        `predict_novelty` says.
        """
        check_is_fitted(self)
        columns = class_columns(self.fitted_, novelty)
        return predict_files(self.fitted_, data, out, columns, ids=ids, memory=memory, team=team, visible=visible)

    # ---- files -------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | PathLike[str], device: str = "auto") -> Self:
        """A classifier that was saved. No code of the file is run."""
        fitted = saved.load(path, devices.present(device))
        if not fitted.target.classes:
            raise InputError(f"{path} holds a regressor, not a classifier: load it with DeepBasisRegressor.load")
        given = {one.name: getattr(fitted.spec, one.name) for one in arguments()}
        labels = fitted.target.labels
        weight = labels.class_weight
        given |= {"likelihood": fitted.architecture.likelihood, "target": CLASSES}
        given["class_weight"] = dict(zip(labels.values, weight, strict=True)) if isinstance(weight, tuple) else weight
        return cls(**given)._take(fitted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


DeepBasisClassifier.__doc__ = f"""\
Classification with calibrated probabilities: Gaussian processes with deep basis kernels.

    A row belongs to the class whose latent number is the largest; each class has a function of its own on one basis. Of
    two classes this is the probit.

    Parameters
    ----------
{parameters_section(DeepBasisClassifier)}

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    plan_ : Plan
        What every "auto" was resolved to: `print(model.plan_)`.
    fitted_ : Fitted
        Everything else that the fit produced.
    method_, embedding_ : str
        What "auto" was resolved to.
    rank_ : int
        Number of basis functions.
    history_ : tuple of dict
        For each member "train_loss", "validation" (the log loss) and "noise" (always 1), one number per epoch.
    validation_ : dict
        Metrics on the held-out rows. With calibration they are optimistic, because it was fitted to the same rows.
    calibration_ : Calibration or None
        The scales of the latent variance and their weights.
    alpha_, beta_ : float
        The weights of the regularisers.
    rows_ : int
        Rows of the fitted table, validation rows included.
    """
