"""By what kernels are compared with each other, and with networks."""

import math
from collections.abc import Sequence

import torch

from deepbasis.engine.batches import Rows
from deepbasis.fitting.train import Trained
from deepbasis.gp import metrics
from deepbasis.gp.predictive import Predictive

_LITTLE = 0.9  # less is what a kernel may differ by that has found the same


def found_little(kernels: Sequence[Trained], networks: Predictive, held_out: Rows) -> bool:
    """Whether all kernels take next to all of the target's variance for noise, or twice what networks leave of it."""
    weight = held_out.weight if held_out.weight is not None else torch.ones_like(held_out.number)
    y, weight = held_out.number.double(), weight.double() / weight.double().sum()
    left = float(weight @ (y - networks.mean.double()).square())
    variance = float(weight @ (y - weight @ y).square())
    noise = min(float(kernel.models[0].noise().detach()) for kernel in kernels)
    return noise > _LITTLE * min(variance, 2.0 * left)


def schwarz_criterion(kernel: Trained, data: Rows) -> float:
    """Half of it: minus the bound on the likelihood (and the prior), and log(n) / 2 for each parameter of the kernel.

    Infinite if its training failed.
    """
    last = {name: float(values[-1]) for name, values in kernel.outcomes[0].history.items()}
    if not all(map(math.isfinite, last.values())):
        return math.inf
    n = len(data) if data.weight is None else float(data.weight.sum())
    numbers = sum(value.numel() for name, value in kernel.models[0].expansion.named_parameters() if name != "Z")
    return n * last["train_loss"] + 0.5 * math.log(max(n, 1.0)) * numbers


def is_as_good(kernel: Predictive, networks: Predictive, held_out: Rows, fitted_to_them: int = 0) -> bool:
    """Whether its NLL on the held-out rows is no higher than that of the networks would be on others.

    Each number of the networks that was fitted to these rows makes that too low by about a nat in all (Akaike, 1974).
    """
    ours, theirs = (float(metrics.nll(predicted, held_out.y, held_out.weight)) for predicted in (kernel, networks))
    n = len(held_out) if held_out.weight is None else float(held_out.weight.sum())
    return math.isfinite(ours) and not ours > theirs + fitted_to_them / max(n, 1.0)
