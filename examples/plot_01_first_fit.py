"""
A first fit: how strong is this concrete?
=========================================

A table of 1,030 samples of concrete: what each was mixed from, its age, and the pressure at which it broke. We fit a
model, and ask it for an interval for every sample that it has not seen. The settings keep this page quick; without
``method``, ``members`` and ``epochs`` the fit takes longer and is better.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from deepbasis import DeepBasisRegressor

table = pd.read_csv("data/concrete.csv.gz")
train, test = train_test_split(table, test_size=0.2, random_state=0)

model = DeepBasisRegressor(method="dbk-silu", members=2, epochs=200, random_state=0)
model.fit(train.drop(columns="strength"), train["strength"])

# %%
# ``evaluate`` compares the predictions with the truth. Of the intervals of 95 %, about 95 % should hold it.

scores = model.evaluate(test.drop(columns="strength"), test["strength"])
print({name: round(score, 2) for name, score in scores.items()})

# %%
# Sorted by their predicted strength, with the measured one beside it:

order = np.argsort(model.predict(test.drop(columns="strength")))
test = test.iloc[order]
mean = model.predict(test.drop(columns="strength"))
lower, upper = model.predict_interval(test.drop(columns="strength"), coverage=0.95)

fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.fill_between(range(len(test)), lower, upper, color="#0072B2", alpha=0.2, lw=0, label="95 % interval")
ax.plot(mean, color="#0072B2", label="predicted mean")
ax.plot(test["strength"].to_numpy(), ".", color="#222222", ms=4, label="measured")
ax.set(xlabel="samples that the model has not seen, by predicted strength", ylabel="strength in MPa")
ax.legend(frameon=False)
plt.show()
