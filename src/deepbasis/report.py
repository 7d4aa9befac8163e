"""`report`: how well a model predicts a table, as one page of HTML that needs nothing else: no network, no script.

Figures are SVG inside of the page, each with a text for those who do not see it. Page and figures follow the reader's
light or dark.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbasis import explain, plots
from deepbasis.errors import InputError
from deepbasis.explain import Sample
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.fitting.fitted import Fitted
from deepbasis.gp import metrics
from deepbasis.gp.counts import Counts
from deepbasis.gp.discrete import Discrete

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

ROWS = 20_000
"""Of a table, at most."""
_COLUMNS, _INTERVALS, _UNUSUAL, _POINTS = 6, 80, 10, 3_000
_WIDTH = 6.4  # of a figure, in inches: its text can still be read on a phone

_SCORES = {
    "mae": "MAE: mean absolute error",
    "rmse": "RMSE: root mean squared error",
    "nll": "NLL: minus the log of the predicted density, in nats a row",
    "crps": "CRPS: an absolute error for distributions",
    "coverage_95": "Share of targets in their 95 % intervals",
    "width_95": "Mean width of the 95 % intervals",
    "calibration_error": "Calibration error: mean distance from the diagonal below",
}


def report(fitted: Fitted, sample: Sample, *, model: str = "model", table: str = "table") -> str:
    """The page; `model` and `table` are their names for the reader."""
    if fitted.target.classes:
        raise InputError("a report is about predictions of a number, and this model predicts classes: see 'evaluate'")
    if sample.y is None:
        raise InputError("a report compares predictions with targets: give a table that has them")
    y, dist = sample.y, sample.predict(fitted)
    scores = metrics.evaluate(dist.tensors, torch.from_numpy(y))
    target = fitted.target_name or "the target"
    part = "" if len(y) == sample.rows_of_table else f" of {sample.rows_of_table:,}, evenly spaced"
    body = [
        f"<h1>How well {_text(target)} is predicted</h1>",
        f"<p>{_text(model)} on {len(y):,} rows{part} of {_text(table)}. The 95 % intervals hold "
        f"<strong>{100 * scores['coverage_95']:.1f} %</strong> of the targets. Predicted means are off by "
        f"<strong>{scores['mae']:.4g}</strong> on average; the standard deviation of the targets is "
        f"{y.std():.4g}.</p>",
        *_section("Scores", _scores(scores, fitted.validation)),
        *_section("Calibration", _calibration(dist, y)),
        *_section("Errors", _errors(dist, y)),
        *_section("Columns", _columns(fitted, sample)),
        *_section("Unusual rows", _unusual(dist, y, sample, sample.novelty(fitted))),
        *_section("The fit", _fit(fitted)),
    ]
    return _PAGE.format(title=_text(f"How well {target} is predicted"), style=_STYLE, body="\n".join(body))


# ---- sections --------------------------------------------------------------------------------------------------------


def _scores(scores: dict[str, float], held_out: dict[str, float]) -> Iterable[str]:
    yield _table(
        "Scores on this table, and of the rows held out of the fit",
        ["score", "this table", "held out"],
        [
            [words, f"{scores[key]:.4g}", f"{held_out[key]:.4g}" if key in held_out else ""]
            for key, words in _SCORES.items()
        ],
    )


def _calibration(dist: PredictiveDistribution, y: Floats) -> Iterable[str]:
    pit = dist.cdf(y)
    if isinstance(dist.tensors, Discrete | Counts):
        pit = np.clip(pit - 0.5 * np.exp(dist.log_prob(y)), 0.0, 1.0)  # the middle of the step
    gap = np.abs(np.sort(pit) - (np.arange(len(pit)) + 0.5) / len(pit)).max()
    first, last = np.mean(pit < 0.1), np.mean(pit > 0.9)
    yield "<div class='side'>"
    yield _figure(
        "Reliability: on the diagonal, within the grey band of chance, is good.",
        f"Share of targets below each predicted quantile: at most {gap:.2f} from the diagonal.",
        lambda ax: plots.calibration_curve(ax, pit),
        4.0,
        4.0,
    )
    yield _figure(
        "PIT: flat is good; a valley says that intervals are too narrow, a hump too wide.",
        f"Histogram of the predicted probability below the target: {first:.0%} of the rows in the lowest tenth, "
        f"{last:.0%} in the highest; 10% each is good.",
        lambda ax: plots.pit_histogram(ax, pit),
        4.0,
        4.0,
    )
    yield "</div>"


def _errors(dist: PredictiveDistribution, y: Floats) -> Iterable[str]:
    some = slice(None, None, -(-len(y) // _POINTS))
    far = np.mean(np.abs(y - dist.mean) > 2 * dist.std)
    yield _figure(
        "Residuals: a shapeless cloud, mostly inside of the grey band of two standard deviations, is good.",
        f"Residuals in predicted standard deviations over the predicted mean; {far:.1%} lie beyond two.",
        lambda ax: plots.residuals(ax, dist.mean[some], dist.std[some], y[some]),
    )
    shown = np.unique(np.linspace(0, len(y) - 1, _INTERVALS).astype(int))
    shown = shown[np.argsort(dist.mean[shown], kind="stable")]
    rows, lower, upper = dist[shown], *dist[shown].interval()
    outside = int(((y[shown] < lower) | (y[shown] > upper)).sum())
    yield _figure(
        f"Intervals and targets of {len(shown)} rows, in the order of their means.",
        f"95 % intervals of {len(shown)} rows with their targets, of which {outside} lie outside.",
        lambda ax: plots.intervals(ax, rows.mean, lower, upper, y=y[shown]).legend(frameon=False, fontsize=8),
    )


def _columns(fitted: Fitted, sample: Sample) -> Iterable[str]:
    few = sample.some(explain.ROWS)
    found = explain.importance(fitted, few)
    best = [one for one in found if one.mean > 0][:_COLUMNS]
    yield "<p>How far predictions move if the values of one column are shuffled, in the target's units.</p>"
    yield _drawing(
        "Importance for the mean and for the uncertainty; the lines are the spread over shuffles.",
        "Columns by importance for the mean: " + ", ".join(f"{one.column} {one.mean:.3g}" for one in best),
        lambda on: explain.draw_importance(on, found[:12]),
        _WIDTH,
        0.9 + 0.28 * min(12, len(found)),
    )
    if best:
        effects = [explain.effect(fitted, few, one.column) for one in best]
        ends = ", ".join(f"{one.column} from {one.mean.min():.3g} to {one.mean.max():.3g}" for one in effects)
        yield _drawing(
            "Effects: the mean prediction if all rows had one value; the band holds 95 % of the model's functions.",
            f"Effect curves of the most important columns: {ends}",
            lambda on: explain.draw_effects(on, effects, across=2),
            _WIDTH,
            2.3 * -(-len(effects) // 2),
        )


def _unusual(dist: PredictiveDistribution, y: Floats, sample: Sample, novelty: Floats) -> Iterable[str]:
    below = dist.cdf(y)
    tail = 2.0 * np.minimum(below, 1.0 - below)
    worst = np.argsort(tail, kind="stable")[:_UNUSUAL]
    lower, upper = dist.interval()
    yield (
        f"<p>The {len(worst)} targets that the model finds least likely; rows are counted from 0. Of {len(y):,} rows, "
        f"about {0.01 * len(y):.3g} should have a chance below 0.01: more are errors in the table, or something that "
        "its columns do not say.</p>"
    )
    yield (
        f"<p>{100 * np.mean(novelty <= 0.01):.1f} % of the rows have inputs unlike those of the fit, by their p-value "
        "(novelty): about 1 % is usual.</p>"
    )
    yield _table(
        "Unusual rows",
        ["row", "target", "mean", "95 % interval", "chance", "novelty"],
        [
            [
                f"{row * sample.step:,}",
                f"{y[row]:.4g}",
                f"{dist.mean[row]:.4g}",
                f"{lower[row]:.4g} to {upper[row]:.4g}",
                f"{tail[row]:.2g}",
                f"{novelty[row]:.2g}",
            ]
            for row in worst
        ],
    )


def _fit(fitted: Fitted) -> Iterable[str]:
    epochs = max(len(member["validation"]) for member in fitted.history)
    yield _figure(
        "Training: a thin line for each member; the dot is the epoch that was kept.",
        f"Training loss and validation score of {len(fitted.models)} members over up to {epochs} epochs.",
        lambda ax: plots.training_history(ax, fitted.history).legend(frameon=False, fontsize=8),
    )
    versions = ", ".join(f"{program} {version}" for program, version in fitted.versions.items())
    yield f"<p>Fitted to {fitted.rows:,} rows by {_text(fitted.architecture.method)} ({_text(versions)}).</p>"
    yield f"<pre tabindex='0' aria-label='The plan of the fit'>{_text(fitted.plan)}</pre>"
    encodings = zip(fitted.preprocessor.names, fitted.preprocessor.encodings, strict=True)
    yield _table(
        "Columns of the model",
        ["column", "kind", "gaps"],
        [[name, encoding.kind, "yes" if encoding.missing else "no"] for name, encoding in encodings],
    )


# ---- HTML ------------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Names come from a file that anyone may have made."""
    return escape("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(value)))


def _section(title: str, parts: Iterable[str]) -> Iterable[str]:
    name = title.lower().replace(" ", "-")
    yield f"<section aria-labelledby='{name}'><h2 id='{name}'>{title}</h2>"
    yield from parts
    yield "</section>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th scope='col'>{_text(one)}</th>" for one in head)
    lines = (
        f"<tr><th scope='row'>{_text(first)}</th>{''.join(f'<td>{_text(one)}</td>' for one in rest)}</tr>"
        for first, *rest in rows
    )
    return (
        f"<div class='wide' tabindex='0' role='region' aria-label='{_text(caption)}'><table><caption>{_text(caption)}"
        f"</caption><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _figure(caption: str, alt: str, draw: Callable[[Axes], Any], width: float = _WIDTH, height: float = 3.2) -> str:
    return _drawing(caption, alt, lambda on: draw(on.subplots()), width, height)


def _drawing(caption: str, alt: str, draw: Callable[[Any], Any], width: float, height: float) -> str:
    figure = plots.new_figure(width, height)
    draw(figure)
    data = base64.b64encode(plots.svg(figure)).decode()
    return (
        f"<figure><img src='data:image/svg+xml;base64,{data}' alt='{_text(alt)}' width='{96 * width:.0f}' "
        f"height='{96 * height:.0f}'><figcaption>{_text(caption)}</figcaption></figure>"
    )


_STYLE = """
:root{color-scheme:light dark;--ink:#222;--soft:#595959;--line:#d5d5d5;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e4e4e4;--soft:#a8a8a8;--line:#444;--paper:#16181b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.55 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--line);padding-top:1rem}
figure{margin:1rem 0}
img{max-width:100%;height:auto;display:block}
figcaption,caption{color:var(--soft);font-size:.9rem;text-align:left}
.side{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr))}
.wide,pre{overflow-x:auto}
table{border-collapse:collapse;width:100%}
caption{padding-bottom:.4rem}
th,td{padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
tbody th{font-weight:600}
td{white-space:nowrap}
pre{border:1px solid var(--line);border-radius:4px;padding:.7rem;font-size:.8rem}
:focus-visible{outline:2px solid #0072b2;outline-offset:2px}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
