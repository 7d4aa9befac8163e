"""
Skewed targets
==============

Fine dust is never negative, and on some days it is ten times what is usual. A symmetric interval around the mean
reaches below zero on clean days and not far enough on bad ones. ``target="warp"`` learns a transformation from the
target's quantiles; predictions come back in µg/m³, and cannot be negative.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/beijing.csv.gz", parse_dates=["day"])
X, y = table.drop(columns="pm25"), table["pm25"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

settings = {"method": "dbk-silu", "members": 2, "epochs": 100, "random_state": 0}
symmetric = DeepBasisRegressor(target="identity", **settings).fit(X_train, y_train)
warped = DeepBasisRegressor(target="warp", **settings).fit(X_train, y_train)

# %%
# By default (``target="auto"``) the fit decides this itself, by simple models on rows that they have not seen.

print(DeepBasisRegressor(random_state=0).plan(X_train, y_train).target)
for name, model in (("symmetric", symmetric), ("warped", warped)):
    scores = model.evaluate(X_test, y_test)
    print(
        f"{name}: CRPS {scores['crps']:.1f}, NLL {scores['nll']:.2f}, 95 % intervals hold {scores['coverage_95']:.1%}"
    )

# %%
# The predicted densities of one clean day and of one bad day, with what was measured.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
order = np.argsort(warped.predict(X_test))
for ax, row, title in zip(
    axes, (order[len(order) // 10], order[-len(order) // 10]), ("a clean day", "a bad day"), strict=True
):
    at = np.linspace(-100, 500, 601)
    for name, model, colour in (("symmetric", symmetric, plots.ORANGE), ("warped", warped, plots.BLUE)):
        day = X_test.iloc[np.full(len(at), row)]
        ax.plot(at, model.predict_dist(day).pdf(at), color=colour, label=name)
    ax.axvline(y_test.iloc[row], color=plots.INK, lw=1, ls="--", label="measured")
    ax.set(title=title, xlabel="PM2.5 in µg/m³", ylim=(0, None))
    ax.set_yticks([])
axes[0].legend(frameon=False)
plt.show()
