"""
Classes, with probabilities that mean what they say
===================================================

``DeepBasisClassifier`` has scikit-learn's interface. Wines of three grades: of those to which it gives a probability of
70 %, about 70 % should have that grade.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from deepbasis import DeepBasisClassifier, plots

table = pd.read_csv("data/wine_white.csv.gz").sample(2600, random_state=0)
grade = pd.cut(table["quality"], [0, 5, 6, 10], labels=["plain", "good", "fine"]).astype(str)
X_train, X_test, y_train, y_test = train_test_split(
    table.drop(columns="quality"), grade, test_size=0.4, random_state=0, stratify=grade
)
model = DeepBasisClassifier(members=2, epochs=60, random_state=0).fit(X_train, y_train)
print({name: round(score, 3) for name, score in model.evaluate(X_test, y_test).items()})

# %%
# Left: reliability, in ten bins with the same number of probabilities. Right: how the alcohol moves the probabilities,
# if everything else of a typical wine stays the same.

chances = model.predict_proba(X_test)
said, true = chances.ravel(), (y_test.to_numpy()[:, None] == model.classes_).ravel()
bins = np.array_split(np.argsort(said), 10)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot([0, 1], [0, 1], color=plots.GREY, lw=1)
left.plot([said[rows].mean() for rows in bins], [true[rows].mean() for rows in bins], "o-", color=plots.BLUE)
left.set(xlabel="predicted probability", ylabel="share that has the grade", xlim=(0, 1), ylim=(0, 1))

typical = pd.concat([X_train.median().to_frame().T] * 100, ignore_index=True)
typical["alcohol"] = np.linspace(8.5, 13.5, 100)
for name, curve, colour in zip(
    model.classes_, model.predict_proba(typical).T, (plots.GREEN, plots.BLUE, plots.GREY), strict=True
):
    right.plot(typical["alcohol"], curve, color=colour, label=name)
right.set(xlabel="alcohol in %", ylabel="probability", ylim=(0, 1))
right.legend(frameon=False)
plt.show()
