"""Prediction with calibrated uncertainty on large tables: Gaussian processes with deep basis kernels.

`import deepbasis` costs milliseconds: a name is imported, and torch with it, when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "DeepBasisClassifier": "classifier",
    "DeepBasisRegressor": "estimators",
    "FitWarning": "errors",
    "NoveltyWarning": "errors",
    "TableWarning": "errors",
    "DeepBasisError": "errors",
    "InputError": "errors",
    "FileFormatError": "errors",
    "CheckpointMismatchError": "errors",
    "NumericalError": "errors",
    "AdaptiveIntervals": "gp.conformal",
    "DeepBasisGP": "gp.model",
    "Gaussian": "gp.predictive",
    "GaussianMixture": "gp.predictive",
    "METHODS": "gp.methods",
    "build": "gp.build",
    "register": "registry",
}
"""Public name -> the module that defines it."""

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from deepbasis.classifier import DeepBasisClassifier as DeepBasisClassifier
    from deepbasis.errors import CheckpointMismatchError as CheckpointMismatchError
    from deepbasis.errors import DeepBasisError as DeepBasisError
    from deepbasis.errors import FileFormatError as FileFormatError
    from deepbasis.errors import FitWarning as FitWarning
    from deepbasis.errors import InputError as InputError
    from deepbasis.errors import NoveltyWarning as NoveltyWarning
    from deepbasis.errors import NumericalError as NumericalError
    from deepbasis.errors import TableWarning as TableWarning
    from deepbasis.estimators import DeepBasisRegressor as DeepBasisRegressor
    from deepbasis.gp.build import build as build
    from deepbasis.gp.conformal import AdaptiveIntervals as AdaptiveIntervals
    from deepbasis.gp.methods import METHODS as METHODS
    from deepbasis.gp.model import DeepBasisGP as DeepBasisGP
    from deepbasis.gp.predictive import Gaussian as Gaussian
    from deepbasis.gp.predictive import GaussianMixture as GaussianMixture
    from deepbasis.registry import register as register


def __getattr__(name: str) -> Any:
    if name == "scoring":  # a module: deepbasis.scoring.crps
        return import_module("deepbasis.scoring")
    if name not in _HOMES:
        raise AttributeError(f"module 'deepbasis' has no attribute {name!r}")
    value = getattr(import_module(f"deepbasis.{_HOMES[name]}"), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
