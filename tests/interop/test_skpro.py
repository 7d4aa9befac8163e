"""skpro's own battery of tests, and its mixtures beside our distribution."""

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor

pytest.importorskip(
    "skpro", reason="skpro needs pandas below 3.1, and so an environment of its own: `make skpro` makes one"
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_skpro_has_no_objection() -> None:
    from skpro.utils import check_estimator

    from deepbasis.interop.skpro import DeepBasisProbaRegressor

    results = check_estimator(DeepBasisProbaRegressor, verbose=False)
    assert len(results) > 50
    assert {name: one for name, one in results.items() if one != "PASSED"} == {}


def test_distributions_are_ours() -> None:
    from deepbasis.interop.skpro import DeepBasisProbaRegressor

    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=80), "b": rng.choice(["x", "y"], 80)})
    y = pd.DataFrame({"price": np.sin(X["a"]) + 0.1 * rng.normal(size=80)})
    few = {"method": "dbk-silu", "members": 2, "rank": 8, "inner": 16, "epochs": 3, "random_state": 0}
    ours = DeepBasisRegressor(target="identity", **few)
    theirs = DeepBasisProbaRegressor(ours).fit(X, y)
    dist = ours.fit(X, y["price"]).predict_dist(X)
    found = theirs.predict_proba(X)
    np.testing.assert_allclose(found.mean()["price"], dist.mean, rtol=1e-6)
    np.testing.assert_allclose(found.var()["price"], dist.variance, rtol=1e-6)
    np.testing.assert_allclose(found.cdf(y)["price"], dist.cdf(y["price"]), atol=1e-7)
    np.testing.assert_allclose(theirs.predict_quantiles(X, alpha=[0.1, 0.9]), dist.quantile([0.1, 0.9]), rtol=1e-6)
    np.testing.assert_allclose(theirs.predict(X)["price"], dist.mean, rtol=1e-6)
