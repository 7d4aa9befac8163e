"""Numerical embeddings: each input column becomes several, before the backbone (Gorishniy, Rubachev and Babenko, 2022,
"On embeddings for numerical features in tabular deep learning").

NOTE[DIFF]: the paper has none. An embedding is any module, made as `cls(d)`, with an attribute `width`,
the number of columns that its `forward(x)` returns. It may have a method `start_at(x, generator)` if it starts from
data.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from deepbasis.errors import InputError, check_number, check_positive_int, check_tensor
from deepbasis.gp.precision import full_product


class Periodic(nn.Module):
    """[x_j, sin(2 pi c_jk x_j), cos(2 pi c_jk x_j)]: first all x, then all sines, then all cosines, column by column.

    The frequencies c_jk start as N(0, scale^2) and are trained. NOTE[DIFF]: Gorishniy et al. leave x itself out and put
    a layer for each column behind; here x stays, which a small scale needs, and the backbone's projection is the layer.
    """

    def __init__(self, d: int, frequencies: int = 8, *, scale: float = 0.1) -> None:
        super().__init__()
        self.columns = check_positive_int("d", d)
        check_positive_int("frequencies", frequencies)
        check_number("scale", scale, above=0.0)
        self.width = d * (1 + 2 * frequencies)
        self.c = nn.Parameter(scale * torch.randn(d, frequencies))

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        angle = (2.0 * math.pi * x[:, :, None] * self.c).flatten(1)
        return torch.cat([x, angle.sin(), angle.cos()], 1)


class PeriodicLinear(nn.Module):
    """[x_j, W_j cos(2 pi (c_j x_j + b_j))]: waves of each column, of which a layer for each column makes a few numbers.

    That is PBLD (Holzmueller, Grinsztajn and Steinwart, 2024, "Better by default: strong pre-tuned MLPs"). The
    frequencies c_j start as N(0, scale^2), the phases b_j evenly within a period; all are trained.

    Columns that are `flags` hold 0 and 1: their waves are taken at these two values alone, whatever the number of rows.
    They come last, in what goes out and among the parameters.
    """

    def __init__(
        self, d: int, frequencies: int = 8, outputs: int = 3, *, scale: float = 0.3, flags: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.columns = check_positive_int("d", d)
        if list(flags) != sorted({*flags} & {*range(d)}) or not all(type(one) is int for one in flags):
            raise InputError(f"flags must be columns from 0 to {d - 1}, each once and in ascending order, got {flags}")
        self.numbers = d - len(flags)
        self._runs = _runs([k for k in range(d) if k not in {*flags}]) + _runs(list(flags)) if flags else []
        check_positive_int("frequencies", frequencies)
        check_positive_int("outputs", outputs)
        check_number("scale", scale, above=0.0)
        self.width = d * (1 + outputs)
        self.c = nn.Parameter(scale * torch.randn(d, frequencies))
        self.b = nn.Parameter(torch.rand(d, frequencies) - 0.5)
        self.W = nn.Parameter((2.0 * torch.rand(d, frequencies, outputs) - 1.0) / math.sqrt(frequencies))

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        k, parts = self.numbers, (self.c, self.b, self.W)
        if k == self.columns:
            return torch.cat([x, _waves(x, *parts).flatten(1)], 1)
        x = torch.cat([x[:, first:end] for first, end in self._runs], 1)
        numbers = _waves(x[:, :k], *(part[:k] for part in parts))
        ends = torch.stack([x.new_zeros(self.columns - k), x.new_ones(self.columns - k)])
        at_0, at_1 = _waves(ends, *(part[k:] for part in parts))
        flags = at_0 + x[:, k:, None] * (at_1 - at_0)
        return torch.cat([x, numbers.flatten(1), flags.flatten(1)], 1)


def _waves(x: Float[Tensor, "b d"], c: Tensor, b: Tensor, W: Tensor) -> Float[Tensor, "b d o"]:
    """W_j cos(2 pi (c_j x_j + b_j))"""
    return torch.einsum("ndk,dko->ndo", (2.0 * math.pi * (x[:, :, None] * c + b)).cos(), W)


def _runs(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges (first, end)."""
    found: list[tuple[int, int]] = []
    for k in columns:
        if found and found[-1][1] == k:
            found[-1] = (found[-1][0], k + 1)
        else:
            found.append((k, k + 1))
    return found


class Fourier(nn.Module):
    """[x, a sin(2 pi B x), a cos(2 pi B x)]: waves across all columns together, for coordinates (Tancik et al., 2020,
    "Fourier features let networks learn high frequency functions in low dimensional domains").

    The frequencies B are trained. They start in random directions; their lengths are spread evenly on a logarithmic
    scale between `lowest` and `highest`, in periods a unit of x: no scale has to be known beforehand. The size of
    a wave is a = (lowest / its first length)^falloff, so that short waves do not drown a smooth function.
    """

    amplitude: Tensor

    def __init__(
        self, d: int, frequencies: int = 64, *, lowest: float = 0.1, highest: float = 30.0, falloff: float = 1.0
    ) -> None:
        super().__init__()
        self.columns = check_positive_int("d", d)
        check_positive_int("frequencies", frequencies)
        check_number("lowest", lowest, above=0.0)
        check_number("highest", highest, at_least=lowest)
        check_number("falloff", falloff, at_least=0.0)
        self.width = d + 2 * frequencies
        length = torch.logspace(math.log10(lowest), math.log10(highest), frequencies)
        self.register_buffer("amplitude", (lowest / length) ** falloff)
        self.B = nn.Parameter(length * nn.functional.normalize(torch.randn(d, frequencies), dim=0))

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        angle = 2.0 * math.pi * full_product(x, self.B)  # in tf32 the phase would be lost
        amplitude = self.amplitude.to(x.dtype)
        return torch.cat([x, amplitude * angle.sin(), amplitude * angle.cos()], 1)


class PiecewiseLinear(nn.Module):
    """clamp((x_j - e_t) / (e_{t+1} - e_t), 0, 1) for each bin t of column j, whose edges e are given and not trained.

    Below the first bin and above the last, a column's line continues. A bin without width, between equal edges,
    gives 0; the first and the last bin are the first and the last that have a width.
    """

    edges: Tensor

    def __init__(self, edges: Float[Tensor, "d edges"]) -> None:
        super().__init__()
        check_tensor("edges", edges, 2)
        self.columns, count = edges.shape
        if count < 2:
            raise InputError(f"edges must have at least 2 for each column, got shape {list(edges.shape)}")
        if bool((edges.diff(dim=1) < 0).any()):
            raise InputError("edges must not decrease along a column's bins; sort them")
        self.width = self.columns * (count - 1)
        self.register_buffer("edges", edges.detach().clone())

    def start_at(self, x: Float[Tensor, "n d"], generator: torch.Generator) -> None:
        """As many bins as there are, with about equally many rows each."""
        self.edges.copy_(quantile_edges(x, self.edges.shape[1] - 1))

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        edges = self.edges.to(x.dtype)
        left, right = edges[:, :-1], edges[:, 1:]
        has_width = right > left
        t = (x[:, :, None] - left) / torch.where(has_width, right - left, 1.0)  # never 0 / 0, whose gradient is NaN
        low = torch.zeros_like(left).masked_fill(left == edges[:, :1], -math.inf)
        high = torch.ones_like(right).masked_fill(right == edges[:, -1:], math.inf)
        return torch.where(has_width, t.clamp(low, high), 0.0).flatten(1)


def piecewise_linear(d: int) -> PiecewiseLinear:
    """With 16 bins a column, between -1 and 1 until it starts from data."""
    edges = torch.linspace(-1.0, 1.0, 17, device="cpu")  # never on "meta", where nothing can be checked
    return PiecewiseLinear(edges.repeat(check_positive_int("d", d), 1))


def quantile_edges(x: Float[Tensor, "n d"], bins: int) -> Float[Tensor, "d edges"]:
    """The edges of `bins` bins with about equally many rows each, for every column: values of the column itself.

    Values that many rows have give equal edges. So do values nearer to each other than a millionth of the column's
    range, which float32 can hardly distinguish: a bin between them would be a step.
    """
    check_tensor("x", x, 2)
    check_positive_int("bins", bins)
    places = torch.linspace(0, len(x) - 1, bins + 1, dtype=torch.float64).round().long()
    edges = x.detach().sort(0).values[places.to(x.device)].T.contiguous()
    nearest = 1e-6 * (edges[:, -1] - edges[:, 0])
    for k in range(1, bins + 1):
        before, here = edges[:, k - 1], edges[:, k]
        edges[:, k] = torch.where(here - before > nearest, here, before)
    return edges
