"""Hashes of 64 bits, the same on every machine and in every release: SplitMix64 of integers, BLAKE2b of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Integers = TypeVar("Integers", NDArray[np.int64], "Tensor")


GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the int64 of the same bits
"""2^64 over the golden ratio: what SplitMix64 adds at each step."""

_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def splitmix64(z: Integers) -> Integers:
    """The output of SplitMix64 (Steele, Lea and Flood 2014) in the state z: int64 arrays of numpy, or int64 tensors.

    Products wrap around. A right shift of int64 keeps the sign, so the bits that it fills in are masked.
    """
    z = z + GOLDEN
    for shift, factor in _ROUNDS:
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def name_hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    """64 bits for each text."""
    digests = b"".join(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
