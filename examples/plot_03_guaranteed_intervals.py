"""
Intervals with a guarantee
==========================

A model's own intervals are right as far as the model is. With ``calibrate="conformal"`` some rows are set apart, and
nothing of the fit sees them. They give intervals that hold at least the stated share of new targets, if new rows come
from where the old ones came from. We check that on aerofoils in a wind tunnel, at every level from 50 to 95 %.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/airfoil.csv.gz")
X, y = table.drop(columns="pressure"), table["pressure"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)

model = DeepBasisRegressor(method="dbk-silu", calibrate="conformal", epochs=200, random_state=0).fit(X_train, y_train)

# %%
# Both kinds of intervals come from the same fit.

levels = np.linspace(0.5, 0.95, 10)


def covered(guarantee: bool) -> list[float]:
    ends = [model.predict_interval(X_test, level, guarantee=guarantee) for level in levels]
    return [np.mean((lower <= y_test) & (y_test <= upper)) for lower, upper in ends]


fig, ax = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
noise = 2 * np.sqrt(levels * (1 - levels) * (1 / len(y_test) + 4 / len(y_train)))  # a quarter of the rows are set apart
ax.fill_between(levels, levels - noise, levels + noise, color=plots.GREY, alpha=0.2, lw=0, label="two standard errors")
ax.plot(levels, levels, color=plots.GREY, lw=1)
ax.plot(levels, covered(guarantee=False), "o-", color=plots.ORANGE, label="the model's own")
ax.plot(levels, covered(guarantee=True), "o-", color=plots.BLUE, label="guaranteed")
ax.set(xlabel="level that was asked for", ylabel="share of test targets inside")
ax.legend(frameon=False)
plt.show()
