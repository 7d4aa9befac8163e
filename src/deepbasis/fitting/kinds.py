"""What an argument may be: one of some words, a whole number, a number, a flag, a device, a seed.

Each kind checks a value, says its type in the docstring and in the command's help, and reads an option's text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from deepbasis.errors import InputError, check_choice, check_number, check_positive_int

AUTO = "auto"


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


class Kind(Protocol):
    """What an argument may be."""

    def check(self, name: str, value: Any) -> Any:
        """The value as plain Python has it, or an `InputError` that begins with the name."""

    def words(self) -> str:
        """The type, for the docstring."""

    def metavar(self) -> str:
        """The type, for the command's help."""

    def parse(self, option: str, text: str) -> Any:
        """What stands behind an option."""


@dataclass(frozen=True)
class OneOf:
    names: Callable[[], Iterable[str]]
    none: str = ""
    """What None stands for, where it may be None."""

    def check(self, name: str, value: Any) -> str | None:
        return None if value is None and self.none else check_choice(name, value, set(self.names()))

    def words(self) -> str:
        names = ", ".join(f'"{name}"' for name in self.names())
        return f"{{{names}}}" + " or None" * bool(self.none)

    def metavar(self) -> str:
        return "|".join(self.names())

    def parse(self, option: str, text: str) -> str:
        return text


@dataclass(frozen=True)
class Whole:
    """A positive integer."""

    auto: bool = False
    none: bool = False

    def check(self, name: str, value: Any) -> Any:
        if (self.auto and is_auto(value)) or (self.none and value is None):
            return value
        return check_positive_int(name, value)

    def words(self) -> str:
        return "int" + ' or "auto"' * self.auto + " or None" * self.none

    def metavar(self) -> str:
        return "INTEGER" + "|auto" * self.auto

    def parse(self, option: str, text: str) -> int | str:
        try:
            return text if self.auto and text == AUTO else int(text)
        except ValueError:
            raise InputError(f"{option} must be a whole number{' or auto' * self.auto}, got '{text}'") from None


@dataclass(frozen=True)
class Real:
    """A number, within bounds."""

    auto: bool = False
    above: float = -math.inf
    at_least: float = -math.inf
    below: float = math.inf

    def check(self, name: str, value: Any) -> Any:
        if self.auto and is_auto(value):
            return value
        if self.below == math.inf:
            return check_number(name, value, above=self.above, at_least=self.at_least)
        if not self.above < check_number(name, value) < self.below:
            raise InputError(f"{name} must lie strictly between {self.above:g} and {self.below:g}, got {value!r}")
        return float(value)

    def words(self) -> str:
        return "float" + ' or "auto"' * self.auto

    def metavar(self) -> str:
        return "NUMBER" + "|auto" * self.auto

    def parse(self, option: str, text: str) -> float | str:
        try:
            return text if self.auto and text == AUTO else float(text)
        except ValueError:
            raise InputError(f"{option} must be a number{' or auto' * self.auto}, got '{text}'") from None


@dataclass(frozen=True)
class Flag:
    """True, False or "auto"."""

    def check(self, name: str, value: Any) -> bool | str:
        if is_auto(value):
            return AUTO
        if type(value).__name__ not in ("bool", "bool_"):
            raise InputError(f"{name} must be True, False or 'auto', got {value!r}")
        return bool(value)

    def words(self) -> str:
        return 'bool or "auto"'

    def metavar(self) -> str:
        return "auto|true|false"

    def parse(self, option: str, text: str) -> bool | str:
        return {"true": True, "false": False}.get(text, text)  # what is neither, `check` refuses


@dataclass(frozen=True)
class Switch(Flag):
    """True or False."""

    def check(self, name: str, value: Any) -> bool:
        return bool(value)

    def words(self) -> str:
        return "bool"


@dataclass(frozen=True)
class Device:
    def check(self, name: str, value: Any) -> str:
        from deepbasis.engine.device import named

        named(value)
        return str(value)

    def words(self) -> str:
        return "str or torch.device"

    def metavar(self) -> str:
        return "auto|cpu|cuda|cuda:K"

    def parse(self, option: str, text: str) -> str:
        return text


@dataclass(frozen=True)
class Seed:
    def check(self, name: str, value: Any) -> Any:
        if value is None or type(value).__name__ == "RandomState":
            return value
        try:
            number = -1 if isinstance(value, bool) else value.__index__()
        except AttributeError:
            number = -1
        if not 0 <= number < 2**32:
            raise InputError(
                f"{name} must be None, an integer from 0 to 2^32 - 1, or a numpy RandomState, got {value!r}"
            )
        return number

    def words(self) -> str:
        return "int, numpy.random.RandomState or None"

    def metavar(self) -> str:
        return "INTEGER"

    def parse(self, option: str, text: str) -> int | str:
        return Whole().parse(option, text)
