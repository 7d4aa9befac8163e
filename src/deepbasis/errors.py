"""The typed errors, and the input checks that raise them.

Arguments are checked once, at the door (constructors, `fit`, the command), never in a `forward`. Each message says
what was given, where, and what is expected.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class DeepBasisError(Exception):
    """The root of every error that this package raises on purpose."""


class InputError(DeepBasisError, ValueError, TypeError):
    """An argument or a table that cannot be used as it is: its value or its type is wrong."""


class FileFormatError(DeepBasisError, ValueError):
    """A file that is not ours, is damaged, or was written by a newer release."""


class CheckpointMismatchError(DeepBasisError, ValueError):
    """A checkpoint written with other data, settings or version than the run that tries to resume it."""


class FileInUseError(DeepBasisError, RuntimeError):
    """A checkpoint that another run is writing to."""


class NumericalError(DeepBasisError, RuntimeError):
    """A computation that had no usable result: a failed factorisation, a loss that is not finite."""


class UnfinishedError(KeyboardInterrupt):
    """A fit that was interrupted before it had any result; to most callers a `KeyboardInterrupt` like any other."""


class FitWarning(UserWarning):
    """The fit ended, but something about it deserves attention."""


class TableWarning(FitWarning):
    """What a table was taken for, where that is not plain, and cells that could not be read."""


class NoveltyWarning(UserWarning):
    """Many rows of a table are unlike those that the model was fitted to."""


class WorkerError(DeepBasisError, RuntimeError):
    """Another worker of the same run has failed; that worker reports the reason."""


def first_line(error: BaseException) -> str:
    """What a line of the log says of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def counted(number: int, what: str) -> str:
    """1 row, 2,000 rows."""
    return f"{number:,} {what}" + "s" * (number != 1)


def per_cent(share: Any, digits: int = 0) -> str:
    """0.95 is 95 %."""
    return f"{100 * share:.{digits}f} %"


def first_of(number: int, row: int) -> str:
    """Where several things are, or the only one."""
    return f"in row {row}" if number == 1 else f"the first in row {row}"


def which_are(number: int, what: str, how: str, row: int) -> str:
    """1 value that is missing, in row 7; 2 values that are missing, the first in row 7."""
    return f"{counted(number, what)} that {'is' if number == 1 else 'are'} {how}, {first_of(number, row)}"


def warn_of_table(text: str, stacklevel: int = 4) -> None:
    warnings.warn(text, TableWarning, stacklevel=stacklevel)


def check_tensor(name: str, value: Tensor, rank: int) -> None:
    """Refuse what is not a floating-point tensor with `rank` dimensions, at least one row, and finite entries."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise InputError(f"{name} must be floating point, got {value.dtype}; convert it with .double() or .float()")
    if value.dim() != rank:
        expected = {1: "a vector [n]", 2: "a matrix [n, d]"}.get(rank, f"a tensor of {rank} dimensions")
        raise InputError(f"{name} must be {expected}, got shape {list(value.shape)}")
    if value.numel() == 0:
        raise InputError(f"{name} is empty: shape {list(value.shape)}")
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        bad = (~finite).nonzero()
        raise InputError(
            f"{name} has {len(bad)} entries that are not finite, the first at index {bad[0].tolist()}; "
            "remove those rows or fill them in"
        )


def check_same_length(first_name: str, first: Tensor, second_name: str, second: Tensor) -> None:
    check_same_rows(first_name, len(first), second_name, len(second))


def check_same_rows(first_name: str, first: int, second_name: str, second: int, why: str = "they must agree") -> None:
    if first != second:
        raise InputError(f"{first_name} has {counted(first, 'row')} but {second_name} has {second:,}: {why}")


def check_positive_int(name: str, value: Any) -> int:
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number <= 0:
        raise InputError(f"{name} must be a positive integer, got {value!r}")
    return number


def check_number(name: str, value: Any, *, above: float = -math.inf, at_least: float = -math.inf) -> float:
    """A finite real number, `> above` and `>= at_least`."""
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number) or number <= above or number < at_least:
        bound = f" > {above:g}" if above > -math.inf else f" >= {at_least:g}" if at_least > -math.inf else ""
        raise InputError(f"{name} must be a finite number{bound}, got {value!r}")
    return number


def check_share(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    number = check_number(name, value)
    if not 0.0 < number < 1.0:
        hint = f"; for {number:g} % give {number / 100:g}" if 1.0 < number < 100.0 else ""
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value!r}{hint}")
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(sorted(choices))}; got {value!r}")
    return str(value)
