"""Saved models: what is loaded predicts the same, to the last bit."""

import json
import os
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepbasis import DeepBasisRegressor, storage
from deepbasis.errors import FileFormatError
from deepbasis.fitting.fitted import KIND
from deepbasis.gp.calibration import Calibration
from support.choosing import TAKING
from support.model_files import Metadata, assert_same, forged, mixed, numbers, small
from support.own import METHODS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("method", "dtype"),
    [*((method, "float32") for method in METHODS), *((method, "float64") for method in ("dbk-silu", "sv-rbf", "dnn"))],
)
def test_every_method_is_loaded_as_it_was_saved(path: Path, method: str, dtype: str) -> None:
    X, y = numbers()
    model = small(method=method, dtype=dtype).fit(X, y)
    model.save(path)
    assert_same(model, DeepBasisRegressor.load(path), X)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "mml"},
        {"members": 1},
        {"alpha": "auto"},
        {"blocks": 3},
        {"calibrate": False},
        {"method": "sv-rbf", "objective": "mml"},
        {"method": "sv-rbf-linear", "objective": "mml"},
        {"embedding": "fourier"},
        {"embedding": "periodic", "dtype": "float32"},
        {"trend": "linear"},
        {"trend": "linear", "members": 1, "dtype": "float32"},
        {"trend": "linear", "method": "sv-rbf", "objective": "mml"},
    ],
    ids=str,
)
def test_other_settings_are_loaded_as_they_were_saved(path: Path, changes: Metadata) -> None:
    X, y = numbers()
    model = small(**changes).fit(X, y)
    model.save(path)
    assert_same(model, DeepBasisRegressor.load(path), X)


@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf", "sv-rbf-linear"])
def test_what_auto_has_chosen_is_loaded(path: Path, chosen: str) -> None:
    """The file says both what was asked for and what it came to, and predicts as the latter."""
    X, y = numbers()
    model = small(**{"method": "auto", "blocks": 2, **TAKING[chosen]}).fit(X, y)
    assert model.method_ == chosen
    model.save(path)
    loaded = DeepBasisRegressor.load(path)
    members = 2 if chosen == "dbk-silu" else 1
    assert (loaded.method, loaded.method_, len(loaded.fitted_.models)) == ("auto", chosen, members)
    assert_same(model, loaded, X)
    loaded.save(path.with_name("again"))
    assert path.with_name("again").read_bytes() == path.read_bytes()
    _, metadata = storage.load(path, KIND)
    assert (metadata["architecture"]["method"], metadata["spec"]["method"]) == (chosen, "auto")


def test_what_comes_before_the_network_is_loaded(path: Path) -> None:
    """More than 2,000 rows of three number columns."""
    X, y = numbers(2_300)
    model = small(batch_size=128, embedding="auto").fit(X, y)
    assert (model.embedding, model.embedding_) == ("auto", "fourier")
    model.save(path)
    assert_same(model, DeepBasisRegressor.load(path), X[:50])
    tensors, metadata = storage.load(path, KIND)
    assert metadata["architecture"]["embedding"] == "fourier"
    for embedding, says in (("none", "parameters are not those"), ("waves", "waves")):
        storage.save(path, KIND, tensors, forged(metadata, embedding=embedding))
        with pytest.raises(FileFormatError, match=says):
            DeepBasisRegressor.load(path)


def test_a_line_of_half_of_the_members_is_loaded(path: Path) -> None:
    X, _ = numbers(2_600)
    y = X @ [1.0, 2.0, 3.0]
    model = small(batch_size=128).fit(X, y)
    assert (model.trend, model.trend_) == ("auto", "half")
    model.save(path)
    assert_same(model, DeepBasisRegressor.load(path), X[:50])
    tensors, metadata = storage.load(path, KIND)
    assert metadata["architecture"]["trend"] == "half"
    storage.save(path, KIND, tensors, forged(metadata, trend="none"))
    with pytest.raises(FileFormatError, match="parameters are not those"):
        DeepBasisRegressor.load(path)
    for slope in (torch.zeros(4), torch.full((3,), torch.nan)):
        storage.save(path, KIND, {**tensors, "member/1/slope": slope.to(tensors["member/1/slope"])}, metadata)
        with pytest.raises(FileFormatError, match="parameters"):
            DeepBasisRegressor.load(path)


def test_the_jitter_of_a_kernel_is_loaded(path: Path) -> None:
    """Another would be another basis."""
    X, y = numbers()
    model = small(method="sv-rbf", objective="mml").fit(X, y)
    model.save(path)
    tensors, metadata = storage.load(path, KIND)
    loaded = DeepBasisRegressor.load(path)
    assert model.jitter_ == loaded.jitter_ == loaded.fitted_.models[0].expansion.jitter == 1e-6
    storage.save(path, KIND, tensors, forged(metadata, jitter=1e-4))
    other = DeepBasisRegressor.load(path)
    assert other.jitter_ == other.fitted_.models[0].expansion.jitter == 1e-4
    assert other.fitted_.fingerprint != model.fitted_.fingerprint
    assert not np.allclose(other.predict(X), model.predict(X), rtol=0.0, atol=1e-7)
    storage.save(path, KIND, tensors, forged(metadata, jitter=-1.0))
    with pytest.raises(FileFormatError, match="jitter"):
        DeepBasisRegressor.load(path)


@pytest.mark.filterwarnings("ignore::deepbasis.FitWarning")  # two epochs do not make a model
def test_the_width_inside_a_block_is_loaded(path: Path) -> None:
    for asked, inner in (("auto", 4), (16, 16)):
        X, y = numbers(60)
        model = small(inner=asked, epochs=2).fit(X, y)
        assert model.inner_ == inner
        model.save(path)
        assert DeepBasisRegressor.load(path).inner_ == inner
        assert_same(model, DeepBasisRegressor.load(path), X[:50])
    tensors, metadata = storage.load(path, KIND)
    for wrong, says in ((8, "parameters are not those"), (0, "inner")):
        storage.save(path, KIND, tensors, forged(metadata, inner=wrong))
        with pytest.raises(FileFormatError, match=says):
            DeepBasisRegressor.load(path)


def test_what_was_chosen_is_one_of_what_was_planned(path: Path, saved: Path) -> None:
    tensors, metadata = storage.load(saved, KIND)
    for changes, says in (
        ({"architecture": {**metadata["architecture"], "method": "dbk-rbf"}}, "not the one that was planned"),
        ({"chosen": 1}, "1 candidates, and says that 1 was chosen"),
        ({"chosen": -1}, "-1 was chosen"),
        ({"chosen": True}, "True was chosen"),
    ):
        storage.save(path, KIND, tensors, {**metadata, **changes})
        with pytest.raises(FileFormatError, match=says):
            DeepBasisRegressor.load(path)


def test_a_network_that_was_asked_for_on_a_small_table_is_loaded(path: Path) -> None:
    X, y = numbers()
    model = small(method="auto", embedding="fourier").fit(X, y)
    model.save(path)
    assert (model.method_, model.embedding_) == ("dbk-silu", "fourier")
    assert_same(model, DeepBasisRegressor.load(path), X)


def test_a_calibration_is_a_part_of_the_model(path: Path, saved: Path) -> None:
    """It is saved to the last bit, changes nothing but the spread, and tells models apart."""
    table, _ = mixed()
    tensors, metadata = storage.load(saved, KIND)
    calibration = Calibration((0.1 + 0.2, 7.0), (0.9, 0.1))
    storage.save(path, KIND, tensors, {**metadata, "calibration": asdict(calibration)})
    storage.save(path.with_name("none"), KIND, tensors, {**metadata, "calibration": None})
    one, other, none = (DeepBasisRegressor.load(name) for name in (saved, path, path.with_name("none")))
    assert other.calibration_ == other.fitted_.ensemble.calibration == calibration
    assert none.calibration_ is none.fitted_.ensemble.calibration is None
    for model in (one, other):
        np.testing.assert_allclose(model.predict(table), none.predict(table), rtol=1e-12, atol=1e-12)
        expected = model.calibration_.apply(none.predict_dist(table, as_tensor=True))
        found = model.predict_dist(table, as_tensor=True)
        np.testing.assert_allclose(found.variances, expected.variances, rtol=1e-12)
    assert len({model.fitted_.fingerprint for model in (one, other, none)}) == 3
    again = path.with_name("again")
    other.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_a_mixed_table_is_read_the_same(path: Path) -> None:
    table, y = mixed()
    model = small().fit(table, y)
    model.save(path)
    loaded = DeepBasisRegressor.load(path)
    new = table.copy()
    new.loc[::3, "color"] = "unseen"
    new.loc[::4, ["size", "when"]] = None
    assert_same(model, loaded, table)
    assert_same(model, loaded, new)
    np.testing.assert_array_equal(loaded.feature_names_in_, model.feature_names_in_)
    with pytest.raises(ValueError, match="order"):
        loaded.predict(table[table.columns[::-1]])


def test_a_loaded_model_saves_to_the_same_bytes(path: Path, saved: Path) -> None:
    DeepBasisRegressor.load(saved).save(path)
    assert path.read_bytes() == saved.read_bytes()


def test_a_loaded_model_can_be_fitted_again(saved: Path) -> None:
    table, y = mixed()
    np.testing.assert_array_equal(
        DeepBasisRegressor.load(saved).fit(table, y).predict(table), DeepBasisRegressor.load(saved).predict(table)
    )


@pytest.mark.parametrize("random_state", [None, 5, np.int64(5)], ids=repr)
def test_every_random_state_can_be_saved(path: Path, random_state: Any) -> None:
    X, y = numbers()
    model = small(random_state=random_state).fit(X, y)
    model.save(path)
    loaded = DeepBasisRegressor.load(path)
    assert loaded.random_state == random_state
    np.testing.assert_array_equal(model.predict(X), loaded.predict(X))


def test_a_generator_is_not_saved(path: Path) -> None:
    X, y = numbers()
    small(random_state=np.random.RandomState(5)).fit(X, y).save(path)
    assert DeepBasisRegressor.load(path).random_state is None


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": np.float64(0.1)},
        {"rank": np.int64(4)},
        {"members": np.int32(2)},
        {"beta": np.float32(0.25)},
        {"calibrate": np.bool_(True)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_numbers_of_numpy_can_be_saved(path: Path, changes: Metadata) -> None:
    """GridSearchCV over np.logspace sets such values."""
    X, y = numbers()
    model = small(**changes).fit(X, y)
    model.save(path)
    assert_same(model, DeepBasisRegressor.load(path), X)


def test_a_model_trained_on_a_gpu_loads_without_one(path: Path, saved: Path) -> None:
    tensors, metadata = storage.load(saved, KIND)
    metadata["spec"]["device"] = "cuda"
    storage.save(path, KIND, tensors, metadata)
    table, _ = mixed()
    loaded = DeepBasisRegressor.load(path, device="cpu")
    np.testing.assert_array_equal(loaded.predict(table), DeepBasisRegressor.load(saved).predict(table))


def test_a_subclass_loads_as_itself(saved: Path) -> None:
    class Mine(DeepBasisRegressor):
        pass

    assert type(Mine.load(saved)) is Mine


def test_a_save_that_fails_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = numbers()
    first, second = small().fit(X, y), small(random_state=1).fit(X, y)
    first.save(path)
    before = path.read_bytes()

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space left"):
                second.save(path)
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    second.save(path)
    assert_same(second, DeepBasisRegressor.load(path), X)


def test_no_pickle_is_written_or_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, y = mixed()
    model = small().fit(table, y)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("pickle was used")

    for module, name in ((pickle, "dumps"), (pickle, "dump"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    model.save(path)
    loaded = DeepBasisRegressor.load(path)
    np.testing.assert_array_equal(model.predict(table), loaded.predict(table))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert set(header.pop("__metadata__")) == {"deepbasis"}
    ends = [entry["data_offsets"][1] for entry in header.values()]
    assert 8 + length + max(ends) == len(data)  # nothing but JSON and the tensors that it names
    assert {entry["dtype"] for entry in header.values()} <= {"F64", "F32", "I64"}
