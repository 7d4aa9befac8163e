"""
Rows that arrive one after another
==================================

Fitted to the first year, the model is asked for each later day in turn, and learns the truth the day after. The
air drifts; intervals that were right in 2010 need not be in 2014. ``AdaptiveIntervals`` widens them after a miss and
narrows them otherwise, so that the share of days inside comes back to what was asked for.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from deepbasis import AdaptiveIntervals, DeepBasisRegressor, plots

table = pd.read_csv("data/beijing.csv.gz", parse_dates=["day"])
train, later = table[table["day"] < "2011"], table[table["day"] >= "2011"]

model = DeepBasisRegressor(method="dbk-silu", target="identity", members=2, epochs=100, random_state=0)
model.fit(train.drop(columns=["pm25", "day"]), train["pm25"])

# %%
# Ask for all days at once, then let the intervals follow the days.

coverage = 0.8
coming = model.predict_dist(later.drop(columns=["pm25", "day"]), as_tensor=True)
truth = later["pm25"].to_numpy()
lower, upper = model.predict_interval(later.drop(columns=["pm25", "day"]), coverage)
fixed = (lower <= truth) & (truth <= upper)

adaptive, inside = AdaptiveIntervals(coverage=coverage), []
for day in range(len(later)):
    low, high = adaptive.interval(coming[day : day + 1])
    inside.append(bool(low <= truth[day] <= high))
    adaptive.update(coming[day : day + 1], truth[day : day + 1])

# %%
# The share of days inside, over the last hundred days.

fig, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
days = pd.to_datetime(later["day"])
for name, hits, colour in (("as fitted", fixed, plots.ORANGE), ("adaptive", inside, plots.BLUE)):
    ax.plot(days, pd.Series(np.asarray(hits, dtype=float)).rolling(100).mean(), color=colour, label=name)
ax.axhline(coverage, color=plots.INK, lw=1, ls="--")
ax.set(ylabel="share inside, last 100 days", ylim=(0.4, 1))
ax.legend(frameon=False)
plt.show()
