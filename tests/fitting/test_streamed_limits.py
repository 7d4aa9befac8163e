"""Size, steps and memory of a streamed fit, and its checkpoints."""

import functools
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from deepbasis.budget import Sizes
from pyarrow import parquet

from deepbasis import DeepBasisRegressor, budget, estimator, streaming
from deepbasis.errors import CheckpointMismatchError, InputError
from support.streams import DROP, small

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.estimator.FitWarning")  # a few steps do not make a model


@pytest.mark.parametrize(("memory", "streamed"), [(None, False), ("409.5MiB", True), ("2GiB", False)])
def test_a_table_that_does_not_fit_is_streamed(folder, monkeypatch, memory, streamed):
    class Seen(Exception):
        pass

    def seen(*arguments: Any) -> None:
        raise Seen

    monkeypatch.setattr(budget, "_resident", lambda: 409 * 2**20)
    monkeypatch.setattr(DeepBasisRegressor, "_fit_streamed" if streamed else "_fit_table", seen)
    with pytest.raises(Seen):
        small().fit_dataset(folder, "price", memory=memory)


def test_max_steps_bounds_the_training(folder):
    steps: list[int] = []

    def counted(build: Any, members: Any, data: Any, validation: Any, settings: Any, **more: Any) -> Any:
        open_epoch = data.open_epoch

        def noted(epoch: int) -> Any:
            for batch in open_epoch(epoch):
                steps.append(epoch)
                yield batch

        object.__setattr__(data, "open_epoch", noted)
        return estimator_train(build, members, data, validation, settings, **more)

    estimator_train = estimator.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "train", counted)
        small(batch_size=10, epochs="auto", patience=99).fit_dataset(
            folder, "price", drop=DROP, stream=True, max_steps=130
        )
    assert 0 < len(steps) <= 130
    assert steps == sorted(steps)


def test_too_little_memory_is_said_before_anything_is_read(folder):
    with pytest.raises(InputError, match=r"memory of 1 MiB is too little: .* are taken before a row is read"):
        small().fit_dataset(folder, "price", memory="1MiB", stream=True)


def test_no_more_rows_are_held_than_the_memory_allows(folder, monkeypatch):
    """Blocks and buffer are made of the limit: a smaller one gives smaller ones, and the fit ends all the same."""
    seen: list[Sizes] = []
    stream = streaming.Survey.stream

    def noted(self: Any, encoder: Any, plan: Any, sizes: Sizes, *more: Any) -> Any:
        seen.append(sizes)
        return stream(self, encoder, plan, sizes, *more)

    monkeypatch.setattr(streaming.Survey, "stream", noted)
    monkeypatch.setattr(budget, "_resident", lambda: 409 * 2**20)
    for memory in ("500MiB", "1500MiB"):
        small(epochs=1).fit_dataset(folder, "price", drop=DROP, memory=memory, stream=True)
    assert seen[0].buffer_rows < seen[1].buffer_rows
    assert seen[0].block_rows <= seen[1].block_rows


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    arguments = {"drop": DROP, "stream": True}
    expected = small(epochs=6).fit_dataset(folder, "price", **arguments)

    class Stops:
        def __enter__(self) -> "Stops":
            return self

        def __exit__(self, *exception: object) -> None:
            return None

        def __call__(self, report: Any) -> None:
            if report.epoch == 4:
                raise RuntimeError("the power failed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "ProgressBar", Stops)
        with pytest.raises(RuntimeError, match="power"):
            small(epochs=6, verbose=True).fit_dataset(folder, "price", checkpoint=tmp_path / "c", **arguments)
    assert not [thread for thread in threading.enumerate() if thread.name == "deepbasis-reader"]
    resumed = small(epochs=6).fit_dataset(folder, "price", checkpoint=tmp_path / "c", **arguments)
    for ours, theirs in zip(resumed.models_[0].parameters(), expected.models_[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    np.testing.assert_array_equal(resumed.history_[0]["validation"], expected.history_[0]["validation"])
    with pytest.raises(CheckpointMismatchError, match="training data"):
        small(epochs=6).fit_dataset(f"{folder}/part-[01].parquet", "price", checkpoint=tmp_path / "c", **arguments)


def test_a_seed_decides_a_streamed_fit_and_its_checkpoint_whatever_the_process_holds(tmp_path, monkeypatch):
    """Numbers far from 0, whose mean depends in its last bits on how the rows are cut into blocks."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40_000, 31)) + 1e6
    table = pa.table({f"x{k}": column for k, column in enumerate(values.T)})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=40_000)
    models = []
    for k, resident in enumerate((400, 500, 450)):
        monkeypatch.setattr(budget, "_resident", lambda resident=resident: resident * 2**20)
        models.append(
            small(batch_size=512).fit_dataset(
                tmp_path / "t.parquet",
                "x30",
                stream=True,
                memory="900MiB",
                max_steps=80,
                checkpoint=tmp_path / f"run{k % 2}",
            )
        )
    for model in models[1:]:
        assert model.preprocessor_ == models[0].preprocessor_
        for ours, theirs in zip(model.models_[0].parameters(), models[0].models_[0].parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_run_does_not_go_on_in_another_order(folder, tmp_path, monkeypatch):
    """Other blocks or another buffer would deal out other batches from there on."""
    monkeypatch.setattr(budget, "_resident", lambda: 409 * 2**20)
    arguments = {"drop": DROP, "stream": True, "checkpoint": tmp_path / "c"}
    small(epochs=1).fit_dataset(folder, "price", memory="600MiB", **arguments)
    with pytest.raises(CheckpointMismatchError, match=r"training data is .* mixed among \d+"):
        small(epochs=1).fit_dataset(folder, "price", memory="550MiB", **arguments)


def test_a_run_does_not_go_on_for_another_number_of_steps(folder, tmp_path):
    """Epochs may be as many, and of other lengths: the result of the shorter run would be given back."""
    arguments = {"drop": DROP, "stream": True, "checkpoint": tmp_path / "c"}
    model = small(epochs="auto", batch_size=1)
    model.fit_dataset(folder, "price", max_steps=1_000, **arguments)
    with pytest.raises(CheckpointMismatchError, match=r"rows an epoch"):
        model.fit_dataset(folder, "price", max_steps=2_000, **arguments)


def test_a_checkpoint_needs_a_seed(folder, tmp_path):
    with pytest.raises(InputError, match="checkpoint needs a random_state"):
        small(random_state=None).fit_dataset(folder, "price", checkpoint=tmp_path / "c")
