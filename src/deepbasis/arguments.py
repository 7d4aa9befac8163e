"""The estimator's arguments: what each may be."""

from typing import Any

import numpy as np
import torch

from deepbasis.engine import device as devices
from deepbasis.engine.settings import EXACT
from deepbasis.errors import InputError, check_choice, check_number, check_positive_int
from deepbasis.gp.methods import METHODS
from deepbasis.recipes import RECIPES, TRENDS, method_of
from deepbasis.registry import EMBEDDINGS, OBJECTIVES


def check_arguments(given: Any) -> None:
    """Look at every argument of a `DeepBasisRegressor`."""
    check_choice("method", given.method, {"auto", *METHODS})
    check_choice("recipe", given.recipe, RECIPES)
    if given.objective is not None:
        check_choice("objective", given.objective, {*OBJECTIVES, EXACT})
        if given.method == "dnn" and given.objective != "mse":
            raise InputError(
                "method 'dnn' has no distribution over its weights: objective must be 'mse' or None, got "
                f"{given.objective!r}"
            )
    check_choice("embedding", given.embedding, {"auto", *EMBEDDINGS})
    if METHODS[method_of(given.method)].backbone == "identity" and given.embedding not in ("auto", "none"):
        raise InputError(
            f"method {given.method!r} has no network for an embedding to come before, got embedding="
            f"{given.embedding!r}; leave it out"
        )
    check_choice("trend", given.trend, {"auto", *TRENDS})
    for name in ("rank", "width", "blocks", "members"):
        check_positive_int(name, getattr(given, name))
    for name in ("inner", "epochs", "batch_size", "patience"):
        if not is_auto(getattr(given, name)):
            check_positive_int(name, getattr(given, name))
    for name in ("alpha", "beta"):
        if not is_auto(getattr(given, name)):
            check_number(name, getattr(given, name), at_least=0.0)
    if not is_auto(given.learning_rate):
        check_number("learning_rate", given.learning_rate, above=0.0)
    check_number("weight_decay", given.weight_decay, at_least=0.0)
    fraction = given.validation_fraction
    if not is_auto(fraction) and not 0.0 < check_number("validation_fraction", fraction) < 1.0:
        raise InputError(f"validation_fraction must lie strictly between 0 and 1, got {fraction!r}")
    devices.named(given.device)
    check_choice("dtype", given.dtype, {"auto", "float32", "float64"})
    for name in ("calibrate", "compile"):
        if not is_auto(getattr(given, name)) and not isinstance(getattr(given, name), bool | np.bool_):
            raise InputError(f"{name} must be True, False or 'auto', got {getattr(given, name)!r}")
    if not (given.random_state is None or isinstance(given.random_state, np.random.RandomState)):
        check_seed("random_state", given.random_state)


def check_objective(given: Any) -> None:
    """What is refused of a new fit; models in files may have it."""
    if given.method != "dnn" and given.objective == "mse":
        raise InputError(
            f"objective 'mse' says nothing about the distribution of the weights that method {given.method!r} has: "
            "take method='dnn', or another objective"
        )


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def wants_calibration(given: Any) -> bool:
    """Whether a `DeepBasisRegressor` calibrates its predictions: as it was told, or as its recipe says."""
    return RECIPES[given.recipe].calibrate if is_auto(given.calibrate) else bool(given.calibrate)


def check_level(level: Any) -> float:
    if not 0.0 < check_number("q", level) < 1.0:
        raise InputError(f"a quantile's level q must lie strictly between 0 and 1, got {level!r}")
    return float(level)


def check_seed(name: str, seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise InputError(f"{name} must be None, an integer from 0 to 2^32 - 1, or a numpy RandomState, got {seed!r}")
    return int(seed)


def generator(seed: int | np.random.RandomState | None) -> torch.Generator:
    made = torch.Generator()
    if seed is None:
        made.seed()
    elif isinstance(seed, np.random.RandomState):
        made.manual_seed(int(seed.randint(2**31 - 1)))
    else:
        made.manual_seed(check_seed("random_state", seed))
    return made
