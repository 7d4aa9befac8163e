"""Tables with a few wrong bytes: what is read, fitted or predicted is right, or a typed error.

`DEEPBASIS_FULL_FUZZ=1` tries 10,000 of them, and the tests 500.
"""

import gzip
import io
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from deepbasis import DeepBasisRegressor
from deepbasis.errors import DeepBasisError
from deepbasis.fitting.files import predict_file
from deepbasis.registry import FORMATS
from deepbasis.tables.columns import Column
from deepbasis.tables.formats.csv import Csv
from deepbasis.tables.predictions import PredictionColumns
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table
from support.streams import small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CASES = 10_000 if os.environ.get("DEEPBASIS_FULL_FUZZ") == "1" else 500
FITTED_EVERY = 25  # reading takes a millisecond, a fit or a prediction a hundred
ROWS = 60


def original() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=ROWS).round(6),
            "count": rng.integers(0, 9, ROWS),
            "colour": rng.choice(["red", "grün", 'a "b", c'], ROWS),
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, ROWS), unit="D"),
            "new": rng.random(ROWS) < 0.5,
            "y": rng.normal(size=ROWS).round(6),
        }
    )
    table.loc[3, "size"] = np.nan
    table.loc[7, "colour"] = None
    return table


def contents() -> dict[str, bytes]:
    table, parquets = original(), []
    text = table.to_csv(index=False).encode()
    for options in ({}, {"compression": None, "row_group_size": 20}, {"use_dictionary": False, "compression": "gzip"}):
        place = io.BytesIO()
        table.to_parquet(place, index=False, **options)
        parquets.append(place.getvalue())
    zipped = {f"{k}.csv.gz": gzip.compress(text, level, mtime=0) for k, level in enumerate((0, 9))}
    return {"t.csv": text, **zipped, **{f"{k}.parquet": content for k, content in enumerate(parquets)}}


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes: a bit, some bytes, what a format has a meaning for; some left out, doubled or elsewhere."""
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(content) + 1))
        length = int(rng.integers(1, min(64, max(2, len(content)))))
        part = content[at : at + length]
        kind = rng.integers(0, 8)
        if kind == 0 and part:
            new = bytes([part[0] ^ (1 << int(rng.integers(0, 8)))]) + part[1:]
        elif kind == 1:
            new = rng.integers(0, 256, len(part), dtype=np.uint8).tobytes()
        elif kind == 2:
            new = b""
        elif kind == 3:
            new = part * 2
        elif kind == 4:
            new = content[: len(part)]
        elif kind == 5:
            new = rng.choice([b'"', b"\n", b",", b"\r", b"\0", b"\xff", b"1e999", b"nan", b"-", b"\xef\xbb\xbf"])
        elif kind == 6:
            new = b"\xff\xff\xff\x7f"[: len(part)]
        else:
            return content[:at]
        content = content[:at] + new + content[at + len(part) :]
    return content


def check(table: Table) -> None:
    """What was read can be a table: of one length, with finite numbers or gaps, texts and a target."""
    assert np.isfinite(table.y).all()
    for column in table.columns:
        assert len(column.values) == len(table.y) > 0
        if column.kind == "categorical":
            assert column.values.min() >= -1
            assert column.values.max() < len(column.categories)
            assert all(name.encode() is not None for name in column.categories)
        else:
            assert not np.isinf(column.values).any()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DeepBasisRegressor:
    table = original()
    return small(epochs=1).fit(table.drop(columns="y"), table["y"])


def hostile(name: str, content: bytes, seed: int) -> bytes:
    """Every second time inside of a gzipped file, whose checksum is then right."""
    rng = np.random.default_rng([len(name), ord(name[0]), seed])
    if name.endswith(".gz") and seed % 2:
        return gzip.compress(mutated(gzip.decompress(content), rng), 1, mtime=0)
    return mutated(content, rng)


def outcome(path: Path, **formats: Csv) -> Table | str:
    """The table, or the name of the error; an error that is not ours, or does not name the file, is raised."""
    source_formats = {**FORMATS, **{f".{ending.replace('_', '.')}": one for ending, one in formats.items()}}
    try:
        source = Source.open(path, formats=source_formats)
        table = Roles.of(source, "y").table(source)
    except DeepBasisError as error:
        if path.name not in str(error):
            raise AssertionError(f"the file is not named: {error}") from error
        return type(error).__name__
    check(table)
    return table


def same(one: Table | str, other: Table | str) -> bool:
    """To the last bit, or both refused."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    pairs = zip(one.columns, other.columns, strict=True)
    return np.array_equal(one.y, other.y) and all(a.kind == b.kind and words(a) == words(b) for a, b in pairs)


def words(column: Column) -> list[object]:
    if column.kind == "categorical":
        return [None if code < 0 else column.categories[code] for code in column.values.tolist()]
    return [repr(value) for value in column.values.tolist()]


@pytest.mark.filterwarnings("ignore")  # a table of strange numbers makes a strange model
@pytest.mark.parametrize("name", sorted(contents()))
def test_a_mutated_table_is_read_right_or_refused_with_its_name(name, model, tmp_path, record_property):
    """Right is: what is read of blocks of a few lines is what is read at once, and numbers are what Arrow says."""
    content = contents()[name]
    path = tmp_path / name
    path.write_bytes(content)
    assert isinstance(outcome(path), Table)
    refused, cases = 0, CASES // len(contents()) + 1
    for seed in range(cases):
        path.write_bytes(hostile(name, content, seed))
        try:
            found = outcome(path)
            refused += isinstance(found, str)
            blocks = {"csv": Csv(block_bytes=300), "csv_gz": Csv(gzipped=True, block_bytes=300)}
            assert same(found, outcome(path, **blocks)), "blocks of a few lines are another table"
            if not isinstance(found, str) and name.endswith(".parquet"):
                np.testing.assert_array_equal(found.y, parquet.read_table(path, columns=["y"])["y"].to_numpy())
            if seed % FITTED_EVERY == 0:
                fit_and_predict(path, model)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
    record_property("right", cases - refused)
    record_property("refused", refused)
    assert 0 < refused < cases


def fit_and_predict(path: Path, model: DeepBasisRegressor) -> None:
    out = path.parent / "out" / "predicted.parquet"
    out.parent.mkdir(exist_ok=True)
    with suppress(DeepBasisError):
        small(epochs=1).fit_dataset(path, "y", stream=False)
    with suppress(DeepBasisError):
        small(epochs=1).fit_dataset(path, "y", stream=True)
    with suppress(DeepBasisError):
        predict_file(model.fitted_, path, str(out), PredictionColumns())
        assert np.isfinite(pd.read_parquet(out).to_numpy()).all()
