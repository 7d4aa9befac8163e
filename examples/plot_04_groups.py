"""
Rows that come in groups
========================

The concrete of the first example was tested at several ages: the 1,030 rows are of about 430 mixtures. If rows are held
out one by one, most of them have sisters among the training rows, and the model looks better than it is for a mixture
nobody has tried. ``groups`` keeps the rows of a mixture together.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import GroupShuffleSplit

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/concrete.csv.gz")
X, y = table.drop(columns="strength"), table["strength"]
mixture = X.drop(columns="age").astype(str).agg(" ".join, axis=1)
train, test = next(GroupShuffleSplit(test_size=0.3, random_state=0).split(X, y, mixture))  # new mixtures
print(f"{mixture.nunique()} mixtures")

# %%
# The two fits differ in the rows that they hold out, to choose an epoch and to calibrate their intervals. Grey is what
# each fit says of itself, blue what is true of mixtures that it has never seen.

settings = {"method": "dbk-silu", "members": 2, "epochs": 150, "random_state": 0}
by_row = DeepBasisRegressor(**settings).fit(X.iloc[train], y.iloc[train])
by_group = DeepBasisRegressor(**settings).fit(X.iloc[train], y.iloc[train], groups=mixture.iloc[train])

fits = {"rows held out\none by one": by_row, "mixtures held out\nas a whole": by_group}
promised = [model.validation_["crps"] for model in fits.values()]
scores = [model.evaluate(X.iloc[test], y.iloc[test]) for model in fits.values()]
found = [score["crps"] for score in scores]

fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.8), layout="constrained")
places = np.arange(2)
left.bar(places - 0.2, promised, 0.4, color=plots.GREY, label="on rows held out by the fit")
left.bar(places + 0.2, found, 0.4, color=plots.BLUE, label="on new mixtures")
left.set_xticks(places, list(fits))
left.set(ylabel="CRPS in MPa: less is better", ylim=(0, 1.35 * max(found)))
left.legend(frameon=False, loc="upper left")
right.plot(places, [score["coverage_95"] for score in scores], "o", color=plots.BLUE, ms=9)
right.axhline(0.95, color=plots.INK, lw=1, ls="--")
right.set_xticks(places, list(fits))
right.set(ylabel="share of targets in the 95 % interval", xlim=(-0.5, 1.5), ylim=(0.85, 1))
plt.show()
