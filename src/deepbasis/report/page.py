"""`report`: how well a model predicts a table, as one page of HTML that needs nothing else: no network, no script.

Figures are SVG inside of the page, each with a text for those who do not see it. Page and figures follow the reader's
light or dark. What is particular to numbers and to classes is in `numbers` and `classes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from deepbasis import class_effects, explain, plots
from deepbasis.errors import InputError, counted
from deepbasis.explain import Sample
from deepbasis.fitting.distribution import scores as scores_of
from deepbasis.fitting.fitted import Fitted
from deepbasis.report import classes, numbers
from deepbasis.report.html import WIDTH, drawing, figure, page, section, table, text
from deepbasis.tables.places import KINDS

_COLUMNS = 6
_PANEL = 4.0, 2.4  # inches: two of them beside each other, or on a phone one


def report(fitted: Fitted, sample: Sample, *, model: str = "model", table: str = "table") -> str:
    """The page; `model` and `table` are their names for the reader."""
    if sample.y is None:
        raise InputError("a report compares predictions with targets: give a table that has them")
    kind = classes if fitted.target.classes else numbers
    y, dist = sample.y, sample.predict(fitted)
    scores = scores_of(dist.tensors, y, sample.bounds)
    title = f"How well {fitted.target_name or 'the target'} is predicted"
    rows = counted(sample.rows_of_table, "row")
    rows = rows if len(y) == sample.rows_of_table else f"{len(y):,} of {rows}"
    body = [
        f"<h1>{text(title)}</h1>",
        f"<p>{text(model)} on {rows} of {text(table)}. {kind.summary(scores, y, sample)}</p>",
        *section("Scores", _scores(kind.SCORES, scores, fitted.validation)),
        *section("Calibration", kind.calibration(fitted, dist, y, sample)),
        *section("Errors", kind.errors(fitted, dist, y, sample)),
        *section("Columns", _columns(fitted, sample)),
        *section("Unusual rows", kind.unusual(fitted, dist, y, sample)),
        *section("The fit", _fit(fitted)),
    ]
    return page(title, body)


def _scores(words: Mapping[str, str], scores: Mapping[str, float], held_out: Mapping[str, float]) -> Iterable[str]:
    yield table(
        "Scores on this table, and of the rows held out of the fit: these count, if it was fitted to this table",
        ["score", "this table", "held out"],
        [
            [say, f"{scores[key]:.4g}", f"{held_out[key]:.4g}" if key in held_out else ""]
            for key, say in words.items()
            if key in scores
        ],
    )


def _columns(fitted: Fitted, sample: Sample) -> Iterable[str]:
    few = sample.some(explain.ROWS)
    found = explain.importance(fitted, few)
    best = [one for one in found if one.mean > 0][:_COLUMNS]
    of_classes = fitted.target.classes > 0
    words = explain.OF_CLASSES if of_classes else explain.OF_NUMBERS
    units = "as probability, and as entropy in nats" if of_classes else "in the target's units"
    yield f"<p>How far predictions move if the values of one column are shuffled, {units}.</p>"
    yield drawing(
        "Importance for the predictions and for the uncertainty; the lines are the spread over shuffles.",
        f"Columns by importance for the {words[0]}: " + ", ".join(f"{one.column} {one.mean:.3g}" for one in best),
        lambda on: explain.draw_importance(on, found[:12], words),
        WIDTH,
        0.9 + 0.28 * min(12, len(found)),
    )
    if best:
        what = "mean probability of each class" if of_classes else "mean prediction"
        yield (
            f"<p>Effects: the {what} if all rows had one value of a column; the band holds 95 % of the model's "
            "functions.</p><div class='side'>"
        )
        columns = [one.column for one in best]
        yield from (_effects_on_classes if of_classes else _effects)(fitted, few, columns)
        yield "</div>"


def _effects_on_classes(fitted: Fitted, sample: Sample, columns: Sequence[str]) -> Iterable[str]:
    for column in columns:
        found = class_effects.effects(fitted, sample, column)
        ends = "; ".join(f"{one.of} from {one.mean[0]:.2f} to {one.mean[-1]:.2f}" for one in found)
        yield drawing(
            f"{column}: {ends}",
            f"Effect of {column} on mean probabilities: {ends}.",
            partial(class_effects.draw, found=found),
            *_PANEL,
        )


def _effects(fitted: Fitted, sample: Sample, columns: Sequence[str]) -> Iterable[str]:
    effects = [explain.effect(fitted, sample, column) for column in columns]
    least, most = min(one.lower.min() for one in effects), max(one.upper.max() for one in effects)
    for one in effects:
        yield drawing(
            f"{one.column}: from {one.mean.min():.3g} to {one.mean.max():.3g}",
            f"Effect of {one.column}: the mean prediction goes from {one.mean[0]:.3g} to {one.mean[-1]:.3g}, and "
            f"lies between {one.mean.min():.3g} and {one.mean.max():.3g}.",
            partial(_draw_effect, one, (least, most)),
            *_PANEL,
        )


def _draw_effect(effect: explain.Effect, ends: tuple[float, float], on: Any) -> None:
    """Panels beside each other have one scale."""
    explain.draw_effects(on, [effect])
    room = 0.05 * (ends[1] - ends[0])
    on.axes[0].set_ylim(ends[0] - room, ends[1] + room)


def _fit(fitted: Fitted) -> Iterable[str]:
    epochs = max(len(member["validation"]) for member in fitted.history)
    yield figure(
        "Training: a thin line for each member; the dot is the epoch that was kept.",
        f"Training loss and validation score of {counted(len(fitted.models), 'member')} over up to "
        f"{counted(epochs, 'epoch')}.",
        lambda ax: plots.training_history(ax, fitted.history).legend(frameon=False, fontsize=8),
    )
    versions = ", ".join(f"{program} {version}" for program, version in fitted.versions.items())
    yield f"<p>Fitted to {counted(fitted.rows, 'row')} by {text(fitted.architecture.method)} ({text(versions)}).</p>"
    yield f"<pre tabindex='0' aria-label='The plan of the fit'>{text(fitted.plan)}</pre>"
    encodings = zip(fitted.preprocessor.names, fitted.preprocessor.encodings, strict=True)
    yield table(
        "Columns of the model",
        ["column", "kind", "gaps"],
        [[name, KINDS[encoding.kind], "yes" if encoding.missing else "no"] for name, encoding in encodings],
    )
