"""Every input check: what it refuses, with which words, and what it lets through."""

import math
import pickle

import numpy as np
import pytest
import torch

from deepbasis import errors
from deepbasis.errors import (
    CheckpointMismatchError,
    DeepBasisError,
    FileFormatError,
    FileInUseError,
    InputError,
    NumericalError,
    WorkerError,
    check_choice,
    check_number,
    check_positive_int,
    check_same_length,
    check_tensor,
)

NAN_MATRIX = torch.zeros(4, 3)
NAN_MATRIX[2, 1], NAN_MATRIX[3, 0], NAN_MATRIX[3, 2] = math.nan, math.inf, -math.inf
COLOURS = {"red": 1, "green": 2}

REFUSED = [
    # check_tensor
    (lambda: check_tensor("X", [[1.0]], 2), ["X", "torch.Tensor", "list"]),
    (lambda: check_tensor("X", np.zeros((2, 2)), 2), ["X", "torch.Tensor", "ndarray"]),
    (lambda: check_tensor("X", None, 2), ["X", "torch.Tensor", "NoneType"]),
    (lambda: check_tensor("y", torch.zeros(3, dtype=torch.int64), 1), ["y", "floating point", "int64", ".double()"]),
    (lambda: check_tensor("y", torch.zeros(3, dtype=torch.bool), 1), ["y", "floating point", "bool"]),
    (lambda: check_tensor("y", torch.zeros(3, dtype=torch.complex64), 1), ["y", "floating point", "complex64"]),
    (lambda: check_tensor("X", torch.zeros(3), 2), ["X", "matrix [n, d]", "[3]"]),
    (lambda: check_tensor("y", torch.zeros(3, 1), 1), ["y", "vector [n]", "[3, 1]"]),
    (lambda: check_tensor("y", torch.tensor(1.0), 1), ["y", "vector [n]", "[]"]),
    (lambda: check_tensor("T", torch.zeros(3), 3), ["T", "3 dimensions", "[3]"]),
    (lambda: check_tensor("X", torch.zeros(0, 3), 2), ["X", "empty", "[0, 3]"]),
    (lambda: check_tensor("X", torch.zeros(3, 0), 2), ["X", "empty", "[3, 0]"]),
    (lambda: check_tensor("y", torch.zeros(0), 1), ["y", "empty", "[0]"]),
    (lambda: check_tensor("X", NAN_MATRIX, 2), ["X", "3 entries", "not finite", "[2, 1]", "rows"]),
    (lambda: check_tensor("X", NAN_MATRIX.double(), 2), ["X", "3 entries", "[2, 1]"]),
    (lambda: check_tensor("y", NAN_MATRIX[:, 0], 1), ["y", "1 entries", "[3]"]),
    (lambda: check_tensor("y", torch.tensor([-math.inf, 0.0]), 1), ["y", "1 entries", "[0]"]),
    # check_same_length
    (lambda: check_same_length("X", torch.zeros(4, 2), "y", torch.zeros(3)), ["X has 4", "y has 3", "agree"]),
    (lambda: check_same_length("X", torch.zeros(0, 2), "y", torch.zeros(3)), ["X has 0", "y has 3"]),
    # check_positive_int
    (lambda: check_positive_int("rank", 0), ["rank", "positive integer", "0"]),
    (lambda: check_positive_int("rank", -4), ["rank", "positive integer", "-4"]),
    (lambda: check_positive_int("rank", 2.0), ["rank", "positive integer", "2.0"]),
    (lambda: check_positive_int("rank", np.float64(2.0)), ["rank", "positive integer", "2.0"]),
    (lambda: check_positive_int("rank", math.nan), ["rank", "positive integer", "nan"]),
    (lambda: check_positive_int("rank", "8"), ["rank", "positive integer", "'8'"]),
    (lambda: check_positive_int("rank", None), ["rank", "positive integer", "None"]),
    (lambda: check_positive_int("rank", True), ["rank", "positive integer", "True"]),
    (lambda: check_positive_int("rank", np.True_), ["rank", "positive integer", "True"]),
    (lambda: check_positive_int("rank", np.int64(-1)), ["rank", "positive integer", "-1"]),
    (lambda: check_positive_int("rank", [8]), ["rank", "positive integer", "[8]"]),
    (lambda: check_positive_int("rank", np.array([1, 2])), ["rank", "positive integer", "1, 2"]),
    (lambda: check_positive_int("rank", torch.tensor(2.5)), ["rank", "positive integer", "2.5"]),
    (lambda: check_positive_int("rank", int), ["rank", "positive integer", "int"]),
    # check_number
    (lambda: check_number("noise", -1e-3, at_least=0.0), ["noise", "finite number >= 0", "-0.001"]),
    (lambda: check_number("noise", 0.0, above=0.0), ["noise", "finite number > 0", "0.0"]),
    (lambda: check_number("noise", 1e-6, above=1e-6), ["noise", "> 1e-06", "1e-06"]),
    (lambda: check_number("noise", math.nan), ["noise", "finite number", "nan"]),
    (lambda: check_number("noise", math.inf), ["noise", "finite number", "inf"]),
    (lambda: check_number("noise", -math.inf, at_least=0.0), ["noise", "finite number", "-inf"]),
    (lambda: check_number("noise", None), ["noise", "number", "None"]),
    (lambda: check_number("noise", "small"), ["noise", "number", "'small'"]),
    (lambda: check_number("noise", "0.5"), ["noise", "number", "'0.5'"]),
    (lambda: check_number("noise", b"1"), ["noise", "number"]),
    (lambda: check_number("noise", [0.1]), ["noise", "number", "[0.1]"]),
    (lambda: check_number("noise", 1j), ["noise", "number", "1j"]),
    (lambda: check_number("noise", 10**400), ["noise", "number"]),
    (lambda: check_number("noise", np.array([0.1, 0.2])), ["noise", "number"]),
    (lambda: check_number("noise", torch.tensor([0.1, 0.2])), ["noise", "number"]),
    # check_choice
    (lambda: check_choice("colour", "blue", COLOURS), ["colour", "green, red", "'blue'"]),
    (lambda: check_choice("colour", None, COLOURS), ["colour", "green, red", "None"]),
    (lambda: check_choice("colour", 1, COLOURS), ["colour", "green, red", "1"]),
    (lambda: check_choice("colour", "", {"red"}), ["colour", "red", "''"]),
    (lambda: check_choice("colour", ["red"], COLOURS), ["colour", "green, red", "['red']"]),
    (lambda: check_choice("colour", {}, {"red"}), ["colour", "red", "{}"]),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[" ".join(words) for _, words in REFUSED])
def test_refused_with_these_words(call, words):
    with pytest.raises(InputError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3), np.int64(3), np.array(3), torch.tensor(3)], ids=repr)
def test_whole_numbers_of_any_kind_become_ints(value):
    result = check_positive_int("rank", value)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int64(1), np.array(1.0), torch.tensor(1.0)], ids=repr)
def test_numbers_of_any_kind_become_floats(value):
    result = check_number("noise", value, above=0.0)
    assert result == 1.0
    assert type(result) is float


def test_bounds_of_numbers():
    assert check_number("a", 0.0, at_least=0.0) == 0.0
    assert check_number("a", 5e-324, above=0.0) == 5e-324
    assert check_number("a", -1e300) == -1e300


def test_choices_are_returned_as_they_are():
    assert check_choice("colour", "red", COLOURS) == "red"
    assert check_choice("colour", "green", frozenset(COLOURS)) == "green"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_finite_tensors_pass(dtype):
    check_tensor("X", torch.zeros(1, 1, dtype=dtype), 2)
    check_tensor("y", torch.full((3,), torch.finfo(dtype).max, dtype=dtype), 1)
    check_tensor("T", torch.ones(2, 3, 4, dtype=dtype), 3)


def test_tensors_that_do_not_lie_in_one_piece_and_that_need_gradients_pass():
    check_tensor("X", torch.zeros(4, 6, requires_grad=True).mT[::2], 2)
    check_same_length("X", torch.zeros(4, 2), "y", torch.zeros(4))


KINDS = [
    (InputError, ValueError),
    (FileFormatError, ValueError),
    (CheckpointMismatchError, ValueError),
    (FileInUseError, RuntimeError),
    (NumericalError, RuntimeError),
    (WorkerError, RuntimeError),
]


@pytest.mark.parametrize(("kind", "builtin"), KINDS, ids=lambda kind: kind.__name__)
def test_errors_are_ours_and_the_builtin_ones_that_users_catch(kind, builtin):
    assert issubclass(kind, DeepBasisError)
    assert issubclass(kind, builtin)
    again = pickle.loads(pickle.dumps(kind("what, where, what to do")))
    assert (type(again), str(again)) == (kind, "what, where, what to do")


def test_every_error_of_the_module_is_in_the_family():
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    classes = [one for one in classes if not issubclass(one, Warning)]
    assert {DeepBasisError, *(kind for kind, _ in KINDS)} == set(classes)
