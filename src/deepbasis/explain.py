"""Explanations of a model: which columns its predictions and their uncertainty depend on, and how.

Rows are predicted again with one column changed. For its importance the values are shuffled between the rows; for its
effect every row gets the same value (partial dependence). Where columns go together, both look at rows that the world
does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from deepbasis import plots
from deepbasis.errors import InputError, check_positive_int, check_same_rows
from deepbasis.fitting.distance import stretched
from deepbasis.fitting.distribution import PredictiveDistribution, generator
from deepbasis.fitting.fitted import ROWS_AT_A_TIME, Fitted
from deepbasis.fitting.targets import bound_columns
from deepbasis.gp.classes import Classes
from deepbasis.tables.columns import Column, joined
from deepbasis.tables.grids import grid
from deepbasis.tables.predictions import input_names, open_inputs
from deepbasis.tables.roles import DROP, Roles, read_known
from deepbasis.tables.source import Source
from deepbasis.tables.targets import check_bounds, check_exposure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

ROWS, REPEATS = 1_000, 5
"""Rows of a sample, and shuffles of each column, unless others are asked for."""
OF_NUMBERS, OF_CLASSES = ("mean", "std", "CRPS"), ("probabilities", "entropy", "log loss")
"""What an importance is about."""
_NOTHING_COUNTED = "exposure is for counts to be scored, and no target is given: leave it out"
_EFFECT_ROWS, _DRAWS, _ACROSS = 200, 50, 3


@dataclass(frozen=True)
class Sample:
    """Rows of a table: columns of the kinds that the model knows, and targets where there are any."""

    columns: tuple[Column, ...]
    y: Floats | None
    rows_of_table: int
    places: NDArray[np.int64]
    """The number of each row in the table."""
    exposure: Floats | None = None
    """Of counts with a rate."""
    bounds: Floats | None = None
    """[n, 2], of censored targets."""

    def __len__(self) -> int:
        return len(self.columns[0].values)

    def some(self, rows: int) -> Sample:
        """As many of these rows, evenly spaced, or all if there are no more."""
        return self._at(_spaced(len(self), rows))

    def _at(self, some: NDArray[np.int64]) -> Sample:
        y, exposure, bounds = (None if one is None else one[some] for one in (self.y, self.exposure, self.bounds))
        columns = tuple(one.rows(some) for one in self.columns)
        return Sample(columns, y, self.rows_of_table, self.places[some], exposure, bounds)

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Which targets are known exactly; all, where none is: then their y stands for them."""
        everywhere = np.ones(len(self), dtype=bool)
        found = everywhere if self.bounds is None else self.bounds[:, 0] == self.bounds[:, 1]
        return found if found.any() else everywhere

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        X: Any,
        y: ArrayLike | None = None,
        rows: int = ROWS,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Sample:
        """As many rows of a table in memory, evenly spaced, or all if there are no more.

        `exposure` is how long, or over how much, each count was taken.
        """
        _check_one_target(fitted)
        if y is not None:
            fitted.target.check_exposed(exposure is not None)
        elif exposure is not None:
            raise InputError(_NOTHING_COUNTED)
        columns = fitted.preprocessor.read(X)
        count = len(columns[0].values)
        target = None if y is None else fitted.target.check(y)
        if target is not None:
            check_same_rows("X", count, "y", len(target))
        exposed = None if exposure is None else check_exposure(exposure, count)
        bounds = None if target is None else check_bounds(target, lower, upper)
        return cls(columns, target, count, np.arange(count), exposed, bounds).some(rows)

    @classmethod
    def of_file(
        cls,
        fitted: Fitted,
        data: Any,
        target: str | None = None,
        rows: int = ROWS,
        needs_target: bool = False,
        exposure: str | None = None,
        drop_missing_target: bool = False,
    ) -> Sample:
        """The same of a file; the targets are there if the column of the fit, or the one that is named, is.

        Counts have the `exposure` that is named, or that of the fit. With `drop_missing_target` rows without a target
        are left out.
        """
        _check_one_target(fitted)
        if needs_target or target is not None:
            target = fitted.target_column(target)
        elif fitted.target_name in Source.open(data).names:
            target = fitted.target_name
        if target is not None:
            exposure = fitted.scored_exposure(exposure)
        elif exposure is not None:
            raise InputError(_NOTHING_COUNTED)
        lower, upper = (None, None) if target is None else bound_columns(fitted.target, data, None, None)
        known = [one for one in (target, lower, upper, exposure) if one is not None]
        beside = [] if fitted.preprocessor.input_columns else known
        source = open_inputs(data, fitted.preprocessor, beside)
        source.check_rows()
        names, some, pieces = input_names(source, fitted.preprocessor, beside), _spaced(source.rows, rows), []
        seen = 0
        for block in source.all_blocks(names, ROWS_AT_A_TIME):
            with block.located():
                columns = fitted.preprocessor.checked(
                    fitted.preprocessor.completed(map(block.column, names), len(block))
                )
            first, end = np.searchsorted(some, [seen, seen + len(block)])
            pieces.append([column.sampled(some[first:end] - seen) for column in columns])
            seen += len(block)
        labels = fitted.target.labels if fitted.target.classes else None
        found = cls(tuple(joined(parts) for parts in zip(*pieces, strict=True)), None, source.rows, some)
        if target is None:
            return found
        roles = Roles([], target, labels=labels, lower=lower, upper=upper, exposure=exposure)
        table = read_known(data, replace(roles, drop_missing_target=drop_missing_target, remedy=DROP), some)
        found = replace(found, y=table.y, exposure=table.exposure, bounds=table.bounds)
        return found._at(np.flatnonzero(~np.isnan(table.y))) if drop_missing_target else found

    def predict(self, fitted: Fitted) -> PredictiveDistribution:
        predicted = PredictiveDistribution(fitted.predict_encoded([_encoded(fitted, self.columns)]))
        return predicted if self.exposure is None else predicted.exposed(self.exposure)

    def novelty(self, fitted: Fitted) -> Floats:
        """The p-value of each row: how unlike the rows of the fit it is."""
        return fitted.novelty.p_values(_encoded(fitted, self.columns)).numpy()


def _check_one_target(fitted: Fitted) -> None:
    if fitted.target.outputs:
        raise InputError("this model has several outputs, and what explains one does not explain all: fit one for each")


def _spaced(rows: int, most: int) -> NDArray[np.int64]:
    """The numbers of `most` of the rows, or of all."""
    count = min(rows, check_positive_int("rows", most))
    return np.arange(count) * rows // count


# ---- importance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Importance:
    """How much changes, in mean over the rows and in the target's units, if a column's values are shuffled.

    The spreads are standard deviations over the shuffles. Of classes, probabilities stand for the mean, and the entropy
    in nats for the standard deviation.
    """

    column: str
    kind: str
    mean: float
    """The predicted mean moves by so much; of classes, so much probability moves to others."""
    mean_spread: float
    std: float
    """The predicted standard deviation moves by so much."""
    std_spread: float
    score: float | None = None
    """The CRPS, of classes the log loss, rises by so much, where targets are known exactly; None without targets."""
    score_spread: float | None = None


def importance(
    fitted: Fitted, sample: Sample, *, repeats: int = REPEATS, random_state: int | None = 0
) -> list[Importance]:
    """Of every column, the one that moves the mean most first."""
    check_positive_int("repeats", repeats)
    rng = np.random.default_rng(random_state)
    plain = sample.predict(fitted)
    mean, doubt, score = _state(plain, sample)
    found = []
    for k, (name, encoding) in enumerate(zip(fitted.preprocessor.names, fitted.preprocessor.encodings, strict=True)):
        moves = np.zeros((repeats, 3))
        for row in moves if encoding.width else ():  # a column without outputs moves nothing
            shuffled = sample.columns[k].rows(rng.permutation(len(sample)))
            others = _state(replace(sample, columns=tuple(_with(sample.columns, k, shuffled))).predict(fitted), sample)
            row[:] = np.abs(others[0] - mean).sum(1).mean(), np.abs(others[1] - doubt).mean(), others[2] - score
        of_mean, of_std, of_score = zip(moves.mean(0).tolist(), moves.std(0).tolist(), strict=True)
        scored = (None, None) if sample.y is None else of_score
        found.append(Importance(name, encoding.kind, *of_mean, *of_std, *scored))
    return sorted(found, key=lambda one: -one.mean)


def _state(found: PredictiveDistribution, sample: Sample) -> tuple[Floats, Floats, float]:
    """What may move: means [n, 1] or half of the probabilities [n, classes], the uncertainty [n], and the score."""
    y, exact = sample.y, sample.exact
    if isinstance(found.tensors, Classes):
        p = found.tensors.probabilities
        score = 0.0 if y is None else -float(found.log_prob(y).mean())
        return 0.5 * p.numpy(), torch.special.entr(p).sum(1).numpy(), score
    return found.mean[:, None], found.std, 0.0 if y is None else float(found[exact].crps(y[exact]).mean())


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """The mean over the rows of their predictions, if all of them had the same value of one column."""

    column: str
    kind: str
    values: Floats
    """Numbers, seconds, seconds since 1970, or the places of the labels."""
    labels: tuple[str, ...]
    """Of categories and truth values."""
    mean: Floats
    lower: Floats
    """With `upper`, where 95 % of such curves of functions drawn from the model lie: without the noise."""
    upper: Floats
    std: Floats
    """The mean of the predicted standard deviations, noise included; of a class, sqrt(p (1 - p))."""
    of: str = ""
    """The class whose probability it is; "" of a number."""


def effect(fitted: Fitted, sample: Sample, column: str, *, random_state: int | None = 0) -> Effect:
    """Of one column, on at most 200 of the rows. For classes see `class_effects.effects`."""
    if fitted.target.classes:
        raise InputError("effects are those on a number, and this model predicts classes: use class_effects.effects")
    kind, values, labels, x = at_each_value(fitted, sample, column, _EFFECT_ROWS)
    predicted = PredictiveDistribution(fitted.predict_encoded([x]))
    curve = predicted.mean.reshape(len(values), -1).mean(1)
    low, high = _band(fitted, x, len(values), random_state)
    std = predicted.std.reshape(len(values), -1).mean(1)
    return Effect(column, kind, values, labels, curve, curve + low, curve + high, std)


def at_each_value(
    fitted: Fitted, sample: Sample, column: str, most: int
) -> tuple[str, Floats, tuple[str, ...], torch.Tensor]:
    """The kind of a column, some of its values, their labels, and at most so many rows, encoded, with each in turn."""
    names = fitted.preprocessor.names
    if column not in names:
        raise InputError(f"column must be one of {', '.join(names)}, got '{column}'")
    k = names.index(column)
    columns, encoding = sample.some(most).columns, fitted.preprocessor.encodings[k]
    rows = len(columns[0].values)
    values, labels = grid(sample.columns[k], encoding)
    if not len(values):
        raise InputError(f"column '{column}' has no values in these rows: it has no effect to show")
    repeated = [one.rows(np.tile(np.arange(rows), len(values))) for one in columns]
    fixed = Column(repeated[k].label, encoding.kind, np.repeat(values, rows), labels)
    if encoding.kind == "categorical":
        fixed = Column(fixed.label, fixed.kind, fixed.values.astype(np.int64), labels)
    return encoding.kind, values, labels, _encoded(fitted, _with(repeated, k, fixed))


def _band(fitted: Fitted, x: torch.Tensor, points: int, random_state: int | None) -> tuple[Floats, Floats]:
    """How far below and above their mean 95 % of the drawn curves lie."""
    draws_from, models = generator(random_state), fitted.models
    farther = 1.0 if fitted.calibration is None else fitted.calibration.mean_scale**0.5
    with torch.no_grad():
        draws = [(model.mean_at(x), model.sample_functions(_DRAWS, generator=draws_from)(x)) for model in models]
        drawn = torch.cat([torch.lerp(*one, farther) for one in draws]).mT
        of_member = [k for k in range(len(models)) for _ in range(_DRAWS)]
        drawn = stretched(drawn, of_member, models, fitted.distance, x).mT
        found = fitted.target.inverse(drawn.double()).reshape(len(drawn), points, -1).mean(2).numpy()
    low, high = np.quantile(found, [0.025, 0.975], axis=0) - found.mean(0)
    return low, high


def _with(columns: Sequence[Column], k: int, other: Column) -> list[Column]:
    return [other if position == k else one for position, one in enumerate(columns)]


def _encoded(fitted: Fitted, columns: Sequence[Column]) -> torch.Tensor:
    return torch.from_numpy(fitted.preprocessor.encoded(columns)).to(fitted.dtype)


# ---- figures ---------------------------------------------------------------------------------------------------------


def figure(
    found: Sequence[Importance],
    effects: Sequence[Effect],
    most: int = 12,
    words: Sequence[str] = OF_NUMBERS,
    draw: Callable[[Any, Sequence[Effect]], None] | None = None,
) -> Figure:
    """Importances above, effects below. `words` say what moves: `OF_NUMBERS` or `OF_CLASSES`; `draw` draws effects."""
    shown, high = found[:most], -(-len({one.column for one in effects}) // _ACROSS)
    heights = [0.9 + 0.28 * len(shown), *[2.6 * high] * (high > 0)]
    drawn = plots.new_figure(9.3, sum(heights))
    parts = drawn.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    draw_importance(parts[0], shown, words)
    if effects:
        (draw or draw_effects)(parts[1], effects)
    return drawn


def draw_importance(on: Any, found: Sequence[Importance], words: Sequence[str] = OF_NUMBERS) -> None:
    """Bars for the mean and for the uncertainty, on a figure or a part of one."""
    names = [one.column for one in found]
    left, right = on.subplots(1, 2, sharey=True)
    plots.bars(left, names, [one.mean for one in found], [one.mean_spread for one in found])
    plots.bars(right, names, [one.std for one in found], [one.std_spread for one in found], colour=plots.ORANGE)
    left.set_xlabel(f"change of the {words[0]}")
    right.set_xlabel(f"change of the {words[1]}")


def draw_effects(on: Any, found: Sequence[Effect], across: int = _ACROSS) -> None:
    """A panel for each column, some of them side by side."""
    across = min(across, len(found))
    panels = on.subplots(-(-len(found) // across), across, squeeze=False, sharey=True).ravel()
    for ax, one in zip(panels, found, strict=False):
        plots.effect(ax, one.values, one.mean, one.lower, one.upper, labels=one.labels, dates=one.kind == "datetime")
        ax.set_xlabel(plots.plain(one.column))
    for ax in panels[::across]:
        ax.set_ylabel("mean prediction")
    for ax in panels[len(found) :]:
        ax.set_visible(False)
