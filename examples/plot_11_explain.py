"""
What a prediction depends on, and what its uncertainty depends on
=================================================================

Shuffle a column between the rows: how far do the predicted means move, and how far the standard deviations? The two
need not agree. Effects show the mean prediction if all rows had the same value of a column.
"""

import matplotlib.pyplot as plt
import pandas as pd

from deepbasis import DeepBasisRegressor, explain, plots

table = pd.read_csv("data/concrete.csv.gz").sample(frac=1, random_state=0)
X, y = table.drop(columns="strength"), table["strength"]
model = DeepBasisRegressor(method="dbk-silu", members=2, epochs=200, random_state=0).fit(X[:800], y[:800])

sample = explain.Sample.of(model.fitted_, X[800:], y[800:])
found = explain.importance(model.fitted_, sample)

# %%
# ``explain.figure(found, effects)`` draws all of it at once; here we draw on axes of our own.

fig, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
names = [one.column for one in found]
plots.bars(axes[0, 0], names, [one.mean for one in found], [one.mean_spread for one in found])
axes[0, 0].set_title("moves the mean by, MPa", fontsize=10)
plots.bars(axes[0, 1], names, [one.std for one in found], [one.std_spread for one in found], colour=plots.VERMILLION)
axes[0, 1].set_title("moves the standard deviation by, MPa", fontsize=10)
for ax, column in zip(axes[1], ("age", "cement"), strict=True):
    curve = explain.effect(model.fitted_, sample, column)
    ax.fill_between(curve.values, curve.lower, curve.upper, color=plots.BLUE, alpha=0.2, lw=0)
    ax.plot(curve.values, curve.mean, color=plots.BLUE)
    ax.set(xlabel=column, ylabel="mean strength, MPa")
plt.show()
