"""The encoding of number columns as a torch module, for tools that hand over tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepbasis.errors import InputError
from deepbasis.tables.encoders import FLAT, Encoding
from deepbasis.tables.preprocessing import Preprocessor

_KINDS = ("numeric", "boolean")


def number_columns(preprocessor: Preprocessor, what: str) -> tuple[list[str], list[Encoding]]:
    """The columns that tensors of numbers can hold; an informative column of another kind is an error."""
    found = []
    for name, encoding in zip(preprocessor.names, preprocessor.encodings, strict=True):
        plain = encoding.kind in _KINDS and encoding.rule is None
        if plain:
            found.append((name, encoding))
        elif encoding.width:
            kind = f"{encoding.kind}, read from text" if encoding.rule is not None else encoding.kind
            raise InputError(
                f"column '{name}' cannot be part of {what}, because it is {kind}: only numbers and truth values can; "
                "encode it as numbers before the fit, or leave it out"
            )
    if not found:
        raise InputError(f"the model has no column of numbers: there is nothing that {what} could take")
    names, encodings = zip(*found, strict=True)
    return list(names), list(encodings)


class NumberEncoding(nn.Module):
    """`Preprocessor.transform` of columns of numbers."""

    center: Tensor
    scale: Tensor
    fill: Tensor
    linear: Tensor

    def __init__(self, encodings: Sequence[Encoding]) -> None:
        super().__init__()
        self.varying = [k for k, one in enumerate(encodings) if one.varies]
        self.with_gaps = [k for k, one in enumerate(encodings) if one.missing]
        for name in ("center", "scale", "fill", "linear"):
            numbers = [getattr(encodings[k], name) for k in self.varying]
            if name == "fill":  # see `tables.preprocessing.GAP`
                numbers = [encodings[k].fill if encodings[k].missing else 0.0 for k in self.varying]
            self.register_buffer(name, torch.tensor(numbers, dtype=torch.float64))
        outputs = [(k, 0) for k in self.varying] + [(k, 1) for k in self.with_gaps]
        self.order = sorted(range(len(outputs)), key=outputs.__getitem__)  # a column's gaps come after it

    def forward(self, X: Tensor) -> Tensor:
        if not self.order:
            return torch.zeros_like(X[:, :1])
        values = X[:, self.varying]
        z = (values - self.center) / self.scale
        size = z.abs().clamp_max(FLAT)
        far = self.linear + (1.0 + (size - self.linear).clamp_min(0.0)).log()  # see `tables.encoders.squash`
        size = torch.where(size > self.linear, far, size)
        z = torch.where(values.isnan(), self.fill, torch.where(z < 0.0, -size, size))
        return torch.cat([z, X[:, self.with_gaps].isnan().to(X.dtype)], 1)[:, self.order]
