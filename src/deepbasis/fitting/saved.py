"""Parts of a model's file, read back: what is not as we write it is a `ValueError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepbasis.engine.checks import LARGEST
from deepbasis.engine.members import Member
from deepbasis.fitting.plan import Architecture
from deepbasis.gp.classes import Classes
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import GaussianMixture, Predictive


def member_model(architecture: Architecture, columns: int, state: dict[str, Tensor]) -> DeepBasisGP:
    """A member's model from its parameters, whose shapes are checked against a model on the meta device."""
    blocks = {name.split(".")[2] for name in state if name.startswith("backbone.blocks.")}
    if not architecture.is_shallow and len(blocks) != architecture.blocks:
        raise ValueError(f"{architecture.blocks} blocks were to be there, {len(blocks)} are")
    with torch.device("meta"):
        slope = () if architecture.trend == "none" else (0.0,) * columns
        model = architecture.build(columns, Member(slope=slope))
    if (dtype := state["mean"].dtype) not in (torch.float32, torch.float64):
        raise ValueError(f"its parameters are {dtype}")
    expected = {name: (value.shape, dtype) for name, value in model.state_dict().items()}
    if expected != {name: (value.shape, value.dtype) for name, value in state.items()}:
        raise ValueError("its parameters are not those of its method and sizes")
    if not all(bool((value.abs() <= LARGEST).all()) for value in state.values()):
        raise ValueError(f"it has parameters that are not finite, or beyond {LARGEST:g}")
    model.load_state_dict(state, assign=True)
    with torch.no_grad():  # logarithms among them are too large long before; predictions may bound the noise
        some = torch.tensor([[0.0], [1.0], [-1.0]], dtype=dtype).expand(3, columns)
        if not (is_finite(model.predict(some)) and bool(model.noise().isfinite().all())):
            raise ValueError("its predictions, or its noise, are not finite")
    return model


def is_finite(predicted: Predictive) -> bool:
    if isinstance(predicted, GaussianMixture | Classes):
        return all(bool(numbers.isfinite().all()) for numbers in (predicted.means, predicted.variances))
    return bool((predicted.mean.isfinite() & predicted.variance.isfinite()).all())


def read_name(found: Any) -> str | None:
    if not isinstance(found, str | None):
        raise ValueError(f"the name of its target is {found!r}")
    return found


def read_texts(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("its versions are not texts")
    return dict(found)
