"""Files that are damaged, of another kind or of a later format: each is a `FileFormatError`."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from deepbasis import DeepBasisRegressor, storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import Settings
from deepbasis.engine.training import train
from deepbasis.errors import FileFormatError
from deepbasis.fitting.fitted import KIND
from deepbasis.gp.build import build
from support.model_files import MUTATIONS, mixed, numbers

pytestmark = pytest.mark.usefixtures("one_thread")


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
    "checkpoint": (checkpoint_file, "'checkpoint' file, expected a 'model'"),
    "another kind": (lambda path: storage.save(path, "classifier", {"a": torch.ones(3)}, {}), "'classifier' file"),
    "nothing inside": (lambda path: storage.save(path, KIND, {}, {}), "does not hold a model"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_refused_by_their_name(path: Path, name: str) -> None:
    write, words = OTHERS[name]
    write(path)
    with pytest.raises(FileFormatError, match=words) as error:
        DeepBasisRegressor.load(path)
    assert str(path) in str(error.value)


def test_a_newer_format_asks_for_an_upgrade(path: Path, saved: Path) -> None:
    path.write_bytes(saved.read_bytes().replace(f'format\\": {storage.FORMAT}'.encode(), b'format\\": 9'))
    with pytest.raises(FileFormatError, match=r"format 9.*upgrade"):
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
