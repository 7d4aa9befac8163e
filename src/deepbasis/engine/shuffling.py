"""The order of rows, as a function of seed and epoch; and a bootstrap sample of them, as a function of the seed."""

import torch
from torch import Tensor


def shuffled(seeds: Tensor, epoch: int | Tensor, n: int) -> Tensor:
    """A permutation of 0 … n-1 for each seed [E] and epoch: rows sorted by a hash (SplitMix64) of (seed, epoch, row).

    Integer arithmetic that wraps around is the same everywhere, which a random generator's stream is not. All members
    are sorted at once, the member's number above 48 bits of hash: a GPU sorts one long list far faster than many short.
    """
    row = torch.arange(n, dtype=torch.int64, device=seeds.device)
    member = torch.arange(len(seeds), dtype=torch.int64, device=seeds.device)[:, None]
    hashed = _hashed(seeds, epoch, row)
    key = (member << 48) | ((hashed >> 16) & ((1 << 48) - 1))
    return key.flatten().argsort(stable=True).view(len(seeds), n) - member * n


def resampled(seeds: Tensor, places: Tensor, n: int) -> Tensor:
    """The rows, of 0 … n-1, at `places` [E, m] of the bootstrap sample of each seed [E].

    The row at a place is a hash of (seed, place), modulo n: drawn with replacement, and the same at every call. It is
    hashed as in an epoch before the first, so that the sample has nothing to do with any order.
    """
    return (_hashed(seeds, -1, places) & (2**63 - 1)) % n


def _hashed(seeds: Tensor, epoch: int | Tensor, row: Tensor) -> Tensor:
    return _mix(_mix(_mix(seeds) + epoch)[:, None] + row * _GOLDEN)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def _mix(z: Tensor) -> Tensor:
    z = z + _GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _signed(
            factor
        )  # a logical shift: torch's keeps the sign
    return z ^ ((z >> 31) & ((1 << 33) - 1))
