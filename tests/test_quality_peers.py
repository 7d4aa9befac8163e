"""Peers of benchmarks/quality.py that are no Gaussians, the two simple ones, tables, and drawn tables."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import _quality_data as data
import _quality_peers as peers
import _quality_pool as pool
import _quality_simple as simple
import drawn_tables
import quality
import quality_time
from _quality_data import CV, TABLE, Fold, Task
from _quality_model import (
    LEVELS,
    METRICS,
    Effort,
    Model,
    Points,
    Quantiles,
    Trained,
    evaluate,
    evaluate_own,
    score,
    twice_pinball,
)
from deepbasis.gp.predictive import Gaussian
from deepbasis.paper.parts import Folder
from deepbasis.paper.scaling import Side
from deepbasis.paper.splits import Split

CPU = Effort(torch.device("cpu"))
ONE_TASK = replace(data.QUICK, tasks=(Task(CV, "hetero1d"),), small_rows=40)


def line(rows: int = 60, columns: int = 3, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    return X, X @ np.arange(1.0, columns + 1.0) + noise * rng.standard_normal(rows)


def fold_of(X: np.ndarray, y: np.ndarray) -> Fold:
    x, y = torch.from_numpy(X).float(), torch.from_numpy(y).float()
    return Fold(0, Side(x[:-40], y[:-40]), Side(x[-40:-20], y[-40:-20]), Side(x[-20:], y[-20:]), (0,), "")


# ---- answers -------------------------------------------------------------------------------------------------------


def test_twice_the_pinball_loss_by_hand_and_near_the_crps():
    y = torch.tensor([1.0], dtype=torch.float64)
    at_zero = torch.zeros(1, 40, dtype=torch.float64)
    assert twice_pinball(at_zero, y) == pytest.approx(2.0 * sum(LEVELS) / 40)  # q y for a quantile below y
    rng = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 500, generator=rng, dtype=torch.float64)
    gaussian = Gaussian(mean, torch.ones_like(mean))
    scores = evaluate(gaussian, y)
    # The midpoint rule on 40 levels: off where the integrand is steep, in the tails.
    assert scores["crps_40"] == pytest.approx(scores["crps"], rel=2e-3)


def test_quantiles_are_scored_as_the_distribution_that_they_are_of():
    rng = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 400, generator=rng, dtype=torch.float64)
    gaussian = Gaussian(mean, torch.full_like(mean, 0.5))
    shuffled = gaussian.quantile(LEVELS)[:, torch.randperm(40, generator=rng)]  # the order does not count
    ours, theirs = evaluate(gaussian, y), evaluate(Quantiles(shuffled), y)
    assert theirs["nll"] is None
    assert theirs["crps"] == theirs["crps_40"] == pytest.approx(ours["crps_40"])
    assert theirs["rmse"] == pytest.approx(ours["rmse"])
    assert theirs["coverage_95"] == pytest.approx(ours["coverage_95"], abs=0.03)
    assert theirs["width_95"] == pytest.approx(ours["width_95"], rel=0.03)  # a line between .0125 and .0375
    points = evaluate(Points(mean), y)
    assert {name for name in METRICS if points[name] is not None} == {"mae", "rmse"}
    assert points["mae"] == pytest.approx(ours["mae"])


def test_a_target_in_its_own_units_is_scored_as_the_scaled_one():
    rng = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 300, generator=rng, dtype=torch.float64)
    scaled = evaluate(Gaussian(mean, torch.ones_like(mean)), y)
    std, shift = 7.0, 100.0
    own = data.Own(*(np.zeros(1),) * 2, (std * y + shift).numpy(), std)
    found = evaluate_own(Gaussian(std * mean + shift, torch.full_like(mean, std**2)), own)
    assert found == pytest.approx(scaled)


def test_a_probability_is_not_compared_with_densities():
    X, _ = line(400)
    counts = np.random.default_rng(0).poisson(np.exp(0.3 * X[:, 0]))
    split = Split(*np.split(np.arange(400), [320, 360]))
    fold = data.table_fold(X, counts.astype(float), split, 0)
    (trained,) = peers.fit_deepbasis(
        {"target": "count", "members": 2, "method": "dbk-silu"}, fold, (0,), Effort(CPU.device, limit=2)
    )
    scores = evaluate_own(trained.predict(fold.test.x), fold.own)
    assert scores["nll"] is None
    assert 0.0 < scores["crps"] < 2.0


def test_a_quantile_between_two_levels():
    values = torch.tensor([list(range(40))], dtype=torch.float64)
    found = Quantiles(values)
    assert float(found.at(0.0125)) == 0.0
    assert float(found.at(0.025)) == pytest.approx(0.5)
    assert float(found.at(0.9875)) == pytest.approx(39.0)
    assert float(found.at(0.999)) == pytest.approx(39.0)


# ---- simple models -------------------------------------------------------------------------------------------------


def test_variances_are_those_of_rows_left_out():
    X, y = line(30)
    everyone = np.arange(len(y))
    left = [y[k] - y[everyone != k].mean() for k in everyone]
    assert simple.constant(y).variance == pytest.approx(np.mean(np.square(left)))

    from sklearn.linear_model import Ridge, RidgeCV

    scaled = (X - X.mean(0)) / X.std(0)
    alpha = RidgeCV(simple.PENALTIES).fit(scaled, y).alpha_
    left = [y[k] - Ridge(alpha).fit(scaled[everyone != k], y[everyone != k]).predict(scaled[[k]])[0] for k in everyone]
    assert simple.ridge(X, y).variance == pytest.approx(np.mean(np.square(left)), rel=1e-6)


@pytest.mark.parametrize("name", ["ridge", "hgb"])
def test_a_peer_beats_the_constant_on_a_line(name):
    fold = fold_of(*line(240))
    effort = replace(CPU, limit=60)
    (found,), (worst,) = (score(peers.MODELS[model], fold, effort) for model in (name, "constant"))
    assert found["error"] is None
    assert found["crps_40"] < 0.6 * worst["crps_40"]
    assert found["rmse"] < 0.6 * worst["rmse"]


def test_the_calibrated_ensemble_is_the_raw_one_calibrated():
    """One training: the same means, and its seconds for both. A table's fold has targets in their own units too."""
    X, y = line(240)
    own = data.Own(y[:-40], y[-40:-20], y[-20:], 1.0)
    fold, effort = replace(fold_of(X, y), own=own), replace(CPU, limit=20)
    models = [peers.MODELS[name] for name in ("deep-ensemble", "deep-ensemble-calibrated")]
    (raw,), (calibrated,) = (score(model, fold, effort) for model in models)
    assert raw["seconds"] == calibrated["seconds"] > 0.0
    assert raw["rmse"] == pytest.approx(calibrated["rmse"])
    assert raw["nll"] != calibrated["nll"]


def test_peers_from_elsewhere_are_left_out_where_they_are_not_installed():
    for name in ("catboost-quantiles", "realmlp", "tabm"):
        assert peers.MODELS[name].package in ("catboost", "pytabkit")


# ---- tables --------------------------------------------------------------------------------------------------------


def test_tables_have_ten_splits_or_three_and_no_split_0():
    assert list(data.fold_numbers(Task(TABLE, "yacht"), data.FULL)) == list(range(1, 11))
    assert list(data.fold_numbers(Task(TABLE, "pollution"), data.FULL)) == [1, 2, 3]
    assert list(data.fold_numbers(Task(TABLE, "yacht"), data.FULL.of_seeds(2))) == [1, 2]
    assert len({task.dataset for task in data.FULL.tasks}) >= 20


@pytest.mark.skipif("DEEPBASIS_DATA" not in os.environ, reason="DEEPBASIS_DATA names no folder of data sets")
def test_a_table_becomes_numbers_scaled_on_its_training_rows():
    for name, columns in (("abalone", 7 + 3), ("yacht", 6)):  # a column for each of three sexes
        fold = next(iter(data.folds(Task(TABLE, name), data.FULL)))
        assert fold.columns == columns
        assert float(fold.train.x.min()) == -1.0
        assert float(fold.train.x.max()) == 1.0
        seen, tested = (set(map(tuple, side.x.tolist())) for side in (fold.train, fold.test))
        assert not seen & tested


# ---- parts ---------------------------------------------------------------------------------------------------------


def quantile_model(fold: Fold, seeds, effort) -> list[Trained]:
    return [Trained(lambda x: Quantiles(torch.tensor(LEVELS).expand(len(x), 40)), None) for _ in seeds]


def gaussian_model(fold: Fold, seeds, effort) -> list[Trained]:
    return [Trained(lambda x: Gaussian(torch.zeros(len(x)), torch.ones(len(x))), None) for _ in seeds]


def test_a_model_without_a_density_has_no_nll_in_any_table(tmp_path):
    folder = Folder(tmp_path, torch.device("cpu"), tell=lambda line: None)
    models = {
        "deepbasis": Model("deepbasis", "", gaussian_model),
        "hgb": Model("hgb", "", quantile_model),
        "ridge": Model("ridge", "", gaussian_model),
    }
    parts = list(quality.collect(folder, ONE_TASK, CPU, quality.Wanted(list(models)), models=models))
    cells = quality.cells_of(parts, ONE_TASK.tasks)
    assert {row.model for row in quality.rows_of(cells) if row.metric == "nll"} == {"deepbasis", "ridge"}
    ranks, _ = quality.average_ranks(cells)
    assert "nll" not in ranks["hgb"]
    assert ranks["deepbasis"]["nll"] == 1.5
    assert set(ranks["hgb"]) == {"crps", "crps_40", "mae", "rmse"}
    assert [pair.peer for pair in quality.paired(cells, "nll")] == ["ridge"]
    assert "| hetero1d | hgb | – | " in quality.markdown(cells, parts)


def test_what_an_earlier_version_made_is_shown_with_a_mark(tmp_path):
    folder = Folder(tmp_path, torch.device("cpu"), tell=lambda line: None)
    wanted = quality.Wanted(["deepbasis"])
    for options, earlier in (({"steps": 1}, False), ({"steps": 2}, True)):
        models = {"deepbasis": Model("deepbasis", "", gaussian_model, options, with_earlier=True)}
        (part,) = quality.collect(folder, ONE_TASK, CPU, wanted, models=models)
        (cell,) = quality.cells_of([part], ONE_TASK.tasks)
        assert cell.earlier is earlier
        assert ("deepbasis †" in quality.markdown([cell], [part])) is earlier


def test_models_that_share_a_training_go_to_one_process():
    task = Task(CV, "hetero1d")
    found = pool.together(
        [pool.Unit(task, k, (name,), (f"part-{name}",)) for name in ("a", "b", "c") for k in (0, 1)], {"c": "a"}
    )
    assert [(unit.fold, unit.names) for unit in found] == [(0, ("a", "c")), (1, ("a", "c")), (0, ("b",)), (1, ("b",))]


@pytest.mark.slow
def test_many_processes_find_what_one_does(tmp_path):
    wanted, said = quality.Wanted(["ridge", "constant"]), []
    folders = [Folder(tmp_path / name, torch.device("cpu"), tell=said.append) for name in ("one", "many")]
    alone = list(quality.collect(folders[0], ONE_TASK, CPU, wanted))
    work = quality.units(folders[1], ONE_TASK, CPU, wanted)
    ahead = pool.computed(work, ONE_TASK, CPU, None, 2, None)
    together = list(quality.collect(folders[1], ONE_TASK, CPU, wanted, ahead=ahead))
    assert [part.name for part in together] == [part.name for part in alone]
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one.values["folds"], other.values["folds"], strict=True):
            assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert quality.units(folders[1], ONE_TASK, CPU, wanted) == []


def test_nothing_is_computed_to_be_thrown_away(tmp_path):
    """What belongs to a part that other settings made cannot be added to it."""
    wanted, said = quality.Wanted(["ridge"]), []
    folder = Folder(tmp_path, torch.device("cpu"), tell=said.append)
    list(quality.collect(folder, ONE_TASK, CPU, wanted))
    more = replace(ONE_TASK, cv_repeats=ONE_TASK.cv_repeats + 1)  # changes the settings of a part
    assert quality.units(folder, more, CPU, wanted) == []
    assert "delete its line" in said[-1]


# ---- seconds -------------------------------------------------------------------------------------------------------


def broken_model(fold: Fold, seeds, effort) -> list[Trained]:
    raise np.linalg.LinAlgError("not positive definite")


def test_seconds_are_measured_once_and_beside_ours_of_the_same_call(tmp_path):
    fold, file, fits = fold_of(*line(60)), tmp_path / "seconds.csv", []

    def watched(fold: Fold, seeds, effort) -> list[Trained]:
        fits.append(seeds)
        return gaussian_model(fold, seeds, effort)

    models = {
        "deepbasis": Model("deepbasis", "", watched),
        "ridge": Model("ridge", "", gaussian_model),
        "hgb": Model("hgb", "", quantile_model),
        "catboost": Model("catboost", "", broken_model),
        "sklearn-gp": Model("sklearn-gp", "", gaussian_model, most_rows=39),  # of 40
    }

    def add(*names: str, table: str = "a") -> pd.DataFrame | None:
        return quality_time.add(file, "m", table, fold, names, CPU, models)

    assert add("ridge", "sklearn-gp") is not None
    assert add("ridge", "sklearn-gp") is None
    assert add("sklearn-gp", table="b") is None
    assert add("ridge", "hgb", "catboost") is not None
    assert add("ridge", "hgb", "catboost", "sklearn-gp") is None
    assert len(fits) == 4
    found = pd.read_csv(file)
    of_call = [["deepbasis", "ridge"], ["deepbasis", "hgb", "catboost"]]
    assert [list(some["model"]) for _, some in found.groupby("call")] == of_call
    for _, some in found.groupby("call"):
        own = some.loc[some["model"] == "deepbasis", "seconds"].item()
        seconds = some["seconds"].to_numpy()
        assert some["relative"].to_numpy() == pytest.approx(seconds / own, rel=2e-4, nan_ok=True)  # five digits each
    assert set(found.loc[found["relative"].isna(), "model"]) == {"catboost"}


def test_recorded_seconds_are_beside_ours_of_the_same_call():
    found = pd.read_csv(quality_time.RESULTS)
    for _, some in found.groupby([*quality_time.PLACE, "call"]):
        assert some["model"].is_unique
        own = some.loc[some["model"] == quality_time.OURS, "seconds"].item()
        assert some["relative"].to_numpy() == pytest.approx(some["seconds"].to_numpy() / own, rel=2e-4, nan_ok=True)
    assert set(quality_time.PEERS) <= set(peers.MODELS)


# ---- drawn tables --------------------------------------------------------------------------------------------------


def test_a_drawn_table_depends_on_its_number_alone():
    for index in (0, 1, 2, 3, 4, 57):
        one, other = drawn_tables.draw(index, 10), drawn_tables.draw(index, 10)
        assert np.array_equal(one.y, other.y)
        assert 20 <= len(one.y) <= 5_000
    drawn = [drawn_tables.draw(index, 1) for index in range(drawn_tables.TABLES)]
    assert all(2 * d.X.shape[1] >= len(d.y) - 1 for k, d in enumerate(drawn) if drawn_tables.family_of(k) == "wide")
    noises = [d.noise for k, d in enumerate(drawn) if drawn_tables.family_of(k) == "linear"]
    assert min(noises) < 3e-3
    assert max(noises) > 0.3


def test_the_better_of_two_lines_is_the_truth_on_a_line_and_on_noise():
    noise, straight = drawn_tables.draw(1), drawn_tables.draw(0)
    scale = noise.y_test.std()
    best = drawn_tables.line_nll(simple.constant(noise.y), noise)
    assert best == pytest.approx(math.log(scale) + 0.5 * math.log(2 * math.pi * math.e), abs=0.1)
    nlls = [
        drawn_tables.line_nll(found, straight)
        for found in (simple.ridge(straight.X, straight.y), simple.constant(straight.y))
    ]
    assert nlls[0] < nlls[1]


def test_good_is_a_share_of_a_nat_or_four_over_n():
    record = {"table": 0, "family": "noise", "rows": 20, "columns": 2, "noise": None, "ridge": 2.0, "constant": 1.0}
    record |= {"nll": 1.19, "coverage": 0.9, "held_out_coverage": 0.95, "method": "m", "seconds": 1.0, "error": None}
    assert drawn_tables.is_good(record)
    assert not drawn_tables.is_good({**record, "rows": 200})
    assert not drawn_tables.is_good({**record, "error": "no member could be trained"})
    text = drawn_tables.report([record, {**record, "rows": 400, "table": 5}], "c", "a machine")
    assert "| noise | 2 | 50 % | .1900 |" in text
    assert "| 5 | noise | 400 | 2 | – | .190 | .900 | m |" in text


def test_tables_that_are_recorded_are_read_once_each(tmp_path):
    file = tmp_path / "parts.jsonl"
    file.write_text("".join(json.dumps({"table": k, "nll": v}) + "\n" for k, v in ((3, 1.0), (1, 2.0), (3, 4.0))))
    assert [(r["table"], r["nll"]) for r in drawn_tables.recorded(file)] == [(1, 2.0), (3, 4.0)]
