"""`Updating`: what an estimator that can learn on has beside `fit`."""

from __future__ import annotations

from typing import Any, Self

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.update import update_table


class Updating:
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
