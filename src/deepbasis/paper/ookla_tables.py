"""Table 2 from the parts of the Ookla experiment, beside the paper's values where the state is the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

from deepbasis.paper import ookla_maps
from deepbasis.paper.data_ookla import ATTRIBUTION
from deepbasis.paper.parts import Folder, Part, Row, markdown_table, number, provenance, summary, tidy_csv

STRATA = ("urban", "rural")
METRICS = ("mae", "nll", "coverage_95", "crps", "width_95")
LABELS = MappingProxyType({"sv-rbf": "SV-RBF", "sv-dkl": "SV-DKL", "dbk-rbf": "DBK-RBF"})
MAPPED = "dbk-rbf"
"""The method whose kernel and uncertainty are drawn as maps."""
_HEADINGS = ("MAE", "NLL", "coverage", "CRPS", "width")

_PAPER = """
Georgia download sv-rbf .520 1.023 .964 .544 1.074 .945
Georgia download sv-dkl .514 1.014 .963 .531 1.055 .947
Georgia download dbk-rbf .512 1.007 .962 .531 1.052 .947
Georgia upload sv-rbf .508 1.025 .960 .615 1.196 .933
Georgia upload sv-dkl .495 1.006 .960 .593 1.164 .933
Georgia upload dbk-rbf .494 .985 .956 .603 1.163 .949
New-Mexico download sv-rbf .516 1.013 .962 .580 1.132 .936
New-Mexico download sv-dkl .507 .998 .961 .562 1.103 .934
New-Mexico download dbk-rbf .506 .989 .953 .559 1.076 .946
New-Mexico upload sv-rbf .456 .921 .964 .526 1.071 .938
New-Mexico upload sv-dkl .435 .892 .960 .495 1.011 .941
New-Mexico upload dbk-rbf .437 .880 .954 .499 1.002 .946
"""


def _paper_table() -> dict[tuple[str, str, str, str, str], float]:
    """(state, target, method, stratum, metric) -> the paper's value (Table 2)."""
    columns = [(stratum, metric) for stratum in STRATA for metric in METRICS[:3]]
    found = {}
    for line in _PAPER.strip().splitlines():
        state, target, method, *numbers = line.split()
        for column, value in zip(columns, numbers, strict=True):
            found[(state.replace("-", " "), target, method, *column)] = float(value)
    return found


PAPER = MappingProxyType(_paper_table())
"""Of mobile tiles of 2019 to 2025; our sets of these states are fixed broadband, of one quarter."""


def write(folder: Folder, parts: Sequence[Part], *, quick: bool) -> None:
    folder.write("table.csv", tidy_csv(Row._fields, (row for part in parts for row in rows_of(part))))
    folder.write("table.md", markdown(parts, quick=quick))
    folder.write("ATTRIBUTION.txt", f"The tables and figures in this folder: {ATTRIBUTION}\n")


def rows_of(part: Part) -> Iterable[Row]:
    """A part's lines of the tidy table."""
    v = part.values
    for stratum in STRATA:
        for metric in METRICS:
            found = _over_seeds(part, stratum, metric)
            if found is not None:
                paper = PAPER.get((v["state"], v["target"], v["method"], stratum, metric))
                yield Row(v["dataset"], "paper", f"{v['target']} {stratum}", v["method"], metric, *found, paper)


def _over_seeds(part: Part, stratum: str, metric: str) -> tuple[float, float | None] | None:
    """Mean and standard deviation over the seeds that gave a result."""
    scores = [member["strata"][stratum] for member in part.values["members"]]
    usable = [score[metric] for score in scores if score is not None]
    return summary(usable) if usable else None


def title(v: dict[str, Any]) -> str:
    """Of a part's values: "Georgia, download (fixed broadband tiles, 2023 Q2)"."""
    return f"{v['state']}, {v['target']} ({kind(v)})"


def kind(v: dict[str, Any]) -> str:
    network = "fixed broadband" if v["dataset"].startswith("fixed") else "mobile"
    return f"{network} tiles, {' to '.join(dict.fromkeys(v['quarters']))}"


def markdown(parts: Sequence[Part], *, quick: bool) -> str:
    """Table 2, a table for each data set and target, with what a reader must know to compare."""
    text = ["# Mobile internet quality (Sec. 4.3, Table 2)\n"]
    if quick:
        text.append("**A quick run: a fragment of the data, tiny models, two epochs. Its numbers mean nothing.**\n")
    text.append(_EXPLANATION)
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.values["dataset"], part.values["target"]), []).append(part)
    for group in groups.values():
        text += [f"## {title(group[0].values)}\n", _facts(group[0].values), _group_table(group)]
    if drawn := figures(parts):
        text += ["## Figures\n", *(f"![{what}]({file})\n" for file, what in drawn.items())]
    text += ["## How it was made\n", provenance(parts), f"{ATTRIBUTION}\n"]
    return "\n".join(text)


def figures(parts: Sequence[Part]) -> dict[str, str]:
    """What each file shows, of the figures that these parts allow."""
    usable = [part.values for part in parts if part.values["shown"] is not None]
    found = {"interval_widths.png": "Widths of the 95 % intervals on the test rows"} if usable else {}
    for v in usable:
        if v["method"] == MAPPED:
            label = LABELS[MAPPED]
            found[f"kernels_{v['dataset']}.png"] = f"{v['state']}: the kernel of {label} at three places"
            found[f"uncertainty_{v['dataset']}.png"] = f"{v['state']}: standard deviation, measured and by {label}"
    return found


_EXPLANATION = f"""\
Scores on the test rows (a tenth, drawn at random), mean ± standard deviation over seeds. The target is log10 of the
speed, standardised on the training rows, and so are MAE, CRPS and the width of the 95 % interval: times the standard
deviation given below they are in log10 units, and so is NLL plus its natural logarithm. The best of ours is bold: the
lowest, or for coverage the nearest to 95 %. *Agreement* is the correlation of predicted and empirical standard
deviation over cells of {ookla_maps.CELL}°. *Constant Gaussian* has the training rows' mean and variance everywhere.
*Epochs* are those that each seed did, with the one of the best validation NLL, which is tested, in brackets.

**The paper's rows are no like-for-like comparison.** Theirs are mobile tiles of 2019 to 2025, in which a tile is
measured again and again; our Georgia and New Mexico are fixed broadband tiles of one quarter, each measured once, and
far fewer. Our mobile tiles are those of Puerto Rico, which the paper does not have. The paper trains for 400 epochs of
its larger sets, which takes hours; ours have fewer steps, at a higher rate that falls to nothing.
"""


def _facts(v: dict[str, Any]) -> str:
    train, validation, test = v["rows"]
    return (
        f"{train:,} training, {validation:,} validation and {test:,} test rows ({v['strata']['urban']:,} urban, "
        f"{v['strata']['rural']:,} rural); standard deviation of log10 {v['target_std']:.3f}; at most {v['epochs']} "
        "epochs.\n"
    )


def _group_table(group: Sequence[Part]) -> str:
    header = ["method", *(f"{s} {h}" for s in STRATA for h in _HEADINGS), "agreement", "epochs"]
    columns = [(stratum, metric) for stratum in STRATA for metric in METRICS]
    found = {(part.name, *column): _over_seeds(part, *column) for part in group for column in columns}
    best = {column: _best([found[(part.name, *column)] for part in group], column[1]) for column in columns}
    constant = group[0].values["constant"]
    flat = [_show(None if constant[s] is None else constant[s][m], None, m) for s, m in columns]
    lines = [["constant Gaussian", *flat, "–", "–"]]
    for part in group:
        cells = []
        for column in columns:
            score = found[(part.name, *column)]
            cell = "–" if score is None else _show(*score, column[1])
            cells.append(f"**{cell}**" if score is not None and score[0] == best[column] else cell)
        lines.append([LABELS[part.values["method"]], *cells, number(part.values["agreement"], 2), _epochs(part)])
    lines += [line for part in group if (line := _paper_line(part, columns)) is not None]
    return markdown_table(header, lines)


def _best(scores: Sequence[tuple[float, float | None] | None], metric: str) -> float | None:
    """A width is neither good nor bad by itself."""
    means = [score[0] for score in scores if score is not None]
    if metric == "width_95":
        return None
    return min(means, key=lambda mean: abs(mean - 0.95) if metric == "coverage_95" else mean, default=None)


def _show(mean: float | None, std: float | None, metric: str) -> str:
    if metric == "coverage_95":
        spread = "" if std is None else f" ± {100.0 * std:.1f}"
        return "–" if mean is None else f"{100.0 * mean:.1f}{spread} %"
    return number(mean, 3) if std is None else f"{number(mean, 3)} ± {number(std, 3)}"


def _epochs(part: Part) -> str:
    return ", ".join(f"{member['epochs']} ({member['best_epoch']})" for member in part.values["members"])


def _paper_line(part: Part, columns: Sequence[tuple[str, str]]) -> list[str] | None:
    v = part.values
    values = [PAPER.get((v["state"], v["target"], v["method"], *column)) for column in columns]
    if not any(values):
        return None
    cells = [_show(value, None, metric) for value, (_, metric) in zip(values, columns, strict=True)]
    return [f"*paper, mobile: {LABELS[v['method']]}*", *cells, "–", "400"]
