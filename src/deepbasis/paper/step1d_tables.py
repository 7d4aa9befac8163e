"""The tables of the 1-D example: table.csv, tidy, and tables.md, to be read."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from deepbasis.paper.data_step1d import AMPLITUDE
from deepbasis.paper.parts import Folder, Row, markdown_table, number, provenance, tidy_csv
from deepbasis.paper.step1d_results import (
    DPPGP,
    EXACT_DBK,
    METHODS,
    PAPER_NLL,
    SCORES,
    TIMES,
    PartFit,
    Results,
    StudyResults,
)

DATASET, SPLIT, ORACLE = "step1d", "paper", "oracle"
NEAR = 0.03
"""Nats a row above the oracle: as good as it."""


def write(folder: Folder, results: Results) -> None:
    folder.write("table.csv", tidy_csv(Row._fields, rows(results)))
    folder.write("tables.md", markdown(results))


# ---- tidy ------------------------------------------------------------------------------------------------------


def rows(results: Results) -> Iterator[Row]:
    for study in results.studies:
        noise = f"amplitude={study.amplitude:g}"
        for n in study.every_n():
            setting = f"n={n} {noise}"
            for method, fit in study.at(n).items():
                yield from _fit_rows(setting, method, fit)
            yield from _oracle_rows(setting, study)
        for rank, fit in study.by_rank.items():
            setting = f"rank={rank} n={results.focus} {noise}"
            yield from _fit_rows(setting, DPPGP, fit, papers_nll(study, rank))
            yield from _oracle_rows(setting, study)
        for rank, fit in study.at_a_constant_rate.items():
            setting = f"rank={rank} n={results.focus} {noise} rate=constant"
            yield from _fit_rows(setting, DPPGP, fit, papers_nll(study, rank))
            yield from _oracle_rows(setting, study)
        if study.by_expansion:
            setting = f"expansion n={results.expansion_rows} {noise}"
            for method, fit in study.by_expansion.items():
                yield from _fit_rows(setting, method, fit)
            yield from _oracle_rows(setting, study)


def papers_nll(study: StudyResults, rank: int) -> float | None:
    """Beside the amplitude with which it can be reached, not beside the printed one."""
    return PAPER_NLL.get(rank) if study.amplitude == AMPLITUDE else None


def _fit_rows(setting: str, method: str, fit: PartFit, paper_nll: float | None = None) -> Iterator[Row]:
    """ "nll_best" is of the run that is best on the validation rows; the paper's value is of its best run."""
    for metric in (*SCORES, *TIMES):
        statistic = fit.statistic(metric)
        if statistic is not None:
            paper = paper_nll if metric == "nll" else None
            yield Row(DATASET, SPLIT, setting, method, metric, *statistic, paper)
    if fit.best is not None:
        yield Row(DATASET, SPLIT, setting, method, "nll_best", fit.best["nll"], None, paper_nll)


def _oracle_rows(setting: str, study: StudyResults) -> Iterator[Row]:
    for metric in ("mae", "nll", "crps"):
        yield Row(DATASET, SPLIT, setting, ORACLE, metric, study.oracle[metric], None, None)


# ---- to be read ------------------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    pages = ["# The 1-D example (Sec. 4.1)\n"]
    if results.quick:
        pages.append("**Quick run: far too few rows, seeds and steps for these figures to mean anything.**\n")
    pages.append(_PREFACE)
    for study in results.studies:
        pages += _study(results, study)
    pages.append("## How it was made\n")
    pages.append(provenance(results.parts()))
    return "\n".join(pages)


_PREFACE = """\
Means over seeds, ± one standard deviation (n − 1) where there is more than one seed. The oracle knows the mean and the
noise that the data were drawn with; its scores are on the same test rows. A step is a full batch for the exact methods,
200 rows for dPPGP. An evaluation is of all test rows, from the parameters alone: for the exact methods with the solve
that it takes; "again" is with what the first one has kept. Times are medians on one model at the start of its training,
not compiled, with nothing else on the device; the exact GPs' steps take longer as their noise falls. The effective rank
is exp(entropy) of the normalised eigenvalues of the kernel on 401 points of [−1, 1].

The paper gives its values in figures alone, but for four in the captions of its appendix; these are of the run that was
best on the *test* rows. Ours are means over all seeds, and the runs in our figures are the best on the validation rows.

dPPGP trains at a rate that falls from the paper's 1e-3 to 0; "constant rate" is as the paper has it, with its patience
of 100 epochs. Epochs are cut to keep the steps of a training below a limit; the last column says what was done. Exact
GPs by GPyTorch are given a time: where the paper's 2,000 steps do not fit they do fewer, at a rate raised to match.
"""


def _study(results: Results, study: StudyResults) -> list[str]:
    noise = f"amplitude {study.amplitude:g}"
    pages = [f"## Noise of {noise}\n", *(f"- {line}" for line in verdict(results, study)), ""]
    if study.missing:
        pages.append(f"{study.missing} parts of this study have not been computed and are left out.\n")
    if study.at(results.focus):
        image = f"![Kernels and predictions](figure1-amplitude-{study.amplitude:g}.png)\n"
        pages += [f"### Fig. 1: n = {results.focus:,}, {noise}\n", image, _size_table(study, [results.focus])]
    if study.every_n():
        image = f"![Scores and times over n](figure4-amplitude-{study.amplitude:g}.png)\n"
        pages += [f"### Fig. 4: scaling, {noise}\n", image, _size_table(study, study.every_n())]
    if study.collapse is not None:
        pages.append(f"![The collapse](collapse-amplitude-{study.amplitude:g}.png)\n")
    if study.by_rank:
        pages += [
            f"### Fig. 5 and appendix: rank, n = {results.focus:,}, {noise}\n",
            f"![Kernels by rank and NLL over rank](figure5-amplitude-{study.amplitude:g}.png)\n",
            f"![Bases and predictions by rank](figure5-appendix-amplitude-{study.amplitude:g}.png)\n",
            _rank_table(study),
        ]
    if study.by_expansion:
        few = "Few steps, and as many for each expansion: to compare them with each other.\n"
        pages += [f"### Other expansions: n = {results.expansion_rows:,}, {noise}\n", few, _expansion_table(study)]
    return pages


def _size_table(study: StudyResults, sizes: list[int]) -> str:
    header = ["n", "", "MAE", "NLL", "CRPS", "step, ms", "evaluation, ms", "again, ms", "effective rank", "training"]
    lines = []
    for n in sizes:
        for method, fit in study.at(n).items():
            times = [number(fit.time(name), 2) for name in ("step_ms", "eval_ms", "eval_again_ms")]
            scores = [_spread(fit, score) for score in ("mae", "nll", "crps")]
            lines.append(
                [f"{n:,}", METHODS[method], *scores, *times, _spread(fit, "effective_rank", 2), _training(fit)]
            )
    known = [number(study.oracle[score]) for score in ("mae", "nll", "crps")]
    return markdown_table(header, [*lines, ["", "oracle", *known, *["–"] * 4, ""]])


def _expansion_table(study: StudyResults) -> str:
    """All by the settings of dPPGP."""
    header = ["expansion", "NLL", "above the oracle", "best run", "MAE", "CRPS", "effective rank", "training"]
    lines = []
    for name, fit in study.by_expansion.items():
        nll, best = fit.statistic("nll"), fit.best
        lines.append([name, _spread(fit, "nll"), number(None if nll is None else nll[0] - study.oracle["nll"])])
        lines[-1] += [number(None if best is None else best["nll"]), _spread(fit, "mae"), _spread(fit, "crps")]
        lines[-1] += [_spread(fit, "effective_rank", 2), _training(fit)]
    known = {score: number(study.oracle[score]) for score in ("mae", "nll", "crps")}
    return markdown_table(header, [*lines, ["oracle", known["nll"], "0", "–", known["mae"], known["crps"], "–", ""]])


def _rank_table(study: StudyResults) -> str:
    header = [
        "rank",
        "NLL",
        "above the oracle",
        "best run",
        "paper's best",
        "MAE",
        "CRPS",
        "effective rank",
        "training",
    ]
    lines = []
    decaying = [(str(rank), rank, fit) for rank, fit in sorted(study.by_rank.items())]
    constant = [(f"{rank}, constant rate", rank, fit) for rank, fit in sorted(study.at_a_constant_rate.items())]
    for name, rank, fit in (*decaying, *constant):
        nll, best = fit.statistic("nll"), fit.best
        lines.append(
            [
                name,
                _spread(fit, "nll"),
                number(None if nll is None else nll[0] - study.oracle["nll"]),
                number(None if best is None else best["nll"]),
                number(papers_nll(study, rank), 3),
                _spread(fit, "mae"),
                _spread(fit, "crps"),
                _spread(fit, "effective_rank", 2),
                _training(fit),
            ]
        )
    known = {score: number(study.oracle[score]) for score in ("mae", "nll", "crps")}
    return markdown_table(
        header, [*lines, ["oracle", known["nll"], "0", "–", "–", known["mae"], known["crps"], "–", ""]]
    )


def _spread(fit: PartFit, metric: str, digits: int = 4) -> str:
    statistic = fit.statistic(metric)
    if statistic is None:
        return "–"
    mean, std = statistic
    return number(mean, digits) + ("" if std is None else f" ± {number(std, digits)}")


def _training(fit: PartFit) -> str:
    """What was really done: seeds, steps or epochs, and how many of them stopped or failed."""
    records = fit.records
    words = [f"{len(records)} seed" + ("s" if len(records) > 1 else "")]
    if "steps" in records[0]:  # GPyTorch's
        words.append(f"{median(record['steps'] for record in records):,.0f} steps at {records[0]['learning_rate']:.2g}")
    else:
        best = median(record["best_epoch"] for record in records)
        unit = "steps" if fit.values["exact"] else "epochs"
        words.append(f"at most {fit.values['epochs']:,} {unit}, best at {best:,.0f}")
        stopped = sum(record["status"] == "stopped" for record in records)
        if stopped:
            words.append(f"{stopped} stopped early")
    failed = sum(record["nll"] is None for record in records)
    return ", ".join([*words, *([f"{failed} failed"] if failed else [])])


def verdict(results: Results, study: StudyResults) -> list[str]:
    """What the figures show, good or bad."""
    lines = [f"The oracle's NLL on the test rows is {study.oracle['nll']:.3f}."]
    return [*lines, *_about_rank(study), *_about_effective_rank(results, study), *_about_collapse(study)]


def _about_rank(study: StudyResults) -> Iterator[str]:
    oracle = study.oracle["nll"]
    above = {
        rank: statistic[0] - oracle
        for rank, fit in sorted(study.by_rank.items())
        if (statistic := fit.statistic("nll")) is not None
    }
    if 1 in above:
        yield _about_rank_one(study, above[1] + oracle)
    enough = {rank: gap for rank, gap in above.items() if rank >= 8}
    if enough:
        listed = ", ".join(f"{gap:.3f} (rank {rank})" for rank, gap in enough.items())
        within = "all within" if max(enough.values()) <= NEAR else "NOT all within"
        yield f"Rank 8 and more is above the oracle by {listed}: {within} {NEAR:g} nats."


def _about_rank_one(study: StudyResults, mean: float) -> str:
    """One basis function can follow the mean of y, or be large where y is: seeds end in the one or in the other."""
    fit = study.by_rank[1]
    assert fit.best is not None  # there is a mean over seeds
    known = papers_nll(study, 1)
    beside = "" if known is None else f" (the paper's best run: {known:.3f})"
    near = sum(nll < fit.best["nll"] + 0.1 for nll in fit.over_seeds("nll"))
    return (
        f"Rank 1: the best run on the validation rows has test NLL {fit.best['nll']:.3f}{beside}; {near} of "
        f"{len(fit.records)} seeds come within 0.1 of it or below, and the mean over all is {mean:.3f}."
    )


def _about_effective_rank(results: Results, study: StudyResults) -> Iterator[str]:
    there = study.at(results.focus)
    ranks = {
        method: statistic[0]
        for method in (EXACT_DBK, DPPGP)
        if method in there and (statistic := there[method].statistic("effective_rank")) is not None
    }
    if len(ranks) == 2:
        below = "exact training has the lower" if ranks[EXACT_DBK] < ranks[DPPGP] else "exact training is NOT lower"
        yield (
            f"At n = {results.focus:,} the effective rank of the kernel at the best step is {ranks[EXACT_DBK]:.2f} by "
            f"exact training and {ranks[DPPGP]:.2f} by dPPGP: {below}."
        )


def _about_collapse(study: StudyResults) -> Iterator[str]:
    if study.collapse is None:
        return
    steps = study.collapse.steps
    ranks, shares = study.collapse.effective_ranks.mean(0), study.collapse.first_shares.mean(0)
    top = int(ranks.argmax())
    way = "it falls" if float(ranks[-1]) < float(ranks[top]) else "it does NOT fall"
    yield (
        f"As exact training goes on, the effective rank is at most {float(ranks[top]):.2f} (step {steps[top]:,}) and "
        f"{float(ranks[-1]):.2f} at step {steps[-1]:,}, where the first eigenvalue has {float(shares[-1]):.0%} of the "
        f"trace: {way}."
    )
