"""
Wide where the target is uncertain, narrow where it is not
==========================================================

The age of an abalone is counted in rings, for which its shell has to be cut. Its length is measured at once, and says a
lot about a young animal's age and little about an old one's. One interval width for all would be wrong for both.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/abalone.csv.gz").sample(1500, random_state=0)
model = DeepBasisRegressor(method="dbk-silu", members=2, epochs=100, random_state=0).fit(
    table[["length"]], table["rings"]
)

# %%
# The curve on the right is the standard deviation, noise included: it doubles between small and medium animals.

grid = np.linspace(0.17, 0.75, 200)
mean, std = model.predict(pd.DataFrame({"length": grid}), return_std=True)
lower, upper = model.predict_interval(pd.DataFrame({"length": grid}))

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", width_ratios=[2, 1])
left.plot(table["length"], table["rings"], ".", color="#222222", ms=3, alpha=0.3)
left.plot(grid, mean, color=plots.BLUE)
left.fill_between(grid, lower, upper, color=plots.BLUE, alpha=0.2, lw=0, label="95 % interval")
left.set(xlabel="length in units of 200 mm", ylabel="rings")
left.legend(frameon=False)
right.plot(grid, std, color=plots.VERMILLION)
right.set(xlabel="length in units of 200 mm", ylabel="predicted standard deviation", ylim=(0, None))
plt.show()
