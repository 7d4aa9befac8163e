"""Ookla's tiles: quadkeys against the forward formula and real files, polygons against matplotlib and their area, and
Parquet files written here in Ookla's form."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.path import Path as Outline

from deepbasis.errors import FileFormatError, InputError
from deepbasis.paper import data_ookla as ookla
from deepbasis.paper.geography import Region
from deepbasis.paper.splits import duplicate_safe, random_split

FOLDER = Path(os.environ.get("DEEPBASIS_DATA", "nowhere"))
needs_data = pytest.mark.skipif(not (FOLDER / "ookla").is_dir(), reason="DEEPBASIS_DATA has no folder ookla")


def quadkey(longitude: float, latitude: float) -> str:
    """The tile of a point, as Microsoft's description of its map tiles has it: the map's x and y, their bits woven."""
    sine = math.sin(math.radians(latitude))
    x = int((longitude + 180) / 360 * 2**16)
    y = int((0.5 - math.log((1 + sine) / (1 - sine)) / (4 * math.pi)) * 2**16)
    return "".join(str((x >> i & 1) + 2 * (y >> i & 1)) for i in range(15, -1, -1))


def ring(*points: tuple[float, float]) -> np.ndarray:
    return np.array([*points, points[0]], dtype=float)


def box(west: float, south: float, east: float, north: float) -> np.ndarray:
    return ring((west, south), (east, south), (east, north), (west, north))


def area(outline: np.ndarray) -> float:
    """The shoelace formula."""
    x, y = outline[:, 0], outline[:, 1]
    return abs(float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum())) / 2


def write_tiles(file: Path, keys: list[str], speeds: list[tuple[int, int, int]], **more: list[int]) -> Path:
    """A Parquet file with Ookla's columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    download, upload, latency = zip(*speeds, strict=True)
    columns = {
        "quadkey": keys,
        "tile": ["POLYGON((0 0, 0 1, 1 1, 1 0, 0 0))"] * len(keys),
        "avg_d_kbps": download,
        "avg_u_kbps": upload,
        "avg_lat_ms": latency,
        "tests": [1] * len(keys),
        "devices": [1] * len(keys),
        **more,
    }
    pq.write_table(pa.table(columns), file)
    return file


# Quadkeys -------------------------------------------------------------------------------------------------------------


def test_the_centre_of_a_tile_is_in_the_tile_and_in_its_middle():
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.uniform(-179.9, 179.9, 200), rng.uniform(-80, 80, 200)])
    keys = [quadkey(*point) for point in points]
    centres = ookla.quadkey_centre(keys)
    assert [quadkey(*centre) for centre in centres] == keys
    width = 360 / 2**16
    height = width * np.cos(np.radians(points[:, 1]))  # to first order; Mercator's squares shrink towards the poles
    offsets = (points - centres) / np.column_stack([np.full(200, width), height])
    assert np.abs(offsets).max() == pytest.approx(0.5, abs=0.01)


def test_integers_are_quadkeys_without_their_leading_zeros():
    assert np.array_equal(ookla.quadkey_centre(["0320211001100202"]), ookla.quadkey_centre(np.array([320211001100202])))
    assert np.array_equal(ookla.quadkey_centre(320211001100202), ookla.quadkey_centre("0320211001100202"))


@pytest.mark.parametrize("key", [4, -1, 32021100110020200])
def test_what_is_no_quadkey_is_refused(key):
    with pytest.raises(InputError, match="digits 0 to 3"):
        ookla.quadkey_centre(np.array([0, key]))


@needs_data
def test_centres_are_those_of_a_real_file():
    table = pq.read_table(FOLDER / "ookla" / "raw_mobile_usvi.parquet")
    centres = ookla.quadkey_centre(table["quadkey"].to_pylist())
    np.testing.assert_allclose(centres[:, 0], table["lon"].to_numpy(), atol=1e-12)
    np.testing.assert_allclose(centres[:, 1], table["lat"].to_numpy(), atol=1e-12)


# Polygons -------------------------------------------------------------------------------------------------------------


def test_a_hole_is_outside_and_an_island_in_it_inside():
    region = Region("lake", (box(0, 0, 4, 4), box(1, 1, 3, 3), box(1.8, 1.8, 2.2, 2.2), box(9, 0, 10, 1)))
    points = np.array([[0.5, 0.5], [1.5, 1.5], [2.0, 2.0], [9.5, 0.5], [6.0, 0.5], [-1, 2], [3.5, 2.0], [2, 5]])
    assert ookla.contains(region, points).tolist() == [True, False, True, True, False, False, True, False]


def test_points_level_with_a_corner_count_once():
    """East of them lies a corner: as the tip of a triangle it is crossed, or touched twice, never once."""
    diamond = Region("diamond", (ring((0, 0), (1, 1), (2, 0), (1, -1)),))
    level = np.array([[0.5, 0.0], [1.5, 0.0], [-1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert ookla.contains(diamond, level).tolist() == [True, True, False, False, False, False]


def test_a_ragged_polygon_is_that_of_matplotlib():
    rng = np.random.default_rng(1)
    angles = np.sort(rng.uniform(0, 2 * math.pi, 400))
    radii = rng.uniform(0.3, 1.0, 400)
    star = ring(*np.column_stack([radii * np.cos(angles), radii * np.sin(angles)]).tolist())
    points = rng.uniform(-1, 1, size=(20_000, 2))
    assert np.array_equal(ookla.contains(Region("star", (star,)), points), Outline(star).contains_points(points))


def test_the_tiles_of_a_border_belong_to_one_side():
    """Two boxes that share an edge: no point is in both, and none in neither."""
    grid = np.stack(np.meshgrid(np.linspace(0.25, 1.75, 7), np.linspace(0.25, 0.75, 5)), axis=-1).reshape(-1, 2)
    west, east = Region("west", (box(0, 0, 1, 1),)), Region("east", (box(1, 0, 2, 1),))
    assert (ookla.contains(west, grid) ^ ookla.contains(east, grid)).all()


@needs_data
@pytest.mark.parametrize("name", ["Georgia", "New Mexico", "Puerto Rico"])
def test_states_have_their_area(name):
    """The share of the bounding box that is inside: counted, and by the shoelace formula."""
    state = ookla.load_state(FOLDER / "geo" / "states.geojson", name)
    low, high = state.bounds
    points = np.random.default_rng(0).uniform(low, high, size=(40_000, 2))
    share = sum(map(area, state.rings)) / float(np.prod(high - low))
    assert ookla.contains(state, points).mean() == pytest.approx(share, abs=0.01)  # 4 standard errors


def test_states_of_a_file(tmp_path):
    features = [
        {"properties": {"NAME": "A"}, "geometry": {"type": "Polygon", "coordinates": [box(0, 0, 1, 1).tolist()]}},
        {
            "properties": {"NAME": "B"},
            "geometry": {
                "type": "MultiPolygon",
                "coordinates": [
                    [box(2, 0, 6, 4).tolist(), box(3, 1, 4, 2).tolist()],
                    [[[*point, 99.0] for point in box(7, 0, 8, 1).tolist()]],  # with a height
                ],
            },
        },
    ]
    file = tmp_path / "states.geojson"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    points = np.array([[0.5, 0.5], [2.5, 0.5], [3.5, 1.5], [7.5, 0.5]])
    assert ookla.contains(ookla.load_state(file, "A"), points).tolist() == [True, False, False, False]
    assert ookla.contains(ookla.load_state(file, "B"), points).tolist() == [False, True, False, True]
    assert ookla.contains(ookla.load_areas(file), points).tolist() == [True, True, False, True]
    with pytest.raises(InputError, match="no state 'C'; it has A, B"):
        ookla.load_state(file, "C")


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        '{"features": []}',
        '{"features": [{"properties": {"NAME": "A"}, "geometry": null}]}',
        '{"features": [{"properties": {"NAME": "A"}, "geometry": {"type": "Point", "coordinates": [0, 0]}}]}',
        '{"features": [{"properties": {"NAME": "A"}, "geometry": {"type": "Polygon", "coordinates": '
        "[[[0, 0], [1, 0], [1, 1], [0, 1]]]}}]}",
    ],
)
def test_what_is_no_boundary_is_refused_by_name(tmp_path, content):
    (tmp_path / "states.geojson").write_text(content)
    with pytest.raises(FileFormatError, match=r"states\.geojson"):
        ookla.load_state(tmp_path / "states.geojson", "A")


def test_coordinates_are_scaled_by_the_bounding_box():
    region = Region("box", (ring((-10, 0), (10, 2), (0, 8)),))
    scaled = ookla.scale_coordinates(np.array([[-10.0, 0.0], [10.0, 8.0], [0.0, 4.0], [5.0, 2.0]]), region)
    np.testing.assert_allclose(scaled, [[-1, -1], [1, 1], [0, 0], [0.5, -0.5]])


# The prepared arrays --------------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize(("name", "rows", "dropped"), [
    ("mobile-puerto-rico", 140_620, 0),
    ("fixed-georgia", 64_863, 5),
    ("fixed-new-mexico", 11_977, 0),
])  # fmt: skip
def test_prepared_tiles(name, rows, dropped, caplog):
    tiles = ookla.load(name)
    assert (len(tiles.X), tiles.dropped) == (rows, dropped)
    assert (f"{dropped} of {rows + dropped} rows left out" in caplog.text) == (dropped > 0)
    raw = np.load(FOLDER / "ookla" / ookla.PREPARED[name], allow_pickle=False)
    kept = raw["lat_ms"] > 0
    np.testing.assert_allclose(tiles.X, raw["X"][kept], atol=4e-6)  # half a unit in float32's last place, below 128
    np.testing.assert_allclose(10**tiles.download, raw["d_kbps"][kept])
    np.testing.assert_allclose(10**tiles.upload, raw["u_kbps"][kept])
    np.testing.assert_allclose(10**tiles.latency, raw["lat_ms"][kept])
    for field in ("urban", "year", "quarter", "quadkey"):
        assert np.array_equal(getattr(tiles, field), raw[field][kept])
    state = ookla.state(name)
    assert ookla.contains(state, tiles.X).all()
    assert np.abs(ookla.scale_coordinates(tiles.X, state)).max() <= 1
    strata = ookla.strata(tiles)
    assert (strata["urban"] ^ strata["rural"]).all()
    assert 0.3 < strata["urban"].mean() < 0.5


@needs_data
def test_a_state_has_none_of_anothers_tiles():
    assert not ookla.contains(ookla.state("fixed-georgia"), ookla.load("fixed-new-mexico").X).any()


@needs_data
def test_a_tile_s_quarters_can_be_kept_on_one_side():
    tiles = ookla.load("mobile-puerto-rico")
    split = duplicate_safe(random_split(len(tiles.X)), tiles.X)
    assert not np.isin(tiles.quadkey[split.test], tiles.quadkey[split.train]).any()


def test_prepared_tiles_that_are_missing_or_damaged(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"there is no .*mobile_puerto_rico\.npz"):
        ookla.load("mobile-puerto-rico", tmp_path)
    with pytest.raises(InputError, match=r"geo.states\.geojson is missing"):
        ookla.state("fixed-georgia", tmp_path)
    (tmp_path / "ookla").mkdir()
    np.savez(tmp_path / "ookla" / "mobile_puerto_rico.npz", quadkey=np.zeros(3))
    with pytest.raises(FileFormatError, match=r"cannot be read as arrays of tiles.*d_kbps"):
        ookla.load("mobile-puerto-rico", tmp_path)
    with pytest.raises(InputError, match="name must be one of"):
        ookla.load("mobile-texas", tmp_path)
    monkeypatch.delenv("DEEPBASIS_DATA", raising=False)
    with pytest.raises(InputError, match="set the environment variable DEEPBASIS_DATA"):
        ookla.load("mobile-puerto-rico")


# Ookla's own files ----------------------------------------------------------------------------------------------------

ATLANTA, SAVANNAH, SANTA_FE = (-84.39, 33.75), (-81.1, 32.08), (-105.94, 35.69)
SOUTH_EAST = Region("south-east", (box(-86, 30, -80, 35),))


def test_tiles_in_the_state_with_the_quarter_of_the_file_s_name(tmp_path):
    keys = [quadkey(*place) for place in (ATLANTA, SANTA_FE, SAVANNAH)]
    speeds = [(1000, 100, 10), (5, 5, 5), (10_000, 1, 100)]
    file = write_tiles(tmp_path / "2023-10-01_performance_mobile_tiles.parquet", keys, speeds)
    tiles = ookla.read_parquet(file, SOUTH_EAST)
    np.testing.assert_allclose(tiles.X, [ATLANTA, SAVANNAH], atol=0.003)  # half a tile
    np.testing.assert_allclose(tiles.download, [3, 4])
    np.testing.assert_allclose(tiles.upload, [2, 0])
    np.testing.assert_allclose(tiles.latency, [1, 2])
    assert tiles.quadkey.tolist() == [int(keys[0]), int(keys[2])]
    assert (tiles.year.tolist(), tiles.quarter.tolist()) == ([2023, 2023], [4, 4])
    assert tiles.urban is None
    with pytest.raises(InputError, match="urban"):
        ookla.strata(tiles)


def test_zeros_are_left_out_and_counted(tmp_path, caplog):
    keys = [quadkey(*ATLANTA)] * 4
    file = write_tiles(tmp_path / "2019-01-01_x.parquet", keys, [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1)])
    tiles = ookla.read_parquet(file, SOUTH_EAST)
    assert (len(tiles.X), tiles.dropped) == (1, 3)
    assert "2019-01-01_x.parquet: 3 of 4 rows left out" in caplog.text


def test_several_files_and_urban_areas(tmp_path):
    keys = [quadkey(*place) for place in (ATLANTA, SAVANNAH)]
    files = [
        write_tiles(tmp_path / "2020-04-01_a.parquet", keys, [(1, 1, 1)] * 2),
        write_tiles(tmp_path / "b.parquet", keys, [(10, 1, 1)] * 2, year=[2021, 2022], quarter=[3, 1]),
    ]
    atlanta = Region("urban", (box(-84.5, 33.6, -84.2, 33.9),))
    tiles = ookla.read_parquet(files, SOUTH_EAST, atlanta)
    assert tiles.download.tolist() == [0, 0, 1, 1]
    assert tiles.year.tolist() == [2020, 2020, 2021, 2022]
    assert tiles.quarter.tolist() == [2, 2, 3, 1]
    assert ookla.strata(tiles)["urban"].tolist() == [True, False, True, False]


def test_the_papers_sets_are_found_in_the_folder(tmp_path):
    """Ookla's own names and folders; its fixed tiles are not mobile ones."""
    keys = [quadkey(*place) for place in (ATLANTA, SANTA_FE)]
    for quarter, month in ((1, "01"), (2, "04")):
        for kind, speed in (("mobile", 100), ("fixed", 1000)):
            place = tmp_path / "ookla" / f"type={kind}" / "year=2020" / f"quarter={quarter}"
            write_tiles(place / f"2020-{month}-01_performance_{kind}_tiles.parquet", keys, [(speed, 1, 1)] * 2)
    geometries = {"Georgia": box(-86, 30, -80, 35), "New Mexico": box(-109, 31, -103, 37)}
    features = [
        {"properties": {"NAME": name}, "geometry": {"type": "Polygon", "coordinates": [outline.tolist()]}}
        for name, outline in geometries.items()
    ]
    (tmp_path / "geo").mkdir()
    (tmp_path / "geo" / "states.geojson").write_text(json.dumps({"features": features}))
    georgia, new_mexico = ookla.load("mobile-georgia", tmp_path), ookla.load("mobile-new-mexico", tmp_path)
    assert georgia.quadkey.tolist() == [int(keys[0])] * 2
    assert new_mexico.quadkey.tolist() == [int(keys[1])] * 2
    assert georgia.download.tolist() == [2, 2]
    assert georgia.quarter.tolist() == [1, 2]
    (tmp_path / "geo" / "urban_areas.geojson").write_text(json.dumps({"features": features[:1]}))
    assert ookla.strata(ookla.load("mobile-georgia", tmp_path))["urban"].all()


def test_the_papers_sets_say_what_they_need(tmp_path):
    with pytest.raises(InputError, match=r"YYYY-MM-01_performance_mobile_tiles\.parquet"):
        ookla.load("mobile-georgia", tmp_path)


def test_files_that_are_not_ookla_s(tmp_path):
    keys, speeds = [quadkey(*SANTA_FE)], [(1, 1, 1)]
    with pytest.raises(InputError, match="no tile is in south-east"):
        ookla.read_parquet(write_tiles(tmp_path / "2020-04-01_a.parquet", keys, speeds), SOUTH_EAST)
    with pytest.raises(InputError, match="does not say its quarter"):
        ookla.read_parquet(write_tiles(tmp_path / "2020-05-01_a.parquet", keys, speeds), SOUTH_EAST)
    pq.write_table(pa.table({"quadkey": keys, "avg_d_kbps": [1]}), tmp_path / "2020-04-01_b.parquet")
    with pytest.raises(FileFormatError, match="no column avg_lat_ms, avg_u_kbps"):
        ookla.read_parquet(tmp_path / "2020-04-01_b.parquet", SOUTH_EAST)
    with pytest.raises(FileFormatError, match="cannot be read as a Parquet file"):
        ookla.read_parquet(write_tiles(tmp_path / "2020-04-01_c.parquet", ["north"], speeds), SOUTH_EAST)
    (tmp_path / "2020-04-01_d.parquet").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="cannot be read as a Parquet file"):
        ookla.read_parquet(tmp_path / "2020-04-01_d.parquet", SOUTH_EAST)


@needs_data
def test_a_real_parquet_file():
    file = FOLDER / "ookla" / "raw_mobile_usvi.parquet"
    raw = pq.read_table(file).to_pandas()
    tiles = ookla.read_parquet(file, Region("Saint Croix", (box(-65, 17.6, -64.4, 17.9),)))
    south = raw[raw.lat.between(17.6, 17.9) & raw.lon.between(-65, -64.4)]
    assert 1000 < len(tiles.X) == len(south) < len(raw)
    assert tiles.quadkey.tolist() == south.quadkey.astype(int).tolist()
    np.testing.assert_allclose(10**tiles.upload, south.avg_u_kbps)
    assert np.array_equal(tiles.year, south.year)
    assert np.array_equal(tiles.quarter, south.quarter)


@needs_data
def test_the_same_tiles_from_parquet_and_from_the_prepared_arrays(tmp_path):
    prepared = ookla.load("fixed-new-mexico")
    raw = np.load(FOLDER / "ookla" / "fixed_2023Q2_new_mexico.npz", allow_pickle=False)
    abroad = [quadkey(*ATLANTA)]
    keys = [*abroad, *(f"{key:016d}" for key in raw["quadkey"])]
    speeds = [(7, 7, 7), *zip(raw["d_kbps"].tolist(), raw["u_kbps"].tolist(), raw["lat_ms"].tolist(), strict=True)]
    file = write_tiles(tmp_path / "2023-04-01_performance_fixed_tiles.parquet", keys, speeds)
    tiles = ookla.read_parquet(file, ookla.state("fixed-new-mexico"))
    for field in ("X", "download", "upload", "latency", "year", "quarter", "quadkey"):
        assert np.array_equal(getattr(tiles, field), getattr(prepared, field))


def test_the_attribution_names_the_source_and_its_licence():
    assert "Ookla" in ookla.ATTRIBUTION
    assert "CC BY-NC-SA 4.0" in ookla.ATTRIBUTION
