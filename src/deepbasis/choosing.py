"""By what a `DeepBasisRegressor` chooses between fits of a small table: kernels by likelihood, networks by new rows."""

import math
from typing import Any

import torch

from deepbasis.engine.batches import Rows
from deepbasis.gp.objectives import weighted_mean


def bic(kernel: Any, data: Rows) -> float:
    """Half of Schwarz' criterion: minus the bound on the likelihood, and log(n) / 2 for each number of the kernel.

    Infinite for one whose training failed before its end.
    """
    last = {name: float(values[-1]) for name, values in kernel.history_[0].items()}
    if not all(map(math.isfinite, last.values())):
        return math.inf
    n = len(data) if data.weight is None else float(data.weight.sum())
    numbers = [value.numel() for name, value in kernel.models_[0].expansion.named_parameters() if name != "Z"]
    return n * last["train_loss"] + 0.5 * math.log(max(n, 1.0)) * sum(numbers)


def is_as_good(shallow: Any, deep: Any, validation: Rows) -> bool:
    """Whether the networks' NLL on the validation rows, calibrated on these, is not better by a standard error."""
    ours, theirs = (fitted.ensemble_.predict(validation.x).log_prob(validation.y) for fitted in (shallow, deep))
    if not bool(ours.isfinite().all()):
        return False
    weight = torch.ones_like(ours) if validation.weight is None else validation.weight
    mean = weighted_mean(theirs - ours, weight)
    error = (weighted_mean((theirs - ours - mean).square(), weight) / weight.sum()).sqrt()
    return not bool(mean > error)
