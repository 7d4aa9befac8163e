"""`Rate`: counts whose expectation is a rate times an exposure, as the transform of a target."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from deepbasis.errors import InputError

RATE = "rate"
_LARGEST_BASE = 1e150


@dataclass(frozen=True)
class Rate:
    """f is the log of a rate, in units of `base`: that of all rows together."""

    base: float
    exposure: str | None = None
    """The column that says what each count was counted over, where it has a name."""
    exposed: bool = False
    """Whether there was such an exposure, with a name or without."""

    def __post_init__(self) -> None:
        if self.exposure is not None and not self.exposed:
            raise InputError("the exposure of a count has a name, and there is none")
        if not 1.0 / _LARGEST_BASE <= self.base <= _LARGEST_BASE:
            raise InputError(f"the rate of a count must be a number from {1 / _LARGEST_BASE:g} to {_LARGEST_BASE:g}")

    def forward(self, y: Tensor) -> Tensor:
        return ((y + 0.5) / self.base).log()

    def inverse(self, u: Tensor) -> Tensor:
        return self.base * u.exp()

    def observed(self, y: Tensor, exposure: Tensor) -> Float[Tensor, "n 3"]:
        """What a likelihood takes."""
        offset = (exposure * self.base).log()
        return torch.stack([(y + 0.5).log() - offset, y, offset], 1)

    def state(self) -> dict[str, Any]:
        return {"kind": RATE, **asdict(self)}

    @classmethod
    def from_state(cls, record: Mapping[str, Any]) -> "Rate":
        exposure, exposed = record["exposure"], record["exposed"]
        if not isinstance(exposure, str | None):
            raise InputError(f"the exposure of a count must be the name of a column, got {exposure!r}")
        if type(exposed) is not bool:
            raise InputError(f"whether a count has an exposure is true or false, got {exposed!r}")
        return cls(float(record["base"]), exposure, exposed)
