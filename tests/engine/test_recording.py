"""A recording does what the function does, without it."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from deepbasis.engine.recording import Recording

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def nested(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """Several outputs of one operation, a list and a keyword with tensors, a constant and the input itself."""
    values, places = x.max(1)
    both = torch.cat([x.view(x.shape), layer_norm(x @ W, [4])], 1).clamp(max=values[:, None])
    return both, (places, x), W.exp()


def test_a_recording_is_the_function():
    recording = Recording(nested, torch.randn(3, 4))
    assert recording.valid
    for _ in range(2):
        x = torch.randn(3, 4)
        both, (places, same), constant = recording(x)
        expected, (where, _), exp = nested(x)
        assert torch.equal(both, expected)
        assert torch.equal(places, where)
        assert same is x
        assert torch.equal(constant, exp)


def test_what_does_not_depend_on_the_input_is_computed_once():
    recording = Recording(lambda x: (x + W.exp().sum(), W.exp()), torch.randn(3, 4))
    assert recording(torch.randn(3, 4))[1] is recording(torch.randn(3, 4))[1]


def in_place(x: Tensor) -> Tensor:
    out = torch.zeros(3, 4)
    out[:, 0] = x[:, 0]
    return out


def out_of(x: Tensor) -> Tensor:
    return torch.exp(x, out=torch.zeros(3, 4))


def by_value(x: Tensor) -> Tensor:
    return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize("function", [in_place, out_of, by_value])
def test_a_function_that_cannot_be_repeated_is_not_valid(function):
    assert not Recording(function, torch.randn(3, 4)).valid
