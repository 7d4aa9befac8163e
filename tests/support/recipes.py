"""Recipes for tests: the default with few steps of exact training, and kernels of one kind or none to choose from."""

from dataclasses import replace
from typing import Any

from deepbasis.fitting.recipe import RECIPES

DEFAULT = RECIPES["default"]


def recipe(name: str, **changes: Any) -> str:
    """The name of a recipe that is the default but for these changes."""
    if name not in RECIPES:
        RECIPES.register(name, replace(DEFAULT, **changes))
    return name


FEW_STEPS = recipe("few-exact-steps", exact_steps=5, search_steps=5)
"""method="auto" trains a shallow kernel for five steps, or for as many as there are epochs, if these are fewer."""


def only(*methods: str, **changes: Any) -> str:
    """With these kernels to try beside the network."""
    words = [f"only {', '.join(methods)}", *(f"{name}={value}" for name, value in changes.items())]
    return recipe(", ".join(words), **{"shallow_methods": methods, "search_steps": 10, **changes})
