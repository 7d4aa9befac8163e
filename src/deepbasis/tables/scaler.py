"""`TargetScaler`: from the target y to the numbers that are trained on, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbasis.errors import FileFormatError, InputError
from deepbasis.gp.counts import Counts
from deepbasis.gp.discrete import KINDS, Discrete, Steps
from deepbasis.gp.intervals import FARTHEST
from deepbasis.gp.outputs import MOST_OUTPUTS, Outputs
from deepbasis.gp.predictive import Predictive
from deepbasis.gp.rates import RATE, Rate
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import Log, Warp, warp_from_state
from deepbasis.tables.labels import CLASSES, Labels
from deepbasis.tables.targets import (
    LARGEST,
    check_counts,
    check_precision,
    check_target,
    check_targets,
    output_names,
)
from deepbasis.tables.weighted import masses, mean_and_std

Floats = NDArray[np.float64]

OUTPUTS = "outputs"

_ROUNDING = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class TargetScaler:
    """From y to what is trained on and back: perhaps a warp u = g(y), then to mean 0 and standard deviation 1.

    `mean` and `scale` are weighted, and those of u; without a warp u is y. A class is trained on as its number.
    """

    mean: float
    scale: float
    warp: Warp | Steps | Labels | Rate | Several | None = None
    lower: str | None = None
    upper: str | None = None
    """The columns of its bounds in the fit, where it is censored and they have names."""

    @classmethod
    def fit(cls, y: Floats, weight: Floats | None = None, warp: Warp | Steps | None = None) -> TargetScaler:
        """From y in rows of positive weight. A y that does not vary, beyond rounding, gets scale 1."""
        if weight is not None:
            y, weight = y[weight > 0], weight[weight > 0]
        distinct, mass = masses(y, weight)
        if warp is not None:
            distinct = warp.forward(torch.from_numpy(distinct)).numpy()
        scaler = cls.of(*mean_and_std(distinct, mass), float(np.abs(distinct).max()))
        return replace(scaler, warp=warp)

    @classmethod
    def of(cls, mean: float, std: float, largest: float) -> TargetScaler:
        """From the moments of y and the largest |y|, without a warp."""
        constant = std <= max(_ROUNDING * largest, 1 / LARGEST)
        return cls(mean, 1.0 if constant else std)

    @property
    def name(self) -> str:
        if isinstance(self.warp, Rate | Several):
            return RATE if isinstance(self.warp, Rate) else OUTPUTS
        if isinstance(self.warp, Steps | Labels):
            return CLASSES if isinstance(self.warp, Labels) else self.warp.kind
        return "identity" if self.warp is None else "log" if isinstance(self.warp, Log) else "warp"

    @property
    def edges(self) -> tuple[float, ...]:
        """Between the values of a discrete target, in the units that it is trained in."""
        edges = self.warp.edges if isinstance(self.warp, Steps) else ()
        return tuple((edge - self.mean) / self.scale for edge in edges)

    @property
    def labels(self) -> Labels:
        if not isinstance(self.warp, Labels):
            raise InputError("the target is a number: it has no classes")
        return self.warp

    @property
    def classes(self) -> int:
        """How many, or 0 if the target is a number."""
        return len(self.warp.values) if isinstance(self.warp, Labels) else 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of several outputs; none if there is one target."""
        return self.warp.names if isinstance(self.warp, Several) else ()

    @property
    def exposure(self) -> str | None:
        """The name of a count's exposure in the fit."""
        return self.warp.exposure if isinstance(self.warp, Rate) else None

    def check_exposed(self, known: bool, remedy: str = "give it for each row, or name its column") -> None:
        """Counts are not scored over an exposure of 1 if those of the fit had others."""
        if not known and isinstance(self.warp, Rate) and self.warp.exposed:
            raise InputError(
                f"exposure is missing: the counts of the fit had one, and so have those to score; {remedy}"
            )

    def check(self, y: Any) -> Floats:
        """What a user gives as targets, as numbers."""
        if isinstance(self.warp, Several):
            return self.warp.check(y)
        if isinstance(self.warp, Labels):
            return self.warp.codes(y)
        numbers = check_target(y)
        return check_counts(numbers) if isinstance(self.warp, Rate) else numbers

    def transform(self, y: Floats) -> Floats:
        if isinstance(self.warp, Log) and not (y > 0).all():
            row = int(np.argmin(y > 0))
            raise InputError(f"y is {y[row]:g} in row {row}: the log of a target needs positive numbers")
        if isinstance(self.warp, Steps):
            self.warp.check(y)
        if self.warp is not None:
            y = self.warp.forward(torch.from_numpy(y)).numpy()
        return (y - self.mean) / self.scale

    def check_precision(self, z: Floats, y: Floats, name: str, dtype: str, rows: Any = None) -> None:
        """Refuse a y, of which z is trained on, that overflows in the model's precision. `rows` are their numbers."""
        if isinstance(self.warp, Several):
            for k, (output, place) in enumerate(zip(self.warp.names, self.warp.places, strict=True)):
                check_precision(z[:, place], y[:, k], f"{name}[{output}]", dtype, rows)
        else:
            number, given = (one if one.ndim == 1 else one[:, 0] for one in (z, y))
            check_precision(number, given, name, dtype, rows)

    def bounded(self, y: Floats, bounds: Floats) -> Floats:
        """y and its bounds, transformed, [n, 3]; what has no bound inside of the warp has one that is far away."""
        z = self.transform(y)
        limits = getattr(self.warp, "low", -np.inf), getattr(self.warp, "high", np.inf)
        ends = [z]
        for end, limit, sign in zip(bounds.T, limits, (-1.0, 1.0), strict=True):
            inside = sign * end < sign * limit
            there = np.where(inside, self.transform(np.where(inside, end, y)), z + sign * FARTHEST)
            ends.append(np.where(end == y, z, there))  # to the last digit, which says that y is exact
        return np.stack(ends, 1)

    def counted(self, y: Floats, exposure: Floats | None) -> Floats:
        """Counts as a likelihood takes them, [n, 3]; without an exposure each has the same."""
        assert isinstance(self.warp, Rate)
        counts = torch.from_numpy(y)
        return self.warp.observed(
            counts, torch.ones_like(counts) if exposure is None else torch.from_numpy(exposure)
        ).numpy()

    def bounds_of(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds, from what `bounded` gave; exact ones are equal to y."""
        known = z[:, 0]
        ends = []
        for end, sign in zip(z[:, 1:].unbind(1), (-1.0, 1.0), strict=True):
            far = sign * (end - known) > 0.999 * FARTHEST
            ends.append(torch.where(far, sign * torch.inf, self.inverse(torch.where(far, known, end))))
        exact = z[:, 1] == z[:, 2]
        return torch.where(exact, self.inverse(known), ends[0]), torch.where(exact, self.inverse(known), ends[1])

    def inverse(self, z: Tensor) -> Tensor:
        """Back to y."""
        u = z * self.scale + self.mean
        return u if self.warp is None else self.warp.inverse(u)

    def log_slope(self, z: Tensor) -> Tensor | None:
        """log dz/dy, in float64: with it the log of a density of z is one of y. None where y has no density."""
        u = z.double() * self.scale + self.mean
        if isinstance(self.warp, Warp):
            return -math.log(self.scale) - self.warp.log_slope(u)
        return torch.full_like(u, -math.log(self.scale)) if self.warp is None else None

    def distribution(self, predicted: Predictive) -> Predictive:
        """Of y, given that of z."""
        if isinstance(self.warp, Labels):
            return predicted
        if isinstance(self.warp, Several):
            return self.warp.distribution(predicted)
        if isinstance(self.warp, Rate):
            assert isinstance(predicted, Counts)
            return predicted.exposed(math.log(self.warp.base))
        of_u = predicted.affine(self.scale, self.mean)
        if isinstance(self.warp, Steps):
            return Discrete(of_u, self.warp)
        return of_u if self.warp is None else Warped(of_u, self.warp)

    def state(self) -> dict[str, Any]:
        warp = None if self.warp is None else self.warp.state()
        return {"mean": self.mean, "scale": self.scale, "warp": warp, "lower": self.lower, "upper": self.upper}

    @classmethod
    def from_state(cls, metadata: Mapping[str, Any]) -> TargetScaler:
        numbers: list[Any] = [metadata.get(key) if isinstance(metadata, Mapping) else None for key in ("mean", "scale")]
        if not all(type(one) is float and abs(one) <= LARGEST for one in numbers) or not numbers[1] >= 1 / LARGEST:
            raise FileFormatError(
                f"the target's mean and scale must be two numbers up to {LARGEST:g}, the scale at least "
                f"{1 / LARGEST:g}; got {numbers}"
            )
        bounds = [metadata.get(key) for key in ("lower", "upper")]  # files of before have none
        if not all(isinstance(one, str | None) for one in bounds):
            raise FileFormatError(f"the bounds of the target must be names of columns, got {bounds}")
        warp = metadata["warp"]
        if warp is not None and warp["kind"] == CLASSES:
            if numbers != [0.0, 1.0]:
                raise FileFormatError("classes have no scale")
            warp = Labels.from_state(warp)
        elif warp is not None and warp["kind"] == OUTPUTS:
            if numbers != [0.0, 1.0]:
                raise FileFormatError("several outputs have a scale each, and none together")
            warp = Several.from_state(warp)
        elif warp is not None and warp["kind"] == RATE:
            warp = Rate.from_state(warp)
        elif warp is not None and warp["kind"] in KINDS:
            warp = Steps.from_state(warp)
            low, high = warp.forward(torch.tensor(warp.values, dtype=torch.float64)[[0, -1]]).tolist()
            rounding = 1e-9 * max(1.0, -low, high)
            if not low - rounding <= numbers[0] <= high + rounding or numbers[1] > max(1.0, high - low):
                raise FileFormatError(f"the target's mean and scale, {numbers}, are not those of its values")
        elif warp is not None:
            warp = warp_from_state(warp)
        return cls(numbers[0], numbers[1], warp, *bounds)


@dataclass(frozen=True)
class Several:
    """The outputs of a model that has several: what each is called, and how it is scaled. y is [n, m].

    The user's order is not that of the training, which sorts them by their scales: so the fit does not depend on it.
    """

    names: tuple[str, ...]
    each: tuple[TargetScaler, ...]

    @property
    def order(self) -> list[int]:
        """The numbers of the outputs, in the order of the training."""
        return sorted(range(len(self.each)), key=lambda k: (self.each[k].mean, self.each[k].scale))

    @property
    def places(self) -> list[int]:
        """Of each output in the training."""
        return [self.order.index(k) for k in range(len(self.each))]

    def __post_init__(self) -> None:
        different = len(set(self.names)) == len(self.names) == len(self.each) >= 2
        if not different or not all(one.name in ("identity", "log", "warp") for one in self.each):
            raise InputError("several outputs are two numbers or more, with a scale each and different names")
        if len(self.names) > MOST_OUTPUTS:
            raise InputError(
                f"y has {len(self.names)} columns, and a model has at most {MOST_OUTPUTS} outputs: fit several models"
            )

    def check(self, y: Any) -> Floats:
        """[n, m], the columns of a DataFrame in the order of the fit."""
        m, given = len(self.names), check_targets(y)
        if given.ndim != 2 or given.shape[1] != m:
            raise InputError(f"y must have {m} columns, {self}, as in the fit; got shape {given.shape}")
        names = output_names(y, m)
        by_place = tuple(map(str, range(m)))
        if by_place in (names, self.names):
            return given
        missing = [name for name in self.names if name not in names]
        if missing:
            raise InputError(f"y has no column {missing[0]!r}, which is an output of the fit: it must have {self}")
        return given[:, [names.index(name) for name in self.names]]

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names))

    def forward(self, y: Tensor) -> Tensor:
        """What is trained on."""
        scaled = [self.each[k].transform(y[:, k].numpy()) for k in self.order]
        return torch.from_numpy(np.stack(scaled, 1))

    def inverse(self, u: Tensor) -> Tensor:
        columns = zip(self.each, self.places, strict=True)
        return torch.stack([one.inverse(u[:, place]) for one, place in columns], 1)

    def distribution(self, predicted: Predictive) -> Outputs:
        assert isinstance(predicted, Outputs)
        places, R = self.places, predicted.correlation
        each = tuple(one.distribution(predicted.each[k]) for one, k in zip(self.each, places, strict=True))
        return Outputs(each, None if R is None else R[places][:, places])

    def state(self) -> dict[str, Any]:
        return {"kind": OUTPUTS, "names": list(self.names), "each": [one.state() for one in self.each]}

    @classmethod
    def from_state(cls, record: Mapping[str, Any]) -> Several:
        names, each = record["names"], record["each"]
        if not isinstance(names, list) or not isinstance(each, list) or not all(type(one) is str for one in names):
            raise FileFormatError("the outputs of the target must be a list of names, and their scales another")
        if any(isinstance(one.get("warp"), Mapping) and one["warp"]["kind"] == OUTPUTS for one in each):
            raise FileFormatError("an output has outputs itself")
        return cls(tuple(names), tuple(TargetScaler.from_state(one) for one in each))
