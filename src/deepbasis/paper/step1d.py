"""Sec. 4.1, the 1-D example: Fig. 1 (one n), Fig. 4 (n = 500 ... 100,000), Fig. 5 and its appendix (rank 1 ... 64).

Every part is one method (or rank) at one amplitude of the noise and one n, all its seeds trained as one stack
(`step1d_parts`). Tables and figures are made from the parts alone (`step1d_tables`, `step1d_figures`).
"""

from __future__ import annotations

from deepbasis.paper import data_step1d as dataset
from deepbasis.paper import step1d_figures, step1d_tables
from deepbasis.paper.parts import Folder
from deepbasis.paper.step1d_parts import FitExact, Laboratory, Step1dSize, Study, fit_by_gpytorch
from deepbasis.paper.step1d_results import Results

FULL = Step1dSize(
    studies=(
        Study(
            amplitude=dataset.AMPLITUDE,
            sizes=(500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000),
            gp_sizes=(500, 1_000, 2_000, 5_000, 10_000, 20_000),
            ranks=(1, 2, 4, 8, 16, 32, 64),
            exact_seeds={50_000: 3},  # all ten take minutes there: they are spent on 100,000, the largest, alone
            constant_ranks=(8, 64),
            most_steps=40_000,
            collapse_steps=4_000,
        ),
        Study(
            amplitude=dataset.PRINTED_AMPLITUDE,
            sizes=(500, 5_000, 20_000, 100_000),
            gp_sizes=(500, 5_000, 20_000),
            ranks=(1, 2, 8, 64),
            exact_seeds={100_000: 2},
            most_steps=15_000,
        ),
    ),
    seeds=10,
    focus=20_000,
)
QUICK = Step1dSize(
    studies=(
        Study(
            amplitude=dataset.AMPLITUDE,
            sizes=(500, 1_000),
            gp_sizes=(500, 1_000),
            ranks=(1, 8),
            constant_ranks=(8,),
            most_steps=60,
            collapse_steps=20,
        ),
        Study(amplitude=dataset.PRINTED_AMPLITUDE, sizes=(1_000,), gp_sizes=(1_000,), ranks=(1, 8), most_steps=60),
    ),
    seeds=2,
    focus=1_000,
    training_rows=1_000,
    exact_steps=10,
    gp_seconds=5.0,
    gp_steps=5,
    quick=True,
)


def run(folder: Folder, size: Step1dSize, fit_exact: FitExact = fit_by_gpytorch) -> None:
    """Compute the parts that are missing, then write the tables and figures of all that are there."""
    results = compute(folder, size, fit_exact)
    step1d_tables.write(folder, results)
    step1d_figures.write(folder, results)


def compute(folder: Folder, size: Step1dSize, fit_exact: FitExact = fit_by_gpytorch) -> Results:
    """Every part: those that are missing are computed."""
    studies = [Laboratory(folder, size, study, fit_exact).results() for study in size.studies]
    return Results(size.focus, size.quick, studies)
