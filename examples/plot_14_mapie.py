"""
Beside MAPIE: conformal intervals by someone else
=================================================

MAPIE turns the predictions of any scikit-learn model into intervals with a guarantee, by rows that the fit has not
seen. It can do so with the medians of this library, or with all its quantiles. Both hold what they promise for all rows
together. With the medians alone every row gets the same width. The quantiles know which rows are hard to predict: here,
how many rings an abalone has, which tell its age, and which are easier to guess for small shells than for large ones.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/abalone.csv.gz").sample(frac=1, random_state=0)
X, y = table.drop(columns="rings"), table["rings"].to_numpy(float)
fit, apart, test = slice(0, 1500), slice(1500, 2500), slice(2500, None)
model = DeepBasisRegressor(method="dbk-silu", members=2, epochs=60, random_state=0).fit(X[fit], y[fit])

# %%
# MAPIE wants a model for each quantile. A few lines make one of ours look so.


class Quantile(RegressorMixin, BaseEstimator):
    def __init__(self, model, level):
        self.model, self.level, self.fitted_ = model, level, True

    def fit(self, X, y):
        return self  # it is

    def predict(self, X):
        return self.model.predict_quantiles(X, [self.level])[:, 0]


level = 0.9
quantiles = [Quantile(model, q) for q in ((1 - level) / 2, (1 + level) / 2, 0.5)]
conformal = {
    "MAPIE, from medians": SplitConformalRegressor(quantiles[2], level, prefit=True),
    "MAPIE, from quantiles": ConformalizedQuantileRegressor(quantiles, level, prefit=True),
}
intervals = {}
for name, one in conformal.items():
    ends = one.conformalize(X[apart], y[apart]).predict_interval(X[test])[1]
    intervals[name] = ends[:, 0, 0], ends[:, 1, 0]
intervals["deepbasis, calibrated"] = model.predict_interval(X[test], level)

# %%
# Test rows in five groups, by the standard deviation that the model predicts for them.

group = pd.qcut(model.predict_dist(X[test]).std, 5, labels=False)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for (name, (lower, upper)), colour in zip(intervals.items(), (plots.VERMILLION, plots.GREEN, plots.BLUE), strict=True):
    inside = (lower <= y[test]) & (y[test] <= upper)
    print(f"{name}: {inside.mean():.1%} inside, {np.mean(upper - lower):.2f} rings wide on average")
    left.plot(range(1, 6), [inside[group == k].mean() for k in range(5)], "o-", color=colour, label=name)
    right.plot(range(1, 6), [(upper - lower)[group == k].mean() for k in range(5)], "o-", color=colour)
left.axhline(level, color=plots.INK, lw=1, ls="--")
left.set(ylabel="share of test targets inside", ylim=(0.7, 1.01))
left.legend(frameon=False, fontsize=8)
right.set(ylabel="mean width, rings", ylim=(0, None))
for ax in (left, right):
    ax.set(xlabel="fifth of the rows, by predicted standard deviation", xticks=range(1, 6))
plt.show()
