"""Saved models: what is loaded predicts the same, to the last bit; everything else is a `FileFormatError`.

The files in `fixtures/` were saved by release 0.1; every later release must load the model and predict the same. They
were made, once, by

    OMP_NUM_THREADS=1 python tests/test_model_files.py

and are not to be made again: a later format gets files of its own beside them.
"""

import copy
import json
import math
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from deepbasis import DeepBasisRegressor, choosing, storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.errors import FileFormatError
from deepbasis.estimator import KIND
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.methods import METHODS, build
from deepbasis.persistence import fingerprint

Floats = NDArray[np.float64]
Metadata = dict[str, Any]

FIXTURES = Path(__file__).parent / "fixtures"
MUTATIONS = 10_000 if os.environ.get("DEEPBASIS_FULL_FUZZ") == "1" else 1_000


def small(**changes: Any) -> DeepBasisRegressor:
    settings = {
        "method": "dbk-silu",
        "members": 2,
        "validation_fraction": 0.1,
        "epochs": 5,
        "rank": 4,
        "width": 4,
        "blocks": 1,
        "alpha": 0.1,
        "beta": 0.1,
        "random_state": 0,
        "device": "cpu",
    }
    return DeepBasisRegressor(**{**settings, **changes})


def numbers(rows: int = 60) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows)


def mixed(rows: int = 60) -> tuple[pd.DataFrame, Floats]:
    rng = np.random.default_rng(1)
    size = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows))
    color = np.where(rng.random(rows) < 0.1, "", rng.choice(["rød", "blue", "green"], rows))
    day = rng.integers(0, 700, rows)
    sold = rng.random(rows) < 0.5
    return as_table(size, color, day, sold), np.nan_to_num(size) + (color == "rød") + 0.1 * rng.normal(size=rows)


def as_table(size: Floats, color: NDArray[np.str_], day: NDArray[np.int64], sold: NDArray[np.bool_]) -> pd.DataFrame:
    """From the arrays of the fixture: "" is a colour that is missing, a day counts from 2023-01-01."""
    when = np.datetime64("2023-01-01") + day.astype("timedelta64[D]")
    text = pd.Series([str(name) or None for name in color], dtype=object)
    return pd.DataFrame({"size": size, "color": text, "when": when.astype("datetime64[s]"), "sold": sold})


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a mixed table."""
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    small().fit(*mixed()).save(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def assert_same(model: DeepBasisRegressor, other: DeepBasisRegressor, X: Any) -> None:
    """To the last bit."""
    np.testing.assert_array_equal(model.predict(X, return_std=True), other.predict(X, return_std=True))
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.1, 0.9]), other.predict_quantiles(X, [0.1, 0.9]))
    np.testing.assert_array_equal(model.sample_y(X, 3, random_state=0), other.sample_y(X, 3, random_state=0))
    np.testing.assert_array_equal(
        model.sample_functions(3, random_state=0)(X), other.sample_functions(3, random_state=0)(X)
    )
    np.testing.assert_array_equal(model.noise_, other.noise_)
    assert model.get_params() == other.get_params()
    assert (model.method_, model.embedding_, model.trend_) == (other.method_, other.embedding_, other.trend_)
    assert model.jitter_ == other.jitter_
    assert (model.alpha_, model.beta_, model.validation_) == (other.alpha_, other.beta_, other.validation_)
    assert model.calibration_ == other.calibration_
    assert fingerprint(model) == fingerprint(other)
    assert model.n_features_in_ == other.n_features_in_
    assert len(model.history_) == len(other.history_)
    for history, again in zip(model.history_, other.history_, strict=True):
        assert history.keys() == again.keys()
        for name in history:
            np.testing.assert_array_equal(history[name], again[name])


# --- what is loaded is what was saved


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
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


@pytest.mark.usefixtures("few_exact_steps")
@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf", "sv-rbf-linear"])
def test_what_auto_has_chosen_is_loaded(path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    """The file says both what was asked for and what it came to, and predicts as the latter."""
    monkeypatch.setattr(choosing, "bic", lambda kernel, data: float(kernel.method_ != chosen))
    monkeypatch.setattr(choosing, "is_as_good", lambda *of: chosen != "dbk-silu")
    X, y = numbers()
    model = small(method="auto", blocks=2).fit(X, y)
    model.save(path)
    loaded = DeepBasisRegressor.load(path)
    assert (loaded.method, loaded.method_, len(loaded.models_)) == ("auto", chosen, 2 if chosen == "dbk-silu" else 1)
    assert_same(model, loaded, X)
    loaded.save(path.with_name("again"))
    assert path.with_name("again").read_bytes() == path.read_bytes()
    _, metadata = storage.load(path, KIND)
    assert (metadata["method"], metadata["parameters"]["method"]) == (chosen, "auto")


def test_what_comes_before_the_network_is_loaded(path: Path) -> None:
    """More than 2,000 rows of three number columns."""
    X, y = numbers(2_300)
    model = small(batch_size=128).fit(X, y)
    assert (model.embedding, model.embedding_) == ("auto", "fourier")
    model.save(path)
    assert_same(model, DeepBasisRegressor.load(path), X[:50])
    tensors, metadata = storage.load(path, KIND)
    assert metadata["embedding"] == "fourier"
    for changes, says in (
        ({"embedding": "none"}, "parameters are not those"),
        ({"embedding": "waves"}, "embedding"),
        ({"parameters": {**metadata["parameters"], "embedding": "none"}}, "its embedding is 'none'"),
    ):
        storage.save(path, KIND, tensors, {**metadata, **changes})
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
    assert metadata["trend"] == "half"
    for changes, says in (
        ({"trend": "none"}, "parameters are not those"),
        ({"trend": "bent"}, "trend"),
        ({"parameters": {**metadata["parameters"], "trend": "none"}}, "its trend is 'none'"),
    ):
        storage.save(path, KIND, tensors, {**metadata, **changes})
        with pytest.raises(FileFormatError, match=says):
            DeepBasisRegressor.load(path)
    for slope in (torch.zeros(4), torch.full((3,), torch.nan)):
        storage.save(path, KIND, {**tensors, "member/1/slope": slope.to(tensors["member/1/slope"])}, metadata)
        with pytest.raises(FileFormatError, match="parameters"):
            DeepBasisRegressor.load(path)


def test_a_file_from_before_there_were_lines_has_none(path: Path) -> None:
    """Though its table, by today's rule, would have one."""
    X, _ = numbers(2_600)
    small(trend="none", batch_size=128).fit(X, X @ [1.0, 2.0, 3.0]).save(path)
    tensors, metadata = storage.load(path, KIND)
    del metadata["trend"], metadata["parameters"]["trend"]
    storage.save(path.with_name("old"), KIND, tensors, metadata)
    assert_same(DeepBasisRegressor.load(path.with_name("old")), DeepBasisRegressor.load(path), X[:50])


def test_the_jitter_of_a_kernel_is_loaded(path: Path) -> None:
    """Before it was told it was 1e-4 for all, and another would be another basis."""
    X, y = numbers()
    model = small(method="sv-rbf", objective="mml").fit(X, y)
    model.save(path)
    tensors, metadata = storage.load(path, KIND)
    loaded = DeepBasisRegressor.load(path)
    assert model.jitter_ == loaded.jitter_ == loaded.models_[0].expansion.jitter == metadata.pop("jitter") == 1e-6
    storage.save(path, KIND, tensors, metadata)
    old = DeepBasisRegressor.load(path)
    assert old.jitter_ == old.models_[0].expansion.jitter == 1e-4
    assert fingerprint(old) != fingerprint(model)
    assert not np.allclose(old.predict(X), model.predict(X), rtol=0.0, atol=1e-7)
    storage.save(path, KIND, tensors, {**metadata, "jitter": -1.0})
    with pytest.raises(FileFormatError, match="jitter"):
        DeepBasisRegressor.load(path)


def test_the_width_inside_a_block_is_loaded(path: Path) -> None:
    """It depends on the number of rows; before it was told, it did not."""
    for rows, inner in ((60, 4), (2_300, 16)):
        X, y = numbers(rows)
        model = small(batch_size=128, epochs=15).fit(X, y)
        assert model.inner_ == inner
        model.save(path)
        assert DeepBasisRegressor.load(path).inner_ == inner
        assert_same(model, DeepBasisRegressor.load(path), X[:50])
    tensors, metadata = storage.load(path, KIND)
    del metadata["inner"]
    storage.save(path, KIND, tensors, metadata)
    assert_same(model, DeepBasisRegressor.load(path), X[:50])
    for changes, says in (
        ({"inner": 8}, "parameters are not those"),
        ({"inner": 0}, "inner"),
        ({"inner": 16, "parameters": {**metadata["parameters"], "inner": 4}}, "is to be 4 wide inside a block"),
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


def test_a_file_from_before_there_were_embeddings_has_none(path: Path) -> None:
    """Though its table, by today's rule, would have one."""
    X, y = numbers(2_300)
    small(embedding="none").fit(X, y).save(path)
    tensors, metadata = storage.load(path, KIND)
    del metadata["embedding"], metadata["parameters"]["embedding"]
    storage.save(path.with_name("old"), KIND, tensors, metadata)
    assert_same(DeepBasisRegressor.load(path.with_name("old")), DeepBasisRegressor.load(path), X[:50])


def test_a_file_without_what_was_chosen_is_of_what_was_asked_for(path: Path, saved: Path) -> None:
    """Release 0.1 wrote such files, and had no auto."""
    tensors, metadata = storage.load(saved, KIND)
    del metadata["method"]
    storage.save(path, KIND, tensors, metadata)
    table, _ = mixed()
    assert_same(DeepBasisRegressor.load(path), DeepBasisRegressor.load(saved), table)
    metadata["parameters"]["method"] = "auto"
    storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError, match=r"method.*'auto'"):
        DeepBasisRegressor.load(path)


def test_a_calibration_is_a_part_of_the_model(path: Path, saved: Path) -> None:
    """It is saved to the last bit, changes nothing but the spread, and tells models apart."""
    table, _ = mixed()
    tensors, metadata = storage.load(saved, KIND)
    calibration = Calibration((0.1 + 0.2, 7.0), (0.9, 0.1))
    storage.save(path, KIND, tensors, {**metadata, "calibration": asdict(calibration)})
    storage.save(path.with_name("none"), KIND, tensors, {**metadata, "calibration": None})
    one, other, none = (DeepBasisRegressor.load(name) for name in (saved, path, path.with_name("none")))
    assert other.calibration_ == other.ensemble_.calibration == calibration
    assert none.calibration_ is none.ensemble_.calibration is None
    for model in (one, other):
        np.testing.assert_allclose(model.predict(table), none.predict(table), rtol=1e-12, atol=1e-12)
        expected = model.calibration_.apply(none.predict_dist(table))
        np.testing.assert_allclose(model.predict_dist(table).variances, expected.variances, rtol=1e-12)
    assert len({fingerprint(model) for model in (one, other, none)}) == 3
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
    metadata["parameters"]["device"] = "cuda"
    storage.save(path, KIND, tensors, metadata)
    table, _ = mixed()
    loaded = DeepBasisRegressor.load(path, device="cpu")
    np.testing.assert_array_equal(loaded.predict(table), DeepBasisRegressor.load(saved).predict(table))


def test_a_subclass_loads_as_itself(saved: Path) -> None:
    class Mine(DeepBasisRegressor):
        pass

    assert type(Mine.load(saved)) is Mine


# --- writing


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


# --- the file of release 0.1


def test_the_model_of_release_0_1_predicts_the_same() -> None:
    expected = np.load(FIXTURES / "model-0.1.npz", allow_pickle=False)
    table = as_table(*(expected[name] for name in ("size", "color", "day", "sold")))
    model = DeepBasisRegressor.load(FIXTURES / "model-0.1.safetensors")
    mean, std = model.predict(table, return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-6)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-6)
    np.testing.assert_allclose(model.predict_quantiles(table, [0.05, 0.95]), expected["quantiles"], rtol=1e-6)
    later = {
        "calibrate": "auto",
        "inner": 8,
        "embedding": "none",
        "trend": "none",
    }  # arguments that release 0.1 had not
    assert model.get_params() == json.loads(str(expected["parameters"])) | later
    assert model.calibration_ is None
    assert model.method_ == "dbk-silu"
    assert np.ptp(mean) > 1.0  # it does say something


def make_fixtures() -> None:
    table, y = mixed(200)
    model = small(epochs=200, members=3, rank=8, width=8, alpha=0.0, learning_rate=1e-2).fit(table, y)
    model.save(FIXTURES / "model-0.1.safetensors")
    new, _ = mixed(40)
    new.loc[0, "color"] = "never seen"
    mean, std = model.predict(new, return_std=True)
    np.savez_compressed(
        FIXTURES / "model-0.1.npz",
        size=new["size"].to_numpy(),
        color=np.array([name if isinstance(name, str) else "" for name in new["color"]]),
        day=(new["when"].to_numpy() - np.datetime64("2023-01-01")).astype("timedelta64[D]").astype(np.int64),
        sold=new["sold"].to_numpy(),
        mean=mean,
        std=std,
        quantiles=model.predict_quantiles(new, [0.05, 0.95]),
        parameters=np.array(json.dumps(model.get_params())),
    )


# --- other files


def checkpoint_file(path: Path) -> None:
    X, y = (torch.from_numpy(array) for array in numbers())
    train(
        lambda member: build("dbk-silu", 3, rank=4, width=4, blocks=1, seed=member.seed),
        [Member(seed=0)],
        Rows(X, y),
        Rows(X, y),
        Settings(epochs=1, precision="float64"),
        checkpoint=path,
    )


def npz_file(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))


OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "not a deepbasis file|truncated"),
    "text": (lambda path: path.write_text("age,income\n30,1000\n" * 100), "not a deepbasis file"),
    "zeros": (lambda path: path.write_bytes(bytes(4096)), "not a deepbasis file"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"model": [1, 2, 3]})), "not a deepbasis file"),
    "torch": (lambda path: torch.save({"a": torch.ones(3)}, path), "not a deepbasis file"),
    "npz": (npz_file, "not a deepbasis file"),
    "safetensors": (lambda path: save_file({"a": torch.ones(3)}, path), "not a deepbasis file"),
    "safetensors with metadata": (
        lambda path: save_file({"a": torch.ones(3)}, path, {"deepbasis": "[]"}),
        "not a deepbasis file",
    ),
    "checkpoint": (checkpoint_file, "'checkpoint' file, expected a 'regressor'"),
    "another kind": (lambda path: storage.save(path, "classifier", {"a": torch.ones(3)}, {}), "'classifier' file"),
    "nothing inside": (lambda path: storage.save(path, KIND, {}, {}), "does not hold a regressor"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_refused_by_their_name(path: Path, name: str) -> None:
    write, words = OTHERS[name]
    write(path)
    with pytest.raises(FileFormatError, match=words) as error:
        DeepBasisRegressor.load(path)
    assert str(path) in str(error.value)


def test_a_newer_format_asks_for_an_upgrade(path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, metadata = storage.load(saved, KIND)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "FORMAT", 2)
        storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError, match=r"format 2.*upgrade"):
        DeepBasisRegressor.load(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_noticed(path: Path, saved: Path, share: float) -> None:
    data = saved.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(FileFormatError):
        DeepBasisRegressor.load(path)


def test_one_altered_bit_of_a_weight_is_noticed(path: Path, saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="checksum"):
        DeepBasisRegressor.load(path)


# --- fuzz: damage


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to four changes, half of them in the header."""
    changed = bytearray(data)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        end = max(1, min(header, len(changed)) if rng.random() < 0.5 else len(changed))
        at = rng.randrange(end)
        length = rng.choice([1, 1, 2, 8, 64])
        match rng.choice(["flip", "byte", "insert", "delete", "overwrite", "digit", "swap", "truncate"]):
            case "flip":
                changed[at] ^= 1 << rng.randrange(8)
            case "byte":
                changed[at] = rng.choice(b'\x00\xff {}[]",:0123456789')
            case "insert":
                changed[at:at] = rng.randbytes(length)
            case "delete":
                del changed[at : at + length]
            case "overwrite":
                changed[at : at + length] = rng.randbytes(length)
            case "digit":  # a number of the header becomes another one
                digits = [k for k in range(8, min(header, len(changed))) if 48 <= changed[k] < 58]
                changed[rng.choice(digits or [at])] = rng.choice(b"0123456789")
            case "swap":
                other = rng.randrange(end)
                changed[at : at + 1], changed[other : other + 1] = changed[other : other + 1], changed[at : at + 1]
            case "truncate":
                del changed[at:]
        if not changed:
            break
    return bytes(changed)


def test_a_damaged_file_predicts_the_same_or_is_refused(path: Path, saved: Path) -> None:
    table, _ = mixed()
    data = saved.read_bytes()
    expected = DeepBasisRegressor.load(saved).predict(table, return_std=True)
    rng = random.Random(4)
    refused = 0
    for number in range(MUTATIONS):
        path.write_bytes(mutated(data, rng))
        try:
            model = DeepBasisRegressor.load(path)
        except FileFormatError:
            refused += 1
            continue
        except BaseException as error:
            pytest.fail(f"mutation {number}: {type(error).__name__}: {error}")
        np.testing.assert_array_equal(model.predict(table, return_std=True), expected, err_msg=f"mutation {number}")
    assert refused > 0.95 * MUTATIONS


# --- fuzz: files that were made on purpose, with the right checksum


def put(*keys: Any, value: Any) -> Callable[[Metadata], None]:
    """Set metadata[k1][k2]… = value."""

    def change(metadata: Metadata) -> None:
        place: Any = metadata
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(*keys: Any) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        place: Any = metadata
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


WRONG: dict[str, Callable[[Metadata], None]] = {
    **{
        f"no {key}": drop(key)
        for key in ("parameters", "members", "preprocessing", "target", "validation", "alpha", "beta", "n_features")
    },
    "no feature_names": drop("feature_names"),
    **{f"members={value!r}": put("members", value=value) for value in (-1, 0, 1, 3, 10**9, 1.5, "2", None, [], True)},
    **{f"parameters={value!r}": put("parameters", value=value) for value in (None, [], "x", {"speed": 3}, {1: 2})},
    **{
        f"{name}={value!r}": put("parameters", name, value=value)
        for name, value in [
            ("method", "magic"),
            ("method", "dbk-rbf"),
            ("method", "dnn"),
            ("method", None),
            ("method", ["dbk-silu"]),
            ("recipe", "cake"),
            ("objective", 3),
            ("rank", -1),
            ("rank", 5),
            ("rank", "4"),
            ("rank", 4.0),
            ("rank", None),
            ("width", 0),
            ("width", 8),
            ("width", True),
            ("blocks", 2),
            ("blocks", "1"),
            ("members", -1),
            ("alpha", "much"),
            ("epochs", -5),
            ("dtype", "int8"),
            ("device", "abacus"),
            ("validation_fraction", 7),
            ("calibrate", "perhaps"),
            ("speed", 1),
            ("__class__", "x"),
        ]
    },
    **{f"method_={value!r}": put("method", value=value) for value in (None, "auto", "sv-rbf", "dnn", "x", 3, [], {})},
    **{f"target={value!r}": put("target", value=value) for value in (None, {}, [0, 1], {"mean": 0.0}, "x")},
    **{
        f"target {name}={value!r}": put("target", name, value=value)
        for name, value in [("scale", 0.0), ("scale", -1.0), ("scale", "1"), ("mean", None), ("mean", 10**400)]
    },
    **{f"preprocessing={value!r}": put("preprocessing", value=value) for value in (None, [], {}, "x")},
    "no columns": put("preprocessing", "columns", value=[]),
    "a column of no kind": put("preprocessing", "columns", 0, "kind", value="colour"),
    "a column of another kind": put("preprocessing", "columns", 0, "kind", value="categorical"),
    "an unhashable kind": put("preprocessing", "columns", 0, "kind", value=[]),
    "a column is a number": put("preprocessing", "columns", 0, value=7),
    "a column too few": drop("preprocessing", "columns", 0),
    "a column with more": put("preprocessing", "columns", 0, "extra", value=1),
    "a flag is a word": put("preprocessing", "columns", 0, "missing", value="yes"),
    "another flag": put("preprocessing", "columns", 3, "missing", value=True),
    "categories are a number": put("preprocessing", "columns", 1, "categories", value=3),
    "a category twice": put("preprocessing", "columns", 1, "categories", value=["a", "a", "b"]),
    "categories are numbers": put("preprocessing", "columns", 1, "categories", value=[1, 2, 3]),
    "a category too many": put("preprocessing", "columns", 1, "categories", value=["a", "b", "c", "d"]),
    "many categories": put("preprocessing", "columns", 1, "categories", value=[str(k) for k in range(100_000)]),
    "an unknown phase": put("preprocessing", "columns", 2, "phases", value=["moon"]),
    "names are a number": put("preprocessing", "input_columns", value=4),
    "a name is a number": put("preprocessing", "input_columns", 0, value=4),
    "a name twice": put("preprocessing", "input_columns", 0, value="color"),
    "feature_names are a number": put("feature_names", value=4),
    "feature_names are others": put("feature_names", value=["a", "b", "c", "d"]),
    "feature_names are too few": put("feature_names", value=["size"]),
    "no feature_names but names": put("feature_names", value=None),
    **{f"n_features={value!r}": put("n_features", value=value) for value in (-1, 0, 5, 10**30, "x", None, 4.5)},
    **{f"alpha_={value!r}": put("alpha", value=value) for value in ("x", None, -1.0, [])},
    **{
        f"calibration={value!r}"[:60]: put("calibration", value=value)
        for value in (
            *(0, 1.0, "x", [], {}, [1.0], {"scales": [1.0]}, {"scales": [], "weights": []}),
            *({"scales": [scale], "weights": [1.0]} for scale in (0, 0.0, -1.0, 10**400, "1", None, [1.0])),
            *({"scales": [1.0, 2.0], "weights": given} for given in ([1.0], [1.5, -0.5], [0.5, 0.4], [0.5, "0.5"])),
            *({"scales": given, "weights": [1.0]} for given in ("1", 1.0, {"1": 1.0})),
            {"scales": [1.0], "weights": [1.0], "more": 1},
            {"scales": [1.0] * 1000, "weights": [0.001] * 1000},
        )
    },
    **{f"validation={value!r}": put("validation", value=value) for value in (None, 3, ["mae"], {"mae": "x"})},
}


@pytest.mark.parametrize("name", WRONG)
def test_metadata_that_make_no_sense_are_refused(path: Path, saved: Path, name: str) -> None:
    tensors, metadata = storage.load(saved, KIND)
    wrong = copy.deepcopy(metadata)
    WRONG[name](wrong)
    storage.save(path, KIND, tensors, wrong)
    start = time.monotonic()
    with pytest.raises(FileFormatError) as error:
        DeepBasisRegressor.load(path)
    assert time.monotonic() - start < 2.0
    assert str(path) in str(error.value)


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__delitem__(next(key for key in tensors if key.startswith(name)))


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        key = next(key for key in sorted(tensors) if key.startswith(name))
        tensors[key] = change(tensors[key])

    return apply


WRONG_TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], None]] = {
    "a weight gone": without("member/0/"),
    "a member's mean gone": without("member/1/mean"),
    "a preprocessing array gone": without("preprocessor/center"),
    "a history gone": without("history/1/"),
    "a weight too many": lambda tensors: tensors.update({"member/0/extra": torch.ones(3)}),
    "another shape": changed("member/0/backbone", lambda t: torch.cat([t, t])),
    "no shape": changed("member/0/backbone", lambda t: torch.tensor(1.0, dtype=t.dtype)),
    "a weight of integers": changed("member/0/posterior", lambda t: t.long()),
    "a mean of integers": changed("member/0/mean", lambda t: t.long()),
    "complex weights": changed("member/0/mean", lambda t: t.to(torch.complex64)),
    "another precision": changed("member/0/backbone", lambda t: t.half()),
    "NaN in a weight": changed("member/0/backbone", lambda t: t * math.nan),
    "inf in a weight": changed("member/0/mean", lambda t: t + math.inf),
    "a scale of 0": changed("preprocessor/scale", torch.zeros_like),
    "a scale that is NaN": changed("preprocessor/scale", lambda t: t * math.nan),
    "an array too long": changed("preprocessor/center", lambda t: torch.cat([t, t])),
    "an array of complex numbers": changed("preprocessor/center", lambda t: t.to(torch.complex64)),
    "an array in bfloat16": changed("preprocessor/center", lambda t: t.to(torch.bfloat16)),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_tensors_that_make_no_sense_are_refused(path: Path, saved: Path, name: str) -> None:
    tensors, metadata = storage.load(saved, KIND)
    WRONG_TENSORS[name](tensors)
    storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError):
        DeepBasisRegressor.load(path)


# --- a small file must not cost much

HUGE: dict[str, dict[str, int]] = {
    "rank": {"rank": 10**9},
    "rank, less": {"rank": 12_000},
    "rank beyond 64 bits": {"rank": 10**30},
    "width": {"width": 10**9},
    "width, less": {"width": 8_000},
    "blocks": {"blocks": 10**9},
    "blocks, less": {"blocks": 20_000},
}

LOADER = """
import resource, signal, sys, time
from pathlib import Path
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FileFormatError

def too_long(number, frame):
    raise KeyboardInterrupt

good, *others = sys.argv[1:]
DeepBasisRegressor.load(good)  # whatever has to be imported and warmed up
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30,) * 2)  # a failing test does no harm
signal.signal(signal.SIGALRM, too_long)
for path in others:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    before, start, verdict = peak(), time.monotonic(), "loaded"
    signal.alarm(3)
    try:
        DeepBasisRegressor.load(path)
    except FileFormatError:
        verdict = "refused"
    except KeyboardInterrupt:
        verdict = "hangs"
    except Exception as error:
        verdict = type(error).__name__
    signal.alarm(0)
    print(verdict, time.monotonic() - start, (peak() - before) / 1024, flush=True)
"""


@pytest.fixture(scope="module")
def cost(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, float]]:
    """For each name in HUGE: what a process of its own said, the seconds, the MiB."""
    folder = tmp_path_factory.mktemp("huge")
    tensors, metadata = storage.load(saved, KIND)
    paths = []
    for number, sizes in enumerate(HUGE.values()):
        paths.append(folder / f"{number}.safetensors")
        storage.save(paths[-1], KIND, tensors, {**metadata, "parameters": metadata["parameters"] | sizes})
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOADER, saved, *paths], capture_output=True, text=True, timeout=100, env=environment
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {name: (line[0], float(line[1]), float(line[2])) for name, line in zip(HUGE, lines, strict=False)}
    return found | {name: (done.stderr[-300:] or "died", 0.0, 0.0) for name in HUGE if name not in found}


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory the Linux way")
@pytest.mark.parametrize("name", HUGE)
def test_a_small_file_that_claims_to_be_huge_is_refused_at_once(
    cost: dict[str, tuple[str, float, float]], name: str
) -> None:
    verdict, seconds, mebibytes = cost[name]
    assert verdict == "refused"
    assert seconds < 1.0
    assert mebibytes < 50.0


if __name__ == "__main__":
    make_fixtures()
