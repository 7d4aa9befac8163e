"""The columns of a table of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Wanted:
    """The columns of a prediction: mean, std, the ends of an interval, quantiles."""

    coverage: float | None = 0.95
    levels: Sequence[float] = ()

    @property
    def names(self) -> list[str]:
        """mean, std, lower_95, upper_95, q_0.1 ..."""
        percent = None if self.coverage is None else f"{100.0 * self.coverage:.12g}"
        ends = [] if percent is None else [f"lower_{percent}", f"upper_{percent}"]
        return ["mean", "std", *ends, *(f"q_{level:.12g}" for level in self.levels)]

    def numbers(self, predicted: Any) -> list[np.ndarray[Any, Any]]:
        """Of a predictive distribution, in the order of the names."""
        import numpy as np

        found = [predicted.mean, predicted.std]
        found += [] if self.coverage is None else predicted.interval(self.coverage)
        found += [predicted.quantile(level) for level in self.levels]
        return [np.asarray(values) for values in found]
