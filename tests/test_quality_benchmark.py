"""benchmarks/quality.py: the same rows for every model, honest tables, and peers that are given a chance.

CatBoost and NGBoost are not needed here: what is tested of them is that they are left out where they are not.
"""

import csv
import io
import os
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import _quality_data as data
import _quality_peers as peers
import quality
from _quality_data import CV, PAPER, SAFE, Fold, Task
from _quality_model import Effort, Model, Trained, score
from deepbasis.errors import InputError, NumericalError
from deepbasis.gp.predictive import Gaussian
from deepbasis.paper import data_uci as uci
from deepbasis.paper.parts import Folder, Part, provenance
from deepbasis.paper.scaling import Side

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)  # what importing linear_operator does
    import gpytorch  # noqa: F401

CPU = Effort(torch.device("cpu"))
SMALL = replace(data.QUICK, tasks=(Task(CV, "hetero1d"),), small_rows=40)


@pytest.fixture
def folder(tmp_path) -> Folder:
    said: list[str] = []
    folder = Folder(tmp_path / "out", torch.device("cpu"), tell=said.append)
    folder.said = said
    return folder


# ---- folds ---------------------------------------------------------------------------------------------------------


def rows_of(fold: Fold) -> list[set[int]]:
    """The numbers of the rows on each side, for a table whose only input is the row's number: scaling keeps order."""
    sides = [side.x[:, 0].numpy() for side in (fold.train, fold.validation, fold.test)]
    rank = np.argsort(np.argsort(np.concatenate(sides)))
    return [set(part.tolist()) for part in np.split(rank, np.cumsum([len(side) for side in sides])[:-1])]


def test_cross_validation_tests_each_row_once_a_repeat_and_never_trains_on_it():
    table = uci.RegressionTable(np.arange(53.0)[:, None], np.random.default_rng(0).standard_normal(53))
    folds = [rows_of(fold) for fold in data.cross_validation(table, data.FULL)]
    assert len(folds) == 10
    for train, validation, test in folds:
        assert not train & validation
        assert not train & test
        assert not validation & test
        assert train | validation | test == set(range(53))
    for repeat in (folds[:5], folds[5:]):
        assert sorted(row for _, _, test in repeat for row in test) == list(range(53))
    assert [test for _, _, test in folds[:5]] != [test for _, _, test in folds[5:]]


def test_targets_are_standardised_on_the_training_rows_alone():
    for fold in data.folds(Task(CV, "friedman1"), data.FULL):
        assert abs(float(fold.train.y.mean())) < 1e-5
        assert float(fold.train.y.std(unbiased=False)) == pytest.approx(1.0, abs=1e-5)
        assert float(fold.train.x.min()) == pytest.approx(-1.0)
        assert float(fold.train.x.max()) == pytest.approx(1.0)


def test_at_least_seven_small_sets_of_some_hundred_rows():
    assert len(data.SMALL) >= 7
    for make in data.SMALL.values():
        X, y = make(1_000)
        assert 400 <= len(X) == len(y) <= 1_000
        assert np.isfinite(X).all()
        assert y.std() > 0


def test_duplicate_safe_folds_are_other_splits_without_copies_across():
    X = np.repeat(np.random.default_rng(0).standard_normal((60, 2)), 3, axis=0)
    table = uci.RegressionTable(X, X[:, 0] + np.arange(180.0))
    folds = list(data.folds(Task(SAFE, "pol"), data.FULL, load=lambda name, folder: table))
    assert [fold.seeds for fold in folds] == [(0,), (1,), (2,), (3,), (4,)]
    assert len({fold.digest for fold in folds}) == 5
    for fold in folds:
        train, validation, test = (
            set(map(tuple, side.x.tolist())) for side in (fold.train, fold.validation, fold.test)
        )
        assert not train & test
        assert not train & validation
        assert not validation & test
    (paper,) = data.folds(Task(PAPER, "pol"), data.FULL, load=lambda name, folder: table)
    assert paper.seeds == (0, 1, 2, 3, 4)


@pytest.mark.skipif("DEEPBASIS_DATA" not in os.environ, reason="DEEPBASIS_DATA names no folder of data sets")
def test_the_sets_said_to_have_no_copies_have_none():
    free = [name for name in data.UCI if len(np.unique(uci.load(name).X, axis=0)) == len(uci.load(name).X)]
    assert tuple(free) == data.COPY_FREE


# ---- parts ---------------------------------------------------------------------------------------------------------


def constant(fold: Fold, seeds, effort) -> list[Trained]:
    return [Trained(lambda x: Gaussian(torch.zeros(len(x)), torch.ones(len(x))), None) for _ in seeds]


def collect(folder, models, size=SMALL, wanted=None, load=uci.load) -> list[Part]:
    wanted = wanted or quality.Wanted(models=[m.name for m in models])
    return list(quality.collect(folder, size, CPU, wanted, models={m.name: m for m in models}, load=load))


def test_every_model_gets_the_same_folds(folder):
    given: dict[str, list[Fold]] = {"a": [], "b": []}

    def noting(name):
        def fit(fold, seeds, effort):
            given[name].append(fold)
            return constant(fold, seeds, effort)

        return Model(name, "", fit)

    parts = collect(folder, [noting("a"), noting("b")])
    assert [part.name for part in parts] == ["cv-hetero1d-a", "cv-hetero1d-b"]
    assert len(given["a"]) == len(given["b"]) == 2
    for one, other in zip(given["a"], given["b"], strict=True):
        for side in ("train", "validation", "test"):
            assert torch.equal(getattr(one, side).x, getattr(other, side).x)
            assert torch.equal(getattr(one, side).y, getattr(other, side).y)


def test_a_peer_that_is_not_installed_is_left_out_with_one_line(folder):
    missing = Model("missing", "", constant, package="no_such_package")
    parts = collect(folder, [missing, Model("here", "", constant)], replace(SMALL, tasks=data.QUICK.tasks[2:]))
    assert {part.values["model"] for part in parts} == {"here"}
    lines = [line for line in folder.said if "missing" in line]
    assert lines == ["missing is left out: the package no_such_package is not installed"]


def test_its_part_made_elsewhere_is_still_in_the_tables(folder):
    collect(folder, [Model("peer", "", constant)])
    (part,) = collect(folder, [Model("peer", "", constant, package="no_such_package")])
    assert part.name == "cv-hetero1d-peer"


def test_a_part_is_computed_once_and_only_if_it_is_wanted(folder):
    calls = []

    def fit(fold, seeds, effort):
        calls.append(fold.index)
        return constant(fold, seeds, effort)

    model = Model("a", "", fit)
    assert collect(folder, [model], wanted=quality.Wanted(["a"], ["paper-"])) == []
    assert collect(folder, [model], wanted=quality.Wanted(["b"])) == []
    assert calls == []
    collect(folder, [model], wanted=quality.Wanted(["a"], ["paper-", "cv-het"]))
    assert len(collect(folder, [model], wanted=quality.Wanted(["b"], ["paper-"]))) == 1
    assert calls == [0, 1]


def test_a_part_that_cannot_be_added_to_stays_as_it_is(folder):
    rng = np.random.default_rng(0)
    table = uci.RegressionTable(rng.standard_normal((60, 2)), rng.standard_normal(60))
    sizes = [replace(SMALL, tasks=(Task(PAPER, "pol"),), seeds=seeds) for seeds in (1, 2)]
    (part,) = collect(folder, [Model("a", "", constant)], size=sizes[0], load=lambda name, folder: table)

    def gone(name, folder):
        raise InputError("pol is not there")

    (again,) = collect(folder, [Model("a", "", constant)], size=sizes[1], load=gone)
    assert again.values == part.values
    assert "stays so" in folder.said[-1]


@pytest.mark.parametrize("split", [PAPER, SAFE])
def test_a_part_with_fewer_seeds_is_added_to(split, folder):
    rng = np.random.default_rng(0)
    table = uci.RegressionTable(rng.standard_normal((60, 2)), rng.standard_normal(60))
    calls = []

    def load(name, folder):
        return table

    def fit(fold, seeds, effort):
        calls.append((fold.index, *seeds))
        return constant(fold, seeds, effort)

    def run(seeds, *wanted):
        size = replace(SMALL, tasks=(Task(split, "pol"),), seeds=seeds)
        (part,) = collect(folder, [Model("a", "", fit)], size, quality.Wanted(wanted), load)
        return part.values["folds"]

    first = run(1, "a")
    assert run(3) == first  # not wanted
    assert run(3, "a")[:1] == first
    assert run(2, "a") == run(3, "a")
    assert calls == ([(0, 0), (0, 1), (0, 2)] if split == PAPER else [(0, 0), (1, 1), (2, 2)])
    assert [record["seed"] for record in run(3)] == [0, 1, 2]
    size = replace(SMALL, tasks=(Task(split, "pol"),), seeds=3)
    (part,) = collect(folder, [Model("a", "", fit)], size, load=load)
    assert part.made["before"]["date"] <= part.made["date"]
    assert "1 parts" in provenance([part])


def test_a_part_of_other_options_is_left_out_with_a_line(folder):
    collect(folder, [Model("a", "", constant, {"depth": 8, "grid": (0.0, 0.1)})])
    assert len(collect(folder, [Model("a", "", constant, {"depth": 8, "grid": (0.0, 0.1)})])) == 1
    assert collect(folder, [Model("a", "", constant, {"depth": 6, "grid": (0.0, 0.1)})]) == []
    assert "made with other settings (options)" in folder.said[-1]


def test_our_options_tell_the_recipe():
    options = peers.MODELS["deepbasis"].options
    assert options["recipe"]["name"] == "default"
    assert options != peers.MODELS["deepbasis-1"].options
    assert "learning_rate" in options["recipe"]["small"]


def test_a_model_is_left_out_where_there_are_too_many_rows(folder):
    assert collect(folder, [Model("a", "", constant, most_rows=19)]) == []
    assert len(collect(folder, [Model("a", "", constant, most_rows=20)])) == 1


def test_a_fit_that_breaks_down_is_recorded_and_in_no_mean(folder):
    def fit(fold, seeds, effort):
        if fold.index == 1:
            raise NumericalError("no member could be trained")
        return constant(fold, seeds, effort)

    (part,) = collect(folder, [Model("deepbasis", "", fit)])
    assert [record["error"] for record in part.values["folds"]] == [None, "NumericalError: no member could be trained"]
    (cell,) = quality.cells_of([part], SMALL.tasks)
    assert (len(cell.folds), cell.broken) == (1, 1)
    assert "cv-hetero1d-deepbasis, fold 1, seed 1: NumericalError" in quality.markdown([cell], [part])


def test_scores_of_a_constant_gaussian(folder):
    (part,) = collect(folder, [Model("a", "", constant)])
    for fold, record in zip(data.folds(SMALL.tasks[0], SMALL), part.values["folds"], strict=True):
        y = fold.test.y.double()
        assert record["nll"] == pytest.approx(float(0.5 * np.log(2 * np.pi) + 0.5 * y.square().mean()))
        assert record["mae"] == pytest.approx(float(y.abs().mean()))
        assert record["width_95"] == pytest.approx(2 * 1.959964, abs=1e-5)


# ---- tables --------------------------------------------------------------------------------------------------------


def fabricate(split: str, dataset: str, model: str, nll: list[float], *, digest: str = "d", crps: float = 0.5) -> Part:
    """A part with one seed a fold."""
    scores = {
        "crps": crps,
        "mae": 0.1,
        "rmse": 0.2,
        "coverage_95": 0.95,
        "width_95": 1.0,
        "rounds": 10.0,
        "error": None,
    }
    records = [
        {"fold": k, "digest": f"{digest}{k}", "seed": k, "seconds": 1.0 + k, "nll": value, **scores}
        for k, value in enumerate(nll)
    ]
    values = {"dataset": dataset, "split": split, "model": model, "device": "cpu", "packages": {}, "folds": records}
    made = {"cpu": "a CPU", "torch": "2", "python": "3", "deepbasis": "0", "date": "2026-01-01", "command": "c"}
    return Part(f"{split}-{dataset}-{model}", values, {}, {**made, "seconds": 1.0})


TASKS = (Task(PAPER, "pol"), Task(PAPER, "elevators"), Task(SAFE, "pol"), Task(SAFE, "elevators"))
PARTS = [
    fabricate(PAPER, "pol", "deepbasis", [1.0, 2.0, 4.0], crps=0.3),
    fabricate(PAPER, "pol", "deepbasis-1", [0.0, 0.0, 0.0], crps=0.1),
    fabricate(PAPER, "pol", "catboost", [2.0, 2.0, 3.0]),
    fabricate(PAPER, "pol", "ngboost", [1.0, 9.0]),
    fabricate(PAPER, "elevators", "deepbasis", [1.0, 1.0]),
]


def test_the_tidy_table_has_a_row_for_each_metric():
    rows = list(
        csv.reader(io.StringIO(quality.tidy_csv(quality.Row._fields, quality.rows_of(quality.cells_of(PARTS, TASKS)))))
    )
    assert rows[0] == ["dataset", "split", "model", "metric", "mean", "std", "seconds"]
    found = {tuple(row[:4]): row[4:] for row in rows[1:]}
    assert len(found) == len(rows) - 1 == 6 * (4 + 1 + 1)
    assert {row[3] for row in rows[1:]} == {"nll", "crps", "mae", "rmse", "coverage_95", "width_95"}
    # (1 + 2 + 4) / 3; the root of ((4/3)^2 + (1/3)^2 + (5/3)^2) / 2; (1 + 2 + 3) / 3
    assert found["pol", "paper", "deepbasis", "nll"] == ["2.33333", "1.52753", "2"]
    # elevators has no copies: its duplicate-safe rows are the paper's; pol has, and there is no part of it.
    assert found["elevators", "duplicate-safe", "deepbasis", "nll"] == found["elevators", "paper", "deepbasis", "nll"]
    assert ("pol", "duplicate-safe", "deepbasis", "nll") not in found


def test_paired_differences_by_hand():
    cells = quality.cells_of(PARTS, TASKS[:1])
    (pair,) = quality.paired(cells, "nll")
    # Against catboost -1, 0, 1: mean 0, std 1. Against ngboost, on its two folds, 0 and -7. Our own single is no rival.
    assert pair[:4] == ("pol", "nll", "catboost", 0.0)
    assert pair.error == pytest.approx(1 / 3**0.5)
    assert pair.pairs == 3
    (pair,) = quality.paired([cell for cell in cells if cell.model != "catboost"], "nll")
    assert pair[:4] == ("pol", "nll", "ngboost", -3.5)
    assert pair.error == pytest.approx(3.5)  # std 7 / sqrt 2, over sqrt 2
    assert pair.pairs == 2
    (pair,) = quality.paired(cells, "crps")
    assert pair.mean == pytest.approx(-0.2)


def test_parts_made_on_other_rows_are_not_compared():
    with pytest.raises(InputError, match=r"paper-pol-ngboost and paper-pol-deepbasis were made on other rows"):
        quality.cells_of([PARTS[0], fabricate(PAPER, "pol", "ngboost", [1.0], digest="e")], TASKS)


def test_average_ranks_share_ties_and_leave_out_models_that_lack_a_data_set():
    parts = [
        fabricate(CV, "a", "deepbasis", [1.0]),
        fabricate(CV, "a", "catboost", [2.0]),
        fabricate(CV, "a", "ngboost", [0.0]),
        fabricate(CV, "b", "deepbasis", [1.0]),
        fabricate(CV, "b", "catboost", [1.0]),
    ]
    ranks, left_out = quality.average_ranks(quality.cells_of(parts, [Task(CV, name) for name in "ab"]))
    assert left_out == ["ngboost"]
    assert ranks["deepbasis"]["nll"] == 1.25
    assert ranks["catboost"]["nll"] == 1.75


def test_splits_that_a_model_lacks_are_in_no_mean_but_in_the_pairs():
    parts = [fabricate(SAFE, "pol", "deepbasis", [1.0, 5.0]), fabricate(SAFE, "pol", "catboost", [2.0, 9.0])]
    parts.append(fabricate(SAFE, "pol", "ngboost", [3.0]))
    cells = quality.cells_of(parts, [Task(SAFE, "pol")])
    assert [cell.mean("nll") for cell in quality.on_shared_folds(cells)] == [1.0, 2.0, 3.0]
    assert [cell.mean("nll") for cell in cells] == [3.0, 5.5, 3.0]
    assert quality.paired(cells, "nll")[0].pairs == 1  # NGBoost is the nearest
    seeds = [fabricate(PAPER, "pol", "deepbasis", [1.0, 5.0]), fabricate(PAPER, "pol", "catboost", [2.0])]
    seeds[0].values["folds"][1] |= {"fold": 0, "digest": "d0"}
    assert quality.on_shared_folds(quality.cells_of(seeds, TASKS))[0].mean("nll") == 3.0


def test_a_model_with_few_splits_takes_none_from_the_others_and_is_never_the_best(folder):
    splits = [1.0, 5.0, 3.0]
    parts = [fabricate(SAFE, "pol", "deepbasis", splits), fabricate(SAFE, "pol", "catboost", [2.0, 9.0, 4.0])]
    parts.append(fabricate(SAFE, "pol", "ngboost", [0.0]))
    cells = quality.on_shared_folds(quality.cells_of(parts, TASKS))
    assert [(cell.mean("nll"), len(cell.folds), cell.few) for cell in cells] == [
        (3.0, 3, False),
        (5.0, 3, False),
        (0.0, 1, True),
    ]
    ranks, left_out = quality.average_ranks(cells)
    assert left_out == ["ngboost"]
    assert ranks["deepbasis"]["nll"] == 1.0
    quality.write(folder, replace(data.FULL, tasks=TASKS), parts)
    assert "| pol | deepbasis | **3.0000" in (folder.path / "table.md").read_text()


def test_the_report_says_what_a_reader_must_know(folder):
    quality.write(folder, replace(data.FULL, tasks=TASKS), PARTS)
    text = (folder.path / "table.md").read_text()
    assert "## Split `paper`" in text
    assert "## Split `duplicate-safe`" in text
    assert "## Split `cv`" not in text
    assert "| pol | deepbasis-1 | **.0000 ± .0000** | **.1000 ± .0000** |" in text
    assert "| pol | NLL | catboost | .0000 | .5774 | 3 |" in text
    assert "RMSEWithUncertainty" in text
    assert "Commands: `c`" in text
    assert not (folder.path / "ATTRIBUTION.txt").exists()
    tiles = fabricate(PAPER, "fixed-georgia-upload", "deepbasis", [1.0])
    quality.write(folder, replace(data.FULL, tasks=(Task(PAPER, "fixed-georgia-upload"),)), [tiles])
    assert "Ookla" in (folder.path / "ATTRIBUTION.txt").read_text()
    assert "CC BY-NC-SA" in (folder.path / "table.md").read_text()


# ---- peers ---------------------------------------------------------------------------------------------------------


def toy(rows: int = 300) -> Fold:
    """y = sin(3 x) + 0.1 e: a constant Gaussian's NLL is about 1.4, the truth's about -0.5 (y is standardised)."""
    generator = torch.Generator().manual_seed(0)

    def side(n: int) -> Side:
        x = torch.rand(n, 1, generator=generator) * 2.0 - 1.0
        return Side(x, (torch.sin(3.0 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator)) / 0.75)

    return Fold(0, side(rows), side(80), side(200), (0,), "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["deep-ensemble", "deep-ensemble-calibrated", "gpytorch-pp-dkl", "gpytorch-sv-dkl", "sklearn-gp"]
)
def test_a_peer_beats_a_constant_gaussian(name):
    quick = replace(CPU, limit=150, learning_rate=1e-2)  # to be there in a second
    effort, fold = (CPU, toy(100)) if name == "sklearn-gp" else (quick, toy())
    (record,) = score(peers.MODELS[name], fold, effort)
    assert record["error"] is None
    assert record["nll"] < 0.2
    assert record["rmse"] < 0.3
    assert 0.85 < record["coverage_95"] <= 1.0
    assert record["seconds"] > 0.0


@pytest.mark.slow
def test_a_stacked_ensemble_is_the_one_that_is_trained_alone():
    """With several steps an epoch: the shuffling counts."""
    fold, effort = toy(), Effort(torch.device("cpu"), limit=20, batch=64)
    _, second = peers.fit_deep_ensemble(fold, [0, 1], effort)
    (alone,) = peers.fit_deep_ensemble(fold, [1], effort)
    together, separate = second.predict(fold.test.x), alone.predict(fold.test.x)
    torch.testing.assert_close(together.means, separate.means, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(together.variances, separate.variances, rtol=1e-3, atol=1e-4)
    assert second.rounds == alone.rounds


@pytest.mark.parametrize("name", ["deep-ensemble", "gpytorch-pp-dkl"])
def test_the_best_epoch_predicts_not_the_last(name):
    """Validation targets that are noise make an early epoch the best: stopping right there predicts the same."""
    fold = toy()
    noise = Side(fold.validation.x, 0.5 * torch.randn(80, generator=torch.Generator().manual_seed(1)))
    fold = replace(fold, validation=noise)
    fit = partial(peers.fit_deep_ensemble, members=1) if name == "deep-ensemble" else peers.MODELS[name].fit
    (long,) = fit(fold, [0], Effort(torch.device("cpu"), limit=60))
    assert 0 < long.rounds < 60
    (short,) = fit(fold, [0], Effort(torch.device("cpu"), limit=int(long.rounds)))
    one, other = long.predict(fold.test.x), short.predict(fold.test.x)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-3, atol=1e-4)


def test_small_tables_get_steps_and_large_ones_epochs():
    assert peers.epochs_and_patience(700, 100, CPU) == (4_000, 800)
    assert peers.epochs_and_patience(50_886, 100, CPU) == (100, 20)
    assert peers.epochs_and_patience(700, 100, replace(CPU, limit=3)) == (3, 1)
