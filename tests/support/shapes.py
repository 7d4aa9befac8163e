"""The checks of shapes and dtypes, without those that were made before in the same test.

A fit calls the same functions with the same shapes some thousand times, and a check takes longer than many a function.
"""

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any

import jaxtyping
import torch

_checked: set[Hashable] = set()


def install() -> None:
    """Annotated functions of `deepbasis.gp` are checked whenever their arguments look new; before they are imported."""
    every_call = jaxtyping.jaxtyped

    def jaxtyped(fn: Any = None, *, typechecker: Any) -> Any:
        if fn is None:
            return functools.partial(jaxtyped, typechecker=typechecker)
        checked = every_call(fn, typechecker=typechecker)
        return _when_new(fn, checked) if inspect.isfunction(fn) else checked

    jaxtyping.jaxtyped = jaxtyped  # what the hook writes into the modules
    jaxtyping.install_import_hook("deepbasis.gp", "beartype.beartype")


def forget() -> None:
    """The next test checks everything again."""
    _checked.clear()


def _when_new(fn: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        look = (fn, *map(_look, args), *kwargs, *map(_look, kwargs.values()))
        try:
            known = look in _checked
        except TypeError:  # a size that is a symbol, as in an export
            return checked(*args, **kwargs)
        if known:
            return fn(*args, **kwargs)
        result = checked(*args, **kwargs)
        _checked.add(look)
        return result

    return call


def _look(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype)
    return id(value) if isinstance(value, torch.nn.Module) else type(value)
