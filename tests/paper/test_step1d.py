"""The 1-D experiment, very small: what the tables say is what the parts hold, and nothing is computed twice."""

import csv
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepbasis import plots
from deepbasis.errors import CheckpointMismatchError
from deepbasis.gp import metrics
from deepbasis.paper import data_step1d as dataset
from deepbasis.paper import step1d, step1d_figures, step1d_parts, step1d_sizes, step1d_tables
from deepbasis.paper.parts import Folder, Part
from deepbasis.paper.records import Records
from deepbasis.paper.step1d_results import DPPGP, EXACT_DBK, EXACT_RBF, GRID, Collapse, PartFit, Results, StudyResults
from deepbasis.paper.step1d_sizes import Step1dSize, Study

pytest.importorskip("gpytorch")  # here, not in a test: importing it warns of what is deprecated in torch

NOISE = dataset.AMPLITUDE
SIZE = Step1dSize(
    studies=(
        Study(
            NOISE,
            sizes=(60, 250),
            gp_sizes=(60,),
            ranks=(1, 8),
            most_steps=6,
            constant_ranks=(8,),
            collapse_steps=3,
            expansions=("dbk-silu", "dbk-matern", "dbk-bsplines"),
        ),
    ),
    seeds=2,
    focus=60,
    expansion_rows=60,
    expansion_seeds=2,
    expansion_steps=6,
    training_rows=250,
    other_rows=30,
    exact_steps=3,
    gp_seconds=60.0,
    gp_steps=2,
    quick=True,
)
FIGURES = {"figure1", "figure4", "figure5", "figure5-appendix", "collapse"}


def folder(path: Path, only: tuple[str, ...] = ()) -> Folder:
    return Folder(path, torch.device("cpu"), only=only, tell=lambda line: None)


def run(path: Path, only: tuple[str, ...] = (), size: Step1dSize = SIZE) -> None:
    step1d.run(folder(path, only), size)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """Parts and tables; figures take longer."""
    path = tmp_path_factory.mktemp("step1d")
    step1d_tables.write(folder(path), step1d.compute(folder(path), SIZE))
    return path


def part(path: Path, name: str) -> Part:
    """As it is recorded, whatever its settings."""
    records = Records(path)
    line = records.lines()[name]
    return Part(name, line["values"], records.arrays(name), {**line["made"], "settings": line["settings"]})


def table(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with (path / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {(line["dataset"], line["split"]) for line in lines} <= {("step1d", "paper")}
    return {(line["setting"], line["method"], line["metric"]): line for line in lines}


def test_every_part_is_there_and_the_table_names_every_figure(done):
    made = set(Records(done).lines())
    sizes = {f"{method}-a0.4-n{n}" for method in ("dppgp", "exact") for n in (60, 250)}
    others = {"rank-a0.4-r1", "rank-a0.4-r8", "constant-a0.4-r8", "collapse-a0.4", "rbf-a0.4-n60", "dkl-a0.4-n60"}
    times = {f"time-{method}-n{n}" for method in ("dppgp", "exact") for n in (60, 250)} | {
        "time-rbf-n60",
        "time-dkl-n60",
    }
    expansions = {f"expansion-a0.4-n60-dbk-{name}" for name in ("silu", "matern", "bsplines")}
    assert made == sizes | others | times | expansions
    text = (done / "tables.md").read_text()
    assert {f"({name}-amplitude-0.4.png)" for name in FIGURES} == set(re.findall(r"\([^ )]+\.png\)", text))
    assert "Quick run" in text
    assert "left out" not in text


@pytest.mark.parametrize(
    ("setting", "method", "name"),
    [
        ("n=250 amplitude=0.4", "dbk-silu", "dppgp-a0.4-n250"),
        ("n=60 amplitude=0.4", "dbk-silu-exact", "exact-a0.4-n60"),
        ("n=60 amplitude=0.4", "rbf-exact", "rbf-a0.4-n60"),
        ("n=60 amplitude=0.4", "dkl-exact", "dkl-a0.4-n60"),
        ("rank=8 n=60 amplitude=0.4", "dbk-silu", "rank-a0.4-r8"),
        ("rank=8 n=60 amplitude=0.4 rate=constant", "dbk-silu", "constant-a0.4-r8"),
        ("expansion n=60 amplitude=0.4", "dbk-bsplines", "expansion-a0.4-n60-dbk-bsplines"),
    ],
)
def test_the_table_holds_mean_and_spread_of_what_the_parts_hold(done, setting, method, name):
    lines, values = table(done), part(done, name).values
    for metric in ("mae", "nll", "crps", "effective_rank"):
        line = lines[setting, method, metric]
        seeds = torch.tensor([record[metric] for record in values["records"]], dtype=torch.float64)
        assert len(seeds) == 2
        assert float(line["mean"]) == pytest.approx(float(seeds.mean()), rel=1e-5)
        assert float(line["std"]) == pytest.approx(float(seeds.std()), rel=1e-5, abs=1e-12)
    best = min(values["records"], key=lambda record: record["validation"])
    assert float(lines[setting, method, "nll_best"]["mean"]) == pytest.approx(best["nll"], rel=1e-5)
    for metric in ("step_ms", "eval_ms"):
        assert ((setting, method, metric) in lines) == setting.startswith("n=")
        if setting.startswith("n="):
            times = part(done, f"time-{name.replace('-a0.4', '')}").values
            assert float(lines[setting, method, metric]["mean"]) == pytest.approx(times[metric], rel=1e-5)


def test_the_oracle_stands_beside_everything_with_its_scores_on_the_test_rows(done):
    lines = table(done)
    data = dataset.experiment_data(training=250, validation=30, test=30)
    known = metrics.evaluate(dataset.oracle(data.test.x), data.test.y)
    for setting in {setting for setting, _, _ in lines}:
        for metric in ("mae", "nll", "crps"):
            assert float(lines[setting, "oracle", metric]["mean"]) == pytest.approx(known[metric], rel=1e-5)


def test_the_papers_four_values_stand_beside_the_nll_of_their_ranks_alone(done):
    beside = {key: float(line["paper"]) for key, line in table(done).items() if line["paper"]}
    assert beside == {
        (setting, "dbk-silu", metric): value
        for metric in ("nll", "nll_best")
        for setting, value in {
            "rank=1 n=60 amplitude=0.4": 0.126,
            "rank=8 n=60 amplitude=0.4": -0.215,
            "rank=8 n=60 amplitude=0.4 rate=constant": -0.215,
        }.items()
    }
    printed = StudyResults(dataset.PRINTED_AMPLITUDE, {}, dataset.draw(3))
    assert step1d_tables.papers_nll(printed, 1) is None  # nobody can reach them there


def test_scores_and_drawings_are_of_one_and_the_same_model(done):
    """The basis drawn has the effective rank that the table reports for the best run, by validation NLL."""
    fit = PartFit(part(done, "dppgp-a0.4-n60"))
    records = fit.records
    assert fit.best == min(records, key=lambda record: record["validation"])
    assert fit.basis.shape == (len(GRID), 128)
    rank = metrics.effective_rank(metrics.spectrum(fit.kernel.double()))
    assert float(rank) == pytest.approx(fit.best["effective_rank"], rel=1e-3)
    assert fit.mean.shape == fit.std.shape == GRID.shape


def test_only_what_a_figure_shows_has_arrays(done):
    """Fig. 1 is of n = 60 here, Fig. 5 of ranks 1 and 8."""
    drawn = {name for name in Records(done).lines() if Records(done).arrays(name)}
    at_focus = {f"{method}-a0.4-n60" for method in ("dppgp", "exact", "rbf", "dkl")}
    assert drawn == at_focus | {"rank-a0.4-r1", "rank-a0.4-r8"}


def test_rank_one_has_effective_rank_one(done):
    assert PartFit(part(done, "rank-a0.4-r1")).over_seeds("effective_rank") == pytest.approx([1.0, 1.0])


def test_epochs_are_cut_to_keep_the_steps_below_the_limit(done):
    """250 rows are two batches: six steps are three epochs; 60 rows are one batch."""
    assert part(done, "dppgp-a0.4-n250").made["settings"]["epochs"] == 3
    assert part(done, "dppgp-a0.4-n60").made["settings"]["epochs"] == 6
    assert step1d_parts.epochs_within(10**9, 60) == 2_000  # the paper's most
    assert step1d_parts.epochs_within(6, 100_000) == 1


def test_the_rate_falls_to_the_end_or_stays_with_the_papers_patience(done):
    settings = {name: part(done, f"{name}-a0.4-r8").made["settings"] for name in ("rank", "constant")}
    assert (settings["rank"]["schedule"], settings["rank"].get("patience")) == ("cosine", None)
    assert (settings["constant"].get("schedule"), settings["constant"]["patience"]) == (None, 100)
    for one in settings.values():
        assert one["weights"] == [0.01, 0.01]
        assert one["learning_rates"][0] == 1e-3


def test_the_collapse_is_followed_through_exact_training(done):
    found = Collapse(part(done, "collapse-a0.4"))
    assert found.steps == [0, 1, 2, 3]
    assert found.effective_ranks.shape == found.first_shares.shape == (2, 4)
    member = step1d_parts.Member(seed=1)
    start = step1d_parts.READING.build("dbk-silu", 1, rank=128)(member).basis(GRID[:, None]).double().detach()
    eigenvalues = metrics.basis_spectrum(start)
    assert float(found.effective_ranks[1, 0]) == pytest.approx(float(metrics.effective_rank(eigenvalues)), rel=1e-4)
    assert float(found.first_shares[1, 0]) == pytest.approx(float(eigenvalues[0] / eigenvalues.sum()), rel=1e-4)
    assert not torch.equal(found.effective_ranks[:, 0], found.effective_ranks[:, -1])


@pytest.mark.slow
def test_what_is_recorded_is_drawn_without_computing_and_the_same_again(done, tmp_path):
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    run(tmp_path, only=("nothing",))
    drawn = {file.name.removesuffix("-amplitude-0.4.png") for file in tmp_path.glob("*.png")}
    assert drawn == FIGURES
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert {name: before[name] for name in ("table.csv", "tables.md", "parts.jsonl", "arrays.parquet")} == {
        file.name: file.read_bytes() for file in done.iterdir() if file.is_file()
    }
    run(tmp_path, only=("nothing",))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_parts_of_other_settings_are_refused(done):
    with pytest.raises(CheckpointMismatchError, match="epochs"):
        run(done, size=replace(SIZE, exact_steps=4))


def test_only_some_parts(tmp_path):
    run(tmp_path, only=("rank-a0.4-r1",))
    assert list(Records(tmp_path).lines()) == ["rank-a0.4-r1"]
    assert {setting for setting, _, _ in table(tmp_path)} == {"rank=1 n=60 amplitude=0.4"}
    assert {file.name for file in tmp_path.glob("*.png")} == {
        "figure5-amplitude-0.4.png",
        "figure5-appendix-amplitude-0.4.png",
    }
    assert "18 parts of this study have not been computed" in (tmp_path / "tables.md").read_text()


def test_nothing_at_all_is_no_error(tmp_path):
    run(tmp_path, only=("none",))
    assert table(tmp_path) == {}
    assert list(tmp_path.glob("*.png")) == []


def test_without_gpytorch_its_parts_are_left_out_with_a_line(tmp_path):
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'gpytorch'", name="gpytorch")

    told: list[str] = []
    some = Folder(tmp_path, torch.device("cpu"), only=("rbf", "dkl", "time-rbf"), tell=told.append)
    step1d.run(some, SIZE, missing)
    assert len(told) == 3
    assert all("pip install 'deepbasis[gpytorch]'" in line for line in told)
    assert table(tmp_path) == {}


def test_an_exact_gp_that_does_not_fit_is_left_out_with_a_line(tmp_path):
    def too_large(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    told: list[str] = []
    step1d.run(Folder(tmp_path, torch.device("cpu"), only=("rbf",), tell=told.append), SIZE, too_large)
    assert told == ["rbf-a0.4-n60: left out, 60 x 60 kernel matrices do not fit into the memory here"]


# ---- what is said of results, whichever way they fell ------------------------------------------------------------


def fit(nlls: list[float | None], rank: float = 2.0, **values: object) -> PartFit:
    records = [
        {
            "seed": seed,
            "mae": nll,
            "nll": nll,
            "crps": nll,
            "effective_rank": None if nll is None else rank,
            "validation": nll,
            "best_epoch": 7,
            "status": "finished" if nll is not None else "failed",
        }
        for seed, nll in enumerate(nlls)
    ]
    return PartFit(Part("name", {"records": records, "best": 0, "epochs": 9, "exact": False, **values}, {}, {}))


def study() -> StudyResults:
    return StudyResults(NOISE, {"mae": 0.2, "nll": -0.2, "crps": 0.1}, dataset.draw(5))


@pytest.mark.parametrize(("eight", "words"), [(-0.18, "0.020 (rank 8): all within"), (-0.16, "NOT all within")])
def test_the_verdict_on_rank(eight, words):
    results = study()
    results.by_rank = {1: fit([0.1, 0.15, 0.5]), 8: fit([eight])}
    lines = step1d_tables.verdict(Results(60, False, [results]), results)
    assert words in lines[-1]
    assert lines[-2] == (
        "Rank 1: the best run on the validation rows has test NLL 0.100 (the paper's best run: 0.126); 2 of 3 seeds "
        "come within 0.1 of it or below, and the mean over all is 0.250."
    )


@pytest.mark.parametrize(("exact", "words"), [(1.5, "has the lower"), (3.5, "is NOT lower")])
def test_the_verdict_on_effective_rank(exact, words):
    results = study()
    results.sizes[EXACT_DBK][60], results.sizes[DPPGP][60] = fit([0.0], exact), fit([0.0], 3.0)
    assert words in step1d_tables.verdict(Results(60, False, [results]), results)[-1]


@pytest.mark.parametrize(("last", "words"), [([9.0, 1.0], "it falls"), ([1.0, 1.0], "it does NOT fall")])
def test_the_verdict_on_the_collapse(last, words):
    results = study()
    spectra = torch.tensor([[3.0, 1.0], [2.0, 1.0], last])
    values = {
        "moments": [0, 5, 10],
        "effective_ranks": [[float(metrics.effective_rank(one)) for one in spectra]],
        "first_shares": (spectra[:, :1] / spectra.sum(1, keepdim=True)).T.tolist(),
    }
    results.collapse = Collapse(Part("c", values, {}, {}))
    line = step1d_tables.verdict(Results(60, False, [results]), results)[-1]
    assert words in line
    if last == [1.0, 1.0]:
        assert "2.00 at step 10, where the first eigenvalue has 50% of the trace" in line


def test_times_that_two_studies_share_are_one_part():
    def named(name: str) -> Part:
        return Part(name, {"records": []}, {}, {})

    studies = [study(), study()]
    for k, one in enumerate(studies):
        one.add_size(DPPGP, 60, named(f"dppgp-{k}"), named("time-dppgp-n60"))
    assert [p.name for p in Results(60, False, studies).parts()] == ["dppgp-0", "time-dppgp-n60", "dppgp-1"]


def test_the_scaling_figure_tells_the_seeds_and_shows_the_mae_without_rbf_too():
    results = study()
    results.sizes[EXACT_RBF] = {60: fit([9.0])}
    results.sizes[EXACT_DBK] = {60: fit([0.2, 0.3]), 250: fit([0.2, 0.3, 0.4])}
    mae, without, *_, last = step1d_figures.scaling(results).axes  # there are no times: no panel fails for that
    told = [text.get_text() for text in last.get_legend().get_texts()]
    assert told == ["RBF (exact), 1 seed", "DBK (exact), 2 to 3 seeds", "oracle"]
    assert mae.get_ylim()[1] > 9.0 > 1.0 > without.get_ylim()[1]


def test_the_nll_over_rank_has_a_panel_that_rank_one_does_not_squash(done):
    results = study()
    results.by_rank = {rank: PartFit(part(done, f"rank-a0.4-r{rank}")) for rank in (1, 8)}
    panels = {ax.get_title(): ax for ax in step1d_figures.by_rank(results).axes}
    assert len(panels["test NLL, nats a row"].get_xticks()) == 2
    assert list(panels["without rank 1"].get_xticks()) == [8]


@pytest.mark.parametrize(("high", "ticks"), [(900.0, {2.0, 5.0, 10.0}), (5000.0, {10.0})])
def test_a_log_axis_has_few_numbers_only_over_many_decades(high, ticks):
    ax = plots.new_figure(3, 3).subplots()
    ax.plot([1, 2], [1.0, high])
    step1d_figures._log_axis(ax)
    assert {tick for tick in ax.get_yticks() if 1.5 < tick < 15.0} == ticks


def test_a_small_spread_is_not_shown_as_none():
    results = study()
    results.sizes[DPPGP][60] = fit([0.1937, 0.1939])
    ax = plots.new_figure(3, 3).subplots()
    step1d_figures._scores(ax, results.sizes[DPPGP][60], first=False)
    assert ".1938 ± .0001" in [text.get_text() for text in ax.texts]


def test_a_failed_seed_is_counted_and_not_averaged():
    found = fit([1.0, None, 3.0])
    assert found.statistic("nll") == pytest.approx((2.0, math.sqrt(2.0)))
    assert found.statistic("effective_rank") == (2.0, 0.0)
    assert "3 seeds, at most 9 epochs, best at 7, 1 failed" in step1d_tables._training(found)
    assert "stopped" not in step1d_tables._training(found)


def test_seeds_that_all_failed_leave_a_gap_and_no_figure():
    results = study()
    results.sizes[DPPGP][60] = results.by_rank[1] = fit([None], best=None)
    everything = Results(60, False, [results])
    assert [row for row in step1d_tables.rows(everything) if row.method != "oracle"] == []
    assert "–" in step1d_tables._rank_table(results)
    assert step1d_figures.example(everything, results) is None
    assert step1d_figures.scaling(results) is None
    assert step1d_figures.by_rank(results) is None
    assert step1d_figures.bases(results) is None


def test_the_sizes_are_the_papers_where_they_can_be():
    main, printed = step1d_sizes.FULL.studies
    assert (main.amplitude, printed.amplitude) == (0.4, 2.0)
    assert main.sizes == (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
    assert main.ranks == (1, 2, 4, 8, 16, 32, 64)
    assert step1d_sizes.FULL.seeds == 10
    for one in step1d_sizes.FULL.studies:
        assert max(one.gp_sizes) <= 20_000
        assert step1d_sizes.FULL.focus in one.sizes
        assert step1d_sizes.FULL.focus in one.gp_sizes
        assert set(step1d_figures.SHOWN_RANKS) <= set(one.ranks)


def test_an_expansion_is_trained_as_silu_is(done):
    """But for its basis: the same settings, rows and seeds; and the readable table has them one below the other."""
    silu, other = (part(done, name) for name in ("dppgp-a0.4-n60", "expansion-a0.4-n60-dbk-matern"))
    assert other.made["settings"] == {**silu.made["settings"], "method": "dbk-matern"}
    again = part(done, "expansion-a0.4-n60-dbk-silu")  # with as many steps it is the same training
    assert [one["nll"] for one in again.values["records"]] == [one["nll"] for one in silu.values["records"]]
    mine, theirs = (one.values["records"][0] for one in (silu, other))
    assert mine["seed"] == theirs["seed"]
    assert mine["nll"] != theirs["nll"]
    names = re.findall(r"^\| (dbk-\w+) \|", (done / "tables.md").read_text(), flags=re.MULTILINE)
    assert names == ["dbk-silu", "dbk-matern", "dbk-bsplines"]
