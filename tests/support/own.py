"""The names that the package itself registers: taken before any test adds one of its own."""

from deepbasis.gp.methods import METHODS as _METHODS
from deepbasis.registry import EMBEDDINGS as _EMBEDDINGS
from deepbasis.registry import OBJECTIVES as _OBJECTIVES

METHODS = dict(_METHODS)
OUTLOOK = {f"dbk-{name}" for name in ("matern", "fourier", "fourier-matern", "bsplines", "arccos")}
"""Methods that differ from dbk-silu in their expansion alone: an engine does not see it."""
OBJECTIVES = dict(_OBJECTIVES)
EMBEDDINGS = dict(_EMBEDDINGS)
