"""
Targets that are only known to be above a limit
===============================================

Suppose Beijing's instrument had stopped at 150 µg/m³: of worse days we know that they were worse, not how much. To drop
these days, or to take the limit for the truth, makes the air look cleaner than it was. ``upper`` says what is known:
the target lies between the limit and infinity. We hide the bad days ourselves, so that the answer can be checked.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/beijing.csv.gz", parse_dates=["day"])
X, y = table.drop(columns="pm25"), table["pm25"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

limit = 150.0
seen = np.minimum(y_train, limit)
hidden = y_train > limit
print(f"{hidden.mean():.0%} of the days are above the limit")

settings = {"method": "dbk-silu", "target": "log", "members": 2, "epochs": 100, "random_state": 0}
fits = {
    "the limit taken for the truth": DeepBasisRegressor(**settings).fit(X_train, seen),
    "days above it left out": DeepBasisRegressor(**settings).fit(X_train[~hidden], seen[~hidden]),
    "censored": DeepBasisRegressor(**settings).fit(X_train, seen, upper=np.where(hidden, np.inf, seen)),
}

# %%
# How many of the test days are above a threshold? The predicted share is the mean of ``survival``.

thresholds = np.linspace(10, 400, 80)
fig, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
ax.plot(thresholds, [np.mean(y_test > one) for one in thresholds], color=plots.INK, lw=2, label="measured")
for (name, model), colour in zip(fits.items(), (plots.ORANGE, plots.GREY, plots.BLUE), strict=True):
    ax.plot(thresholds, model.predict_dist(X_test).survival(thresholds).mean(axis=0), color=colour, label=name)
ax.axvline(limit, color=plots.GREY, lw=1, ls="--")
ax.set(xlabel="PM2.5 in µg/m³", ylabel="share of test days above", yscale="log", ylim=(0.003, 1))
ax.legend(frameon=False)
plt.show()
