"""Predicting a table in files: its rows' predictions, part by part; what stands is kept, what fails leaves nothing."""

import errno
import glob
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from deepbasis import DeepBasisRegressor
from deepbasis.errors import FileFormatError, InputError
from deepbasis.fitting.files import part_files, predict_file
from deepbasis.tables.predictions import PredictionColumns, open_inputs

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")

LENGTHS = (120, 40, 0, 90)


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "order": [f"o{seed}-{k}" for k in range(n)],
            "size": rng.normal(size=n),
            "colour": rng.choice(["red", "blue"], n),
            "price": rng.normal(size=n),
        }
    )


def fitted(seed: int) -> DeepBasisRegressor:
    table = frame(200, 50)
    model = DeepBasisRegressor(method="dbk-silu", members=2, rank=8, width=8, epochs=2, alpha=0.1, random_state=seed)
    return model.fit(table[["size", "colour"]], table["price"])


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    return fitted(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "new" / "sub").mkdir(parents=True)
    for k, n in enumerate(LENGTHS):
        place = tmp_path / "new" / ("sub" if k == 3 else "") / f"part-{k}.parquet"
        frame(n, k).astype({"order": "str"}).to_parquet(place, index=False, row_group_size=50)
    return tmp_path / "new"


def stamps(paths: list[Path]) -> list[int]:
    return [path.stat().st_mtime_ns for path in paths]


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp")]


def test_each_part_is_what_predict_says_of_its_file(model, folder, tmp_path):
    out = tmp_path / "out"
    paths = model.predict_dataset(folder, out, ids=["order"], coverage=0.8, quantiles=[0.1, 0.5])
    assert paths == [*(out / f"part-{k}.parquet" for k in range(3)), out / "sub" / "part-3.parquet"]
    for k, path in enumerate(paths):
        told = pd.read_parquet(path)
        assert list(told.columns) == ["order", "mean", "std", "lower_80", "upper_80", "q_0.1", "q_0.5"]
        table = frame(LENGTHS[k], k)
        assert told["order"].tolist() == table["order"].tolist()
        if len(table):
            expected = model.predict_dist(table[["size", "colour"]])
            np.testing.assert_allclose(told["mean"], expected.mean, rtol=1e-12)
            np.testing.assert_allclose(told["std"], expected.std, rtol=1e-12)
            np.testing.assert_allclose(told["upper_80"], expected.interval(0.8)[1], rtol=1e-9)
            np.testing.assert_allclose(told["q_0.1"], expected.quantile(0.1), rtol=1e-9, atol=1e-12)
    assert leftovers(tmp_path) == []


def test_a_csv_table_gives_parquet_parts(model, tmp_path):
    (tmp_path / "new").mkdir()
    frame(30, 1).to_csv(tmp_path / "new" / "a.csv", index=False)
    frame(20, 2).to_csv(tmp_path / "new" / "b.csv.gz", index=False)
    paths = model.predict_dataset(tmp_path / "new", tmp_path / "out", ids=["order"])
    assert [path.name for path in paths] == ["a.parquet", "b.parquet"]
    expected = model.predict(frame(20, 2)[["size", "colour"]])
    np.testing.assert_allclose(pd.read_parquet(paths[1])["mean"], expected, rtol=1e-9)


def test_a_category_of_a_csv_is_its_text_and_an_id_too(tmp_path):
    """Digits alone in a file make no numbers of a column that the model knows as text; ids are copied as they stand."""
    zips = ["01234", "02345", "98101", "K1A"]
    train = frame(200, 50).assign(zip=np.resize(zips, 200)).astype({"size": float})
    train["price"] = train["zip"].map(dict(zip(zips, (-3.0, 1.0, 2.0, 4.0), strict=True)))
    model = DeepBasisRegressor(method="dbk-silu", members=1, rank=8, width=8, epochs=4, alpha=0.1, random_state=0)
    model.fit(train[["size", "zip"]], train["price"])
    new = frame(8, 1).assign(zip=np.resize(zips, 8), key=["007", "NA", "1", "", "1.10", "true", "8", "9"])
    (tmp_path / "new").mkdir()
    new[:3].to_csv(tmp_path / "new" / "a.csv", index=False)  # no K1A
    new[3:4].to_csv(tmp_path / "new" / "b.csv.gz", index=False)
    new[4:].to_csv(tmp_path / "new" / "c.csv", index=False)
    paths = model.predict_dataset(tmp_path / "new", tmp_path / "out", ids=["key", "zip", "size"])
    told = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    np.testing.assert_allclose(told["mean"], model.predict(new[["size", "zip"]]), rtol=1e-9)
    assert told["key"].fillna("").tolist() == new["key"].tolist()
    assert told["zip"].tolist() == new["zip"].tolist()
    assert told["size"].tolist() == [repr(float(size)) for size in new["size"]]
    ids = ["key", "zip", "size"]
    predict_file(model.fitted_, tmp_path / "new" / "a.csv", str(tmp_path / "one.parquet"), PredictionColumns(), ids=ids)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "one.parquet"), told[:3])


@pytest.mark.parametrize("cells", [[1, 2, 3, None], [1.5, 2.0, None], [True, False]])
def test_categories_that_were_numbers_are_found_by_their_value(tmp_path, cells):
    """Beside a gap pandas writes 1 as 1.0."""
    train = frame(60, 5).assign(shop=pd.Categorical(np.resize(np.array(cells, dtype=object), 60)))
    model = DeepBasisRegressor(method="dbk-silu", epochs=2, members=1, rank=4, width=4, random_state=0)
    model.fit(train[["size", "shop"]], train["price"])
    written = train["shop"].astype(object)
    written = written.astype(str).str.lower() if True in cells else written.astype(float)
    train.assign(shop=written).to_csv(tmp_path / "t.csv", index=False)
    predict_file(model.fitted_, tmp_path / "t.csv", str(tmp_path / "out.parquet"), PredictionColumns())
    expected = model.predict(train[["size", "shop"]])
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "out.parquet")["mean"], expected, rtol=1e-9)


def test_columns_by_place_are_text_where_they_were(tmp_path):
    train = frame(60, 5).assign(zip=np.resize(["01", "02", "K1"], 60))
    model = DeepBasisRegressor(method="dbk-silu", epochs=2, members=1, rank=4, width=4, random_state=0)
    model.fit(train[["size", "zip"]].set_axis([0, 1], axis=1), train["price"])
    new = train[["order", "size", "zip"]][train["zip"] != "K1"]
    new.to_csv(tmp_path / "t.csv", index=False)
    predict_file(model.fitted_, tmp_path / "t.csv", str(tmp_path / "out.parquet"), PredictionColumns(), ids=["order"])
    expected = model.predict(new[["size", "zip"]].set_axis([0, 1], axis=1))
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "out.parquet")["mean"], expected, rtol=1e-9)


def test_rows_are_predicted_a_block_at_a_time(model, folder, tmp_path):
    columns, seen = PredictionColumns(), []
    source = open_inputs(folder, model.fitted_.preprocessor, [])
    parts = replace(part_files(model.fitted_, source, columns, progress=seen.append), block_rows=16)
    parts.write(0, tmp_path / "out.parquet")
    assert (max(seen), sum(seen)) == (16, 120)
    told = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_allclose(told["mean"], model.predict(frame(120, 0)[["size", "colour"]]), rtol=1e-9)


def test_parts_that_stand_are_kept_and_others_made_again(model, folder, tmp_path):
    out = tmp_path / "out"
    paths = model.predict_dataset(folder, out)
    before = stamps(paths)
    model.predict_dataset(folder, out)
    assert stamps(paths) == before
    paths[1].unlink()
    model.predict_dataset(folder, out)
    assert [a == b for a, b in zip(stamps(paths), before, strict=True)] == [True, False, True, True]
    before = stamps(paths)
    frame(120, 9).to_parquet(folder / "part-0.parquet", index=False)  # another input
    model.predict_dataset(folder, out)
    assert [a == b for a, b in zip(stamps(paths), before, strict=True)] == [False, True, True, True]
    paths[3].write_bytes(b"something else")
    before = stamps(paths)
    model.predict_dataset(folder, out)
    assert [a == b for a, b in zip(stamps(paths), before, strict=True)] == [True, True, True, False]
    for changes in ({"coverage": 0.5}, {"ids": ["order"]}, {"quantiles": [0.5]}):
        before = stamps(paths)
        model.predict_dataset(folder, out, **changes)
        assert not any(a == b for a, b in zip(stamps(paths), before, strict=True))
    before = stamps(paths)
    fitted(1).predict_dataset(folder, out, quantiles=[0.5])  # another model
    assert not any(a == b for a, b in zip(stamps(paths), before, strict=True))


def test_a_model_from_a_file_goes_on_with_the_parts_of_the_one_that_was_saved(model, folder, tmp_path):
    paths = model.predict_dataset(folder, tmp_path / "out")
    before = stamps(paths)
    model.save(tmp_path / "m")
    DeepBasisRegressor.load(tmp_path / "m").predict_dataset(folder, tmp_path / "out")
    assert stamps(paths) == before


def test_workers_share_the_files(model, folder, tmp_path):
    alone = model.predict_dataset(folder, tmp_path / "alone")
    teams = [SimpleNamespace(rank=rank, size=3, first=rank == 0) for rank in range(3)]
    made = [model.predict_dataset(folder, tmp_path / "out", team=team) for team in teams]
    assert [len(paths) for paths in made] == [2, 1, 1]
    for path in alone:
        other = tmp_path / "out" / path.relative_to(tmp_path / "alone")
        pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(other))


def test_a_model_of_an_array_takes_columns_by_place(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = DeepBasisRegressor(method="dbk-silu", epochs=2, members=1, rank=4, width=4, random_state=0).fit(X, X[:, 0])
    pd.DataFrame(X, columns=["a", "b"]).assign(k=range(60)).to_parquet(tmp_path / "t.parquet", index=False)
    predict_file(model.fitted_, tmp_path / "t.parquet", str(tmp_path / "out.parquet"), PredictionColumns(), ids=["k"])
    told = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_allclose(told["mean"], model.predict(X), rtol=1e-9)
    with pytest.raises(InputError, match=r"t.parquet' has 3 columns beside .*array of 2 without names"):
        predict_file(model.fitted_, tmp_path / "t.parquet", str(tmp_path / "other.parquet"), PredictionColumns())


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["sync", "write"])
def test_a_full_disk_keeps_the_parts_that_are_whole(model, folder, tmp_path, monkeypatch, where):
    out = tmp_path / "out"
    calls = []

    def full(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > writings:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments, **more)

    writings = 3 if where == "sync" else 1  # the list of parts is written first
    place, name = (os, "fsync") if where == "sync" else (parquet.ParquetWriter, "write_table")
    original = getattr(place, name)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, full)
        with pytest.raises(InputError, match=r"^cannot write '.*part-.\.parquet': no space left on device; make room"):
            model.predict_dataset(folder, out, memory="100GiB")
    whole = sorted(path.name for path in out.rglob("*.parquet"))
    assert leftovers(tmp_path) == []
    if where == "sync":
        assert whole == ["part-0.parquet"]
        before = stamps([out / "part-0.parquet"])
        model.predict_dataset(folder, out)  # room was made
        assert stamps([out / "part-0.parquet"]) == before
    else:
        assert whole == []  # the first file has more row groups than the disk had room for
        model.predict_dataset(folder, out)
    assert len(list(out.rglob("*.parquet"))) == 4


def test_a_truncated_file_is_named_before_anything_is_written(model, folder, tmp_path):
    path = folder / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match=r"part-1.parquet' is truncated"):
        model.predict_dataset(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pages_that_cannot_be_read_leave_no_half_of_a_part(model, folder, tmp_path):
    frame(20_000, 1).to_parquet(folder / "part-1.parquet", index=False)
    content = bytearray((folder / "part-1.parquet").read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    (folder / "part-1.parquet").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"part-1.parquet' is damaged"):
        model.predict_dataset(folder, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["_parts.json", "part-0.parquet"]


def test_a_bad_cell_is_named_with_its_file_and_row(model, folder, tmp_path):
    table = frame(40, 1)
    table.loc[33, "size"] = np.inf
    table.to_parquet(folder / "part-1.parquet", index=False, row_group_size=10)
    with pytest.raises(InputError, match=r"^'.*part-1.parquet': column 'size' has 1 infinite.* row 33 \("):
        model.predict_dataset(folder, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_a_file_without_a_column_is_named(model, folder, tmp_path):
    frame(5, 1).drop(columns="size").to_parquet(folder / "part-1.parquet", index=False)
    with pytest.raises(InputError, match=r"part-1.parquet' has no column 'size'"):
        model.predict_dataset(folder, tmp_path / "out")


def test_nothing_that_is_read_is_overwritten(model, folder, tmp_path):
    with pytest.raises(InputError, match=r"cannot write '.*part-0.parquet': it is also read"):
        model.predict_dataset(folder, folder)
    assert len(pd.read_parquet(folder / "part-0.parquet")) == 120


def test_two_tables_do_not_share_a_part(model, tmp_path):
    (tmp_path / "new").mkdir()
    frame(5).to_csv(tmp_path / "new" / "a.csv", index=False)
    frame(5).to_csv(tmp_path / "new" / "a.csv.gz", index=False)
    with pytest.raises(InputError, match=r"two tables would both be predicted to '.*a.parquet'"):
        model.predict_dataset(tmp_path / "new", tmp_path / "out")


def test_the_record_of_a_part_is_read_from_its_footer(model, folder, tmp_path):
    path = model.predict_dataset(folder, tmp_path / "out")[0]
    record = parquet.read_schema(path).metadata[b"deepbasis"]
    assert b'"columns": ["mean", "std", "lower_95", "upper_95"]' in record
    assert isinstance(parquet.read_schema(path).field("mean").type, type(pa.float64()))


# ---- other people's folders ------------------------------------------------------------------------------------------


def test_a_pattern_does_not_lead_out_of_the_output_folder(model, folder, tmp_path):
    (tmp_path / "secret").mkdir()
    frame(5).to_parquet(tmp_path / "secret" / "a.parquet", index=False)
    out = tmp_path / "deep" / "out"
    for pattern in ("new/*/../../secret/*.parquet", "new/s*/../../secret/a.parquet"):
        with pytest.raises(InputError, match=r"lies outside the folder that the pattern begins with.*without '\.\.'"):
            model.predict_dataset(tmp_path / pattern, out)
    assert not (tmp_path / "deep").exists()
    (path,) = model.predict_dataset(tmp_path / "new" / ".." / "secret" / "*.parquet", out)  # harmless
    assert path == out / "a.parquet"


@pytest.mark.parametrize("data", ["new", "new/", "new/**/*.parquet", "csv/*"])
def test_predictions_do_not_become_rows_of_their_own_table(model, folder, tmp_path, data):
    (tmp_path / "csv").mkdir()
    frame(5).to_csv(tmp_path / "csv" / "a.csv", index=False)
    out = tmp_path / ("csv" if data == "csv/*" else "new/out")
    with pytest.raises(InputError, match=r"cannot write to '.*': predictions in it would be read as rows of '.*' the"):
        model.predict_dataset(f"{tmp_path}/{data}", out)
    assert not list(out.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("data", "out"),
    [
        ("link/*", "in"),
        ("in/*.[cp]*", "link"),
        ("in/../in/*", "in"),
        ("link/../in/*", "in"),
        ("link/**/*", "in/out"),
        ("i*/**/*", "in/out"),
    ],
)
def test_the_same_by_other_names_of_the_folders(model, tmp_path, data, out):
    for place in ("in", "in/sub"):
        (tmp_path / place).mkdir()
        frame(5).to_csv(tmp_path / place / "a.csv", index=False)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(InputError, match="would be read as rows of"):
        model.predict_dataset(f"{glob.escape(str(tmp_path))}/{data}", tmp_path / out)
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_same_of_a_data_set_and_of_a_list(model, folder, tmp_path):
    for data in (dataset.dataset(folder), [folder], [str(folder / "**" / "*.parquet")]):
        for out in (folder / "out", folder / "sub"):
            with pytest.raises(InputError, match="would be read as rows of"):
                model.predict_dataset(data, out)
        assert len(model.predict_dataset(data, tmp_path / "out")) == 4
    assert (
        len(model.predict_dataset([folder / "part-0.parquet"], folder / "out")) == 1
    )  # the list is the same next time


def test_a_folder_that_a_pattern_does_not_look_into_may_hold_the_output(model, folder, tmp_path):
    assert len(model.predict_dataset(f"{folder}/*.parquet", folder / "out")) == 3
    assert len(model.predict_dataset(f"{folder}/*.parquet", folder / "out")) == 3


def test_an_input_that_changes_and_keeps_its_size_and_time_is_predicted_again(model, tmp_path):
    (tmp_path / "new").mkdir()
    path = tmp_path / "new" / "a.csv"
    path.write_text("size,colour\n1.5,red\n2.5,blue\n")
    status = path.stat()
    (part,) = model.predict_dataset(tmp_path / "new", tmp_path / "out")
    before = pd.read_parquet(part)["mean"].tolist()
    path.write_text("size,colour\n9.5,red\n2.5,blue\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    model.predict_dataset(tmp_path / "new", tmp_path / "out")
    after = pd.read_parquet(part)["mean"].tolist()
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_an_input_that_is_removed_takes_its_part_along(model, folder, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "second").mkdir()
    frame(7).to_parquet(tmp_path / "second" / "other.parquet", index=False)
    model.predict_dataset(folder, out)
    model.predict_dataset(tmp_path / "second", out)
    frame(3).to_parquet(out / "mine.parquet", index=False)
    (folder / "sub" / "part-3.parquet").unlink()
    (folder / "part-1.parquet").unlink()
    model.predict_dataset(folder, out)
    left = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.parquet"))
    assert left == ["mine.parquet", "other.parquet", "part-0.parquet", "part-2.parquet"]


@pytest.mark.parametrize(
    "manifest", ["not json", "[1]", '{"TABLE": 1}', '{"TABLE": ["../kept.parquet", "mine.parquet"]}']
)
def test_a_strange_list_of_parts_removes_nothing_that_is_not_one(model, folder, tmp_path, manifest):
    out = tmp_path / "out"
    (kept,) = model.predict_dataset(folder / "part-0.parquet", tmp_path / "apart")
    kept.rename(tmp_path / "kept.parquet")
    out.mkdir()
    frame(3).to_parquet(out / "mine.parquet", index=False)
    (out / "_parts.json").write_text(manifest.replace("TABLE", str(folder.resolve())))
    assert len(model.predict_dataset(folder, out)) == 4
    assert (tmp_path / "kept.parquet").exists()
    assert (out / "mine.parquet").exists()
