"""The order of rows, as a function of seed and epoch; and a bootstrap sample of them, as a function of the seed."""

import torch
from torch import Tensor

from deepbasis.hashing import GOLDEN, splitmix64


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
    return splitmix64(splitmix64(splitmix64(seeds) + epoch)[:, None] + row * GOLDEN)
