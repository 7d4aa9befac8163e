"""Tables, a model of one of them, and one bad file of each kind."""

from pathlib import Path

import pytest

from support.command import SMALL, good, mixed_table, write_bad_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good tables, a model, and one bad file of each kind."""
    folder = tmp_path_factory.mktemp("shell")
    train, new = mixed_table(), mixed_table(30, seed=1)
    train.to_csv(folder / "train.csv", index=False)
    train.to_parquet(folder / "train.parquet", index=False)
    new.to_csv(folder / "new.csv", index=False)
    new.to_parquet(folder / "new.parquet", index=False)
    good("fit", str(folder / "train.csv"), "-t", "price", "--drop", "order", "--out", str(folder / "model"), *SMALL)
    write_bad_files(folder, train)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder
