"""
A basis of your own
===================

The kernel is an inner product of basis functions, and you may bring your own. An expansion is a plain PyTorch module
that turns the network's output into the basis; one call makes it known by name. Here: a basis of hat functions, beside
two that come with the library, on the noise of aerofoils.
"""

import matplotlib.pyplot as plt
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from torch import nn

import deepbasis
from deepbasis import DeepBasisRegressor, plots
from deepbasis.gp.expansion import Features
from deepbasis.gp.methods import Method


class Hats(nn.Module):
    """phi_j(g) = max(0, 1 - |w_j' g + b_j|) / sqrt(r)."""

    def __init__(self, h: int, rank: int, *, jitter: float) -> None:
        super().__init__()
        self.rank, self.linear = rank, nn.Linear(h, rank)

    def forward(self, g: torch.Tensor) -> Features:
        phi = (1 - self.linear(g).abs()).relu() / self.rank**0.5
        prior_var = phi.square().sum(-1)
        return Features(phi, prior_var, torch.zeros_like(prior_var), torch.zeros((), dtype=torch.int32))


deepbasis.register("expansion", "hats", Hats)
deepbasis.register("method", "dbk-hats", Method("resnet", "hats", "dppgp", corrected=False))

# %%
# From here on ``"dbk-hats"`` is a method like the others, in Python and in saved models. (Short fits of one table:
# which basis is best is another question.)

table = pd.read_csv("data/airfoil.csv.gz")
X, y = table.drop(columns="pressure"), table["pressure"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

scores = {}
for method in ("dbk-hats", "dbk-silu", "dbk-arccos"):
    model = DeepBasisRegressor(method=method, members=2, epochs=100, random_state=0).fit(X_train, y_train)
    scores[method] = model.evaluate(X_test, y_test)
    print(f"{method}: CRPS {scores[method]['crps']:.3f} dB, NLL {scores[method]['nll']:.3f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for ax, name, title in ((left, "crps", "CRPS in dB: less is better"), (right, "coverage_95", "in the 95 % interval")):
    ax.plot(list(scores), [one[name] for one in scores.values()], "o", color=plots.BLUE, ms=9)
    ax.margins(x=0.3)
    ax.set_title(title, fontsize=10)
left.set_ylim(0, 1.2 * max(one["crps"] for one in scores.values()))
right.axhline(0.95, color=plots.INK, lw=1, ls="--")
right.set_ylim(0.85, 1)
plt.show()
