"""SplitMix64: one rule for numpy and torch, equal to the published one."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepbasis.hashing import splitmix64


def in_python(z: int) -> int:
    """Steele, Lea and Flood's, in Python's integers."""
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_numpy_and_torch_hash_as_integers_without_bounds_do(states):
    expected = [in_python(state % 2**64) for state in states]
    ours = splitmix64(np.array(states, dtype=np.int64))
    assert ours.dtype == np.int64
    assert ours.view(np.uint64).tolist() == expected
    assert splitmix64(torch.tensor(states, dtype=torch.int64)).tolist() == ours.tolist()


def test_the_published_sequence():
    """From the seed 1234567, as Vigna's splitmix64.c gives it."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([1234567 + k * golden for k in range(5)], dtype=object) % 2**64
    found = splitmix64(states.astype(np.uint64).view(np.int64)).view(np.uint64)
    assert found.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
