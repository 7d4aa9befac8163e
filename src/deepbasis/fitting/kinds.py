"""Kinds of arguments: one of several words, a whole number, a number, a flag, a device, a seed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepbasis.errors import InputError, check_choice, check_number, check_positive_int, check_share
from deepbasis.registry import LIKELIHOODS
from deepbasis.tables.places import MEANINGS

AUTO = "auto"
CONFORMAL, CROSS = "conformal", "cross-conformal"
PROMISING = (CONFORMAL, CROSS)
"""Calibrations that make a promise."""

IDENTITY, LOG, WARP, COUNT, ORDINAL, CLASSES = "identity", "log", "warp", "count", "ordinal", "classes"
TRANSFORMS = (AUTO, IDENTITY, LOG, WARP, COUNT, ORDINAL, CLASSES)
"""Of the target."""


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


def one_of(names: Callable[[], Iterable[str]], none: bool = False, many: bool = False) -> Kind:
    """A word; the list is made when it is needed, since names can be registered. The help has those of a long list."""
    return Kind(
        lambda name, value: None if value is None and none else check_choice(name, value, set(names())),
        lambda: "str" if many else "{" + ", ".join(f'"{name}"' for name in names()) + "}" + " or None" * none,
        lambda: "|".join(names()),
    )


def whole(auto: bool = False) -> Kind:
    """A positive integer."""
    return _number(int, "a whole number", auto, check_positive_int)


def jobs() -> Kind:
    """A number of threads; as in scikit-learn -1 is all that there are."""
    plain = whole(auto=True)

    def check(name: str, value: Any) -> Any:
        if value is None:
            return AUTO
        if not isinstance(value, str | bool) and value == -1:
            return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return plain.check(name, value)

    return replace(plain, check=check)


def real(
    auto: bool = False,
    *,
    none: bool = False,
    above: float = -math.inf,
    at_least: float = -math.inf,
) -> Kind:
    """A number within bounds, or perhaps None."""

    def check(name: str, value: Any) -> float | None:
        return None if none and value is None else check_number(name, value, above=above, at_least=at_least)

    kind = _number(float, "a number", auto, check)
    return replace(kind, type=lambda: "float or None") if none else kind


def share(auto: bool = False) -> Kind:
    """A number strictly between 0 and 1."""
    return _number(float, "a number", auto, check_share)


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


def _check_calibrate(name: str, value: Any) -> bool | str:
    if isinstance(value, str) and value in PROMISING:
        return value
    try:
        return _check_flag(name, value)
    except InputError:
        raise InputError(
            f"{name} must be True, False, 'auto', 'conformal' or 'cross-conformal', got {value!r}"
        ) from None


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


def _check_transform(name: str, value: Any) -> Any:
    if not isinstance(value, type) and all(
        hasattr(value, method) for method in ("fit", "transform", "inverse_transform")
    ):
        return value
    if not isinstance(value, str) or value not in TRANSFORMS:
        words = ", ".join(TRANSFORMS)
        raise InputError(f"{name} must be one of {words}, or a scikit-learn transformer with an inverse; got {value!r}")
    return value


def _parse_transform(option: str, text: str) -> str:
    """Checked here: the option of the argument `target` is not --target."""
    return check_choice(option, text, TRANSFORMS)


def _check_columns(name: str, value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a dictionary, such as {{'price': 'number'}}, got {value!r}")
    return {str(column): check_choice(f"{name}[{column!r}]", meaning, MEANINGS) for column, meaning in value.items()}


BY_ITSELF = {
    "interval": "leave it out, and give target='count' or target='ordinal'",
    "classes": "leave it out, and use DeepBasisClassifier, or in the command target='classes'",
    "outputs": "leave it out, and give several targets",
    "censored": "leave it out, and give lower or upper, the bounds of the target",
    "input-noise": "leave it out, and give noise='input'",
}
"""Likelihoods that are not asked for by name: a fit chooses them by itself. What to do instead."""


def check_asked(name: str, value: Any, default: str | None = None) -> Any:
    """A likelihood that a user may give by name."""
    if isinstance(value, str) and value in BY_ITSELF and value != default:
        instead = "leave it out" if default == CLASSES else BY_ITSELF[value]
        raise InputError(f"{name} {value!r} is what some fits choose by themselves: {instead}")
    return value


def _offered() -> list[str]:
    return [name for name in LIKELIHOODS if name not in BY_ITSELF]


LIKELIHOOD = Kind(
    lambda name, value: value if value in BY_ITSELF else check_choice(name, value, _offered()),
    lambda: "str",
    lambda: "|".join(_offered()),
    check_asked,
)
SHARE = share()
COLUMNS = Kind(_check_columns, lambda: "dict or None", lambda: "COLUMN=KIND")
FLAG = Kind(
    _check_flag,
    lambda: 'bool or "auto"',
    lambda: "auto|true|false",
    lambda option, text: {"true": True, "false": False}.get(text, text),  # `check` refuses anything else
)
CALIBRATE = Kind(
    _check_calibrate,
    lambda: 'bool, "auto", "conformal" or "cross-conformal"',
    lambda: "auto|true|false|conformal|cross-conformal",
    FLAG.parse,
)
ANYTHING = Kind(lambda name, value: value, lambda: 'dict, "balanced" or None', lambda: "")
"""Checked with the data."""
SWITCH = Kind(lambda name, value: bool(value), lambda: "bool", lambda: "")
DEVICE = Kind(_check_device, lambda: "str or torch.device", lambda: "auto|cpu|cuda|cuda:K")
TRANSFORM = Kind(
    _check_transform,
    lambda: "{" + ", ".join(f'"{name}"' for name in TRANSFORMS) + "} or transformer",
    lambda: "|".join(TRANSFORMS),
    _parse_transform,
)
SEED = Kind(
    check_seed, lambda: "int, numpy.random.RandomState or None", lambda: "INTEGER", lambda option, text: int(text)
)
