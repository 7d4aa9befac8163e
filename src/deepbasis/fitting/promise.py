"""What a fit promises of its intervals, from rows that it has not seen, and how the promise is kept for new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from deepbasis.errors import InputError
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.kinds import CROSS, SHARE
from deepbasis.gp.conformal import Conformal, Ends
from deepbasis.gp.cross import CrossConformal
from deepbasis.gp.predictive import Predictive
from deepbasis.tables.targets import Floats, group_names


def promise_of(fitted: Fitted) -> Conformal | CrossConformal:
    if fitted.folds:
        return CrossConformal(tuple(fold.conformal for fold in fitted.folds if fold.conformal is not None))
    if fitted.conformal is None and fitted.spec.calibrate == CROSS:
        raise InputError(
            "guarantee needs all fits of calibrate='cross-conformal', and this one was interrupted before they had "
            "ended: fit again"
        )
    if fitted.conformal is None:
        raise InputError(
            "guarantee needs rows that the fit has not seen: fit with calibrate='conformal' or "
            "calibrate='cross-conformal'"
        )
    return fitted.conformal


def check_promised(fitted: Fitted, coverage: float | None, guarantee: bool, grouped: bool) -> None:
    """Refuse what cannot be promised, before anything is predicted. `grouped`: to each group by itself."""
    if grouped and not guarantee:
        raise InputError("groups is for guaranteed intervals: give guarantee=True with it, or leave it out")
    if guarantee and coverage is not None:
        promise = promise_of(fitted)
        if grouped:
            promise.check_groups()
        else:
            promise.promise(coverage)


def guaranteed(
    fitted: Fitted,
    predicted: Predictive,
    chunks: Callable[[Fitted], Iterable[Tensor]],
    coverage: float,
    groups: Sequence[str] | None = None,
) -> Ends:
    """Intervals that keep the promise, of rows for which the fit has `predicted` this.

    `chunks` gives them as a fit without some rows encodes them: each of those may have other categories and scales.
    """
    promise = promise_of(fitted)
    if isinstance(promise, Conformal):
        return promise.interval(predicted, coverage, groups)
    return _crossed(fitted, promise, chunks, coverage, groups)


def _crossed(
    fitted: Fitted,
    promise: CrossConformal,
    chunks: Callable[[Fitted], Iterable[Tensor]],
    coverage: float,
    groups: Sequence[str] | None,
) -> Ends:
    """From what the fits without some rows predict; that to all rows has no part in it."""
    promise.promise(coverage)  # refused before anything more is predicted
    return promise.interval([fold.predict_encoded(chunks(fold)) for fold in fitted.folds], coverage, groups)


def guaranteed_interval(fitted: Fitted, X: Any, coverage: float, groups: Any = None) -> tuple[Floats, Floats]:
    """The same of a table in memory."""
    promise, asked = promise_of(fitted), SHARE.check("coverage", coverage)

    def named(rows: int) -> list[str] | None:
        return None if groups is None else group_names(groups, rows)

    if isinstance(promise, Conformal):
        predicted = fitted.predict(X).tensors
        lower, upper = promise.interval(predicted, asked, named(len(predicted)))
    else:
        names = named(fitted.look(X))
        lower, upper = _crossed(fitted, promise, lambda one: one.chunks(X), asked, names)
    return lower.numpy(), upper.numpy()


def in_words(fitted: Fitted, coverage: float = 0.9) -> str:
    """What the intervals of a fit promise; nothing where there is no promise."""
    if not fitted.folds and fitted.conformal is None:
        return ""
    promise, asked = promise_of(fitted), f"{100.0 * coverage:g} %"
    try:
        least = f"{100.0 * promise.promise(coverage):.1f} % at least is promised"
    except InputError as error:
        return f"guaranteed intervals: {error}"
    if isinstance(promise, Conformal):
        return f"guaranteed intervals: of {asked}, {least}"
    return f"guaranteed intervals: those of {asked} hold about {asked} of the targets, and {least}"
