"""The UCI experiment: what is chosen is chosen by validation alone, and the tables say what the parts hold."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepbasis.paper import data_uci as tables
from deepbasis.paper import table1, uci, uci_report
from deepbasis.paper.parts import Folder, Part

MADE = {
    "date": "2026-01-01",
    "cpu": "CPU",
    "torch": "2",
    "python": "3",
    "deepbasis": "0",
    "command": "",
    "seconds": 1.0,
}


def part(members: list[dict], dataset: str = "pol", method: str = "dbk-silu", split_seed: int = 0) -> Part:
    values = {"dataset": dataset, "method": method, "members": members, "split_seed": split_seed}
    return Part("name", values, {}, MADE)


def member(validation: float | None, nll: float, *, alpha: float = 0.0, seed: int = 0) -> dict:
    return {"seed": seed, "alpha": alpha, "beta": 0.1, "validation": validation, "mae": 1.0, "nll": nll, "crps": 1.0}


def test_weights_are_chosen_by_the_mean_validation_score_and_never_by_the_test_rows():
    cell = uci_report.chosen(
        part(
            [
                member(-1.0, nll=5.0, alpha=1.0, seed=0),
                member(-1.2, nll=7.0, alpha=1.0, seed=1),
                member(-2.0, nll=-9.0, alpha=0.0, seed=0),  # the best single seed, and the best on the test rows
                member(0.0, nll=-9.0, alpha=0.0, seed=1),
            ]
        )
    )
    assert cell.alpha == 1.0
    assert cell.validation == pytest.approx(-1.1)
    assert cell.scores["nll"] == pytest.approx((6.0, 2.0**0.5))


def test_a_weight_with_a_failed_seed_is_not_chosen():
    cell = uci_report.chosen(
        part([member(-9.0, nll=0.0, seed=0), member(None, nll=0.0, seed=1), member(1.0, 2.0, alpha=1.0)])
    )
    assert cell.alpha == 1.0


def test_the_table_takes_the_first_seeds_only():
    cell = uci_report.chosen(part([member(-1.0, nll=float(k), seed=k) for k in range(10)]), seeds=5)
    assert cell.scores["nll"][0] == 2.0


def test_average_ranks():
    def cell(dataset: str, method: str, nll: float) -> uci_report.Cell:
        return uci_report.Cell(dataset, method, 0.0, 0.0, 0.0, {"nll": (nll, None)})

    cells = [cell("a", "vbll", 3.0), cell("a", "pp-dkl", 2.0), cell("a", "dbk-silu", 1.0)]
    cells += [cell("b", "vbll", 1.0), cell("b", "pp-dkl", 3.0), cell("b", "dbk-silu", 2.0)]
    cells += [cell("c", "vbll", 1.0)]  # not complete: does not count
    assert uci_report.average_ranks(cells)["nll"] == {"vbll": 2.0, "pp-dkl": 2.5, "dbk-silu": 1.5}


def test_wall_time_counts_what_ran_side_by_side_once_and_a_pause_not_at_all():
    def ended(at: str, seconds: float) -> Part:
        return Part("name", {}, {}, {"date": f"2026-01-01T{at}+00:00", "seconds": seconds})

    parts = [ended("10:01:00", 60.0), ended("10:00:50", 20.0), ended("10:01:10", 40.0), ended("12:00:00", 5.0)]
    assert uci_report._wall(parts) == 75.0


def test_pairs_are_of_one_split():
    parts = [part([member(0.0, nll=10.0 * k)], method="pp-dkl", split_seed=k) for k in (1, 2)]
    parts += [part([member(0.0, nll=10.0 * k - k)], method="dbk-rbf", split_seed=k) for k in (1, 2, 3)]
    assert uci_report.paired_differences(parts)["pol", "dbk-rbf", "nll"] == [-1.0, -2.0]


def test_the_median_stands_beside_a_mean_that_one_split_rules():
    parts = [part([member(0.0, nll=0.0)], method="pp-dkl", split_seed=k) for k in range(4)]
    parts += [
        part([member(0.0, nll=nll)], method="dbk-rbf", split_seed=k) for k, nll in enumerate((-1.0, -2.0, -3.0, 26.0))
    ]
    text = uci_report.paired_markdown(parts)
    assert "| mean difference | standard error | median difference | splits won |" in text
    assert "| pol | dbk-rbf | NLL | 5.0000 | 7.0119 | -1.5000 | 3 of 4 |" in text


def test_the_sensitivity_figure_names_its_method_and_seeds_and_shares_its_axes():
    swept = [
        {**member(0.0, nll=alpha + beta, alpha=alpha, seed=seed), "beta": beta}
        for alpha in (0.01, 1.0)
        for beta in (0.01, 5.0)
        for seed in range(3)
    ]
    parts = {("pol", "dbk-silu"): part(swept), ("pol", "vbll"): part([member(0.0, nll=2.0, seed=k) for k in (0, 1)])}
    figure = uci_report.sensitivity_figure(["pol"], parts)
    assert figure.get_suptitle() == "DBK-SiLU on the paper's split, 3 seeds a box; dashed: VBLL, mean of 2 seeds"
    alpha, beta = figure.axes[2:4]
    assert alpha.get_ylim() == beta.get_ylim()
    assert alpha.get_ylim()[1] > 5.0


def test_the_printed_table_holds_what_the_paper_prints():
    assert table1.TABLE["pol", "dbk-rbf", "nll"] == (-2.9807, 0.0648)
    assert table1.TABLE["buzz", "dnn", "mae"] == (0.1685, 0.0002)
    assert ("pol", "dnn", "nll") not in table1.TABLE
    assert len(table1.TABLE) == 10 * (6 + 5 + 5)
    best = [table1.best(d, "crps") for d in ("pol", "elevators", "kin40k", "protein")]
    assert best == [0.0144, 0.1865, 0.0195, 0.2817]


def small(name: str) -> tables.RegressionTable:
    """Little tables in place of the real ones; keggdirected has every row four times."""
    rng = np.random.default_rng(len(name))
    X = rng.normal(size=(80, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=80)
    if name == "keggdirected":
        X, y = np.repeat(X, 4, 0), np.repeat(y, 4)
    return tables.RegressionTable(X, y)


SIZE = replace(uci.QUICK, epochs=1, paired_splits=1, readings=("clamped",))


@pytest.mark.slow
def test_a_quick_run_writes_every_table_and_is_not_repeated(tmp_path):
    told: list[str] = []
    folder = Folder(tmp_path, torch.device("cpu"), tell=told.append)
    uci.run(folder, SIZE, small)
    names = {path.name for path in tmp_path.iterdir()}
    expected = {"table.csv", "table-paper.md", "table-duplicate-safe.md", "pairs.md", "readings.md", "sensitivity.png"}
    assert names == {*expected, "parts", "parts.jsonl"}
    promised = {
        split: "the paper's value" in (tmp_path / f"table-{split}.md").read_text() for split in (uci.PAPER, uci.SAFE)
    }
    assert promised == {"paper": True, "duplicate-safe": False}
    with open(tmp_path / "table.csv") as file:
        rows = list(csv.DictReader(file))
    main = [row for row in rows if row["setting"] == "" and row["metric"] == "nll"]
    assert {(r["dataset"], r["split"]) for r in main} == {
        (d, s) for d in ("pol", "keggdirected") for s in ("paper", "duplicate-safe")
    }
    assert {r["paper"] for r in main if r["split"] == "duplicate-safe"} == {""}
    assert {float(r["paper"]) for r in main if r["method"] == "vbll" and r["split"] == "paper"} == {-1.6801, -1.0509}
    assert not any(line.startswith("duplicate-safe-pol") for line in told), "pol has no copies here: one part for both"
    told.clear()
    uci.run(folder, SIZE, small)
    assert told == []


def test_the_duplicate_safe_split_does_not_leak():
    assert uci.load("keggdirected", uci.PAPER, SIZE, small).leak > 0.5
    assert uci.load("keggdirected", uci.SAFE, SIZE, small).leak == 0.0
