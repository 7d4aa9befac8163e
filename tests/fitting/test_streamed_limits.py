"""Size, steps and memory of a streamed fit, and its checkpoints."""

import os
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from deepbasis.errors import CheckpointMismatchError, InputError
from deepbasis.fitting.budget import GIB, Machine
from deepbasis.fitting.train import Execution
from support.runs import Watch, fit_streamed, power_failure, prepared_stream
from support.streams import DROP, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many columns that the sizes of blocks and buffers depend on limits of up to 20 GiB: the tests before may have
    left a large process."""
    path = tmp_path_factory.mktemp("wide") / "wide.parquet"
    values = np.random.default_rng(0).normal(size=(300, 601))
    pd.DataFrame(values, columns=[f"x{k}" for k in range(600)] + ["price"]).to_parquet(path, index=False)
    return path


def limits() -> list[int]:
    """The sizes are made of the limit, whatever this process takes: so it may take half."""
    return [2 * Machine.now().taken + more * GIB for more in (1, 3)]


def test_a_table_that_does_not_fit_is_streamed(folder, whole):
    """A stream alone says that there is too little memory to read with."""
    with pytest.raises(InputError, match=r"memory of 1 MiB is too little: .* are taken before a row is read"):
        small().fit_dataset(folder, "price", memory="1MiB")
    X = whole.drop(columns=[*DROP, "price"])
    resident = small(epochs=1).fit_dataset(folder, "price", drop=DROP, stream=False)
    for memory in (None, "500GiB"):
        other = small(epochs=1).fit_dataset(folder, "price", drop=DROP, memory=memory)
        np.testing.assert_array_equal(other.predict(X), resident.predict(X))


def test_max_steps_bounds_the_training(folder):
    _, plan, data = prepared_stream(
        small(batch_size=10, epochs="auto", patience=99), folder, "price", drop=DROP, max_steps=130
    )
    settings = plan.candidates[0].settings
    steps: list[int] = []
    room = data.room(plan, data.validation(torch.float32))
    with data.survey.stream(data.encoder(torch.float32), plan, room.sizes, 0) as stream:
        for epoch in range(settings.epochs):
            steps += [epoch for _ in stream.open_epoch(epoch)]
    assert 100 < len(steps) <= 130
    assert steps == sorted(steps)


def test_too_little_memory_is_said_before_anything_is_read(folder):
    with pytest.raises(InputError, match=r"memory of 1 MiB is too little: .* are taken before a row is read"):
        small().fit_dataset(folder, "price", memory="1MiB", stream=True)


def test_no_more_rows_are_held_than_the_memory_allows(wide):
    """Blocks and buffer are made of the limit: a smaller one gives smaller ones, and the fit ends all the same."""
    sizes = []
    for limit in limits():
        _, plan, data = prepared_stream(small(epochs=1), wide, "price", limit=limit)
        sizes.append(data.room(plan, data.validation(torch.float64)).sizes)
        row_bytes = 8 * data.encoder(torch.float64).width
        assert (sizes[-1].buffer_rows + sizes[-1].queue * sizes[-1].block_rows) * row_bytes < limit
        small(epochs=1).fit_dataset(wide, "price", memory=limit, stream=True)
    assert sizes[0].buffer_rows < sizes[1].buffer_rows
    assert sizes[0].block_rows < sizes[1].block_rows


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(folder, tmp_path):
    model = small(epochs=4, batch_size=128)
    expected = model.fit_dataset(folder, "price", drop=DROP, stream=True)
    kept = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}
    with pytest.raises(RuntimeError, match="power"):
        fit_streamed(model, folder, "price", Execution(**kept, progress=Watch(0, 3, power_failure)), drop=DROP)
    assert not [thread for thread in threading.enumerate() if thread.name == "deepbasis-reader"]
    resumed = fit_streamed(model, folder, "price", Execution(**kept), drop=DROP)
    for ours, theirs in zip(resumed.models[0].parameters(), expected.fitted_.models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    np.testing.assert_array_equal(resumed.history[0]["validation"], expected.history_[0]["validation"])
    with pytest.raises(CheckpointMismatchError, match="its settings are"):
        fit_streamed(model, f"{folder}/part-[01].parquet", "price", Execution(**kept), drop=DROP)


@pytest.mark.parametrize(("column", "old", "new"), [("price", 1, 2), ("age", 30, 31), ("city", "Rome", "Bern")])
def test_a_run_does_not_go_on_with_another_content(tmp_path, column, old, new):
    """One cell has changed; the file's name, its size and its number of rows have not."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 60, 300), "price": rng.integers(0, 9, 300)})
    table["city"] = rng.choice(["Rome", "Bern"], 300)
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    arguments = {"stream": True, "checkpoint": tmp_path / "c"}
    small(epochs=1).fit_dataset(path, "price", **arguments)
    before = path.stat()
    table.loc[table.index[table[column] == old][-1], column] = new
    table.to_csv(path, index=False)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(CheckpointMismatchError, match="training data is stream"):
        small(epochs=1).fit_dataset(path, "price", **arguments)


def test_a_seed_decides_a_streamed_fit_and_its_checkpoint(tmp_path):
    """Numbers far from 0, whose mean depends in its last bits on how the rows are cut into blocks."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(10_000, 31)) + 1e6
    table = pa.table({f"x{k}": column for k, column in enumerate(values.T)})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=10_000)
    arguments = {"stream": True, "memory": "64GiB", "max_steps": 40}
    models = [
        small(batch_size=512).fit_dataset(
            tmp_path / "t.parquet", "x30", checkpoint=tmp_path / f"run{k % 2}", **arguments
        )
        for k in range(3)
    ]
    for model in models[1:]:
        assert model.fitted_.preprocessor == models[0].fitted_.preprocessor
        both = (one.fitted_.models[0].parameters() for one in (model, models[0]))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*both, strict=True))


def test_a_run_does_not_go_on_in_another_order(wide, tmp_path):
    """Other blocks or another buffer would deal out other batches from there on."""
    arguments = {"stream": True, "checkpoint": tmp_path / "c"}
    less, more = limits()
    small(epochs=1).fit_dataset(wide, "price", memory=less, **arguments)
    with pytest.raises(CheckpointMismatchError, match=r"training data is .* mixed among \d+"):
        small(epochs=1).fit_dataset(wide, "price", memory=more, **arguments)


def test_a_run_does_not_go_on_for_another_number_of_steps(folder, tmp_path):
    """Epochs may be as many, and of other lengths: the result of the shorter run would be given back."""
    arguments = {"drop": DROP, "stream": True, "checkpoint": tmp_path / "c"}
    model = small(epochs="auto", batch_size=5)
    model.fit_dataset(folder, "price", max_steps=50, **arguments)
    with pytest.raises(CheckpointMismatchError, match=r"its settings are average"):
        model.fit_dataset(folder, "price", max_steps=60, **arguments)


def test_a_checkpoint_needs_a_seed(folder, tmp_path):
    with pytest.raises(InputError, match="checkpoint needs a random_state"):
        small(random_state=None).fit_dataset(folder, "price", checkpoint=tmp_path / "c")
