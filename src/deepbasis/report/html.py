"""The HTML of a report: sections, tables and figures, and the page around them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deepbasis import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 5.2
"""Of a figure, in inches: its text can still be read on a phone."""


UNUSUAL = 10
"""Rows that are shown because they are."""


def page(title: str, body: Iterable[str]) -> str:
    return _PAGE.format(title=text(title), style=_STYLE, body="\n".join(body))


def text(value: Any) -> str:
    """Names come from a file that anyone may have made."""
    return escape("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(value)))


def novel(p_values: NDArray[np.float64]) -> str:
    return (
        f"<p>{100 * np.mean(p_values <= 0.01):.1f} % of the rows have inputs unlike those of the fit, by their p-value "
        "(novelty): about 1 % is usual.</p>"
    )


def section(title: str, parts: Iterable[str]) -> Iterable[str]:
    name = title.lower().replace(" ", "-")
    yield f"<section aria-labelledby='{name}'><h2 id='{name}'>{title}</h2>"
    yield from parts
    yield "</section>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th scope='col'>{text(one)}</th>" for one in head)
    lines = (
        f"<tr><th scope='row'>{text(first)}</th>{''.join(f'<td>{text(one)}</td>' for one in rest)}</tr>"
        for first, *rest in rows
    )
    return (
        f"<div class='wide' tabindex='0' role='region' aria-label='{text(caption)}'><table><caption>{text(caption)}"
        f"</caption><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def figure(caption: str, alt: str, draw: Callable[[Axes], Any], width: float = WIDTH, height: float = 3.2) -> str:
    return drawing(caption, alt, lambda on: draw(on.subplots()), width, height)


def drawing(caption: str, alt: str, draw: Callable[[Any], Any], width: float, height: float) -> str:
    figure = plots.new_figure(width, height)
    draw(figure)
    data = base64.b64encode(plots.svg(figure)).decode()
    return (
        f"<figure><img src='data:image/svg+xml;base64,{data}' alt='{text(alt)}' width='{96 * width:.0f}' "
        f"height='{96 * height:.0f}'><figcaption>{text(caption)}</figcaption></figure>"
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
