"""
Rows unlike those of the fit
============================

A model of white wines is asked about red ones. Its standard deviation does not have to say that something is wrong.
``predict_novelty`` does: a p-value of "a row like those of the fit" for each row.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from deepbasis import DeepBasisRegressor, NoveltyWarning, plots

white, red = pd.read_csv("data/wine_white.csv.gz"), pd.read_csv("data/wine_red.csv.gz")
white = white.sample(frac=1, random_state=0)
train, test = white[:1800], white[1800:3400]
model = DeepBasisRegressor(method="dbk-silu", members=2, epochs=60, random_state=0)
model.fit(train.drop(columns="quality"), train["quality"])

# %%
# ``predict`` warns by itself if many rows of a table are strange, and names the columns.

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always", NoveltyWarning)
    model.predict(red.drop(columns="quality"))
print(told[0].message)

# %%
# The p-values of new white wines are spread evenly between 0 and 1, as they should be. Those of red wines are small.

fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
edges = np.linspace(0, 1, 21)
for name, rows, colour in (("white, not seen before", test, plots.ORANGE), ("red", red, plots.VERMILLION)):
    p = model.predict_novelty(rows.drop(columns="quality"))
    ax.hist(p, edges, weights=np.full(len(p), 1 / len(p)), color=colour, alpha=0.6, label=name)
ax.axhline(0.05, color=plots.INK, lw=1, ls="--")
ax.set(xlabel="p-value", ylabel="share of the rows")
ax.legend(frameon=False)
plt.show()
