"""Kinds of arguments: one of several words, a whole number, a number, a flag, a device, a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from deepbasis.errors import InputError, check_choice, check_number, check_positive_int

AUTO = "auto"


@dataclass(frozen=True)
class Kind:
    check: Callable[[str, Any], Any]
    """(name, value) -> the value as a plain Python object, or an `InputError` that begins with the name."""
    type: Callable[[], str]
    """For the docstring."""
    metavar: Callable[[], str]
    """For the command's help; choices are separated by bars."""
    parse: Callable[[str, str], Any] = lambda option, text: text
    """(option, text) -> the value."""


def one_of(names: Callable[[], Iterable[str]], none: bool = False) -> Kind:
    """A word; the list is made when it is needed, since names can be registered."""
    return Kind(
        lambda name, value: None if value is None and none else check_choice(name, value, set(names())),
        lambda: "{" + ", ".join(f'"{name}"' for name in names()) + "}" + " or None" * none,
        lambda: "|".join(names()),
    )


def whole(auto: bool = False) -> Kind:
    """A positive integer."""
    return _number(int, "a whole number", auto, check_positive_int)


def real(auto: bool = False, *, above: float = -math.inf, at_least: float = -math.inf, below: float = math.inf) -> Kind:
    """A number within bounds."""

    def check(name: str, value: Any) -> float:
        if below == math.inf:
            return check_number(name, value, above=above, at_least=at_least)
        if not above < check_number(name, value) < below:
            raise InputError(f"{name} must lie strictly between {above:g} and {below:g}, got {value!r}")
        return float(value)

    return _number(float, "a number", auto, check)


def _number(type_: Callable[[str], Any], words: str, auto: bool, check: Callable[[str, Any], Any]) -> Kind:
    def parse(option: str, text: str) -> Any:
        try:
            return text if auto and text == AUTO else type_(text)
        except ValueError:
            raise InputError(f"{option} must be {words}{' or auto' * auto}, got '{text}'") from None

    return Kind(
        lambda name, value: AUTO if auto and isinstance(value, str) and value == AUTO else check(name, value),
        lambda: ("int" if type_ is int else "float") + ' or "auto"' * auto,
        lambda: ("INTEGER" if type_ is int else "NUMBER") + "|auto" * auto,
        parse,
    )


def _check_flag(name: str, value: Any) -> bool | str:
    if isinstance(value, str) and value == AUTO:
        return AUTO
    if type(value).__name__ not in ("bool", "bool_"):
        raise InputError(f"{name} must be True, False or 'auto', got {value!r}")
    return bool(value)


def _check_device(name: str, value: Any) -> str:
    from deepbasis.engine.device import named

    named(value)
    return str(value)


def check_seed(name: str, value: Any) -> Any:
    if value is None or type(value).__name__ == "RandomState":
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() < 2**32:
        raise InputError(f"{name} must be None, an integer from 0 to 2^32 - 1, or a numpy RandomState, got {value!r}")
    return value.__index__()


SHARE = real(above=0.0, below=1.0)
FLAG = Kind(
    _check_flag,
    lambda: 'bool or "auto"',
    lambda: "auto|true|false",
    lambda option, text: {"true": True, "false": False}.get(text, text),  # `check` refuses anything else
)
SWITCH = Kind(lambda name, value: bool(value), lambda: "bool", lambda: "")
DEVICE = Kind(_check_device, lambda: "str or torch.device", lambda: "auto|cpu|cuda|cuda:K")
SEED = Kind(
    check_seed, lambda: "int, numpy.random.RandomState or None", lambda: "INTEGER", lambda option, text: int(text)
)
