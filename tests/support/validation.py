"""The score of a model on validation rows, found without the engine."""

import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.settings import Settings
from deepbasis.gp import metrics
from deepbasis.gp.model import DeepBasisGP


def score(model: DeepBasisGP, data: Rows, settings: Settings) -> float:
    """The validation score through the public predictions and metrics."""
    with torch.no_grad():
        if settings.objective == "mse":
            return float((data.y - model(data.x).mean).square().mean())
        predictive = model.predict(data.x)
        return float((metrics.crps if settings.selection == "crps" else metrics.nll)(predictive, data.y))
