"""
Beside SHAP: what moves one prediction, and its uncertainty
===========================================================

SHAP shares a prediction out among the columns of its row. It takes any function of a table: the mean, and also the
standard deviation. So it says why the model is unsure about a row. (For all rows together, ``deepbasis explain`` does
something like it without another library.) The table: the strength of concrete, and what it was mixed from.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import shap

from deepbasis import DeepBasisRegressor, plots
from deepbasis.errors import NoveltyWarning

table = pd.read_csv("data/concrete.csv.gz").sample(frac=1, random_state=0)
X, y = table.drop(columns="strength"), table["strength"]
model = DeepBasisRegressor(method="dbk-silu", members=2, epochs=200, random_state=0).fit(X[:800], y[:800])

# %%
# One function of two numbers. The background, a few rows of the fit, stands for "a value that is not known". SHAP mixes
# rows, and the model would warn that such mixtures are unlike what it was fitted to: they are.

warnings.simplefilter("ignore", NoveltyWarning)
new = X[800:920]


def mean_and_std(rows: np.ndarray) -> np.ndarray:
    return np.stack(model.predict(pd.DataFrame(rows, columns=X.columns), return_std=True), axis=1)


background = shap.maskers.Independent(X[:800].sample(30, random_state=0).to_numpy(), max_samples=30)
explainer = shap.Explainer(mean_and_std, background, algorithm="permutation", feature_names=list(X.columns), seed=0)
found = explainer(new.to_numpy(), max_evals=85, silent=True)
shares = found.base_values + found.values.sum(1)
print("shares sum to the prediction:", np.allclose(shares, mean_and_std(new.to_numpy()), atol=1e-3))

# %%
# The row that the model is least sure about, and two columns over all rows.

least_sure = int(mean_and_std(new.to_numpy())[:, 1].argmax())
row = new.iloc[least_sure]
fig, axes = plt.subplots(2, 2, figsize=(9.6, 6.6), layout="constrained")
for ax, k, title, colour in zip(
    axes[0], (0, 1), ("mean", "standard deviation"), (plots.BLUE, plots.VERMILLION), strict=True
):
    names = [f"{name} = {row[name]:g}" for name in X.columns]
    plots.bars(ax, names, found.values[least_sure, :, k], np.zeros(len(names)), colour=colour)
    ax.set_title(f"{title} of this row", fontsize=10)
    ax.set_xlabel("moves by, MPa")
for ax, name in zip(axes[1], ("age", "water"), strict=True):
    place = list(X.columns).index(name)
    ax.plot(new[name], found.values[:, place, 0], ".", color=plots.BLUE, label="mean")
    ax.plot(new[name], found.values[:, place, 1], ".", color=plots.VERMILLION, label="standard deviation")
    ax.set(xlabel=name, ylabel="moves by, MPa")
axes[1, 0].legend(frameon=False)
plt.show()
