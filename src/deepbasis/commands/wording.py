"""What messages call things: the estimator's arguments are options here, its X is a file, its rows count from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deepbasis.commands.options import AUTO
from deepbasis.errors import InputError
from deepbasis.tables.places import display_name

FROM_0 = "(counting from 0)"


_OPTIONS = {
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *(
                "method",
                "recipe",
                "objective",
                "rank",
                "width",
                "blocks",
                "inner",
                "embedding",
                "trend",
                "alpha",
                "beta",
                "members",
            ),
            *(
                "epochs",
                "batch_size",
                "learning_rate",
                "weight_decay",
                "validation_fraction",
                "patience",
                "dtype",
                "device",
            ),
            *("calibrate", "compile", "groups", "memory", "max_steps", "checkpoint"),
        )
    },
    "sample_weight": "--weight",
    "random_state": "--seed",
}


@contextmanager
def options_named() -> Iterator[None]:
    """An argument of the estimator is an option here: batch_size is --batch-size."""
    try:
        yield
    except InputError as error:
        word, separator, rest = str(error).partition(" ")
        if word not in _OPTIONS:
            raise
        raise InputError(f"{_OPTIONS[word]}{separator}{rest}") from error


@contextmanager
def table_named(path: str, validation: str | None = None) -> Iterator[None]:
    """The estimator's X and X_val are files here."""
    try:
        with rows_explained():
            yield
    except InputError as error:
        found = re.match(r"(X_val|X)(: X)?(?=[ :])", str(error))
        if found is None:
            raise
        name = display_name(validation if found[1] == "X_val" and validation is not None else path)
        raise InputError(f"{name}{str(error)[found.end() :]}") from error


@contextmanager
def rows_explained() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        explained, found = re.subn(r"(\brow \d+)", rf"\1 {FROM_0}", str(error), count=1)
        if not found or FROM_0 in str(error):
            raise
        raise InputError(explained) from error


def true_false_or_auto(text: str) -> bool | str:
    """What is neither is the estimator's to refuse."""
    return {"true": True, "false": False}.get(text, text)


def number_or_auto(option: str, text: str, kind: type[int] | type[float]) -> int | float | str:
    if text == AUTO:
        return AUTO
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{option} must be {what} or auto, got '{text}'") from None
