"""
Counts
======

Rings of an abalone are whole numbers. With ``target="count"`` a prediction is a probability for each of them, and
quantiles are whole numbers too.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from deepbasis import DeepBasisRegressor, plots

table = pd.read_csv("data/abalone.csv.gz").sample(2200, random_state=0)
X, y = table.drop(columns="rings"), table["rings"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

model = DeepBasisRegressor(target="count", members=2, epochs=100, random_state=0).fit(X_train, y_train)
predicted = model.predict_dist(X_test)

# %%
# Left: three animals. Right: over all test rows, the mean probability of each count beside the share of rows with it.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
order = np.argsort(predicted.mean)
chosen = order[[len(order) // 20, len(order) // 2, -len(order) // 20]]
for place, (row, colour) in enumerate(zip(chosen, (plots.GREEN, plots.BLUE, plots.VERMILLION), strict=True)):
    shown = predicted.values + 0.27 * (place - 1)
    left.bar(shown, predicted.pmf[row], 0.27, color=colour, label=f"counted: {y_test.iloc[row]}")
left.set(xlabel="rings", ylabel="probability", xlim=(0, 25))
left.legend(frameon=False)

shares = [np.mean(y_test == value) for value in predicted.values]
right.bar(predicted.values, shares, color=plots.GREY, alpha=0.5, label="share of test rows")
right.plot(predicted.values, predicted.pmf.mean(axis=0), "o-", color=plots.BLUE, ms=4, label="mean probability")
right.set(xlabel="rings", xlim=(0, 25))
right.legend(frameon=False)
plt.show()
