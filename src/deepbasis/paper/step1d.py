"""Sec. 4.1, the 1-D example: Fig. 1 (one n), Fig. 4 (n = 500 ... 100,000), Fig. 5 and its appendix (rank 1 ... 64).

Every part is one method (or rank) at one amplitude of the noise and one n, all its seeds trained as one stack
(`step1d_parts`). Tables and figures are made from the parts alone (`step1d_tables`, `step1d_figures`).
"""

from __future__ import annotations

from deepbasis.paper import step1d_figures, step1d_tables
from deepbasis.paper.parts import Folder
from deepbasis.paper.step1d_parts import FitExact, Laboratory, fit_by_gpytorch
from deepbasis.paper.step1d_results import Results
from deepbasis.paper.step1d_sizes import Step1dSize


def run(folder: Folder, size: Step1dSize, fit_exact: FitExact = fit_by_gpytorch) -> None:
    """Compute the parts that are missing, then write the tables and figures of all that are there."""
    results = compute(folder, size, fit_exact)
    step1d_tables.write(folder, results)
    step1d_figures.write(folder, results)


def compute(folder: Folder, size: Step1dSize, fit_exact: FitExact = fit_by_gpytorch) -> Results:
    """Every part: those that are missing are computed."""
    studies = [Laboratory(folder, size, study, fit_exact).results() for study in size.studies]
    return Results(size.focus, size.quick, studies, size.expansion_rows)
