"""skpro: the regressor as one of its probabilistic regressors."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from deepbasis.errors import InputError
from deepbasis.estimators import DeepBasisRegressor
from deepbasis.gp.predictive import GaussianMixture

try:
    from skpro.distributions import Mixture, Normal
    from skpro.regression.base import BaseProbaRegressor
except ModuleNotFoundError:
    raise ModuleNotFoundError("deepbasis.interop.skpro needs skpro: pip install 'deepbasis[skpro]'") from None


class DeepBasisProbaRegressor(BaseProbaRegressor):
    """`DeepBasisRegressor` for skpro: `predict_proba` gives a mixture of normal distributions for every row.

    Parameters
    ----------
    regressor : DeepBasisRegressor, default DeepBasisRegressor(target="identity")
        It is cloned before it is fitted. Its target must not be transformed.

    Examples
    --------
    >>> from deepbasis.interop.skpro import DeepBasisProbaRegressor
    >>> model = DeepBasisProbaRegressor()
    >>> model.fit(X, y)  # doctest: +SKIP
    >>> model.predict_proba(X).mean()  # doctest: +SKIP
    """

    _tags = {  # noqa: RUF012  as skpro has it
        "authors": ["The deepbasis developers"],
        "python_dependencies": "torch",
        "capability:multioutput": False,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, regressor: DeepBasisRegressor | None = None) -> None:
        self.regressor = regressor
        super().__init__()

    def _fit(self, X: Any, y: Any, C: Any = None) -> DeepBasisProbaRegressor:
        given = DeepBasisRegressor(target="identity") if self.regressor is None else clone(self.regressor)
        self.regressor_ = given.fit(_named(X), y.iloc[:, 0].to_numpy())
        self.column_ = y.columns
        return self

    def _predict_proba(self, X: Any) -> Any:
        found = self.regressor_.predict_dist(_named(X), as_tensor=True)
        if not isinstance(found, GaussianMixture):
            raise InputError("skpro needs a target that is not transformed: give DeepBasisRegressor(target='identity')")
        columns = self.column_
        parts = [
            Normal(mean.numpy()[:, None], variance.sqrt().numpy()[:, None], index=X.index, columns=columns)
            for mean, variance in zip(found.means, found.variances, strict=True)
        ]
        names = [f"component {k}" for k in range(len(parts))]
        weights = found.shares.numpy()
        return Mixture(list(zip(names, parts, strict=True)), weights=weights, index=X.index, columns=columns)

    def _predict_quantiles(self, X: Any, alpha: list[float]) -> Any:
        """Ours are exact; those of skpro's mixtures are found by bisection, row by row."""
        import pandas as pd

        found = self.regressor_.predict_quantiles(_named(X), np.asarray(alpha))
        columns = pd.MultiIndex.from_product([self.column_, alpha])
        return pd.DataFrame(found, index=X.index, columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small ones, for skpro's own tests."""
        few: dict[str, Any] = {
            "method": "dbk-silu",
            "members": 1,
            "rank": 8,
            "inner": 16,
            "epochs": 2,
            "random_state": 0,
        }
        return [
            {"regressor": DeepBasisRegressor(target="identity", **few)},
            {"regressor": DeepBasisRegressor(target="identity", calibrate=False, **few)},
        ]


def _named(X: Any) -> Any:
    """With texts as names, which skpro does not ask for."""
    return X.set_axis(X.columns.astype(str), axis=1)
