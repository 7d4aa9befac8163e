"""UCI's sets in every form they come in, written here in that form; their scaling; and their download, from a server
that stands here too."""

import gzip
import hashlib
import io
import os
import re
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from deepbasis.errors import FileFormatError, InputError
from deepbasis.paper import data_download
from deepbasis.paper import data_uci as uci
from deepbasis.paper.splits import random_split

HERE = ("pol", "elevators", "kin40k", "protein", "keggdirected", "keggundirected")
needs_data = pytest.mark.skipif(
    "DEEPBASIS_DATA" not in os.environ, reason="DEEPBASIS_DATA names no folder of data sets"
)


class Sets:
    """A catalogue that a test may change: some sets of few rows, on a server that stands here."""

    def __init__(self) -> None:
        self.shapes, self.sha256 = dict(uci.UCI.shapes), dict(uci.UCI.sha256)
        self.address = "http://127.0.0.1:9"  # where nobody listens
        self.cache: Path | None = None

    def make(self, name: str, rows: int = 7) -> np.ndarray:
        """Set `name` is one of few rows from now on; inputs and target as one array."""
        inputs = self.shapes[name][1]
        self.shapes[name] = (rows, inputs)
        return np.random.default_rng(0).normal(size=(rows, inputs + 1)).round(6)

    def load(self, name: str, folder: Path | None = None) -> uci.RegressionTable:
        return uci.load(name, folder, uci.Catalogue(self.address, self.shapes, self.sha256, self.cache))


@pytest.fixture
def sets() -> Sets:
    return Sets()


def as_csv(data: np.ndarray, header: str = "") -> bytes:
    text = io.StringIO()
    np.savetxt(text, data, delimiter=",", fmt="%.9g", header=header, comments="")
    return text.getvalue().encode()


def put(place: Path, content: bytes) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


def assert_table(sets: Sets, folder: Path, name: str, inputs: np.ndarray, target: np.ndarray) -> None:
    X, y = sets.load(name, folder)
    assert X.dtype == y.dtype == np.float64
    np.testing.assert_allclose(X, inputs, rtol=1e-8)
    np.testing.assert_allclose(y, target, rtol=1e-8)


def zipped(name: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("readme.txt", "nothing")
        file.writestr(name, content)
    return archive.getvalue()


def tarball(name: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    return archive.getvalue()


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["uci/pol.npz", "pol.npz"])
def test_arrays(tmp_path, place, sets):
    data = sets.make("pol")
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / place, X=data[:, :-1].astype(np.float32), y=data[:, -1].astype(np.float32))
    X, y = sets.load("pol", tmp_path)
    assert np.array_equal(X, data[:, :-1].astype(np.float32).astype(np.float64))
    assert np.array_equal(y, data[:, -1].astype(np.float32).astype(np.float64))
    assert X.dtype == y.dtype == np.float64


@pytest.mark.parametrize(
    "place", ["uci/pol.csv", "pol.csv", "uci/pol/data.csv", "pol/data.csv", "uci_datasets/pol/data.csv"]
)
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("header", ["", "a,b,target"])
def test_tables_with_the_target_last(tmp_path, place, compressed, header, sets):
    data = sets.make("pol")
    content = as_csv(data, header)
    put(tmp_path / (place + ".gz" * compressed), gzip.compress(content) if compressed else content)
    assert_table(sets, tmp_path, "pol", data[:, :-1], data[:, -1])


def test_the_two_halves_of_song(tmp_path, sets):
    data = sets.make("song")
    put(tmp_path / "song/data.csv.gz", gzip.compress(as_csv(data[:4])))
    put(tmp_path / "song/data1.csv.gz", gzip.compress(as_csv(data[4:])))
    assert_table(sets, tmp_path, "song", data[:, :-1], data[:, -1])


SLICE_HEADER = "patientId," + ",".join(f"value{i}" for i in range(384)) + ",reference"

ORIGINALS = {  # file, its first line, and its columns -> inputs and target
    "slice": ("slice_localization_data.csv", SLICE_HEADER, lambda d: (d[:, :-1], d[:, -1])),
    "3droad": ("3D_spatial_network.txt", "", lambda d: (d[:, :-1], d[:, -1])),
    "song": ("YearPredictionMSD.txt", "", lambda d: (d[:, 1:], d[:, 0])),
    "buzz": ("Twitter.data", "", lambda d: (d[:, :-1], np.log(1 + d[:, -1]))),
}


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("packing", ["plain", "in its folder", "zip"])
def test_uci_s_own_files(tmp_path, name, packing, sets):
    file, header, arrange = ORIGINALS[name]
    data = np.abs(sets.make(name))
    content = as_csv(data, header)
    if packing == "plain":
        put(tmp_path / file, content)
    elif packing == "in its folder":
        put(tmp_path / "uci" / name / file, content)
    else:
        put(tmp_path / "uci" / "other.zip", zipped("other.txt", b"1"))
        put(tmp_path / "uci" / "some+name.zip", zipped(f"folder/{file}", content))
    assert_table(sets, tmp_path, name, *arrange(data))


@pytest.mark.parametrize("packing", ["tar.gz", "tar.gz in zip"])
def test_uci_s_archives_of_buzz(tmp_path, packing, sets):
    data = np.abs(sets.make("buzz"))
    archive = tarball("regression/Twitter/Twitter.data", as_csv(data))
    if packing == "tar.gz":
        put(tmp_path / "uci" / "regression.tar.gz", archive)
    else:
        put(tmp_path / "buzz+in+social+media.zip", zipped("regression.tar.gz", archive))
    assert_table(sets, tmp_path, "buzz", data[:, :-1], np.log(1 + data[:, -1]))


@needs_data
def test_fragments_of_the_sets_that_are_not_here(tmp_path, sets):
    """The first rows of slice and 3droad, real ones, through UCI's formats and back."""
    fragments = Path(os.environ["DEEPBASIS_DATA"]) / "fragments"
    if not fragments.is_dir():
        pytest.skip("the data folder has no fragments")
    part = np.load(fragments / "slice_first681.npz", allow_pickle=False)
    assert np.array_equal(
        np.unique(part["X"][:, 0]), [0, 1]
    )  # patients, not measurements: 385 columns have their number
    sets.shapes["slice"] = part["X"].shape
    put(tmp_path / "slice_localization_data.csv", as_csv(np.column_stack([part["X"], part["y"]]), SLICE_HEADER))
    assert_table(sets, tmp_path, "slice", part["X"], part["y"])

    part = np.load(fragments / "3droad_first5000.npz", allow_pickle=False)
    roads = np.column_stack([np.full(5000, 144552912.0), part["X"], part["y"]])
    sets.shapes["3droad"] = (5000, 3)
    put(tmp_path / "3D_spatial_network.txt", as_csv(roads))
    assert_table(sets, tmp_path, "3droad", roads[:, :3], part["y"])


@needs_data
@pytest.mark.parametrize("name", HERE)
def test_the_sets_that_are_here(name):
    X, y = uci.load(name)
    assert X.shape == uci.SHAPES[name]
    assert y.shape == X.shape[:1]


@needs_data
def test_protein_s_target_is_a_logarithm():
    """log(1 + distance) less its mean, where UCI's has 0 to 21 Angstrom: the reason to take buzz's logarithm too."""
    _, y = uci.load("protein")
    distance = np.expm1(y - y.min())
    assert distance.max() == pytest.approx(20.999, abs=1e-3)


def test_names_are_the_papers_ten():
    assert len(uci.NAMES) == 10
    with pytest.raises(InputError, match="name must be one of"):
        uci.load("poll")


# What cannot be read --------------------------------------------------------------------------------------------------


def test_a_missing_set_says_what_to_put_where(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"song\.npz .*YearPredictionMSD\.txt") as refused:
        uci.load("song", tmp_path)
    assert str(tmp_path / "uci") in str(refused.value)
    monkeypatch.setenv("DEEPBASIS_DATA", str(tmp_path))
    with pytest.raises(InputError, match="pol is not in the data folder"):
        uci.load("pol")
    with pytest.raises(InputError, match="is not a folder"):
        uci.load("pol", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("pol", "pol.csv", b"1,2\n3,x\n", "pol.csv cannot be read as a table of numbers.*'x'"),
        ("pol", "pol.csv", b"1,2\n3\n", "pol.csv cannot be read"),
        ("pol", "pol.csv.gz", b"not gzip", "pol.csv.gz cannot be read"),
        ("pol", "pol.csv.gz", gzip.compress(b"1,2\n" * 999, mtime=0)[:30], "pol.csv.gz cannot be read"),
        ("pol", "pol.csv", b"1,2\n3,4\n", "has 2 rows of 1 inputs, but pol has 15000 of 26"),
        ("pol", "pol.npz", b"nothing", "pol.npz cannot be read as arrays"),
        ("song", "song.zip", b"nothing", "song.zip is damaged"),
        ("buzz", "Twitter.data", b"1,-2\n", "Twitter.data: its last column"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, name, file, content, words):
    put(tmp_path / file, content)
    with pytest.raises(FileFormatError, match=words):
        uci.load(name, tmp_path)


def test_values_that_are_missing_are_refused_with_their_place(tmp_path, sets):
    data = sets.make("pol")
    data[3, 5] = np.nan
    put(tmp_path / "pol.csv", as_csv(data))
    with pytest.raises(FileFormatError, match="row 3, column 5 is nan"):
        sets.load("pol", tmp_path)


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "pol.npz", X=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(FileFormatError, match="pickle"):
        uci.load("pol", tmp_path)


# Scaling --------------------------------------------------------------------------------------------------------------


def table_of(n: int = 200) -> uci.RegressionTable:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4)) * [1e-3, 1.0, 1e6, 0.0] + [0.0, 5.0, -1e7, 7.3]
    return uci.RegressionTable(X, rng.gamma(2.0, size=n))


def test_the_papers_inputs_fill_minus_one_to_one_over_all_rows():
    table = table_of()
    scaled = uci.paper_scaling(table, random_split(200))
    together = torch.cat([side.x for side in scaled[:3]]).double().numpy()
    order = np.concatenate(random_split(200))
    expected = np.interp(table.X[order, 1], [table.X[:, 1].min(), table.X[:, 1].max()], [-1, 1])
    np.testing.assert_allclose(together[:, 1], expected, atol=1e-7)
    np.testing.assert_allclose(together[:, :3].min(axis=0), -1, atol=1e-7)
    np.testing.assert_allclose(together[:, :3].max(axis=0), 1, atol=1e-7)
    assert (together[:, 3] == 0).all()  # a constant


def test_safe_scaling_knows_nothing_of_the_other_rows():
    table, split = table_of(), random_split(200)
    changed = table.X.copy()
    changed[split.test[0]] = [1e3, 1e3, 1e9, 1e3]
    other = uci.RegressionTable(changed, table.y)
    assert torch.equal(uci.safe_scaling(other, split).train.x, uci.safe_scaling(table, split).train.x)
    assert not torch.equal(uci.paper_scaling(other, split).train.x, uci.paper_scaling(table, split).train.x)
    train = uci.safe_scaling(other, split).train.x
    assert torch.equal(train[:, :3].amax(0), torch.ones(3))
    assert torch.equal(train[:, :3].amin(0), -torch.ones(3))
    assert (uci.safe_scaling(other, split).test.x[:, 3] == 0).all()  # constant in training, so nothing was learnt of it


@pytest.mark.parametrize("scaling", [uci.paper_scaling, uci.safe_scaling])
def test_the_target_is_standardised_on_the_training_rows(scaling):
    table, split = table_of(), random_split(200)
    scaled = scaling(table, split)
    assert scaled.train.y.dtype == scaled.train.x.dtype == torch.float32
    assert float(scaled.train.y.mean()) == pytest.approx(0, abs=1e-6)
    assert float(scaled.train.y.square().mean()) == pytest.approx(1, abs=1e-6)
    for side, rows in zip(scaled[:3], split, strict=True):
        back = side.y.double().numpy() * scaled.target_std + scaled.target_mean
        np.testing.assert_allclose(back, table.y[rows], rtol=1e-5)


def test_a_constant_target_is_refused():
    with pytest.raises(InputError, match="nothing to learn"):
        uci.paper_scaling(
            uci.RegressionTable(np.random.default_rng(0).normal(size=(20, 1)), np.ones(20)), random_split(20)
        )


# Downloading ----------------------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is served where the package's repository would be; the cache is `tmp_path / "cache"`."""
    served = tmp_path / "served"
    served.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("DEEPBASIS_DATA", raising=False)
    sets.address, sets.cache = f"http://127.0.0.1:{server.server_port}", tmp_path / "cache"
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_kept_and_checked(tmp_path, web, sets):
    data = sets.make("pol")
    content = gzip.compress(as_csv(data))
    sets.sha256["pol/data.csv.gz"] = hashlib.sha256(content).hexdigest()
    source = put(web / "pol/data.csv.gz", content)
    np.testing.assert_allclose(sets.load("pol").y, data[:, -1])
    source.unlink()
    np.testing.assert_allclose(sets.load("pol").y, data[:, -1])  # from the cache
    kept = tmp_path / "cache/uci/pol/data.csv.gz"
    kept.write_bytes(gzip.compress(as_csv(data + 1)))
    with pytest.raises(FileFormatError, match=r"is not what it was.*delete it"):
        sets.load("pol")


def test_another_file_than_the_expected_is_not_kept(tmp_path, web, sets):
    put(web / "pol/data.csv.gz", gzip.compress(as_csv(sets.make("pol"))))
    with pytest.raises(data_download.DownloadError, match=r"another file than the one expected.*put pol\.npz"):
        sets.load("pol")
    assert list((tmp_path / "cache").rglob("*.gz")) == []


def test_without_a_known_checksum_the_first_download_counts(tmp_path, web, caplog, sets):
    data = sets.make("song")
    put(web / "song/data.csv.gz", gzip.compress(as_csv(data[:4])))
    put(web / "song/data1.csv.gz", gzip.compress(as_csv(data[4:])))
    np.testing.assert_allclose(sets.load("song").y, data[:, -1])
    assert len(caplog.messages) == 2
    kept = tmp_path / "cache/uci/song/data1.csv.gz"
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    assert digest in caplog.text
    assert kept.with_name("data1.csv.gz.sha256").read_text() == f"{digest}  data1.csv.gz\n"
    caplog.clear()
    sets.load("song")
    assert caplog.messages == []
    kept.write_bytes(gzip.compress(as_csv(data[4:] + 1)))
    with pytest.raises(FileFormatError, match="is not what it was"):
        sets.load("song")
    kept.unlink()
    put(web / "song/data1.csv.gz", gzip.compress(as_csv(data[4:] + 1)))
    with pytest.raises(data_download.DownloadError, match="another file"):  # what is on the web has changed since
        sets.load("song")
    kept.with_name("data1.csv.gz.sha256").write_text("nonsense")
    with pytest.raises(FileFormatError, match="holds no SHA-256"):
        sets.load("song")


def test_what_the_server_has_not_got(web, sets):
    with pytest.raises(data_download.DownloadError, match=r"answered 404.*put pol\.npz .*set DEEPBASIS_DATA"):
        sets.load("pol")


def test_without_a_network_it_says_at_once_what_to_do(tmp_path, sets, monkeypatch):
    monkeypatch.delenv("DEEPBASIS_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    sets.cache = tmp_path
    with pytest.raises(
        data_download.DownloadError, match=r"no connection.*put buzz\.npz .*Twitter\.data.*set DEEPBASIS_DATA"
    ):
        sets.load("buzz")


def test_without_pooch_it_says_what_to_install(monkeypatch):
    monkeypatch.delenv("DEEPBASIS_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(data_download.DownloadError, match=r"pip install 'deepbasis\[datasets\]'"):
        uci.load("pol")


def test_every_set_has_a_source():
    for name in uci.NAMES:
        files = [source.file for source in uci.UCI.sources(name)]
        assert files == [f"uci/{name}/{file}" for file in ("data.csv.gz", "data1.csv.gz")[: 1 + (name == "song")]]
        assert all(source.url.endswith(source.file.removeprefix("uci/")) for source in uci.UCI.sources(name))
        assert all(source.sha256 is None or len(source.sha256) == 64 for source in uci.UCI.sources(name))
        assert all(re.search("/uci_datasets/[0-9a-f]{40}/", source.url) for source in uci.UCI.sources(name)), "a commit"
