"""The Ookla experiment: what its maps aggregate, what its table holds, and a whole run on made-up tiles."""

import csv
import io
import json
import math
import os
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepbasis.engine.members import Member
from deepbasis.errors import InputError
from deepbasis.gp import metrics
from deepbasis.gp.predictive import Gaussian
from deepbasis.paper import data_ookla as dataset
from deepbasis.paper import ookla, ookla_figures, ookla_maps, ookla_tables
from deepbasis.paper.geography import Region
from deepbasis.paper.parts import Folder, Part
from deepbasis.paper.protocol import FAST_LOG
from deepbasis.paper.records import Records

SQUARE = Region("Square", (np.array([[-108.0, 32.0], [-104.0, 32.0], [-104.0, 36.0], [-108.0, 36.0], [-108.0, 32.0]]),))
HOLE = np.array([[-107.0, 33.0], [-106.0, 33.0], [-106.0, 34.0], [-107.0, 34.0], [-107.0, 33.0]])


# Maps -----------------------------------------------------------------------------------------------------------------


def test_cells_hold_the_mean_and_std_of_their_points():
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.uniform(-84.3, -84.0, 200), rng.uniform(-0.1, 0.2, 200)]), rng.normal(4, 1, 200)
    by_hand = defaultdict(list)
    for (lon, lat), value in zip(X, y, strict=True):
        by_hand[math.floor(lon / 0.05), math.floor(lat / 0.05)].append(value)
    kept = {corner: values for corner, values in by_hand.items() if len(values) >= 5}
    assert 0 < len(kept) < len(by_hand)  # or it would test nothing
    cells = ookla_maps.gather(X, 5)
    assert {tuple(c) for c in cells.corner.tolist()} == set(kept)
    for corner, mean, std in zip(cells.corner.tolist(), cells.mean(y), cells.std(y), strict=True):
        assert mean == pytest.approx(np.mean(kept[tuple(corner)]))
        assert std == pytest.approx(np.std(kept[tuple(corner)], ddof=1))


def test_the_same_cells_of_two_sets_are_paired():
    first, second = np.array([[0, 1], [5, 5], [2, 3]], np.int32), np.array([[2, 3], [9, 9], [0, 1]], np.int32)
    one, other = ookla_maps.in_common(first, second)
    np.testing.assert_array_equal(first[one], second[other])
    assert len(one) == 2
    assert [len(k) for k in ookla_maps.in_common(first, second[1:2])] == [0, 0]


def test_a_grid_covers_the_inside_of_a_region_and_nothing_else():
    region = Region("Ring", (*SQUARE.rings, HOLE))
    grid = ookla_maps.grid_over(region, 40)
    assert (len(grid.lon), len(grid.lat)) == (40, 40)
    np.testing.assert_allclose(np.diff(grid.lon), 0.1)
    assert grid.inside.mean() == pytest.approx(15 / 16)  # all but the hole, a sixteenth
    picture = grid.spread(torch.from_numpy(grid.points.T))
    lon, lat = np.meshgrid(grid.lon, grid.lat)
    np.testing.assert_array_equal(picture[0], np.where(grid.inside, lon, np.nan))
    np.testing.assert_array_equal(picture[1], np.where(grid.inside, lat, np.nan))


def test_an_outline_is_every_ring_with_a_gap_between():
    line = ookla_maps.outline(Region("Ring", (*SQUARE.rings, HOLE)))
    assert line.isnan().all(1).nonzero().flatten().tolist() == [5]
    np.testing.assert_allclose(line[:5], SQUARE.rings[0])
    np.testing.assert_allclose(line[6:], HOLE)
    one, other = ookla_maps.rings(line)
    np.testing.assert_allclose(one, SQUARE.rings[0])
    np.testing.assert_allclose(other, HOLE)


def test_a_map_leaves_out_the_islands_without_rows():
    line = ookla_maps.outline(Region("Islands", (SQUARE.rings[0], HOLE + 10.0, HOLE - 10.0)))
    points = np.array([[-105.0, 33.0], [-96.5, 43.5]])  # on the mainland and on the island in the north-east
    for seen, west_south, east_north in (
        (points, [-108.0, 32.0], [-96.0, 44.0]),
        (points[:1], [-108.0, 32.0], [-104.0, 36.0]),
        (points + 90.0, [-117.0, 23.0], [-96.0, 44.0]),  # nowhere: all of them
    ):
        low, high = ookla_maps.frame(line, seen)
        np.testing.assert_allclose(low, west_south)
        np.testing.assert_allclose(high, east_north)


def test_a_kernel_slice_is_a_column_of_the_kernel_matrix():
    model = FAST_LOG.build("dbk-rbf", 2, rank=6, width=5)(Member(seed=1)).double()
    x, at = torch.rand(11, 2).double(), torch.rand(3, 2).double()
    whole = model.kernel(torch.cat([at, x])).detach()
    torch.testing.assert_close(ookla_maps.kernel_slices(model, x, at, chunk=4), whole[:3, 3:])
    torch.testing.assert_close(ookla_maps.kernel_slices(model, at, at).diagonal(), whole.diagonal()[:3])


# The paper's table ----------------------------------------------------------------------------------------------------


def test_the_papers_table_is_whole_and_says_what_the_paper_says_of_it():
    assert len(ookla_tables.PAPER) == 2 * 2 * 3 * 2 * 3
    assert ookla_tables.PAPER["New Mexico", "upload", "dbk-rbf", "rural", "coverage_95"] == 0.946
    assert ookla_tables.PAPER["Georgia", "download", "sv-rbf", "urban", "mae"] == 0.520
    for state in ("Georgia", "New Mexico"):
        for target in ookla.TARGETS:
            for stratum in ookla_tables.STRATA:  # "DBK consistently attains the lowest NLL across datasets"
                scores = {m: ookla_tables.PAPER[state, target, m, stratum, "nll"] for m in ookla.METHODS}
                assert min(scores, key=lambda m: scores[m]) == "dbk-rbf"


def implied_std(state, target, method, stratum):
    """Of residuals that are Gaussian with the reported NLL, and of those with the reported MAE."""
    mae, nll = (ookla_tables.PAPER[state, target, method, stratum, metric] for metric in ("mae", "nll"))
    return math.exp(nll) / math.sqrt(2 * math.pi * math.e), mae * math.sqrt(math.pi / 2)


def test_the_papers_mae_and_nll_are_of_residuals_of_one_size():
    """The arithmetic of the note on units: both say the same, .67 for Georgia's download."""
    for state, target, method, stratum, _ in ookla_tables.PAPER:
        by_nll, by_mae = implied_std(state, target, method, stratum)
        assert by_mae == pytest.approx(by_nll, rel=0.08)
    assert implied_std("Georgia", "download", "sv-rbf", "urban")[0] == pytest.approx(0.67, abs=0.005)


def real_data():
    folder = os.environ.get("DEEPBASIS_DATA")
    if folder is None or not (Path(folder) / "ookla" / dataset.PREPARED["mobile-puerto-rico"]).is_file():
        pytest.skip("needs Ookla's tiles of Puerto Rico: set DEEPBASIS_DATA to a folder that holds them")
    return Path(folder)


def test_the_papers_table_is_in_standardised_units():
    """On mobile tiles .67 is more than all of log10's spread, and .67 in natural logarithms less than a tile's own."""
    tiles = dataset.load("mobile-puerto-rico", real_data())
    std, _ = implied_std("Georgia", "download", "sv-rbf", "urban")
    _, tile, count = np.unique(tiles.quadkey, return_inverse=True, return_counts=True)
    for y, within in ((tiles.download, 0.52), (tiles.upload, 0.47)):
        assert std > y.std() == pytest.approx(0.605, abs=0.005)
        residual = y - (np.bincount(tile, y) / count)[tile]
        assert np.sqrt((residual**2).sum() / (len(y) - len(count))) == pytest.approx(within, abs=0.005)
        assert std / math.log(10) < within


def test_the_reference_places_are_what_they_are_called():
    folder = real_data()
    for name in dataset.PREPARED:
        if not (folder / "ookla" / dataset.PREPARED[name]).is_file():
            continue
        tiles, region = dataset.load(name, folder), dataset.state(name, folder)
        places = ookla_maps.PLACES[region.name]
        assert dataset.contains(region, np.array([[place.lon, place.lat] for place in places])).all()
        near = {}
        for place in places:
            east = (tiles.X[:, 0] - place.lon) * math.cos(math.radians(place.lat))
            near[place.kind] = tiles.urban[np.hypot(east, tiles.X[:, 1] - place.lat) * 111.2 < 5.0]  # km
        assert near["urban"].mean() > 0.9
        assert near["rural"].mean() < 0.1
        assert len(near["remote"]) < 0.25 * len(near["rural"]) or len(near["remote"]) == 0


# A run ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A data folder with tiles in a square New Mexico: quick in the west, slow in the east, urban in the south."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    n = 600
    digits = "0231" + np.array(list("0123"))[rng.integers(0, 4, (n, 12))].astype(object).sum(axis=1)
    X = dataset.quadkey_centre(digits.astype(np.int64))
    low, high = X.min(axis=0), X.max(axis=0)
    fast = np.where(X[:, 0] < X[:, 0].mean(), 2e5, 2e4) * 10 ** rng.normal(0, 0.2, n)
    small = {"lat_ms": 20, "tests": -1, "devices": -1, "year": 2023, "quarter": 2}
    (folder / "ookla").mkdir()
    np.savez(
        folder / "ookla" / dataset.PREPARED["fixed-new-mexico"],
        X=X,
        quadkey=digits.astype(np.int64),
        d_kbps=fast.astype(np.int32),
        u_kbps=(fast / 10).astype(np.int32),
        urban=X[:, 1] < np.median(X[:, 1]),
        **{name: np.full(n, value, np.int32) for name, value in small.items()},
    )
    ring = [[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]], [low[0], low[1]]]
    state = {"properties": {"NAME": "New Mexico"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    (folder / "geo").mkdir()
    (folder / "geo" / "states.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [state]}))
    return folder


FIGURES = ["interval_widths.png", "kernels_fixed-new-mexico.png", "uncertainty_fixed-new-mexico.png"]
SIZE = replace(
    ookla.QUICK,
    rank=8,
    width=8,
    rows=500,
    map_points=20,
    epochs={"fixed-new-mexico": 8},
    cell=3.0,
    dots_per_inch=50,
)


@pytest.fixture(scope="module")
def done(made_up, tmp_path_factory):
    """Parts and tables; figures take longer."""
    folder = Folder(tmp_path_factory.mktemp("out"), torch.device("cpu"), tell=lambda line: None)
    ookla_tables.write(folder, ookla.compute(folder, SIZE, made_up), quick=True)
    return folder


def recorded(folder: Folder, target: str, method: str) -> Part:
    """As it is recorded."""
    records, name = Records(folder.path), f"fixed-new-mexico-{target}-{method}"
    line = records.lines()[name]
    return Part(name, line["values"], records.arrays(name), line["made"])


def table(folder: Folder) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder.path / "table.csv").read_text(encoding="utf-8"))))


def test_the_table_holds_every_method_target_stratum_and_metric(done):
    rows = table(done)
    assert list(rows[0]) == ["dataset", "split", "setting", "method", "metric", "mean", "std", "paper"]
    assert {(row["dataset"], row["split"]) for row in rows} == {("fixed-new-mexico", "paper")}
    assert {(row["setting"], row["method"], row["metric"]) for row in rows} == {
        (f"{target} {stratum}", method, metric)
        for target in ("download", "upload")
        for stratum in ("urban", "rural")
        for method in ("sv-rbf", "sv-dkl", "dbk-rbf")
        for metric in ("mae", "nll", "coverage_95", "crps", "width_95")
    }
    papers = {(r["setting"], r["method"], r["metric"]): r["paper"] for r in rows}
    assert papers["upload rural", "dbk-rbf", "nll"] == "1.002"
    assert papers["upload rural", "dbk-rbf", "crps"] == ""


@pytest.mark.parametrize("method", ookla.METHODS)
def test_the_table_and_what_is_drawn_are_of_the_same_members_in_standardised_units(done, made_up, method):
    part = recorded(done, "download", method)
    data = ookla.load("fixed-new-mexico", SIZE, made_up)
    y = data.tiles.download
    assert part.values["target_mean"] == pytest.approx(y[data.split.train].mean())
    assert part.values["target_std"] == pytest.approx(y[data.split.train].std())
    urban = data.tiles.urban[data.split.test]
    np.testing.assert_array_equal(part.arrays["urban"], urban)
    shown = part.values["members"][part.values["shown"]]["strata"]
    widths = 2.0 * 1.959964 * part.arrays["std"].numpy()
    for stratum, rows in (("urban", urban), ("rural", ~urban)):
        assert shown[stratum]["width_95"] == pytest.approx(widths[rows].mean(), rel=1e-3)
        for metric in ("nll", "mae"):
            (line,) = [
                row
                for row in table(done)
                if (row["setting"], row["method"], row["metric"]) == (f"download {stratum}", method, metric)
            ]
            seeds = [member["strata"][stratum][metric] for member in part.values["members"]]
            assert float(line["mean"]) == pytest.approx(np.mean(seeds), rel=1e-5)


def test_scores_are_of_the_rows_of_their_stratum_alone():
    prediction = Gaussian(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([1.0, 4.0, 9.0]))
    y, rows = torch.tensor([0.5, 1.5, 0.0]), torch.tensor([True, True, False])
    some = Gaussian(prediction.mean[:2], prediction.variance[:2])
    assert ookla.scores_of(prediction, y, rows) == metrics.evaluate(some, y[:2])
    assert ookla.scores_of(prediction, y, torch.zeros(3, dtype=torch.bool)) is None
    broken = Gaussian(torch.full((3,), torch.nan), prediction.variance)
    assert ookla.scores_of(broken, y, rows) is None


def test_every_seed_is_trained_with_the_papers_weights(done):
    for method in ookla.METHODS:
        members = recorded(done, "download", method).values["members"]
        assert [member["seed"] for member in members] == [0, 1]
        assert {(member["alpha"], member["beta"]) for member in members} == {(0.1, 0.01)}
        assert all(member["status"] in ("finished", "stopped") for member in members)


def test_the_maps_show_the_training_rows_and_the_kernel(done, made_up):
    part = recorded(done, "download", "dbk-rbf")
    data = ookla.load("fixed-new-mexico", SIZE, made_up)
    train = data.split.train
    cells = ookla_maps.gather(data.tiles.X[train], ookla.FEWEST_IN_CELL, SIZE.cell)
    tested = ookla_maps.gather(data.tiles.X[data.split.test], cell=SIZE.cell)
    known, own = ookla_maps.in_common(cells.corner, tested.corner)
    assert 3 < len(known) < len(cells.corner)  # or it would test nothing
    np.testing.assert_array_equal(part.arrays["cells"], cells.corner[known])
    y = data.tiles.download[train]
    np.testing.assert_allclose(part.arrays["cell_std"], (cells.std(y) / y.std())[known], rtol=1e-3)
    variance = tested.mean(part.arrays["std"].square())[own]
    np.testing.assert_allclose(part.arrays["cell_predicted"], np.sqrt(variance), rtol=1e-3)
    recomputed = np.corrcoef(part.arrays["cell_std"], part.arrays["cell_predicted"])[0, 1]
    assert part.values["agreement"] == pytest.approx(recomputed, abs=1e-2)
    shape = (len(part.arrays["grid_lat"]), len(part.arrays["grid_lon"]))
    assert max(shape) == SIZE.map_points
    assert part.arrays["slices"].shape == (3, *shape)
    assert part.arrays["grid_std"].shape == shape
    assert recorded(done, "download", "sv-dkl").arrays.keys() == {"std", "urban"}


def test_every_table_and_figure_names_its_source_and_licence(done):
    for name in ("table.md", "ATTRIBUTION.txt"):
        assert dataset.ATTRIBUTION in (done.path / name).read_text(encoding="utf-8")
    parts = [recorded(done, target, method) for target in ookla.TARGETS for method in ookla.METHODS]
    mapped = [part for part in parts if part.values["method"] == "dbk-rbf"]
    pages = [
        ookla_figures.interval_widths(ookla_figures.grouped(parts)),
        ookla_figures.kernel_slices(mapped, 0.5),
        ookla_figures.uncertainty(mapped),
    ]
    for page in pages:
        words = page.get_supxlabel().replace("\n", " ")
        assert "Ookla" in words
        assert "CC BY-NC-SA 4.0" in words


def test_the_markdown_shows_every_figure_with_a_line_of_its_own(done):
    text = (done.path / "table.md").read_text(encoding="utf-8")
    shown = re.findall(r"^!\[(.+)\]\((.+)\)$", text, flags=re.MULTILINE)
    assert sorted(file for _, file in shown) == FIGURES
    assert len({line for line, _ in shown}) == 3


def test_measured_and_predicted_std_are_shown_in_the_same_cells_and_one_range_holds_every_map(done):
    parts = [recorded(done, target, "dbk-rbf") for target in ookla.TARGETS]
    empirical, predicted = (parts[0].arrays[name].tolist() for name in ("cell_std", "cell_predicted"))
    maps = [ax.collections[0] for ax in ookla_figures.uncertainty(parts).axes[:3]]
    pictures = [np.ma.filled(mesh.get_array(), np.nan) for mesh in maps]
    np.testing.assert_array_equal(np.isnan(pictures[0]), np.isnan(pictures[1]))
    assert sorted(pictures[0][np.isfinite(pictures[0])]) == pytest.approx(sorted(empirical))
    assert sorted(pictures[1][np.isfinite(pictures[1])]) == pytest.approx(sorted(predicted))
    assert len({mesh.get_clim() for mesh in maps}) == 1
    low, high = maps[0].get_clim()
    for picture in pictures:
        seen = picture[np.isfinite(picture)]
        assert ((seen < low) | (seen > high)).mean() <= 0.01 + 2 / len(seen)


def test_kernel_maps_have_one_range_for_all_and_say_where_their_values_are(done):
    def part(state_values):
        return Part("p", {}, {"slices": torch.tensor(state_values).reshape(1, 1, -1)}, {})

    nearly, less = part([0.97, 1.0, torch.nan]), part([0.87, 1.01])
    assert ookla_figures.lowest_kernel([nearly]) == pytest.approx(0.9)
    assert ookla_figures.lowest_kernel([nearly, less]) == pytest.approx(0.8)
    assert ookla_figures.lowest_kernel([part([1.0, 1.0])]) == pytest.approx(0.9)  # never an empty range
    page = ookla_figures.kernel_slices([recorded(done, target, "dbk-rbf") for target in ookla.TARGETS], 0.3)
    assert {ax.collections[0].get_clim() for ax in page.axes[:6]} == {(0.3, 1.0)}
    note = page.get_supxlabel().replace("\n", " ")
    assert "from 0.3 to 1 in every state, not from 0" in note
    relative = [recorded(done, target, "dbk-rbf").arrays["slices"].numpy() for target in ookla.TARGETS]
    low = min(np.nanquantile(values, 0.005) for values in relative)
    high = max(np.nanquantile(values, 0.995) for values in relative)
    assert f"between {low:.2f} and {high:.2f} of" in note


def test_the_markdown_says_that_the_papers_tiles_are_other_ones_and_how_many_epochs_were_done(done):
    text = (done.path / "table.md").read_text(encoding="utf-8")
    assert "no like-for-like comparison" in text
    assert "*paper, mobile: DBK-RBF* | .506 | .989 | 95.3 %" in text
    assert "New Mexico, download (fixed broadband tiles, 2023 Q2)" in text
    (line,) = [line for line in text.split("## ")[2].splitlines() if line.startswith("| DBK-RBF")]
    members = recorded(done, "download", "dbk-rbf").values["members"]
    assert line.endswith(", ".join(f"{m['epochs']} ({m['best_epoch']})" for m in members) + " |")


@pytest.mark.slow
def test_what_is_recorded_is_drawn_without_data_and_without_computing(done, tmp_path, monkeypatch):
    recorded = {file.name: file.read_bytes() for file in done.path.iterdir() if file.is_file()}
    shutil.copytree(done.path, tmp_path, dirs_exist_ok=True)
    monkeypatch.delenv("DEEPBASIS_DATA", raising=False)
    folder = Folder(tmp_path, torch.device("cpu"), tell=lambda line: None)
    for _ in range(2):
        ookla.run(folder, SIZE, None)
        files = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
        assert {name: files[name] for name in recorded} == recorded
        recorded = files
    assert sorted(name for name in recorded if name.endswith(".png")) == FIGURES
    for name in FIGURES:
        assert len(np.unique(np.asarray(Image.open(tmp_path / name).convert("L")))) > 20  # not an empty page


def test_parts_that_are_not_asked_for_are_left_out(made_up, tmp_path):
    folder = Folder(tmp_path, torch.device("cpu"), only=["fixed-new-mexico-upload-sv"], tell=lambda line: None)
    ookla.run(folder, SIZE, made_up)
    assert {(row["setting"].split()[0], row["method"]) for row in table(folder)} == {
        ("upload", "sv-rbf"),
        ("upload", "sv-dkl"),
    }
    assert [file.name for file in tmp_path.glob("*.png")] == ["interval_widths.png"]  # the maps are DBK's


def test_nothing_at_all_still_leaves_a_table(tmp_path):
    ookla.run(Folder(tmp_path, torch.device("cpu"), only=["none"]), SIZE, None)
    assert table(Folder(tmp_path, torch.device("cpu"))) == []
    assert list(tmp_path.glob("*.png")) == []


def test_without_data_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPBASIS_DATA", raising=False)
    with pytest.raises(InputError, match="DEEPBASIS_DATA"):
        ookla.run(Folder(tmp_path / "out", torch.device("cpu")), SIZE, None)
    with pytest.raises(InputError, match=r"fixed_2023Q2_new_mexico\.npz"):
        ookla.run(Folder(tmp_path / "out", torch.device("cpu")), SIZE, tmp_path)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_member_that_failed_is_left_out_and_a_method_without_any_too(done):
    part = recorded(done, "download", "dbk-rbf")
    members = [dict(member) for member in part.values["members"]]
    members[0]["strata"] = {"urban": None, "rural": None}
    one = replace(part, values={**part.values, "members": members, "shown": 1})
    row = next(row for row in ookla_tables.rows_of(one) if row.metric == "nll")
    assert (row.mean, row.std) == (members[1]["strata"]["urban"]["nll"], None)
    members[1]["strata"] = members[0]["strata"]
    none = replace(part, values={**part.values, "members": members, "shown": None, "agreement": None})
    assert list(ookla_tables.rows_of(none)) == []
    assert ookla_figures.grouped([none]) == {}
    assert "| DBK-RBF | – |" in ookla_tables.markdown([none], quick=False)


def test_the_best_is_the_lowest_or_the_nearest_to_the_nominal_coverage():
    scores = [(0.9, None), (0.97, 0.1), None]
    assert ookla_tables._best(scores, "nll") == 0.9
    assert ookla_tables._best(scores, "coverage_95") == 0.97
    assert ookla_tables._best(scores, "width_95") is None
    assert ookla_tables._best([None], "nll") is None


def test_agreement_is_one_where_the_predicted_std_is_the_empirical_one():
    """Three cells with two training rows each, one with a row, and one in which only a test row is."""
    corners = np.array([[0.5, 0.5], [3.0, 0.5], [6.0, 0.5]])
    train = np.concatenate([corners + 0.01, corners + 0.02, [[7.01, 0.51]]])
    test = np.array([[0.51, 0.51], [0.52, 0.53], [3.01, 0.51], [6.01, 0.51], [9.01, 0.51]])
    std = torch.tensor([0.6, 0.8, 2.0, 3.0, 9.0]).double()
    spread = np.array([math.sqrt(0.5), 2.0, 3.0])

    def cells(spread, std):
        y = np.concatenate([spread, -spread]) / math.sqrt(2.0)  # two numbers d and -d have a std of sqrt(2) d
        return ookla_maps.compare(train, np.append(y, 5.0), test, std, 2)

    same = cells(spread, std)
    np.testing.assert_allclose(same.empirical, spread)
    np.testing.assert_allclose(same.predicted, spread)
    assert same.agreement() == pytest.approx(1.0)
    assert cells(spread[::-1], std).agreement() < -0.9
    assert cells(spread, torch.ones(5)).agreement() is None


def test_a_map_without_any_cell_is_blank():
    lon, lat, picture = ookla_figures.raster(np.empty((0, 2), np.int32), np.empty(0), 0.5)
    assert picture.shape == (len(lat), len(lon))
    assert np.isnan(picture).all()
    corner = np.array([[-3, 7], [-1, 6]], np.int32)
    lon, lat, picture = ookla_figures.raster(corner, np.array([1.0, 2.0]), 0.5)
    np.testing.assert_allclose(lon, 0.5 * np.array([-2.5, -1.5, -0.5]))
    np.testing.assert_allclose(lat, 0.5 * np.array([6.5, 7.5]))
    np.testing.assert_array_equal(picture, [[np.nan, np.nan, 2.0], [1.0, np.nan, np.nan]])
